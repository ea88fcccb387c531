"""Writing one partition's rows on an executor, exactly once despite retries, speculative tasks and stragglers.

The rows and a row in the ledger are one database transaction. The ledger's primary key is the partition: a second
attempt, or a speculative one, gets a duplicate key and rolls its rows back; a straggler finds no ledger and rolls back,
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from twophase.catalogs.jdbc import errors
from twophase.catalogs.jdbc.database import Database
from twophase.catalogs.jdbc.dialects import open_database
from twophase.catalogs.jdbc.options import Settings
from twophase.errors import CatalogError
from twophase.failpoints import Failpoint, step
from twophase.model import ObjectPath

PART = Failpoint("jdbc.part")
PART_COMMIT = Failpoint("jdbc.part_commit")


@dataclass(frozen=True)
class Target:
    """Destination of a statement's rows, sent to the executors.

    Attributes
    ----------
    staging, ledger : ObjectPath
    columns : tuple of str
        Names of the staging table's columns, in the order of the rows' columns.
    types : mapping of str to str
        The database's type of each column.
    path, transaction_id : str
        For messages.
    label : str
        The connection's name as the server shows it.
    """

    staging: ObjectPath
    ledger: ObjectPath
    columns: tuple[str, ...]
    types: Mapping[str, str]
    path: str
    transaction_id: str
    label: str


class _TakenError(Exception):
    """Another attempt has written the partition; ours is rolled back."""


class Loader:
    """Writer of partitions; a plain value that is pickled and sent to the executors."""

    def __init__(self, settings: Settings, target: Target) -> None:
        self.settings = settings
        self.target = target

    def __call__(self, part: int, batches: Iterable[pa.RecordBatch]) -> int:
        """Write one partition.

        Parameters
        ----------
        part : int
            The partition's number, the same for each attempt.
        batches : iterable of pyarrow.RecordBatch

        Returns
        -------
        int
            Rows of the partition, no matter which attempt wrote them.

        Raises
        ------
        CatalogError
            The database refused the rows; none of them is stored.
        """
        target = self.target
        with (
            errors.speaking(self.settings, path=target.path, transaction_id=target.transaction_id),
            step(PART),
        ):
            database = open_database(self.settings)
            with database.arranged(self._columns, self._renamed(batches)) as rows:
                return self._load(database, part, rows)

    @property
    def _columns(self) -> dict[str, str]:
        return {name: self.target.types[name] for name in self.target.columns}

    def _load(self, database: Database, part: int, rows: Any) -> int:
        engine = database.engine(self.target.staging.database, pooled=False, label=self.target.label)
        try:
            return self._write(database, engine, part, rows)
        except _TakenError:
            return self._written_by_another(database, engine, part)
        finally:
            engine.dispose()

    def _write(self, database: Database, engine: sa.Engine, part: int, rows: Any) -> int:
        with engine.connect() as connection:
            with connection.begin():
                done = self._written(database, connection, part)
            if done is not None:
                return done
            transaction = connection.begin()
            written = database.load(connection, self.target.staging, self._columns, rows)
            self._enter(database, connection, part, written)
            with step(PART_COMMIT):
                transaction.commit()
        return written

    def _written_by_another(self, database: Database, engine: sa.Engine, part: int) -> int:
        with engine.connect() as connection, connection.begin():
            done = self._written(database, connection, part)
        if done is None:
            raise CatalogError(
                f"Partition {part} was written by no attempt, although its place in the ledger is taken.",
                path=self.target.path,
                transaction_id=self.target.transaction_id,
            )
        return done

    def _renamed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rename the columns, matched by position, to those of the table, so that errors name the table's columns."""
        names = list(self.target.columns)
        for batch in batches:
            yield batch.rename_columns(names)

    def _ledger(self, database: Database) -> sa.TableClause:
        return database.construct(self.target.ledger, "part", "row_count", "stamp")

    def _written(self, database: Database, connection: sa.Connection, part: int) -> int | None:
        ledger = self._ledger(database)
        return connection.scalar(sa.select(ledger.c.row_count).where(ledger.c.part == part))

    def _enter(self, database: Database, connection: sa.Connection, part: int, rows: int) -> None:
        try:
            connection.execute(sa.insert(self._ledger(database)).values(part=part, row_count=rows))
        except IntegrityError:
            raise _TakenError from None

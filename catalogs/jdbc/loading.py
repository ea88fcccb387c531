"""Writing one partition's rows, on an executor: exactly once, whatever is retried, doubled or late.

The rows and a row in the ledger are one database transaction. The ledger's key is the partition: a second attempt, or
a speculative twin, finds it taken and rolls its rows back; a straggler finds no ledger any more, and rolls back, too.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from twophase.catalogs.jdbc import errors
from twophase.catalogs.jdbc.database import Database, Table, TakenError, open_database
from twophase.catalogs.jdbc.options import Settings
from twophase.errors import CatalogError
from twophase.failpoints import declare, step

declare("jdbc.part", "jdbc.part_commit")


@dataclass(frozen=True)
class Target:
    """Where the rows of a statement go. It travels to the executors.

    Attributes
    ----------
    staging, ledger : Table
    columns : tuple of str
        Names of the staging table's columns, in the order of the rows'.
    types : mapping of str to str
        What the database calls the type of each.
    path, transaction_id : str
        For messages.
    label : str
        What the server shows of the connection.
    """

    staging: Table
    ledger: Table
    columns: tuple[str, ...]
    types: Mapping[str, str]
    path: str
    transaction_id: str
    label: str


class Loader:
    """Writes partitions; a plain value that is pickled to the executors.

    Parameters
    ----------
    settings : Settings
    target : Target
    """

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
            Rows of the partition, whichever attempt wrote them.

        Raises
        ------
        CatalogError
            The database refused them; none of them is there.
        """
        target = self.target
        with (
            errors.speaking(self.settings, path=target.path, transaction_id=target.transaction_id),
            step("jdbc.part"),
            self._arranged(open_database(self.settings), batches) as (database, ready),
        ):
            return self._load(database, part, ready)

    @contextmanager
    def _arranged(
        self, database: Database, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[Database, Iterable[pa.RecordBatch]]]:
        """Where there is one writer, a partition is computed before its turn, not while all others wait."""
        if not database.one_writer:
            yield database, batches
            return
        with tempfile.TemporaryDirectory(prefix="twophase-") as directory, spooled(Path(directory), batches) as ready:
            yield database, ready

    def _load(self, database: Database, part: int, batches: Iterable[pa.RecordBatch]) -> int:
        renamed = self._renamed(batches)
        first = next(renamed, None)
        rest = renamed if first is None else itertools.chain([first], renamed)
        quick = first is not None and database.takes_quickly(first.schema, self.target.types)
        engine = database.engine(self.target.staging.database, pooled=False, label=self.target.label)
        try:
            if first is not None and quick:
                return self._load_quickly(database, part, first.schema, rest)
            return self._write(database, engine, part, rest)
        except TakenError:
            return self._written_by_another(database, engine, part)
        finally:
            engine.dispose()

    def _load_quickly(self, database: Database, part: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
        target = self.target
        return database.load_quickly(
            target.staging, target.ledger, part, schema, batches, target.label, lambda: step("jdbc.part_commit")
        )

    def _write(self, database: Database, engine: sa.Engine, part: int, batches: Iterator[pa.RecordBatch]) -> int:
        with engine.connect() as connection:
            with connection.begin():
                done = self._written(database, connection, part)
            if done is not None:
                return done
            transaction = connection.begin()
            rows = database.load(connection, self.target.staging, self._named(), batches)
            self._enter(database, connection, part, rows)
            with step("jdbc.part_commit"):
                transaction.commit()
        return rows

    def _written_by_another(self, database: Database, engine: sa.Engine, part: int) -> int:
        with engine.connect() as connection, connection.begin():
            done = self._written(database, connection, part)
        if done is None:
            raise CatalogError(
                f"Partition {part} was written by nobody, although its place in the ledger is taken.",
                path=self.target.path,
                transaction_id=self.target.transaction_id,
            )
        return done

    def _named(self) -> pa.Schema:
        return pa.schema([(name, pa.null()) for name in self.target.columns])

    def _renamed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Columns belong to those of the table by their position; an error then names the table's."""
        names = list(self.target.columns)
        for batch in batches:
            yield batch.rename_columns(names)

    def _ledger(self, database: Database) -> sa.TableClause:
        return database.construct(self.target.ledger, "part", "row_count", "stamp")

    def _written(self, database: Database, connection: sa.Connection, part: int) -> int | None:
        ledger = self._ledger(database)
        found: int | None = connection.scalar(sa.select(ledger.c.row_count).where(ledger.c.part == part))
        return found

    def _enter(self, database: Database, connection: sa.Connection, part: int, rows: int) -> None:
        try:
            connection.execute(sa.insert(self._ledger(database)).values(part=part, row_count=rows))
        except IntegrityError:
            raise TakenError from None


@contextmanager
def spooled(directory: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[Iterable[pa.RecordBatch]]:
    """Batches by way of a file: all are computed, and memory holds one."""
    file = directory / "rows.arrow"
    writer = None
    for batch in batches:
        if writer is None:
            writer = pa.ipc.new_stream(str(file), batch.schema)
        writer.write_batch(batch)
    if writer is None:
        yield []
        return
    writer.close()
    with closing(pa.OSFile(str(file))) as source:
        yield pa.ipc.open_stream(source)

"""Engines, transactions, and the hidden tables of twophase in the database, as used by the driver.

=========================== =====================================================================================
name, after the prefix      purpose
=========================== =====================================================================================
``s_<hash>``                staged rows of one participant
``l_<hash>``                its ledger: a row for each written partition, and the owner stamp
``d_<hash>``                the ledger after a publish by ``RENAME TABLE``: its existence records the publish
``o_<hash>``                backup of the replaced table, until the statement is finished (MariaDB, MySQL)
``published``               the published participants; a row for the database's identity, and one for each table's
                            version
``comments``                comments of tables, in SQLite
``try_<time><hash>``        a trial of what a database can do that is known by its dialect only; a later one removes
                            those that a crash has left
=========================== =====================================================================================
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError

from twophase.catalog import Catalog
from twophase.catalogs.jdbc import definitions, errors
from twophase.catalogs.jdbc.database import Database
from twophase.catalogs.jdbc.dialects import open_database
from twophase.catalogs.jdbc.options import Settings
from twophase.catalogs.jdbc.sqlite import SQLite
from twophase.errors import CatalogError, TableNotExistError
from twophase.model import ObjectPath, TableDefinition

#: The ledger's row that holds the owner stamp instead of a partition.
STAMP = -1
#: The ledger's row that records that the rows of an earlier statement of the transaction were taken over.
TAKEN_OVER = -2
#: The ledger's row that records that the rename of the staging table may have happened, in a publish in steps.
PUBLISHING = -3


_PUBLISHED = [
    ("participant", "varchar(120) NOT NULL PRIMARY KEY"),
    ("target", "varchar(64) NOT NULL"),
    ("since", "double precision NOT NULL"),
]
#: Rows of the published table that are not participants.
_IDENTITY, _VERSION = "#database", "#version/"
#: The target recorded for a participant that was aborted after it had been prepared.
_ABORTED = "aborted"


@dataclass(frozen=True)
class Place:
    """The hidden tables of one participant."""

    staging: ObjectPath
    ledger: ObjectPath
    done: ObjectPath
    backup: ObjectPath

    @property
    def names(self) -> list[str]:
        """The names of all of them."""
        return [table.name for table in (self.staging, self.ledger, self.done, self.backup)]

    @property
    def key(self) -> str:
        """The hash that the names share."""
        return self.staging.name.rpartition("_")[2]

    @property
    def label(self) -> str:
        """Name of the connections that write here, as the server shows it."""
        return f"twophase-{self.key}"


class Store:
    """Engines by database, and twophase's bookkeeping."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database: Database = open_database(settings)
        self._engines: dict[str, sa.Engine] = {}
        # Connections are closed when the catalog is garbage-collected.
        self._finalizer = weakref.finalize(self, _dispose, self._engines)

    def close(self) -> None:
        """Close all connections. Idempotent; the store can be used again."""
        _dispose(self._engines)

    def forget(self, database: str) -> None:
        """Close the connections of a database that is dropped, unless they serve the other databases, too."""
        key = self.database.engine_key(database)
        engine = None if key == self.database.engine_key("main") else self._engines.pop(key, None)
        if engine is not None:
            engine.dispose()

    def engine(self, database: str) -> sa.Engine:
        """The engine of a database."""
        key = self.database.engine_key(database)
        if key not in self._engines:
            self._engines[key] = self.database.engine(database, pooled=True)
        return self._engines[key]

    @contextmanager
    def begin(
        self,
        database: str,
        *,
        path: object = None,
        transaction_id: str | None = None,
        read_only: bool = False,
        snapshot: bool = False,
    ) -> Iterator[sa.Connection]:
        """A database transaction; the database's errors are raised as ours.

        With ``snapshot``, all its statements read the same state, if the database can do that.
        """
        engine = self.engine(database)
        if not read_only:
            self.learn(database, path)
        if read_only:
            engine = engine.execution_options(twophase_read_only=True)
        if snapshot:
            engine = engine.execution_options(**self.database.snapshot_options())
        with errors.speaking(self.settings, path=path, transaction_id=transaction_id), engine.begin() as connection:
            yield connection

    def learn(self, database: str, path: object = None) -> None:
        """Find out what the database supports, before the first statement that writes there."""
        with errors.speaking(self.settings, path=path):
            self.database.learn(self.engine(database), self.home(database))

    def comments_databases(self, database: str) -> bool:
        """Whether a database has a comment, which holds its properties."""
        if self.database.comments_databases:
            self.learn(database, database)
        return self.database.comments_databases

    def database_exists(self, database: str) -> bool:
        """Whether a database exists."""
        if isinstance(self.database, SQLite):
            return database in self.database.files()
        with self.begin(database, path=database, read_only=True) as connection:
            return database in self.database.list_databases(connection)

    def list_databases(self) -> list[str]:
        """Names of all databases."""
        with self.begin("main", read_only=True) as connection:
            return self.database.list_databases(connection)

    def relations(self, database: str) -> dict[str, str]:
        """Return the tables and views of a database with their kind, without hidden ones."""
        with self.begin(database, path=database, read_only=True) as connection:
            found = self.database.list_relations(connection, database)
        return {name: kind for name, kind in found.items() if not self.is_hidden(name)}

    def definition(self, connection: sa.Connection, path: ObjectPath) -> TableDefinition:
        """The definition of an existing table."""
        columns = self.database.columns(connection, path)
        return definitions.to_definition(columns, self.database.comment(connection, path))

    def seen(self, connection: sa.Connection, path: ObjectPath) -> dict[str, Any] | None:
        """The state of a target, recorded by a statement to detect later changes; None if the table does not exist."""
        if self.database.table_kind(connection, path) is None:
            return None
        columns = self.database.columns(connection, path)
        numbers = [column.number for column in columns]
        return {
            "columns": [[column.name, column.type] for column in columns],
            **({"numbers": numbers} if None not in numbers else {}),
            "generation": self.database.generation(connection, path),
            "version": self.version(connection, self.home(path.database), path),
        }

    def seen_table(self, connection: sa.Connection, path: ObjectPath) -> dict[str, Any]:
        """Return the state of a target that must be a table.

        Raises
        ------
        TableNotExistError
        CatalogError
            It is a view.
        """
        seen = self.seen(connection, path)
        if seen is None:
            raise TableNotExistError.of(path, self.settings.catalog)
        if self.database.table_kind(connection, path) == "view":
            raise CatalogError(f"{path} is a view, not a table.", path=path)
        return seen

    def there(self, connection: sa.Connection, place: Place) -> set[str]:
        """Return which hidden tables of a participant exist, including the published table."""
        home = place.ledger.database
        return set(self.database.kinds(connection, home, [*place.names, self.published(home).name]))

    # -- names ---------------------------------------------------------------------------------------------------

    @property
    def prefix(self) -> str:
        return self.settings.staging_prefix

    def is_hidden(self, name: str) -> bool:
        """Whether a table is one of twophase's."""
        return name.lower().startswith(self.prefix)

    def home(self, database: str) -> str:
        """The database of the hidden tables for targets in another database."""
        return self.settings.staging_schema or database

    def place(self, path: ObjectPath, transaction_id: str, ordinal: int) -> Place:
        """Hidden tables named by a hash of a participant's identity; targets with a common prefix never collide."""
        identity = json.dumps([transaction_id, ordinal, *path.to_document()])
        return self.place_of(self.home(path.database), hashlib.sha256(identity.encode()).hexdigest()[:24])

    def place_of(self, home: str, key: str) -> Place:
        """The hidden tables with this key."""
        return Place(*(ObjectPath.of(home, f"{self.prefix}{kind}_{key}") for kind in "sldo"))

    def published(self, home: str) -> ObjectPath:
        """The table of published participants."""
        return ObjectPath.of(home, f"{self.prefix}published")

    # -- the ledger ----------------------------------------------------------------------------------------------

    def make_ledger(self, connection: sa.Connection, place: Place, stamp: Mapping[str, Any]) -> None:
        """Create a participant's ledger with its owner stamp; atomic, except in some databases known by dialect."""
        database, text = self.database, json.dumps(stamp)
        columns = [
            ("part", "integer NOT NULL PRIMARY KEY"),
            ("row_count", "bigint NOT NULL"),
            ("stamp", "varchar(2000)"),
        ]
        if database.comments_in_ddl:
            database.create(connection, place.ledger, columns, f" COMMENT={database.text(text)}")
        else:
            database.create(connection, place.ledger, columns)
            connection.execute(sa.insert(self.ledger_table(place.ledger)).values(part=STAMP, row_count=0, stamp=text))

    def ledger_table(self, table: ObjectPath) -> sa.TableClause:
        """The ledger as a table for SQLAlchemy's statements."""
        return self.database.construct(table, "part", "row_count", "stamp")

    def stamp(self, connection: sa.Connection, table: ObjectPath) -> dict[str, Any] | None:
        """The owner stamp of a ledger; None if the table is not a ledger of twophase."""
        database = self.database
        if database.comments_in_ddl:
            text = database.comment(connection, table)
        else:
            ledger = self.ledger_table(table)
            text = connection.scalar(sa.select(ledger.c.stamp).where(ledger.c.part == STAMP))
        try:
            found = json.loads(text or "null")
        except ValueError:
            return None
        return found if isinstance(found, dict) and "transaction_id" in found else None

    def written(self, connection: sa.Connection, place: Place) -> dict[int, int]:
        """Rows by partition, as recorded in the ledger."""
        ledger = self.ledger_table(place.ledger)
        rows = connection.execute(sa.select(ledger.c.part, ledger.c.row_count).where(ledger.c.part != STAMP))
        return {int(part): int(count) for part, count in rows}

    # -- published participants ----------------------------------------------------------------------------------

    def make_published(self, home: str, target: ObjectPath, transaction_id: str) -> str:
        """Create the table of published participants if it does not exist; several processes may do so concurrently.

        Returns
        -------
        str
            The identity of the database, created together with the table.
        """
        table = self.published(home)
        of: dict[str, Any] = {"path": target, "transaction_id": transaction_id}
        for attempt in (1, 2, 3):
            with self.begin(home, **of) as connection:
                if self.database.table_kind(connection, table) is not None:
                    break
            try:
                with self.engine(home).begin() as connection:
                    self.database.create(connection, table, _PUBLISHED)
                    self.database.create_index(connection, table, "target")
            except DBAPIError as error:
                if attempt == 3:
                    raise errors.failed(error, self.settings, **of) from None
        self._make_row(home, _VERSION + self.target_key(target), self.target_key(target), of)
        return self._make_row(home, _IDENTITY, secrets.token_hex(16), of)

    def _make_row(self, home: str, key: str, value: str, of: Mapping[str, Any]) -> str:
        """Create a row unless it already exists, and return its value, whoever created it."""
        table = self.published_table(home)
        for _ in range(3):
            with self.begin(home, **of) as connection:
                found = connection.scalar(sa.select(table.c.target).where(table.c.participant == key))
                if found is not None:
                    return str(found)
            row = {"participant": key, "target": value, "since": 0.0}
            with (
                errors.speaking(self.settings, **of),
                suppress(IntegrityError),
                self.engine(home).begin() as connection,
            ):
                connection.execute(sa.insert(table).values(**row))
        raise CatalogError(f"{self.published(home).name} of {home} does not keep its row {key}.", **of)

    def identity(self, connection: sa.Connection, home: str) -> str | None:
        """Identity that distinguishes this database from another of its name; None if nothing was ever staged in it."""
        if not self.database.is_there(connection, self.published(home)):
            return None
        return self._said(connection, home, _IDENTITY)

    def published_table(self, home: str) -> sa.TableClause:
        return self.database.construct(self.published(home), "participant", "target", "since")

    def record_published(self, connection: sa.Connection, home: str, participant: str, target: ObjectPath) -> None:
        """Record that a participant was published. Its key is unique, so it cannot be published twice.

        The last step of a transaction: from here on, other publishes into the same table wait.
        """
        table, key, now = self.published_table(home), self.target_key(target), time.time()
        connection.execute(sa.insert(table).values(participant=participant, target=key, since=now))
        later = sa.case((table.c.since < now, now), else_=table.c.since + 0.001)
        counted = sa.update(table).where(table.c.participant == _VERSION + key).values(since=later)
        if connection.execute(counted).rowcount == 0:
            connection.execute(sa.insert(table).values(participant=_VERSION + key, target=key, since=now))

    def record_published_once(self, connection: sa.Connection, home: str, participant: str, target: ObjectPath) -> None:
        """Record that a participant was published, unless that is recorded."""
        if not self.was_published(connection, home, participant):
            self.record_published(connection, home, participant, target)

    def was_published(self, connection: sa.Connection, home: str, participant: str) -> bool:
        """Whether a participant was published."""
        return self._said(connection, home, participant) not in (None, _ABORTED)

    def was_aborted(self, connection: sa.Connection, home: str, participant: str) -> bool:
        """Whether the staged rows of a prepared participant were removed."""
        return self._said(connection, home, participant) == _ABORTED

    def _said(self, connection: sa.Connection, home: str, participant: str) -> str | None:
        table = self.published_table(home)
        return connection.scalar(sa.select(table.c.target).where(table.c.participant == participant))

    def record_aborted(self, connection: sa.Connection, home: str, participant: str) -> None:
        """Record that a participant was aborted, so that its absence is no sign of another database. Idempotent."""
        if self._said(connection, home, participant) is None:
            row = {"participant": participant, "target": _ABORTED, "since": time.time()}
            connection.execute(sa.insert(self.published_table(home)).values(**row))

    def published_before(
        self,
        connection: sa.Connection,
        home: str,
        moment: float | None,
        target: ObjectPath | None = None,
        limit: int = 0,
    ) -> list[tuple[str, float]]:
        """Return participants published before a moment (or at any time), of one table or of all, with their times."""
        table = self.published_table(home)
        old = sa.select(table.c.participant, table.c.since).where(sa.not_(table.c.participant.like("#%")))
        if moment is not None:
            old = old.where(table.c.since < moment)
        if target is not None:
            old = old.where(table.c.target == self.target_key(target)).limit(limit)
        return [(str(key), float(since)) for key, since in connection.execute(old)]

    def forget_published(self, connection: sa.Connection, home: str, participant: str) -> None:
        """Remove the row of a participant whose outcome is no longer needed. Idempotent."""
        table = self.published_table(home)
        connection.execute(sa.delete(table).where(table.c.participant == participant))

    def forget_target(self, connection: sa.Connection, home: str, target: ObjectPath) -> None:
        """Remove the version of a table that was dropped."""
        if self.database.is_there(connection, self.published(home)):
            self.forget_published(connection, home, _VERSION + self.target_key(target))

    def version(self, connection: sa.Connection, home: str, target: ObjectPath) -> float:
        """The version of a table: changes with each publish by twophase; 0 if there was none."""
        if not self.database.is_there(connection, self.published(home)):
            return 0.0
        table = self.published_table(home)
        mine = table.c.participant == _VERSION + self.target_key(target)
        return float(connection.scalar(sa.select(table.c.since).where(mine)) or 0.0)

    def target_key(self, target: ObjectPath) -> str:
        """A key of bounded length for a table."""
        identity = json.dumps(self.database.canonical(target).to_document())
        return hashlib.sha256(identity.encode()).hexdigest()[:40]


class StoreCatalog(Catalog):
    """A catalog over a :class:`Store`: all that its participants need."""

    store: Store


def _dispose(engines: dict[str, sa.Engine]) -> None:
    while engines:
        _, engine = engines.popitem()
        engine.dispose()

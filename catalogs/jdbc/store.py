"""The database as the driver sees it: engines, transactions, and the tables that twophase keeps for itself.

=========================== =====================================================================================
name, after the prefix      what it is
=========================== =====================================================================================
``s_<hash>``                staged rows of one participant
``l_<hash>``                its ledger: a row for each partition that is written, and its owner stamp
``d_<hash>``                the ledger after a publish by ``RENAME TABLE``: that it is there says that it happened
``o_<hash>``                the replaced table, until the statement is finished (MariaDB, MySQL)
``published``               which participants were published; a row for the database's identity, and one for each
                            table's version
``comments``                comments of tables, in SQLite
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

from twophase.catalogs.jdbc import errors
from twophase.catalogs.jdbc.database import Database, Table, open_database
from twophase.catalogs.jdbc.options import Settings
from twophase.catalogs.jdbc.sqlite import SQLite
from twophase.errors import CatalogError
from twophase.model import ObjectPath

#: The ledger's row that is no partition: the owner stamp.
STAMP = -1
#: The ledger's row that says that the rows of an earlier statement of the transaction were taken over.
TAKEN_OVER = -2
#: The ledger's row that says that the staging table may have taken its name, where that is a step of its own.
PUBLISHING = -3


_PUBLISHED = [
    ("participant", "varchar(120) NOT NULL PRIMARY KEY"),
    ("target", "varchar(64) NOT NULL"),
    ("since", "double precision NOT NULL"),
]
#: Rows among the published participants that are none of them.
_IDENTITY, _VERSION = "#database", "#version/"
#: The target of a participant of which nothing was published.
_ABORTED = "aborted"


@dataclass(frozen=True)
class Place:
    """The hidden tables of one participant."""

    staging: Table
    ledger: Table
    done: Table
    aside: Table

    @property
    def names(self) -> list[str]:
        """Of all of them."""
        return [table.name for table in (self.staging, self.ledger, self.done, self.aside)]

    @property
    def key(self) -> str:
        """What the names have in common."""
        return self.staging.name.rpartition("_")[2]

    @property
    def label(self) -> str:
        """What the server shows of connections that write here."""
        return f"twophase-{self.key}"


class Store:
    """Engines by database, and the bookkeeping.

    Parameters
    ----------
    settings : Settings
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database: Database = open_database(settings)
        self._engines: dict[str, sa.Engine] = {}
        # A catalog that is forgotten gives its connections back.
        self._finalizer = weakref.finalize(self, _dispose, self._engines)

    def close(self) -> None:
        """Give all connections back. Idempotent; the store can be used again."""
        _dispose(self._engines)

    def forget(self, database: str) -> None:
        """Close the connections of a database that is dropped."""
        engine = self._engines.pop(self.database.engine_key(database), None)
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
        self, database: str, *, path: object = None, transaction_id: str | None = None, read_only: bool = False
    ) -> Iterator[sa.Connection]:
        """A database transaction; errors of the database come out in words."""
        engine = self.engine(database)
        if not read_only:
            self.learn(database, path)
        if read_only:
            engine = engine.execution_options(twophase_read_only=True)
        with errors.speaking(self.settings, path=path, transaction_id=transaction_id), engine.begin() as connection:
            yield connection

    def learn(self, database: str, path: object = None) -> None:
        """Find out what the database can do, before the first statement that writes there."""
        with errors.speaking(self.settings, path=path):
            self.database.learn(self.engine(database), self.home(database))

    def database_exists(self, database: str) -> bool:
        """Whether a database is there."""
        if isinstance(self.database, SQLite):
            return database in self.database.files()
        with self.begin(database, path=database, read_only=True) as connection:
            return database in self.database.list_databases(connection)

    def there(self, connection: sa.Connection, place: Place) -> set[str]:
        """Which hidden tables of a participant are there; the one of what was published, too."""
        home = place.ledger.database
        return set(self.database.kinds(connection, home, [*place.names, self.published(home).name]))

    # -- names ---------------------------------------------------------------------------------------------------

    @property
    def prefix(self) -> str:
        return self.settings.staging_prefix

    def is_hidden(self, name: str) -> bool:
        """Whether a table is one of ours."""
        return name.lower().startswith(self.prefix)

    def home(self, database: str) -> str:
        """The database where the hidden tables for targets of another one are."""
        return self.settings.staging_schema or database

    def place(self, path: ObjectPath, transaction_id: str, ordinal: int) -> Place:
        """Names from a hash of all that tells participants apart: names that share their beginning never collide."""
        told = json.dumps([transaction_id, ordinal, *path.to_document()])
        return self.place_of(self.home(path.database), hashlib.sha256(told.encode()).hexdigest()[:24])

    def place_of(self, home: str, key: str) -> Place:
        """The hidden tables with this key."""
        return Place(*(Table(home, f"{self.prefix}{kind}_{key}") for kind in "sldo"))

    def published(self, home: str) -> Table:
        """Which participants were published."""
        return Table(home, f"{self.prefix}published")

    # -- the ledger ----------------------------------------------------------------------------------------------

    def make_ledger(self, connection: sa.Connection, place: Place, stamp: Mapping[str, Any]) -> None:
        """Create a participant's ledger with its owner stamp; in one step in every database but some others."""
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

    def ledger_table(self, table: Table) -> sa.TableClause:
        """The ledger for statements."""
        return self.database.construct(table, "part", "row_count", "stamp")

    def stamp(self, connection: sa.Connection, table: Table) -> dict[str, Any] | None:
        """The owner stamp of a ledger; None for what is none of ours."""
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
        """Rows by partition, as the ledger has them."""
        ledger = self.ledger_table(place.ledger)
        rows = connection.execute(sa.select(ledger.c.part, ledger.c.row_count).where(ledger.c.part != STAMP))
        return {int(part): int(count) for part, count in rows}

    # -- what was published --------------------------------------------------------------------------------------

    def make_published(self, home: str, target: ObjectPath) -> str:
        """Create the table of published participants where it is missing; many may do so at once.

        Returns
        -------
        str
            The identity of the database, which was made with it.
        """
        table = self.published(home)
        for attempt in (1, 2, 3):
            with self.begin(home) as connection:
                if self.database.table_kind(connection, table) is not None:
                    break
            try:
                with self.engine(home).begin() as connection:
                    self.database.create(connection, table, _PUBLISHED)
                    self.database.create_index(connection, table, "target")
            except DBAPIError as error:
                if attempt == 3:
                    raise errors.failed(error, self.settings, path=f"{table.database}.{table.name}") from None
        self._make_row(home, _VERSION + self.target_key(target), self.target_key(target))
        return self._make_row(home, _IDENTITY, secrets.token_hex(16))

    def _make_row(self, home: str, key: str, value: str) -> str:
        """Make a row that there is once, and return what is in it, whoever made it."""
        table = self.published_table(home)
        for _ in range(3):
            with self.begin(home) as connection:
                found = connection.scalar(sa.select(table.c.target).where(table.c.participant == key))
                if found is not None:
                    return str(found)
            row = {"participant": key, "target": value, "since": 0.0}
            with suppress(IntegrityError), self.engine(home).begin() as connection:
                connection.execute(sa.insert(table).values(**row))
        raise CatalogError(f"{self.published(home).name} of {home} does not keep its row {key}.", path=home)

    def identity(self, connection: sa.Connection, home: str) -> str | None:
        """What tells this database from another one of the same name; None where nothing was ever staged in it."""
        if self.database.table_kind(connection, self.published(home)) is None:
            return None
        table = self.published_table(home)
        found: str | None = connection.scalar(sa.select(table.c.target).where(table.c.participant == _IDENTITY))
        return found

    def published_table(self, home: str) -> sa.TableClause:
        return self.database.construct(self.published(home), "participant", "target", "since")

    def record_published(self, connection: sa.Connection, home: str, participant: str, target: ObjectPath) -> None:
        """Say that a participant was published. Its key is unique: a second publish cannot be.

        The last thing in a transaction: others that publish into the same table wait from here on.
        """
        table, key, now = self.published_table(home), self.target_key(target), time.time()
        connection.execute(sa.insert(table).values(participant=participant, target=key, since=now))
        later = sa.case((table.c.since < now, now), else_=table.c.since + 0.001)
        counted = sa.update(table).where(table.c.participant == _VERSION + key).values(since=later)
        if connection.execute(counted).rowcount == 0:
            connection.execute(sa.insert(table).values(participant=_VERSION + key, target=key, since=now))

    def was_published(self, connection: sa.Connection, home: str, participant: str) -> bool:
        """Whether a participant was published."""
        return self._said(connection, home, participant) not in (None, _ABORTED)

    def was_aborted(self, connection: sa.Connection, home: str, participant: str) -> bool:
        """Whether what a participant had prepared was removed."""
        return self._said(connection, home, participant) == _ABORTED

    def _said(self, connection: sa.Connection, home: str, participant: str) -> str | None:
        table = self.published_table(home)
        found: str | None = connection.scalar(sa.select(table.c.target).where(table.c.participant == participant))
        return found

    def record_aborted(self, connection: sa.Connection, home: str, participant: str) -> None:
        """Say that nothing of a participant is left, so that this is no sign of another database. Idempotent."""
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
        """Participants that were published before a moment or ever, of one table or of all, and when."""
        table = self.published_table(home)
        old = sa.select(table.c.participant, table.c.since).where(sa.not_(table.c.participant.like("#%")))
        if moment is not None:
            old = old.where(table.c.since < moment)
        if target is not None:
            old = old.where(table.c.target == self.target_key(target)).limit(limit)
        return [(str(key), float(since)) for key, since in connection.execute(old)]

    def forget_published(self, connection: sa.Connection, home: str, participant: str) -> None:
        """Remove the row of a participant that nobody will ask for. Idempotent."""
        table = self.published_table(home)
        connection.execute(sa.delete(table).where(table.c.participant == participant))

    def forget_target(self, connection: sa.Connection, home: str, target: ObjectPath) -> None:
        """Remove the version of a table that was dropped."""
        if self.database.table_kind(connection, self.published(home)) is not None:
            self.forget_published(connection, home, _VERSION + self.target_key(target))

    def version(self, connection: sa.Connection, home: str, target: ObjectPath) -> float:
        """What changes with each publish of a table through twophase; 0 where there was none."""
        if self.database.table_kind(connection, self.published(home)) is None:
            return 0.0
        table = self.published_table(home)
        mine = table.c.participant == _VERSION + self.target_key(target)
        return float(connection.scalar(sa.select(table.c.since).where(mine)) or 0.0)

    def target_key(self, target: ObjectPath) -> str:
        """A name of bounded length for a table."""
        told = json.dumps(self.database.canonical(target).to_document())
        return hashlib.sha256(told.encode()).hexdigest()[:40]


def _dispose(engines: dict[str, sa.Engine]) -> None:
    while engines:
        _, engine = engines.popitem()
        engine.dispose()

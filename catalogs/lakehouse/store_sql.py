"""An Iceberg catalog in a SQL database: pointers and records of participants change in one SQL transaction.

It depends on private parts of PyIceberg: the layout of its SQL catalog, and the creation of its engine. In addition to
PyIceberg's two tables there are two of twophase:

====================== ===========================================================================================
``twophase_staged``    a row for each participant, from before anything is staged: ``staged``, then ``published``
                       in the same transaction that moves the pointer, or ``aborted`` while its files are removed;
                       and one row for the database's identity
``twophase_dropped``   tables that were dropped without PURGE: their location and their last metadata file
====================== ===========================================================================================

A participant is published if and only if its row says so; an abort or a query of the outcome locks that row first.
A timeline in the same database gets its row in the same transaction.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from pyiceberg.table.update import TableUpdate
from sqlalchemy.exc import OperationalError, ProgrammingError

from twophase.catalogs.forks import keep_from_children
from twophase.catalogs.lakehouse import errors
from twophase.catalogs.lakehouse.file_access import FileAccess
from twophase.catalogs.lakehouse.options import Settings
from twophase.catalogs.lakehouse.store import (
    ABORTED,
    PUBLISHED,
    STAGED,
    Also,
    Dropped,
    Loaded,
    LostRace,
    Move,
    NotStaged,
    Staged,
    Store,
)
from twophase.errors import CatalogError, DatabaseNotExistError, TransactionAborted
from twophase.model import ObjectPath
from twophase.timeline import engines
from twophase.timeline.sqlite_files import network_file_system

_BUSY_SECONDS = 30
#: Key of the row that is not a participant.
_IDENTITY = "#identity"

_TABLES = sa.MetaData()
_STAGED = sa.Table(
    "twophase_staged",
    _TABLES,
    sa.Column("participant", sa.String(200), primary_key=True),
    sa.Column("catalog_name", sa.String(255), nullable=False),
    sa.Column("target", sa.String(2000), nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("since", sa.Float, nullable=False),
    sa.Column("metadata_location", sa.String(1000)),
)
_DROPPED = sa.Table(
    "twophase_dropped",
    _TABLES,
    sa.Column("location", sa.String(1000), primary_key=True),
    sa.Column("catalog_name", sa.String(255), nullable=False),
    sa.Column("target", sa.String(2000), nullable=False),
    sa.Column("since", sa.Float, nullable=False),
)


_RECORD_PUBLISHED = (
    sa.update(_STAGED)
    .where(_STAGED.c.participant == sa.bindparam("name"), _STAGED.c.state == STAGED)
    .values(state=PUBLISHED, metadata_location=sa.bindparam("location"), since=sa.bindparam("now"))
)
_RECORD_UNDONE = (
    sa.update(_STAGED)
    .where(
        _STAGED.c.participant == sa.bindparam("name"),
        _STAGED.c.state == PUBLISHED,
        _STAGED.c.metadata_location == sa.bindparam("location"),
    )
    .values(state=STAGED, metadata_location=None)
)


class _Catalog(SqlCatalog):
    """PyIceberg's SQL catalog on an engine created here."""

    def __init__(self, name: str, engine: sa.Engine, **properties: str) -> None:
        MetastoreCatalog.__init__(self, name, **properties)
        self.engine = engine
        self._init_catalog()


class SqlStore(Store):
    """The SQL database of one Iceberg catalog: PyIceberg's SQL catalog, which is also Java's JDBC catalog."""

    def __init__(self, settings: Settings, access: FileAccess) -> None:
        super().__init__(settings, access)
        self._engines: list[sa.Engine] = []
        # Closes the connections when the catalog is garbage collected.
        self._finalizer = weakref.finalize(self, _dispose, self._engines)

    def close(self) -> None:
        _dispose(self._engines)
        self.__dict__.pop("catalog", None)
        self.__dict__.pop("engine", None)

    # -- the database --------------------------------------------------------------------------------------------

    @cached_property
    def engine(self) -> sa.Engine:
        url = self.settings.url
        if url.get_backend_name() != "sqlite":
            arguments = engines.patience(url)
            engine = sa.create_engine(url, hide_parameters=True, pool_pre_ping=True, connect_args=arguments)
            engines.make_safe(engine)
        else:
            _make_directory(self.settings, str(url.database))
            waiting = {"timeout": _BUSY_SECONDS, "check_same_thread": False}
            engine = sa.create_engine(url, hide_parameters=True, connect_args=waiting)
            shared = network_file_system(Path(str(url.database))) is not None
            sa.event.listen(engine, "connect", lambda connection, _: _configure_sqlite(connection, shared=shared))
            sa.event.listen(engine, "begin", _begin_sqlite)
        self._engines.append(engine)
        return keep_from_children(engine)

    @cached_property
    def catalog(self) -> SqlCatalog:
        with errors.speaking(self.settings):
            for attempt in (1, 2, 3):
                try:
                    return self._connect()
                except (OperationalError, ProgrammingError, sa.exc.IntegrityError):
                    # Two processes create the tables concurrently: a retry of the second finds those of the first.
                    if attempt == 3:
                        raise
        raise AssertionError("unreachable")

    def _connect(self) -> SqlCatalog:
        initialise = self.settings.init_catalog_tables
        properties = {
            "uri": self.settings.url.render_as_string(hide_password=True),
            "warehouse": self.settings.warehouse,
            "init_catalog_tables": str(initialise).lower(),
        }
        catalog = _Catalog(self.settings.catalog_name, self.engine, **properties)
        if initialise:
            _TABLES.create_all(self.engine)
        return catalog

    @contextmanager
    def _begin(
        self, *, path: object = None, transaction_id: str | None = None, read_only: bool = False
    ) -> Iterator[sa.Connection]:
        """Run a database transaction; errors of the database are raised as `CatalogError`."""
        self.catalog  # noqa: B018 - connects and creates the tables
        engine = self.engine.execution_options(twophase_read_only=True) if read_only else self.engine
        with (
            errors.speaking(self.settings, path=path, transaction_id=transaction_id),
            engine.begin() as connection,
        ):
            yield connection

    # -- pointers ------------------------------------------------------------------------------------------------

    def pointer(self, path: ObjectPath) -> str | None:
        with self._begin(path=path, read_only=True) as connection:
            return self._pointer(connection, path)

    def _pointer(self, connection: sa.Connection, path: ObjectPath) -> str | None:
        found = sa.select(IcebergTables.metadata_location).where(self._is(path), self._is_table())
        location = connection.scalar(found)
        return None if location is None else str(location)

    def _is(self, path: ObjectPath) -> sa.ColumnElement[bool]:
        return sa.and_(
            IcebergTables.catalog_name == self.settings.catalog_name,
            IcebergTables.table_namespace == path.database,
            IcebergTables.table_name == path.name,
        )

    def _is_table(self) -> sa.ColumnElement[bool]:
        # In the newer layout of catalogs, views of other engines are stored in the same table.
        kinds = self.catalog._iceberg_type_filter()
        return sa.true() if kinds is None else kinds

    def pointers(self, paths: Sequence[ObjectPath]) -> dict[ObjectPath, str]:
        with self._begin(read_only=True) as connection:
            if len(paths) == 1:
                found = self._pointer(connection, paths[0])
                return {} if found is None else {paths[0]: found}
            known = self._locations(connection)
        return {path: known[path] for path in paths if path in known}

    def all_tables(self, database: str | None = None) -> dict[ObjectPath, str]:
        with self._begin(read_only=True) as connection:
            found = self._locations(connection)
        return {path: pointer for path, pointer in found.items() if database in (None, path.database)}

    def _locations(self, connection: sa.Connection) -> dict[ObjectPath, str]:
        rows = sa.select(IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location)
        mine = rows.where(IcebergTables.catalog_name == self.settings.catalog_name, self._is_table())
        return {ObjectPath.of(namespace, name): str(place) for namespace, name, place in connection.execute(mine)}

    def swap(self, path: ObjectPath, before: Loaded | None, after: Loaded, updates: Sequence[TableUpdate]) -> bool:
        with self._begin(path=path) as connection:
            return self._swap(connection, path, None if before is None else before.location, after.location)

    def _swap(self, connection: sa.Connection, path: ObjectPath, old: str | None, new: str) -> bool:
        if old is not None:
            row = {"database": path.database, "name": path.name, "old": old, "new": new}
            return connection.execute(self._move_pointer, [row]).rowcount == 1
        self._require_namespace(connection, path.database)
        taken = connection.execute(sa.select(IcebergTables.table_name).where(self._is(path))).first()
        if taken is not None:
            return False
        row = self.catalog._create_table_row(path.database, path.name, new)
        try:
            connection.execute(sa.insert(IcebergTables).values(**row))
        except sa.exc.IntegrityError:
            return False
        return True

    def rename(self, path: ObjectPath, new: ObjectPath) -> bool:
        with self._begin(path=path) as connection:
            self._require_namespace(connection, new.database)
            if connection.execute(sa.select(IcebergTables.table_name).where(self._is(new))).first() is not None:
                return False
            moved = sa.update(IcebergTables).where(self._is(path), self._is_table())
            values = {"table_namespace": new.database, "table_name": new.name}
            return connection.execute(moved.values(**values)).rowcount == 1

    def drop(self, path: ObjectPath, pointer: str, table: Loaded | None) -> bool:
        with self._begin(path=path) as connection:
            is_gone = self._drop(connection, path, pointer)
            if is_gone and table is not None:
                self._record_dropped(connection, path, table)
        return is_gone

    def _drop(self, connection: sa.Connection, path: ObjectPath, pointer: str) -> bool:
        gone = sa.delete(IcebergTables).where(self._is(path), IcebergTables.metadata_location == pointer)
        return connection.execute(gone).rowcount == 1

    # -- databases -----------------------------------------------------------------------------------------------

    def create_namespace(self, database: str, properties: Mapping[str, str]) -> None:
        # PyIceberg stores no row for a namespace without properties.
        super().create_namespace(database, {"exists": "true", **properties})

    def drop_namespace(self, database: str, tables: Mapping[ObjectPath, Loaded | None]) -> None:
        with self._begin(path=database) as connection:
            # First: it waits for whoever creates a table in the database just now.
            connection.execute(sa.delete(IcebergNamespaceProperties).where(self._is_namespace(database)))
            held = connection.scalars(sa.select(IcebergTables.table_name).where(self._is_in(database)))
            if others := sorted(set(held) - {path.name for path in tables}):
                raise CatalogError(
                    f"Database {database} is not empty: it holds {', '.join(others[:5])}, which was created "
                    "meanwhile, or is no Iceberg table.",
                    path=database,
                    hint="Look at what it holds, and drop it again.",
                )
            # In the order in which a publish of several tables locks them.
            for path, table in sorted(tables.items(), key=lambda item: item[0]):
                if table is not None:
                    self._record_dropped(connection, path, table)
                connection.execute(sa.delete(IcebergTables).where(self._is(path)))

    def contents(self, database: str) -> list[str]:
        with self._begin(path=database, read_only=True) as connection:
            return list(connection.scalars(sa.select(IcebergTables.table_name).where(self._is_in(database))))

    def _is_in(self, database: str) -> sa.ColumnElement[bool]:
        return sa.and_(
            IcebergTables.catalog_name == self.settings.catalog_name, IcebergTables.table_namespace == database
        )

    def _is_namespace(self, database: str) -> sa.ColumnElement[bool]:
        properties = IcebergNamespaceProperties
        return sa.and_(properties.catalog_name == self.settings.catalog_name, properties.namespace == database)

    def _require_namespace(self, connection: sa.Connection, database: str) -> None:
        """Refuse to create a table in a database that was dropped, and let none drop it until the transaction ends."""
        mine = sa.select(IcebergNamespaceProperties.namespace).where(self._is_namespace(database))
        if connection.execute(mine.with_for_update(read=True)).first() is None and not any(
            connection.execute(found).first() for found in self._traces(database)
        ):
            raise DatabaseNotExistError.of(database, self.settings.catalog)

    def _traces(self, database: str) -> Iterator[sa.Select[Any]]:
        """Queries for what makes a database without a row of its own: tables in it, and databases below it."""
        below = f"{database}."
        for table, namespace in (
            (IcebergTables, IcebergTables.table_namespace),
            (IcebergNamespaceProperties, IcebergNamespaceProperties.namespace),
        ):
            is_trace = sa.or_(namespace == database, namespace.startswith(below, autoescape=True))
            yield sa.select(namespace).where(table.catalog_name == self.settings.catalog_name, is_trace).limit(1)

    # -- participants --------------------------------------------------------------------------------------------

    def identity(self) -> str | None:
        with self._begin(read_only=True) as connection:
            return self._identity(connection)

    def _identity(self, connection: sa.Connection) -> str | None:
        found = connection.scalar(sa.select(_STAGED.c.document).where(_STAGED.c.participant == _IDENTITY))
        return None if found is None else f"{found} {self.settings.catalog_name}"

    def _make_identity(self) -> str:
        """Create a random identity, which does not change with the server's name or address."""
        row = {"participant": _IDENTITY, "catalog_name": "", "target": "[]", "state": _IDENTITY, "since": time.time()}
        with suppress(sa.exc.IntegrityError), self.engine.begin() as connection:
            connection.execute(sa.insert(_STAGED).values(document=secrets.token_hex(16), **row))
        made = self.identity()
        assert made is not None
        return made

    def record_staged(self, participant: str, target: ObjectPath, document: dict[str, Any], since: float) -> str:
        row = {
            "participant": participant,
            "catalog_name": self.settings.catalog_name,
            "target": json.dumps(target.to_document()),
            "document": json.dumps(document),
            "state": STAGED,
            "since": since,
        }
        with self._begin(path=target) as connection:
            if self._staged(connection, participant) is None:
                connection.execute(sa.insert(_STAGED).values(**row))
            identity = self._identity(connection)
        return identity or self._make_identity()

    def staged(self, participant: str, *, settled: bool = False) -> Staged | None:
        with self._begin(read_only=not settled) as connection:
            return self._staged(connection, participant, lock=settled)

    def _staged(self, connection: sa.Connection, participant: str, *, lock: bool = False) -> Staged | None:
        found = sa.select(_STAGED).where(_STAGED.c.participant == participant)
        if lock and connection.dialect.name != "sqlite":
            found = found.with_for_update()
        row = connection.execute(found).mappings().first()
        return None if row is None else _record(row)

    def states(self, participants: Sequence[str]) -> dict[str, str]:
        mine = sa.select(_STAGED.c.participant, _STAGED.c.state).where(_STAGED.c.participant.in_(participants))
        with self._begin(read_only=True) as connection:
            return {str(row.participant): str(row.state) for row in connection.execute(mine)}

    def publish(self, moves: Sequence[Move], also: Also | None = None) -> None:
        first = moves[0]
        transaction_id = first.names[0].rpartition("/")[0]
        with self._begin(path=first.path, transaction_id=transaction_id) as connection:
            self._record_published(connection, moves)
            # First: they lock their databases, and who drops a database locks it before its tables.
            for move in moves:
                if move.before is None and move.after is not None:
                    self._create(connection, move.path, move.after, transaction_id)
            self._move_pointers(connection, [move for move in moves if move.before is not None])
            for move in moves:
                for table in move.dropped:
                    self._record_dropped(connection, move.path, table)
            if also is not None:
                also(connection)

    def _create(self, connection: sa.Connection, path: ObjectPath, after: Loaded, transaction_id: str) -> None:
        try:
            made = self._swap(connection, path, None, after.location)
        except DatabaseNotExistError as error:
            raise TransactionAborted(str(error), path=path, transaction_id=transaction_id) from error
        if not made:
            raise LostRace

    def _record_published(self, connection: sa.Connection, moves: Sequence[Move]) -> None:
        """Mark participants as published, in the transaction that publishes them."""
        now = time.time()
        rows = [{"name": n, "location": move.recorded_as, "now": now} for move in moves for n in move.names]
        if connection.execute(_RECORD_PUBLISHED, rows).rowcount != len(rows):
            names = [name for move in moves for name in move.names]
            mine = sa.select(_STAGED.c.participant).where(_STAGED.c.participant.in_(names), _STAGED.c.since == now)
            published = set(connection.scalars(mine))
            raise NotStaged(next(name for name in names if name not in published))

    def _move_pointers(self, connection: sa.Connection, moves: Sequence[Move]) -> None:
        """Move the pointers of existing tables, and remove those of dropped ones; in the order of the tables."""
        for drops, some in groupby(moves, key=lambda move: move.after is None):
            if drops:
                for move in some:
                    if move.before is not None and not self._drop(connection, move.path, move.before.location):
                        raise LostRace
                continue
            rows = [
                {
                    "database": move.path.database,
                    "name": move.path.name,
                    "old": move.before.location,
                    "new": move.after.location,
                }
                for move in some
                if move.before is not None and move.after is not None
            ]
            if connection.execute(self._move_pointer, rows).rowcount != len(rows):
                raise LostRace

    @cached_property
    def _move_pointer(self) -> sa.Update:
        """The update of a pointer, built once: building the statement takes as long as running it."""
        table = IcebergTables
        return (
            sa.update(table)
            .where(
                table.catalog_name == self.settings.catalog_name,
                table.table_namespace == sa.bindparam("database"),
                table.table_name == sa.bindparam("name"),
                table.metadata_location == sa.bindparam("old"),
                self._is_table(),
            )
            .values(metadata_location=sa.bindparam("new"), previous_metadata_location=sa.bindparam("old"))
            .execution_options(synchronize_session=False)
        )

    def undo(self, moves: Sequence[Move]) -> bool:
        first = moves[0]
        transaction_id = first.names[0].rpartition("/")[0]
        try:
            with self._begin(path=first.path, transaction_id=transaction_id) as connection:
                self._record_undone(connection, moves)
                for move in moves:
                    self._move_back(connection, move)
        except LostRace:
            return False
        return True

    def _record_undone(self, connection: sa.Connection, moves: Sequence[Move]) -> None:
        rows = [{"name": name, "location": move.recorded_as} for move in moves for name in move.names]
        if connection.execute(_RECORD_UNDONE, rows).rowcount != len(rows):
            raise LostRace

    def _move_back(self, connection: sa.Connection, move: Move) -> None:
        for table in move.dropped:
            connection.execute(sa.delete(_DROPPED).where(_DROPPED.c.location == table.metadata.location))
        if move.before is None:
            if move.after is not None and not self._drop(connection, move.path, move.after.location):
                raise LostRace
            return
        now = None if move.after is None else move.after.location
        if not self._swap(connection, move.path, now, move.before.location):
            raise LostRace
        # Restore the previous location, too, so that the row is as it was before the publish.
        log = move.before.metadata.metadata_log
        earlier = log[-1].metadata_file if log else None
        as_before = sa.update(IcebergTables).where(self._is(move.path), self._is_table())
        connection.execute(as_before.values(previous_metadata_location=earlier))

    def record_aborted(self, participant: str) -> Staged | None:
        with self._begin() as connection:
            moved = sa.update(_STAGED).where(_STAGED.c.participant == participant, _STAGED.c.state == STAGED)
            connection.execute(moved.values(state=ABORTED))
            found = self._staged(connection, participant)
        return found if found is not None and found.state == ABORTED else None

    def forget(self, participant: str) -> None:
        with self._begin() as connection:
            connection.execute(sa.delete(_STAGED).where(_STAGED.c.participant == participant))

    def records(self, states: Sequence[str], before: float) -> list[Staged]:
        mine = sa.select(_STAGED).where(
            _STAGED.c.catalog_name == self.settings.catalog_name, _STAGED.c.state.in_(states), _STAGED.c.since < before
        )
        with self._begin(read_only=True) as connection:
            return [_record(row) for row in connection.execute(mine).mappings()]

    # -- dropped tables ------------------------------------------------------------------------------------------

    def _record_dropped(self, connection: sa.Connection, path: ObjectPath, table: Loaded) -> None:
        """Record the location of a dropped table, and what distinguishes it from another table there."""
        location = table.metadata.location
        connection.execute(sa.delete(_DROPPED).where(_DROPPED.c.location == location))
        target = {"path": path.to_document(), "pointer": table.location, "uuid": str(table.metadata.table_uuid)}
        row = {"location": location, "catalog_name": self.settings.catalog_name, "since": time.time()}
        connection.execute(sa.insert(_DROPPED).values(target=json.dumps(target, ensure_ascii=False), **row))

    def dropped(self) -> list[Dropped]:
        mine = sa.select(_DROPPED).where(_DROPPED.c.catalog_name == self.settings.catalog_name)
        with self._begin(read_only=True) as connection:
            return [_dropped(row) for row in connection.execute(mine).mappings()]

    def registered(self) -> dict[str, str]:
        columns = (IcebergTables.catalog_name, IcebergTables.table_namespace, IcebergTables.table_name)
        rows = sa.select(*columns, IcebergTables.metadata_location).where(self._is_table())
        with self._begin(read_only=True) as connection:
            return {".".join(name): str(place) for *name, place in connection.execute(rows)}

    def forget_dropped(self, location: str) -> None:
        with self._begin() as connection:
            connection.execute(sa.delete(_DROPPED).where(_DROPPED.c.location == location))


def _record(row: Any) -> Staged:
    return Staged(
        row["participant"],
        ObjectPath.from_document(json.loads(row["target"])),
        json.loads(row["document"]),
        row["state"],
        row["since"],
        row["metadata_location"],
    )


def _dropped(row: Any) -> Dropped:
    found = json.loads(row["target"])
    # A list, if it was dropped by an older version of twophase.
    facts: dict[str, Any] = {"path": found} if isinstance(found, list) else found
    path = ObjectPath.from_document(facts["path"])
    return Dropped(path, row["location"], row["since"], facts.get("pointer"), facts.get("uuid"))


def _dispose(engines: list[sa.Engine]) -> None:
    while engines:
        engines.pop().dispose()


def _make_directory(settings: Settings, file: str) -> None:
    try:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CatalogError(
            f"The directory of the Iceberg catalog {settings.display_uri} cannot be made: {error.strerror}.",
            hint=f"Set spark.sql.catalog.{settings.catalog}.uri or .warehouse to a place that can be written.",
        ) from error


def _configure_sqlite(connection: sqlite3.Connection, *, shared: bool) -> None:
    connection.isolation_level = None  # BEGIN is issued by `_begin_sqlite`.
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")
    # Regardless of this SQLite's default, which may be less with WAL. Without WAL a commit ends by removing the
    # journal, and only with EXTRA its directory is synced then: a power cut could bring it back, and undo the commit.
    connection.execute("PRAGMA synchronous = EXTRA")
    # WAL: readers do not block the writer. It needs the shared memory of one machine, and two would damage the file.
    # A file that cannot be written stays as it is.
    try:
        connection.execute(f"PRAGMA journal_mode = {'DELETE' if shared else 'WAL'}")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error) and "readonly" not in str(error):
            raise


def _begin_sqlite(connection: sa.Connection) -> None:
    # IMMEDIATE: otherwise a transaction that reads before it writes would fail instead of wait.
    read_only = connection.get_execution_options().get("twophase_read_only")
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

"""The Iceberg catalog in its SQL database: pointers to metadata files, and the record of who publishes what.

This is the one module that leans on what PyIceberg keeps to itself: the layout of its SQL catalog, and the making of
its engine. Beside PyIceberg's two tables stand two of ours:

====================== ===========================================================================================
``twophase_staged``    a row for each participant, from before anything is staged: ``staged``, then ``published``
                       in the very transaction that moves the pointer, or ``aborted`` while its files go
``twophase_dropped``   locations of dropped tables, until their retention ends
====================== ===========================================================================================

A participant is published if and only if its row says so; whoever wants to abort it or asks takes that row first.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from sqlalchemy.exc import OperationalError, ProgrammingError

from twophase.catalogs.lakehouse import errors
from twophase.catalogs.lakehouse.options import Settings
from twophase.errors import CatalogError
from twophase.model import ObjectPath

STAGED, PUBLISHED, ABORTED = "staged", "published", "aborted"
_BUSY_SECONDS = 30
_CACHED = 256

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


@dataclass(frozen=True)
class Loaded:
    """A table as its pointer shows it.

    Attributes
    ----------
    location : str
        Of the metadata file.
    metadata : pyiceberg.table.metadata.TableMetadata
    """

    location: str
    metadata: TableMetadata


@dataclass(frozen=True)
class Staged:
    """The record of one participant.

    Attributes
    ----------
    participant : str
        Transaction and ordinal.
    target : ObjectPath
    document : dict
        What is needed to remove what it staged.
    state : str
    since : float
        Seconds since the epoch.
    metadata_location : str or None
        What it published.
    """

    participant: str
    target: ObjectPath
    document: dict[str, Any]
    state: str
    since: float
    metadata_location: str | None = None

    @property
    def transaction_id(self) -> str:
        return self.participant.rpartition("/")[0]


class _Catalog(SqlCatalog):
    """PyIceberg's SQL catalog over an engine of ours."""

    def __init__(self, name: str, engine: sa.Engine, **properties: str) -> None:
        MetastoreCatalog.__init__(self, name, **properties)
        self.engine = engine
        self._init_catalog()


class Store:
    """The SQL database of one Iceberg catalog, and the files behind its pointers.

    Parameters
    ----------
    settings : Settings
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._metadata: OrderedDict[str, TableMetadata] = OrderedDict()
        self._lock = threading.Lock()
        self._engines: list[sa.Engine] = []
        # A catalog that is forgotten gives its connections back.
        self._finalizer = weakref.finalize(self, _dispose, self._engines)

    def close(self) -> None:
        """Give all connections back. Idempotent; the store can be used again."""
        _dispose(self._engines)
        self.__dict__.pop("catalog", None)
        self.__dict__.pop("engine", None)

    # -- the database --------------------------------------------------------------------------------------------

    @cached_property
    def engine(self) -> sa.Engine:
        url = self.settings.url
        if url.get_backend_name() != "sqlite":
            engine = sa.create_engine(
                url, hide_parameters=True, pool_pre_ping=True, connect_args={"connect_timeout": 10}
            )
        else:
            _make_directory(self.settings, str(url.database))
            arguments = {"timeout": _BUSY_SECONDS, "check_same_thread": False}
            engine = sa.create_engine(url, hide_parameters=True, connect_args=arguments)
            sa.event.listen(engine, "connect", _configure_sqlite)
            sa.event.listen(engine, "begin", _begin_sqlite)
        self._engines.append(engine)
        return engine

    @cached_property
    def catalog(self) -> SqlCatalog:
        """PyIceberg's own catalog, connected at its first use.

        Raises
        ------
        CatalogError
            The database cannot be reached, or holds no Iceberg catalog.
        """
        with errors.speaking(self.settings):
            for attempt in (1, 2, 3):
                try:
                    return self._connect()
                except (OperationalError, ProgrammingError, sa.exc.IntegrityError):
                    # Two processes that make the tables at once: the second sees those of the first.
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
    def begin(
        self, *, path: object = None, transaction_id: str | None = None, read_only: bool = False
    ) -> Iterator[sa.Connection]:
        """A database transaction; errors of the database come out in words."""
        self.catalog  # noqa: B018 - connected, its tables made
        engine = self.engine.execution_options(twophase_read_only=True) if read_only else self.engine
        with (
            errors.speaking(self.settings, path=path, transaction_id=transaction_id),
            engine.begin() as connection,
        ):
            yield connection

    # -- pointers ------------------------------------------------------------------------------------------------

    def pointer(self, path: ObjectPath) -> str | None:
        """Location of a table's metadata file; None where there is no such table."""
        with self.begin(path=path, read_only=True) as connection:
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
        # Views of other engines stand in the same table, in catalogs of the newer layout.
        kinds = self.catalog._iceberg_type_filter()
        return sa.true() if kinds is None else kinds

    def load(self, path: ObjectPath) -> Loaded | None:
        """A table as its pointer shows it now; None where there is none.

        Raises
        ------
        CatalogError
            Its metadata file is missing or damaged.
        """
        location = self.pointer(path)
        return None if location is None else Loaded(location, self.metadata(path, location))

    def pointers(self, paths: Sequence[ObjectPath]) -> dict[ObjectPath, str]:
        """Pointers of several tables, in one look; without those that are not there."""
        with self.begin(read_only=True) as connection:
            if len(paths) == 1:
                found = self._pointer(connection, paths[0])
                return {} if found is None else {paths[0]: found}
            known = self.locations(connection)
        return {path: known[path] for path in paths if path in known}

    def metadata(self, path: object, location: str) -> TableMetadata:
        """The content of a metadata file; such a file never changes."""
        found = self._metadata.get(location)
        if found is None:
            with errors.reading_metadata(path, location):
                found = FromInputFile.table_metadata(self.io(location).new_input(location))
            self._remember(location, found)
        return found

    def write_metadata(self, location: str, metadata: TableMetadata) -> None:
        """Write a new metadata file."""
        ToOutputFile.table_metadata(metadata, self.io(location).new_output(location))
        self._remember(location, metadata)

    def _remember(self, location: str, metadata: TableMetadata) -> None:
        with self._lock:
            self._metadata[location] = metadata
            while len(self._metadata) > _CACHED:
                self._metadata.popitem(last=False)

    def io(self, location: str) -> FileIO:
        """PyIceberg's access to files."""
        return load_file_io({}, location)

    def iceberg_table(self, path: ObjectPath, loaded: Loaded) -> Table:
        """PyIceberg's own object for a table."""
        return Table(
            identifier=(*path.namespace, path.name),
            metadata=loaded.metadata,
            metadata_location=loaded.location,
            io=self.io(loaded.location),
            catalog=self.catalog,
        )

    def swap(self, connection: sa.Connection, path: ObjectPath, old: str | None, new: str) -> bool:
        """Move a table's pointer where it still is as expected; None: the table must not be there yet."""
        if old is not None:
            moved = (
                sa.update(IcebergTables)
                .where(self._is(path), self._is_table(), IcebergTables.metadata_location == old)
                .values(metadata_location=new, previous_metadata_location=old)
            )
            return connection.execute(moved).rowcount == 1
        taken = connection.execute(sa.select(IcebergTables.table_name).where(self._is(path))).first()
        if taken is not None:
            return False
        row = self.catalog._create_table_row(path.database, path.name, new)
        try:
            connection.execute(sa.insert(IcebergTables).values(**row))
        except sa.exc.IntegrityError:
            return False
        return True

    def rename(self, connection: sa.Connection, path: ObjectPath, new: ObjectPath) -> bool:
        """Give a table another name; False where the name is taken or the table is gone."""
        if connection.execute(sa.select(IcebergTables.table_name).where(self._is(new))).first() is not None:
            return False
        moved = sa.update(IcebergTables).where(self._is(path), self._is_table())
        values = {"table_namespace": new.database, "table_name": new.name}
        return connection.execute(moved.values(**values)).rowcount == 1

    def drop(self, connection: sa.Connection, path: ObjectPath, old: str) -> bool:
        """Remove a table's pointer where it still is as expected."""
        gone = sa.delete(IcebergTables).where(self._is(path), IcebergTables.metadata_location == old)
        return connection.execute(gone).rowcount == 1

    def drop_namespace(self, connection: sa.Connection, database: str) -> None:
        """Remove a database and whatever rows it has."""
        name = self.settings.catalog_name
        connection.execute(
            sa.delete(IcebergTables).where(
                IcebergTables.catalog_name == name, IcebergTables.table_namespace == database
            )
        )
        properties = IcebergNamespaceProperties
        connection.execute(
            sa.delete(properties).where(properties.catalog_name == name, properties.namespace == database)
        )

    def locations(self, connection: sa.Connection) -> dict[ObjectPath, str]:
        """Pointers of all tables, in one look."""
        rows = sa.select(IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location)
        mine = rows.where(IcebergTables.catalog_name == self.settings.catalog_name, self._is_table())
        return {ObjectPath.of(namespace, name): str(place) for namespace, name, place in connection.execute(mine)}

    # -- participants --------------------------------------------------------------------------------------------

    def record_staged(self, participant: str, target: ObjectPath, document: dict[str, Any], since: float) -> None:
        """Record a participant before it stages anything. Idempotent."""
        row = {
            "participant": participant,
            "catalog_name": self.settings.catalog_name,
            "target": json.dumps(target.to_document()),
            "document": json.dumps(document),
            "state": STAGED,
            "since": since,
        }
        with self.begin(path=target) as connection:
            if self.staged(connection, participant) is None:
                connection.execute(sa.insert(_STAGED).values(**row))

    def staged(self, connection: sa.Connection, participant: str, *, lock: bool = False) -> Staged | None:
        """The record of a participant. With ``lock``, after a publish that may still be on its way."""
        found = sa.select(_STAGED).where(_STAGED.c.participant == participant)
        if lock and connection.dialect.name != "sqlite":
            found = found.with_for_update()
        row = connection.execute(found).mappings().first()
        return None if row is None else _record(row)

    def states(self, participants: Sequence[str]) -> dict[str, str]:
        """States of several participants; without those that have no record."""
        mine = sa.select(_STAGED.c.participant, _STAGED.c.state).where(_STAGED.c.participant.in_(participants))
        with self.begin(read_only=True) as connection:
            return {str(row.participant): str(row.state) for row in connection.execute(mine)}

    def record_published(self, connection: sa.Connection, participant: str, metadata_location: str) -> bool:
        """Say that a participant is published, in the transaction that publishes it; False where it is not staged."""
        moved = (
            sa.update(_STAGED)
            .where(_STAGED.c.participant == participant, _STAGED.c.state == STAGED)
            .values(state=PUBLISHED, metadata_location=metadata_location, since=time.time())
        )
        return connection.execute(moved).rowcount == 1

    def record_aborted(self, participant: str) -> Staged | None:
        """Make sure that a participant is never published; its record, or None where nothing is to be removed."""
        with self.begin() as connection:
            moved = sa.update(_STAGED).where(_STAGED.c.participant == participant, _STAGED.c.state == STAGED)
            connection.execute(moved.values(state=ABORTED))
            found = self.staged(connection, participant)
        return found if found is not None and found.state == ABORTED else None

    def forget(self, participant: str) -> None:
        """Remove the record of a participant. Idempotent."""
        with self.begin() as connection:
            connection.execute(sa.delete(_STAGED).where(_STAGED.c.participant == participant))

    def records(self, states: Sequence[str], before: float) -> list[Staged]:
        """Records of participants in some states, older than an instant."""
        mine = sa.select(_STAGED).where(
            _STAGED.c.catalog_name == self.settings.catalog_name, _STAGED.c.state.in_(states), _STAGED.c.since < before
        )
        with self.begin(read_only=True) as connection:
            return [_record(row) for row in connection.execute(mine).mappings()]

    # -- dropped tables ------------------------------------------------------------------------------------------

    def record_dropped(self, connection: sa.Connection, path: ObjectPath, location: str) -> None:
        """Remember where a dropped table lies."""
        connection.execute(sa.delete(_DROPPED).where(_DROPPED.c.location == location))
        row = {"location": location, "catalog_name": self.settings.catalog_name, "since": time.time()}
        connection.execute(sa.insert(_DROPPED).values(target=json.dumps(path.to_document()), **row))

    def dropped(self) -> list[tuple[str, ObjectPath, float]]:
        """Location, name and time of dropped tables."""
        mine = sa.select(_DROPPED).where(_DROPPED.c.catalog_name == self.settings.catalog_name)
        with self.begin(read_only=True) as connection:
            rows = connection.execute(mine).mappings().all()
        return [(row["location"], ObjectPath.from_document(json.loads(row["target"])), row["since"]) for row in rows]

    def forget_dropped(self, location: str) -> None:
        """Remove the record of a dropped table. Idempotent."""
        with self.begin() as connection:
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


def _configure_sqlite(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None  # BEGIN is ours, see below.
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")
    # Readers and one writer go side by side; a file that cannot be written stays as it is.
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error) and "readonly" not in str(error):
            raise


def _begin_sqlite(connection: sa.Connection) -> None:
    # IMMEDIATE: a transaction that reads before it writes would else fail instead of wait.
    read_only = connection.get_execution_options().get("twophase_read_only")
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

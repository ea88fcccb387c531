"""The interface of a lakehouse to an Iceberg catalog: pointers to metadata files, and records of participants.

A participant has a record from before anything is staged until it is known to be over. The record is in one of three
states: ``staged``, ``published``, or ``aborted`` while its files are removed. Each kind of Iceberg catalog has its own
module:

- :mod:`~twophase.catalogs.lakehouse.store_sql`: records are stored with the pointers, and both change in one SQL
  transaction;
- :mod:`~twophase.catalogs.lakehouse.store_hive`, :mod:`~twophase.catalogs.lakehouse.store_rest`: records are files, and
  the table itself shows which participants were published.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyiceberg.catalog import Catalog as IcebergCatalog
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor, FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate
from pyiceberg.utils.config import Config

from twophase.catalogs.lakehouse import errors
from twophase.catalogs.lakehouse.file_access import FileAccess
from twophase.catalogs.lakehouse.options import Settings
from twophase.lru import LruCache
from twophase.model import ObjectPath

STAGED, PUBLISHED, ABORTED = "staged", "published", "aborted"
_CACHED = 256


class LostRace(Exception):
    """Another writer moved a pointer first; this try had no effect."""


class NotStaged(Exception):
    """A participant no longer has a record, or is being aborted; this try had no effect."""

    def __init__(self, participant: str) -> None:
        super().__init__(participant)
        self.participant = participant


@dataclass(frozen=True)
class Loaded:
    """A table at the metadata file of its pointer.

    Attributes
    ----------
    location : str
        Location of the metadata file.
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
        Transaction id and ordinal.
    target : ObjectPath
    document : dict
        Facts needed to remove what it staged.
    state : str
    since : float
        Seconds since the epoch.
    metadata_location : str or None
        The metadata file that it published.
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


@dataclass(frozen=True)
class Dropped:
    """A dropped table whose files still exist.

    Attributes
    ----------
    path : ObjectPath
        Its name.
    location : str
    since : float
        Seconds since the epoch.
    pointer : str or None
        Its last metadata file; None if it was dropped by an older version of twophase.
    uuid : str or None
        Iceberg's identity of the table, independent of its name; None as above.
    """

    path: ObjectPath
    location: str
    since: float
    pointer: str | None = None
    uuid: str | None = None


@dataclass(frozen=True)
class Move:
    """One table's part of a publish.

    Attributes
    ----------
    path : ObjectPath
    names : sequence of str
        Participants that it publishes.
    before : Loaded or None
        The table on which it is based; None: the table must not exist yet.
    after : Loaded or None
        The table that it makes; None: the table is dropped.
    updates : sequence of pyiceberg.table.update.TableUpdate
        The changes that turn ``before`` into ``after``; none in a move that is to be undone.
    dropped : sequence of Loaded
        The tables that are dropped with it: ``before``, unless it goes on by another name, and what the transaction has
        renamed to this name.
    """

    path: ObjectPath
    names: Sequence[str]
    before: Loaded | None
    after: Loaded | None
    updates: Sequence[TableUpdate] = ()
    dropped: Sequence[Loaded] = ()

    @property
    def recorded_as(self) -> str:
        """The metadata file by which its participants' records name it: that of the dropped table; empty if none."""
        loaded = self.after or self.before
        return "" if loaded is None else loaded.location


#: A callback that runs in the transaction that publishes; it receives the SQLAlchemy connection.
Also = Callable[[Any], None]


class Store(ABC):
    """One Iceberg catalog, and the files behind its pointers."""

    #: Whether several tables are published, and undone, atomically.
    publishes_together = True
    #: The directory of records that are files; None if records are in a database.
    records_at: str | None = None

    def __init__(self, settings: Settings, access: FileAccess) -> None:
        self.settings = settings
        self.access = access
        self._metadata: LruCache[str, TableMetadata] = LruCache(_CACHED)

    @abstractmethod
    def close(self) -> None:
        """Close all connections. Idempotent; the store can be used again."""

    @property
    @abstractmethod
    def catalog(self) -> IcebergCatalog:
        """PyIceberg's own catalog, connected at first use.

        Raises
        ------
        CatalogError
            It cannot be reached, or is not an Iceberg catalog.
        """

    @contextmanager
    def speaking(self, *, path: object = None, transaction_id: str | None = None) -> Iterator[None]:
        """Convert errors of the Iceberg catalog to :class:`~twophase.errors.CatalogError`."""
        with errors.speaking(self.settings, path=path, transaction_id=transaction_id):
            yield

    # -- metadata files ------------------------------------------------------------------------------------------

    def load(self, path: ObjectPath) -> Loaded | None:
        """Load a table at its current pointer; None if it does not exist.

        Raises
        ------
        CatalogError
            Its metadata file is missing or damaged.
        """
        location = self.pointer(path)
        return None if location is None else Loaded(location, self.metadata(path, location))

    def metadata(self, path: object, location: str) -> TableMetadata:
        """The content of a metadata file; such a file never changes."""
        if (found := self._metadata.get(location)) is not None:
            return found
        with errors.reading_metadata(path, location):
            return self._metadata.put(location, FromInputFile.table_metadata(self.io(location).new_input(location)))

    def write_metadata(self, location: str, metadata: TableMetadata) -> None:
        """Write a new metadata file."""
        text = metadata.model_dump_json(exclude_none=not _writes_nulls())
        content = Compressor.get_compressor(location).bytes_compressor()(text.encode())
        with self.io(location).new_output(location).create() as stream:
            stream.write(content)
        self._metadata.put(location, metadata)

    def stage_metadata(self, before: Loaded | None, after: Loaded) -> None:
        """Write the metadata file to which a pointer will move."""
        self.write_metadata(after.location, after.metadata)

    def io(self, location: str) -> FileIO:
        """PyIceberg's access to files at a location, with its settings and credentials."""
        return self.access.io(location)

    def iceberg_table(self, path: ObjectPath, loaded: Loaded) -> Table:
        """PyIceberg's own object for a table."""
        return Table(
            identifier=(*path.namespace, path.name),
            metadata=loaded.metadata,
            metadata_location=loaded.location,
            io=self.io(loaded.location),
            catalog=self.catalog,
        )

    # -- databases -----------------------------------------------------------------------------------------------

    def check_name(self, name: str, what: str, path: object) -> None:
        """Refuse a name that this kind of catalog does not support, in addition to the rules of all Iceberg catalogs.

        Raises
        ------
        CatalogError
        """

    def canonical(self, path: ObjectPath) -> ObjectPath:
        """The canonical spelling of a table's name."""
        return path

    def create_namespace(self, database: str, properties: Mapping[str, str]) -> None:
        """Create a database."""
        self.catalog.create_namespace((database,), dict(properties))

    @abstractmethod
    def drop_namespace(self, database: str, tables: Mapping[ObjectPath, Loaded | None]) -> None:
        """Remove a database with its tables, and record where those are located.

        Parameters
        ----------
        database : str
        tables : mapping of ObjectPath to Loaded or None
            Its tables; None if the metadata of a table cannot be read.

        Raises
        ------
        CatalogError
            It contains something other than Iceberg tables; nothing was removed.
        """

    # -- pointers ------------------------------------------------------------------------------------------------

    @abstractmethod
    def pointer(self, path: ObjectPath) -> str | None:
        """Location of a table's metadata file; None if the table does not exist."""

    def pointers(self, paths: Sequence[ObjectPath]) -> dict[ObjectPath, str]:
        """Pointers of several tables, with one query if possible; tables that do not exist are omitted."""
        found = {path: self.pointer(path) for path in paths}
        return {path: pointer for path, pointer in found.items() if pointer is not None}

    @abstractmethod
    def all_tables(self, database: str | None = None) -> dict[ObjectPath, str]:
        """Pointers of all tables, or of those of one database."""

    def paths(self, database: str | None = None) -> list[ObjectPath]:
        """Names of all tables, or of those of one database, including tables whose metadata cannot be read."""
        return list(self.all_tables(database))

    def contents(self, database: str) -> list[str]:
        """Names of what keeps a database from being dropped, also of what is no Iceberg table."""
        return [path.name for path in self.paths(database)]

    @abstractmethod
    def swap(self, path: ObjectPath, before: Loaded | None, after: Loaded, updates: Sequence[TableUpdate]) -> bool:
        """Move a table's pointer if it is still as expected (compare and swap).

        Parameters
        ----------
        path : ObjectPath
        before : Loaded or None
            None: the table must not exist yet.
        after : Loaded
        updates : sequence of pyiceberg.table.update.TableUpdate
            The changes that turn ``before`` into ``after``, for catalogs that accept changes; none for a new table.
        """

    @abstractmethod
    def rename(self, path: ObjectPath, new: ObjectPath) -> bool:
        """Rename a table; False if the new name is taken or the table does not exist."""

    @abstractmethod
    def drop(self, path: ObjectPath, pointer: str, table: Loaded | None) -> bool:
        """Remove a table's pointer if it is still as expected, and record the location of the table, if it is given."""

    def drop_unreadable(self, path: ObjectPath) -> bool:
        """Remove a table whose pointer cannot be read, and keep its files; False if there is none."""
        return False

    # -- participants --------------------------------------------------------------------------------------------

    @abstractmethod
    def identity(self) -> str | None:
        """Identity of this Iceberg catalog, independent of its name in a session; None before anything was staged."""

    @abstractmethod
    def record_staged(self, participant: str, target: ObjectPath, document: dict[str, Any], since: float) -> str:
        """Record a participant before it stages anything. Idempotent.

        Returns
        -------
        str
            The catalog's identity.
        """

    @abstractmethod
    def staged(self, participant: str, *, settled: bool = False) -> Staged | None:
        """The record of a participant; with ``settled``, wait for a publish that may still be running."""

    @abstractmethod
    def states(self, participants: Sequence[str]) -> dict[str, str]:
        """States of several participants; those without a record are omitted."""

    @abstractmethod
    def publish(self, moves: Sequence[Move], also: Also | None = None) -> None:
        """Move all pointers and mark the participants as published, atomically.

        Parameters
        ----------
        moves : sequence of Move
        also : callable, optional
            Called inside the database transaction, if there is one.

        Raises
        ------
        LostRace, NotStaged
        """

    @abstractmethod
    def undo(self, moves: Sequence[Move]) -> bool:
        """Move all pointers back if they are still as published, and mark the participants as unpublished, atomically.

        Parameters
        ----------
        moves : sequence of Move
            The moves as published.

        Returns
        -------
        bool
            False if one of them has been moved since; nothing was changed then.
        """

    @abstractmethod
    def record_aborted(self, participant: str) -> Staged | None:
        """Make sure that a participant is never published; return its record, or None if there is nothing to remove."""

    def settle(self, participant: str) -> None:
        """Note that a published participant is over, as recorded in the timeline. Idempotent."""

    @abstractmethod
    def forget(self, participant: str) -> None:
        """Remove the record of a participant. Idempotent."""

    @abstractmethod
    def records(self, states: Sequence[str], before: float) -> list[Staged]:
        """Records of participants in the given states that are older than an instant."""

    # -- dropped tables ------------------------------------------------------------------------------------------

    @abstractmethod
    def dropped(self) -> list[Dropped]:
        """Dropped tables whose files have not been removed yet."""

    def registered(self) -> dict[str, str]:
        """Pointers of all tables in this Iceberg catalog's server or database, by a name for messages."""
        return {str(path): pointer for path, pointer in self.all_tables().items()}

    @abstractmethod
    def forget_dropped(self, location: str) -> None:
        """Remove the record of a dropped table. Idempotent."""


@cache
def _writes_nulls() -> bool:
    """PyIceberg's setting for old readers, cached: PyIceberg itself looks for its configuration file at each write."""
    return bool(Config().get_bool("legacy-current-snapshot-id"))

"""What a lakehouse needs of an Iceberg catalog: pointers to metadata files, and the record of who publishes what.

A participant has a record from before anything is staged until it is known to be over. It is in one of three states:
``staged``, ``published``, or ``aborted`` while its files go. Each kind of Iceberg catalog is a module of its own:

- :mod:`~twophase.catalogs.lakehouse.store_sql`: records stand beside the pointers, and change in one SQL transaction;
- :mod:`~twophase.catalogs.lakehouse.store_hive`, :mod:`~twophase.catalogs.lakehouse.store_rest`: records are files, and
  the table itself tells who was published.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyiceberg.catalog import Catalog as IcebergCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.serializers import Compressor, FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.config import Config

from twophase.catalogs.lakehouse import errors
from twophase.catalogs.lakehouse.options import Settings
from twophase.model import ObjectPath

STAGED, PUBLISHED, ABORTED = "staged", "published", "aborted"
_CACHED = 256


class LostRace(Exception):
    """Another writer moved a pointer first: nothing of this try happened."""


class NotStaged(Exception):
    """A participant has no record any more, or is being aborted: nothing of this try happened."""

    def __init__(self, participant: str) -> None:
        super().__init__(participant)
        self.participant = participant


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


@dataclass(frozen=True)
class Move:
    """One table's part of a publish.

    Attributes
    ----------
    path : ObjectPath
    names : sequence of str
        Participants that are published by it.
    before : Loaded or None
        The table that it builds on; None: there must be none yet.
    after : Loaded
    """

    path: ObjectPath
    names: Sequence[str]
    before: Loaded | None
    after: Loaded


#: Something that happens in the very transaction that publishes; it gets the SQLAlchemy connection.
Also = Callable[[Any], None]


class Store(ABC):
    """One Iceberg catalog, and the files behind its pointers.

    Parameters
    ----------
    settings : Settings
    """

    #: Whether several tables are published, and undone, in one step.
    publishes_together = True

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._metadata: OrderedDict[str, TableMetadata] = OrderedDict()
        self._lock = threading.Lock()

    @abstractmethod
    def close(self) -> None:
        """Give all connections back. Idempotent; the store can be used again."""

    @property
    @abstractmethod
    def catalog(self) -> IcebergCatalog:
        """PyIceberg's own catalog, connected at its first use.

        Raises
        ------
        CatalogError
            It cannot be reached, or is no Iceberg catalog.
        """

    @contextmanager
    def speaking(self, *, path: object = None, transaction_id: str | None = None) -> Iterator[None]:
        """What the Iceberg catalog says comes out as a :class:`~twophase.errors.CatalogError`, in words."""
        with errors.speaking(self.settings, path=path, transaction_id=transaction_id):
            yield

    # -- metadata files ------------------------------------------------------------------------------------------

    def load(self, path: ObjectPath) -> Loaded | None:
        """A table as its pointer shows it now; None where there is none.

        Raises
        ------
        CatalogError
            Its metadata file is missing or damaged.
        """
        location = self.pointer(path)
        return None if location is None else Loaded(location, self.metadata(path, location))

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
        text = metadata.model_dump_json(exclude_none=not _writes_nulls())
        content = Compressor.get_compressor(location).bytes_compressor()(text.encode())
        with self.io(location).new_output(location).create() as stream:
            stream.write(content)
        self._remember(location, metadata)

    def stage_metadata(self, before: Loaded | None, after: Loaded) -> None:
        """Write what a pointer shall move to."""
        self.write_metadata(after.location, after.metadata)

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

    # -- databases -----------------------------------------------------------------------------------------------

    def check_name(self, name: str, what: str, path: object) -> None:
        """Refuse a name that this kind of catalog cannot hold, beyond what no Iceberg catalog can.

        Raises
        ------
        CatalogError
        """

    def canonical(self, path: ObjectPath) -> ObjectPath:
        """The one spelling of a table's name."""
        return path

    def create_namespace(self, database: str, properties: Mapping[str, str]) -> None:
        """Make a database."""
        self.catalog.create_namespace((database,), dict(properties))

    @abstractmethod
    def drop_namespace(self, database: str, places: Mapping[ObjectPath, str | None]) -> None:
        """Remove a database with its tables, and remember where those lie.

        Parameters
        ----------
        database : str
        places : mapping of ObjectPath to str or None
            Its tables, and their locations as far as they are known.

        Raises
        ------
        CatalogError
            It holds what is no Iceberg table; nothing was removed.
        """

    # -- pointers ------------------------------------------------------------------------------------------------

    @abstractmethod
    def pointer(self, path: ObjectPath) -> str | None:
        """Location of a table's metadata file; None where there is no such table."""

    @abstractmethod
    def pointers(self, paths: Sequence[ObjectPath]) -> dict[ObjectPath, str]:
        """Pointers of several tables, in one look where that can be; without those that are not there."""

    @abstractmethod
    def all_tables(self, database: str | None = None) -> dict[ObjectPath, str]:
        """Pointers of all tables, or of those of one database."""

    def paths(self, database: str | None = None) -> list[ObjectPath]:
        """Names of all tables, or of those of one database; also of those whose metadata cannot be read."""
        return list(self.all_tables(database))

    @abstractmethod
    def swap(self, path: ObjectPath, before: Loaded | None, after: Loaded) -> bool:
        """Move a table's pointer where it still is as expected; None: the table must not be there yet."""

    @abstractmethod
    def rename(self, path: ObjectPath, new: ObjectPath) -> bool:
        """Give a table another name; False where the name is taken or the table is gone."""

    @abstractmethod
    def drop(self, path: ObjectPath, pointer: str, place: str | None) -> bool:
        """Remove a table's pointer where it still is as expected, and remember where the table lies."""

    def drop_unreadable(self, path: ObjectPath) -> bool:
        """Remove a table whose pointer cannot be read; its files stay. False where there is none."""
        return False

    # -- participants --------------------------------------------------------------------------------------------

    @abstractmethod
    def identity(self) -> str | None:
        """What tells this Iceberg catalog from others, whatever a session calls it; None before anything was staged."""

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
        """The record of a participant. With ``settled``, after a publish that may still be on its way."""

    @abstractmethod
    def states(self, participants: Sequence[str]) -> dict[str, str]:
        """States of several participants; without those that have no record."""

    @abstractmethod
    def publish(self, moves: Sequence[Move], also: Also | None = None) -> None:
        """Move all pointers and say that the participants are published: the one step.

        Parameters
        ----------
        moves : sequence of Move
        also : callable, optional
            Called inside the step, where that is a database transaction.

        Raises
        ------
        LostRace, NotStaged
        """

    @abstractmethod
    def undo(self, moves: Sequence[Move]) -> bool:
        """Move all pointers back where they still are as a publish left them, and say that none is published: one step.

        Parameters
        ----------
        moves : sequence of Move
            As they were published.

        Returns
        -------
        bool
            False where one of them was moved since: then nothing was changed.
        """

    @abstractmethod
    def record_aborted(self, participant: str) -> Staged | None:
        """Make sure that a participant is never published; its record, or None where nothing is to be removed."""

    def settle(self, participant: str) -> None:
        """A published participant is over, and the timeline says so. Idempotent."""

    @abstractmethod
    def forget(self, participant: str) -> None:
        """Remove the record of a participant. Idempotent."""

    @abstractmethod
    def records(self, states: Sequence[str], before: float) -> list[Staged]:
        """Records of participants in some states, older than an instant."""

    # -- dropped tables ------------------------------------------------------------------------------------------

    @abstractmethod
    def dropped(self) -> list[tuple[str, ObjectPath, float]]:
        """Location, name and time of dropped tables."""

    @abstractmethod
    def forget_dropped(self, location: str) -> None:
        """Remove the record of a dropped table. Idempotent."""


@cache
def _writes_nulls() -> bool:
    """PyIceberg's setting for old readers; PyIceberg itself looks for its configuration file at each write."""
    return bool(Config().get_bool("legacy-current-snapshot-id"))

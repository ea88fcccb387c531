"""Base of Iceberg catalogs that move one table's pointer at a time and cannot store records: the records are files.

The table itself shows whether a participant was published.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table.metadata import TableMetadata

from twophase.catalogs.files import Files, is_below
from twophase.catalogs.lakehouse.errors import UnreadableMetadataError
from twophase.catalogs.lakehouse.file_access import FileAccess
from twophase.catalogs.lakehouse.options import Settings
from twophase.catalogs.lakehouse.publish_lookup import place_of, published_as
from twophase.catalogs.lakehouse.records import Records
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
from twophase.model import ObjectPath


class RecordingStore(Store):
    """An Iceberg catalog whose records are files in the warehouse.

    Parameters
    ----------
    settings : Settings
    access : FileAccess
    files : Files
        Access to the warehouse.
    """

    publishes_together = False

    def __init__(self, settings: Settings, access: FileAccess, files: Files) -> None:
        super().__init__(settings, access)
        self.records_at = settings.warehouse
        self._records = Records(files, settings.warehouse, settings.display_uri)

    # -- pointers ------------------------------------------------------------------------------------------------

    def rename(self, path: ObjectPath, new: ObjectPath) -> bool:
        try:
            with self.speaking(path=path):
                self.catalog.rename_table((*path.namespace, path.name), (*new.namespace, new.name))
        except (NoSuchTableError, NoSuchNamespaceError, TableAlreadyExistsError):
            return False
        return True

    # -- participants --------------------------------------------------------------------------------------------

    def identity(self) -> str:
        # The server cannot store an identity.
        return f"{self.settings.display_uri.rstrip('/')} {self.settings.catalog_name} {self.settings.warehouse}"

    def record_staged(self, participant: str, target: ObjectPath, document: dict[str, Any], since: float) -> str:
        self._records.add(participant, target, document, since)
        return self.identity()

    def staged(self, participant: str, *, settled: bool = False) -> Staged | None:
        record = self._records.get(participant)
        return None if record is None else self._judged(record, thorough=settled)

    def _judged(self, record: Staged, *, thorough: bool) -> Staged:
        """A record with its actual state: published, if the table shows it."""
        if record.state != STAGED:
            return record
        loaded = self._found(record, thorough=thorough)
        if loaded is None:
            return record
        location = published_as(self.io(loaded.metadata.location), loaded, record, thorough=thorough)
        if location is None:
            return record
        return replace(record, state=PUBLISHED, metadata_location=location)

    def _found(self, record: Staged, *, thorough: bool) -> Loaded | None:
        """The table that a participant writes; if ``thorough``, also a renamed or dropped one.

        It is known by its identity: its metadata may be elsewhere than its location, and its location may change.
        """
        uuid, place = record.document.get("uuid"), place_of(record).location
        loaded = self.load(record.target)
        if loaded is not None and _is(loaded.metadata, uuid, place):
            return loaded
        if not thorough:
            return None
        if (found := self._elsewhere(uuid, place, far=not record.document.get("is_new", True))) is not None:
            return found
        pointer = self._records.pointer_of_dropped(place)
        return None if pointer is None else Loaded(pointer, self.metadata(record.target, pointer))

    def _elsewhere(self, uuid: str | None, place: str, *, far: bool) -> Loaded | None:
        """A table, whatever its name; with ``far`` also one whose metadata is not below its location.

        The latter reads the metadata of all tables; nobody moves that of a new table between its publish and the end of
        its transaction, and renames it, too.
        """
        tables = self.all_tables()
        for path, pointer in tables.items():
            if is_below(pointer, place) and _is(metadata := self.metadata(path, pointer), uuid, place):
                return Loaded(pointer, metadata)
        for path, pointer in tables.items() if far else ():
            with suppress(UnreadableMetadataError):
                if _is(metadata := self.metadata(path, pointer), uuid, place):
                    return Loaded(pointer, metadata)
        return None

    def states(self, participants: Sequence[str]) -> dict[str, str]:
        found = [self.staged(participant) for participant in participants]
        return {record.participant: record.state for record in found if record is not None}

    def publish(self, moves: Sequence[Move], also: Also | None = None) -> None:
        assert also is None, "There is no transaction for it to belong to."
        for move in moves:
            assert move.after is not None, "A table is dropped in a transaction only where records change with it."
            for name in move.names:
                record = self._records.get(name)
                if record is None or record.state != STAGED:
                    raise NotStaged(name)
            if not self.swap(move.path, move.before, move.after, move.updates):
                raise LostRace

    def undo(self, moves: Sequence[Move]) -> bool:
        (move,) = moves
        assert move.after is not None
        if move.before is None:
            return self._drop(move.path, move.after.location)
        return self.swap(move.path, move.after, move.before, ())

    def record_aborted(self, participant: str) -> Staged | None:
        record = self.staged(participant, settled=True)
        if record is None or record.state == PUBLISHED:
            return None
        aborted = replace(record, state=ABORTED)
        self._records.update(aborted)
        return aborted

    def settle(self, participant: str) -> None:
        record = self.staged(participant, settled=True)
        if record is not None and record.state == PUBLISHED:
            self._records.update(replace(record, since=time.time()))

    def forget(self, participant: str) -> None:
        self._records.remove(participant)

    def records(self, states: Sequence[str], before: float) -> list[Staged]:
        found = (self._judged_if_readable(record) for record in self._records.all() if record.since < before)
        return [record for record in found if record is not None and record.state in states]

    def _judged_if_readable(self, record: Staged) -> Staged | None:
        """None if the table's metadata cannot be read: the doctor reports it, and the files are kept until it can."""
        try:
            return self._judged(record, thorough=True)
        except UnreadableMetadataError:
            return None

    # -- dropped tables ------------------------------------------------------------------------------------------

    def drop(self, path: ObjectPath, pointer: str, table: Loaded | None) -> bool:
        if table is None:
            return self._drop(path, pointer)
        place, uuid = table.metadata.location, str(table.metadata.table_uuid)
        self._records.add_dropped(path, place, pointer, uuid)
        is_gone = self._drop(path, pointer)
        # If another session has dropped the table, the record is correct.
        if not is_gone and self._elsewhere(uuid, place, far=True) is not None:
            self._records.remove_dropped(place)
        return is_gone

    @abstractmethod
    def _drop(self, path: ObjectPath, pointer: str) -> bool:
        """Remove a table's pointer if it is still as expected."""

    def dropped(self) -> list[Dropped]:
        return self._records.dropped()

    def forget_dropped(self, location: str) -> None:
        self._records.remove_dropped(location)


def _is(metadata: TableMetadata, uuid: str | None, place: str) -> bool:
    """Whether a table has an identity; an older version of twophase has recorded only its location."""
    return metadata.location == place if uuid is None else str(metadata.table_uuid) == uuid

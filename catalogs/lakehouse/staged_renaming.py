"""RENAME as a statement of a transaction: one SQL transaction moves the pointer to another name.

Two participants, of the new name and of the former one, are published together. Neither writes a file, unless rows
follow: then the pointer of the new name is that of a snapshot with them, on top of the table as the rename has seen it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from twophase.catalog.reading import ReadSource
from twophase.catalogs.lakehouse import dropping, earlier_states
from twophase.catalogs.lakehouse.dropping import DISPLACED, RENAMED, LakehouseDrop
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.member import DROPS
from twophase.catalogs.lakehouse.participant import LakehouseParticipant
from twophase.catalogs.lakehouse.planning import plan_rows
from twophase.catalogs.lakehouse.snapshots import DROP, RENAME, Seen, current_id
from twophase.catalogs.lakehouse.sources import source_of
from twophase.catalogs.lakehouse.store import PUBLISHED, Loaded, Move
from twophase.errors import AtomicityNotSupportedError, TableAlreadyExistsError
from twophase.model import ObjectPath, Purpose, TableDefinition, WriteContext
from twophase.transactions import failures

_OF_THE_TABLE = ("seen", "location")
_OF_THE_NAME = (RENAMED, DISPLACED, DROPS)


def plan_rename(
    lakehouse: Lakehouse, path: ObjectPath, new_path: ObjectPath, context: WriteContext, since: float
) -> dict[str, Any]:
    """Return the document of the participant of the new name.

    Parameters
    ----------
    lakehouse : Lakehouse
    path, new_path : ObjectPath
    context : WriteContext
    since : float
        When the statement began.

    Raises
    ------
    TableNotExistError, TableAlreadyExistsError
        There is no table of the former name, or there is one of the new name.
    AtomicityNotSupportedError
        The transaction has written one of the two before, and done more than to rename or drop a table; or it drops the
        table of the new name with PURGE.
    CatalogError
        Its metadata cannot be read.
    """
    base = context.base
    if base is not None:
        if base["effect"] != DROP:
            raise failures.not_renamed(new_path, context.transaction_id)
        _refuse_purge(new_path, context)
    elif lakehouse.store.pointer(new_path) is not None:
        raise TableAlreadyExistsError.of(new_path, lakehouse.name)
    return {
        **dropping.document_of(new_path, Purpose.CREATE_TABLE_AS, RENAME, context, since),
        **_table(lakehouse, path, context),
        RENAMED: True,
        DISPLACED: None if base is None else base["seen"],  # It is to be as it was, too.
        DROPS: [] if base is None else base[DROPS],
    }


def _refuse_purge(path: ObjectPath, context: WriteContext) -> None:
    """Refuse to give the name of a table that goes with its files: they are removed once no table has them."""
    assert context.base is not None
    if context.base["purge"] and context.base[DROPS]:
        raise AtomicityNotSupportedError(
            f"No table gets the name {path} in the transaction that drops {path} with PURGE; nothing was renamed.",
            path=path,
            transaction_id=context.transaction_id,
            hint="Drop it without PURGE, or rename the other table after the transaction.",
        )


def _table(lakehouse: Lakehouse, path: ObjectPath, context: WriteContext) -> dict[str, Any]:
    """Facts of a renamed table for its documents, the same under each further name."""
    former = context.former
    if former is not None:
        if former["effect"] != RENAME:
            raise failures.not_renamed(path, context.transaction_id)
        return {key: former[key] for key in _OF_THE_TABLE}
    loaded = lakehouse.load_to_write(path)
    if loaded is None:
        raise lakehouse.no_table(path)
    return {"seen": Seen.document_of(loaded), "location": loaded.metadata.location}


def plan_leave(path: ObjectPath, arriving: Mapping[str, Any], context: WriteContext, since: float) -> dict[str, Any]:
    """Return the document of the participant of the former name.

    Parameters
    ----------
    path : ObjectPath
    arriving : mapping
        The document of the new name.
    context : WriteContext
    since : float
        When the statement began.

    Raises
    ------
    AtomicityNotSupportedError
        The transaction has written the table before.
    """
    base = context.base
    if base is not None and base["effect"] != RENAME:
        raise failures.not_renamed(path, context.transaction_id)
    return {
        **dropping.document_of(path, Purpose.DROP_TABLE, DROP, context, since),
        "purge": False,
        "location": arriving["location"],
        # What the new name gets, and not what is there by now: others may have committed in between.
        "seen": arriving["seen"] if base is None else base[DISPLACED],
        RENAMED: True,
        # If it came by a rename, and goes by another one, those are dropped that were when it came.
        DROPS: [] if base is None else base[DROPS],
    }


def plan_renamed_rows(
    lakehouse: Lakehouse,
    path: ObjectPath,
    rows: TableDefinition,
    purpose: Purpose,
    context: WriteContext,
    since: float,
) -> dict[str, Any]:
    """Return the document of a participant that writes rows to a renamed table, by its new name.

    Parameters
    ----------
    lakehouse : Lakehouse
    path : ObjectPath
        The new name.
    rows : TableDefinition
    purpose, context, since
        As of :func:`.planning.plan_write`; it adds rows, or overwrites them, and its base is a document of this name.

    Raises
    ------
    CatalogError
        As by :func:`.planning.plan_write`.
    """
    base = context.base
    assert base is not None
    table = Seen(base["seen"]).loaded(lakehouse.store, path)
    if base["effect"] == RENAME:
        context = replace(context, base=None)  # It has staged no rows to build on.
    document = plan_rows(lakehouse, path, table, rows, purpose, context, since)
    return {**document, **{key: base[key] for key in _OF_THE_NAME}}


def is_renamed(document: Mapping[str, Any]) -> bool:
    """Return whether a document is that of a renamed table, under either of its names."""
    return RENAMED in document


def takes_rows(document: Mapping[str, Any] | None) -> bool:
    """Return whether a document is that of the new name of a table, to which rows may be written by it."""
    return document is not None and DISPLACED in document


def kind_of(document: Mapping[str, Any]) -> type[LakehouseParticipant]:
    """Return the class of the participant of a document."""
    if document["purpose"] == Purpose.DROP_TABLE.value:
        return LakehouseDrop
    if not takes_rows(document):
        return LakehouseParticipant
    return LakehouseRename if document["effect"] == RENAME else LakehouseRenamedRows


class _NewName(LakehouseParticipant):
    """The participant of the new name of a renamed table."""

    @property
    def _state(self) -> Loaded:
        """The table as the rename has seen it; that it still is so is checked by its former name."""
        return Seen(self.document["seen"]).loaded(self.store, self.path)

    @property
    def _displaced(self) -> Seen | None:
        """The table that has the name before the publish."""
        found = self.document[DISPLACED]
        return None if found is None else Seen(found)

    def _as_seen(self) -> Loaded | None:
        return None if self._displaced is None else self._displaced.loaded(self.store, self.path)

    def _check_free(self, current: Loaded | None) -> None:
        """Refuse a name that has another table than the rename has seen there."""
        self._check_name(current, self._displaced, as_seen=True)

    def published_move(self) -> Move | None:
        record = self.store.staged(self.name)
        current = self.store.load(self.path)
        if record is None or record.state != PUBLISHED or current is None:
            return None
        if current.location != record.metadata_location:
            return None
        return Move(self.path, self.names, self._as_seen(), current, dropped=self.dropped)


class LakehouseRename(_NewName, LakehouseDrop):
    """That of a table to which no rows are written."""

    def check_target(self, current: Loaded | None) -> None:
        self._check_free(current)

    def replaced_state(self) -> dict[str, Any]:
        return earlier_states.replaced_state(self._as_seen(), named=False, left=self._state.location)

    def move_on(self, current: Loaded | None) -> Move:
        self.check_target(current)
        return Move(self.path, self.names, current, self._state, dropped=self.dropped)

    def finish(self) -> None:
        self.store.settle(self.name)

    def read_source(self) -> ReadSource | None:
        metadata = self._state.metadata
        return source_of(
            self.store.io(metadata.location), self.path, metadata, current_id(metadata), metadata.current_schema_id
        )


class LakehouseRenamedRows(_NewName):
    """That of a table to which rows are written after its rename."""

    def built_on(self, current: Loaded | None) -> Loaded | None:
        self._check_free(current)
        return self._state

    def replaced_state(self) -> dict[str, Any]:
        # By this name the snapshots of the table show no state before: another one had it, or none.
        return earlier_states.replaced_state(self._as_seen(), named=False)

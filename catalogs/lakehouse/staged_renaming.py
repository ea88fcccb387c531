"""RENAME as a statement of a transaction: one SQL transaction moves the pointer to another name.

Two participants, of the new name and of the former one, are published together; neither writes a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twophase.catalog.reading import ReadSource
from twophase.catalogs.lakehouse import dropping, earlier_states
from twophase.catalogs.lakehouse.dropping import RENAMED, LakehouseDrop
from twophase.catalogs.lakehouse.home import Lakehouse
from twophase.catalogs.lakehouse.snapshots import CREATE, DROP, REPLACE, Seen, current_id
from twophase.catalogs.lakehouse.sources import source_of
from twophase.catalogs.lakehouse.store import PUBLISHED, Loaded, Move
from twophase.errors import AtomicityNotSupportedError, TableAlreadyExistsError
from twophase.model import ObjectPath, Purpose, WriteContext
from twophase.transactions import failures

#: Of the document of a new name: whether the transaction drops the table that has it.
DROPS = "drops"


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
    is_left = base is not None and base.get(RENAMED) is True
    if base is not None and not is_left:
        if base["effect"] != DROP:
            raise failures.not_renamed(new_path, context.transaction_id)
        _refuse_purge(new_path, context)
    if base is None and lakehouse.store.pointer(new_path) is not None:
        raise TableAlreadyExistsError.of(new_path, lakehouse.name)
    seen = None if base is None else base["seen"]
    effect = CREATE if seen is None else REPLACE  # The table that had the name is to be as it was, too.
    return {
        **dropping.document_of(new_path, Purpose.CREATE_TABLE_AS, effect, context, since),
        "seen": seen,
        DROPS: seen is not None and not is_left,
        **_table(lakehouse, path, context),
    }


def _refuse_purge(path: ObjectPath, context: WriteContext) -> None:
    """Refuse to give the name of a table that goes with its files: they are removed once no table has them."""
    assert context.base is not None
    if context.base["purge"] and context.base["seen"] is not None:
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
        if not isinstance(former.get(RENAMED), Mapping):
            raise failures.not_renamed(path, context.transaction_id)
        return {key: former[key] for key in ("location", RENAMED)}
    loaded = lakehouse.load_to_write(path)
    if loaded is None:
        raise lakehouse.no_table(path)
    return {"location": loaded.metadata.location, RENAMED: Seen.document_of(loaded)}


def plan_leave(lakehouse: Lakehouse, path: ObjectPath, context: WriteContext, since: float) -> dict[str, Any]:
    """Return the document of the participant of the former name.

    Parameters
    ----------
    lakehouse : Lakehouse
    path : ObjectPath
    context : WriteContext
    since : float
        When the statement began.

    Raises
    ------
    AtomicityNotSupportedError
        The transaction has written the table before.
    """
    base = context.base
    if base is not None and not isinstance(base.get(RENAMED), Mapping):
        raise failures.not_renamed(path, context.transaction_id)
    document = dropping.plan_drop(lakehouse, path, context, since, purge=False)
    # It came by a rename, and goes by another one: the table that it has replaced is dropped.
    return document if base is not None and base.get(DROPS) else {**document, RENAMED: True}


def is_renamed(document: Mapping[str, Any]) -> bool:
    """Return whether a document is that of a renamed table, under either of its names.

    Parameters
    ----------
    document : mapping
    """
    return RENAMED in document


class LakehouseRename(LakehouseDrop):
    """The participant of the new name of a renamed table."""

    @property
    def _state(self) -> Loaded:
        """The table as the statement has seen it; that it still is so is checked by its former name."""
        location = str(self.document[RENAMED]["metadata_location"])
        return Loaded(location, self.store.metadata(self.path, location))

    def replaced_state(self) -> dict[str, Any]:
        return earlier_states.replaced_state(
            self._as_seen(), named=False, left=str(self.document[RENAMED]["metadata_location"])
        )

    def move_on(self, current: Loaded | None) -> Move:
        self.check_target(current)
        return Move(self.path, self.names, current, self._state, drops=bool(self.document.get(DROPS)))

    def published_move(self) -> Move | None:
        record = self.store.staged(self.name)
        current = self.store.load(self.path)
        if record is None or record.state != PUBLISHED or current is None or current.location != self._state.location:
            return None
        return Move(self.path, self.names, self._as_seen(), current, drops=bool(self.document.get(DROPS)))

    def finish(self) -> None:
        self.store.settle(self.name)

    def read_source(self) -> ReadSource | None:
        metadata = self._state.metadata
        return source_of(
            self.store.io(metadata.location), self.path, metadata, current_id(metadata), metadata.current_schema_id
        )

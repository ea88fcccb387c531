"""RENAME as a statement of a transaction: one SQL transaction moves the pointer to another name.

Two participants, of the new name and of the former one, are published together; neither writes a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twophase.catalog.reading import ReadSource
from twophase.catalogs.lakehouse import dropping, layout
from twophase.catalogs.lakehouse.dropping import RENAMED, LakehouseDrop
from twophase.catalogs.lakehouse.home import Lakehouse
from twophase.catalogs.lakehouse.snapshots import CREATE, Seen, current_id
from twophase.catalogs.lakehouse.sources import source_of
from twophase.catalogs.lakehouse.store import PUBLISHED, Loaded, Move
from twophase.errors import AtomicityNotSupportedError, TableAlreadyExistsError
from twophase.model import Level, ObjectPath, Purpose, WriteContext


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
        The transaction has written the table of the new name before.
    CatalogError
        Its metadata cannot be read.
    """
    if context.base is not None:
        raise _written(new_path, context)
    loaded = lakehouse.load_to_write(path)
    if loaded is None:
        raise lakehouse.no_table(path)
    if lakehouse.store.pointer(new_path) is not None:
        raise TableAlreadyExistsError(f"Table {new_path} already exists in catalog {lakehouse.name}.", path=new_path)
    return {
        "path": new_path.to_document(),
        "purpose": Purpose.CREATE_TABLE_AS.value,
        "transaction_id": context.transaction_id,
        "ordinal": context.ordinal,
        "since": since,
        "effect": CREATE,
        "key": layout.key_of(new_path, context.transaction_id, context.ordinal),
        "last_sequence_number": 0,
        "location": loaded.metadata.location,
        "seen": None,
        "carries": [],
        "level": Level.ATOMIC.value,
        RENAMED: Seen.document_of(loaded),
    }


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
    if context.base is not None:
        raise _written(path, context)
    return {**dropping.plan_drop(lakehouse, path, context, since, purge=False), RENAMED: True}


def _written(path: ObjectPath, context: WriteContext) -> AtomicityNotSupportedError:
    return AtomicityNotSupportedError(
        f"The table was not renamed: transaction {context.transaction_id} has written it before, as {path}. That stays "
        "staged.",
        path=path,
        transaction_id=context.transaction_id,
        hint="Rename the table before the transaction, or after it.",
    )


def refuse_renamed(path: ObjectPath, context: WriteContext | None) -> None:
    """Refuse to write a table that the transaction has renamed, or one of its former name.

    Parameters
    ----------
    path : ObjectPath
    context : WriteContext or None

    Raises
    ------
    AtomicityNotSupportedError
    """
    base: Mapping[str, Any] | None = None if context is None else context.base
    if context is None or base is None or RENAMED not in base:
        return
    raise AtomicityNotSupportedError(
        f"Transaction {context.transaction_id} has renamed a table from or to {path}: this statement cannot be part of "
        "it, and changed nothing.",
        path=path,
        transaction_id=context.transaction_id,
        hint="Commit before, and run it then.",
    )


class LakehouseRename(LakehouseDrop):
    """The participant of the new name of a renamed table."""

    @property
    def _state(self) -> Loaded:
        """The table as the statement has seen it; that it still is so is checked by its former name."""
        location = str(self.document[RENAMED]["metadata_location"])
        return Loaded(location, self.store.metadata(self.path, location))

    def move_on(self, current: Loaded | None) -> Move:
        self.check_target(current)
        return Move(self.path, self.names, None, self._state)

    def published_move(self) -> Move | None:
        record = self.store.staged(self.name)
        current = self.store.load(self.path)
        if record is None or record.state != PUBLISHED or current is None or current.location != self._state.location:
            return None
        return Move(self.path, self.names, None, current)

    def finish(self) -> None:
        self.store.settle(self.name)

    def read_source(self) -> ReadSource | None:
        metadata = self._state.metadata
        return source_of(self.path, metadata, current_id(metadata), metadata.current_schema_id)

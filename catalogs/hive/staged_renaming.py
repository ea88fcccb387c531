"""RENAME of a table as a statement of a transaction: two participants, of the new name and of the former one.

They are published together, by one metastore call. Until then the table is read by its former name. A name that a
table has left, or that of a dropped one, can be given to another one, and a table can be renamed again: only its last
name is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from twophase.catalogs.files import refuse_untried, same
from twophase.catalogs.hive import layout, names
from twophase.catalogs.hive.dropping import before_of
from twophase.catalogs.hive.snapshots import read_format
from twophase.catalogs.hive.state import (
    DROP,
    LEAVE,
    RENAME,
    Before,
    Displaced,
    LeaveState,
    OwnState,
    PublisherName,
    RenameState,
    WriteState,
    renamed_by,
)
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import MANAGED, VIEW, HiveTable
from twophase.errors import AtomicityNotSupportedError, CatalogError, TableAlreadyExistsError, TableNotExistError
from twophase.model import ObjectPath, Purpose, WriteContext
from twophase.transactions import failures


def plan_rename(store: HiveStore, path: ObjectPath, new_path: ObjectPath, context: WriteContext) -> WriteState | None:
    """Return the initial state of the new name; None if nothing would show what is staged.

    Parameters
    ----------
    store : HiveStore
    path, new_path : ObjectPath
        As the metastore stores them.
    context : WriteContext

    Raises
    ------
    TableNotExistError, TableAlreadyExistsError
        There is no table of the former name, or there is one of the new name.
    AtomicityNotSupportedError
        The transaction has written one of the two before, and done more than to rename or drop a table; or the table's
        files would have to move.
    CatalogError
        It is a view, or would move to another database.
    """
    names.check_path(new_path, store.metastore.longest_name)
    base, former = _state_of(context.base), _state_of(context.former)
    if base is not None and base.effect not in (DROP, LEAVE):
        raise failures.not_renamed(new_path, context.transaction_id)
    if former is not None and former.effect != RENAME:
        raise failures.not_renamed(path, context.transaction_id)
    if new_path.namespace != path.namespace:
        raise CatalogError(f"{path} cannot move to another database.", path=path)
    if base is None and store.find(new_path) is not None:
        raise TableAlreadyExistsError.of(new_path, store.name)
    before = _found(store, path, context) if former is None else former.old
    if before is None:
        return None
    own = RenameState(path.name) if former is None else former.of(RenameState)
    default_location = store.default_location(new_path)
    version = layout.version_of(default_location, context.transaction_id, context.ordinal)
    refuse_untried(path, version, before.location, environment=store.environment)
    return WriteState(
        catalog=store.name,
        store=store.metastore.identity,
        path=new_path,
        purpose=Purpose.CREATE_TABLE_AS,
        transaction_id=context.transaction_id,
        ordinal=context.ordinal,
        publisher=PublisherName.RENAME_TABLE,
        definition=before.definition,
        default_location=default_location,
        version=version,
        before=before,
        effect=RENAME,
        replaces=True,
        own=replace(own, renamed_by=context.ordinal if own.renamed_by is None else own.renamed_by),
        autocommit=context.autocommit,
        displaces=None if base is None else _displaced(base),
    )


def _displaced(base: WriteState) -> Displaced | None:
    """The table whose name another one gets, after the statement by which it leaves it, or is dropped."""
    if base.effect == LEAVE or base.before is None:
        return base.displaces
    return Displaced(base.before, first_version=base.first_version or base.version)


def _state_of(document: Mapping[str, Any] | None) -> WriteState | None:
    return None if document is None else WriteState.from_document(document)


def _found(store: HiveStore, path: ObjectPath, context: WriteContext) -> Before | None:
    """Return the table to be renamed; None if Spark does not list its files."""
    table = store.find(path)
    if table is None:
        raise TableNotExistError.of(path, store.name)
    if table.kind == VIEW:
        raise CatalogError(f"{path} is a view, not a table.", path=path, hint="Write ALTER VIEW.")
    _refuse_at_its_name(store, path, table, context)
    before = before_of(store, table)
    return before if table.location is not None and read_format(before.definition, store.conf) is not None else None


def _refuse_at_its_name(store: HiveStore, path: ObjectPath, table: HiveTable, context: WriteContext) -> None:
    """Refuse a table whose files are where those of the next table of its name will be."""
    if table.kind == MANAGED and same(table.location, store.default_location(path)):
        raise AtomicityNotSupportedError(
            f"{path} was not renamed: its files are in {table.location}, where those of another table of this name "
            "will be. They would have to move, which no metastore does in one step with the name.",
            path=path,
            transaction_id=context.transaction_id,
            hint="Rename it outside the transaction. A table that twophase has replaced or overwritten once has its "
            "files elsewhere.",
        )


def plan_leave(path: ObjectPath, arriving: dict[str, Any], context: WriteContext) -> WriteState:
    """Return the initial state of the former name.

    Parameters
    ----------
    path : ObjectPath
        As the metastore stores it.
    arriving : dict
        The document of the new name.
    context : WriteContext

    Raises
    ------
    AtomicityNotSupportedError
        The transaction has written the table before.
    """
    base, new = _state_of(context.base), WriteState.from_document(arriving)
    if base is not None and base.effect != RENAME:
        raise failures.not_renamed(path, context.transaction_id)
    # A name that the table got in the transaction, and leaves again, is that of the table which it has displaced.
    displaces = Displaced(new.old, renamed_by(new)) if base is None else base.displaces
    state = replace(
        new,
        path=path,
        purpose=Purpose.DROP_TABLE,
        ordinal=context.ordinal,
        publisher=PublisherName.LEAVE_NAME,
        before=None if displaces is None else displaces.before,
        effect=LEAVE,
        own=LeaveState(arriving),
        displaces=displaces,
    )
    if base is None or displaces is None or displaces.renamed_by is not None:
        return state
    # The table that had the name before is dropped; it no longer waits for another one to get the name.
    return replace(
        state,
        publisher=PublisherName.DROP_TABLE,
        definition=displaces.before.definition,
        default_location=base.default_location,
        version=layout.version_of(base.default_location, context.transaction_id, context.ordinal),
        effect=DROP,
        own=OwnState(),
        first_version=displaces.first_version,
        displaces=None,
    )


def is_renamed(document: Mapping[str, Any]) -> bool:
    """Return whether a document is that of the new name of a renamed table."""
    return bool(document["effect"] == RENAME)


def pair_of(state: WriteState) -> str | None:
    """Return the key of the participants of a renamed table, under all its names; None for any other."""
    if state.effect not in (RENAME, LEAVE):
        return None
    new = state if state.effect == RENAME else WriteState.from_document(state.of(LeaveState).arriving)
    return layout.version_name(state.transaction_id, renamed_by(new))

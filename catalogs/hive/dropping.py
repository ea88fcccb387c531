"""DROP TABLE as a statement of a transaction: of the table as it is now, or as its transaction has seen it."""

from __future__ import annotations

from twophase.catalogs.files import refuse_untried
from twophase.catalogs.hive import layout, names
from twophase.catalogs.hive.definitions import redacted, to_definition
from twophase.catalogs.hive.state import DROP, RENAME, Before, OwnState, PublisherName, WriteState
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import VIEW, HiveTable
from twophase.errors import CatalogError, TableNotExistError
from twophase.model import ObjectPath, Purpose, WriteContext
from twophase.transactions import failures


def plan_drop(store: HiveStore, path: ObjectPath, context: WriteContext) -> WriteState:
    """Return the initial state of a drop.

    Parameters
    ----------
    store : HiveStore
    path : ObjectPath
        As the metastore stores it.
    context : WriteContext

    Raises
    ------
    TableNotExistError
        The table does not exist, and the transaction has not written it.
    CatalogError
        It is a view.
    """
    names.check_path(path, store.metastore.longest_name)
    default_location = store.default_location(path)
    table = store.find(path)
    if table is not None and table.kind == VIEW:
        raise CatalogError(f"{path} is a view, not a table.", path=path, hint="Write DROP VIEW.")
    base = None if context.base is None else WriteState.from_document(context.base)
    if base is not None:
        before, definition = base.before, base.definition
    elif table is not None:
        before = before_of(store, table)
        definition = before.definition
    else:
        raise TableNotExistError.of(path, store.name)
    is_renamed = base is not None and base.effect == RENAME
    version = layout.version_of(default_location, context.transaction_id, context.ordinal)
    refuse_untried(path, version, None if before is None else before.location, environment=store.environment)
    return WriteState(
        catalog=store.name,
        store=store.metastore.identity,
        path=path,
        purpose=Purpose.DROP_TABLE,
        transaction_id=context.transaction_id,
        ordinal=context.ordinal,
        publisher=PublisherName.DROP_RENAMED if is_renamed else PublisherName.DROP_TABLE,
        definition=definition,
        default_location=default_location,
        version=version,
        before=before,
        effect=RENAME if is_renamed else DROP,
        replaces=True,
        own=base.own if base is not None and is_renamed else OwnState(),
        first_version=None if base is None else base.first_version or base.version,
        autocommit=context.autocommit,
        displaces=None if base is None else base.displaces,
    )


def before_of(store: HiveStore, table: HiveTable) -> Before:
    """Return the facts that a statement records of its target."""
    return Before(
        location=str(table.location),
        kind=table.kind,
        tracked=table.tracked,
        definition=redacted(to_definition(table), store.conf),
        stamp=table.stamp,
        number=store.files.number(table.location) if table.location else None,
    )


def dropped_by(path: ObjectPath, table: HiveTable | None, context: WriteContext) -> WriteState | None:
    """Return the drop on which a CREATE of the same transaction rests; None if there is none.

    Raises
    ------
    WriteConflictError
        The table is no longer the one that the drop has seen.
    """
    base = None if context.base is None else WriteState.from_document(context.base)
    if base is None or base.effect != DROP:
        return None
    now = None if table is None else (str(table.location), table.stamp)
    if now != (base.before and (base.before.location, base.before.stamp)):
        raise failures.changed_meanwhile(path, context.transaction_id, "another writer committed to it meanwhile")
    return base

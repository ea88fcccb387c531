"""RENAME of a table as a statement of a transaction: made in the database transaction of the publish.

On MariaDB and MySQL it is made in the one ``RENAME TABLE`` of all tables that the transaction creates, replaces or
drops. Two participants, of the new name and of the former one, are published together. Until then the table is read by
its former name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from twophase.catalog.reading import ReadSource
from twophase.catalogs.jdbc import defaults, pinned_reads
from twophase.catalogs.jdbc.member import DROP, LEAVE, OF_THE_RENAMED, RENAME, Member, document_of
from twophase.catalogs.jdbc.mysql import MySQL
from twophase.catalogs.jdbc.store import Store
from twophase.errors import CatalogError, TableAlreadyExistsError
from twophase.model import ObjectPath, Purpose, WriteContext
from twophase.transactions import failures

Document = dict[str, Any]


def plan_rename(
    store: Store, path: ObjectPath, new_path: ObjectPath, context: WriteContext, since: float
) -> Document | None:
    """Return the document of the participant of the new name; None where a rename is no part of a single step.

    Parameters
    ----------
    store : Store
    path, new_path : ObjectPath
    context : WriteContext
    since : float
        When the statement began.

    Raises
    ------
    TableNotExistError, TableAlreadyExistsError
        There is no table of the former name, or there is one of the new name.
    AtomicityNotSupportedError
        The transaction has written one of the two before, and done more than to rename or drop a table.
    CatalogError
        It is a view, or would move to another database.
    """
    store.learn(path.database, path)
    is_atomic = store.database.ddl_in_transaction or isinstance(store.database, MySQL)
    if not is_atomic or store.database.group(store.home(path.database)) is None:
        return None
    base = context.base
    if base is not None and (base["effect"] not in (DROP, LEAVE) or is_renamed(base)):
        raise failures.not_renamed(new_path, context.transaction_id)
    if new_path.namespace != path.namespace:
        raise CatalogError(f"{path} cannot move to another database.", path=path)
    with store.begin(path.database, path=path, read_only=True) as connection:
        if base is None and store.database.table_kind(connection, new_path) is not None:
            raise TableAlreadyExistsError.of(new_path, store.settings.catalog)
        facts = _facts(store, connection, path, context)
    return {
        **document_of(new_path, Purpose.CREATE_TABLE_AS, RENAME, context, since),
        "seen": None if base is None else base["seen"],
        **({} if base is None else {"left" if base["effect"] == LEAVE else "anew": True}),
        **facts,
    }


def _facts(store: Store, connection: sa.Connection, path: ObjectPath, context: WriteContext) -> Document:
    """Facts of a renamed table for its documents, the same under each further name."""
    former = context.former
    if former is not None:
        if former["effect"] != RENAME or former.get("rows"):
            raise failures.not_renamed(path, context.transaction_id)
        return {key: former[key] for key in (*OF_THE_RENAMED, "definition", "columns", "computed")}
    seen = store.seen_table(connection, path)
    columns = store.database.columns(connection, path)
    definition = store.definition(connection, path)
    return {
        "from": path.to_document(),
        "former": seen,
        "pinned": seen if context.pins_reads else None,
        "definition": definition.to_document(),
        "columns": definition.schema.names,
        "computed": defaults.computed(columns),
        **pinned_reads.columns_read(columns),
    }


def plan_leave(path: ObjectPath, arriving: Mapping[str, Any], context: WriteContext, since: float) -> Document:
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
    if base is not None:
        if base["effect"] != RENAME:
            raise failures.not_renamed(path, context.transaction_id)
        # It came by a rename, and goes by another one: a table that it has replaced is dropped, or has its new name.
        effect = DROP if base.get("anew") else LEAVE
        return {**document_of(path, Purpose.DROP_TABLE, effect, context, since), "seen": base["seen"]}
    # As the rename has seen it: others may have published to it in between.
    return {**document_of(path, Purpose.DROP_TABLE, LEAVE, context, since), "seen": arriving["former"]}


def is_renamed(document: Mapping[str, Any]) -> bool:
    """Return whether a document is that of the new name of a renamed table, which may be dropped by it."""
    return document["effect"] == RENAME or (document["effect"] == DROP and "emptied" in document)


def takes_dropped_name(document: Mapping[str, Any]) -> bool:
    """Return whether a document is that of a renamed table that gets the name of one which its transaction drops."""
    return is_renamed(document) and bool(document.get("anew"))


def read_source(member: Member) -> ReadSource:
    """Return the source of the rows of a renamed table, which still has its former name."""
    return pinned_reads.source_as_planned(member, member.former, member.document["pinned"])

"""RENAME of a table as a statement of a transaction: made in the database transaction of the publish.

Two participants, of the new name and of the former one, are published together. Until then the table is read by its
former name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from twophase.catalog.reading import ReadSource
from twophase.catalogs.jdbc import definitions
from twophase.catalogs.jdbc.database import Column, Table
from twophase.catalogs.jdbc.member import LEAVE, RENAME, Member
from twophase.catalogs.jdbc.pinned_reads import Pinned
from twophase.catalogs.jdbc.reading import JdbcReader
from twophase.catalogs.jdbc.store import Store
from twophase.errors import AtomicityNotSupportedError, CatalogError, TableAlreadyExistsError, TableNotExistError
from twophase.model import Level, ObjectPath, Purpose, TableDefinition, WriteContext

Document = dict[str, Any]


def plan_rename(
    store: Store, path: ObjectPath, new_path: ObjectPath, context: WriteContext, since: float
) -> Document | None:
    """Return the document of the participant of the new name; None where a rename is not undone with its transaction.

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
        The transaction has written the table of the new name before.
    CatalogError
        It is a view, or would move to another database.
    """
    store.learn(path.database, path)
    if not store.database.ddl_in_transaction or store.database.group(store.home(path.database)) is None:
        return None
    refuse_renamed(new_path, context.base, context)
    if new_path.namespace != path.namespace:
        raise CatalogError(f"{path} cannot move to another database.", path=path)
    with store.begin(path.database, path=path, read_only=True) as connection:
        old, new = (Table(p.database, p.name) for p in (path, new_path))
        seen, kind = store.seen(connection, path), store.database.table_kind(connection, old)
        if seen is None:
            raise TableNotExistError(f"Table {path} does not exist in catalog {store.settings.catalog}.", path=path)
        if kind == "view":
            raise CatalogError(f"{path} is a view, not a table.", path=path)
        if store.database.table_kind(connection, new) is not None:
            raise TableAlreadyExistsError(
                f"Table {new_path} already exists in catalog {store.settings.catalog}.", path=new_path
            )
        columns = store.database.columns(connection, old)
        definition = store.definition(connection, path)
    return {
        **_document(new_path, Purpose.CREATE_TABLE_AS, RENAME, context, since),
        "seen": None,
        "from": path.to_document(),
        "pinned": seen if context.pins_reads else None,
        "definition": definition.to_document(),
        "read": [[c.name, c.type] for c in columns],
        "arrow": TableDefinition(pa.schema([(c.name, c.arrow) for c in columns])).to_document(),
    }


def plan_leave(store: Store, path: ObjectPath, context: WriteContext, since: float) -> Document:
    """Return the document of the participant of the former name.

    Parameters
    ----------
    store : Store
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
        raise AtomicityNotSupportedError(
            f"{path} was not renamed: transaction {context.transaction_id} has written it before. That stays staged.",
            path=path,
            transaction_id=context.transaction_id,
            hint="Rename the table before the transaction, or after it.",
        )
    with store.begin(path.database, path=path, read_only=True) as connection:
        seen = store.seen(connection, path)
    return {**_document(path, Purpose.DROP_TABLE, LEAVE, context, since), "seen": seen}


def _document(path: ObjectPath, purpose: Purpose, effect: str, context: WriteContext, since: float) -> Document:
    return {
        "path": path.to_document(),
        "purpose": purpose.value,
        "transaction_id": context.transaction_id,
        "ordinal": context.ordinal,
        "since": since,
        "effect": effect,
        "autocommit": context.autocommit,
        "takes_over": None,
        "columns": [],
        "level": Level.ATOMIC.value,
    }


def refuse_renamed(path: ObjectPath, base: Mapping[str, Any] | None, context: WriteContext) -> None:
    """Refuse a statement on one of the two names of a table that its transaction has renamed, or a rename of such.

    Parameters
    ----------
    path : ObjectPath
    base : mapping or None
        The document of the earlier statement on this name.
    context : WriteContext

    Raises
    ------
    AtomicityNotSupportedError
    """
    if base is None:
        return
    raise AtomicityNotSupportedError(
        f"Transaction {context.transaction_id} has renamed a table from or to {path}, or has written it before: this "
        "statement cannot be part of it, and changed nothing.",
        path=path,
        transaction_id=context.transaction_id,
        hint="Commit before, and run it then.",
    )


def read_source(member: Member) -> ReadSource:
    """Return the source of the rows of a renamed table, which still has its former name.

    Parameters
    ----------
    member : Member
    """
    document = member.document
    kinds = TableDefinition.from_document(document["arrow"]).schema
    columns = [Column(name, text, kinds.field(name).type) for name, text in document["read"]]
    old = member.former
    # In a snapshot, rows that others have added since are not read.
    guards = {} if document["pinned"] is None else {old: Pinned.seen(document["pinned"])}
    reader = JdbcReader(member.store, [old], columns, guards)
    return ReadSource("batches", definition=definitions.as_read(member.definition), reader=reader)

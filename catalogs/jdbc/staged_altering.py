"""ALTER TABLE as a statement of a transaction: made in the database transaction of the publish.

It is tried before, in a transaction that is rolled back: so the database itself says what it refuses, and how the table
will be. Until the publish the old rows are read by a query that shows them in the new columns. MariaDB and MySQL:
:mod:`~twophase.catalogs.jdbc.altering_by_copy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from twophase.catalog import TableChange
from twophase.catalog.reading import ReadSource
from twophase.catalogs.jdbc import altering_by_copy, altering_statements, pinned_reads
from twophase.catalogs.jdbc.altered_columns import Altered
from twophase.catalogs.jdbc.database import Database
from twophase.catalogs.jdbc.member import ALTER, ALTER_COPY, APPEND, OVERWRITE, Member, document_of
from twophase.catalogs.jdbc.mysql import MySQL
from twophase.catalogs.jdbc.postgresql import PostgreSQL
from twophase.catalogs.jdbc.sqlite import SQLite
from twophase.catalogs.jdbc.staged_changes import attempt, statements_of, to_document, without_secrets
from twophase.catalogs.jdbc.store import Store
from twophase.model import ObjectPath, Purpose, WriteContext
from twophase.redaction import is_secret
from twophase.transactions import failures

Document = dict[str, Any]


def plan_alter(
    store: Store, path: ObjectPath, changes: Sequence[TableChange], context: WriteContext, since: float
) -> Document | None:
    """Return the document of a participant that alters a table; None if the transaction makes the table itself.

    None as well where an ALTER TABLE is not undone with the transaction of the database, nor a copy published.

    Raises
    ------
    TableNotExistError
        The table does not exist, and the transaction has not written it.
    AtomicityNotSupportedError
        The transaction has written rows to the table before.
    CatalogError, SchemaError
        A change is not possible.
    """
    base = context.base
    store.learn(path.database, path)
    if not isinstance(store.database, PostgreSQL | SQLite | MySQL):
        return None
    if base is not None and base["effect"] not in (ALTER, ALTER_COPY):
        if base["effect"] in (APPEND, OVERWRITE):
            raise failures.rows_before(path, context.transaction_id)
        return None
    _refuse_secrets(path, changes, context)
    seen = base["seen"] if base is not None else _seen(store, path)
    if isinstance(store.database, MySQL):
        return altering_by_copy.plan(store, path, seen, changes, context, since)
    statements = [*(statements_of(base) if base is not None else []), list(changes)]
    found = attempt(store, path, statements)
    return {
        **document_of(path, Purpose.ALTER_TABLE, ALTER, context, since),
        "seen": seen,
        "pins_reads": context.pins_reads,
        "definition": without_secrets(found.definition).to_document(),
        "statements": [[to_document(change) for change in statement] for statement in statements],
        **pinned_reads.columns_read(found.columns),
        "queries": [[[_value(store.database, c), c.name] for c in step] for step in found.steps],
    }


def _refuse_secrets(path: ObjectPath, changes: Sequence[TableChange], context: WriteContext) -> None:
    for change in changes:
        if change.kind == "set_property" and is_secret(change.arguments["key"], change.arguments["value"]):
            raise failures.secret_property(path, change.arguments["key"], context.transaction_id)


def _seen(store: Store, path: ObjectPath) -> Mapping[str, Any]:
    with store.begin(path.database, path=path, read_only=True) as connection:
        return store.seen_table(connection, path)


# -- reading inside the transaction ------------------------------------------------------------------------------------


def read_source(member: Member) -> ReadSource:
    """Return the source of the old rows in the new columns."""
    document = member.document
    source = partial(_query, member.store.database, member.path, document["queries"])
    seen = document["seen"] if document["pins_reads"] else None
    return pinned_reads.source_as_planned(member, member.path, seen, source)


def _query(database: Database, table: ObjectPath, queries: Sequence[Sequence[Sequence[str]]], condition: str) -> str:
    """The SQL of a table after some statements: a query for each, over that of the one before."""
    result = database.name(table)
    where = f" WHERE {condition}" if condition else ""
    for values in queries:
        names = ", ".join(f"{value} AS {database.quote(name)}" for value, name in values)
        result, where = f"(SELECT {names} FROM {result}{where}) AS altered", ""
    return result


def _value(database: Database, column: Altered) -> str:
    """The SQL of a column's value in the rows that are there."""
    before = column.before
    if before is None:
        given = column.default.removeprefix(" DEFAULT ") or "NULL"
        return f"CAST({given} AS {column.type})" if isinstance(database, PostgreSQL) else given
    name = database.quote(before.name)
    if column.type == before.type:
        return name
    if isinstance(database, PostgreSQL):
        return f"CAST({name} AS {column.type})"
    return _of_sqlite(database, column)


def _of_sqlite(database: Database, column: Altered) -> str:
    """The value in the form in which the new type is stored."""
    assert column.before is not None
    return altering_statements.value_of(database, replace(column, name=column.before.name))

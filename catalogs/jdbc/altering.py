"""DDL: new tables, and an atomic ``ALTER TABLE``.

PostgreSQL and SQLite make the changes in one transaction, SQLite some of them by a new table. MariaDB and MySQL take
them as one statement with a clause for each change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa

from twophase.catalog import TableChange
from twophase.catalogs.jdbc import altering_statements
from twophase.catalogs.jdbc.altered_columns import Altered, altered
from twophase.catalogs.jdbc.database import Database
from twophase.catalogs.jdbc.definitions import Note, column_comment, note_of
from twophase.catalogs.jdbc.member import REPLACE
from twophase.catalogs.jdbc.store import Store
from twophase.errors import ConfigurationError
from twophase.model import ObjectPath, TableDefinition

#: Properties of a table with their values.
_CHOICES = {"promotion": ("exact", "wide"), "on_cast_failure": ("error",)}


def create(
    database: Database,
    connection: sa.Connection,
    table: ObjectPath,
    definition: TableDefinition,
    clauses: Sequence[tuple[str, str]],
) -> None:
    """Create a table with its comments; in a single statement if the database's ``CREATE TABLE`` takes them."""
    text = note_of(definition, database).write()
    comments = {f.name: said for f in definition.schema if (said := column_comment(f))}
    if database.comments_in_ddl:
        literal = database.text
        commented = [(n, c + (f" COMMENT {literal(comments[n])}" if n in comments else "")) for n, c in clauses]
        database.create(connection, table, commented, f" COMMENT={literal(text)}" if text else "")
        return
    database.create(connection, table, clauses)
    if text is not None:
        database.set_comment(connection, table, text)
    for name, comment in comments.items():
        database.set_column_comment(connection, table, name, comment)


def alter(store: Store, path: ObjectPath, changes: Sequence[TableChange]) -> None:
    """Apply changes to a table atomically.

    Raises
    ------
    CatalogError, SchemaError
        A change is not possible, or this database does not support it; nothing was changed.
    """
    with store.begin(path.database, path=path) as connection:
        store.database.lock_target(connection, path, REPLACE)
        apply(store.database, connection, path, changes)


def apply(
    database: Database,
    connection: sa.Connection,
    path: ObjectPath,
    changes: Sequence[TableChange],
    table: ObjectPath | None = None,
) -> list[Altered]:
    """Apply changes to a table that is locked, in a transaction of the database; return its columns.

    Parameters
    ----------
    database : Database
    connection : sqlalchemy.Connection
    path : ObjectPath
        The table as the user knows it.
    changes : sequence of TableChange
    table : ObjectPath, optional
        The table that is altered instead of it.

    Raises
    ------
    CatalogError, SchemaError
        As for :func:`alter`.
    """
    table = table or path
    columns = database.columns(connection, table)
    before = Note.read(database.comment(connection, table))
    retypes = any(change.kind == "update_column_type" for change in changes)
    promotion = _promotion(database, path, before.properties) if retypes else database.settings.promotion
    wanted = altered(database, connection, path, table, columns, before.columns, changes, promotion=promotion)
    note = before
    for change in changes:
        note = _noted(note, change)
    if not database.column_comments:
        note = replace(note, columns={column.name: column.comment for column in wanted if column.comment})
    text = None if note == before else note.write() or ""
    altering_statements.run(database, connection, path, table, columns, wanted, text)
    return wanted


def _promotion(database: Database, path: ObjectPath, properties: Mapping[str, str]) -> str:
    """The changes of type that a table may see: its own property, or the catalog's option.

    Raises
    ------
    ConfigurationError
        The property has a value that no database could follow.
    """
    for name, known in _CHOICES.items():
        value = properties.get(f"twophase.{name}", known[0]).lower()
        if value not in known:
            raise ConfigurationError(
                f"{path} was not altered: its property twophase.{name} is {' or '.join(known)} in a database, not "
                f"{value!r}: the database itself changes the type, and refuses a value that does not fit.",
                path=path,
                hint=f"ALTER TABLE {path} UNSET TBLPROPERTIES ('twophase.{name}')",
            )
    return properties.get("twophase.promotion", database.settings.promotion).lower()


def _noted(note: Note, change: TableChange) -> Note:
    facts = change.arguments
    if change.kind == "set_comment":
        return replace(note, comment=facts["comment"])
    if change.kind == "set_property":
        return replace(note, properties={**note.properties, facts["key"]: facts["value"]})
    if change.kind == "remove_property":
        return replace(note, properties={k: v for k, v in note.properties.items() if k != facts["key"]})
    return note

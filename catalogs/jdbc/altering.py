"""Plain DDL: new tables, and ``ALTER TABLE``, all of its changes or none.

PostgreSQL and SQLite make the changes in one transaction. MariaDB and MySQL take them as one statement, of which each
clause is one change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalog import TableChange
from twophase.catalogs.jdbc import definitions
from twophase.catalogs.jdbc.database import Column, Database, Table
from twophase.catalogs.jdbc.definitions import Note, column_comment, note_of
from twophase.catalogs.jdbc.mysql import MySQL
from twophase.catalogs.jdbc.postgresql import PostgreSQL
from twophase.catalogs.jdbc.store import Store
from twophase.errors import CatalogError
from twophase.model import ObjectPath, TableDefinition

_OF_THE_NOTE = ("set_property", "remove_property", "set_comment")


def create(
    database: Database,
    connection: sa.Connection,
    table: Table,
    definition: TableDefinition,
    clauses: Sequence[tuple[str, str]],
) -> None:
    """Create a table with its comments; in one statement where it takes them."""
    text = note_of(definition, database).write()
    comments = {f.name: said for f in definition.schema if (said := column_comment(f))}
    if database.comments_in_ddl:
        literal = database.text
        told = [(n, c + (f" COMMENT {literal(comments[n])}" if n in comments else "")) for n, c in clauses]
        database.create(connection, table, told, f" COMMENT={literal(text)}" if text else "")
        return
    database.create(connection, table, clauses)
    if text is not None:
        database.set_comment(connection, table, text)
    for name, comment in comments.items():
        database.set_column_comment(connection, table, name, comment)


def alter(store: Store, path: ObjectPath, changes: Sequence[TableChange]) -> None:
    """Apply changes to a table, all or none.

    Raises
    ------
    CatalogError
        A change that this database cannot make; none was made.
    """
    table = Table(path.database, path.name)
    with store.begin(path.database, path=path) as connection:
        columns = store.database.columns(connection, table)
        note = Note.read(store.database.comment(connection, table))
        work = _Work(store.database, connection, path, table, {column.name: column for column in columns})
        clauses = [work.clause(change) for change in changes if change.kind not in _OF_THE_NOTE]
        for change in changes:
            note = _noted(note, change)
        changed = note if any(change.kind in _OF_THE_NOTE for change in changes) else None
        work.run(clauses, replace(changed, columns=work.column_notes(note)) if changed else None)


def _noted(note: Note, change: TableChange) -> Note:
    facts = change.arguments
    if change.kind == "set_comment":
        return replace(note, comment=facts["comment"])
    if change.kind == "set_property":
        return replace(note, properties={**note.properties, facts["key"]: facts["value"]})
    if change.kind == "remove_property":
        return replace(note, properties={k: v for k, v in note.properties.items() if k != facts["key"]})
    return note


@dataclass
class _Work:
    """The clauses of one ``ALTER TABLE``."""

    database: Database
    connection: sa.Connection
    path: ObjectPath
    table: Table
    columns: dict[str, Column]

    def clause(self, change: TableChange) -> str:
        """What stands behind ``ALTER TABLE t``; empty for a change without any effect."""
        make: dict[str, Callable[[TableChange], str]] = {
            "add_column": self._add,
            "drop_column": self._drop,
            "rename_column": self._rename,
            "update_column_type": self._retype,
            "update_column_nullability": self._nullability,
            "update_column_comment": self._comment,
            "move_column": self._move,
        }
        if change.kind not in make:
            raise self._cannot(change, "there is no such change")
        if change.kind != "add_column" and change.path[0] not in self.columns:
            if change.kind == "drop_column" and change.arguments.get("if_exists"):
                return ""
            raise CatalogError(f"{self.path} has no column {change.path[0]!r}; nothing was changed.", path=self.path)
        if len(change.path) > 1:
            raise self._cannot(change, "a column has no parts")
        return make[change.kind](change)

    def run(self, clauses: Sequence[str], note: Note | None) -> None:
        """Make all changes."""
        found = [clause for clause in clauses if clause]
        if isinstance(self.database, MySQL):
            if note is not None:
                found.append(f"COMMENT = {self.database.text(note.write() or '')}")
            if found:
                self._statement(", ".join(found))
            return
        for clause in found:
            self._statement(clause)
        if note is not None:
            self.database.set_comment(self.connection, self.table, note.write())

    def _statement(self, clause: str) -> None:
        if clause.startswith("COMMENT ON"):
            self.database.run(self.connection, clause)
        else:
            self.database.run(self.connection, f"ALTER TABLE {self.database.name(self.table)} {clause}")

    def column_notes(self, note: Note) -> dict[str, str]:
        """Comments of the columns that are still there."""
        return {name: said for name, said in note.columns.items() if name in self.columns}

    # -- each change ---------------------------------------------------------------------------------------------

    def _cannot(self, change: TableChange, why: str) -> CatalogError:
        verb = change.kind.replace("_", " ")
        return CatalogError(
            f"{self.database.title} cannot {verb} of {self.path}: {why}; nothing was changed.", path=self.path
        )

    def _field(self, change: TableChange) -> pa.Field:
        field: pa.Field = change.arguments["field"].field(0)
        return field

    def _type(self, field: pa.Field) -> str:
        definition = TableDefinition(pa.schema([field]))
        ((_, kind),) = definitions.columns_of(self.path, definition, self.database)
        return kind

    def _place(self, change: TableChange) -> str:
        position = change.arguments.get("position")
        if not position:
            return ""
        if not isinstance(self.database, MySQL):
            raise self._cannot(change, "a new column comes last there")
        return " FIRST" if position == "first" else f" AFTER {self.database.quote(position.removeprefix('after:'))}"

    def _add(self, change: TableChange) -> str:
        field = self._field(change)
        self.database.check_name(change.path[-1], "column", self.path)
        if not field.nullable:
            raise self._cannot(change, "old rows have no value for a NOT NULL column")
        said = column_comment(field)
        if said and not isinstance(self.database, MySQL):
            raise self._cannot(change, "give the comment to the column afterwards")
        comment = f" COMMENT {self.database.text(said)}" if said else ""
        return f"ADD COLUMN {self.database.quote(field.name)} {self._type(field)} NULL{comment}{self._place(change)}"

    def _drop(self, change: TableChange) -> str:
        if len(self.columns) == 1:
            raise self._cannot(change, "it is the last column")
        self.columns.pop(change.path[0])
        return f"DROP COLUMN {self.database.quote(change.path[0])}"

    def _rename(self, change: TableChange) -> str:
        new = change.arguments["name"]
        self.database.check_name(new, "column", self.path)
        return f"RENAME COLUMN {self.database.quote(change.path[0])} TO {self.database.quote(new)}"

    def _retype(self, change: TableChange) -> str:
        name, kind = self.database.quote(change.path[0]), self._type(self._field(change))
        if isinstance(self.database, PostgreSQL):
            return f"ALTER COLUMN {name} TYPE {kind}"
        if isinstance(self.database, MySQL):
            return f"MODIFY COLUMN {name} {self.database.redefined(self.connection, self.table, change.path[0], kind)}"
        raise self._cannot(change, "its columns keep their types")

    def _nullability(self, change: TableChange) -> str:
        column, nullable = self.columns[change.path[0]], change.arguments["nullable"]
        if column.nullable == nullable:
            return ""
        name = self.database.quote(column.name)
        if isinstance(self.database, PostgreSQL):
            return f"ALTER COLUMN {name} {'DROP' if nullable else 'SET'} NOT NULL"
        if isinstance(self.database, MySQL):
            null = "NULL" if nullable else "NOT NULL"
            kind = self.database.redefined(self.connection, self.table, column.name, column.type, null=null)
            return f"MODIFY COLUMN {name} {kind}"
        raise self._cannot(change, "a column stays nullable or not")

    def _comment(self, change: TableChange) -> str:
        column, said = self.columns[change.path[0]], change.arguments["comment"]
        if isinstance(self.database, PostgreSQL):
            text = "NULL" if said is None else self.database.text(said)
            return f"COMMENT ON COLUMN {self.database.name(self.table)}.{self.database.quote(column.name)} IS {text}"
        if isinstance(self.database, MySQL):
            kind = self.database.redefined(self.connection, self.table, column.name, column.type, comment=said or "")
            return f"MODIFY COLUMN {self.database.quote(column.name)} {kind}"
        raise self._cannot(change, "columns have no comments")

    def _move(self, change: TableChange) -> str:
        place = self._place(change)
        column = self.columns[change.path[0]]
        assert isinstance(self.database, MySQL)
        kind = self.database.redefined(self.connection, self.table, column.name, column.type)
        return f"MODIFY COLUMN {self.database.quote(column.name)} {kind}{place}"

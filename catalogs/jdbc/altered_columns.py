"""The columns of a table after an ``ALTER TABLE``, by the rules of :mod:`twophase.schema`; nothing is changed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalog import TableChange
from twophase.catalog.column_changes import OF_THE_TABLE, ColumnChanges, default_sql
from twophase.catalogs.jdbc import defaults, definitions
from twophase.catalogs.jdbc.database import Column, Database
from twophase.errors import CatalogError
from twophase.model import ObjectPath, TableDefinition
from twophase.schema import Field, Schema, apply_changes, assign_ids, promotion_policy
from twophase.schema.convert_arrow import plain_type

#: The kind of a change of the default of a column: the rules of schema evolution do not know defaults in SQL.
_DEFAULT = "update_column_default"


@dataclass(frozen=True)
class Altered:
    """A column as the changes leave it.

    Attributes
    ----------
    before : Column or None
        None for a new column.
    name : str
    type : str
        The database's type.
    arrow : pyarrow.DataType
    nullable : bool
    comment : str or None
    default : str
        ``DEFAULT`` of a new column, in the database's SQL; empty for none.
    new_default : str or None
        The value that an old column gets as its default, in the database's SQL, empty for none; None: as it is.
    """

    before: Column | None
    name: str
    type: str
    arrow: pa.DataType
    nullable: bool
    comment: str | None
    default: str = ""
    new_default: str | None = None

    @property
    def is_redefined(self) -> bool:
        """Whether an old column gets another type, or other rules for NULL."""
        before = self.before
        return before is not None and (self.type != before.type or self.nullable != before.nullable)

    @property
    def definition(self) -> str:
        """The definition of a new column in SQL, behind its name and without its comment."""
        return f"{self.type}{self.default} {'NULL' if self.nullable else 'NOT NULL'}"


def altered(
    database: Database,
    connection: sa.Connection,
    path: ObjectPath,
    table: ObjectPath,
    columns: Sequence[Column],
    comments: Mapping[str, str],
    changes: Sequence[TableChange],
    *,
    promotion: str,
) -> list[Altered]:
    """The columns after all changes, in their new order.

    Parameters
    ----------
    database : Database
    connection : sqlalchemy.Connection
    path, table : ObjectPath
        Its name in errors, and that of what is altered.
    columns : sequence of Column
    comments : mapping of str to str
        As they are now.
    changes : sequence of TableChange
    promotion : str
        The policy for changes of type.

    Raises
    ------
    CatalogError, SchemaError
        A change is not possible.
    """
    return _Work(database, connection, path, table, columns, comments, changes).columns(promotion)


class _Work:
    """The changes of one statement."""

    def __init__(
        self,
        database: Database,
        connection: sa.Connection,
        path: ObjectPath,
        table: ObjectPath,
        columns: Sequence[Column],
        comments: Mapping[str, str],
        changes: Sequence[TableChange],
    ) -> None:
        self._database = database
        self._connection = connection
        self._path = path
        self._table = table
        self._changes = [change for change in changes if change.kind not in OF_THE_TABLE]
        self._before = dict(enumerate(columns, 1))
        self._start = self._schema(columns, comments)

    def columns(self, promotion: str) -> list[Altered]:
        for change in self._changes:
            self._check(change)
        convert = ColumnChanges(self._path, self._field, self._holds_no_null, self._default)
        wanted = apply_changes(
            self._start,
            convert.convert(self._start, [change for change in self._changes if change.kind != _DEFAULT]),
            promotion=promotion_policy(promotion, choices=("exact", "wide")),
        )
        given, defaulted = (
            {self._find(wanted, change.path).id: change for change in self._changes if change.kind in kinds}
            for kinds in (("add_column", "update_column_type"), (_DEFAULT,))
        )
        return [self._altered(node, given.get(node.id), defaulted.get(node.id)) for node in wanted]

    def _schema(self, columns: Sequence[Column], comments: Mapping[str, str]) -> Schema:
        keys = self._database.primary_key(self._connection, self._table) if self._changes else []
        # A key of SQLite may be nullable by its declaration.
        fields = [
            pa.field(c.name, c.arrow, c.nullable and c.name not in keys, {"comment": text} if text else None)
            for c in columns
            for text in [c.comment or comments.get(c.name)]
        ]
        schema = assign_ids(fields)
        return replace(schema, primary_keys=tuple(node.id for node in schema if node.name in keys))

    def _check(self, change: TableChange) -> None:
        if len(change.path) > 1:
            raise CatalogError(
                f"{self._database.title} cannot {change.kind.replace('_', ' ')} of {self._path}: a column has no "
                "parts; nothing was changed.",
                path=self._path,
            )
        if change.kind in ("add_column", "rename_column"):
            name = change.arguments.get("name") or change.path[-1]
            self._database.check_name(name, "column", self._path)

    def _find(self, wanted: Schema, path: tuple[str, ...]) -> Field:
        """The field of a change, which may have been renamed after it, or before."""
        found = [node for node in wanted if node.name == path[0]]
        return found[0] if found else self._start.find(path)

    def _field(self, change: TableChange) -> pa.Field:
        field: pa.Field = change.arguments["field"].field(0)
        self._sql_type(field)  # Raises if there is none.
        said = definitions.column_comment(field)
        kind = definitions.as_read(TableDefinition(pa.schema([field]))).schema.field(0).type
        return pa.field(field.name, kind, field.nullable, None if said is None else {"comment": said})

    def _sql_type(self, field: pa.Field) -> str:
        definition = TableDefinition(pa.schema([field]))
        ((_, kind),) = definitions.columns_of(self._path, definition, self._database)
        return kind

    def _default(self, change: TableChange) -> Any:
        sql = default_sql(change)
        if sql is None:
            return None
        return defaults.checked(self._path, self._field(change), sql)

    def _holds_no_null(self, node: Field) -> bool:
        rows = self._database.construct(self._table, node.name)
        return not self._connection.scalar(sa.select(sa.exists().where(rows.c[node.name].is_(None))))

    def _altered(self, node: Field, change: TableChange | None, defaulted: TableChange | None) -> Altered:
        before = self._before.get(node.id)
        kind = before.type if before else ""
        default = ""
        if change is not None:
            kind = self._sql_type(change.arguments["field"].field(0))
            sql = default_sql(change)
            default = "" if sql is None else f" DEFAULT {defaults.in_database(sql, node.leaf, self._database)}"
        nullable = node.nullable
        if before is not None and nullable == self._start.find(node.id).nullable:
            nullable = before.nullable
        new_default = None if defaulted is None else self._new_default(node, defaulted.arguments["default"] or "NULL")
        return Altered(before, node.name, kind, plain_type(node), nullable, node.comment, default, new_default)

    def _new_default(self, node: Field, sql: str) -> str:
        if defaults.is_null(sql):
            return ""
        defaults.checked(self._path, pa.field(node.name, plain_type(node)), sql)
        return defaults.in_database(sql, node.leaf, self._database)

"""Conversion of the changes of ``ALTER TABLE`` to those of :mod:`twophase.schema`: its rules hold in every store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from twophase.catalog.services import TableChange
from twophase.catalog.spark_columns import spark_field
from twophase.errors import CatalogError
from twophase.model import ObjectPath
from twophase.schema import (
    AddField,
    Change,
    ChangeComment,
    ChangeNullability,
    ChangeType,
    DropField,
    Field,
    MoveField,
    Position,
    RenameField,
    Schema,
    after,
    first,
)
from twophase.schema.errors import NullabilityError, UnknownFieldError
from twophase.schema.names import fold

#: The kinds of changes that concern the table itself, not its columns.
OF_THE_TABLE = frozenset(("set_property", "remove_property", "set_comment"))
#: The kinds of changes of how a table is partitioned.
OF_PARTITIONING = frozenset(("add_partition_field", "drop_partition_field", "replace_partition_field"))


def renames_of(changes: Iterable[TableChange]) -> dict[str, str]:
    """Return the former names of top-level columns by the new ones, both without their case.

    Parameters
    ----------
    changes : iterable of TableChange
        In the order in which they are applied.
    """
    found: dict[str, str] = {}
    for change in changes:
        if change.kind == "rename_column" and len(change.path) == 1:
            old = fold(change.path[0])
            found[fold(str(change.arguments["name"]))] = found.pop(old, old)
    return found


class ColumnChanges:
    """The conversion for one table.

    Parameters
    ----------
    path : ObjectPath
        Of the table.
    field_of : callable
        The field of a change, in types of the store; raises if the store has no such type.
    holds_no_null : callable
        Whether no row has NULL in a field that becomes NOT NULL.
    default_of : callable, optional
        The value of a new column's ``DEFAULT`` for its rows; without it a ``DEFAULT`` is not passed here.
    """

    def __init__(
        self,
        path: ObjectPath,
        field_of: Callable[[TableChange], pa.Field],
        holds_no_null: Callable[[Field], bool],
        default_of: Callable[[TableChange], Any] | None = None,
    ) -> None:
        self._path = path
        self._field_of = field_of
        self._holds_no_null = holds_no_null
        self._default_of = default_of

    def convert(self, schema: Schema, changes: Iterable[TableChange]) -> list[Change]:
        """The changes of columns, for a table with this schema; those without an effect are left out.

        Raises
        ------
        CatalogError, SchemaError
            There is no such change, or no such column.
        """
        found = [self._change(schema, change) for change in changes if change.kind not in OF_THE_TABLE]
        return [change for change in found if change is not None]

    def _change(self, schema: Schema, change: TableChange) -> Change | None:
        make: Mapping[str, Callable[[TableChange], Change | None]] = {
            "add_column": self._add,
            "drop_column": lambda c: _drop(schema, c),
            "rename_column": lambda c: RenameField(c.path, c.arguments["name"]),
            "update_column_type": lambda c: ChangeType(c.path, self._field_of(c).type),
            "update_column_comment": lambda c: ChangeComment(c.path, c.arguments["comment"]),
            "update_column_nullability": lambda c: self._nullability(schema, c),
            "move_column": lambda c: MoveField(c.path, position_of(c) or first()),
        }
        if change.kind in OF_PARTITIONING:
            raise CatalogError(
                f"{self._path} cannot be altered: only an Iceberg table has partition fields; nothing was changed.",
                path=self._path,
            )
        if change.kind not in make:
            raise CatalogError(
                f"{self._path} cannot be altered: there is no change {change.kind.replace('_', ' ')} here; nothing was "
                "changed.",
                path=self._path,
            )
        return make[change.kind](change)

    def _add(self, change: TableChange) -> AddField:
        field = self._field_of(change)
        comment = (field.metadata or {}).get(b"comment")
        return AddField(
            change.path,
            field.type,
            nullable=field.nullable,
            comment=None if comment is None else comment.decode(),
            default=None if self._default_of is None else self._default_of(change),
            position=position_of(change),
        )

    def _nullability(self, schema: Schema, change: TableChange) -> ChangeNullability:
        nullable = bool(change.arguments["nullable"])
        node = schema.find(change.path)
        if nullable or not node.nullable:
            return ChangeNullability(change.path, nullable, checked=not nullable)
        if not self._holds_no_null(node):
            raise NullabilityError(
                f"{schema.name_of(node.id)} has NULL in rows of {self._path}, or may have, and cannot become NOT NULL.",
                field_path=schema.name_of(node.id),
                old_type=node.type_name,
                new_type=f"{node.type_name} NOT NULL",
                allowed=("the same statement, once every row has a value there",),
            )
        return ChangeNullability(change.path, False, checked=True)


def default_sql(change: TableChange) -> str | None:
    """The ``DEFAULT`` of a new column, in Spark's SQL; None if it has none, or NULL."""
    found = spark_field(change.arguments["field"].field(0)).get("metadata", {}).get("CURRENT_DEFAULT")
    return None if found is None or str(found).strip().upper() == "NULL" else str(found)


def gives_default(change: TableChange) -> bool:
    """Whether a change gives a column another ``DEFAULT``, or none."""
    return change.kind == "update_column_default" or (change.kind == "add_column" and default_sql(change) is not None)


def refuse_nested_default(path: ObjectPath, change: TableChange) -> None:
    """Refuse a ``DEFAULT`` of a part of a column: Spark fills in none there.

    Raises
    ------
    CatalogError
    """
    if len(change.path) > 1 and gives_default(change):
        raise CatalogError(
            f"{path} was not altered: {'.'.join(change.path)} is a part of a column, and only a whole column has a "
            "DEFAULT.",
            path=path,
        )


def _drop(schema: Schema, change: TableChange) -> DropField | None:
    if change.arguments.get("if_exists"):
        try:
            schema.find(change.path)
        except UnknownFieldError:
            return None
    return DropField(change.path)


def position_of(change: TableChange) -> Position | None:
    """The place of a new or moved column; None if the change names none."""
    place = change.arguments.get("position")
    if not place:
        return None
    return first() if place == "first" else after(place.removeprefix("after:"))

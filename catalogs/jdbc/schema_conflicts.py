"""Rows that were staged for other columns than their table has when they are published (Hudi RFC-82).

PostgreSQL numbers the columns of a table, so that a renamed column is distinguished from another one. In other
databases only names are known: there new columns are all that can be recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import pyarrow as pa

from twophase.catalogs.jdbc.database import Column
from twophase.errors import ConcurrentSchemaEvolutionError
from twophase.model import ObjectPath
from twophase.schema import (
    AddField,
    Field,
    Loss,
    Schema,
    SchemaConflictResolutionStrategy,
    apply_changes,
    classify,
    from_arrow,
)
from twophase.schema.names import fold
from twophase.transactions import failures

_FIELD_ID = "PARQUET:field_id"
_Conflict: TypeAlias = Callable[[str], ConcurrentSchemaEvolutionError]


def places_of_values(
    strategy: SchemaConflictResolutionStrategy,
    path: ObjectPath,
    transaction_id: str,
    *,
    staged: pa.Schema,
    seen: Mapping[str, Any],
    columns: Sequence[Column],
    is_same_table: bool,
    brought: pa.Schema,
) -> dict[str, str]:
    """The column of the table for each column of the rows; none for a column that was dropped.

    Parameters
    ----------
    strategy : SchemaConflictResolutionStrategy
    path : ObjectPath
    transaction_id : str
    staged : pyarrow.Schema
        The table when the statement began.
    seen : mapping
        The same, as :meth:`.Store.seen` has recorded it.
    columns : sequence of Column
        The table now.
    is_same_table : bool
        Whether the database knows that it is not another one of its name.
    brought : pyarrow.Schema
        The columns that the rows bring.

    Raises
    ------
    ConcurrentSchemaEvolutionError
        The rows cannot be placed with certainty, or the strategy refuses to.
    """
    conflict = partial(failures.columns_changed, path, transaction_id)
    types = dict(seen["columns"])
    before, now = _numbers(types, seen.get("numbers") if is_same_table else None, columns, conflict)
    start = _schema(staged, before)
    present = _schema(pa.schema([pa.field(c.name, c.arrow, c.nullable or c.generated) for c in columns]), now)
    written = apply_changes(start, [AddField((field.name,), field.type) for field in brought])
    resolved = strategy.resolve(start, present, written, table=str(path)).schema
    given = {fold(field.name) for field in brought}
    if {fold(node.name) for node in resolved} != {fold(node.name) for node in present} | given:
        raise conflict(", and the strategy asks for others still")
    for column in columns:
        old = start.get(now[column.name])
        if old is None:
            _require_value(column, conflict, is_given=fold(column.name) in given)
        else:
            _require_same(column, conflict, old, types[old.name])
    names = {number: name for name, number in now.items()}
    places = {name: names[number] for name, number in before.items() if number in names}
    if not places:
        raise conflict(": none of those that are written is left")
    spelled = {fold(column.name): column.name for column in columns}
    return places | {field.name: spelled.get(fold(field.name), field.name) for field in brought}


def _numbers(
    types: Mapping[str, str], seen: Sequence[int] | None, columns: Sequence[Column], conflict: _Conflict
) -> tuple[dict[str, int], dict[str, int]]:
    """The numbers of the columns then and now; where the database has none, those of the same name are the same."""
    if seen is not None:
        return dict(zip(types, seen, strict=True)), {column.name: int(column.number or 0) for column in columns}
    if [column.name for column in columns if types.get(column.name) == column.type] != list(types):
        raise conflict(", and a renamed one cannot be distinguished from another one")
    before = dict(zip(types, count(1)))
    others = [column.name for column in columns if column.name not in before]
    return before, {**before, **dict(zip(others, count(len(before) + 1)))}


def _require_value(column: Column, conflict: _Conflict, *, is_given: bool) -> None:
    """Refuse rows that have no value for a column that needs one."""
    if not (is_given or column.nullable or column.generated or column.default is not None):
        raise conflict(f": {column.name} needs a value, which the rows do not have")


def _require_same(column: Column, conflict: _Conflict, old: Field, then: str) -> None:
    """Refuse rows whose values a column cannot hold any more."""
    if then != column.type and not _holds(old.leaf, column.arrow):
        raise conflict(f": the type of {column.name} is {column.type} now, and was {then}")


def _schema(source: pa.Schema, numbers: Mapping[str, int]) -> Schema:
    fields = [field for field in source if field.name in numbers]
    return from_arrow(
        pa.schema([pa.field(f.name, _leaf(f.type), f.nullable, {_FIELD_ID: str(numbers[f.name])}) for f in fields])
    )


def _leaf(kind: pa.DataType) -> pa.DataType:
    """An array of PostgreSQL counts as one value: it has no parts with ids."""
    return pa.string() if pa.types.is_nested(kind) else kind


def _holds(old: pa.DataType | None, new: pa.DataType) -> bool:
    """Whether each value of the old type is one of the new type."""
    return old is not None and classify(old, _leaf(new)) in (Loss.EXACT, Loss.WIDE)

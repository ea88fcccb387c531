"""Execution of a read plan on PyArrow data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from twophase.schema.cast_arrow import cast_array
from twophase.schema.convert_arrow import arrow_field, arrow_type
from twophase.schema.errors import NullabilityError, UnknownFieldError
from twophase.schema.read_field import ReadField
from twophase.schema.schema import Kind, Schema


def project(query: Schema, fields: Sequence[ReadField], table: pa.Table) -> pa.Table:
    """Convert rows of the file to rows of the query; see :meth:`ReadPlan.project`."""
    columns = [_column(query, fields, read, table) for read in fields]
    return pa.table(columns, schema=pa.schema([arrow_field(read.field) for read in fields]))


def _column(query: Schema, fields: Sequence[ReadField], read: ReadField, table: pa.Table) -> pa.ChunkedArray:
    target = arrow_type(read.field)
    if read.source is None:
        _check_constant(query, read, table.num_rows)
        return pa.chunked_array([_constant(read, table.num_rows)], type=target)
    name = read.source.name
    if name not in table.column_names:
        wanted = [read.source.name for read in fields if read.source is not None]
        raise UnknownFieldError(
            f"The table to project has no column {name}.",
            field_path=name,
            new_type=read.source.type_name,
            allowed=(f"a table with the columns {', '.join(wanted)}",),
        )
    chunks = [_convert(query, read, chunk, None) for chunk in table.column(name).chunks]
    return pa.chunked_array(chunks, type=target)


def _check_constant(query: Schema, read: ReadField, rows: int) -> None:
    if rows and read.constant is None and not read.field.nullable:
        raise _null_error(query, read, rows)


def _null_error(query: Schema, read: ReadField, count: int) -> NullabilityError:
    path = query.name_of(read.field.id)
    return NullabilityError(
        f"{path} is NOT NULL, and {count} rows hold NULL there.",
        field_path=path,
        old_type=read.field.type_name,
        new_type=f"{read.field.type_name} NOT NULL",
        allowed=("ChangeNullability(nullable=True)", "rewriting those rows"),
    )


def _constant(read: ReadField, length: int) -> pa.Array:
    target = arrow_type(read.field)
    return pa.nulls(length, target) if read.constant is None else pa.repeat(read.constant, length)


def _convert(query: Schema, read: ReadField, values: Any, inside: Any) -> Any:
    """Convert values of one field; ``inside`` is true where the enclosing struct is not NULL (None: everywhere)."""
    if read.source is None:
        if inside is None or pc.any(inside).as_py():
            _check_constant(query, read, len(values))
        return _constant(read, len(values))
    converted = _CONVERTERS[read.field.kind](query, read, values)
    if not read.field.nullable:
        _check_nulls(query, read, converted, inside)
    return converted


def _check_nulls(query: Schema, read: ReadField, values: Any, inside: Any) -> None:
    if not values.null_count:
        return
    wrong = pc.is_null(values) if inside is None else pc.and_(pc.is_null(values), inside)
    if count := pc.sum(wrong).as_py():
        raise _null_error(query, read, count)


def _leaf(query: Schema, read: ReadField, values: Any) -> Any:
    for _, new, mode in read.steps:
        values = cast_array(values, new, mode, query.name_of(read.field.id))
    return values


def _struct(query: Schema, read: ReadField, values: Any) -> Any:
    inside = pc.is_valid(values) if values.null_count else None
    present = {values.type.field(i).name: i for i in range(values.type.num_fields)}
    children = []
    for child in read.children:
        # For a child that is missing in the file only the length is needed, which is that of the struct.
        below = values if child.source is None else values.field(present[child.source.name])
        children.append(_convert(query, child, below, inside))
    fields = list(arrow_type(read.field))
    mask = None if inside is None else pc.invert(inside)
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _list(query: Schema, read: ReadField, values: Any) -> Any:
    (element,) = read.children
    converted = _convert(query, element, values.flatten(), None)
    return pa.ListArray.from_arrays(_offsets(values), converted, type=arrow_type(read.field))


def _map(query: Schema, read: ReadField, values: Any) -> Any:
    key, value = read.children
    pairs = values.cast(pa.list_(pa.struct([values.type.key_field, values.type.item_field])))
    flat = pairs.flatten()
    keys = _convert(query, key, flat.field(0), None)
    items = _convert(query, value, flat.field(1), None)
    return pa.MapArray.from_arrays(_offsets(pairs), keys, items, type=arrow_type(read.field))


def _offsets(values: Any) -> Any:
    """Offsets of lists in the flattened values; NULL for a NULL list. Correct for slices, too."""
    lengths = pc.fill_null(pc.list_value_length(values), 0).cast(pa.int32())
    ends = pc.cumulative_sum(lengths).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    if not values.null_count:
        return offsets
    valid = pa.concat_arrays([pc.is_valid(values), pa.array([True])])
    return pc.if_else(valid, offsets, pa.scalar(None, pa.int32()))


_CONVERTERS = {Kind.LEAF: _leaf, Kind.STRUCT: _struct, Kind.LIST: _list, Kind.MAP: _map}

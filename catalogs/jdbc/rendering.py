"""Vectorized conversion of Arrow columns to texts for COPY and INSERT statements."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from twophase.errors import CatalogError

_is = pa.types


def plain(batch: pa.RecordBatch) -> list[tuple[pa.Field, pa.Array]]:
    """The columns of a batch with their fields, dictionaries and views unpacked."""
    return [(field, _unpacked(column)) for field, column in zip(batch.schema, batch.columns, strict=True)]


def _unpacked(column: pa.Array) -> pa.Array:
    if _is.is_dictionary(column.type):
        return column.dictionary_decode()
    if _is.is_string_view(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if _is.is_binary_view(column.type) else column


def refuse_not_finite(field: pa.Field, column: pa.Array, title: str, *, infinities: bool) -> None:
    """Refuse NaN, and with ``infinities`` infinities too, in a database that would change or reject them.

    Raises
    ------
    CatalogError
        The message names the column.
    """
    if not _is.is_floating(column.type):
        return
    bad = pc.invert(pc.is_finite(column)) if infinities else pc.is_nan(column)
    if pc.any(bad).as_py():
        what = "NaN or an infinity" if infinities else "NaN"
        raise CatalogError(
            f"Column {field.name!r} holds {what}, which {title} cannot store.",
            hint="Replace it in the query, for instance with nanvl or nullif.",
        )


def is_binary(kind: pa.DataType) -> bool:
    """Whether values of a type are bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def utc(column: pa.Array) -> pa.Array:
    """Convert instants to wall-clock times in UTC; all timestamps to microseconds."""
    return column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))


def decimals(column: pa.Array) -> pa.Array:
    """Convert decimals to texts."""
    return column.cast(pa.string())


def by_value(column: pa.Array, render: Callable[[object], str]) -> pa.Array:
    """Convert values one by one, if there is no vectorized way."""
    return pa.array([None if value is None else render(value) for value in column.to_pylist()], pa.string())


def as_bytes(value: object) -> bytes:
    """Narrow a binary value to bytes."""
    assert isinstance(value, bytes)
    return value

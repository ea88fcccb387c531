"""Rows of the chaos catalog: small Arrow tables, stored as text in a JSON document."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from twophase.errors import CatalogError
from twophase.model import OverwriteScope


def to_arrow(df: Any, schema: pa.Schema) -> pa.Table:
    """Convert the rows of ``df`` to the types of ``schema``, with columns matched by position.

    Parameters
    ----------
    df : pyarrow.Table or anything with ``toArrow()``
        For example a PySpark DataFrame. It **collects**: fine for a test double, forbidden in a real catalog.
    """
    table = df if isinstance(df, pa.Table) else df.toArrow()
    if table.num_columns != len(schema):
        raise CatalogError(f"The rows have {table.num_columns} columns, the table has {len(schema)}.")
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def encode(table: pa.Table) -> str:
    """Encode a table as text: an Arrow IPC stream in base64."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


def decode(text: str) -> pa.Table:
    """Decode the text from :func:`encode`."""
    return pa.ipc.open_stream(base64.b64decode(text)).read_all()


def appended(old: pa.Table, new: pa.Table) -> pa.Table:
    """Return the old rows, then the new ones, in the types of the old rows."""
    return pa.concat_tables([old, new.cast(old.schema)])


def overwritten(old: pa.Table, new: pa.Table, scope: OverwriteScope, partition_columns: Sequence[str]) -> pa.Table:
    """Return the old rows, with those in the scope replaced by the new ones."""
    if scope.dynamic and partition_columns:
        gone = set(_keys(new, partition_columns))
    elif scope.static_partition:
        columns = list(scope.static_partition)
        return _without(old, new, columns, {tuple(scope.static_partition[c] for c in columns)})
    else:
        return new
    return _without(old, new, partition_columns, gone)


def _without(old: pa.Table, new: pa.Table, columns: Sequence[str], gone: set[tuple[str | None, ...]]) -> pa.Table:
    stays = pa.array([key not in gone for key in _keys(old, columns)], pa.bool_())
    return appended(old.filter(stays), new)


def _keys(table: pa.Table, columns: Sequence[str]) -> list[tuple[str | None, ...]]:
    rows = table.select(list(columns)).to_pylist()
    return [tuple(_as_directory_value(row[column]) for column in columns) for row in rows]


def _as_directory_value(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)

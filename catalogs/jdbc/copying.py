"""Rows into PostgreSQL by ``COPY``: binary where every column has such a form, else CSV."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv

from twophase.catalogs.jdbc import rendering
from twophase.errors import CatalogError

_is = pa.types


def copy(
    driver: Any, table: str, quote: Callable[[str], str], columns: Mapping[str, str], batches: Iterable[pa.RecordBatch]
) -> int:
    """Append batches to a table, in the transaction of a connection of psycopg's; the number of rows.

    Parameters
    ----------
    driver : psycopg.Connection
    table : str
        Its quoted name.
    quote : callable
        Quotes a column's name.
    columns : mapping of str to str
        Names of the rows' columns, in their order, and what the database calls their types.
    batches : iterable of pyarrow.RecordBatch
        All of one schema.
    """
    ready = (_plain(batch) for batch in batches)
    first = next(ready, None)
    if first is None:
        return 0
    way, make = ("binary", binary) if takes_binary(first.schema, columns) else ("csv", texts)
    names, rows = ", ".join(quote(name) for name in columns), 0
    with (
        driver.cursor() as cursor,
        cursor.copy(f"COPY {table} ({names}) FROM STDIN (FORMAT {way})") as copying,
    ):
        for count, data in make(first.schema, itertools.chain([first], ready)):
            rows += count
            copying.write(data)
    return rows


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = rendering.plain(batch)
    return pa.RecordBatch.from_arrays([column for _, column in columns], [field.name for field, _ in columns])


# -- binary ------------------------------------------------------------------------------------------------------------


def takes_binary(schema: pa.Schema, columns: Mapping[str, str]) -> bool:
    """Whether pgpq is there, and makes just the form of each column's type: COPY converts none.

    Parameters
    ----------
    schema : pyarrow.Schema
    columns : mapping of str to str
        What the database calls the types of the columns, in the order of the schema's.
    """
    if find_spec("pgpq") is None:
        return False
    return all(
        kind.partition("(")[0] in _forms(field.type) for field, kind in zip(schema, columns.values(), strict=True)
    )


def binary(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Batches in COPY's binary format, each with its number of rows."""
    from pgpq import ArrowToPostgresBinaryEncoder

    # Columns have numbers here: pgpq looks for a column by its name.
    names = [str(number) for number in range(len(schema))]
    encoder = ArrowToPostgresBinaryEncoder(pa.schema(zip(names, schema.types, strict=True)))
    yield 0, encoder.write_header()
    for batch in batches:
        try:
            data = encoder.write_batch(batch.rename_columns(names))
        except ValueError as error:  # A date or time that is out of PostgreSQL's range.
            raise CatalogError(f"A value cannot be stored in PostgreSQL: {error}") from None
        yield batch.num_rows, data
    yield 0, encoder.finish()


def _forms(kind: pa.DataType) -> tuple[str, ...]:
    """Column types whose binary form pgpq makes of an Arrow type."""
    for test, names in _BINARY:
        if test(kind):
            return names
    return ()


_BINARY: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (_is.is_boolean, ("boolean",)),
    (lambda k: _is.is_int8(k) or _is.is_int16(k), ("smallint",)),
    (_is.is_int32, ("integer",)),
    (_is.is_int64, ("bigint",)),
    (_is.is_float32, ("real",)),
    (_is.is_float64, ("double precision",)),
    (lambda k: _is.is_decimal128(k) and k.scale >= 0, ("numeric",)),
    (lambda k: _is.is_string(k) or _is.is_large_string(k), ("text", "character varying")),
    (lambda k: _is.is_binary(k) or _is.is_large_binary(k), ("bytea",)),
    (_is.is_date32, ("date",)),
    (lambda k: _is.is_timestamp(k) and k.unit == "us" and k.tz is not None, ("timestamp with time zone",)),
    (lambda k: _is.is_timestamp(k) and k.unit == "us" and k.tz is None, ("timestamp without time zone",)),
    (lambda k: _is.is_time64(k) and k.unit == "us", ("time without time zone",)),
)


# -- CSV ---------------------------------------------------------------------------------------------------------------
#: A text is always quoted, so that an empty one is not NULL, which is not.
_CSV = pcsv.WriteOptions(include_header=False, quoting_style="needed")


def texts(_: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, memoryview]]:
    """Batches as COPY's CSV, each with its number of rows."""
    for batch in batches:
        yield batch.num_rows, _as_csv(batch)


def _as_csv(batch: pa.RecordBatch) -> memoryview:
    columns = [_csv_column(column) for column in batch.columns]
    names = [str(number) for number in range(len(columns))]
    sink = pa.BufferOutputStream()
    pcsv.write_csv(pa.RecordBatch.from_arrays(columns, names), sink, _CSV)
    return memoryview(sink.getvalue())


def _csv_column(column: pa.Array) -> pa.Array:
    kind = column.type
    if rendering.is_binary(kind):
        return rendering.by_value(column, lambda value: "\\x" + rendering.as_bytes(value).hex())
    if _is.is_decimal(kind):
        return rendering.decimals(column)
    if _is.is_list(kind) or _is.is_large_list(kind):
        return rendering.by_value(column, _array)
    return column


def _array(value: Any) -> str:
    """An array as PostgreSQL writes it."""
    return "{" + ",".join(_element(element) for element in value) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "t" if value else "f"
    text = "\\x" + value.hex() if isinstance(value, bytes) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

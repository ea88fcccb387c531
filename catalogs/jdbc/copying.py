"""Rows into PostgreSQL by ``COPY``: binary if the types of all columns allow it, otherwise CSV."""

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
    """Append batches to a table, in the transaction of a psycopg connection; return the number of rows.

    Parameters
    ----------
    driver : psycopg.Connection
    table : str
        The table's quoted name.
    quote : callable
        Function that quotes a column's name.
    columns : mapping of str to str
        Names of the rows' columns, in their order, with the database's types.
    batches : iterable of pyarrow.RecordBatch
        Batches of the same schema.
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
    """Whether pgpq is installed and encodes exactly the type of each column: a binary COPY converts no types.

    Parameters
    ----------
    schema : pyarrow.Schema
    columns : mapping of str to str
        The database's types of the columns, in the schema's order.
    """
    if find_spec("pgpq") is None:
        return False
    return all(
        kind.partition("(")[0] in _forms(field.type) for field, kind in zip(schema, columns.values(), strict=True)
    )


def binary(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Encode batches in COPY's binary format, each with its number of rows."""
    from pgpq import ArrowToPostgresBinaryEncoder

    # Numbers as column names, because pgpq looks columns up by name.
    names = [str(number) for number in range(len(schema))]
    encoder = ArrowToPostgresBinaryEncoder(pa.schema(zip(names, schema.types, strict=True)))
    yield 0, encoder.write_header()
    for batch in batches:
        try:
            data = encoder.write_batch(batch.rename_columns(names))
        except ValueError as error:  # A date or time outside PostgreSQL's range.
            raise CatalogError(f"A value cannot be stored in PostgreSQL: {error}") from None
        yield batch.num_rows, data
    yield 0, encoder.finish()


def _forms(kind: pa.DataType) -> tuple[str, ...]:
    """Column types for which pgpq's encoding of an Arrow type is valid."""
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
#: Texts are always quoted, to distinguish an empty text from NULL, which is not quoted.
_CSV = pcsv.WriteOptions(include_header=False, quoting_style="needed")


def texts(_: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, memoryview]]:
    """Encode batches as COPY's CSV, each with its number of rows."""
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
    """Format an array as PostgreSQL does."""
    return "{" + ",".join(_element(element) for element in value) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "t" if value else "f"
    text = "\\x" + value.hex() if isinstance(value, bytes) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

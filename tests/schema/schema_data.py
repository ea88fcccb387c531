"""Values with sharp edges for each family, and small helpers to read and write them."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twophase.schema import Schema, assign_ids, to_arrow
from twophase.schema.promotion import SAMPLE_TYPES

UTC = dt.UTC

#: One type for each family, and a second decimal that is narrow enough to overflow.
TYPES: dict[str, pa.DataType] = {
    **SAMPLE_TYPES,
    "small_decimal": pa.decimal128(5, 2),
    "long_decimal": pa.decimal128(20, 0),
}

VALUES: dict[str, list[Any]] = {
    "null": [],
    "boolean": [True, False],
    "byte": [1, -128, 127],
    "short": [1, -32768, 300],
    "int": [1, 2**31 - 1, -(2**31), -5, 2**24 + 1],
    "long": [1, 2**63 - 1, -(2**63), 2**53 + 1, 123456],
    "float": [1.5, -0.1, 1e10, 3.4e38, math.nan, 1e-5, 123.0, math.inf, -0.0, 16777216.0],
    "double": [1.5, -0.1, 1e10, 1e300, math.nan, 1e-5, 123.0, -math.inf, 0.005, 9.3e18, 2.5, 999.995],
    "decimal": [
        Decimal("1.500000000000000000"),
        Decimal("-12345678901234567890.123456789012345678"),
        Decimal("0.000000010000000000"),
        Decimal("99999.999999999999999999"),
        Decimal("-0.500000000000000000"),
        Decimal("0"),
    ],
    "small_decimal": [Decimal("1.50"), Decimal("-999.99"), Decimal("0.00"), Decimal("127.99")],
    "long_decimal": [Decimal(2**63 - 1), Decimal(2**63), Decimal(-(2**63)), Decimal(2**53 + 1)],
    "string": [
        *("1", "-7", " 42 ", "1.5", "1e3", "abc", "", "2020-01-02", "2020-1-2", "2021", "true", "N", "Infinity"),
        *("nan", "99999999999", "0.00000001", "2020-02-30", " 2020-01-02T01:00", "1d", "0x10", "+5", "1_0", "\u0661"),
        *("2020-01-02 foo", ".5", "5.", "-", "it's \\ ok"),
    ],
    "binary": [b"abc", b"\xff\xfe", b""],
    "date": [dt.date(2020, 1, 2), dt.date(1, 1, 1), dt.date(1969, 12, 31)],
    "timestamp": [
        dt.datetime(2020, 11, 1, 5, 30, tzinfo=UTC),
        dt.datetime(2020, 11, 1, 6, 30, 0, 120000, tzinfo=UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    "timestamp_ntz": [
        dt.datetime(2020, 11, 1, 5, 30),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
        dt.datetime(2020, 1, 1, 0, 0, 0, 100),
    ],
    "time": [dt.time(1, 2, 3), dt.time(1, 2, 3, 400000), dt.time(0, 0)],
}

ROWS = max(map(len, VALUES.values()))


def edge_values() -> tuple[Schema, pa.Table]:
    """One column for each type, filled up with NULL."""
    schema = assign_ids(pa.schema(list(TYPES.items())))
    columns = [pa.array([*VALUES[name], *[None] * (ROWS - len(VALUES[name]))], TYPES[name]) for name in TYPES]
    return schema, pa.table(columns, schema=to_arrow(schema))


def comparable(values: list[Any]) -> list[str]:
    """Values as text, so that NaN equals NaN and -0.0 does not equal 0.0."""
    return [repr(value) for value in values]


def rows_table(schema: Schema, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as PyArrow data of a schema, ids included."""
    arrow = to_arrow(schema)
    return pa.table([pa.array([row.get(f.name) for row in rows], f.type) for f in arrow], schema=arrow)


def write_rows(path: Path, schema: Schema, rows: list[dict[str, Any]]) -> Path:
    """Rows as a Parquet file that carries the schema's ids."""
    pq.write_table(rows_table(schema, rows), path)
    return path

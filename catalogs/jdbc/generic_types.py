"""Types and values between Arrow and SQLAlchemy, for databases known by dialect only."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import CompileError

from twophase.catalogs.jdbc import rendering

_is = pa.types

#: More digits than any decimal of Spark has.
_DIGITS = Context(prec=60)


def type_text(kind: Any, dialect: Any) -> str:
    try:
        return str(kind.compile(dialect=dialect))
    except CompileError:
        return ""


def without_collation(kind: Any) -> Any:
    """Remove the collation, as a new column uses the table's own, and integer widths, except of MySQL's boolean."""
    for word in ("collation", "charset", "display_width"):
        if getattr(kind, word, None) not in (None, 1):
            setattr(kind, word, None)
    return kind


def sqlalchemy_type(kind: pa.DataType) -> Any:
    """The SQLAlchemy type for an Arrow type; None if there is none."""
    return next((make(kind) for test, make in _TYPES if test(kind)), None)


_TYPES: tuple[tuple[Any, Any], ...] = (
    (_is.is_boolean, lambda k: sa.Boolean()),
    (lambda k: _is.is_int8(k) or _is.is_int16(k) or _is.is_uint8(k), lambda k: sa.SmallInteger()),
    (lambda k: _is.is_int32(k) or _is.is_uint16(k), lambda k: sa.Integer()),
    (lambda k: _is.is_int64(k) or _is.is_uint32(k), lambda k: sa.BigInteger()),
    (lambda k: _is.is_float16(k) or _is.is_float32(k), lambda k: sa.REAL()),
    (_is.is_float64, lambda k: sa.Double()),
    (lambda k: _is.is_decimal(k) and 0 <= k.scale <= k.precision, lambda k: sa.Numeric(k.precision, k.scale)),
    (lambda k: _is.is_string(k) or _is.is_large_string(k), lambda k: sa.Text()),
    (lambda k: _is.is_binary(k) or _is.is_large_binary(k), lambda k: sa.LargeBinary()),
    (_is.is_date, lambda k: sa.Date()),
    (lambda k: _is.is_timestamp(k) and k.tz is not None, lambda k: sa.TIMESTAMP(timezone=True)),
    (_is.is_timestamp, lambda k: sa.DateTime()),
)

#: SQLAlchemy's classes, subclasses before base classes.
_ARROW: tuple[tuple[Any, pa.DataType], ...] = (
    (sa.Boolean, pa.bool_()),
    (sa.SmallInteger, pa.int16()),
    (sa.BigInteger, pa.int64()),
    (sa.Integer, pa.int32()),
    (sa.REAL, pa.float32()),
    (sa.Float, pa.float64()),
    (sa.Date, pa.date32()),
    (sa.LargeBinary, pa.binary()),
    (sa.types._Binary, pa.binary()),
)


def arrow_type(kind: Any) -> pa.DataType:
    if getattr(kind, "display_width", None) == 1:
        return pa.bool_()
    if isinstance(kind, sa.DateTime):
        return pa.timestamp("us", tz="UTC" if kind.timezone else None)
    for known, arrow in _ARROW:
        if isinstance(kind, known):
            return arrow
    if isinstance(kind, sa.Numeric):
        precision, scale = kind.precision or 38, kind.scale if kind.scale is not None else 18
        return pa.decimal128(precision, scale) if scale <= precision <= 38 else pa.string()
    return pa.string()


_OF_DUCKDB: Mapping[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
}


def duckdb_arrow_type(kind: str) -> pa.DataType:
    if found := re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", kind):  # Not a list of them.
        return pa.decimal128(int(found[1]), int(found[2]))
    return _OF_DUCKDB.get(kind, pa.string())


def driver_values(column: pa.Array) -> list[Any]:
    if _is.is_timestamp(column.type):
        instants = rendering.utc(column).to_pylist()
        if column.type.tz is None:
            return instants
        return [None if value is None else value.replace(tzinfo=datetime.UTC) for value in instants]
    return column.to_pylist()


def arrow_value(value: Any, kind: Any) -> Any:
    """Convert a driver's value, of whatever Python type, to the form that Arrow takes."""
    if _is.is_timestamp(kind):
        moment = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
        if moment.tzinfo is not None:
            return moment.astimezone(datetime.UTC).replace(tzinfo=datetime.UTC if kind.tz else None)
        return moment.replace(tzinfo=datetime.UTC) if kind.tz else moment
    make: Mapping[Any, Any] = _MAKE
    for test, work in make.items():
        if test(kind):
            return work(value, kind)
    return value


_MAKE: Mapping[Any, Any] = {
    _is.is_boolean: lambda value, _: bool(value),
    _is.is_decimal: lambda value, kind: Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale), context=_DIGITS),
    _is.is_floating: lambda value, _: float(value),
    _is.is_binary: lambda value, _: bytes(value),
    _is.is_string: lambda value, _: value if isinstance(value, str) else str(value),
}

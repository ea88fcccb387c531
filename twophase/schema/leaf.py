"""Leaf types: the supported PyArrow types, their text form, and their family, which determines casts."""

from __future__ import annotations

import re
from functools import cache, lru_cache

import pyarrow as pa

from twophase.schema.errors import UnsupportedTypeError

_PLAIN: dict[str, pa.DataType] = {
    str(t): t
    for t in (
        *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.date32(), pa.date64()),
        *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
        *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    )
}
if hasattr(pa, "uuid"):
    _PLAIN[str(pa.uuid())] = pa.uuid()

_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (-?\d+)\)")
_FIXED = re.compile(r"fixed_size_binary\[(\d+)\]")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=(.+)\]")

_WAYS = ("a plain type of PyArrow, decimals of up to 76 digits",)

#: Metadata key for Spark's name of a type that is a wider one in PyArrow (``varchar(10)`` is a string).
SPARK_TYPE = "SPARK:type"

#: Names of the families in error messages and the documentation.
FAMILIES = (
    *("null", "boolean", "byte", "short", "int", "long", "float", "double", "decimal"),
    *("string", "binary", "date", "timestamp", "timestamp_ntz", "time"),
)

_FAMILY: dict[str, str] = {
    "null": "null",
    "bool": "boolean",
    "int8": "byte",
    "int16": "short",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date",
    "timestamp[us]": "timestamp_ntz",
    "time64[us]": "time",
}


def parse_leaf(text: str, path: str | None = None) -> pa.DataType:
    """Parse a type from the text form of :func:`format_leaf`.

    Raises
    ------
    UnsupportedTypeError
        The text is not a type that a field may have.
    """
    if (plain := _PLAIN.get(text)) is not None:
        return plain
    try:
        if match := _DECIMAL.fullmatch(text):
            make = pa.decimal128 if match[1] == "128" else pa.decimal256
            return make(int(match[2]), int(match[3]))
        if match := _FIXED.fullmatch(text):
            return pa.binary(int(match[1]))
    except ValueError as error:
        raise UnsupportedTypeError(
            f"{text!r} is no type: {error}.", field_path=path, new_type=text, allowed=_WAYS
        ) from error
    if match := _ZONED.fullmatch(text):
        return pa.timestamp(match[1], match[2])
    raise UnsupportedTypeError(
        f"{text!r} names no type that a field may have.", field_path=path, new_type=text, allowed=_WAYS
    )


@lru_cache(maxsize=4096)
def _canonical_text(data_type: pa.DataType) -> str:
    text = str(data_type)
    parse_leaf(text)
    return text


def format_leaf(data_type: pa.DataType) -> str:
    """The text form of a leaf type, which is PyArrow's own.

    Raises
    ------
    UnsupportedTypeError
        A field cannot have this type (dictionary, union, view, 32- and 64-bit decimals, ...).
    """
    return str(_canonical_text(data_type))


@cache
def _family_of(text: str) -> str | None:
    if text.startswith("decimal128("):
        return "decimal"
    if text.startswith("timestamp[us, tz="):
        return "timestamp"
    return _FAMILY.get(text)


def family(data_type: pa.DataType) -> str | None:
    """The family of a leaf type, one of :data:`FAMILIES`; None for types that are only stored and cannot be cast."""
    return _family_of(str(data_type))


def is_nested(data_type: pa.DataType) -> bool:
    """Return True if a type has child fields."""
    return bool(pa.types.is_nested(data_type))


def type_name(data_type: pa.DataType) -> str:
    """The name of a type in error messages: its family, or PyArrow's text if it has none."""
    if pa.types.is_struct(data_type):
        return "struct"
    if pa.types.is_map(data_type):
        return "map"
    if is_nested(data_type):
        return "list" if pa.types.is_list(data_type) else str(data_type)
    kind = family(data_type)
    if kind == "decimal":
        return f"decimal({data_type.precision},{data_type.scale})"
    return kind or str(data_type)

"""Default values: type checks, comparison, and text form.

A default is a :class:`pyarrow.Scalar` of exactly the field's type; documents contain its text form.
"""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

import pyarrow as pa

from twophase.schema.errors import DefaultValueError, UnsupportedTypeError
from twophase.schema.leaf import is_nested, type_name


def as_default(value: Any, data_type: pa.DataType, path: str) -> pa.Scalar | None:
    """Convert a value to a scalar of a type; None (no default) stays None.

    Raises
    ------
    DefaultValueError
        The type cannot represent the value exactly, or is nested.
    """
    if value is None:
        return None
    if is_nested(data_type):
        raise DefaultValueError(
            f"The field {path} is a {type_name(data_type)}: only its leaves may have a default.",
            field_path=path,
            old_type=_name_of(value),
            new_type=type_name(data_type),
            allowed=("a default on a leaf field", "no default (NULL)"),
        )
    try:
        scalar = _to_scalar(value, data_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DefaultValueError(
            f"The default {value!r} of {path} is no {type_name(data_type)}: {error}.",
            field_path=path,
            old_type=_name_of(value),
            new_type=type_name(data_type),
            allowed=(f"a value of type {type_name(data_type)}",),
        ) from error
    return scalar if scalar.is_valid else None


def _name_of(value: Any) -> str:
    return type_name(value.type) if isinstance(value, pa.Scalar) else type(value).__name__


def _to_scalar(value: Any, data_type: pa.DataType) -> pa.Scalar:
    if isinstance(value, pa.Scalar):
        return value if value.type == data_type else value.cast(data_type)
    if isinstance(value, int) and not isinstance(value, bool) and pa.types.is_decimal(data_type):
        value = Decimal(value)
    if isinstance(value, bool) != pa.types.is_boolean(data_type):
        raise TypeError(f"a {type(value).__name__} was given")
    return pa.scalar(value, type=data_type)


def default_key(value: Any) -> Any:
    """A key for comparing defaults: NaN equals NaN, as otherwise a schema would differ from itself."""
    plain = value.as_py() if isinstance(value, pa.Scalar) and pa.types.is_floating(value.type) else value
    if isinstance(plain, float) and plain != plain:
        return "NaN", str(value.type) if isinstance(value, pa.Scalar) else "float"
    return value


def format_default(scalar: pa.Scalar, path: str) -> str:
    """The text form of a default, which :func:`parse_default` parses.

    Raises
    ------
    UnsupportedTypeError
        The type has no text form (half floats).
    """
    data_type = scalar.type
    if isinstance(scalar, pa.ExtensionScalar):
        return base64.b64encode(scalar.value.as_py()).decode()
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type) or pa.types.is_fixed_size_binary(data_type):
        return base64.b64encode(scalar.as_py()).decode()
    if pa.types.is_duration(data_type):
        return str(scalar.cast(pa.int64()).as_py())
    if pa.types.is_floating(data_type):
        return _format_float(scalar, path)
    if pa.types.is_timestamp(data_type):
        scalar = scalar.cast(pa.int64()).cast(pa.timestamp(data_type.unit))
    return str(scalar.cast(pa.string()).as_py())


def _format_float(scalar: pa.Scalar, path: str) -> str:
    if pa.types.is_float16(scalar.type):
        raise UnsupportedTypeError(
            f"The default of {path} is a halffloat, which has no text form.",
            field_path=path,
            old_type="halffloat",
            new_type="text",
            allowed=("ChangeDefault(path, None)", "a field of type float"),
        )
    return str(scalar.cast(pa.string()).as_py()) if pa.types.is_float32(scalar.type) else repr(scalar.as_py())


def parse_default(text: str, data_type: pa.DataType, path: str) -> pa.Scalar:
    """Parse a default from the text form of :func:`format_default`.

    Raises
    ------
    DefaultValueError
        The text is not a value of the type.
    """
    try:
        return _parse(text, data_type)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise DefaultValueError(
            f"The default {text!r} of {path} is no {type_name(data_type)}: {error}.",
            field_path=path,
            old_type="text",
            new_type=type_name(data_type),
            allowed=(f"the text of a {type_name(data_type)}, as format_default writes it",),
        ) from error


def _parse(text: str, data_type: pa.DataType) -> pa.Scalar:
    if isinstance(data_type, pa.BaseExtensionType):
        return pa.ExtensionScalar.from_storage(data_type, _parse(text, data_type.storage_type))
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type) or pa.types.is_fixed_size_binary(data_type):
        return pa.scalar(base64.b64decode(text, validate=True), type=data_type)
    if pa.types.is_duration(data_type):
        return pa.scalar(int(text), type=pa.int64()).cast(data_type)
    if pa.types.is_timestamp(data_type):
        naive = pa.scalar(text).cast(pa.timestamp(data_type.unit))
        return naive.cast(pa.int64()).cast(data_type)
    if pa.types.is_time(data_type):
        # PyArrow parses timestamps, but not times.
        return pa.scalar(f"1970-01-01 {text}").cast(pa.timestamp(data_type.unit)).cast(data_type)
    return pa.scalar(text).cast(data_type)

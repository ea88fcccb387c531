"""Casts of PyArrow values with exactly the results of Spark's ``try_cast``.

Exact casts are PyArrow's own. Where the two engines differ (text of a double, rounding of a decimal, spaces around a
number), values are computed here as in Spark; only such lossy casts need a pass in Python, over the distinct values.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from twophase.schema import cast_text
from twophase.schema.errors import CastError, TypeChangeError
from twophase.schema.leaf import family, type_name
from twophase.schema.promotion import Loss, classify

#: Digits that fit every intermediate value of a decimal cast.
_WIDEST = 76


def cast_array(values: Any, new: pa.DataType, on_cast_failure: str, path: str) -> Any:
    """Cast values to another type.

    Parameters
    ----------
    values : pyarrow.Array or pyarrow.ChunkedArray
    new : pyarrow.DataType
    on_cast_failure : str
        ``error`` or ``null``.
    path : str
        Path of the field, for the error.

    Raises
    ------
    CastError
        A value does not fit the new type, and ``on_cast_failure`` is ``error``.
    TypeChangeError
        There is no such cast.
    """
    old = values.type
    loss = classify(old, new)
    if loss is Loss.SAME:
        return values
    if loss is Loss.IMPOSSIBLE:
        raise TypeChangeError(
            f"The values of {path} cannot be read as {type_name(new)}: they are {type_name(old)}.",
            field_path=path,
            old_type=type_name(old),
            new_type=type_name(new),
            allowed=("a type in between (through=...)", "rewriting the values"),
        )
    if loss <= Loss.WIDE and family(new) != "decimal":
        return values.cast(new)
    result = _try_cast(values, old, new)
    if on_cast_failure == "error" and result.null_count > values.null_count:
        raise _failure(values, result, old, new, path)
    return result


def cast_scalar(scalar: pa.Scalar | None, new: pa.DataType, on_cast_failure: str, path: str) -> pa.Scalar | None:
    """Cast a default to another type; None if there is none, or if it does not fit."""
    if scalar is None:
        return None
    values = pa.array([scalar.as_py()], type=scalar.type)
    result = cast_array(values, new, on_cast_failure, path)[0]
    return result if result.is_valid else None


def _failure(values: Any, result: Any, old: pa.DataType, new: pa.DataType, path: str) -> CastError:
    failed = pc.and_(pc.is_valid(values), pc.is_null(result))
    bad = values.filter(failed)
    return CastError(
        f"{len(bad)} values of {path} are no {type_name(new)}, the first is {bad[0].as_py()!r} ({type_name(old)}).",
        field_path=path,
        old_type=type_name(old),
        new_type=type_name(new),
        allowed=("on_cast_failure='null'", f"a wider type than {type_name(new)}"),
    )


def _try_cast(values: Any, old: pa.DataType, new: pa.DataType) -> Any:
    source, target = family(old) or "", family(new) or ""
    if target == "string":
        return _to_string(values, source, new)
    if source == "string":
        return values.cast(new) if target == "binary" else _from_string(values, target, new)
    if target == "decimal":
        return _to_decimal(values, source, new)
    if source == "decimal" and target in ("float", "double"):
        # Through text, as PyArrow's own cast does not always round to the nearest.
        return values.cast(pa.string()).cast(new)
    if target in ("float", "double"):
        return values.cast(new, safe=False)
    if target == "date":
        return pc.floor_temporal(values, unit="day").cast(pa.date32())
    return _to_integer(values, source, new)


def _to_integer(values: Any, source: str, new: pa.DataType) -> Any:
    """Round toward zero; NULL if out of range."""
    bits = new.bit_width
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    if source in ("float", "double"):
        whole = pc.trunc(values)
        # 2**63 - 1 is not a double, but 2**63 is: it is the exclusive bound.
        fits = pc.and_(pc.greater_equal(whole, float(low)), pc.less(whole, float(high + 1)))
    elif source == "decimal":
        whole = pc.round(_widest(values), 0, round_mode="towards_zero")
        fits = _within(whole, low, high)
    else:
        whole = values
        fits = _within(whole.cast(pa.int64()), low, high)
    return _where(fits, whole).cast(new, safe=False)


def _to_decimal(values: Any, source: str, new: pa.DataType) -> Any:
    if source in ("float", "double"):
        return _by_value(values, lambda value: cast_text.float_to_decimal(value, new), new)
    if source == "decimal":
        exact = _widest(values)
        if new.scale < values.type.scale:
            exact = pc.round(exact, new.scale, round_mode="half_towards_infinity")
    else:
        exact = values.cast(pa.int64()).cast(pa.decimal256(_WIDEST, 0))
    limit = 10 ** (new.precision - new.scale)
    # Strictly within the limit, compared by the digits before the decimal point: 9 for 9.99.
    fits = _within(pc.round(exact, 0, round_mode="towards_zero"), -limit + 1, limit - 1)
    return _where(fits, exact).cast(pa.decimal256(_WIDEST, new.scale)).cast(new)


def _widest(values: Any) -> Any:
    return values.cast(pa.decimal256(_WIDEST, values.type.scale))


def _within(whole: Any, low: int, high: int) -> Any:
    make = Decimal if pa.types.is_decimal(whole.type) else int
    lower, upper = (pa.scalar(make(bound), whole.type) for bound in (low, high))
    return pc.and_(pc.greater_equal(whole, lower), pc.less_equal(whole, upper))


def _where(condition: Any, values: Any) -> Any:
    return pc.if_else(condition, values, pa.scalar(None, values.type))


def _to_string(values: Any, source: str, new: pa.DataType) -> Any:
    if source in ("float", "double"):
        return _by_value(values, _java_text(values), new)
    if source == "decimal":
        return _by_value(values, lambda value: format(value, "f"), new)
    if source in ("timestamp", "timestamp_ntz"):
        naive = values.cast(pa.int64()).cast(pa.timestamp("us"))
        return _trim(naive.cast(pa.string())).cast(new)
    if source == "time":
        return _trim(values.cast(pa.string())).cast(new)
    if source == "binary":
        return _by_value(values, cast_text.utf8, new)
    return values.cast(new)


def _java_text(values: Any) -> Callable[[Any], str | None]:
    single = pa.types.is_float32(values.type)
    return cast_text.float_text if single else cast_text.double_text


def _trim(text: Any) -> Any:
    """Remove trailing zeros of fractional seconds, as Spark does."""
    return pc.replace_substring_regex(pc.replace_substring_regex(text, r"(\.\d*?)0+$", r"\1"), r"\.$", "")


def _from_string(values: Any, target: str, new: pa.DataType) -> Any:
    return _by_value(values, cast_text.parser(target, new), new)


def _by_value(values: Any, convert: Callable[[Any], Any], new: pa.DataType) -> Any:
    """Convert each distinct value once, in Python."""
    if isinstance(values, pa.ChunkedArray):
        chunks = [_by_value(chunk, convert, new) for chunk in values.chunks]
        return pa.chunked_array(chunks, type=new)
    encoded = values.dictionary_encode()
    distinct = [None if value is None else convert(value) for value in encoded.dictionary.to_pylist()]
    return pa.array(distinct, type=new).take(encoded.indices)

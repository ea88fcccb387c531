"""Conversion of single values to and from text, as in Spark's casts; None if the cast fails."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

_CONTEXT = Context(prec=100, rounding=ROUND_HALF_UP)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
# Java's BigDecimal accepts digits of any script.
_ANY_DIGITS = re.compile(_NUMBER.pattern)
_FLOAT = re.compile(_NUMBER.pattern + r"[dDfF]?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_DATE = re.compile(r"(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_SPACE = "".join(chr(code) for code in range(33)) + "\x7f"
_TRUE = frozenset(("t", "true", "y", "yes", "1"))
_FALSE = frozenset(("f", "false", "n", "no", "0"))
_WORDS = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), math.inf),
    **dict.fromkeys(("-inf", "-infinity"), -math.inf),
    "nan": math.nan,
}


def parser(target: str, new: pa.DataType) -> Callable[[str], Any]:
    """Return a function that parses a value of a family from text."""
    if target == "decimal":
        return lambda text: _parse_decimal(text, new)
    if target in ("float", "double"):
        return lambda text: _parse_float(text, single=target == "float")
    if target == "date":
        return _parse_date
    if target == "boolean":
        return _parse_boolean
    limit = 2 ** (new.bit_width - 1)
    return lambda text: _parse_integer(text, limit)


def _parse_integer(text: str, limit: int) -> int | None:
    text = text.strip(_SPACE)
    if not _INTEGER.fullmatch(text) or len(text) > 4000:
        return None
    number = int(text)
    return number if -limit <= number < limit else None


def _parse_float(text: str, *, single: bool) -> float | None:
    text = text.strip(_SPACE)
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if not _FLOAT.fullmatch(text):
        return None
    number = float(text.rstrip("dDfF"))
    return _to_single(number) if single else number


def _to_single(number: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _parse_boolean(text: str) -> bool | None:
    word = text.strip(_SPACE).lower()
    return True if word in _TRUE else (False if word in _FALSE else None)


def _parse_date(text: str) -> date | None:
    """Parse ``yyyy``, ``yyyy-m`` or ``yyyy-m-d``, ignoring text after a ``T`` or a space; years 1 to 9999."""
    match = _DATE.fullmatch(text.strip(_SPACE))
    if not match:
        return None
    try:
        return date(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    except ValueError:
        return None


def _parse_decimal(text: str, new: pa.DataType) -> Decimal | None:
    text = text.strip(_SPACE)
    return _fit(Decimal(text), new) if _ANY_DIGITS.fullmatch(text) else None


def float_to_decimal(value: float, new: pa.DataType) -> Decimal | None:
    """Convert a double through its shortest text, rounding half up."""
    return _fit(Decimal(repr(value)), new) if math.isfinite(value) else None


def _fit(number: Decimal, new: pa.DataType) -> Decimal | None:
    try:
        rounded = number.quantize(Decimal(1).scaleb(-new.scale), context=_CONTEXT)
    except InvalidOperation:
        return None
    # abs() would round to the 28 digits of Python's own context.
    return rounded if rounded.copy_abs() < Decimal(10) ** (new.precision - new.scale) else None


def utf8(value: bytes) -> str | None:
    """Decode bytes as UTF-8; None if they are not valid."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def double_text(value: float) -> str:
    """Format a double as Java does."""
    return _java(value, repr(value))


def float_text(value: float) -> str:
    """Format a 32-bit float as Java does."""
    return _java(value, str(pa.scalar(value, pa.float32()).cast(pa.string()).as_py()))


def _java(value: float, shortest: str) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(shortest).as_tuple()
    prefix = "-" if sign or math.copysign(1.0, value) < 0 else ""
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent)
    if value == 0:
        return prefix + "0.0"
    if -3 < point <= 7:
        return prefix + _plain(text, point)
    return f"{prefix}{text[0]}.{text[1:] or '0'}E{point - 1}"


def _plain(text: str, point: int) -> str:
    """Insert the decimal point into digits, with at least one digit on either side."""
    if point <= 0:
        return "0." + "0" * -point + text
    padded = text.ljust(point, "0")
    return f"{padded[:point]}.{padded[point:] or '0'}"

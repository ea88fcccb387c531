"""Conditions that Spark passes to a table, as PySpark columns: they have the same value when a row is read again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from twophase.model import quote
from twophase.spark.connector.read import PLAIN

_DAY = 86_400_000_000  # microseconds
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": lambda left, right: left == right,
    "<>": lambda left, right: left != right,
    "<=>": lambda left, right: left.eqNullSafe(right),
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "STARTS_WITH": lambda left, right: left.startswith(right),
    "ENDS_WITH": lambda left, right: left.endswith(right),
    "CONTAINS": lambda left, right: left.contains(right),
}


def condition_of(predicate: Any) -> Any | None:
    """A Spark ``Predicate`` as a PySpark column; None if there is no equivalent."""
    from pyspark.sql.functions import lit

    name, children = str(predicate.name()), list(predicate.children())
    if name in ("ALWAYS_TRUE", "ALWAYS_FALSE"):
        return lit(name == "ALWAYS_TRUE")
    if name in ("AND", "OR", "NOT"):
        parts: list[Any] = [condition_of(child) for child in children]
        if any(part is None for part in parts):
            return None
        if name == "NOT":
            return ~parts[0]
        return parts[0] & parts[1] if name == "AND" else parts[0] | parts[1]
    sides: list[Any] = [_side(child) for child in children]
    if any(side is None for side in sides):
        return None
    if name in ("IS_NULL", "IS_NOT_NULL"):
        return sides[0].isNull() if name == "IS_NULL" else sides[0].isNotNull()
    if name == "IN":
        return sides[0].isin(*sides[1:])
    return _COMPARE[name](*sides) if name in _COMPARE and len(sides) == 2 else None


def _side(expression: Any) -> Any | None:
    from pyspark.sql.functions import col

    kind = str(expression.getClass().getSimpleName())
    if kind == "FieldReference":
        return col(".".join(quote(str(name)) for name in expression.fieldNames()))
    if kind != "LiteralValue":
        return None
    value = expression.value()
    return None if value is None else _literal(value, str(expression.dataType().typeName()))


def _literal(value: Any, kind: str) -> Any | None:
    """A Spark value as a column, independent of the session's and the process's time zones; None for other types."""
    from pyspark.sql.functions import date_from_unix_date, lit, timestamp_micros

    # Instants and dates remain Spark's numbers: Python's own types have a smaller range, and ``lit`` uses local time.
    if kind == "date":
        return date_from_unix_date(lit(value))
    if kind == "timestamp":
        return timestamp_micros(lit(value))
    if kind == "timestamp_ntz":
        return _local_time(value)
    if kind.startswith("decimal"):
        return lit(str(value.toString())).cast(kind)
    if kind == "string":
        return lit(str(value))
    return lit(value).cast(kind) if kind in PLAIN else None


def _local_time(micros: int) -> Any:
    from pyspark.sql.functions import date_from_unix_date, lit, make_dt_interval

    days, rest = divmod(micros, _DAY)
    since = make_dt_interval(lit(0), lit(0), lit(0), lit(Decimal(rest).scaleb(-6)))
    return date_from_unix_date(lit(days)).cast("timestamp_ntz") + since

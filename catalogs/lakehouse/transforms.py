"""Iceberg's transforms as Spark SQL, with which Spark's own writer separates and sorts partitions.

These expressions only *group* the rows: the partition value of a file is computed from its rows by PyIceberg's
transform, and a file whose rows do not agree is refused. Instants are counted in UTC, whatever the session's time zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import BinaryType, DateType, DecimalType, IntegerType, LongType, StringType, TimestampType

from twophase.errors import CatalogError
from twophase.model import quote

#: Iceberg's words for the transforms of moments; in SQL they end with an s.
TIMES = frozenset(("year", "month", "day", "hour"))
_DAY = 86_400_000_000  # microseconds
_HOUR = 3_600_000_000


def partition_key(schema: IcebergSchema, spec: PartitionSpec) -> str | None:
    """A string expression that differs between rows of different partitions.

    Returns
    -------
    str or None
        None if Spark SQL cannot compute the partition (``bucket``).
    """
    parts = [_part(schema, field) for field in spec.fields]
    if any(part is None for part in parts):
        return None
    # A hash, as a directory's name is limited in length and cannot be empty; JSON keeps NULL and boundaries distinct.
    columns = ", ".join(f"coalesce('v' || {part}, 'n')" for part in parts)
    return f"sha2(to_json(array({columns})), 256)"


def applied(transform: Transform[Any, Any], kind: Any) -> Callable[[Any], Any]:
    """A transform as a function of values of a type: PyIceberg's, extended to years outside of 1 to 9999.

    That of a number raises a CatalogError where the type has no such partition.
    """
    if isinstance(transform, TruncateTransform) and isinstance(kind, (IntegerType, LongType, DecimalType)):
        return _truncating(transform, kind)
    if not isinstance(transform, (YearTransform, MonthTransform)):
        return transform.transform(kind)
    per_day = 1 if isinstance(kind, DateType) else _DAY

    def count(value: int | None) -> int | None:
        if value is None:
            return None
        year, month = _year_and_month(value // per_day)
        return year - 1970 if isinstance(transform, YearTransform) else (year - 1970) * 12 + month - 1

    return count


def _truncating(transform: TruncateTransform[Any], kind: Any) -> Callable[[Any], Any]:
    truncated, lowest = transform.transform(kind), _lowest(kind)

    def truncate(value: Any) -> Any:
        found = truncated(value)
        if found is not None and found < lowest:
            # Iceberg's own library takes the highest number for it, by which conditions would leave out the row.
            raise CatalogError(
                f"The value {value} belongs to the partition {found} of truncate({transform.width}), which its type "
                f"{kind} does not have: it begins with {lowest}.",
                hint="Leave such values out, or partition the table by another field.",
            )
        return found

    return truncate


def _lowest(kind: Any) -> int | Decimal:
    if isinstance(kind, DecimalType):
        return Decimal((1, (9,) * kind.precision, -kind.scale))
    return -(2**31) if isinstance(kind, IntegerType) else -(2**63)


def _year_and_month(days: int) -> tuple[int, int]:
    """Year and month of a day since 1970 (proleptic Gregorian), computed in eras of 400 years that begin in March."""
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    month = (5 * (day - (365 * year + year // 4 - year // 100)) + 2) // 153
    return year + era * 400 + month // 10, (month + 2) % 12 + 1


def comparable(values: Iterable[Any]) -> tuple[Any, ...]:
    """Values of a partition in a form that equals itself, which NaN does not."""
    return tuple("NaN" if isinstance(value, float) and value != value else value for value in values)


def sort_key(schema: IcebergSchema, source_id: int, transform: Transform[Any, Any]) -> str | None:
    """An expression that sorts rows like a transform's values; None if Spark SQL has none."""
    name = schema.find_column_name(source_id)
    if name is None:
        return None
    kind = schema.find_type(source_id)
    column = ".".join(quote(part) for part in name.split("."))
    if isinstance(transform, IdentityTransform):
        return column
    if isinstance(transform, TruncateTransform):
        return f"substring({column}, 1, {transform.width})" if isinstance(kind, StringType) else None
    return _moment(column, kind, transform)


def _part(schema: IcebergSchema, field: PartitionField) -> str | None:
    if isinstance(field.transform, VoidTransform):  # Its column may be gone.
        return _string("NULL")
    name = schema.find_column_name(field.source_id)
    assert name is not None
    kind = schema.find_type(field.source_id)
    column = quote(name)
    if isinstance(field.transform, IdentityTransform):
        return _text(column, kind)
    if isinstance(field.transform, TruncateTransform):
        return _truncated(column, kind, field.transform.width)
    moment = _moment(column, kind, field.transform)
    return None if moment is None else _string(moment)


def _moment(column: str, kind: object, transform: Transform[Any, Any]) -> str | None:
    """A number for each year, month, day or hour; None for any other transform."""
    if isinstance(transform, HourTransform):
        return _hours(column, kind)
    days = _days(column, kind)
    date = f"date_add(DATE'1970-01-01', CAST({days} AS INT))"
    if isinstance(transform, DayTransform):
        return days
    if isinstance(transform, MonthTransform):
        return f"year({date}) * 12 + month({date})"
    return f"year({date})" if isinstance(transform, YearTransform) else None


def _text(column: str, kind: object) -> str:
    if isinstance(kind, BinaryType):
        return f"hex({column})"
    # A timestamp's text depends on the session's time zone, and is ambiguous when clocks are set back.
    return _string(f"unix_micros({column})" if str(kind) == "timestamptz" else column)


def _string(expression: str) -> str:
    return f"CAST({expression} AS STRING)"


def _truncated(column: str, kind: object, width: int) -> str:
    if isinstance(kind, StringType):
        return f"substring({column}, 1, {width})"
    if isinstance(kind, BinaryType):
        return f"hex(substring({column}, 1, {width}))"
    if isinstance(kind, DecimalType):
        # The width is in units of the last digit.
        step = f"CAST('{Decimal(width).scaleb(-kind.scale):f}' AS DECIMAL({max(10, kind.scale)},{kind.scale}))"
        return _string(f"({column} - pmod({column}, {step}))")
    # A wider type, as one step below the lowest number must not overflow.
    number = f"CAST({column} AS DECIMAL(20,0))" if isinstance(kind, LongType) else f"CAST({column} AS BIGINT)"
    return _string(f"({number} - pmod({number}, {width}))")


def _days(column: str, kind: object) -> str:
    if isinstance(kind, (DateType, TimestampType)):
        # The cast of a local time to a date does not depend on a time zone.
        return f"datediff(CAST({column} AS DATE), DATE'1970-01-01')"
    return _floor(f"unix_micros({column})", _DAY)


def _hours(column: str, kind: object) -> str:
    if isinstance(kind, TimestampType):
        return f"({_days(column, kind)} * 24 + hour({column}))"
    return _floor(f"unix_micros({column})", _HOUR)


def _floor(micros: str, unit: int) -> str:
    return f"(({micros} - pmod({micros}, {unit}L)) DIV {unit}L)"

"""Columns that an INSERT leaves out, or gives the word DEFAULT, get the value that the database has for them.

Spark fills such a column itself, with what its schema says. Where the database's default is a constant, that is it.
Where the database computes it (a sequence, the present time), Spark fills in a *placeholder*: a value of the column's
type that a hash makes up. The publish names no column for rows that hold its placeholder; a row whose real value is
just that gets the default, too. It is one value of a column's type, the same for each statement on a table.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalogs.jdbc.database import Column, Database, Table
from twophase.model import ObjectPath

_is = pa.types

#: What the database writes for a constant, with a cast behind it or without; no quote and no backslash in a text.
_TEXT_OR_NUMBER = r"'([^'\\]*)'|(-?\d+(?:\.\d+)?)|(true|false)"
_CONSTANT = re.compile(rf"\(?\s*(?:{_TEXT_OR_NUMBER})\s*\)?(?:::[\w\s\"(),.\[\]]+)?", re.IGNORECASE)
_VARYING = re.compile(r"\w*char\w*(?: varying)?\((\d+)\)", re.IGNORECASE)
_TEXTS = ("text", "longtext", "mediumtext", "tinytext", "character varying")
#: A shorter text is no placeholder: something else might hold it.
_SHORTEST = 12
#: Numbers of MariaDB and MySQL that hold less than Spark's type: the lowest placeholder, and how many there are.
_RANGES = (
    ("mediumint unsigned", 2**24 - 2**12, 2**12),
    ("mediumint", -(2**23), 2**12),
    ("int unsigned", 2**32 - 2**24, 2**24),
    ("bigint unsigned", 2**64 - 2**50, 2**50),
)
_FIRST_SECOND = datetime.datetime(2037, 1, 1, tzinfo=datetime.UTC)
_SECONDS = 32_000_000
_FIRST_DAY, _DAYS = datetime.date(8000, 1, 1), 700_000

_SPARK: tuple[tuple[Any, str], ...] = (
    (_is.is_boolean, "BOOLEAN"),
    (_is.is_int8, "TINYINT"),
    (_is.is_int16, "SMALLINT"),
    (_is.is_int32, "INT"),
    (_is.is_int64, "BIGINT"),
    (_is.is_float32, "FLOAT"),
    (_is.is_float64, "DOUBLE"),
    (_is.is_string, "STRING"),
)


def of_spark(path: ObjectPath, columns: Sequence[Column]) -> dict[str, str]:
    """What Spark fills in for the columns that have a default, as SQL of Spark's."""
    found = {column.name: _literal(path, column) for column in columns if _has_default(column)}
    return {name: sql for name, sql in found.items() if sql is not None}


def placeholders(path: ObjectPath, columns: Sequence[Column]) -> dict[str, str]:
    """The placeholders of a table, by column, as texts: they are part of a participant's document."""
    found = {c.name: placeholder(path, c) for c in columns if _has_default(c) and constant(c) is None}
    return {name: str(value) for name, value in found.items() if value is not None}


def _has_default(column: Column) -> bool:
    return column.default is not None and not column.generated


def _literal(path: ObjectPath, column: Column) -> str | None:
    text = constant(column)
    if text is not None:
        return f"CAST('{text}' AS {_spark_type(column.arrow)})"
    value = placeholder(path, column)
    if value is None:
        return None
    if isinstance(value, datetime.datetime):
        return f"TIMESTAMP '{value}'" if value.tzinfo else f"TIMESTAMP_NTZ '{value}'"
    if isinstance(value, datetime.date):
        return f"DATE '{value}'"
    return f"CAST('{value}' AS {_spark_type(column.arrow)})"


def constant(column: Column) -> str | None:
    """The text of a constant default that Spark can fill in as it is."""
    found = _CONSTANT.fullmatch((column.default or "").strip())
    if found is None or _spark_type(column.arrow) is None:
        return None
    return next(text for text in found.groups() if text is not None)


def _spark_type(kind: pa.DataType) -> str | None:
    if _is.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return next((name for test, name in _SPARK if test(kind)), None)


def placeholder(path: ObjectPath, column: Column) -> Any:
    """A value of the column's type that nothing holds; None where the type has too few values for that."""
    told = hashlib.sha256(json.dumps(["default", *path.to_document(), column.name]).encode())
    number, kind = int.from_bytes(told.digest()[:7]), column.arrow
    for word, lowest, some in _RANGES:
        if column.type.lower().startswith(word) and "unsigned" not in column.type.lower().removeprefix(word):
            return lowest + number % some
    if _is.is_int32(kind):
        return -(2**31) + number % 2**24
    if _is.is_int64(kind):
        return -(2**62) - number
    if _is.is_timestamp(kind):  # Whole seconds, and of those that every database's types hold.
        moment = _FIRST_SECOND + datetime.timedelta(seconds=number % _SECONDS)
        return moment if kind.tz else moment.replace(tzinfo=None)
    if _is.is_date(kind):
        return _FIRST_DAY + datetime.timedelta(days=number % _DAYS)
    return _text(column, told.hexdigest()) if _is.is_string(kind) else None


def _text(column: Column, told: str) -> str | None:
    if column.type == "uuid":
        return str(uuid.UUID(told[:32]))
    varying = _VARYING.fullmatch(column.type)
    if varying is None and column.type.lower() not in _TEXTS:
        return None
    length = min(int(varying[1]) if varying else 32, 32)
    return told[:length] if length >= _SHORTEST else None


# -- in the database ---------------------------------------------------------------------------------------------------


def insert(
    database: Database,
    connection: sa.Connection,
    source: Table,
    target: Table,
    columns: Sequence[str],
    held: Mapping[str, str],
) -> None:
    """Append the rows of one table to another; where a placeholder stands, the database's default takes its place.

    Parameters
    ----------
    database : Database
    connection : sqlalchemy.Connection
    source, target : Table
    columns : sequence of str
        Names of the columns that are written.
    held : mapping of str to str
        The placeholders of those that may hold one.
    """
    rows = database.construct(source, *columns)
    conditions = _conditions(database, connection, source, rows, {n: v for n, v in held.items() if n in columns})
    for marks in _marks(connection, rows, conditions):
        left_out = {name for name, mark in zip(conditions, marks, strict=True) if mark}
        mine = [case == mark for case, mark in zip(conditions.values(), marks, strict=True)]
        names = [name for name in columns if name not in left_out]
        if names:
            chosen = sa.select(*(rows.c[name] for name in names)).where(*mine)
            connection.execute(sa.insert(database.construct(target, *names)).from_select(names, chosen))
            continue
        count = connection.scalar(sa.select(sa.func.count()).select_from(rows).where(*mine))
        for _ in range(int(count or 0)):
            database.run(connection, database.default_row(target))


def any_held(database: Database, connection: sa.Connection, table: Table, held: Mapping[str, str]) -> bool:
    """Whether any row holds a placeholder."""
    rows = database.construct(table, *held)
    conditions = _conditions(database, connection, table, rows, held)
    return any(any(marks) for marks in _marks(connection, rows, conditions))


def _marks(
    connection: sa.Connection, rows: sa.TableClause, conditions: Mapping[str, sa.ColumnElement[int]]
) -> list[tuple[int, ...]]:
    """Which columns hold their placeholders: each way that there are rows of."""
    if not conditions:
        return [()]
    found = connection.execute(sa.select(*conditions.values()).select_from(rows).distinct())
    return sorted(tuple(int(mark) for mark in row) for row in found)


def _conditions(
    database: Database, connection: sa.Connection, table: Table, rows: sa.TableClause, held: Mapping[str, str]
) -> dict[str, sa.ColumnElement[int]]:
    """1 where a row holds the placeholder of a column, else 0."""
    kinds = {column.name: column.arrow for column in database.columns(connection, table)} if held else {}
    found: dict[str, sa.ColumnElement[int]] = {}
    for name, text in held.items():
        value: sa.ColumnElement[Any] = sa.literal_column(database.placeholder(text, kinds[name]))
        found[name] = sa.case((rows.c[name] == value, sa.literal_column("1")), else_=sa.literal_column("0"))
    return found

"""Defaults of the database for columns that an INSERT omits or sets to DEFAULT.

If the database's default is a constant, Spark fills it in. If the database computes it (a sequence, the current time),
Spark has no value: the staged row lists the columns that wait for one in a column of its own, and the publish omits
these columns from its ``INSERT``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalog.spark_columns import spark_field
from twophase.catalogs.jdbc.database import Column, Database
from twophase.errors import CatalogError
from twophase.model import WAITING, ObjectPath, TableDefinition

_is = pa.types

#: A constant as databases write it, with or without a cast after it; a text without quotes and backslashes.
_TEXT_OR_NUMBER = r"'([^'\\]*)'|(-?\d+(?:\.\d+)?)|(true|false)"
_CONSTANT = re.compile(rf"\(?\s*(?:{_TEXT_OR_NUMBER})\s*\)?(?:::[\w\s\"(),.\[\]]+)?", re.IGNORECASE)

#: A literal in Spark's SQL, of the types that mean the same in each database: no moment with a time zone, and no text
#: with quotes, of which the versions of Spark differ.
_SPARK_LITERAL = re.compile(
    r"(?:(?:DATE|TIMESTAMP_NTZ)\s*)?'([^'\\]*)'|([+-]?\d+(?:\.\d*)?(?:E[+-]?\d+)?|true|false)", re.IGNORECASE
)

_SPARK = (
    (_is.is_boolean, "BOOLEAN"),
    (_is.is_int8, "TINYINT"),
    (_is.is_int16, "SMALLINT"),
    (_is.is_int32, "INT"),
    (_is.is_int64, "BIGINT"),
    (_is.is_float32, "FLOAT"),
    (_is.is_float64, "DOUBLE"),
    (_is.is_string, "STRING"),
)


def of_spark(columns: Sequence[Column]) -> dict[str, str | None]:
    """Values that Spark fills in for columns with a default, as Spark SQL; None if the database computes it."""
    return {column.name: _literal(column) for column in columns if _has_default(column)}


def constant(sql: str) -> str | None:
    """The text of a constant: of a number, a truth value, or a text without quotes; None for any other SQL."""
    found = _CONSTANT.fullmatch(sql.strip())
    return None if found is None else next(text for text in found.groups() if text is not None)


def spark_literal(sql: str) -> str | None:
    """The text of a literal of Spark's that each database has, too; None for any other SQL, and for NULL."""
    found = _SPARK_LITERAL.fullmatch(sql.strip())
    return None if found is None else next(text for text in found.groups() if text is not None)


def given(field: pa.Field) -> str | None:
    """The ``DEFAULT`` that a statement of Spark gives a column, in Spark's SQL, also NULL; None if it gives none."""
    found = spark_field(field).get("metadata", {}).get("CURRENT_DEFAULT")
    return None if found is None else str(found).strip()


def redefaulted(definition: TableDefinition) -> frozenset[str]:
    """The columns of a new table to which a statement of Spark has given a ``DEFAULT``, also NULL."""
    return frozenset(field.name for field in definition.schema if given(field) is not None)


def checked(path: ObjectPath, field: pa.Field, sql: str) -> pa.Scalar:
    """The value of a ``DEFAULT`` in Spark's SQL.

    Parameters
    ----------
    path : ObjectPath
        The table, for errors.
    field : pyarrow.Field
        The column, in the type in which it is read.
    sql : str

    Raises
    ------
    CatalogError
        It is no literal that each database has, or does not fit the type.
    """
    text = spark_literal(sql)
    if text is None:
        raise CatalogError(
            f"The column {field.name} of {path} was not altered: its DEFAULT {sql} is no literal that each database "
            "has, such as 7, 'a' or DATE'2026-01-01'; nothing was changed.",
            path=path,
            hint="Leave it out, and set the DEFAULT in the database itself.",
        )
    try:
        return pa.scalar(text).cast(field.type)
    except pa.ArrowException as error:
        raise CatalogError(
            f"The column {field.name} of {path} was not altered: its DEFAULT {sql} does not fit its type; nothing was "
            "changed.",
            path=path,
        ) from error


def in_database(sql: str, kind: pa.DataType | None, database: Database) -> str:
    """A literal of Spark's in the database's SQL.

    Parameters
    ----------
    sql : str
    kind : pyarrow.DataType or None
        The column's type.
    database : Database
    """
    text = str(spark_literal(sql))
    bare = sql.strip() == text and kind is not None and not pa.types.is_string(kind)
    return text if bare else database.text(text)


def is_null(sql: str) -> bool:
    """Whether a ``DEFAULT`` in Spark's SQL is none."""
    return sql.strip().upper() == "NULL"


def computed(columns: Sequence[Column]) -> list[str]:
    """The columns whose default is computed by the database."""
    return [name for name, sql in of_spark(columns).items() if sql is None]


def _has_default(column: Column) -> bool:
    return column.default is not None and not column.generated


def _literal(column: Column) -> str | None:
    """A constant default that Spark can fill in."""
    text = constant(column.default or "")
    kind = _spark_type(column.arrow)
    return None if text is None or kind is None else f"CAST('{text}' AS {kind})"


def _spark_type(kind: pa.DataType) -> str | None:
    if _is.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return next((name for test, name in _SPARK if test(kind)), None)


# -- in the database ---------------------------------------------------------------------------------------------------


def insert(
    database: Database, connection: sa.Connection, source: ObjectPath, target: ObjectPath, columns: Mapping[str, str]
) -> None:
    """Append staged rows to a table; a column that waits for a value gets the database's default.

    Parameters
    ----------
    database : Database
    connection : sqlalchemy.Connection
    source : ObjectPath
        A table whose column :data:`~twophase.model.WAITING` lists the waiting columns of each row.
    target : ObjectPath
    columns : mapping of str to str
        The columns that are written: in the source, and in the target.
    """
    rows = database.construct(source, WAITING)
    for mark in connection.scalars(sa.select(rows.c[WAITING]).distinct()).all():
        waiting = set(json.loads(mark or "[]"))
        names = {name: place for name, place in columns.items() if name not in waiting}
        if names:
            is_mine = "IS NULL" if mark is None else "= :mark"
            copy(database, connection, source, target, names, f" WHERE {database.quote(WAITING)} {is_mine}", mark=mark)
            continue
        mine = rows.c[WAITING].is_(None) if mark is None else rows.c[WAITING] == mark
        count = connection.scalar(sa.select(sa.func.count()).select_from(rows).where(mine))
        for _ in range(int(count or 0)):
            database.run(connection, database.default_row(target))


def copy(
    database: Database,
    connection: sa.Connection,
    source: ObjectPath,
    target: ObjectPath,
    columns: Mapping[str, str],
    where: str = "",
    **values: str | None,
) -> None:
    """Append the rows of one table to another, naming each column of both.

    Parameters
    ----------
    database : Database
    connection : sqlalchemy.Connection
    source, target : ObjectPath
    columns : mapping of str to str
        The columns that are written: in the source, and in the target.
    where : str
        A condition on the rows, with a space before it.
    **values : str or None
        Parameters of the condition.
    """
    into, chosen = (", ".join(map(database.quote, names)) for names in (columns.values(), columns))
    sql = (
        f"INSERT INTO {database.name(target)} ({into}){database.over_identities} "
        f"SELECT {chosen} FROM {database.name(source)}"
    )
    connection.execute(sa.text(sql.replace(":", "\\:") + where), values)


def any_waits(database: Database, connection: sa.Connection, staged: ObjectPath) -> bool:
    """Whether any staged row waits for a value."""
    rows = database.construct(staged, WAITING)
    return bool(connection.scalar(sa.select(sa.exists().where(rows.c[WAITING].is_not(None)))))

"""Reading a table: planned on the driver, cut into parts, and read by the executors.

The parts of one read are separate queries. Where there are several, each makes sure that the table is still the one
that was planned for: nobody sees a half of one version and a half of another.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalogs.jdbc import errors
from twophase.catalogs.jdbc.database import Column, Database, Table, open_database
from twophase.catalogs.jdbc.options import Settings
from twophase.catalogs.jdbc.store import Store
from twophase.errors import WriteConflictError
from twophase.reading import BatchReader, Filter

_is = pa.types
_OPERATORS = ("=", "<", "<=", ">", ">=", "in")


@dataclass(frozen=True)
class Part:
    """One query of a read. It travels to an executor and is called there.

    Attributes
    ----------
    settings : Settings
    table : Table
    columns : tuple of Column
    where : str
        SQL, empty for all rows.
    values : mapping
        What the parameters in it stand for.
    version : list or None
        What :func:`version` says of the table that was planned for; None where it does not matter.
    """

    settings: Settings
    table: Table
    columns: tuple[Column, ...]
    where: str
    values: Mapping[str, Any]
    version: list[Any] | None

    def __call__(self) -> Iterator[pa.RecordBatch]:
        """The rows, in batches of a bounded size."""
        database = open_database(self.settings)
        engine = database.engine(self.table.database, pooled=False, label="twophase read")
        reading = engine.execution_options(twophase_read_only=True, **database.snapshot_options())
        path = f"{self.table.database}.{self.table.name}"
        try:
            with errors.speaking(self.settings, path=path), reading.connect() as connection:
                self._check(connection)
                for block in database.stream(connection, self._sql(database), self.values, self.settings.batch_rows):
                    yield self._batch(database, block)
                self._check(connection)
        finally:
            engine.dispose()

    def _sql(self, database: Database) -> str:
        names = ", ".join(database.select_expression(column) for column in self.columns)
        return _literal(f"SELECT {names} FROM {database.name(self.table)}") + self.where

    def _batch(self, database: Database, rows: list[Any]) -> pa.RecordBatch:
        arrays = [
            database.to_arrow(values, column.arrow)
            for values, column in zip(zip(*rows, strict=True), self.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, [column.name for column in self.columns])

    def _check(self, connection: sa.Connection) -> None:
        if self.version is None:
            return
        store = Store(self.settings)
        if version(store, connection, self.table) != self.version:
            raise WriteConflictError(
                f"{self.table.database}.{self.table.name} was published anew while it was read.",
                hint="Run the query again; or set the option read_partitions to 1, and it is read in one piece.",
            )


def version(store: Store, connection: sa.Connection, table: Table) -> list[Any]:
    """What changes with each publish of a table."""
    from twophase.model import ObjectPath

    database = store.database
    home = store.home(table.database)
    published = store.version(connection, home, ObjectPath.of(table.database, table.name))
    return [database.generation(connection, table), published]


def _literal(sql: str) -> str:
    """SQL with names in it for ``sa.text``, where a colon would begin a parameter."""
    return sql.replace(":", "\\:")


class JdbcReader(BatchReader):
    """Reads one table, or a table and what a transaction has staged for it.

    Parameters
    ----------
    store : Store
    tables : sequence of Table
        Whose rows together are the table's.
    columns : sequence of Column
        Of the table, in order.
    """

    def __init__(self, store: Store, tables: Sequence[Table], columns: Sequence[Column]) -> None:
        self._store = store
        self._tables = tuple(tables)
        self._columns = {column.name: column for column in columns}

    def accepts(self, condition: Filter) -> bool:
        if condition.parts:
            return all(self.accepts(part) for part in condition.parts)
        column = self._columns.get(condition.column)
        if column is None:
            return False
        if condition.operator in ("is_null", "is_not_null"):
            return True
        database = self._store.database
        if condition.operator not in _OPERATORS or not database.compares(column):
            return False
        return self._comparable(column, equality=condition.operator in ("=", "in"))

    def _comparable(self, column: Column, *, equality: bool) -> bool:
        """Whether the database compares as Spark does, or finds more. Texts have an order of their own everywhere."""
        kind = column.arrow
        if _is.is_string(kind):
            return equality and self._store.database.compares_texts(column)
        if _is.is_integer(kind) or _is.is_float64(kind):
            return True
        stored_as_meant = self._store.database.title != "SQLite"
        return stored_as_meant and (_is.is_decimal(kind) or _is.is_date(kind) or _is.is_timestamp(kind))

    def plan(self, columns: Sequence[str], conditions: Sequence[Filter]) -> list[Part]:
        wanted = tuple(self._columns[name] for name in columns)
        where, values = self._where(conditions)
        return [part for table in self._tables for part in self._parts(table, wanted, where, values)]

    def _parts(self, table: Table, columns: tuple[Column, ...], where: list[str], values: dict[str, Any]) -> list[Part]:
        store = self._store
        with store.begin(table.database, path=f"{table.database}.{table.name}", read_only=True) as connection:
            cuts = store.database.cuts(connection, table)
            seen = version(store, connection, table) if len(cuts) > 1 else None
        parts = []
        for cut in cuts:
            conditions = [*where, *([_literal(cut)] if cut else [])]
            text = f" WHERE {' AND '.join(conditions)}" if conditions else ""
            parts.append(Part(store.settings, table, columns, text, values, seen))
        return parts

    # -- conditions ----------------------------------------------------------------------------------------------

    def _where(self, conditions: Sequence[Filter]) -> tuple[list[str], dict[str, Any]]:
        values: dict[str, Any] = {}
        return [self._condition(condition, values) for condition in conditions], values

    def _condition(self, condition: Filter, values: dict[str, Any]) -> str:
        if condition.parts:
            joined = f" {condition.operator.upper()} ".join(self._condition(part, values) for part in condition.parts)
            return f"({joined})"
        name = _literal(self._store.database.quote(condition.column))
        if condition.operator in ("is_null", "is_not_null"):
            return f"{name} {condition.operator.replace('_', ' ').upper()}"
        places = [self._parameter(value, values) for value in condition.values]
        if condition.operator == "in":
            return f"{name} IN ({', '.join(places)})"
        return f"{name} {condition.operator} {places[0]}"

    def _parameter(self, value: Any, values: dict[str, Any]) -> str:
        if isinstance(value, datetime.datetime) and value.tzinfo and not self._store.database.aware_times:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        name = f"p{len(values)}"
        values[name] = value
        return f":{name}"

"""Reading a table: planned on the driver, split into parts, and read by the executors.

The parts of one read are separate queries. If there are several, each checks that the table is still the version that
was planned for, so that no reader sees parts of different versions. Reads of a transaction's snapshot are checked as
described in :mod:`~twophase.catalogs.jdbc.pinned_reads`.
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from twophase.catalog.reading import BatchReader, Filter
from twophase.catalogs.jdbc import errors
from twophase.catalogs.jdbc.database import Column, Database
from twophase.catalogs.jdbc.dialects import open_database
from twophase.catalogs.jdbc.options import Settings
from twophase.catalogs.jdbc.store import Store
from twophase.errors import WriteConflictError
from twophase.model import ObjectPath

_is = pa.types
_OPERATORS = ("=", "<", "<=", ">", ">=", "in")
#: As these PostgreSQL's infinite dates and timestamps are read; the database does not consider them equal.
_ENDS = {
    *(datetime.date.min, datetime.date.max, datetime.datetime.min, datetime.datetime.max),
    *(end.replace(tzinfo=datetime.UTC) for end in (datetime.datetime.min, datetime.datetime.max)),
}


class Guard(ABC):
    """Makes sure that a part reads the state of the table that it should; sent to the executors."""

    @abstractmethod
    def watching(self, store: Store, connection: sa.Connection, path: ObjectPath) -> AbstractContextManager[None]:
        """Surround the query of a part, and raise an error if it did not read that state."""


@dataclass(frozen=True)
class SameVersion(Guard):
    """All parts of one read see the same version of the table.

    Attributes
    ----------
    version : list
        The :func:`version` of the table that was planned for.
    """

    version: list[Any]

    @contextmanager
    def watching(self, store: Store, connection: sa.Connection, path: ObjectPath) -> Iterator[None]:
        self._check(store, connection, path)
        yield
        self._check(store, connection, path)

    def _check(self, store: Store, connection: sa.Connection, path: ObjectPath) -> None:
        if version(store, connection, path) != self.version:
            raise WriteConflictError(
                f"{path} was published anew while it was read.",
                hint="Run the query again; or set the option read_partitions to 1, and it is read in one piece.",
            )


@dataclass(frozen=True)
class Part:
    """One query of a read, sent to an executor and called there.

    Attributes
    ----------
    settings : Settings
    table : ObjectPath
    columns : tuple of Column
    where : str
        SQL condition, empty for all rows.
    values : mapping
        Values of the condition's parameters.
    guard : Guard or None
        None if the state of the table is not checked.
    source : str
        SQL that is read instead of the table, with its own conditions; empty for the table.
    """

    settings: Settings
    table: ObjectPath
    columns: tuple[Column, ...]
    where: str
    values: Mapping[str, Any]
    guard: Guard | None
    source: str = ""

    def __call__(self) -> Iterator[pa.RecordBatch]:
        """The rows, in batches of a bounded size."""
        database = open_database(self.settings)
        engine = database.engine(self.table.database, pooled=False, label="twophase read")
        reading = engine.execution_options(twophase_read_only=True, **database.snapshot_options())
        try:
            with (
                errors.speaking(self.settings, path=self.table),
                reading.connect() as connection,
                self._watching(connection),
            ):
                for block in database.stream(connection, self._sql(database), self.values, self.settings.batch_rows):
                    yield self._batch(database, block)
        finally:
            engine.dispose()

    def _sql(self, database: Database) -> str:
        names = ", ".join(database.select_expression(column) for column in self.columns)
        return _literal(f"SELECT {names} FROM {self.source or database.name(self.table)}") + self.where

    def _batch(self, database: Database, rows: list[Any]) -> pa.RecordBatch:
        arrays = [
            database.to_arrow(values, column.arrow)
            for values, column in zip(zip(*rows, strict=True), self.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, [column.name for column in self.columns])

    def _watching(self, connection: sa.Connection) -> AbstractContextManager[None]:
        if self.guard is None:
            return nullcontext()
        return self.guard.watching(Store(self.settings), connection, self.table)


def version(store: Store, connection: sa.Connection, table: ObjectPath) -> list[Any]:
    """The version of a table: it changes with each publish."""
    published = store.version(connection, store.home(table.database), table)
    return [store.database.generation(connection, table), published]


def _literal(sql: str) -> str:
    """Escape colons in SQL for ``sa.text``, where a colon begins a parameter."""
    return sql.replace(":", "\\:")


class JdbcReader(BatchReader):
    """Reader of one table, or of a table and the rows that a transaction has staged for it.

    Parameters
    ----------
    store : Store
    tables : sequence of ObjectPath
        Tables that together hold the rows.
    columns : sequence of Column
        Columns of the table, in order.
    guards : mapping of ObjectPath to Guard, optional
        For tables that are read in a certain state.
    source : callable, optional
        Returns the SQL that is read instead of the tables, for a condition on their rows (empty for all).
    """

    def __init__(
        self,
        store: Store,
        tables: Sequence[ObjectPath],
        columns: Sequence[Column],
        guards: Mapping[ObjectPath, Guard] | None = None,
        *,
        source: Callable[[str], str] | None = None,
    ) -> None:
        self._source = source
        self._store = store
        self._tables = tuple(tables)
        self._guards = dict(guards or {})
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
        if condition.operator not in _OPERATORS or not database.compares(column) or _ENDS & set(condition.values):
            return False
        return self._comparable(column, equality=condition.operator in ("=", "in"))

    def _comparable(self, column: Column, *, equality: bool) -> bool:
        """Whether the database compares like Spark, or matches more rows. Texts are ordered differently everywhere."""
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

    def _parts(
        self, table: ObjectPath, columns: tuple[Column, ...], where: list[str], values: dict[str, Any]
    ) -> list[Part]:
        store = self._store
        with store.begin(table.database, path=table, read_only=True) as connection:
            cuts = store.database.cuts(connection, table)
            guard = self._guards.get(table)
            if guard is None and len(cuts) > 1:
                try:
                    guard = SameVersion(version(store, connection, table))
                except DBAPIError:  # This role may not see what was published: it reads the table in one piece.
                    cuts = [""]
        parts = []
        for cut in cuts:
            source = self._source(cut) if self._source else ""
            conditions = [*where, *([_literal(cut)] if cut and not source else [])]
            text = f" WHERE {' AND '.join(conditions)}" if conditions else ""
            parts.append(Part(store.settings, table, columns, text, values, guard, source))
        return parts

    # -- conditions ----------------------------------------------------------------------------------------------

    def _where(self, conditions: Sequence[Filter]) -> tuple[list[str], dict[str, Any]]:
        values: dict[str, Any] = {}
        return [self._condition(condition, values) for condition in conditions], values

    def _condition(self, condition: Filter, values: dict[str, Any]) -> str:
        if condition.parts:
            joined = f" {condition.operator.upper()} ".join(self._condition(part, values) for part in condition.parts)
            return f"({joined})"
        name = _literal(self._store.database.compared(self._columns[condition.column]))
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

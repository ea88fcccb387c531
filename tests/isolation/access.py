"""How the blocks of a history reach their tables: by the statements of a session, or by the catalogs' own code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

import twophase
from twophase.catalog import Catalog, Environment, TwoPhaseCatalogTable
from twophase.catalog.reading import ReadSource
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.model import Isolation, ObjectPath, OverwriteScope, Purpose, TableDefinition
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.transaction import Transaction

Row: TypeAlias = tuple[int, ...]

#: The catalogs that need no session.
_CATALOGS = {"twophase.jdbc": JdbcCatalog, "twophase.lakehouse": LakehouseCatalog}
_OPTIONS = "spark.sql.catalog."


@dataclass(frozen=True)
class Place:
    """Where the tables of one round are.

    Parameters
    ----------
    number : int
        Of the round: each has tables of its own.
    prefixes : mapping of str to str
        The catalog and database of each table, and what its definition needs between name and query.
    """

    number: int
    prefixes: Mapping[str, Sequence[str]]

    def name(self, table: str) -> str:
        """The name of a table in SQL."""
        return f"{self.prefixes[table][0]}.{table}{self.number}"

    def databases(self) -> set[str]:
        """The databases that must be made."""
        return {prefix for prefix, _ in self.prefixes.values()} - {"file.main"}


class Access(ABC):
    """The tables of one round."""

    @abstractmethod
    def create(self, tables: Mapping[str, tuple[Sequence[str], Sequence[Row]]]) -> None:
        """Make tables, by their columns, all BIGINT, and rows; and their databases."""

    @abstractmethod
    def transaction(self, isolation: str | None, *, reads: bool) -> AbstractContextManager[Any]:
        """Open a block; one that only reads may be a snapshot."""

    @abstractmethod
    def rows(self, tables: Sequence[str]) -> dict[str, list[Row]]:
        """The rows of some tables, read by one statement."""

    @abstractmethod
    def total(self, tables: Sequence[str], column: str) -> int:
        """The sum of a column over some tables."""

    @abstractmethod
    def insert(self, table: str, rows: Iterable[Row]) -> None:
        """Add rows."""

    @abstractmethod
    def overwrite(self, table: str, rows: Iterable[Row]) -> None:
        """Replace all rows."""

    def refresh(self, tables: Iterable[str]) -> None:
        """Let what is read outside of blocks be what there is now."""
        return


class WithSpark(Access):
    """By the statements of a session.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Attached.
    place : Place
    dice : Random
        Chooses one of the names of a table: those of the session's own have two.
    """

    def __init__(self, spark: Any, place: Place, dice: Random) -> None:
        self._spark = spark
        self._place = place
        self._dice = dice

    def create(self, tables: Mapping[str, tuple[Sequence[str], Sequence[Row]]]) -> None:
        for database in self._place.databases():
            self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
        for table, (columns, rows) in tables.items():
            names = ", ".join(f"CAST(c{i} AS BIGINT) AS {column}" for i, column in enumerate(columns))
            aliases = ", ".join(f"c{i}" for i in range(len(columns)))
            values = _values(rows or [(0,) * len(columns)])
            query = f"SELECT {names} FROM VALUES {values} AS t({aliases}) WHERE {bool(rows)}"
            self._spark.sql(f"CREATE TABLE {self._place.name(table)} {self._place.prefixes[table][1]} AS {query}")

    def transaction(self, isolation: str | None, *, reads: bool) -> AbstractContextManager[Any]:
        if reads and isolation != "read_committed" and self._dice.random() < 0.5:
            return twophase.snapshot(self._spark)
        return twophase.transaction(self._spark, isolation=isolation)

    def rows(self, tables: Sequence[str]) -> dict[str, list[Row]]:
        selects = [f"SELECT '{table}' AS t, array(*) AS c FROM {self._name(table)}" for table in tables]
        found = self._spark.sql(" UNION ALL ".join(selects)).collect()
        return {table: [tuple(row.c) for row in found if row.t == table] for table in tables}

    def total(self, tables: Sequence[str], column: str) -> int:
        both = " UNION ALL ".join(f"SELECT {column} FROM {self._name(table)}" for table in tables)
        (row,) = self._spark.sql(f"SELECT CAST(sum({column}) AS BIGINT) AS total FROM ({both})").collect()
        return int(row.total)

    def insert(self, table: str, rows: Iterable[Row]) -> None:
        self._spark.sql(f"INSERT INTO {self._name(table)} VALUES {_values(rows)}")

    def overwrite(self, table: str, rows: Iterable[Row]) -> None:
        self._spark.sql(f"INSERT OVERWRITE {self._name(table)} VALUES {_values(rows)}")

    def refresh(self, tables: Iterable[str]) -> None:
        for table in tables:
            self._spark.sql(f"REFRESH TABLE {self._name(table)}")

    def _name(self, table: str) -> str:
        name = self._place.name(table)
        return name.removeprefix("hive.") if self._dice.random() < 0.5 else name


def _values(rows: Iterable[Row]) -> str:
    return ", ".join("(" + ", ".join(f"{value}L" for value in row) + ")" for row in rows)


class Engine:
    """What a process has without Spark: the catalogs of a configuration, and a coordinator over its timeline.

    Parameters
    ----------
    conf : mapping of str to str
    name : str
        The coordinator's.
    """

    def __init__(self, conf: Mapping[str, str], name: str) -> None:
        self.catalogs: dict[str, Catalog] = {}
        for key, kind in conf.items():
            catalog = key.removeprefix(_OPTIONS)
            if key.startswith(_OPTIONS) and "." not in catalog:
                options = {k.removeprefix(f"{key}."): v for k, v in conf.items() if k.startswith(f"{key}.")}
                self.catalogs[catalog] = _CATALOGS[kind](catalog, options, Environment())
        self.timeline = Timeline(conf["spark.twophase.timeline"])
        self.coordinator = Coordinator(self.timeline, self.catalogs.__getitem__, name=name)

    def recover(self) -> None:
        """What ``attach`` does with what the process before has left, and others."""
        self.coordinator.recover()
        self.coordinator.carry_on()

    def close(self) -> None:
        """End it."""
        self.coordinator.close()
        for catalog in self.catalogs.values():
            catalog.close()


class WithoutSpark(Access):
    """By the code of the catalogs alone: transactions, reads and writes are those of a session, but no plan is Spark's.

    Parameters
    ----------
    engine : Engine
    place : Place
    """

    def __init__(self, engine: Engine, place: Place) -> None:
        self._engine = engine
        self._place = place
        self._open: Transaction | None = None

    def create(self, tables: Mapping[str, tuple[Sequence[str], Sequence[Row]]]) -> None:
        for name in self._place.databases():
            catalog, _, database = name.partition(".")
            self._engine.catalogs[catalog].create_database(database, ignore_if_exists=True)
        for table, (columns, rows) in tables.items():
            with self.transaction("read_committed", reads=False):
                self._write(table, _arrow(columns, rows), Purpose.CREATE_TABLE_AS, None)

    @contextmanager
    def transaction(self, isolation: str | None, *, reads: bool) -> Iterator[Any]:
        level = Isolation(isolation or Isolation.SNAPSHOT)
        transaction = self._engine.coordinator.begin(level, catalogs=self._engine.catalogs.values())
        self._open = transaction
        try:
            yield transaction
            transaction.commit()
        except BaseException as error:
            transaction.abort(error)
            raise
        finally:
            self._open = None

    def rows(self, tables: Sequence[str]) -> dict[str, list[Row]]:
        if self._open is None:
            with self.transaction("read_committed", reads=True):
                return self.rows(tables)
        # As for one statement: all are opened, and then read.
        opened = {table: self._source(self._open, *self._found(table)) for table in tables}
        return {table: _read(source) for table, source in opened.items()}

    def total(self, tables: Sequence[str], column: str) -> int:
        place = ("account", "balance").index(column)
        return sum(row[place] for rows in self.rows(tables).values() for row in rows)

    def insert(self, table: str, rows: Iterable[Row]) -> None:
        self._write(table, self._fitting(table, rows), Purpose.INSERT_INTO, None)

    def overwrite(self, table: str, rows: Iterable[Row]) -> None:
        self._write(table, self._fitting(table, rows), Purpose.INSERT_OVERWRITE, OverwriteScope())

    def _found(self, table: str) -> tuple[Catalog, ObjectPath]:
        catalog, *path = self._place.name(table).split(".")
        return self._engine.catalogs[catalog], ObjectPath.of(*path)

    def _fitting(self, table: str, rows: Iterable[Row]) -> pa.Table:
        catalog, path = self._found(table)
        return _arrow(catalog.load_table(path).schema.names, list(rows))

    @staticmethod
    def _source(transaction: Transaction, catalog: Catalog, path: ObjectPath) -> ReadSource:
        """As the connector to Spark does it."""
        staged = transaction.find(catalog.name, path)
        if staged is not None:
            transaction.require_written(staged)
            source = staged.read_source()
            transaction.require_base(staged)
            assert source is not None
            return source
        source, reading = transaction.read_source(catalog, path)
        reading()
        return source

    def _write(self, table: str, rows: pa.Table, purpose: Purpose, scope: OverwriteScope | None) -> None:
        assert self._open is not None
        transaction, (catalog, path) = self._open, self._found(table)
        definition = TableDefinition(rows.schema)
        participant: TwoPhaseCatalogTable | None = transaction.stage(
            catalog, path, definition, purpose=purpose, overwrite=scope
        )
        assert participant is not None
        transaction.begin_participant(participant)
        transaction.write(participant, rows)
        transaction.prepare_participant(participant)


def _arrow(columns: Sequence[str], rows: Sequence[Row]) -> pa.Table:
    arrays = [pa.array([row[i] for row in rows], pa.int64()) for i in range(len(columns))]
    return pa.table(arrays, names=list(columns))


def _read(source: ReadSource) -> list[Row]:
    if source.reader is not None:
        assert source.definition is not None
        names = source.definition.schema.names
        batches = [batch for part in source.reader.plan(names, ()) for batch in part()]
    else:
        assert source.files is not None
        scan = source.files.plan(())
        names = scan.schema.names
        files = (location.removeprefix("file:") for location in scan.locations)
        batches = [batch for file in files for batch in pq.read_table(file, columns=names).to_batches()]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

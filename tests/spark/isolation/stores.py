"""Tables in each store, for two sessions at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.blocks import elsewhere
from twophase.spark.routing.plan_answers import Answers

#: Where the tables ``a`` and ``b`` are: those of the session with and without partitions, of a SerDe, of a lake, of a
#: database, and of a catalog that tells nothing of the states of a table.
STORES = {
    "session": ("default", ""),
    "partitioned": ("parts", " PARTITIONED BY (id)"),
    "serde": ("serdes", " STORED AS PARQUET"),
    "lakehouse": ("ice.db", ""),
    "sqlite": ("lite.main", ""),
    "plugin": ("lake.db", ""),
}
Rows = list[tuple[int, int]]
OLD: Rows = [(1, 10), (2, 20)]


class Store:
    """Tables ``a`` and ``b`` in one store."""

    def __init__(self, spark: SparkSession, kind: str) -> None:
        self._spark = spark
        self._database, self._clause = STORES[kind]
        for name in ("a", "b"):
            self.make(name)

    def make(self, name: str) -> None:
        self._spark.sql(f"DROP TABLE IF EXISTS {self.of(name)}")
        using = "" if "STORED" in self._clause else " USING parquet" if self._database in ("default", "parts") else ""
        self._spark.sql(f"CREATE TABLE {self.of(name)}{using}{self._clause} AS SELECT 10 AS value, 1 AS id")
        self.write(self._spark, name, OLD)

    def of(self, name: str) -> str:
        return f"{self._database}.{name}"

    def place(self, name: str, key: int) -> Path:
        """The directory of the files with a row."""
        partition = f" PARTITION (id = {key})" if "PARTITIONED" in self._clause else ""
        found = self._spark.sql(f"DESCRIBE EXTENDED {self.of(name)}{partition}").where("col_name = 'Location'")
        return Path(str(found.collect()[0][1]).removeprefix("file:"))

    def rows(self, session: SparkSession, name: str) -> Rows:
        return sorted((r.id, r.value) for r in session.sql(f"SELECT id, value FROM {self.of(name)}").collect())

    def write(self, session: SparkSession, name: str, rows: Rows) -> None:
        session.sql(f"INSERT OVERWRITE {self.of(name)} {values(rows)}")

    def append(self, session: SparkSession, name: str, row: tuple[int, int]) -> None:
        session.sql(f"INSERT INTO {self.of(name)} {values([row])}")


def values(rows: Rows) -> str:
    return "VALUES " + ", ".join(f"({value}, {key})" for key, value in rows)


def once(changed: Callable[[], Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let something happen once, between Spark's question about a table and its own look at it."""
    original, pending = Answers._has_moved, [changed]

    def then(self: Answers, target: Any, use: str) -> bool:
        found = original(self, target, use)
        if target.path.name == name and pending:
            elsewhere(pending.pop())
        return found

    monkeypatch.setattr(Answers, "_has_moved", then)


every_store = pytest.mark.parametrize("kind", STORES)
#: Where the format of the files says nothing.
every_publish = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.exhaustive if kind == "serde" else ()) for kind in STORES]
)
#: Where a table's files, or rows, have more than one way to be read.
session_tables = pytest.mark.parametrize("kind", ["session", "partitioned", "serde"])

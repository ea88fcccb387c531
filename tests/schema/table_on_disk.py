"""A table of Parquet files, each written with the schema of its moment, and read back by Spark and by PyArrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tests.schema.schema_data import comparable, rows_table
from twophase.schema import Change, PromotionPolicy, Schema, plan_partitioned_read
from twophase.schema.history import SchemaHistory
from twophase.schema.history_directory import DirectoryHistoryStore

Rows = list[dict[str, Any]]


@dataclass
class Table:
    """The files with the version that each was written with, and the history of the versions."""

    directory: Path
    schema: Schema
    files: list[tuple[Path, int, Mapping[str, str | None]]] = field(default_factory=list)
    changed: int = 0

    def __post_init__(self) -> None:
        self.history = SchemaHistory(DirectoryHistoryStore(self.directory))
        self.schema = self.history.record(self.schema, transaction_id="create", instant=0, based_on=None)

    def write(self, rows: Rows, partition: Mapping[str, str | None] | None = None) -> None:
        """Rows as a file with the ids of the present schema; partition columns stand in the directory's name alone."""
        data = rows_table(self.schema, rows)
        path = self.directory / f"data-{len(self.files)}.parquet"
        pq.write_table(data.drop_columns(list(partition or ())), path)
        self.files.append((path, self.schema.schema_id, partition or {}))

    def change(self, changes: Change | Iterable[Change], promotion: str | PromotionPolicy = "exact") -> None:
        """A new version of the schema; no file is touched."""
        self.changed += 1
        facts: dict[str, Any] = {"transaction_id": f"change-{self.changed}", "instant": self.changed}
        self.schema = self.history.evolve(self.schema, changes, promotion=promotion, **facts)

    def by_arrow(self) -> Rows:
        """All rows under the present schema, by PyArrow."""
        rows: Rows = []
        for path, version, partition in self.files:
            rows += self._plan(version, partition).project(pq.ParquetFile(path).read()).to_pylist()
        return rows

    def by_spark(self, spark: SparkSession) -> Rows:
        """All rows under the present schema, by Spark."""
        frames = []
        for path, version, partition in self.files:
            expressions = self._plan(version, partition).spark_expressions()
            frames.append(spark.read.parquet(str(path)).selectExpr(*expressions))
        # By way of a file: toArrow cannot hold a NOT NULL field below a NULL struct.
        out = f"{self.directory}/read-{self.changed}"
        reduce(DataFrame.unionAll, frames).coalesce(1).write.mode("overwrite").parquet(out)
        return list(pq.read_table(out).to_pylist())

    def read(self, spark: SparkSession) -> Rows:
        """All rows; both engines must say the same."""
        rows = self.by_arrow()
        assert comparable(self.by_spark(spark)) == comparable(rows)
        return rows

    def _plan(self, version: int, partition: Mapping[str, str | None]) -> Any:
        if not partition:
            return self.history.read_plan(version)
        return plan_partitioned_read(self.history.version(version), self.schema, partition)


def nested_in(leaf: pa.DataType) -> Sequence[tuple[str, pa.DataType, str]]:
    """A leaf type at each level where one can be: name of the column, its type, path of the leaf."""
    return (
        ("c", leaf, "c"),
        ("s", pa.struct([pa.field("c", leaf), pa.field("beside", pa.int8())]), "s.c"),
        ("l", pa.list_(leaf), "l.element"),
        ("ls", pa.list_(pa.struct([pa.field("c", leaf)])), "ls.element.c"),
        ("m", pa.map_(pa.string(), leaf), "m.value"),
    )


def nested_row(value: Any) -> dict[str, Any]:
    """A row of those columns that holds a value at each level."""
    return {"c": value, "s": {"c": value, "beside": 1}, "l": [value], "ls": [{"c": value}], "m": [("k", value)]}

"""A session with a lakehouse catalog, and three readers of what it writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.lakehouse.places import NAME, Lake, tuples
from tests.lakehouse.readers import read_alike
from twophase.model import ObjectPath

DATABASE = "statements"


@dataclass
class Shop:
    """A session, and its lake past it."""

    spark: SparkSession
    lake: Lake

    def sql(self, text: str) -> Any:
        """Run a statement; ``@t`` is a table of the test database."""
        return self.spark.sql(text.replace("@", f"{NAME}.{DATABASE}."))

    def name(self, table: str) -> str:
        return f"{NAME}.{DATABASE}.{table}"

    def path(self, table: str) -> ObjectPath:
        return ObjectPath.of(DATABASE, table)

    def read(self, text: str) -> list[Any]:
        """What Spark reads."""
        return tuples(self.sql(text).toArrow())

    def rows(self, table: str, *, but: Set[str] = frozenset()) -> list[Any]:
        """What three readers agree on: Spark through the catalog, PyIceberg alone, and iceberg-rust.

        A test whose table one of the two others cannot read leaves that one out, and says why.
        """
        return tuples(read_alike(self.spark, self.lake, self.path(table), but=but))

    def assert_alike(self, tables: Sequence[str], *, but: Set[str] = frozenset()) -> None:
        """All three read the same rows of some tables, but for those readers that cannot."""
        for table in tables if "any" not in but else ():
            self.sql(f"REFRESH TABLE @`{table}`")  # Another process may have written.
            self.rows(table, but=but)

    def data_files(self, table: str) -> set[str]:
        """The data files of a table's current state."""
        return {task.file.file_path for task in self.iceberg(table).scan().plan_files()}

    def iceberg(self, table: str) -> Any:
        """PyIceberg's own table."""
        return self.lake.load(self.path(table))


@contextmanager
def session(root: Path, lake: Lake, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session over a lake."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "America/New_York",
        "spark.log.level": "OFF",
        "spark.sql.warehouse.dir": str(root / "spark-warehouse"),
        f"spark.sql.catalog.{NAME}": "twophase.lakehouse",
        **{f"spark.sql.catalog.{NAME}.{key}": value for key, value in lake.options().items()},
        **(conf or {}),
    }
    builder: Any = SparkSession.builder.master("local[2]").appName("lakehouse")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    twophase.attach(spark).catalog(NAME).create_database(DATABASE, ignore_if_exists=True)
    try:
        yield spark
    finally:
        spark.stop()
        patch.undo()

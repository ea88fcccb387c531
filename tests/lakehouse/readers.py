"""Three readers of what is in a lake: Spark through twophase, PyIceberg alone, and iceberg-rust."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import twophase
from tests.lakehouse.places import NAME, Lake, assert_alike
from twophase.model import ObjectPath
from twophase.spark.routing.targets import quoted


def read_alike(spark: SparkSession, lake: Lake, path: ObjectPath, *, but: Set[str] = frozenset()) -> pa.Table:
    """What a session that is attached to a lake reads of a table; all other readers but some must read the same."""
    found = spark.table(quoted((NAME, *path.to_document()))).toArrow()
    if "PyIceberg" not in but:
        iceberg = lake.table(path)
        assert iceberg is not None, f"Spark reads {path}, which PyIceberg does not find."
        assert_alike(found, iceberg, f"{path}: Spark and PyIceberg")
    if "iceberg-rust" not in but:
        assert_alike(found, lake.rust_table(path), f"{path}: Spark and iceberg-rust")
    return found


def two_read_alike(lake: Lake) -> None:
    """The readers that need no Spark read the same rows of each table that is in a lake."""
    for table in lake.tables():
        lake.read_alike(table, ObjectPath.of(*table.name()))


def not_read_by(node: pytest.Item) -> set[str]:
    """Which readers cannot read what a test leaves, as its markers say with a reason."""
    return {marker.args[0] for marker in node.iter_markers("not_read_by")}


class Readers:
    """Reads the lakes of tests that need no Spark themselves, in one session that starts with the first table.

    Parameters
    ----------
    directory : pathlib.Path
        For what the session writes.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._patch = pytest.MonkeyPatch()
        self._started: SparkSession | None = None

    def assert_alike(self, lake: Lake, *, but: Set[str] = frozenset()) -> None:
        """All three read the same rows of each table that is in a lake, but for those readers that cannot."""
        if "any" in but:
            return
        paths = [ObjectPath.of(*table.name()) for table in lake.tables()]
        if paths:
            with self.attached(lake) as spark:
                for path in paths:
                    read_alike(spark, lake, path, but=but)

    @contextmanager
    def attached(self, lake: Lake) -> Iterator[SparkSession]:
        """The session, with a lake as a user configures it."""
        spark = self._session()
        prefix = f"spark.sql.catalog.{NAME}"
        settings = {prefix: "twophase.lakehouse", **{f"{prefix}.{key}": v for key, v in lake.options().items()}}
        for key, value in settings.items():
            spark.conf.set(key, value)
        handle = twophase.attach(spark)
        try:
            yield spark
        finally:
            handle.detach()
            for key in settings:
                spark.conf.unset(key)

    def close(self) -> None:
        """End the session, if there is one."""
        if self._started is not None:
            self._started.stop()
            self._patch.undo()

    def _session(self) -> SparkSession:
        if self._started is None:
            self._patch.setenv("PYSPARK_PYTHON", sys.executable)
            # Hundreds of reads of few rows: one task for each, and nothing is compiled for it.
            builder: Any = SparkSession.builder.master("local[1]").appName("readers")
            for key, value in {
                "spark.ui.enabled": "false",
                "spark.driver.memory": "1g",
                "spark.log.level": "OFF",
                "spark.sql.adaptive.enabled": "false",
                "spark.sql.codegen.factoryMode": "NO_CODEGEN",
                "spark.sql.warehouse.dir": str(self._directory / "spark-warehouse"),
                "spark.twophase.session.catalog": "none",
            }.items():
                builder = builder.config(key, value)
            self._started = builder.getOrCreate()
        return self._started

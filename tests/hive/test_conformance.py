"""The Hive catalog passes the conformance suite over a real metastore, the Spark session's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tests.hive.conftest import start_session
from tests.hive.world import World
from tests.statements import table
from twophase.catalog import Catalog
from twophase.catalogs.hive.definitions import PROVIDERS
from twophase.model import Capabilities, ObjectPath, Purpose
from twophase.spark import types
from twophase.testing.conformance import CatalogConformance


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Over an embedded Hive metastore."""
    session = start_session(tmp_path_factory.mktemp("conformance"), hive=True)
    yield session
    session.stop()


class TestSessionMetastore(CatalogConformance):
    moments = 4  # The crash matrix tries each step.
    capabilities = Capabilities(
        purposes=frozenset(Purpose),
        partitioning=frozenset({"identity", "cluster_by"}),
        bucketing=True,
        alter_database=True,
        rename_table=True,
        alter_table=True,
        read=True,
        external_location=True,
        compensate=True,
        column_defaults=True,
        partition_columns_last=True,
        providers=PROVIDERS,
    )

    @pytest.fixture
    def fresh_catalog(self, spark: SparkSession) -> Callable[[], Catalog]:
        warehouse = Path(spark.conf.get("spark.sql.warehouse.dir", "").removeprefix("file:"))  # type: ignore[union-attr]
        return lambda: World(spark, warehouse, {"password": "the-password-of-hive"}).catalog

    @pytest.fixture
    def catalog(self, fresh_catalog: Callable[[], Catalog]) -> Catalog:
        return fresh_catalog()

    @pytest.fixture
    def fresh_process(self) -> None:
        """Derby is opened by one process only."""

    @pytest.fixture
    def make_frame(self, spark: SparkSession) -> Callable[[list[tuple[Any, ...]], pa.Schema], Any]:
        # As an Arrow table: a list would become an RDD, which takes twice as long to write.
        def frame(rows: list[tuple[Any, ...]], schema: pa.Schema) -> Any:
            return spark.createDataFrame(table(rows, schema), StructType.fromJson(json.loads(types.from_arrow(schema))))

        return frame

    @pytest.fixture
    def read_rows(self, spark: SparkSession) -> Callable[[ObjectPath], list[tuple[Any, ...]]]:
        def read(path: ObjectPath) -> list[tuple[Any, ...]]:
            spark.catalog.refreshTable(f"`{path.database}`.`{path.name}`")
            return [tuple(row) for row in spark.table(f"`{path.database}`.`{path.name}`").collect()]

        return read

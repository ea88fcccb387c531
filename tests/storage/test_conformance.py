"""The Hive catalog passes the conformance suite on each kind of file system that a session's Hadoop client reaches.

Without Spark, and with clients of the tests, it is run in ``tests/kit``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.hive import test_conformance
from tests.storage import counting
from twophase.catalog import Catalog

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module", params=counting.SCHEMES)
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Its warehouse is on one of the file systems."""
    root: Path = tmp_path_factory.mktemp("conformance")
    session = counting.session(root, {"spark.sql.warehouse.dir": counting.place_of(root, request.param)})
    yield session
    session.stop()


class TestOnFileSystems(test_conformance.TestSessionMetastore):
    capabilities = replace(
        test_conformance.TestSessionMetastore.capabilities, copying_savepoints=True, unseen_changes=True
    )

    @pytest.fixture
    def fresh_catalog(self, spark: SparkSession) -> Callable[[], Catalog]:
        warehouse = str(spark.conf.get("spark.sql.warehouse.dir"))
        return lambda: counting.world_of(spark, warehouse, {"password": "the-password-of-hive"}).catalog

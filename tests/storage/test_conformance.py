"""The Hive catalog passes the conformance suite on each kind of file system that a session's Hadoop client reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.hive import test_conformance
from tests.storage import counting
from twophase.catalog import Catalog


class OnFileSystem(test_conformance.TestSessionMetastore):
    """The suite in a session whose warehouse is on one of the tests' file systems."""

    scheme: str

    @pytest.fixture(scope="class")
    def spark(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
        root: Path = tmp_path_factory.mktemp(self.scheme)
        session = counting.session(root, {"spark.sql.warehouse.dir": counting.place_of(root, self.scheme)})
        yield session
        session.stop()

    @pytest.fixture
    def fresh_catalog(self, spark: SparkSession, tmp_path: Path) -> Callable[[], Catalog]:
        options = {"password": "the-password-of-hive"}
        return lambda: counting.world_of(spark, tmp_path, options).catalog


@pytest.mark.exhaustive
class TestObjectStore(OnFileSystem):
    scheme = "counted"


@pytest.mark.exhaustive
class TestLikeHdfs(OnFileSystem):
    scheme = "hdfslike"

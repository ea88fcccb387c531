"""A plain ALTER TABLE ... RENAME TO in an attached session keeps the rows of a table that twophase wrote."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import start_session
from twophase.model import ObjectPath


@pytest.fixture
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session(tmp_path_factory.mktemp("rename"), hive=True)
    yield session
    session.stop()


def test_a_renamed_table_keeps_its_rows_attached_or_told_by_doctor(spark: SparkSession) -> None:
    handle = twophase.attach(spark)
    catalog = handle.catalog("hive")
    spark.sql("CREATE TABLE a USING parquet AS SELECT id FROM range(3)")
    spark.sql("INSERT INTO a SELECT 7")
    spark.sql("ALTER TABLE a RENAME TO b")
    assert spark.table("b").count() == 4
    assert catalog.check() == []
    # Past twophase, as a session that is not attached does it:
    spark._jsparkSession.sql("ALTER TABLE b RENAME TO c")
    (problem,) = catalog.check()
    assert "SET LOCATION" in problem
    spark.sql(problem.partition("Run: ")[2])
    assert spark.table("c").count() == 4
    assert catalog.table_exists(ObjectPath.of("default", "c"))
    handle.detach()

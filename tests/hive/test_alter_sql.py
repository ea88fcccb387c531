"""ALTER TABLE in an attached session, by a plain or a full name, keeps the rows of a table that twophase wrote."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import start_session
from twophase.errors import CatalogError
from twophase.model import ObjectPath


@pytest.fixture
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session(tmp_path_factory.mktemp("rename"), hive=True)
    yield session
    session.stop()


@pytest.mark.slow
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

    spark.sql("ALTER TABLE hive.default.c SET TBLPROPERTIES ('k' = 'v')")
    spark.sql("ALTER TABLE hive.default.c ADD COLUMN note STRING COMMENT 'new'")
    spark.sql("ALTER DATABASE hive.default SET DBPROPERTIES ('owner of rows' = 'us')")
    with pytest.raises(CatalogError, match=r"spark_catalog\.default\.c"):
        spark.sql("ALTER TABLE hive.default.c RENAME COLUMN id TO key")
    assert spark.table("c").columns == ["id", "note"]
    assert spark.table("c").where("note IS NULL").count() == 4
    assert "owner of rows" in str(spark.sql("DESCRIBE DATABASE EXTENDED default").collect())
    spark.sql("INSERT INTO c VALUES (9, 'nine')")
    assert spark.table("c").where("note = 'nine'").count() == 1
    handle.detach()

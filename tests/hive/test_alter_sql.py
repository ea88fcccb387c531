"""ALTER TABLE in an attached session, by a plain or a full name, keeps the rows of a table that twophase wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import start_session
from tests.spark.routed import by_stock_spark, stock_session
from twophase.errors import CatalogError
from twophase.model import ObjectPath


@pytest.fixture
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session(tmp_path_factory.mktemp("rename"), hive=True)
    yield session
    session.stop()


def test_a_renamed_table_keeps_its_rows_or_is_reported_by_the_doctor(spark: SparkSession) -> None:
    handle = twophase.attach(spark)
    catalog = handle.catalog("hive")
    spark.sql("CREATE TABLE a USING parquet AS SELECT id FROM range(3)")
    spark.sql("INSERT INTO a SELECT 7")
    spark.sql("ALTER TABLE a RENAME TO b")
    assert spark.table("b").count() == 4
    assert catalog.check() == []
    # Past twophase, as an application without it does it:
    handle.detach()
    spark.sql("ALTER TABLE b RENAME TO c")
    handle = twophase.attach(spark)
    catalog = handle.catalog("hive")
    (problem,) = catalog.check()
    assert "SET LOCATION" in problem
    spark.sql(problem.partition("Run: ")[2])
    assert spark.table("c").count() == 4
    assert catalog.table_exists(ObjectPath.of("default", "c"))

    spark.sql("ALTER TABLE hive.default.c SET TBLPROPERTIES ('k' = 'v')")
    spark.sql("ALTER TABLE hive.default.c ADD COLUMN note STRING COMMENT 'new'")
    spark.sql("ALTER DATABASE hive.default SET DBPROPERTIES ('owner of rows' = 'us')")
    with pytest.raises(CatalogError, match=r"twophase\.alter"):
        spark.sql("ALTER TABLE hive.default.c RENAME COLUMN id TO key")
    assert spark.table("c").columns == ["id", "note"]
    assert spark.table("c").where("note IS NULL").count() == 4
    assert "owner of rows" in str(spark.sql("DESCRIBE DATABASE EXTENDED default").collect())
    spark.sql("INSERT INTO c VALUES (9, 'nine')")
    assert spark.table("c").where("note = 'nine'").count() == 1
    handle.detach()


#: A rename whose names only Spark can tell, or of a table whose owner stamp somebody removed.
RENAMES = [
    ("ALTER TABLE IDENTIFIER('{t}') RENAME TO {t}_new", None),
    ("ALTER TABLE IDENTIFIER(:old) RENAME TO IDENTIFIER(:new)", {"old": "{t}", "new": "{t}_new"}),
    ("BEGIN ALTER TABLE {t} RENAME TO {t}_new; END", None),
    ("BEGIN DECLARE old STRING DEFAULT '{t}'; ALTER TABLE IDENTIFIER(old) RENAME TO {t}_new; END", None),
    ("EXECUTE IMMEDIATE 'ALTER TABLE {t} RENAME TO {t}_new'", None),
    ("ALTER TABLE {t} RENAME TO {t}_new", None),
]
#: Ways past PySpark's session, through another one, and through one that is not attached.
PAST: list[Callable[[SparkSession, str], object]] = [
    lambda spark, text: spark._jsparkSession.sql(text),
    lambda spark, text: spark.newSession().sql(text),
    lambda spark, text: stock_session(spark).sql(text),
    lambda spark, text: stock_session(spark).sql(f"BEGIN {text}; END"),
    lambda spark, text: stock_session(spark)._jsparkSession.sql(f"EXECUTE IMMEDIATE '{text}'"),
]


@pytest.mark.promise("locations", "a renamed table keeps its rows, whichever session renames it")
def test_a_table_keeps_its_rows_however_it_is_renamed_or_dropped(spark: SparkSession) -> None:
    handle = twophase.attach(spark)
    for number, (text, args) in enumerate(RENAMES):
        table = f"t{number}"
        spark.sql(f"CREATE TABLE {table} USING parquet AS SELECT id FROM range(3)")
        spark.sql(f"INSERT INTO {table} VALUES (7)")
        spark.sql(text.format(t=table), args={key: value.format(t=table) for key, value in (args or {}).items()})
        assert (text, spark.table(f"{table}_new").count()) == (text, 4)

    # Stock Spark empties the directory: our stamp goes with the files.
    by_stock_spark(spark, "TRUNCATE TABLE t0_new")
    by_stock_spark(spark, "INSERT OVERWRITE t1_new VALUES (8)")
    for table, left in (("t0_new", 1), ("t1_new", 2)):
        spark.sql(f"INSERT INTO {table} VALUES (9)")
        spark.sql(f"ALTER TABLE {table} RENAME TO {table}er")
        assert spark.table(f"{table}er").count() == left

    for number, name in enumerate(("'t2_new'", ":name")):
        spark.sql(f"DROP TABLE IDENTIFIER({name})", args={"name": "t3_new"} if number else None)
        spark.sql(f"CREATE TABLE t{number + 2}_new (id INT) USING parquet")
        assert spark.table(f"t{number + 2}_new").count() == 0
    for number, run in enumerate(PAST):
        table = f"p{number}"
        spark.sql(f"CREATE TABLE {table} (id INT) USING parquet")
        spark.sql(f"INSERT INTO {table} VALUES (1), (2)")
        spark.sql(f"INSERT OVERWRITE {table} VALUES (7)")
        run(spark, f"ALTER TABLE {table} RENAME TO {table}_new")
        assert [row.id for row in spark.table(f"{table}_new").collect()] == [7]
        run(spark, f"DROP TABLE {table}_new")
        spark.sql(f"CREATE TABLE {table}_new (id INT) USING parquet")
        assert spark.table(f"{table}_new").count() == 0
    assert handle.catalog("hive").check() == []
    handle.detach()

"""ALTER TABLE in an attached session, by a plain or a full name, keeps the rows of a table that twophase wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import start_session
from tests.spark.routed import by_stock_spark, stock_session
from twophase.errors import CatalogError
from twophase.model import ObjectPath
from twophase.spark.handle import Handle


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session(tmp_path_factory.mktemp("rename"), hive=True)
    yield session
    session.stop()


@pytest.fixture
def handle(spark: SparkSession) -> Iterator[Handle]:
    """The session is attached; afterwards no table's rows are elsewhere."""
    attached = twophase.attach(spark)
    yield attached
    assert attached.catalog("hive").check() == []
    attached.detach()


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


def _args(text: str) -> Callable[[SparkSession, str, str], object]:
    """Runs a statement with the old name and the new one as arguments."""
    return lambda spark, old, new: spark.sql(text, args={"old": old, "new": new})


def _text(text: str, run: Callable[[SparkSession, str], object]) -> Callable[[SparkSession, str, str], object]:
    return lambda spark, old, new: run(spark, text.format(old=old, new=new))


PLAIN = "ALTER TABLE {old} RENAME TO {new}"
BY_STOCK: Callable[[SparkSession, str], object] = lambda spark, text: stock_session(spark).sql(text)  # noqa: E731
BY_SQL: Callable[[SparkSession, str], object] = lambda spark, text: spark.sql(text)  # noqa: E731
#: Through a session that is not attached, with names that only Spark can tell, and past PySpark's session.
RENAMES = {
    "stock": _text(PLAIN, BY_STOCK),
    "plain": _text(PLAIN, BY_SQL),
    "identifier": _text("ALTER TABLE IDENTIFIER('{old}') RENAME TO {new}", BY_SQL),
    "arguments": _args("ALTER TABLE IDENTIFIER(:old) RENAME TO IDENTIFIER(:new)"),
    "script": _text(f"BEGIN {PLAIN}; END", BY_SQL),
    "variable": _text(
        "BEGIN DECLARE old STRING DEFAULT '{old}'; ALTER TABLE IDENTIFIER(old) RENAME TO {new}; END", BY_SQL
    ),
    "immediate": _text(f"EXECUTE IMMEDIATE '{PLAIN}'", BY_SQL),
    "jvm": _text(PLAIN, lambda spark, text: spark._jsparkSession.sql(text)),
    "new session": _text(PLAIN, lambda spark, text: spark.newSession().sql(text)),
    "stock script": _text(f"BEGIN {PLAIN}; END", BY_STOCK),
    "stock immediate": _text(
        f"EXECUTE IMMEDIATE '{PLAIN}'", lambda spark, text: stock_session(spark)._jsparkSession.sql(text)
    ),
}


@pytest.mark.promise("locations", "a renamed table keeps its rows, whichever session renames it")
@pytest.mark.parametrize("way", RENAMES)
@pytest.mark.usefixtures("handle")
def test_a_table_keeps_its_rows_however_it_is_renamed(spark: SparkSession, way: str) -> None:
    old, new = f"{way.replace(' ', '_')}_old", f"{way.replace(' ', '_')}_new"
    spark.sql(f"CREATE TABLE {old} USING parquet AS SELECT id FROM range(3)")
    spark.sql(f"INSERT INTO {old} VALUES (7)")
    RENAMES[way](spark, old, new)
    assert spark.table(new).count() == 4
    spark.sql(f"INSERT OVERWRITE {new} VALUES (8)")
    RENAMES[way](spark, new, old)
    assert [row.id for row in spark.table(old).collect()] == [8]


@pytest.mark.parametrize("emptied", ["TRUNCATE TABLE {t}", "INSERT OVERWRITE {t} VALUES (8)"])
@pytest.mark.usefixtures("handle")
def test_a_table_that_stock_spark_has_emptied_keeps_its_new_rows(spark: SparkSession, emptied: str) -> None:
    """Our stamp goes with the files."""
    spark.sql("CREATE OR REPLACE TABLE e USING parquet AS SELECT 1 AS id")
    by_stock_spark(spark, emptied.format(t="e"))
    left = spark.table("e").count()
    spark.sql("INSERT INTO e VALUES (9)")
    spark.sql("ALTER TABLE e RENAME TO emptied")
    assert spark.table("emptied").count() == left + 1
    spark.sql("DROP TABLE emptied")


DROPS: dict[str, Callable[[SparkSession, str], object]] = {
    "identifier": lambda spark, name: spark.sql(f"DROP TABLE IDENTIFIER('{name}')"),
    "argument": lambda spark, name: spark.sql("DROP TABLE IDENTIFIER(:name)", args={"name": name}),
    "stock": lambda spark, name: stock_session(spark).sql(f"DROP TABLE {name}"),
    "jvm": lambda spark, name: spark._jsparkSession.sql(f"DROP TABLE {name}"),
    "new session": lambda spark, name: spark.newSession().sql(f"DROP TABLE {name}"),
    "stock script": lambda spark, name: stock_session(spark).sql(f"BEGIN DROP TABLE {name}; END"),
}


@pytest.mark.parametrize("way", DROPS)
@pytest.mark.usefixtures("handle")
def test_a_table_made_after_a_drop_is_empty_however_the_old_one_was_dropped(spark: SparkSession, way: str) -> None:
    spark.sql("CREATE TABLE before_drop (id INT) USING parquet")
    spark.sql("INSERT INTO before_drop VALUES (1), (2)")
    spark.sql("ALTER TABLE before_drop RENAME TO dropped")
    DROPS[way](spark, "dropped")
    spark.sql("CREATE TABLE dropped (id INT) USING parquet")
    assert spark.table("dropped").count() == 0
    spark.sql("DROP TABLE dropped")


@pytest.mark.promise("locations", "the name of a renamed table is free, for a table of any kind, at once")
@pytest.mark.parametrize("in_a_block", [False, True])
@pytest.mark.parametrize("rows", ["", "INSERT INTO {t} VALUES (0)"], ids=["empty", "rows"])
@pytest.mark.usefixtures("handle")
def test_the_name_of_a_renamed_table_is_free_at_once(spark: SparkSession, rows: str, in_a_block: bool) -> None:
    """Tables are made beside, and change names: what the old location holds is in nobody's way."""
    for name, value in (("swap", 1), ("swap_new", 2)):
        spark.sql(f"CREATE TABLE {name} (id INT) USING parquet")
        if rows:
            by_stock_spark(spark, rows.format(t=name))
        spark.sql(f"INSERT OVERWRITE {name} VALUES ({value})")
    with twophase.transaction(spark) if in_a_block else nullcontext():
        spark.sql("ALTER TABLE swap RENAME TO swap_old")
        spark.sql("ALTER TABLE swap_new RENAME TO swap")
    assert [[row.id for row in spark.table(name).collect()] for name in ("swap", "swap_old")] == [[2], [1]]
    spark.sql("CREATE TABLE swap_new (id INT) USING parquet")
    assert spark.table("swap_new").count() == 0
    for name in ("swap", "swap_old", "swap_new"):
        spark.sql(f"DROP TABLE {name}")


@pytest.mark.usefixtures("handle")
def test_a_table_like_another_takes_a_name_that_the_other_has_dropped(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE model USING parquet AS SELECT 1 AS id, 2 AS gone")
    spark.sql("ALTER TABLE model DROP COLUMN gone")
    spark.sql("CREATE TABLE like_it LIKE model USING parquet")
    spark.sql("ALTER TABLE like_it ADD COLUMN gone STRING")
    spark.sql("INSERT INTO like_it VALUES (1, 'x')")
    assert [tuple(row) for row in spark.sql("SELECT id, gone FROM like_it WHERE gone = 'x'").collect()] == [(1, "x")]
    with pytest.raises(CatalogError, match="have another column gone"):
        spark.sql("ALTER TABLE model ADD COLUMN gone STRING")

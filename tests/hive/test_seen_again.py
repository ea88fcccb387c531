"""After a write, what was made of a table before answers as in stock Spark: DataFrames, views, caches, statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

import twophase
from tests.hive.conftest import start_session
from tests.spark.routed import begun, stock_session

spark40_first_cases = True

#: Spark itself inserts through the first one only with the second one.
UNMANAGED = ("spark.sql.hive.manageFilesourcePartitions", "spark.sql.hive.convertInsertingPartitionedTable")
AUTO_UPDATE = "spark.sql.statistics.size.autoUpdate.enabled"
PARQUET = "CREATE TABLE t (id BIGINT) USING parquet"
CONVERTED = "CREATE TABLE t (id BIGINT) STORED AS PARQUET"
PARTITIONED = "CREATE TABLE t (id BIGINT, d BIGINT) USING parquet PARTITIONED BY (d)"
SERDE = "CREATE TABLE t (id BIGINT) STORED AS TEXTFILE"
FILES = pytest.mark.parametrize(
    "made",
    [
        pytest.param(PARQUET, id="parquet"),
        pytest.param(CONVERTED, id="converted"),
        pytest.param(PARTITIONED, id="partitioned"),
    ],
)


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session(tmp_path_factory.mktemp("seen"), hive=True)
    twophase.attach(session)
    yield session
    session.stop()


@pytest.fixture
def spark(attached: SparkSession) -> Iterator[SparkSession]:
    yield attached
    attached.catalog.clearCache()
    attached.conf.unset(AUTO_UPDATE)
    for setting in UNMANAGED:
        attached.conf.unset(setting)
    attached.sql("DROP TABLE IF EXISTS t")


def filled(spark: SparkSession, made: str) -> str:
    """Make the table with one row; the statement that adds one more."""
    spark.sql(made)
    one = "INSERT INTO t VALUES (1, 1)" if "PARTITIONED" in made else "INSERT INTO t VALUES (1)"
    spark.sql(one)
    return one


def is_cached(frame: DataFrame) -> bool:
    return "InMemoryTableScan" in str(frame._jdf.queryExecution().executedPlan().toString())


@FILES
def test_a_frame_and_a_view_made_before_show_the_new_rows(spark: SparkSession, made: str) -> None:
    insert = filled(spark, made)
    frame = spark.table("t").where("id > 0")
    frame.createOrReplaceTempView("seen")
    for expected in (1, 2, 3):
        assert frame.count() == spark.table("seen").count() == spark.table("t").count() == expected
        spark.sql(insert)
    spark.sql(insert.replace("INTO", "OVERWRITE"))
    assert frame.count() == spark.table("seen").count() == spark.table("t").count() == 1


@pytest.mark.promise("caches", "what is cached stays cached and shows the new rows")
@pytest.mark.parametrize("writer", ["twophase", "stock Spark"])
@FILES
def test_what_is_cached_stays_cached_and_shows_the_new_rows(spark: SparkSession, made: str, writer: str) -> None:
    session = spark if writer == "twophase" else stock_session(spark)
    before = begun(spark)
    insert = filled(session, made)
    table, query = session.table("t"), session.table("t").where("id > 0")
    table.persist(StorageLevel.MEMORY_ONLY)
    query.cache()
    assert (table.count(), query.count()) == (1, 1)
    for expected in (2, 3):
        session.sql(insert)
        again = session.table("t").where("id > 0")
        assert session.catalog.isCached("t")
        assert is_cached(again)
        assert (table.count(), query.count(), session.table("t").count(), again.count()) == (expected,) * 4
        assert session.table("t").storageLevel == StorageLevel.MEMORY_ONLY
    assert begun(spark) - before == (3 if writer == "twophase" else 0)


@pytest.mark.parametrize("made", [PARQUET, CONVERTED, PARTITIONED, SERDE])
def test_a_table_cached_by_its_name_stays_cached(spark: SparkSession, made: str) -> None:
    insert = filled(spark, made)
    spark.sql("CACHE TABLE t")
    spark.sql(insert)
    assert (spark.catalog.isCached("t"), spark.table("t").count()) == (True, 2)
    spark.catalog.uncacheTable("t")
    assert not spark.catalog.isCached("t")


@pytest.mark.promise(
    "caches", "what is cached shows the new rows, also after Spark has resolved its table anew", detail=True
)
@pytest.mark.parametrize("between", ["REFRESH TABLE t", "TRUNCATE TABLE t", "ANALYZE TABLE t COMPUTE STATISTICS"])
@FILES
def test_what_is_cached_shows_the_new_rows_after_spark_has_resolved_its_table_anew(
    spark: SparkSession, made: str, between: str
) -> None:
    insert = filled(spark, made)
    spark.sql("CACHE TABLE t")
    spark.table("t").where("id > 0").cache()
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW seen AS SELECT id FROM range(9) WHERE id IN (SELECT id FROM t)")
    spark.sql("CACHE TABLE seen")
    spark.sql(between)
    expected = spark.table("t").count()
    assert expected == (not between.startswith("TRUNCATE"))
    for _ in range(2):
        spark.sql(insert)
        expected += 1
        assert (spark.table("t").count(), spark.table("t").where("id > 0").count()) == (expected, expected)
        assert (spark.table("seen").count(), spark.catalog.isCached("t")) == (1, True)
    spark.sql(insert.replace("INTO", "OVERWRITE"))
    assert (spark.table("t").count(), spark.table("t").where("id > 0").count()) == (1, 1)


def by_foreach_batch(_: SparkSession, rows: DataFrame, place: Path) -> None:
    rows.write.parquet(str(place / "rows"))
    stream = rows.sparkSession.readStream.schema("id BIGINT").parquet(str(place / "rows")).writeStream
    stream = stream.option("checkpointLocation", str(place / "check")).trigger(availableNow=True)
    stream.foreachBatch(lambda batch, _: batch.write.insertInto("t")).start().awaitTermination()


def by_sql(other: SparkSession, _: DataFrame, __: Path) -> None:
    other.sql("INSERT INTO t SELECT id FROM range(5)")


def by_save_as_table(other: SparkSession, _: DataFrame, __: Path) -> None:
    other.range(5).write.mode("append").saveAsTable("t")


@pytest.mark.promise("caches", "what another session wrote is seen without a refresh")
@pytest.mark.parametrize("write", [by_foreach_batch, by_sql, by_save_as_table])
@pytest.mark.parametrize("other", [SparkSession.newSession, stock_session])
def test_what_another_session_wrote_is_seen_without_a_refresh(
    spark: SparkSession,
    tmp_path: Path,
    write: Callable[[SparkSession, DataFrame, Path], None],
    other: Callable[[SparkSession], SparkSession],
) -> None:
    spark.range(10).write.saveAsTable("t")
    frame = spark.table("t")
    assert frame.count() == 10
    spark.sql("INSERT INTO t VALUES (10)")

    source = other(spark)
    write(source, source.range(5), tmp_path)

    assert spark.table("t").count() == 16
    assert spark.sql("SELECT * FROM t").count() == 16
    spark.sql("INSERT INTO t VALUES (11)")
    assert (spark.table("t").count(), frame.count()) == (17, 17)


def test_new_partitions_are_seen_where_spark_keeps_the_locations_of_the_former_ones(
    spark: SparkSession,
) -> None:
    other = spark.newSession()
    for session in (spark, other):
        for setting in UNMANAGED:
            session.conf.set(setting, "false")
    spark.sql("CREATE TABLE t (id BIGINT) PARTITIONED BY (d BIGINT) STORED AS PARQUET")
    spark.sql("INSERT INTO t PARTITION (d = 1) VALUES (1)")
    before = [session.table("t") for session in (spark, other)]
    for frame in before:
        (relation,) = (leaf.relation() for leaf in leaves(frame))
        assert relation.location().getClass().getSimpleName() == "InMemoryFileIndex"
    for number, writer in enumerate((spark, other), 2):
        writer.sql(f"INSERT INTO t PARTITION (d = {number}) VALUES ({number})")
        expected = [(row, row) for row in range(1, number + 1)]
        for frame in (*before, spark.table("t"), other.table("t")):
            assert sorted(tuple(row) for row in frame.select("id", "d").collect()) == expected


def leaves(frame: DataFrame) -> list[Any]:
    found = frame._jdf.queryExecution().optimizedPlan().collectLeaves()
    return [found.apply(number) for number in range(found.size())]


@pytest.mark.promise("caches", "a table that is replaced stays cached where its columns stay", detail=True)
@pytest.mark.parametrize("in_a_block", [False, True])
def test_a_table_that_is_replaced_stays_cached_where_its_columns_do(spark: SparkSession, in_a_block: bool) -> None:
    def overwritten(frame: DataFrame) -> tuple[bool, int]:
        with twophase.transaction(spark) if in_a_block else nullcontext():
            frame.write.mode("overwrite").saveAsTable("t")
        return spark.catalog.isCached("t"), spark.table("t").count()

    spark.range(3).write.saveAsTable("t")
    spark.catalog.cacheTable("t", StorageLevel.DISK_ONLY)
    assert spark.table("t").count() == 3

    assert overwritten(spark.range(5)) == (True, 5)
    assert spark.table("t").storageLevel == StorageLevel.DISK_ONLY
    assert overwritten(spark.range(2)) == (True, 2)
    assert overwritten(spark.range(6).selectExpr("id", "id AS more")) == (False, 6)  # as in stock Spark


@pytest.mark.parametrize("drop", ["DROP TABLE hive.d.t", "DROP DATABASE hive.d CASCADE"])
def test_a_table_of_a_dropped_ones_name_is_not_read_as_that(spark: SparkSession, drop: str) -> None:
    spark.sql("CREATE DATABASE hive.d")
    try:
        spark.sql("CREATE TABLE hive.d.t AS SELECT 1 AS id")
        assert spark.table("hive.d.t").count() == spark.table("d.t").count() == 1
        spark.sql(drop)
        spark.sql("CREATE DATABASE IF NOT EXISTS hive.d")
        spark.sql("CREATE TABLE hive.d.t (name STRING)")
        assert spark.table("hive.d.t").collect() == spark.table("d.t").collect() == []
    finally:
        spark.sql("DROP DATABASE hive.d CASCADE")


@pytest.mark.promise(
    "caches", "a table with CHAR and VARCHAR columns is read and written after a write as before it", detail=True
)
@pytest.mark.parametrize("made", ["PARTITIONED BY (p)", ""], ids=["partitioned", "flat"])
def test_columns_of_char_and_varchar_are_the_same_after_a_write(spark: SparkSession, made: str) -> None:
    spark.sql(f"CREATE TABLE t (a INT, v VARCHAR(3), p CHAR(3)) USING parquet {made}")
    into, more = ("t PARTITION (p = 'a')", "") if made else ("t", ", 'a'")
    for number, write in enumerate(("INSERT INTO", "INSERT OVERWRITE", "INSERT OVERWRITE")):
        spark.sql(f"{write} {into} VALUES ({number}, 'v'{more})")
        assert spark.table("t").collect() == [(number, "v", "a  ")]
        assert spark.table("t").where("p = 'a' AND v = 'v'").count() == 1
    with pytest.raises(Exception, match="EXCEED_LIMIT_LENGTH"):
        spark.sql(f"INSERT INTO {into} VALUES (9, 'long'{more})")


def test_a_transaction_leads_what_was_made_before_too(spark: SparkSession) -> None:
    insert = filled(spark, PARQUET)
    frame = spark.table("t").cache()
    assert frame.count() == 1
    with twophase.transaction(spark):
        spark.sql(insert)
        spark.sql(insert)
    assert (frame.count(), spark.catalog.isCached("t")) == (3, True)


def test_a_frame_of_another_attached_session_follows(spark: SparkSession) -> None:
    insert = filled(spark, PARQUET)
    other = spark.newSession()
    handle = twophase.attach(other)
    frame = other.table("t")
    assert frame.count() == 1
    spark.sql(insert)
    assert (frame.count(), other.table("t").count()) == (2, 2)
    handle.detach()


def test_a_frame_of_a_serde_table_sees_an_append_of_one_file_as_in_stock_spark(spark: SparkSession) -> None:
    insert = filled(spark, SERDE)
    frame = spark.table("t")
    assert frame.count() == 1
    spark.sql(insert)
    assert (frame.count(), spark.table("t").count()) == (2, 2)


@pytest.mark.promise("caches", "a DataFrame that cannot follow shows the old rows, whole")
def test_what_cannot_follow_keeps_the_old_rows(spark: SparkSession) -> None:
    filled(spark, PARQUET)
    frame = spark.table("t")
    assert frame.count() == 1
    spark.sql("CREATE OR REPLACE TABLE t AS SELECT 'x' AS s FROM range(5)")
    assert (frame.count(), spark.table("t").count()) == (1, 5)


@pytest.mark.promise("cost", "an INSERT lists no files of the table: they are listed when it is read next")
def test_an_insert_leaves_the_list_of_files_to_the_next_read(spark: SparkSession) -> None:
    insert = filled(spark, PARQUET)
    frames = [spark.table("t")]
    assert frames[0].count() == 1
    counter = spark._jvm.org.apache.spark.metrics.source.HiveCatalogMetrics.METRIC_FILES_DISCOVERED()
    for number in range(2, 5):
        listed = counter.getCount()
        spark.sql(insert)
        assert counter.getCount() == listed
        frames.append(spark.table("t"))
        assert [frame.count() for frame in frames] == [number] * number
        assert counter.getCount() == listed + number


# -- statistics --------------------------------------------------------------------------------------------------------


def statistics(spark: SparkSession, partition: str = "") -> str:
    found = spark.sql(f"DESCRIBE EXTENDED t {partition}")
    name = "Partition Statistics" if partition else "Statistics"
    return " ".join(row[1] for row in found.where(f"col_name = '{name}'").collect())


@pytest.mark.parametrize("auto", ["false", "true"])
@pytest.mark.parametrize("made", [PARQUET, SERDE, PARTITIONED], ids=["parquet", "serde", "partitioned"])
def test_statistics_are_of_the_rows_that_are_there(spark: SparkSession, made: str, auto: str) -> None:
    spark.conf.set(AUTO_UPDATE, auto)
    insert = filled(spark, made)
    spark.sql("ANALYZE TABLE t COMPUTE STATISTICS FOR ALL COLUMNS")
    assert "1 rows" in statistics(spark)
    spark.sql(insert.partition("VALUES")[0] + f"SELECT id {', 1' if made == PARTITIONED else ''} FROM range(5000)")
    now = statistics(spark)
    assert "1 rows" not in now
    assert int((now or "99999 bytes").partition(" ")[0]) > 5000
    assert auto == "false" or now
    assert int(spark._jsparkSession.table("t").queryExecution().analyzed().stats().sizeInBytes()) > 5000


def test_a_partitions_statistics_are_not_those_of_its_old_files(spark: SparkSession) -> None:
    filled(spark, PARTITIONED)
    spark.sql("ANALYZE TABLE t PARTITION (d) COMPUTE STATISTICS")
    assert "1 rows" in statistics(spark, "PARTITION (d = 1)")
    spark.sql("INSERT INTO t SELECT id, 1 FROM range(5000)")
    now = statistics(spark, "PARTITION (d = 1)")
    assert "rows" not in now
    assert int((now or "99999 bytes").partition(" ")[0]) > 5000


def test_a_table_that_grew_is_not_broadcast(spark: SparkSession) -> None:
    filled(spark, PARQUET)
    spark.sql("ANALYZE TABLE t COMPUTE STATISTICS")
    spark.sql("INSERT INTO t SELECT id FROM range(300000)")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "100k")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    joined = spark.range(10_000_000).join(spark.table("t"), "id")
    plan = str(joined._jdf.queryExecution().executedPlan().toString())
    spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    spark.conf.unset("spark.sql.adaptive.enabled")
    assert "BroadcastHashJoin" not in plan

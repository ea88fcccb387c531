"""An unchanged job that writes DataFrames: ``saveAsTable``, ``insertInto`` and ``writeTo`` of unprefixed names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.readwriter import DataFrameWriter

import twophase
from tests.spark.conftest import Start
from tests.spark.routed import MODE, by_stock_spark, drop_all, is_ours, partitioned, rows
from twophase import failpoints
from twophase.errors import AtomicityNotSupportedError
from twophase.spark.attach import Handle, handle_of
from twophase.spark.routing.patches import router_of

spark40_first_cases = True


@pytest.fixture(scope="module")
def spark(start: Start) -> SparkSession:
    session = start()
    twophase.attach(session)
    return session


@pytest.fixture
def handle(spark: SparkSession) -> Handle:
    return twophase.attach(spark)


@pytest.fixture(autouse=True)
def clean(spark: SparkSession) -> Iterator[None]:
    """Each test has the default database for itself."""
    yield
    drop_all(spark)


def completed(spark: SparkSession) -> int:
    """How many transactions the session has completed."""
    return sum(record.state.name == "COMPLETED" for record in handle_of(spark).timeline.transactions())


# -- saveAsTable -------------------------------------------------------------------------------------------------------


def test_a_table_that_is_there_is_ignored_whatever_the_rows_are(spark: SparkSession, handle: Handle) -> None:
    """Stock Spark does not look at them."""
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    before = handle.timeline.transactions()
    twice = spark.sql("SELECT 1 AS b, 2 AS b")
    twice.write.mode("ignore").partitionBy("missing").saveAsTable("t")
    with twophase.transaction(spark):
        twice.write.mode("ignore").saveAsTable("t")
    assert [r.id for r in handle.timeline.transactions()][: len(before)] == [r.id for r in before]
    assert rows(spark, "SELECT * FROM t") == [(1,)]


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("CREATE TABLE n PARTITIONED BY (a, b) AS SELECT 1 AS a, 2 AS b", "ALL_PARTITION_COLUMNS_NOT_ALLOWED"),
        ("CREATE TABLE n PARTITIONED BY (c) AS SELECT 1 AS a", "COLUMN_NOT_DEFINED_IN_TABLE"),
    ],
)
def test_what_the_catalog_refuses_as_spark_does_is_sparks_own_error(
    spark: SparkSession, text: str, condition: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        spark.sql(text)
    assert caught.value.getCondition() == condition


def test_an_external_table_without_a_place_is_sparks_own_error(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="must be accompanied by LOCATION"):
        spark.sql("CREATE EXTERNAL TABLE n USING parquet AS SELECT 1 AS a")


@pytest.mark.parametrize(
    ("layout", "condition"),
    [
        (lambda writer: writer.partitionBy("c"), "COLUMN_NOT_DEFINED_IN_TABLE"),
        (lambda writer: writer.partitionBy("a", "a"), "COLUMN_ALREADY_EXISTS"),
        (lambda writer: writer.partitionBy("a", "b"), "ALL_PARTITION_COLUMNS_NOT_ALLOWED"),
        (lambda writer: writer.bucketBy(2, "a").sortBy("c"), "COLUMN_NOT_DEFINED_IN_TABLE"),
        (lambda writer: writer.partitionBy("b").bucketBy(2, "b"), "_LEGACY_ERROR_TEMP_1166"),
        (lambda writer: writer.clusterBy("a", "a"), "COLUMN_ALREADY_EXISTS"),
    ],
)
@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_a_layout_that_spark_refuses_too_is_sparks_own_error(
    spark: SparkSession, layout: Callable[[Any], Any], condition: str, mode: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        layout(spark.sql("SELECT 1 AS a, 2 AS b").write.mode(mode)).saveAsTable("n")
    assert caught.value.getCondition() == condition
    assert not spark.catalog.tableExists("n")


@pytest.mark.parametrize(
    ("partitioning", "condition"),
    [
        (lambda: [F.col("c")], "COLUMN_NOT_DEFINED_IN_TABLE"),
        (lambda: [F.partitioning.bucket(2, "c")], "COLUMN_NOT_DEFINED_IN_TABLE"),
        (lambda: [F.col("a"), F.col("b")], "ALL_PARTITION_COLUMNS_NOT_ALLOWED"),
        (lambda: [F.partitioning.years("a")], "UNSUPPORTED_PARTITION_TRANSFORM"),
    ],
)
def test_a_layout_of_write_to_that_spark_refuses_too_is_sparks_own_error(
    spark: SparkSession, partitioning: Callable[[], list[Any]], condition: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.sql("SELECT 1 AS a, 2 AS b").writeTo("n").partitionedBy(*partitioning()).create()
    assert caught.value.getCondition() == condition


def test_what_is_refused_for_another_reason_than_its_layout_keeps_its_error(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    odd = spark.sql("SELECT 1 AS `my col`, 2 AS c")
    with pytest.raises(AnalysisException) as caught:
        odd.writeTo("t").partitionedBy(F.col("c")).create()
    assert caught.value.getCondition() == "TABLE_OR_VIEW_ALREADY_EXISTS"
    # Where Spark cannot be asked, the first refusal stands.
    router = router_of(spark)
    assert router is not None
    monkeypatch.setattr(router.reader, "analysed", lambda *_: 1 / 0)
    with pytest.raises(AnalysisException) as caught:
        odd.write.partitionBy("nope").saveAsTable("n")
    assert "nope" in str(caught.value)


@pytest.mark.parametrize("mode", ["append", "overwrite", "ignore", "error"])
def test_save_as_table_creates_in_every_mode(spark: SparkSession, mode: str) -> None:
    partitioned(spark).write.mode(mode).partitionBy("p").option("compression", "gzip").saveAsTable("t")
    assert rows(spark, "SELECT * FROM t") == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert is_ours(spark, "t")
    created = spark.sql("SHOW CREATE TABLE t").head()
    assert created is not None
    assert "PARTITIONED BY (p)" in created[0]
    assert "'compression' = 'gzip'" in created[0]


@pytest.mark.promise("routing", "`saveAsTable` on an existing table: a transaction in each mode that writes")
def test_save_as_table_on_an_existing_table(spark: SparkSession) -> None:
    frame = spark.range(2).select(F.col("id").alias("a"), F.lit("x").alias("b"))
    before = completed(spark)
    frame.write.saveAsTable("t")
    frame.write.mode("ignore").saveAsTable("t")
    with pytest.raises(AnalysisException) as caught:
        frame.write.saveAsTable("t")
    assert caught.value.getCondition() == "TABLE_OR_VIEW_ALREADY_EXISTS"
    assert spark.table("t").count() == 2
    frame.select("b", "a").write.mode("append").saveAsTable("t")  # by name
    assert rows(spark, "SELECT * FROM t") == [(0, "x"), (0, "x"), (1, "x"), (1, "x")]
    spark.range(1).write.mode("overwrite").format("orc").saveAsTable("t")
    assert rows(spark, "SELECT * FROM t") == [(0,)]
    assert is_ours(spark, "t")
    assert completed(spark) == before + 3


@pytest.mark.parametrize(
    ("columns", "condition"),
    [
        (["id", "p AS q"], "_LEGACY_ERROR_TEMP_1162"),
        (["id", "p AS id"], "AMBIGUOUS_REFERENCE"),
        (["id", "p", "p"], "_LEGACY_ERROR_TEMP_1161"),
    ],
)
def test_an_append_of_other_columns_is_refused_in_sparks_own_words(
    spark: SparkSession, columns: list[str], condition: str
) -> None:
    partitioned(spark).write.saveAsTable("t")
    with pytest.raises(AnalysisException) as caught:
        partitioned(spark).selectExpr(*columns).write.mode("append").saveAsTable("t")
    assert caught.value.getCondition() == condition
    partitioned(spark).selectExpr("p AS P", "id AS ID").write.mode("append").saveAsTable("t")
    assert rows(spark, "SELECT * FROM t WHERE id = 3") == [(3, 1), (3, 1)]
    assert is_ours(spark, "t")


def test_an_append_to_columns_that_are_nearly_called_alike_is_ours(spark: SparkSession) -> None:
    """Spark's rule is not Python's: what it takes for two names it does not refuse, and would write unprotected."""
    frame = spark.sql("SELECT 1 AS `straße`, 2 AS strasse")
    frame.write.saveAsTable("t")
    (before,) = handle_of(spark).timeline.transactions(limit=1)
    frame.selectExpr("strasse AS STRASSE", "`straße`").write.mode("append").saveAsTable("t")
    (after,) = handle_of(spark).timeline.transactions(limit=1)
    assert after.id != before.id
    assert rows(spark, "SELECT * FROM t") == [(1, 2), (1, 2)]


@pytest.mark.parametrize(
    "writer",
    [
        lambda df: df.write.format("csv"),
        lambda df: df.write.partitionBy("p"),
        lambda df: df.write.bucketBy(2, "id"),
        lambda df: df.write.clusterBy("id"),
        lambda df: df.write.option("path", "/nowhere"),
        lambda df: df.select("id").write,
        lambda df: df.withColumnRenamed("p", "q").write,
        lambda df: df.select(F.lit("x").alias("id"), "p").write,
    ],
    ids=["format", "partitions", "buckets", "clustering", "path", "count", "names", "types"],
)
def test_an_append_that_does_not_fit_is_refused(spark: SparkSession, writer: Any) -> None:
    frame = partitioned(spark)
    frame.write.saveAsTable("t")
    writer_of: DataFrameWriter = writer(frame)
    with pytest.raises(AnalysisException):
        writer_of.mode("append").saveAsTable("t")
    assert spark.table("t").count() == 4


def test_a_bucketed_table_can_be_appended_to(spark: SparkSession) -> None:
    for _ in range(2):
        frame = partitioned(spark)
        frame.write.mode("append").partitionBy("p").bucketBy(2, "id").sortBy("id").saveAsTable("t")
    assert spark.table("t").count() == 8


def clustering(spark: SparkSession, table: str = "t") -> str:
    (row,) = spark.sql(f"SHOW TBLPROPERTIES {table} ('clusteringColumns')").collect()
    return str(row.value)


@pytest.mark.promise("preserved", "`CLUSTER BY` is kept as Spark keeps it")
def test_a_table_that_is_clustered_by_columns_stays_so(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1 AS id, named_struct('x', 2) AS n, 3 AS `a.b`")
    for _ in range(2):
        frame.write.mode("append").clusterBy("id", "n.x", "`a.b`").saveAsTable("t")
    spark.sql("INSERT INTO t SELECT * FROM t")
    assert spark.table("t").count() == 4
    spark.sql("INSERT OVERWRITE t SELECT * FROM t LIMIT 1")
    assert (spark.table("t").count(), clustering(spark)) == (1, '[["id"],["n","x"],["a.b"]]')
    assert is_ours(spark, "t")

    frame.writeTo("t").clusterBy("id").createOrReplace()
    assert clustering(spark) == '[["id"]]'
    spark.sql("ALTER TABLE t CLUSTER BY (n)")
    for columns in (["id"], ["N"], ["n", "id"]):
        with pytest.raises(AnalysisException) as caught:
            frame.write.mode("append").clusterBy(*columns).saveAsTable("t")
        assert caught.value.getCondition() == "CLUSTERING_COLUMNS_MISMATCH"
    frame.write.mode("append").clusterBy("n").saveAsTable("hive.default.t")
    assert spark.table("t").count() == 2


def test_a_table_can_be_overwritten_with_what_is_read_from_it(spark: SparkSession) -> None:
    spark.range(3).write.saveAsTable("t")
    spark.table("t").where("id > 0").write.mode("overwrite").saveAsTable("t")
    assert rows(spark, "SELECT * FROM t") == [(1,), (2,)]


def test_a_temporary_view_of_the_name_is_no_obstacle(spark: SparkSession) -> None:
    spark.range(3).createOrReplaceTempView("t")
    spark.range(1).write.saveAsTable("t")
    assert spark.table("default.t").count() == 1
    assert spark.table("t").count() == 3
    spark.catalog.dropTempView("t")


@pytest.mark.parametrize("in_a_block", [False, True])
def test_a_view_of_the_name_is_refused_as_spark_refuses_it(spark: SparkSession, in_a_block: bool) -> None:
    spark.sql("CREATE VIEW v AS SELECT 1L AS id")
    refused = {"errorifexists": "TABLE_OR_VIEW_ALREADY_EXISTS", "append": "_LEGACY_ERROR_TEMP_1158"}
    try:
        with twophase.transaction(spark) if in_a_block else nullcontext():
            for mode, condition in refused.items():
                with pytest.raises(AnalysisException) as caught:
                    spark.range(1).write.mode(mode).saveAsTable("v")
                assert caught.value.getCondition() == condition
            spark.range(1).write.mode("ignore").saveAsTable("v")
        assert rows(spark, "SELECT * FROM v") == [(1,)]
    finally:
        spark.sql("DROP VIEW v")


def test_a_path_makes_an_external_table_there(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "table"
    spark.range(3).write.option("path", str(place)).saveAsTable("t")
    assert spark.catalog.getTable("t").tableType == "EXTERNAL"
    assert spark.read.parquet(str(place)).count() == 3


# -- insertInto and writeTo --------------------------------------------------------------------------------------------


@pytest.mark.promise("routing", "`insertInto` is a transaction, and goes by position")
def test_insert_into_goes_by_position(spark: SparkSession) -> None:
    partitioned(spark).write.partitionBy("p").saveAsTable("t")
    before = completed(spark)
    spark.range(1).selectExpr("7 AS p", "1 AS id").write.insertInto("t")
    assert (7, 1) in rows(spark, "SELECT * FROM t")
    assert completed(spark) == before + 1
    with pytest.raises(AnalysisException):
        spark.range(1).selectExpr("7", "1").write.partitionBy("7").insertInto("t")


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_insert_into_overwrites_what_the_mode_says(spark: SparkSession, mode: str) -> None:
    partitioned(spark).write.partitionBy("p").saveAsTable("t")
    spark.conf.set(MODE, mode)
    writer = spark.range(1).selectExpr("9L", "1L").write
    writer.insertInto("t", overwrite=True)
    assert rows(spark, "SELECT * FROM t") == ([(9, 1)] if mode == "static" else [(0, 0), (2, 0), (9, 1)])
    writer.insertInto("t")  # the writer was told to overwrite, and is so still
    assert len(rows(spark, "SELECT * FROM t")) == (1 if mode == "static" else 3)


def test_insert_into_a_temporary_view_is_sparks(spark: SparkSession) -> None:
    spark.range(1).createOrReplaceTempView("v")
    with pytest.raises(AnalysisException) as caught:
        spark.range(1).write.insertInto("v")
    assert caught.value.getCondition() == "UNSUPPORTED_INSERT.RDD_BASED"
    spark.catalog.dropTempView("v")


@pytest.mark.promise("routing", "each method of `writeTo` is a transaction")
def test_write_to_does_all_that_it_says(spark: SparkSession) -> None:
    frame, before = partitioned(spark), completed(spark)
    frame.writeTo("t").using("orc").option("compression", "zlib").tableProperty("k", "v").partitionedBy(
        F.col("p")
    ).create()
    created = spark.sql("SHOW CREATE TABLE t").head()
    assert created is not None
    assert all(
        part in created[0] for part in ("USING orc", "'compression' = 'zlib'", "'k' = 'v'", "PARTITIONED BY (p)")
    )
    frame.writeTo("t").append()
    assert spark.table("t").count() == 8
    spark.range(1).selectExpr("9L AS id", "1L AS p").writeTo("t").overwritePartitions()
    assert rows(spark, "SELECT * FROM t WHERE p = 1") == [(9, 1)]
    assert spark.table("t").where("p = 0").count() == 4
    spark.range(1).selectExpr("8L AS id", "0L AS p").writeTo("t").overwrite(F.col("p") == 0)
    assert rows(spark, "SELECT * FROM t") == [(8, 0), (9, 1)]
    spark.range(1).selectExpr("7L AS id", "1L AS p").writeTo("t").overwrite(F.col("p") == 0)
    assert rows(spark, "SELECT * FROM t") == [(7, 1), (9, 1)], "Rows that no condition named were to stay."
    with pytest.raises(AtomicityNotSupportedError, match="by a condition"):
        spark.range(1).selectExpr("7L AS id", "1L AS p").writeTo("t").overwrite(F.col("id") == 7)
    both = spark.range(1).selectExpr("7L AS id", "1L AS p").writeTo("t")
    for other in (F.col("p") == 0, F.col("P").isNull()):
        with pytest.raises(AtomicityNotSupportedError, match="by a condition"):
            both.overwrite((F.col("p") == 1) & other)  # That is no partition.
    spark.range(2).writeTo("t").createOrReplace()
    spark.range(3).writeTo("t").replace()
    assert spark.table("t").count() == 3
    assert is_ours(spark, "t")
    assert completed(spark) == before + 7


@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "in a transaction"])
def test_write_to_a_missing_table_is_sparks_error(spark: SparkSession, grouped: bool) -> None:
    with pytest.raises(AnalysisException) as caught, twophase.transaction(spark) if grouped else nullcontext():
        spark.range(1).writeTo("missing").append()
    assert caught.value.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"


def test_a_create_that_loses_to_another_writer_during_its_job_is_sparks_error(spark: SparkSession) -> None:
    failpoints.arm("core.write", lambda _: by_stock_spark(spark, "CREATE TABLE late (other INT) USING parquet"))
    try:
        with pytest.raises(AnalysisException) as caught:
            spark.sql("CREATE TABLE late AS SELECT 1 AS id")
    finally:
        failpoints.disarm()
    assert caught.value.getCondition() == "TABLE_OR_VIEW_ALREADY_EXISTS"
    assert spark.table("late").columns == ["other"]

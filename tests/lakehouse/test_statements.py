"""Statements through a real session: one session, one lake, plain Spark; read back by three readers."""

from __future__ import annotations

import datetime
import gc
import re
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any
from weakref import ref

import pyarrow.parquet as pq
import pytest
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import LongType, StringType, TimestamptzType
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

import twophase
from tests.lakehouse.shop import DATABASE, Shop
from tests.levels import Levels
from twophase import failpoints
from twophase.errors import CatalogError, TransactionAborted, WriteConflictError
from twophase.failpoints import FailpointError
from twophase.model import Level, Purpose
from twophase.spark.connector.table import TableProxy

spark40_first_cases = True

#: What holds the Iceberg catalog of the session.
KIND = "sqlite"


def plan_of(frame: DataFrame) -> str:
    """The physical plan of a query."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.promise(
    "iceberg-sql",
    "`CREATE TABLE AS SELECT`, `saveAsTable`, `writeTo(...).create()`, any partition transform: atomic",
)
def test_create_is_seen_at_the_publish_and_not_before(shop: Shop) -> None:
    seen: list[Any] = []
    levels = Levels(shop.spark)
    failpoints.arm("core.publish", lambda _: seen.append(shop.spark.catalog.tableExists(shop.name("daily"))))
    shop.sql("CREATE TABLE @daily COMMENT 'by day' AS SELECT id, CAST(id AS STRING) AS name FROM range(3)")
    assert (seen, levels()) == ([False], {Level.ATOMIC})
    assert shop.rows("daily") == [(0, "0"), (1, "1"), (2, "2")]
    assert shop.iceberg("daily").properties["comment"] == "by day"


def test_all_purposes_through_sql_and_the_dataframe_writers(shop: Shop) -> None:
    df = shop.spark.range(2)
    shop.sql("CREATE TABLE IF NOT EXISTS @t AS SELECT 9L AS id")
    shop.sql("CREATE TABLE IF NOT EXISTS @t AS SELECT 8L AS id")
    df.writeTo(shop.name("t")).append()
    assert shop.rows("t") == [(0,), (1,), (9,)]
    df.write.mode("append").saveAsTable(shop.name("t"))
    df.write.insertInto(shop.name("t"))
    assert len(shop.rows("t")) == 7
    shop.sql("INSERT OVERWRITE @t SELECT 5L")
    assert shop.rows("t") == [(5,)]
    df.writeTo(shop.name("t")).createOrReplace()
    shop.sql("REPLACE TABLE @t AS SELECT 7L AS id, 'x' AS name")
    assert shop.rows("t") == [(7, "x")]
    df.write.mode("overwrite").saveAsTable(shop.name("t"))
    df.writeTo(shop.name("u")).create()
    assert twophase.create_table_as(df, "lake", (DATABASE, "v")) is not None
    assert shop.rows("t") == shop.rows("u") == shop.rows("v") == [(0,), (1,)]


def test_the_format_of_icebergs_own_jobs_is_as_none(shop: Shop) -> None:
    df, name = shop.spark.range(1), shop.name("t")
    df.write.format("iceberg").saveAsTable(name)
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        df.write.format("iceberg").saveAsTable(name)
    df.write.saveAsTable(name, format="Iceberg", mode="append")
    df.write.format("iceberg").mode("ignore").saveAsTable(name)
    df.write.format("iceberg").insertInto(name)
    assert shop.rows("t") == [(0,), (0,), (0,)]
    df.write.format("iceberg").insertInto(name, overwrite=True)
    assert shop.rows("t") == [(0,)]
    df.selectExpr("id", "2 AS n").write.format("iceberg").mode("overwrite").saveAsTable(name)
    assert shop.rows("t") == [(0, 2)]
    for mode in ("append", "overwrite", "ignore", "error"):
        with pytest.raises(CatalogError, match=r"no.* format delta; nothing was started.*format\('iceberg'\)"):
            df.write.format("delta").mode(mode).saveAsTable(name if mode != "ignore" else shop.name("u"))
    with pytest.raises(CatalogError, match="format delta"):
        df.write.format("delta").insertInto(name)
    assert shop.rows("t") == [(0, 2)]


def test_every_snapshot_names_its_transaction(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1 AS id")
    with twophase.transaction(shop.spark) as tx:
        shop.sql("INSERT INTO @t SELECT 2")
    snapshots = shop.iceberg("t").metadata.snapshots
    # The keys as they are stored in the users' tables: a recovery looks for them.
    named = [snapshot.summary["twophase.transaction-id"] for snapshot in snapshots]
    assert all(snapshot.summary["twophase.participant"] for snapshot in snapshots)
    assert named[-1] == tx.id
    assert len(set(named)) == 2


@pytest.mark.promise("types", "every type makes the round trip through Spark, PyIceberg and iceberg-rust")
def test_every_type_makes_the_round_trip(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE @t AS SELECT true AS b, CAST(1 AS TINYINT) AS i8, CAST(2 AS SMALLINT) AS i16, 3 AS i32,"
        " 4L AS i64,"
        " CAST(1.5 AS FLOAT) AS f, 2.5D AS d, CAST(1.23 AS DECIMAL(9,2)) AS d9, CAST(1.23 AS DECIMAL(18,2)) AS d18,"
        " CAST(-1.23 AS DECIMAL(38,2)) AS d38, 'ä' AS s, X'00FF' AS bin, DATE'1500-02-28' AS old,"
        " DATE'2024-02-29' AS day,"
        " TIMESTAMP'1582-10-04 23:59:59.999999' AS ts, TIMESTAMP_NTZ'2024-03-31 02:30:00' AS local,"
        " named_struct('a', 1, 'b', named_struct('c', 'x')) AS st, array(named_struct('e', 1L), NULL) AS l,"
        " map('k', array(1, NULL)) AS m, CAST(NULL AS STRING) AS nothing"
    )
    (row,) = shop.rows("t")
    assert row[:7] == (True, 1, 2, 3, 4, 1.5, 2.5)
    assert row[9:14] == (Decimal("-1.23"), "ä", b"\x00\xff", datetime.date(1500, 2, 28), datetime.date(2024, 2, 29))
    assert row[16:] == ((1, ("x",)), ((1,), None), (("k", (1, None)),), None)
    kinds = {field.name: str(field.field_type) for field in shop.iceberg("t").schema().fields}
    assert kinds["i8"] == kinds["i16"] == "int"
    assert (kinds["ts"], kinds["local"]) == ("timestamptz", "timestamp")


@pytest.mark.parametrize(
    ("expression", "word"),
    [
        ("INTERVAL '1' DAY", "interval"),
        ("NULL", "void"),
        ("INTERVAL '1' MONTH", "interval"),
        ("array(NULL)", "void"),
        ("'a' COLLATE UNICODE_CI", "string collate UNICODE_CI"),
        ("named_struct('a', array('a' COLLATE UTF8_LCASE))", "string collate UTF8_LCASE"),
    ],
)
def test_a_type_that_iceberg_lacks_is_refused_before_any_job(shop: Shop, expression: str, word: str) -> None:
    with pytest.raises(CatalogError, match=word):
        shop.sql(f"CREATE TABLE @t AS SELECT {expression} AS x, raise_error('a job ran') AS y")
    assert shop.lake.files() == set()


def test_texts_with_a_collation_are_added_to_plain_ones(shop: Shop) -> None:
    rows = "SELECT 'a' COLLATE UNICODE_CI AS x"
    shop.sql("CREATE TABLE @t (x STRING)")
    shop.sql(f"INSERT INTO @t {rows}")
    shop.spark.sql(rows).writeTo(shop.name("t")).option("mergeSchema", "true").append()
    twophase.create_table_as(shop.spark.sql(rows), "lake", (DATABASE, "t"), purpose=Purpose.INSERT_INTO)
    assert shop.read("SELECT * FROM @t") == [("a",)] * 3
    with pytest.raises(CatalogError, match="string collate UNICODE_CI"):
        more = shop.spark.sql("SELECT 'a' AS x, 'b' COLLATE UNICODE_CI AS more")
        more.writeTo(shop.name("t")).option("mergeSchema", "true").append()


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("CREATE TABLE @u (id INT, twice INT GENERATED ALWAYS AS (id * 2))", "does not support generated columns"),
        ("ALTER TABLE @t ADD CONSTRAINT positive CHECK (id > 0)", "does not support"),
        ("CREATE TABLE @u (id INT PRIMARY KEY)", "does not support"),
        ("CREATE TABLE @u (id BIGINT GENERATED ALWAYS AS IDENTITY)", "(?i)identity"),
        ("CREATE TABLE @u (name STRING COLLATE UNICODE_CI)", "string collate UNICODE_CI"),
        ("CREATE TABLE @u (name STRING) DEFAULT COLLATION UNICODE_CI", "string collate UNICODE_CI"),
    ],
)
def test_what_iceberg_lacks_is_refused_in_the_words_of_spark_or_ours(shop: Shop, statement: str, word: str) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id")
    with pytest.raises((PySparkException, CatalogError), match=word):
        shop.sql(statement)
    assert [row.tableName for row in shop.sql(f"SHOW TABLES IN lake.{DATABASE}").collect()] == ["t"]


@pytest.mark.promise("types", "partition values are Iceberg's own", detail=True)
def test_partition_values_are_icebergs_own(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE @t PARTITIONED BY (bucket(8, id), days(ts), truncate(2, name), part) AS SELECT id,"
        " TIMESTAMP'2024-01-01 20:30:00' + make_dt_interval(0, CAST(id AS INT)) AS ts, 'ä' || id AS name,"
        " CASE WHEN id % 4 = 0 THEN '' WHEN id % 4 = 1 THEN NULL WHEN id % 4 = 2 THEN 'a=/%b' ELSE 'z' END AS part"
        " FROM range(-20, 20)"
    )
    table = shop.iceberg("t")
    assert len(shop.rows("t")) == 40
    bucket, day, cut = (BucketTransform(8), DayTransform(), TruncateTransform(2))
    expected = {
        (
            bucket.transform(LongType())(row["id"]),
            day.transform(TimestamptzType())(int(row["ts"].timestamp()) * 1_000_000),
            cut.transform(StringType())(row["name"]),
            row["part"],
        )
        for row in table.scan().to_arrow().to_pylist()
    }
    assert {tuple(task.file.partition._data) for task in table.scan().plan_files()} == expected


def test_sparks_writer_and_pyiceberg_agree_on_each_transform(shop: Shop) -> None:
    """A file whose rows are not of one partition by PyIceberg's transform would be refused at the write."""
    columns = (
        "id - 10 AS n, CAST(id * 1000003 - 9223372036854775807L AS BIGINT) AS big,"
        " CAST((id - 10) / 8.0 AS DECIMAL(20,3)) AS d,"
        " date_add(DATE'1969-12-20', CAST(id AS INT)) AS day, 'äöü' || id AS s, CAST('äö' || id AS BINARY) AS bin,"
        " TIMESTAMP'1969-12-31 12:34:56.789' + make_dt_interval(0, CAST(id * 7 AS INT)) AS ts,"
        " TIMESTAMP_NTZ'1969-12-30 12:34:56.789' + make_dt_interval(0, CAST(id * 7 AS INT)) AS local"
    )
    for number, transforms in enumerate(
        (
            "truncate(3, n), truncate(7, d), truncate(4, s), truncate(3, bin)",
            "truncate(1000, big), years(day), years(ts), years(local)",
            "months(day), months(ts), months(local)",
            "days(day), hours(ts), hours(local)",
            "day, bin, d, local",
        )
    ):
        shop.sql(f"CREATE TABLE @t{number} PARTITIONED BY ({transforms}) AS SELECT {columns} FROM range(1, 25)")
        assert len(shop.rows(f"t{number}")) == 24


@pytest.mark.parametrize(("kind", "lowest"), [("INT", -(2**31)), ("BIGINT", -(2**63)), ("DECIMAL(9, 0)", -999_999_999)])
def test_a_number_whose_partition_is_below_its_type_is_refused_in_words(shop: Shop, kind: str, lowest: int) -> None:
    shop.sql(f"CREATE TABLE @t (n {kind}) PARTITIONED BY (truncate(10, n))")
    with pytest.raises(CatalogError, match=rf"The value {lowest} belongs to the partition .* of truncate\(10\)"):
        shop.sql(f"INSERT INTO @t VALUES (CAST('{lowest}' AS {kind}))")
    shop.sql(f"INSERT INTO @t VALUES (CAST('{lowest + 10}' AS {kind}))")
    assert shop.rows("t") == [(lowest + 10,)]


def test_conditions_compare_all_digits_of_a_decimal(shop: Shop) -> None:
    most = "9" * 36
    values = {1: f"{most}.99", 2: f"{most}.98", 3: f"-{most}.99", 4: "0.01"}
    shop.sql("CREATE TABLE @t (id INT, d DECIMAL(38, 2)) PARTITIONED BY (bucket(3, d))")
    for number, value in values.items():
        shop.sql(f"INSERT INTO @t VALUES ({number}, CAST('{value}' AS DECIMAL(38, 2)))")
    one = f"CAST('{values[1]}' AS DECIMAL(38, 2))"
    for condition, ids in ((f"d = {one}", [1]), (f"d < {one}", [2, 3, 4]), (f"d IN ({one}, 0.01)", [1, 4])):
        assert sorted(shop.read(f"SELECT id FROM @t WHERE {condition}")) == [(number,) for number in ids]
    shop.sql(f"DELETE FROM @t WHERE d >= {one}")
    assert len(shop.rows("t")) == 3


def test_files_are_left_out_by_partition_and_by_statistics(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t PARTITIONED BY (part) AS SELECT id, id % 3 AS part FROM range(30)")
    shop.sql("INSERT INTO @t SELECT id, 0L FROM range(1000, 1010)")
    for condition, files, rows in (("part = 1", 1, 10), ("id >= 1000", 1, 10), ("part = 2 AND id > 1000", 0, 0)):
        found = shop.sql(f"SELECT * FROM @t WHERE {condition}")
        (scan,) = re.findall(r"InMemoryFileIndex\((\d+) paths\)", plan_of(found))
        assert int(scan) == files
        assert found.count() == rows


def test_bounds_that_only_some_row_groups_tell_are_not_told(shop: Shop) -> None:
    """Parquet keeps no bounds of very long texts: those of other row groups are not the file's."""
    shop.spark.conf.set("parquet.block.size", "4096")
    try:
        rows = "SELECT id, IF(id = 5, repeat('z', 5000), 'a') AS x FROM range(0, 20000, 1, 1)"
        shop.sql(f"CREATE TABLE @t TBLPROPERTIES ('write.metadata.metrics.default' = 'full') AS {rows}")
    finally:
        shop.spark.conf.unset("parquet.block.size")
    table = shop.iceberg("t")
    (task,) = table.scan().plan_files()
    assert len(task.file.split_offsets) > 1
    assert table.schema().find_field("x").field_id not in task.file.lower_bounds
    assert table.scan(row_filter="x > 'y'").to_arrow().num_rows == 1


@pytest.mark.promise("iceberg-sql", "`REPLACE` keeps history and properties: atomic")
def test_a_replace_keeps_history_and_properties(shop: Shop) -> None:
    levels = Levels(shop.spark)
    shop.sql("CREATE TABLE @t TBLPROPERTIES ('team' = 'a') AS SELECT 1L AS id, 'x' AS name")
    first = shop.iceberg("t")
    shop.sql("REPLACE TABLE @t TBLPROPERTIES ('more' = 'b') AS SELECT 2L AS id, 1 AS name")
    now = shop.iceberg("t")
    assert now.metadata.table_uuid == first.metadata.table_uuid
    assert (now.properties["team"], now.properties["more"]) == ("a", "b")
    assert (shop.rows("t"), levels()) == ([(2, 1)], {Level.ATOMIC})
    assert shop.read(f"SELECT * FROM @t VERSION AS OF {first.metadata.current_snapshot_id}") == [(1, "x")]
    # A column that goes on keeps its id; one of another type is another column.
    assert now.schema().find_field("id").field_id == first.schema().find_field("id").field_id
    assert now.schema().find_field("name").field_id > first.schema().find_field("name").field_id


@pytest.mark.promise("iceberg-sql", "several tables of one Iceberg catalog: one SQL transaction, atomic")
def test_several_tables_appear_together_or_not_at_all(shop: Shop) -> None:
    shop.sql("CREATE TABLE @a AS SELECT 1 AS id")
    with twophase.transaction(shop.spark) as tx:
        shop.sql("INSERT INTO @a SELECT 2")
        shop.sql("CREATE TABLE @b AS SELECT * FROM @a")
        shop.sql("INSERT INTO @b SELECT 3")
        assert shop.read("SELECT * FROM @b") == [(1,), (2,), (3,)]
        assert shop.lake.rows(shop.path("a")) == [(1,)]
    assert tx.level is Level.ATOMIC
    assert shop.rows("a") == [(1,), (2,)]
    assert shop.rows("b") == [(1,), (2,), (3,)]
    with pytest.raises(PySparkException, match="no"), twophase.transaction(shop.spark):
        shop.sql("INSERT OVERWRITE @a SELECT 9")
        shop.sql("CREATE TABLE @c AS SELECT CAST(raise_error('no') AS STRING) AS x")
    assert shop.rows("a") == [(1,), (2,)]
    assert not shop.spark.catalog.tableExists(shop.name("c"))


@pytest.mark.promise("blocks", "each statement of a block goes on from what the earlier ones have left")
@pytest.mark.parametrize(
    ("statements", "rows"),
    [
        (("INSERT OVERWRITE @t VALUES (1, 'a')", "INSERT OVERWRITE @t VALUES (2, 'a')"), [(2, "a")]),
        (
            ("INSERT OVERWRITE @t PARTITION (p = 'a') VALUES (1)", "INSERT OVERWRITE @t VALUES (2, 'b')"),
            [(2, "b")],
        ),
        (
            (
                "INSERT OVERWRITE @t VALUES (1, 'a')",
                "INSERT INTO @t VALUES (2, 'b')",
                "INSERT OVERWRITE @t VALUES (3, 'a')",
                "INSERT OVERWRITE @t PARTITION (p = 'b') VALUES (4)",
            ),
            [(3, "a"), (4, "b")],
        ),
    ],
)
def test_a_table_that_a_block_overwrites_twice_can_be_read(
    shop: Shop, statements: tuple[str, ...], rows: list[object]
) -> None:
    shop.sql("CREATE TABLE @t PARTITIONED BY (p) AS SELECT * FROM VALUES (7, 'a'), (8, 'b') AS (id, p)")
    shop.sql("INSERT INTO @t VALUES (9, 'a')")
    with twophase.transaction(shop.spark):
        for statement in statements:
            shop.sql(statement)
        assert sorted(shop.read("SELECT * FROM @t")) == rows
    assert sorted(shop.rows("t")) == rows
    (removed,) = [s.summary["deleted-records"] for s in shop.iceberg("t").metadata.snapshots[-1:]]
    assert removed == "3"


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE @n AS", "REPLACE TABLE @t AS", "INSERT INTO @t", "INSERT OVERWRITE @t"]
)
def test_a_failing_query_leaves_everything_as_it_was(shop: Shop, statement: str) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id, 1L AS x")
    before = shop.lake.files()
    with pytest.raises(PySparkException, match="boom"):
        shop.sql(f"{statement} SELECT id, CASE WHEN id = 99 THEN raise_error('boom') ELSE id END AS x FROM range(100)")
    assert shop.rows("t") == [(1, 1)]
    assert shop.lake.files() == before


def test_a_replace_does_not_lose_a_concurrent_append(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id")
    with shop.lake.iceberg() as other:
        table = other.load_table((DATABASE, "t"))
        failpoints.arm("core.publish", lambda _: table.append(table.scan().to_arrow()), nth=1)
        with pytest.raises(WriteConflictError, match="meanwhile"):
            shop.sql("REPLACE TABLE @t AS SELECT 2L AS id")
    assert shop.rows("t") == [(1,), (1,)]


@pytest.mark.promise(
    "lost-updates",
    "rows read from an Iceberg table before another writer's commit are not written over it",
)
@pytest.mark.parametrize(
    "write",
    [
        lambda df, name: df.write.insertInto(name, overwrite=True),
        lambda df, name: df.write.mode("overwrite").saveAsTable(name),
        lambda df, name: df.writeTo(name).overwritePartitions(),
        lambda df, name: df.writeTo(name).createOrReplace(),
        lambda df, name: df.cache().write.insertInto(name, overwrite=True),
        lambda df, name: _written(df, name, Purpose.INSERT_OVERWRITE),
        lambda df, name: _written(df, name, Purpose.REPLACE_TABLE_AS),
    ],
)
def test_rows_that_were_read_before_another_writers_commit_are_not_written_over_it(shop: Shop, write: Any) -> None:
    shop.sql("CREATE TABLE @t PARTITIONED BY (p) AS SELECT id, id % 2 AS p FROM range(4)")
    old = shop.spark.table(shop.name("t")).selectExpr("id + 10 AS id", "p")
    theirs = shop.iceberg("t")
    theirs.append(theirs.scan(row_filter="id = 1").to_arrow())
    with pytest.raises(WriteConflictError):
        write(old, shop.name("t"))
    shop.spark.catalog.clearCache()
    shop.sql("REFRESH TABLE @t")
    assert shop.rows("t") == [(0, 0), (1, 1), (1, 1), (2, 0), (3, 1)]
    write(shop.spark.table(shop.name("t")).selectExpr("id + 10 AS id", "p"), shop.name("t"))
    assert shop.rows("t") == [(10, 0), (11, 1), (11, 1), (12, 0), (13, 1)]


def _written(df: Any, name: str, purpose: Purpose) -> None:
    catalog, *path = name.split(".")
    twophase.create_table_as(df, catalog, path, purpose=purpose)


def collect_garbage(spark: SparkSession, proxies: list[ref[TableProxy]]) -> None:
    """Until Java and Python have let go of some proxies."""
    deadline = time.monotonic() + 60
    while any(proxy() is not None for proxy in proxies):
        assert time.monotonic() < deadline, "Something holds a table that no DataFrame reads."
        gc.collect()
        spark._jvm.System.gc()


def test_rows_that_were_read_are_known_as_old_after_another_dataframe_of_their_version_is_gone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read one version of the table, which is remembered for as long as any DataFrame reads it."""
    proxies: list[ref[TableProxy]] = []
    reads_version = TableProxy._reads_version
    monkeypatch.setattr(
        TableProxy, "_reads_version", lambda self, version: (proxies.append(ref(self)), reads_version(self, version))
    )
    shop.sql("CREATE TABLE @t AS SELECT id FROM range(2)")
    old = shop.spark.read.table(shop.name("t")).selectExpr("id + 10 AS id")
    proxies.clear()
    other = shop.spark.read.table(shop.name("t"))
    assert proxies
    del other
    collect_garbage(shop.spark, proxies)
    shop.spark.newSession().sql(f"INSERT INTO {shop.name('t')} VALUES (2)")
    with pytest.raises(WriteConflictError):
        old.write.insertInto(shop.name("t"), overwrite=True)
    shop.sql("REFRESH TABLE @t")
    assert shop.rows("t") == [(0,), (1,), (2,)]


def test_rows_of_one_partition_are_written_back_whatever_came_into_others(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t PARTITIONED BY (p) AS SELECT id, id % 2 AS p FROM range(4)")
    first = shop.iceberg("t").metadata.current_snapshot_id
    old = shop.spark.table(shop.name("t")).where("p = 0").selectExpr("id + 10 AS id", "p")
    theirs = shop.iceberg("t")
    theirs.append(theirs.scan(row_filter="id = 1").to_arrow())
    old.writeTo(shop.name("t")).overwritePartitions()
    assert shop.rows("t") == [(1, 1), (1, 1), (10, 0), (12, 0), (3, 1)]
    shop.sql(f"INSERT OVERWRITE @t SELECT * FROM @t VERSION AS OF {first}")  # Somebody wants just that.
    assert shop.rows("t") == [(0, 0), (1, 1), (2, 0), (3, 1)]


@pytest.mark.promise("lost-updates", "in a block an overwrite of an Iceberg table rests on what the block has read")
def test_in_a_block_an_overwrite_rests_on_what_the_block_has_read(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT id FROM range(2)")
    with pytest.raises(WriteConflictError, match="has read it"), twophase.transaction(shop.spark):
        (total,) = shop.sql("SELECT sum(id) FROM @t").first()
        theirs = shop.iceberg("t")
        theirs.append(theirs.scan().to_arrow())
        shop.sql(f"INSERT OVERWRITE @t SELECT {total}L")
    assert shop.rows("t") == [(0,), (0,), (1,), (1,)]


@pytest.mark.promise("appends", "concurrent overwrites of different partitions of an Iceberg table all land")
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_overwrites_of_different_partitions_from_threads_of_one_job_all_land(shop: Shop, mode: str) -> None:
    shop.sql("CREATE TABLE @t PARTITIONED BY (p) AS SELECT id, id % 8 AS p FROM range(16)")
    name = shop.name("t")

    def overwrite(p: int) -> None:
        if mode == "static":
            shop.sql(f"INSERT OVERWRITE @t PARTITION (p = {p}) SELECT id + 100 FROM range(2)")
        else:
            shop.spark.range(100, 102).selectExpr("id", f"{p}L AS p").writeTo(name).overwritePartitions()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(overwrite, range(8)))
    assert shop.rows("t") == [(row, p) for row in (100, 101) for p in range(8)]


def test_a_publish_that_fails_for_good_leaves_nothing(shop: Shop) -> None:
    failpoints.arm("lakehouse.swap", "error")
    with pytest.raises((TransactionAborted, FailpointError)):
        shop.sql("CREATE TABLE @t AS SELECT 1L AS id")
    failpoints.disarm()
    assert not shop.spark.catalog.tableExists(shop.name("t"))
    assert shop.lake.files() == set()


def test_databases_and_tables_are_described_renamed_and_dropped(shop: Shop) -> None:
    shop.sql("CREATE DATABASE lake.extra COMMENT 'more' WITH DBPROPERTIES ('k' = 'v')")
    assert ("Comment", "more") in shop.read("DESCRIBE DATABASE lake.extra")
    shop.sql("CREATE TABLE lake.extra.t (id BIGINT COMMENT 'key', at TIMESTAMP NOT NULL) PARTITIONED BY (hours(at))")
    assert ("id", "bigint", "key") in shop.read("DESCRIBE TABLE lake.extra.t")
    shop.sql("ALTER TABLE lake.extra.t SET TBLPROPERTIES ('a' = '1', 'b' = '2')")
    shop.sql("ALTER TABLE lake.extra.t UNSET TBLPROPERTIES ('a')")
    shop.sql("ALTER TABLE lake.extra.t RENAME TO lake.extra.u")
    assert ("b", "2") in shop.read("SHOW TBLPROPERTIES lake.extra.u")
    with pytest.raises(AnalysisException):
        shop.sql("DROP DATABASE lake.extra")
    shop.sql("DROP TABLE lake.extra.u PURGE")
    shop.sql("DROP DATABASE lake.extra")
    assert shop.lake.files() == set()


def test_explain_begins_nothing(shop: Shop) -> None:
    shop.sql("EXPLAIN CREATE TABLE @t AS SELECT 1 AS id").collect()
    assert shop.lake.execute("SELECT * FROM twophase_staged WHERE state = 'staged'") == []
    assert shop.lake.files() == set()


# -- sort order and size of files --------------------------------------------------------------------------------------


def files_of(shop: Shop, table: str) -> list[Any]:
    """The data files of a table, as Iceberg has them, and each one's rows as they stand in it."""
    tasks = sorted(shop.iceberg(table).scan().plan_files(), key=lambda task: str(task.file.partition))
    local = [task.file.file_path.removeprefix("file://") for task in tasks]
    return [
        (task.file, pq.read_table(file, partitioning=None).to_pylist()) for task, file in zip(tasks, local, strict=True)
    ]


@pytest.mark.promise("preserved", "each file of an Iceberg table is sorted by the table's sort order")
def test_each_file_is_sorted_by_the_tables_order(shop: Shop) -> None:
    rows = (
        "SELECT id % 3 AS part, 1000 - id AS id, if(id % 7 = 0, NULL, CAST(id % 11 AS STRING)) AS name FROM range(900)"
    )
    shop.sql(f"""CREATE TABLE @t PARTITIONED BY (part)
        TBLPROPERTIES ('sort-order' = 'name DESC NULLS FIRST, `id`') AS {rows}""")
    shop.sql(f"INSERT INTO @t {rows}")
    order = shop.iceberg("t").sort_order()
    assert [(f.source_id, str(f.direction), str(f.null_order)) for f in order.fields] == [
        (3, "DESC", "NULLS FIRST"),
        (2, "ASC", "NULLS FIRST"),
    ]
    found = files_of(shop, "t")
    assert len(found) >= 6
    for file, in_it in found:
        assert file.sort_order_id == order.order_id
        by_id = sorted(in_it, key=lambda row: row["id"])
        named = sorted((row for row in by_id if row["name"]), key=lambda row: row["name"], reverse=True)
        assert in_it == [*(row for row in by_id if row["name"] is None), *named]
    shown = {row.key: row.value for row in shop.sql("SHOW TBLPROPERTIES @t").collect()}
    assert shown["sort-order"] == "name DESC NULLS FIRST, id ASC NULLS FIRST"


def test_files_that_spark_cannot_write_are_sorted_too(shop: Shop) -> None:
    shop.sql("""CREATE TABLE @t PARTITIONED BY (bucket(2, part)) TBLPROPERTIES ('sort-order' = 'truncate(1, name), id')
        AS SELECT id % 4 AS part, 100 - id AS id, array(id) AS more, CAST(id % 13 AS STRING) AS name FROM range(100)""")
    order = shop.iceberg("t").sort_order().order_id
    for file, in_it in files_of(shop, "t"):
        assert file.sort_order_id == order
        keys = [(row["name"][:1], row["id"]) for row in in_it]
        assert keys == sorted(keys)


def test_a_sort_order_of_another_engine_is_kept_and_followed(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id, TIMESTAMP'2024-01-01 00:00:00' AS at")
    table = shop.iceberg("t")
    with table.update_sort_order() as update:
        update.desc("at", DayTransform(), NullOrder.NULLS_LAST).asc("id", IdentityTransform(), NullOrder.NULLS_LAST)
    rows = "SELECT id, TIMESTAMP'2024-01-01 00:00:00' + make_interval(0, 0, 0, id % 5, id % 24) AS at FROM range(200)"
    shop.sql(f"INSERT INTO @t {rows}")
    added = [(file, in_it) for file, in_it in files_of(shop, "t") if file.sort_order_id == 1]
    assert sum(len(in_it) for _, in_it in added) == 200
    for _, in_it in added:
        keys = [(-(row["at"].timestamp() // 86_400), row["id"]) for row in in_it]
        assert keys == sorted(keys)


def test_a_replace_keeps_the_sort_order_as_far_as_its_columns_stay(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t TBLPROPERTIES ('sort-order' = 'id DESC') AS SELECT 1L AS id")
    shop.sql("CREATE OR REPLACE TABLE @t AS SELECT id, 'x' AS name FROM range(0, 5, 1, 1)")
    ((file, in_it),) = files_of(shop, "t")
    assert (file.sort_order_id, [row["id"] for row in in_it]) == (1, [4, 3, 2, 1, 0])
    shop.sql("CREATE OR REPLACE TABLE @t TBLPROPERTIES ('sort-order' = 'other') AS SELECT 'a' AS other")
    assert [file.sort_order_id for file, _ in files_of(shop, "t")] == [2]
    shop.sql("CREATE OR REPLACE TABLE @t AS SELECT 'a' AS another")
    assert shop.iceberg("t").sort_order().is_unsorted


def test_a_sort_order_changes_and_ends_with_alter_table(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t (id BIGINT, name STRING) TBLPROPERTIES ('sort-order' = 'id')")
    with pytest.raises(CatalogError, match="sorted by id"):
        shop.sql("ALTER TABLE @t DROP COLUMN id")
    shop.sql("ALTER TABLE @t SET TBLPROPERTIES ('sort-order' = 'name')")
    shop.sql("ALTER TABLE @t DROP COLUMN id")
    shop.sql("ALTER TABLE @t RENAME COLUMN name TO title")
    assert "title ASC" in str(shop.sql("SHOW TBLPROPERTIES @t").collect())
    shop.sql("ALTER TABLE @t UNSET TBLPROPERTIES ('sort-order')")
    shop.sql("INSERT INTO @t VALUES ('b'), ('a')")
    assert shop.iceberg("t").sort_order().is_unsorted
    assert {file.sort_order_id for file, _ in files_of(shop, "t")} <= {None, 0}


@pytest.mark.parametrize(
    "order", ["missing", "id,", "id UP", "bucket(2, id)", "truncate(0, name)", "items", "", "id NULLS", "(id)"]
)
def test_a_bad_sort_order_is_refused_before_any_job(shop: Shop, order: str) -> None:
    with pytest.raises(CatalogError, match="sort order"):
        shop.sql(f"""CREATE TABLE @bad TBLPROPERTIES ('sort-order' = '{order}')
            AS SELECT CAST(raise_error('it ran') AS INT) AS ran, 1L AS id, 'a' AS name, array(1) AS items""")
    assert not shop.spark.catalog.tableExists(shop.name("bad"))


@pytest.mark.parametrize("columns", ["id, uuid() AS name", "id, uuid() AS name, array(id) AS more"])
def test_files_end_at_about_the_target_size(shop: Shop, columns: str) -> None:
    target = 60_000
    rows = f"SELECT {columns} FROM range(0, 20000, 1, 1)"
    shop.sql(f"CREATE TABLE @t TBLPROPERTIES ('write.target-file-size-bytes' = '{target}') AS {rows}")
    shop.sql(f"INSERT OVERWRITE @t {rows}")  # Now the table tells how wide its rows are.
    sizes = sorted(file.file_size_in_bytes for file, _ in files_of(shop, "t"))
    assert len(sizes) > 5
    assert all(target / 3 < size < 3 * target for size in sizes[1:])


def test_a_target_size_that_is_no_number_is_refused_before_any_job(shop: Shop) -> None:
    with pytest.raises(CatalogError, match="number of bytes"):
        shop.sql("CREATE TABLE @t TBLPROPERTIES ('write.target-file-size-bytes' = '1 GB') AS SELECT 1 AS id")


def test_a_block_writes_what_it_made_as_any_later_statement_does(shop: Shop) -> None:
    """A lake has no CHAR and no TINYINT: rows are cast to the types that it keeps."""
    columns = "(tiny TINYINT, code CHAR(3), name VARCHAR(4))"
    row = "(300, 'x', 'a longer one')"
    shop.sql(f"CREATE TABLE @later {columns}")
    shop.sql(f"INSERT INTO @later VALUES {row}")
    with twophase.transaction(shop.spark):
        shop.sql(f"CREATE TABLE @made {columns}")
        shop.sql(f"INSERT INTO @made VALUES {row}")
        staged = shop.read("SELECT * FROM @made")
    assert staged == shop.rows("made") == shop.rows("later") == [(300, "x", "a longer one")]

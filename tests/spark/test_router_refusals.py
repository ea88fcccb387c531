"""What cannot be made all-or-nothing under an unprefixed name is refused, or runs with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import __version__
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import twophase
from tests.spark.conftest import Start
from tests.spark.routed import await_events, drop_all, is_ours, rows
from twophase.errors import AtomicityNotSupportedError
from twophase.spark.attach import Handle
from twophase.spark.routing.patches import router_of

spark40_first_cases = True


@pytest.fixture(scope="module")
def spark(start: Start) -> SparkSession:
    session = start({"spark.sql.scripting.enabled": "true"})
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


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE n USING csv AS SELECT map(1, 2) AS m",
        "CREATE TABLE n USING text AS SELECT 1 AS a",
        "CREATE TABLE n USING orc AS SELECT parse_json('1') AS v",
        "CREATE OR REPLACE TABLE t USING csv AS SELECT array(1) AS a",
    ],
)
def test_a_type_that_a_format_cannot_hold_is_refused_before_any_job_and_nothing_is_left(
    spark: SparkSession, handle: Handle, statement: str
) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    await_events(spark)
    before = set(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
    with pytest.raises(AnalysisException) as caught:
        spark.sql(statement)
    assert str(caught.value.getCondition()).startswith("UNSUPPORTED")
    await_events(spark)
    assert set(spark.sparkContext.statusTracker().getJobIdsForGroup(None)) == before
    assert rows(spark, "SELECT * FROM t") == [(1,)]
    assert not spark.catalog.tableExists("n")
    assert [found for found in handle.catalog("hive").leftovers() if found.kind == "staging"] == []


@pytest.mark.promise("streams", "a streaming query into a table whose files move is refused")
def test_a_streaming_query_into_a_table_that_moves_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """It would go on writing where the table was when it began."""
    spark.sql("CREATE TABLE t AS SELECT 1L AS value")
    spark.sql("CREATE TABLE plain (value BIGINT) USING parquet")
    with twophase.transaction(spark):
        spark.sql("ALTER TABLE plain ADD COLUMN more INT")
    spark.sql("ALTER TABLE plain DROP COLUMN more")  # Neither of the two moves its files.
    rate = spark.readStream.format("rate").load().select("value")

    with pytest.raises(AtomicityNotSupportedError, match="streaming query") as caught:
        rate.writeStream.option("checkpointLocation", str(tmp_path / "refused")).toTable("t")
    assert "foreachBatch" in str(caught.value)
    assert spark.streams.active == []
    for name in ("plain", "new"):
        query = rate.writeStream.option("checkpointLocation", str(tmp_path / name)).toTable(name)
        query.stop()


#: Of a table that a streaming query writes, by a name of it: how it is made.
STREAMED = {
    "plain": "USING parquet",
    "parted": "USING parquet PARTITIONED BY (k)",
    "placed": "USING parquet LOCATION '{}'",
}


@pytest.mark.promise("streams", "a table that a streaming query writes takes no rows that are hidden by its log")
@pytest.mark.parametrize("table", STREAMED)
def test_a_table_that_a_streaming_query_writes_is_not_written_beside_it(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    """Spark reads what the query's log lists and nothing else; the query writes to the place where it has begun."""
    spark.sql(f"CREATE TABLE {table} (a BIGINT, k INT) {STREAMED[table].format(tmp_path / 'placed')}")
    spark.range(1).write.parquet(str(tmp_path / "rows"))
    ids = spark.readStream.schema("id BIGINT").parquet(str(tmp_path / "rows")).selectExpr("id AS a", "1 AS k")
    query = ids.writeStream.option("checkpointLocation", str(tmp_path / "state")).toTable(table)
    try:
        query.processAllAvailable()
        for write in ("INTO", "OVERWRITE"):
            with pytest.raises(AtomicityNotSupportedError, match="a streaming query writes it") as caught:
                spark.sql(f"INSERT {write} {table} VALUES (7, 1), (8, 2)")
            assert "CREATE OR REPLACE TABLE" in str(caught.value)
        spark.range(1, 2).write.mode("append").parquet(str(tmp_path / "rows"))
        query.processAllAvailable()
        assert rows(spark, f"SELECT a FROM {table}") == [(0,), (1,)]
    finally:
        query.stop()
    spark.sql(f"CREATE OR REPLACE TABLE {table} USING parquet AS SELECT * FROM {table}")
    spark.sql(f"INSERT INTO {table} VALUES (7, 1), (8, 2)")
    assert rows(spark, f"SELECT a FROM {table}") == [(0,), (1,), (7,), (8,)]


def watching(spark: SparkSession, name: str, place: Path) -> StreamingQuery:
    """A streaming query that reads a table and runs on."""
    writer = spark.readStream.table(name).writeStream.format("parquet").option("path", str(place / "rows"))
    query = writer.option("checkpointLocation", str(place / "state")).start()
    query.processAllAvailable()
    return query


@pytest.mark.promise("streams", "a streaming query that reads a table whose files move is refused")
def test_a_streaming_query_over_a_table_that_moves_is_refused(
    spark: SparkSession, handle: Handle, tmp_path: Path
) -> None:
    """It would go on looking where the table was when it began, and never see a row of what is written since."""
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    with pytest.raises(AtomicityNotSupportedError, match="streaming query reads files by their place") as caught:
        spark.readStream.table("t")
    assert "LOCATION" in str(caught.value)
    handle.policy = "preferred"
    try:
        with pytest.warns(RuntimeWarning, match="reads files by their place"):
            assert spark.readStream.table("t").isStreaming
    finally:
        handle.policy = "required"
    spark.sql(f"CREATE TABLE placed LOCATION '{tmp_path / 'placed'}' AS SELECT 1 AS a")
    query = watching(spark, "placed", tmp_path / "of_placed")
    try:
        spark.sql("INSERT INTO placed VALUES (2)")
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(r.a for r in spark.read.parquet(str(tmp_path / "of_placed" / "rows")).collect()) == [1, 2]


@pytest.mark.promise("streams", "a table that a streaming query reads is not moved from under it")
def test_a_table_that_a_streaming_query_reads_is_not_moved_from_under_it(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("CREATE TABLE plain (a INT) USING parquet")
    query = watching(spark, "plain", tmp_path)
    writes: list[Callable[[], Any]] = [
        lambda: spark.sql("INSERT INTO plain VALUES (1)"),
        lambda: spark.sql("BEGIN INSERT INTO Plain VALUES (1); END"),
        lambda: spark.sql("SELECT 1 AS a").write.insertInto("plain"),
        lambda: spark.sql("SELECT 1 AS a").write.mode("append").saveAsTable("plain"),
        lambda: spark.sql("SELECT 1 AS a").writeTo("plain").append(),
    ]
    try:
        for write in writes:
            with pytest.raises(AtomicityNotSupportedError, match=r"query of this session reads default\.[Pp]lain"):
                write()
        spark.sql("CREATE TABLE t AS SELECT 1 AS a")  # another table is no matter of it
    finally:
        query.stop()
    for write in writes:
        write()
    assert rows(spark, "SELECT * FROM plain") == [(1,)] * 5


def test_under_preferred_it_runs_with_a_warning(spark: SparkSession, handle: Handle) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    handle.policy = "preferred"
    try:
        with pytest.warns(RuntimeWarning, match="inside a script"):
            spark.sql("BEGIN FROM range(3, 4) INSERT INTO t SELECT id INSERT INTO t SELECT id + 1; END")
    finally:
        handle.policy = "required"
    assert rows(spark, "SELECT * FROM t") == [(1,), (3,), (4,)]


@pytest.mark.parametrize("write", ["saveAsTable", "writeTo", "sql"])
def test_under_preferred_a_name_in_our_catalog_is_refused_without_a_warning_that_it_runs(
    spark: SparkSession, handle: Handle, write: str
) -> None:
    name = f"{handle.session_catalog}.default.t"
    frame = spark.range(3)
    writes = {
        "saveAsTable": lambda: frame.write.format("jdbc").saveAsTable(name),
        "writeTo": lambda: frame.writeTo(name).using("jdbc").create(),
        "sql": lambda: spark.sql(f"CREATE TABLE {name} USING jdbc AS SELECT 1 AS a"),
    }
    handle.policy = "preferred"
    try:
        with warnings.catch_warnings(), pytest.raises(AtomicityNotSupportedError):
            warnings.simplefilter("error")
            writes[write]()
    finally:
        handle.policy = "required"
    assert not spark.catalog.tableExists("t")


SCRIPT = (
    "BEGIN INSERT INTO t SELECT 2; CREATE TABLE IF NOT EXISTS other (a INT) USING xml OPTIONS (rowTag 'r'); "
    "INSERT INTO other SELECT 1; END"
)


@pytest.mark.promise("routing", "no statement runs twice, not under `preferred` either")
@pytest.mark.parametrize("policy", ["preferred", "required"])
def test_no_statement_of_a_script_runs_twice(spark: SparkSession, handle: Handle, policy: str) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    handle.policy = policy
    try:
        spark.sql(SCRIPT)
    finally:
        handle.policy = "required"
    assert rows(spark, "SELECT * FROM t") == [(1,), (2,)]
    assert rows(spark, "SELECT * FROM other") == [(1,)]


@pytest.mark.parametrize("policy", ["required", "preferred"])
def test_no_statement_of_a_script_behind_execute_immediate_runs_twice(
    spark: SparkSession, handle: Handle, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    hive = handle.catalog("hive")
    stage = hive.two_phase_create_table
    monkeypatch.setattr(hive, "two_phase_create_table", lambda p, *a, **k: None if p.name == "u" else stage(p, *a, **k))
    handle.policy = policy
    script = "BEGIN INSERT INTO t SELECT 2; CREATE TABLE u AS SELECT 1 AS a; END"
    try:
        with pytest.raises((AtomicityNotSupportedError, AnalysisException)):  # 4.0 takes no script there.
            spark.sql(f'EXECUTE IMMEDIATE "{script}"')
    finally:
        handle.policy = "required"
    assert rows(spark, "SELECT * FROM t") == ([(1,)] if __version__ < "4.1" else [(1,), (2,)])


def test_a_multi_insert_in_a_script_behind_execute_immediate_is_refused(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    script = (
        "BEGIN FROM range(1) INSERT INTO t SELECT id INSERT INTO t SELECT id; INSERT INTO t SELECT count(*) FROM t; END"
    )
    with pytest.raises((AtomicityNotSupportedError, AnalysisException)):
        spark.sql(f'EXECUTE IMMEDIATE "{script}"')
    assert rows(spark, "SELECT * FROM t") == [(1,)]


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE made (a INT)",
        "CREATE TABLE made LIKE t",
        "EXECUTE IMMEDIATE 'CREATE TABLE made (a INT) USING orc'",
        "CREATE TABLE made AS SELECT 0 AS a WHERE false",
    ],
)
@pytest.mark.parametrize("insert", ["INSERT INTO made SELECT 7", "EXECUTE IMMEDIATE 'INSERT INTO made SELECT 7'"])
def test_a_table_that_the_script_makes_is_written_by_us(spark: SparkSession, made: str, insert: str) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    spark.sql(f"BEGIN {made}; {insert}; END")
    assert rows(spark, "SELECT * FROM made") == [(7,)]
    assert is_ours(spark, "made")


@pytest.mark.promise("routing", "a fault of the metastore is an error, and no way around twophase")
def test_a_fault_of_the_metastore_is_the_users_error_and_no_way_past_us(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    router = router_of(spark)
    assert router is not None

    def away(*_: str) -> None:
        raise AnalysisException("the metastore is away")

    monkeypatch.setattr(router.targets.names, "table", away)
    for write in (
        lambda: spark.range(1).write.mode("append").saveAsTable("t"),
        lambda: spark.range(1).writeTo("t").append(),
    ):
        with pytest.raises(AnalysisException, match="the metastore is away"):
            write()
    monkeypatch.undo()
    assert rows(spark, "SELECT * FROM t") == [(1,)]


def test_a_streaming_query_over_partitions_that_have_moved_is_refused(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t (a INT, d STRING) USING parquet PARTITIONED BY (d)")
    spark._jsparkSession.newSession().sql("INSERT INTO t VALUES (1, 'x')")
    assert spark.readStream.table("t").isStreaming
    spark.sql("INSERT OVERWRITE t PARTITION (d = 'x') VALUES (2)")
    with pytest.raises(AtomicityNotSupportedError, match="reads files by their place"):
        spark.readStream.table("t")


@pytest.mark.parametrize("text", ["INSERT INTO b SELEC 1", "INSERT INTO b SELECT :missing"])
def test_the_error_of_a_statement_is_not_that_of_the_one_before(spark: SparkSession, text: str) -> None:
    """Stock Spark would refuse the first one."""
    spark.sql("CREATE TABLE b USING parquet CLUSTERED BY (id) INTO 4 BUCKETS AS SELECT 1 AS id")
    spark.sql("INSERT OVERWRITE b SELECT * FROM b")
    with pytest.raises(AnalysisException) as caught:
        spark.sql(text)
    assert caught.value.getCondition() in ("PARSE_SYNTAX_ERROR", "UNBOUND_SQL_PARAMETER")
    spark.sql("INSERT OVERWRITE b SELECT * FROM b")
    with pytest.raises(AnalysisException, match="missing"):
        spark.range(1).write.insertInto("missing")

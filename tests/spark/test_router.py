"""An unchanged job: unprefixed names, every door, and the session catalog shows the outcome."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException, SparkRuntimeException
from pyspark.sql import SparkSession
from pyspark.sql.catalog import Catalog

import twophase
from tests.spark.conftest import Start
from tests.spark.routed import MODE, by_stock_spark, drop_all, has_stamp, is_ours, partitioned, rows, stock_session
from twophase.errors import AtomicityNotSupportedError, CatalogError
from twophase.spark.attach import Handle
from twophase.spark.jvm.local_properties import WRITE_HINTS
from twophase.spark.routing.table_writer import SessionTableWriter

spark40_first_cases = True


@pytest.fixture(scope="module")
def spark(start: Start) -> SparkSession:
    session = start({"spark.sql.scripting.enabled": "true"})
    twophase.attach(session)
    return session


@pytest.fixture
def handle(spark: SparkSession) -> Handle:
    return twophase.attach(spark)


@pytest.fixture
def in_hive(spark: SparkSession) -> Iterator[None]:
    """The session's own twophase catalog is the current one."""
    spark.sql("USE hive")
    yield
    spark.sql("USE spark_catalog.default")


def temporary_views(spark: SparkSession) -> list[str]:
    shown = spark.sql("SHOW VIEWS IN spark_catalog.default").collect()
    return [row.viewName for row in shown if row.isTemporary]


@pytest.fixture(autouse=True)
def clean(spark: SparkSession) -> Iterator[None]:
    """Each test has the default database for itself."""
    yield
    drop_all(spark)


# -- SQL ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t AS SELECT 1 AS a",
        "CREATE TABLE IF NOT EXISTS default.t USING orc AS SELECT 1 AS a",
        "CREATE OR REPLACE TABLE spark_catalog.default.t AS SELECT 1 AS a",
        "BEGIN CREATE TABLE t AS SELECT 1 AS a; END",
        "EXECUTE IMMEDIATE 'CREATE TABLE t AS SELECT ? AS a' USING 1",
    ],
)
def test_a_new_table_is_published_by_a_transaction(spark: SparkSession, text: str) -> None:
    spark.sql(text)
    assert rows(spark, "SELECT * FROM t") == [(1,)]
    assert is_ours(spark, "t")


def test_the_targets_name_may_come_as_a_parameter(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE IDENTIFIER(:name) USING parquet AS SELECT :a AS a", args={"name": "t", "a": 7})
    spark.sql("INSERT INTO IDENTIFIER(?) SELECT ?", args=["t", 8])
    assert rows(spark, "SELECT * FROM t") == [(7,), (8,)]
    assert is_ours(spark, "t")


@pytest.mark.promise("routing", "a table whose name is an expression is created by a transaction")
@pytest.mark.parametrize("name", ["'t' || ''", "lower('T')", "concat_ws('.', 'default', 't')"])
def test_the_name_of_a_new_table_may_be_an_expression(spark: SparkSession, name: str) -> None:
    spark.sql(f"CREATE TABLE IDENTIFIER({name}) USING parquet AS SELECT 1 AS a")
    spark.sql(f"CREATE OR REPLACE TABLE IDENTIFIER({name}) AS SELECT 2 AS a")
    assert rows(spark, "SELECT * FROM t") == [(2,)]
    assert is_ours(spark, "t")


@pytest.mark.promise("same-answers", "what an INSERT does not find is told in Spark's words")
@pytest.mark.parametrize(
    ("rows_of", "condition"),
    [
        ("SELECT * FROM nowhere", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT * FROM t WHERE no_column > 1", "UNRESOLVED_COLUMN.WITH_SUGGESTION"),
        ("SELECT * FROM t JOIN (SELECT no_function(a) FROM t)", "UNRESOLVED_ROUTINE"),
    ],
)
def test_what_an_insert_does_not_find_is_told_in_sparks_words(
    spark: SparkSession, rows_of: str, condition: str
) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    for verb in ("INSERT INTO", "INSERT OVERWRITE"):
        for block in (nullcontext(), twophase.transaction(spark)):
            with block, pytest.raises(AnalysisException) as caught:
                spark.sql(f"{verb} t {rows_of}")
            assert caught.value.getCondition() == condition
    assert rows(spark, "SELECT * FROM t") == [(1,)]


def refusal_in(error: Any) -> str:
    return str(error.java_exception.getCondition() if isinstance(error, Py4JJavaError) else error.getCondition())


@pytest.mark.parametrize("name", ["(SELECT 't')", "max('t')", "no_variable"])
def test_a_name_that_is_no_constant_is_refused_as_by_spark(spark: SparkSession, name: str) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    text = f"INSERT INTO IDENTIFIER({name}) SELECT 2"
    # Spark 4.0 has an internal error for a subquery, which PySpark hands on as Py4J's.
    with pytest.raises((AnalysisException, Py4JJavaError)) as caught:
        spark.sql(text)
    with pytest.raises((AnalysisException, Py4JJavaError)) as stock:
        by_stock_spark(spark, text)
    assert refusal_in(caught.value) == refusal_in(stock.value)
    with pytest.raises((AtomicityNotSupportedError, AnalysisException, Py4JJavaError)):
        spark.sql(f'EXECUTE IMMEDIATE "INSERT INTO IDENTIFIER({name}) SELECT 2"')
    assert rows(spark, "SELECT * FROM t") == [(1,)]


def test_python_values_are_formatted_into_the_text(spark: SparkSession) -> None:
    source = spark.range(3)
    spark.sql(
        "CREATE TABLE t AS SELECT {column} AS a FROM {source} WHERE id > {low}", column=source.id, source=source, low=1
    )
    assert rows(spark, "SELECT * FROM t") == [(2,)]
    assert is_ours(spark, "t")
    assert not temporary_views(spark)


def test_a_failing_insert_leaves_the_table_as_it_was(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    for verb in ("INSERT INTO", "INSERT OVERWRITE", "CREATE OR REPLACE TABLE"):
        link = " AS" if verb.startswith("CREATE") else ""
        with pytest.raises(SparkRuntimeException) as caught:
            spark.sql(f"{verb} t{link} SELECT CAST(raise_error('broken') AS INT) AS a FROM range(3)")
        assert caught.value.getCondition() == "USER_RAISED_EXCEPTION"
        assert rows(spark, "SELECT * FROM t") == [(1,)]


def test_a_multi_insert_is_one_transaction(spark: SparkSession, handle: Handle) -> None:
    spark.sql("CREATE TABLE a AS SELECT 1 AS x")
    spark.sql("CREATE TABLE b AS SELECT 1 AS x")
    before = len(handle.timeline.transactions())
    spark.sql("FROM range(3) INSERT INTO a SELECT id INSERT OVERWRITE b SELECT id WHERE id > 1")
    assert rows(spark, "SELECT * FROM a") == [(0,), (1,), (1,), (2,)]
    assert rows(spark, "SELECT * FROM b") == [(2,)]
    assert len(handle.timeline.transactions()) == before + 1


def test_the_inserts_of_a_multi_insert_read_what_was_there_before_it(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    spark.sql("FROM t INSERT INTO t SELECT a + 1 INSERT INTO t SELECT a + 10")
    assert rows(spark, "SELECT * FROM t") == [(1,), (2,), (11,)]


def test_a_failing_multi_insert_writes_none_of_its_tables(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE a AS SELECT 1 AS x")
    spark.sql("CREATE TABLE b AS SELECT 1 AS x")
    with pytest.raises(SparkRuntimeException):
        spark.sql("FROM range(3) INSERT INTO a SELECT id INSERT INTO b SELECT CAST(raise_error('broken') AS INT)")
    assert rows(spark, "SELECT * FROM a") == rows(spark, "SELECT * FROM b") == [(1,)]


@pytest.mark.promise("multi-inserts", "a failing multi-insert writes nothing, however its tables are named")
@pytest.mark.parametrize("names", [("hive.default.a", "hive.default.b"), ("hive.default.a", "b"), ("a", "a")])
def test_a_failing_multi_insert_writes_nothing_however_its_tables_are_named(
    spark: SparkSession, names: tuple[str, str]
) -> None:
    for name in ("a", "b"):
        spark.sql(f"CREATE TABLE {name} AS SELECT 1 AS x")
    with pytest.raises(SparkRuntimeException):
        spark.sql(
            f"FROM range(3) INSERT INTO {names[0]} SELECT id "
            f"INSERT INTO {names[1]} SELECT CAST(raise_error('broken') AS INT)"
        )
    assert rows(spark, "SELECT * FROM a") == rows(spark, "SELECT * FROM b") == [(1,)]


@pytest.mark.usefixtures("in_hive")
def test_a_failing_multi_insert_writes_nothing_after_use(spark: SparkSession) -> None:
    for name in ("a", "b"):
        spark.sql(f"CREATE TABLE {name} AS SELECT 1 AS x")
    with pytest.raises(SparkRuntimeException):
        spark.sql("FROM range(3) INSERT INTO a SELECT id INSERT INTO b SELECT CAST(raise_error('broken') AS INT)")
    assert rows(spark, "SELECT * FROM a") == rows(spark, "SELECT * FROM b") == [(1,)]


@pytest.mark.promise("multi-inserts", "a multi-insert of which only a part is twophase's is refused")
@pytest.mark.parametrize("ours", ["a", "hive.default.a"])
@pytest.mark.parametrize("other", ["INTO other", "OVERWRITE DIRECTORY '/nowhere' USING parquet"])
def test_a_multi_insert_that_only_half_is_ours_is_refused(spark: SparkSession, ours: str, other: str) -> None:
    spark.sql("CREATE TABLE a AS SELECT 1 AS x")
    spark.sql("CREATE TABLE other (x INT) USING xml OPTIONS (rowTag 'r')")
    with pytest.raises(AtomicityNotSupportedError, match="together with"):
        spark.sql(f"FROM range(3) INSERT INTO {ours} SELECT id INSERT {other} SELECT id")
    assert rows(spark, "SELECT * FROM a") == [(1,)]


def test_what_spark_refuses_too_is_refused_with_its_own_error(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE kept (a BIGINT) USING parquet")
    spark.range(1).createOrReplaceTempView("rows_in_memory")
    for text in (
        "FROM range(3) INSERT INTO kept SELECT id INSERT INTO rows_in_memory SELECT id",
        "FROM range(3) INSERT INTO rows_in_memory SELECT id INSERT INTO kept SELECT id",
    ):
        with pytest.raises(AnalysisException) as caught:
            spark.sql(text)
        assert caught.value.getCondition() == "UNSUPPORTED_INSERT.RDD_BASED"
    assert spark.table("kept").count() == 0


@pytest.mark.promise("multi-inserts", "a multi-insert inside a script is refused when it is reached")
def test_a_multi_insert_inside_a_script_is_refused_when_it_is_reached(spark: SparkSession) -> None:
    for name in ("a", "b"):
        spark.sql(f"CREATE TABLE {name} AS SELECT 1 AS x")
    with pytest.raises(AtomicityNotSupportedError, match="inside a script"):
        spark.sql("BEGIN INSERT INTO a SELECT 2; FROM range(1) INSERT INTO a SELECT id INSERT INTO b SELECT id; END")
    assert rows(spark, "SELECT * FROM a") == [(1,), (2,)]
    assert rows(spark, "SELECT * FROM b") == [(1,)]


@pytest.mark.usefixtures("in_hive")
def test_after_use_a_dynamic_overwrite_replaces_its_partitions(spark: SparkSession) -> None:
    partitioned(spark).write.partitionBy("p").saveAsTable("t")
    spark.conf.set(MODE, "dynamic")
    spark.sql("INSERT OVERWRITE t SELECT 9L, 1L")
    assert rows(spark, "SELECT * FROM t") == [(0, 0), (2, 0), (9, 1)]
    spark.range(1).selectExpr("8L", "0L").write.insertInto("t", overwrite=True)
    assert rows(spark, "SELECT * FROM t") == [(8, 0), (9, 1)]
    spark.range(1).selectExpr("7L AS id", "0L AS p").writeTo("default.t").overwritePartitions()
    assert rows(spark, "SELECT * FROM default.t") == [(7, 0), (9, 1)]


@pytest.mark.usefixtures("in_hive")
def test_after_use_the_staging_of_a_serde_table_finds_its_place(spark: SparkSession) -> None:
    """Only Hive support has SerDe tables; their staging is Spark's own insert into a table of the session catalog."""
    spark.sql("CREATE TABLE t (a INT, b STRING) USING parquet")
    SessionTableWriter(spark).insert(spark.sql("SELECT 1 AS x, 'y' AS x"), "default", "t")
    assert rows(spark, "SELECT * FROM t") == [(1, "y")]
    assert not temporary_views(spark)


@pytest.mark.usefixtures("in_hive")
def test_after_use_every_door_joins_the_transaction(spark: SparkSession) -> None:
    with twophase.transaction(spark):
        spark.range(2).write.saveAsTable("t")
        spark.range(2, 3).write.mode("append").saveAsTable("t")
        spark.range(3, 4).write.insertInto("default.t")
        spark.range(4, 5).writeTo("t").append()
        spark.sql("INSERT INTO t SELECT 5L")
        assert spark.table("t").count() == 6
    assert rows(spark, "SELECT * FROM spark_catalog.default.t") == [(0,), (1,), (2,), (3,), (4,), (5,)]


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_an_overwrite_replaces_what_the_mode_says(spark: SparkSession, mode: str) -> None:
    partitioned(spark).write.partitionBy("p").saveAsTable("t")
    spark.conf.set(MODE, mode)
    spark.sql("INSERT OVERWRITE t SELECT 9, 1")
    assert rows(spark, "SELECT * FROM t") == ([(9, 1)] if mode == "static" else [(0, 0), (2, 0), (9, 1)])
    spark.sql("INSERT OVERWRITE t PARTITION (p = 0) SELECT 5")
    assert (5, 0) in rows(spark, "SELECT * FROM t")
    assert (9, 1) in rows(spark, "SELECT * FROM t")
    assert spark.sparkContext.getLocalProperty(WRITE_HINTS) is None


@pytest.mark.promise("routing", "an append in a script, beside an overwrite of its table, stays an append")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BEGIN INSERT INTO t SELECT 5, 0; INSERT OVERWRITE t SELECT 9, 1; END", [(0, 0), (2, 0), (5, 0), (9, 1)]),
        ("BEGIN INSERT OVERWRITE t SELECT 9, 1; INSERT INTO t SELECT 8, 1; END", [(0, 0), (2, 0), (8, 1), (9, 1)]),
        (
            "BEGIN INSERT OVERWRITE t PARTITION (p = 0) SELECT 7; INSERT OVERWRITE t SELECT 9, 1; END",
            [(7, 0), (9, 1)],
        ),
        (
            "BEGIN INSERT INTO t SELECT 5, 0; EXECUTE IMMEDIATE 'INSERT OVERWRITE t SELECT 9, 1'; END",
            [(0, 0), (2, 0), (5, 0), (9, 1)],
        ),
        (
            "FROM VALUES (9, 1), (8, 1) x (id, p) INSERT OVERWRITE t SELECT * WHERE id = 9 "
            "INSERT INTO t SELECT * WHERE id = 8",
            [(0, 0), (2, 0), (8, 1), (9, 1)],
        ),
    ],
)
def test_an_append_beside_an_overwrite_of_its_table_stays_an_append(
    spark: SparkSession, text: str, expected: list[Any]
) -> None:
    partitioned(spark).write.partitionBy("p").saveAsTable("t")
    spark.conf.set(MODE, "dynamic")
    spark.sql(text)
    assert rows(spark, "SELECT * FROM t") == expected


@pytest.mark.parametrize("configured", ["static", "dynamic"])
@pytest.mark.parametrize("own", ["static", "dynamic"])
def test_a_tables_own_overwrite_mode_goes_before_the_sessions(spark: SparkSession, own: str, configured: str) -> None:
    spark.conf.set(MODE, configured)
    for name, write in (("t", insert_overwrite), ("u", overwrite_into), ("stock", stock_overwrite)):
        spark.sql(
            f"CREATE TABLE {name} (id BIGINT, p BIGINT) USING parquet "
            f"OPTIONS (partitionOVERWRITEmode '{own}') PARTITIONED BY (p)"
        )
        spark.sql(f"INSERT INTO {name} VALUES (1, 1), (2, 2)")
        write(spark, name)
        assert rows(spark, f"SELECT * FROM {name}") == rows(spark, "SELECT * FROM t")
    assert rows(spark, "SELECT * FROM t") == ([(9, 1)] if own == "static" else [(2, 2), (9, 1)])


def test_a_statements_overwrite_mode_goes_before_the_sessions(spark: SparkSession) -> None:
    spark.conf.set(MODE, "dynamic")
    partitioned(spark).write.partitionBy("p").saveAsTable("t")
    spark.sql("INSERT OVERWRITE t WITH ('partitionOverwriteMode' = 'static') SELECT 9L, 1L")
    assert rows(spark, "SELECT * FROM t") == [(9, 1)]


def insert_overwrite(spark: SparkSession, name: str) -> None:
    spark.sql(f"INSERT OVERWRITE {name} SELECT 9L, 1L")


def overwrite_into(spark: SparkSession, name: str) -> None:
    spark.range(1).selectExpr("9L", "1L").write.insertInto(name, overwrite=True)


def stock_overwrite(spark: SparkSession, name: str) -> None:
    by_stock_spark(spark, f"INSERT OVERWRITE {name} SELECT 9L, 1L")


def test_if_not_exists_keeps_a_partition_that_is_there(spark: SparkSession) -> None:
    partitioned(spark).write.partitionBy("p").saveAsTable("t")
    spark.sql("INSERT OVERWRITE t PARTITION (p = 0) IF NOT EXISTS SELECT 5")
    assert rows(spark, "SELECT * FROM t") == [(0, 0), (1, 1), (2, 0), (3, 1)]
    spark.sql("INSERT OVERWRITE t PARTITION (p = 7) IF NOT EXISTS SELECT 5")
    assert (5, 7) in rows(spark, "SELECT * FROM t")


def test_columns_that_are_left_out_get_their_defaults(spark: SparkSession, handle: Handle) -> None:
    before = len(handle.timeline.transactions())
    spark.sql("CREATE TABLE t (a INT, b STRING DEFAULT 'x', c INT, p INT) USING parquet PARTITIONED BY (p)")
    spark.sql("INSERT INTO t (p, a) VALUES (?, ?)", args=[1, 2])
    spark.sql("INSERT INTO t PARTITION (p = 3) (a) VALUES (:a)", args={"a": 4})
    spark.sql("INSERT INTO t BY NAME SELECT 5 AS a, 3 AS p")
    spark.sql("INSERT OVERWRITE t PARTITION (p = 1) (c) VALUES (9)")
    assert {tuple(row) for row in spark.table("t").collect()} == {
        (None, "x", 9, 1),
        (4, "x", None, 3),
        (5, "x", None, 3),
    }
    assert len(handle.timeline.transactions()) >= before + 4


def test_a_refused_statement_is_refused_in_sparks_own_words(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t (a INT) USING parquet")
    text = "INSERT INTO t SELECT missing FROM range(1)"
    with pytest.raises(AnalysisException) as caught:
        spark.sql(text)
    assert caught.value.getCondition() == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    assert f"pos {text.index('missing')}" in str(caught.value)


@pytest.mark.parametrize("in_a_block", [False, True])
def test_an_insert_that_does_not_fit_is_told_with_the_tables_own_name(spark: SparkSession, in_a_block: bool) -> None:
    spark.sql("CREATE TABLE t USING parquet AS SELECT 1 AS a, 2 AS b")
    for frame in (spark.range(1), spark.sql("SELECT 1 AS x, array(2) AS y")):
        with (
            pytest.raises(AnalysisException, match=r"`spark_catalog`\.`default`\.`t`"),
            twophase.transaction(spark) if in_a_block else nullcontext(),
        ):
            frame.write.insertInto("t")
    assert not temporary_views(spark)


@pytest.mark.parametrize(
    ("rows", "condition"),
    [
        ("SELECT missing FROM range(1)", "UNRESOLVED_COLUMN.WITH_SUGGESTION"),
        ("SELECT 1 AS a FROM missing", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT nope(1) AS a", "UNRESOLVED_ROUTINE"),
    ],
)
@pytest.mark.parametrize("statement", ["REPLACE", "CREATE OR REPLACE"])
def test_a_replace_is_refused_for_its_own_fault(spark: SparkSession, statement: str, rows: str, condition: str) -> None:
    """Not because Spark never replaces tables of its own catalog."""
    spark.sql("CREATE TABLE t (a INT) USING parquet")
    with pytest.raises(AnalysisException) as caught:
        spark.sql(f"{statement} TABLE t AS {rows}")
    assert caught.value.getCondition() == condition
    with pytest.raises(AnalysisException, match="missing"):
        spark.sql(f"{statement} TABLE t PARTITIONED BY (missing) AS SELECT 1 AS a")


@pytest.mark.parametrize("name", ["with.dot", "größe", "quote'd", "a b"])
def test_a_name_that_the_catalog_cannot_hold_is_sparks_own_error(
    spark: SparkSession, handle: Handle, name: str
) -> None:
    before = len(handle.timeline.transactions())
    with pytest.raises(AnalysisException) as stock:
        by_stock_spark(spark, f"CREATE TABLE `{name}` USING parquet AS SELECT 1 AS a")
    for make in (
        lambda: spark.sql(f"CREATE TABLE `{name}` AS SELECT 1 AS a"),
        lambda: spark.sql(f"CREATE TABLE hive.default.`{name}` AS SELECT 1 AS a"),
        lambda: spark.range(1).write.mode("overwrite").saveAsTable(f"`{name}`"),
        lambda: spark.range(1).writeTo(f"`{name}`").createOrReplace(),
    ):
        with pytest.raises(AnalysisException) as caught:
            make()
        assert caught.value.getCondition() == "INVALID_SCHEMA_OR_RELATION_NAME"
        assert str(caught.value).splitlines()[0] == str(stock.value).splitlines()[0]
    assert len(handle.timeline.transactions()) == before


@pytest.mark.promise("routing", "`EXPLAIN` begins no transaction")
def test_explain_begins_nothing(spark: SparkSession, handle: Handle) -> None:
    before = len(handle.timeline.transactions())
    spark.sql("EXPLAIN CREATE TABLE t AS SELECT 1 AS a").collect()
    spark.sql("EXPLAIN CREATE OR REPLACE TABLE t AS SELECT 1 AS a").collect()
    assert not spark.catalog.tableExists("t")
    assert len(handle.timeline.transactions()) == before


@pytest.mark.parametrize("words", ["EXPLAIN", "EXPLAIN EXTENDED", "BEGIN EXPLAIN"])
def test_what_explain_runs_by_execute_immediate_is_published_by_a_transaction(spark: SparkSession, words: str) -> None:
    # Before 4.1 Spark does not run it.
    end = "; END" if words.startswith("BEGIN") else ""
    spark.sql(f"{words} EXECUTE IMMEDIATE 'CREATE TABLE t USING parquet AS SELECT 1 AS a'{end}")
    assert not spark.catalog.tableExists("t") or is_ours(spark, "t")


@pytest.mark.parametrize("fault", ["a staging name", "a place of files"])
def test_what_is_refused_behind_execute_immediate_is_not_run_by_spark(
    spark: SparkSession, tmp_path: Path, fault: str
) -> None:
    spark.conf.set("spark.sql.legacy.allowNonEmptyLocationInCTAS", "true")
    (tmp_path / "file").write_text("of somebody else")
    name, location = ("__twophase_t", "") if fault == "a staging name" else ("t", f"LOCATION '{tmp_path}'")
    try:
        with pytest.raises(CatalogError):
            spark.sql(f'EXECUTE IMMEDIATE "CREATE TABLE {name} USING parquet {location} AS SELECT 1 AS a"')
    finally:
        spark.conf.unset("spark.sql.legacy.allowNonEmptyLocationInCTAS")
    assert not spark.catalog.tableExists(name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_fails_behind_execute_immediate_does_not_run_twice(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t USING parquet AS SELECT 1 AS a, 2 AS b")
    spark.sql("DECLARE OR REPLACE VARIABLE v INT")
    with pytest.raises(AnalysisException, match="INVALID_STATEMENT_FOR_EXECUTE_INTO"):
        spark.sql("EXECUTE IMMEDIATE 'INSERT INTO t SELECT 3, 4' INTO v")
    # Since 4.1 Spark refuses the INTO after the statement has run.
    assert rows(spark, "SELECT * FROM t WHERE a = 3") in ([], [(3, 4)])
    with pytest.raises(AnalysisException, match=r"`spark_catalog`\.`default`\.`t`"):
        spark.sql("EXECUTE IMMEDIATE 'INSERT INTO t SELECT 5'")
    spark.sql("EXECUTE IMMEDIATE 'INSERT INTO t (a) SELECT 6'")
    assert rows(spark, "SELECT * FROM t WHERE a > 4") == [(6, None)]
    assert is_ours(spark, "t")


def test_the_intent_is_put_back_after_a_failure(spark: SparkSession) -> None:
    partitioned(spark).write.partitionBy("p").saveAsTable("t")
    spark.conf.set(MODE, "dynamic")
    spark.sparkContext.setLocalProperty(WRITE_HINTS, None)
    with pytest.raises(SparkRuntimeException):
        spark.sql("INSERT OVERWRITE t SELECT CAST(raise_error('broken') AS INT), 1")
    assert spark.sparkContext.getLocalProperty(WRITE_HINTS) is None
    assert len(rows(spark, "SELECT * FROM t")) == 4


#: Ways to drop table ``t`` through ``spark.catalog``, which PySpark has since 4.2.
BY_CATALOG = ["spark.catalog"] if hasattr(Catalog, "dropTable") else []


@pytest.mark.parametrize(
    "drop",
    [
        *BY_CATALOG,
        "DROP TABLE t",
        "EXECUTE IMMEDIATE 'DROP TABLE t'",
        "BEGIN DROP TABLE t; END",
        "BEGIN EXECUTE IMMEDIATE 'DROP TABLE t'; END",
        "DROP TABLE IDENTIFIER('t')",
        "BEGIN DECLARE v STRING DEFAULT 't'; DROP TABLE IDENTIFIER(v); END",
    ],
)
def test_a_dropped_table_leaves_its_place_free(spark: SparkSession, drop: str) -> None:
    spark.sql("CREATE TABLE t (a INT) USING parquet")
    spark.sql("INSERT INTO t VALUES (1)")
    spark.sql("INSERT OVERWRITE t VALUES (2)")
    if drop in BY_CATALOG:
        spark.catalog.dropTable("t")  # type: ignore[attr-defined,unused-ignore]
    else:
        spark.sql(drop)
    spark.sql("CREATE TABLE t (a INT) USING parquet")
    assert rows(spark, "SELECT * FROM t") == []


def test_what_an_overwrite_replaced_is_not_found_by_recover_partitions(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t (a INT, d STRING) USING parquet PARTITIONED BY (d)")
    spark._jsparkSession.newSession().sql("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    spark.sql("INSERT OVERWRITE t SELECT 3, 'z'")
    spark.catalog.recoverPartitions("t")
    assert rows(spark, "SELECT * FROM t") == [(3, "z")]


@pytest.mark.promise("locations", "replaced rows do not come back with a partition that is added again")
def test_what_an_overwrite_replaced_is_not_found_by_partitions_that_come_again(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t (a INT, d STRING) USING parquet PARTITIONED BY (d)")
    spark._jsparkSession.newSession().sql("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    spark.sql("INSERT OVERWRITE t SELECT 3, 'z'")
    for find in ("MSCK REPAIR TABLE t", "ALTER TABLE t RECOVER PARTITIONS", "EXECUTE IMMEDIATE 'MSCK REPAIR TABLE t'"):
        spark.sql(find)
        assert (find, rows(spark, "SELECT * FROM t")) == (find, [(3, "z")])
    spark.sql("ALTER TABLE t ADD PARTITION (d = 'v')")
    spark.sql("INSERT INTO t VALUES (5, 'v')")
    spark.sql("ALTER TABLE t DROP PARTITION (d = 'v')")
    spark.sql("BEGIN ALTER TABLE t ADD IF NOT EXISTS PARTITION (d = 'v'); END")
    assert rows(spark, "SELECT * FROM t") == [(3, "z")]


# -- spark.sql.storeAssignmentPolicy=LEGACY -------------------------------------------------------------------------


@pytest.fixture
def legacy(spark: SparkSession) -> Iterator[None]:
    """A policy that Spark offers for the tables of its own session catalog only."""
    spark.conf.set("spark.sql.storeAssignmentPolicy", "LEGACY")
    yield
    spark.conf.unset("spark.sql.storeAssignmentPolicy")


@pytest.mark.promise("same-answers", "the store assignment policy `LEGACY` casts as in stock Spark")
@pytest.mark.usefixtures("legacy")
def test_the_legacy_policy_casts_as_in_stock_spark(spark: SparkSession, handle: Handle) -> None:
    spark.sql("CREATE TABLE t USING parquet PARTITIONED BY (p) AS SELECT 1 AS a, 2 AS p")
    before = len(handle.timeline.transactions())
    spark.sql("INSERT INTO t VALUES ('3', '2')")
    spark.sql("INSERT INTO t PARTITION (p = '5') SELECT 'no number'")
    spark.sql("SELECT 7.9 AS x, '5' AS x").write.insertInto("t")
    spark.sql("SELECT '6' AS p, 4000000000L AS a").write.mode("append").partitionBy("p").saveAsTable("t")
    expected = [(-294967296, 6), (-1, 5), (1, 2), (3, 2), (7, 5)]
    assert rows(spark, "SELECT coalesce(a, -1), p FROM t") == expected
    spark.sql("INSERT OVERWRITE t PARTITION (p = 5) VALUES ('8')")
    assert rows(spark, "SELECT a FROM t WHERE p = 5") == [(8,)]
    spark.sql("SELECT '9', '9'").write.insertInto("t", overwrite=True)
    assert rows(spark, "SELECT * FROM t") == [(9, 9)]
    assert len(handle.timeline.transactions()) == before + 6


@pytest.mark.usefixtures("legacy")
def test_the_legacy_policy_casts_behind_execute_immediate_and_nothing_runs_twice(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t USING parquet AS SELECT 1 AS a")
    spark.sql("EXECUTE IMMEDIATE \"INSERT INTO t SELECT '5'\"")
    assert rows(spark, "SELECT * FROM t") == [(1,), (5,)]
    assert is_ours(spark, "t")


@pytest.mark.promise("routing", "a target may be a parameter of `EXECUTE IMMEDIATE`")
@pytest.mark.parametrize("using", ["(:name) VALUES (:x)' USING 't' AS name, 2 AS x", "(?) VALUES (?)' USING 't', 2"])
def test_a_target_may_be_a_parameter_of_execute_immediate(spark: SparkSession, using: str) -> None:
    spark.sql("CREATE TABLE t USING parquet AS SELECT 1 AS a")
    spark.sql(f"EXECUTE IMMEDIATE 'INSERT INTO IDENTIFIER{using}")
    assert rows(spark, "SELECT * FROM t") == [(1,), (2,)]
    assert is_ours(spark, "t")


@pytest.mark.promise("routing", "a partition's value may be a parameter of `EXECUTE IMMEDIATE`")
def test_a_partitions_value_may_be_a_parameter_of_execute_immediate(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t USING parquet PARTITIONED BY (p) AS SELECT 1 AS a, 3 AS p UNION ALL SELECT 2, 4")
    statement = "EXECUTE IMMEDIATE 'INSERT OVERWRITE t PARTITION (p = ?) SELECT ?' USING 3, 7"
    if spark.version < "4.1":
        with pytest.raises(IllegalArgumentException, match="Only literals"):  # Spark's own.
            spark.sql(statement)
        assert rows(spark, "SELECT * FROM t") == [(1, 3), (2, 4)]
        return
    spark.sql(statement)
    assert rows(spark, "SELECT * FROM t") == [(2, 4), (7, 3)]
    assert is_ours(spark, "t")


@pytest.mark.promise("routing", "a target may be a variable of Spark's own substitution")
def test_a_target_may_be_a_substituted_variable(spark: SparkSession) -> None:
    spark.sql("SET chosen = t")
    spark.sql("CREATE TABLE ${chosen} USING parquet AS SELECT 1 AS a")
    spark.sql("INSERT INTO ${chosen} SELECT 2")
    spark.sql("RESET chosen")
    assert rows(spark, "SELECT * FROM t") == [(1,), (2,)]
    assert is_ours(spark, "t")


#: In scripts a name means what it means when its statement is reached.
SCRIPTS = {
    "DECLARE v STRING DEFAULT 't'; INSERT INTO IDENTIFIER(v) SELECT 2": [(1,), (2,)],
    "DROP TABLE t; ALTER TABLE u RENAME TO t; INSERT INTO t SELECT 2": [(2,), (7,)],
    "USE hive.default; INSERT INTO t SELECT 2; USE spark_catalog.default": [(1,), (2,)],
    "USE elsewhere; INSERT INTO t SELECT 2; USE default; INSERT INTO t SELECT 3": [(1,), (3,)],
    "DECLARE n INT DEFAULT 0; WHILE n < 2 DO SET n = n + 1; INSERT INTO t SELECT n; END WHILE": [(1,), (1,), (2,)],
    "DECLARE EXIT HANDLER FOR SQLEXCEPTION INSERT INTO t SELECT 9; INSERT INTO t SELECT raise_error('no')": [
        (1,),
        (9,),
    ],
}


@pytest.mark.promise("routing", "each statement of a script is a transaction")
@pytest.mark.parametrize("script", SCRIPTS)
def test_each_statement_of_a_script_is_a_transaction(spark: SparkSession, handle: Handle, script: str) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    spark.sql("CREATE TABLE u AS SELECT 7 AS a")
    spark.sql("CREATE DATABASE elsewhere")
    spark.sql("CREATE TABLE elsewhere.t AS SELECT 1 AS a")
    before = len(handle.timeline.transactions())
    spark.sql(f"BEGIN {script}; END")
    assert rows(spark, "SELECT * FROM t") == SCRIPTS[script]
    assert rows(spark, "SELECT * FROM elsewhere.t") == [(1,), *([(2,)] if "elsewhere" in script else [])]
    made = sum(script.count(verb) for verb in ("INSERT", "WHILE n", "DROP", "RENAME"))
    assert len(handle.timeline.transactions()) - before == made
    spark.sql("DROP DATABASE elsewhere CASCADE")


@pytest.mark.usefixtures("legacy")
def test_the_legacy_policy_casts_beside_columns_of_a_length_and_these_are_checked(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t (a INT, b CHAR(3), `c.d` VARCHAR(3)) USING parquet")
    spark.sql("INSERT INTO t (a) SELECT 'abc'")
    spark.sql("INSERT INTO t SELECT '2', 'x', 7")
    spark.sql("SELECT '3' AS a, 'y' AS b, 'z' AS c").write.insertInto("t")
    with pytest.raises(PySparkException, match="EXCEED_LIMIT_LENGTH"):
        spark.sql("INSERT INTO t SELECT 'abc', 'xxxxxx', 'x'")
    expected = [(2, "x  ", "7"), (3, "y  ", "z"), (None, None, None)]
    assert sorted((tuple(row) for row in spark.table("t").collect()), key=str) == expected
    assert is_ours(spark, "t")


@pytest.mark.usefixtures("legacy")
def test_the_legacy_policy_casts_in_a_script(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t USING parquet AS SELECT 1 AS a")
    spark.sql("BEGIN CREATE TABLE u USING parquet AS SELECT 1 AS a; INSERT INTO t VALUES ('3'); END")
    assert rows(spark, "SELECT * FROM t") == [(1,), (3,)]
    assert is_ours(spark, "t")


@pytest.mark.promise(
    "same-answers", "the store assignment policy `LEGACY` casts into a table that the block has written"
)
@pytest.mark.usefixtures("legacy")
def test_the_legacy_policy_casts_into_a_table_of_a_block(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t (a INT, c CHAR(3) DEFAULT 'd', p INT) USING parquet PARTITIONED BY (p)")
    if spark.version < "4.1":  # It checks the policy before any rule can put the rows in order.
        with twophase.transaction(spark):
            spark.sql("INSERT INTO t VALUES ('3', 'x', '2')")
            with pytest.raises(AnalysisException, match=r"(?i)legacy"):
                spark.sql("INSERT INTO t VALUES ('3', 'x', '2')")
        assert rows(spark, "SELECT p, a, c FROM t") == [(2, 3, "x  ")]
        return
    with twophase.transaction(spark):
        for _ in range(2):
            spark.sql("INSERT INTO t VALUES ('3', 'x', '2')")
        spark.sql("INSERT INTO t PARTITION (p = '5') SELECT 'no number', 1")
        spark.sql("INSERT INTO t (p, a) SELECT '6', id + 0.9 FROM range(1)")
        spark.sql("INSERT INTO t BY NAME SELECT '7' AS p, '8' AS a")
        spark.sql("SELECT 9.5 AS x, 'z' AS x, '9' AS x").write.insertInto("t")
        with pytest.raises(AnalysisException, match="ARITY_MISMATCH"):
            spark.sql("INSERT INTO t VALUES ('3', 'x')")
        spark.sql("INSERT OVERWRITE t PARTITION (p = 2) VALUES ('4', DEFAULT)")
        spark.sql("CREATE TABLE u AS SELECT 1 AS a")
        spark.sql("WITH q AS (SELECT '2' AS b) INSERT INTO u SELECT * FROM q")
    assert rows(spark, "SELECT p, coalesce(a, -1), c FROM t") == [
        (2, 4, "d  "),
        (5, -1, "1  "),
        (6, 0, "d  "),
        (7, 8, "d  "),
        (9, 9, "z  "),
    ]
    assert rows(spark, "SELECT * FROM u") == [(1,), (2,)]


@pytest.mark.usefixtures("legacy")
def test_in_other_catalogs_than_sparks_own_the_legacy_policy_is_refused(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE lake.default.t AS SELECT 1 AS a")
    try:
        with pytest.raises(AnalysisException, match=r"(?i)legacy"):
            spark.sql("INSERT INTO lake.default.t VALUES ('3')")
        assert spark.table("lake.default.t").count() == 1
    finally:
        spark.sql("DROP TABLE lake.default.t")


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("INSERT INTO p PARTITION (d = '2020-01-09') SELECT 12, 'y'", "_LEGACY_ERROR_TEMP_1169"),
        ("INSERT INTO p PARTITION (d, s = 'x') SELECT 13, DATE'2020-01-08'", "_LEGACY_ERROR_TEMP_1147"),
        ("INSERT OVERWRITE p PARTITION (d, s = 'x') SELECT 101, DATE'2020-01-08'", "_LEGACY_ERROR_TEMP_1147"),
    ],
)
def test_a_partition_clause_that_stock_spark_refuses_is_refused_and_no_row_goes(
    spark: SparkSession, text: str, condition: str
) -> None:
    spark.sql("CREATE TABLE p (a INT, d DATE, s STRING) USING parquet PARTITIONED BY (d, s)")
    spark.sql("INSERT INTO p VALUES (1, DATE'2020-01-01', 'x'), (2, DATE'2020-01-02', 'x')")
    with pytest.raises(AnalysisException) as caught:
        spark.sql(text)
    assert caught.value.getCondition() == condition
    for inside in (f"BEGIN {text}; END", f'EXECUTE IMMEDIATE "{text}"'):
        with pytest.raises((AnalysisException, Py4JJavaError)):  # in a script Spark fails over its own error
            spark.sql(inside)
    with pytest.raises(AnalysisException), twophase.transaction(spark):
        spark.sql(text)
    with pytest.raises(AtomicityNotSupportedError, match="Name them all"), twophase.transaction(spark):
        spark.sql("INSERT INTO p VALUES (3, DATE'2020-01-01', 'x')")
        spark.sql(text)
    assert rows(spark, "SELECT a FROM p") == [(1,), (2,)]
    spark.sql("INSERT INTO p PARTITION (s, D = '2020-01-03') SELECT 3, 'x'")
    assert rows(spark, "SELECT a FROM p") == [(1,), (2,), (3,)]


# -- who is routed -----------------------------------------------------------------------------------------------------


def test_a_session_that_is_not_attached_goes_straight_through(spark: SparkSession) -> None:
    other = stock_session(spark)
    other.sql("CREATE TABLE t AS SELECT 1 AS a")
    assert not has_stamp(spark, "t")
    other.range(1).selectExpr("2 AS a").write.mode("append").saveAsTable("t")
    other.range(1).selectExpr("3 AS a").write.insertInto("t")
    assert not has_stamp(spark, "t")
    assert rows(spark, "SELECT * FROM t") == [(1,), (2,), (3,)]


def test_detach_puts_every_door_back(start: Start, spark: SparkSession) -> None:
    session = spark.newSession()
    attached_twice = [twophase.attach(session), twophase.attach(session)]
    assert attached_twice[0] is attached_twice[1]
    session.sql("CREATE TABLE t AS SELECT 1 AS a")
    assert is_ours(spark, "t")
    attached_twice[0].detach()
    attached_twice[0].detach()
    session.sql("CREATE TABLE u AS SELECT 1 AS a")
    assert not has_stamp(spark, "u")
    spark.sql("CREATE TABLE v AS SELECT 1 AS a")
    assert is_ours(spark, "v")

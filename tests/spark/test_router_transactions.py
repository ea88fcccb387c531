"""Inside a transaction: statements read what earlier ones staged, and nothing takes effect immediately."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark import InheritableThread, __version__
from pyspark.errors import AnalysisException, SparkRuntimeException, UnsupportedOperationException
from pyspark.sql import SparkSession
from pyspark.sql.catalog import Catalog
from pyspark.sql.functions import col
from pyspark.sql.types import StructType

import twophase
from tests.spark.conftest import Start
from twophase.errors import AtomicityNotSupportedError, WriteConflictError
from twophase.spark.attach import Handle

spark40_first_cases = True


@pytest.fixture(scope="module")
def spark(start: Start) -> SparkSession:
    vendor = "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
    conf = {"spark.sql.catalog.vendor": vendor, "spark.sql.catalog.vendor.url": "jdbc:derby:memory:vendor;create=true"}
    session = start({"spark.sql.scripting.enabled": "true", **conf})
    twophase.attach(session)
    session.sql("CREATE TABLE old AS SELECT 1 AS a")
    session.sql("CREATE TABLE other (a INT) USING xml")
    return session


@pytest.fixture
def handle(spark: SparkSession) -> Handle:
    return twophase.attach(spark)


@pytest.fixture
def staged(spark: SparkSession) -> Iterator[None]:
    """A transaction that has staged table ``t`` with the rows 0, 1 and 2, and is rolled back in the end."""

    class RolledBack(Exception):
        pass

    with pytest.raises(RolledBack), twophase.transaction(spark):
        spark.sql("CREATE TABLE t AS SELECT id AS a FROM range(3)")
        yield
        raise RolledBack


def rows(spark: SparkSession, query: str, args: Any = None) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.sql(query, args).collect())


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM t", [(0,), (1,), (2,)]),
        ("SELECT t.a FROM default.t WHERE t.a > 1", [(2,)]),
        ("SELECT x.a FROM t x JOIN spark_catalog.default.t y ON x.a = y.a", [(0,), (1,), (2,)]),
        ("SELECT spark_catalog.default.t.a FROM t WHERE spark_catalog.DEFAULT.t.a = 1", [(1,)]),
        ("SELECT spark_catalog.default.t.* FROM spark_catalog.default.t", [(0,), (1,), (2,)]),
        ("SELECT '😀', max(a) FROM /* t */ `t`", [("😀", 2)]),
        ("WITH t AS (SELECT 9 AS a) SELECT * FROM t", [(9,)]),
        ("WITH s AS (SELECT max(a) AS m FROM t), t AS (SELECT m FROM s) SELECT * FROM t", [(2,)]),
        ("SELECT (SELECT max(a) FROM t), EXISTS (SELECT 1 FROM t WHERE a = 7)", [(2, False)]),
        ("SELECT a FROM old WHERE a IN (SELECT a FROM (SELECT * FROM t WHERE a > 0) u)", [(1,)]),
        ("SELECT a FROM t UNION ALL SELECT a FROM old", [(0,), (1,), (1,), (2,)]),
        ("TABLE t", [(0,), (1,), (2,)]),
        ("WITH s AS (SELECT 7 AS a) SELECT (a) merge FROM t WHERE a = 1", [(1,)]),
        ("FROM t SELECT a WHERE a = 0", [(0,)]),
        ("SELECT * FROM IDENTIFIER('t') WHERE a = 1", [(1,)]),
        ("SELECT IDENTIFIER('a') FROM IDENTIFIER('default.' || 't') WHERE a = 1", [(1,)]),
        ("DESCRIBE QUERY SELECT a AS b FROM t", [("b", "bigint", None)]),
        ("BEGIN IF EXISTS (SELECT 1 FROM t) THEN SELECT sum(a) FROM t; END IF; END", [(3,)]),
    ],
)
@pytest.mark.usefixtures("staged")
def test_a_staged_table_is_read_wherever_it_is_named(spark: SparkSession, query: str, expected: list[Any]) -> None:
    assert rows(spark, query) == expected


@pytest.mark.usefixtures("staged")
def test_a_statement_behind_execute_immediate_reads_it_too(spark: SparkSession) -> None:
    assert rows(spark, "EXECUTE IMMEDIATE 'SELECT max(a) FROM t'") == [(2,)]
    spark.sql("INSERT INTO old SELECT 5")
    assert rows(spark, "BEGIN EXECUTE IMMEDIATE 'SELECT * FROM old WHERE a > ?' USING 1; END") == [(5,)]
    spark.sql("EXECUTE IMMEDIATE 'INSERT INTO t SELECT sum(a) FROM t'")
    assert rows(spark, "SELECT max(a) FROM t") == [(3,)]


@pytest.mark.parametrize("old", ["old", "hive.default.old"])
def test_a_script_reads_what_it_wrote_itself_and_has_one_outcome(spark: SparkSession, old: str) -> None:
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        spark.sql(
            f"BEGIN CREATE TABLE made AS SELECT 0 AS a; INSERT INTO {old} SELECT 2; "
            "INSERT INTO made SELECT a FROM old; "
            "EXECUTE IMMEDIATE 'INSERT INTO made SELECT a + 10 FROM old'; "
            f"FROM range(1) INSERT INTO {old} SELECT 3 INSERT INTO made SELECT 3; END"
        )
        assert rows(spark, "SELECT * FROM old") == [(1,), (2,), (3,)]
        assert rows(spark, "SELECT * FROM made") == [(0,), (1,), (2,), (3,), (11,), (12,)]
        1 / 0  # noqa: B018
    assert rows(spark, "SELECT * FROM old") == [(1,)]
    assert not spark.catalog.tableExists("made")


@pytest.mark.usefixtures("staged")
def test_a_script_that_says_use_reads_a_staged_table(spark: SparkSession) -> None:
    for read in ("SELECT max(a) FROM t", "EXECUTE IMMEDIATE 'SELECT max(a) FROM t'"):
        assert rows(spark, f"BEGIN USE default; {read}; END") == [(2,)]
    assert rows(spark, "BEGIN USE default; SELECT max(a) FROM spark_catalog.default.t; END") == [(2,)]


@pytest.mark.usefixtures("staged")
def test_the_data_frame_api_reads_it_too(spark: SparkSession) -> None:
    assert spark.table("t").count() == spark.read.table("default.t").count() == 3
    spark.table("t").write.mode("append").saveAsTable("t")
    spark.table("t").write.insertInto("t")
    assert spark.table("t").count() == 12
    spark.range(1).selectExpr("5L AS a").writeTo("t").createOrReplace()
    assert rows(spark, "SELECT * FROM t WHERE a = :a", {"a": 5}) == [(5,)]


@pytest.mark.usefixtures("staged")
def test_a_read_by_a_name_that_is_given_as_a_value_reads_it_too(spark: SparkSession) -> None:
    spark.sql("DECLARE OR REPLACE VARIABLE named STRING DEFAULT 't'")
    assert rows(spark, "SELECT max(a) FROM IDENTIFIER(:name) WHERE a < :less", {"name": "t", "less": 2}) == [(1,)]
    assert rows(spark, "SELECT max(a) + ? FROM IDENTIFIER(?)", [5, "default.t"]) == [(7,)]
    assert rows(spark, "SELECT max(a) FROM IDENTIFIER(named)") == [(2,)]
    assert rows(spark, "BEGIN DECLARE n STRING DEFAULT 't'; SELECT max(a) FROM IDENTIFIER(n); END") == [(2,)]


@pytest.mark.usefixtures("staged")
def test_a_variable_is_set_to_what_was_staged(spark: SparkSession) -> None:
    spark.sql("INSERT INTO old VALUES (9)")
    spark.sql("DECLARE OR REPLACE VARIABLE n BIGINT")
    spark.sql("SET VAR n = (SELECT max(a) FROM old)")
    assert rows(spark, "SELECT n") == [(9,)]
    spark.sql("SET VARIABLE (n) = (SELECT max(a) FROM t)")
    assert rows(spark, "SELECT n") == [(2,)]


@pytest.mark.promise("staged-reads", "a SQL function reads what was staged")
def test_a_function_reads_what_was_staged(spark: SparkSession) -> None:
    spark.sql("CREATE TEMPORARY FUNCTION newest() RETURNS BIGINT RETURN SELECT max(a) FROM old")
    spark.sql("CREATE TEMPORARY FUNCTION all_of() RETURNS TABLE(a BIGINT) RETURN SELECT a FROM default.old")
    spark.sql("CREATE TEMPORARY FUNCTION above() RETURNS BIGINT RETURN newest() + 1")
    spark.sql("CREATE VIEW behind AS SELECT * FROM old")
    spark.sql("CREATE TEMPORARY FUNCTION by_view() RETURNS BIGINT RETURN SELECT max(a) FROM behind")
    spark.sql("CREATE DATABASE db")
    spark.sql("CREATE FUNCTION db.newest() RETURNS BIGINT RETURN 7")
    spark.sql("CREATE FUNCTION db.lasting() RETURNS BIGINT RETURN SELECT max(a) FROM default.old")
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        spark.sql("CREATE TABLE unconcerned AS SELECT above() AS a")
        spark.sql("INSERT INTO old VALUES (2)")
        assert rows(spark, "SELECT newest(), above(), by_view()") == [(2, 3, 2)]
        assert rows(spark, "BEGIN SELECT * FROM all_of(); END") == [(1,), (2,)]
        assert [tuple(row) for row in spark.range(1).selectExpr("above()").collect()] == [(3,)]
        assert rows(spark, "SELECT db.newest(), db.lasting()") == [(7, 2)]
        1 / 0  # noqa: B018
    assert rows(spark, "SELECT above()") == [(2,)]
    for name in ("newest", "all_of", "above", "by_view"):
        spark.sql(f"DROP TEMPORARY FUNCTION {name}")
    spark.sql("DROP VIEW behind")
    spark.sql("DROP DATABASE db CASCADE")


def test_a_table_that_a_variable_names_is_read_too(spark: SparkSession) -> None:
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        spark.sql("SET chosen = old")
        spark.sql("INSERT INTO old VALUES (2)")
        assert rows(spark, "SELECT '${chosen}', a FROM ${chosen} WHERE a > 1") == [("old", 2)]
        spark.sql("SET chosen = default")
        assert "old" in {name for _, name, _ in rows(spark, "SHOW TABLES IN ${chosen}")}
        1 / 0  # noqa: B018
    spark.sql("RESET chosen")


@pytest.mark.usefixtures("staged")
def test_a_listing_that_would_not_show_staged_tables_is_refused(spark: SparkSession) -> None:
    for text in ("EXECUTE IMMEDIATE 'SHOW TABLES'", "BEGIN SHOW TABLE EXTENDED LIKE 'o*'; END"):
        with pytest.raises(AtomicityNotSupportedError, match="what this transaction has written"):
            spark.sql(text)


@pytest.mark.usefixtures("staged")
def test_a_view_that_stays_is_not_made_of_a_table_that_is_not_there_yet(spark: SparkSession) -> None:
    spark.sql("CREATE OR REPLACE TABLE old AS SELECT 'x' AS b")
    for text in ("CREATE VIEW kept AS SELECT * FROM t", "BEGIN CREATE OR REPLACE VIEW kept AS TABLE old; END"):
        with pytest.raises(AtomicityNotSupportedError, match="a view is made of published tables"):
            spark.sql(text)
    assert not spark.catalog.tableExists("kept")


@pytest.mark.promise("staged-reads", "`DESCRIBE` and `SHOW` of a staged table show what it will be")
@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("DESCRIBE t", 0, ["a"]),
        ("DESC default.old", 0, ["b"]),
        ("DESCRIBE TABLE t a", 1, ["a", "bigint", "NULL"]),
        ("SHOW COLUMNS IN t", 0, ["a"]),
        ("SHOW COLUMNS FROM old", 0, ["b"]),
        ("SHOW TBLPROPERTIES old ('k')", 1, ["v"]),
        ("SHOW TABLES LIKE 'ol*|t'", 1, ["old", "t"]),
        ("SHOW TABLES IN default 't'", 1, ["t"]),
        ("SHOW TABLES IN default", 1, ["old", "other", "t"]),
        ("SHOW TABLES FROM hive.default LIKE 't'", 1, ["t"]),
    ],
)
@pytest.mark.usefixtures("staged")
def test_what_is_shown_of_a_staged_table_is_what_it_will_be(
    spark: SparkSession, text: str, column: int, expected: list[str]
) -> None:
    spark.sql("CREATE OR REPLACE TABLE old TBLPROPERTIES ('k' = 'v') AS SELECT 'x' AS b")
    assert [row[column] for row in spark.sql(text).collect()] == expected


@pytest.mark.promise("staged-reads", "`spark.catalog` shows staged tables")
@pytest.mark.usefixtures("staged")
def test_the_catalog_api_shows_staged_tables(spark: SparkSession) -> None:
    spark.sql("CREATE OR REPLACE TABLE old COMMENT 'c' AS SELECT 'x' AS b")
    api = spark.catalog
    assert [api.tableExists(name) for name in ("t", "default.t", "spark_catalog.default.t", "no")] == [True] * 3 + [
        False
    ]
    assert [column.name for column in api.listColumns("t") + api.listColumns("default.old")] == ["a", "b"]
    table = api.getTable("old")
    assert (table.name, table.catalog, table.namespace, table.description) == ("old", "spark_catalog", ["default"], "c")
    api.cacheTable("t")
    assert api.isCached(tableName="t")
    api.uncacheTable("t")
    api.refreshTable("t")


@pytest.mark.usefixtures("staged")
def test_the_catalog_api_lists_staged_tables(spark: SparkSession) -> None:
    spark.sql("CREATE OR REPLACE TABLE old COMMENT 'c' AS SELECT 'x' AS b")
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")  # without generated code Spark cannot list any
    listed = spark.catalog.listTables()
    assert sorted(t.name for t in listed) == ["old", "other", "t"]
    assert [(t.catalog, t.description) for t in listed if t.name == "old"] == [("spark_catalog", "c")]
    assert [t.name for t in spark.catalog.listTables("default", "t*")] == ["t"]
    spark.conf.unset("spark.sql.codegen.factoryMode")


#: Methods of ``spark.catalog`` that change something, with arguments; PySpark 4.0 has not all of them.
CHANGING = [
    ("truncateTable", ("other",)),
    ("createTable", ("plain", None, "xml", "a INT")),
    ("recoverPartitions", ("old",)),
    ("dropDatabase", ("default", True, True)),
]


@pytest.mark.promise("immediate-effects", "what `spark.catalog` would do immediately is refused")
@pytest.mark.parametrize(("method", "arguments"), [change for change in CHANGING if hasattr(Catalog, change[0])])
@pytest.mark.usefixtures("staged")
def test_what_the_catalog_api_would_do_at_once_is_refused(
    spark: SparkSession, method: str, arguments: tuple[Any, ...]
) -> None:
    schema = [StructType.fromDDL(a) if a == "a INT" else a for a in arguments]
    with pytest.raises(AtomicityNotSupportedError, match="takes effect immediately"):
        getattr(spark.catalog, method)(*schema)
    assert rows(spark, "SELECT * FROM old") == [(1,)]


def _truncating(spark: SparkSession, name: str) -> list[Callable[[], Any]]:
    if hasattr(Catalog, "truncateTable"):
        return [lambda: getattr(spark.catalog, "truncateTable")(name)]  # noqa: B009
    return [lambda: spark.sql(f"TRUNCATE TABLE {name}")]


@pytest.mark.promise("ddl-in-blocks", "a table that is created through `spark.catalog`, or in a script, is staged")
@pytest.mark.filterwarnings("ignore:createExternalTable is deprecated:FutureWarning")
@pytest.mark.usefixtures("staged")
def test_a_table_without_rows_is_staged_however_it_is_created(spark: SparkSession) -> None:
    other = spark.newSession()
    spark.catalog.createTable("one", None, "parquet", StructType.fromDDL("a INT"))
    spark.catalog.createTable("hive.default.two", None, "parquet", StructType.fromDDL("a INT"))
    spark.sql("BEGIN CREATE TABLE three (a INT); INSERT INTO three VALUES (1); END")
    spark.sql("EXECUTE IMMEDIATE 'CREATE TABLE four (a INT)'")
    spark.sql("CREATE OR REPLACE TABLE four (b INT) USING parquet")
    assert rows(spark, "SELECT * FROM one UNION ALL SELECT * FROM two UNION ALL SELECT * FROM three") == [(1,)]
    assert spark.table("four").columns == ["b"]
    with pytest.raises(AtomicityNotSupportedError, match="without columns"):
        spark.catalog.createExternalTable("five", "/nowhere", "parquet")
    assert not any(other.catalog.tableExists(name) for name in ("one", "two", "three", "four", "five"))
    for empty in (lambda: spark.sql("EXECUTE IMMEDIATE 'TRUNCATE TABLE three'"), *_truncating(spark, "t")):
        empty()
    assert rows(spark, "SELECT a FROM t UNION ALL SELECT a FROM three") == []


@pytest.mark.usefixtures("staged")
def test_partitions_and_statistics_of_a_staged_table_are_shown_after_the_transaction(spark: SparkSession) -> None:
    for text in ("SHOW PARTITIONS t", "ANALYZE TABLE t COMPUTE STATISTICS", "SHOW TABLE EXTENDED IN default LIKE 't'"):
        with pytest.raises(AtomicityNotSupportedError, match="without what this transaction has written"):
            spark.sql(text)


def test_others_see_nothing_of_it(spark: SparkSession) -> None:
    other = spark.newSession()
    with twophase.transaction(spark):
        spark.sql("CREATE TABLE secret AS SELECT 1 AS a")
        spark.sql("INSERT INTO old SELECT a + 10 FROM secret")
        assert rows(spark, "SELECT * FROM old") == [(1,), (11,)]
        assert not other.catalog.tableExists("secret")
        assert rows(other, "SELECT * FROM old") == [(1,)]
    other.catalog.refreshTable("old")  # as with any write of Spark's in another session
    assert rows(other, "SELECT * FROM old") == [(1,), (11,)]
    spark.sql("DROP TABLE secret")
    spark.sql("INSERT OVERWRITE old SELECT 1")


@pytest.mark.promise("immediate-effects", "a statement that would take effect immediately is refused")
@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE plain (a INT) USING xml",
        "ALTER TABLE other ADD COLUMN b INT",
        "ALTER TABLE other RENAME TO older",
        "TRUNCATE TABLE other",
        "LOAD DATA INPATH '/nowhere' INTO TABLE old",
        "DROP DATABASE default CASCADE",
        "INSERT INTO other VALUES (1)",
        "CREATE TABLE x USING xml AS SELECT 1 AS a",
        "BEGIN CREATE TABLE plain (a INT) USING xml; END",
        "DROP TABLE other",
        "BEGIN DROP TABLE other; END",
        "BEGIN IF 1 = 1 THEN BEGIN ALTER TABLE other RENAME TO older; END; END IF; END",
        "BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION DROP TABLE other; SELECT raise_error('no'); END",
        "EXECUTE IMMEDIATE 'DROP TABLE other'",
        "EXECUTE IMMEDIATE 'TRUNCATE TABLE other'",
        "BEGIN EXECUTE IMMEDIATE 'DROP TABLE other'; END",
        "ALTER DATABASE default SET DBPROPERTIES ('a' = 'b')",
        "CREATE TABLE x LIKE old",
        "EXECUTE IMMEDIATE 'CREATE TABLE IF NOT EXISTS x LIKE old'",
        "INSERT OVERWRITE DIRECTORY '/nowhere' USING parquet SELECT 1",
        "FROM old INSERT OVERWRITE LOCAL DIRECTORY '/nowhere' USING parquet SELECT a",
        "CREATE OR REPLACE FUNCTION f AS 'org.example.F'",
        "DROP FUNCTION IF EXISTS f",
        "COMMENT ON TABLE other IS 'x'",
        *(["COMMENT ON COLUMN other.a IS 'x'"] if __version__ >= "4.3" else []),
        # Of a catalog that is none of ours.
        "DROP TABLE vendor.app.x",
        "BEGIN DROP TABLE vendor.app.x; END",
        "EXECUTE IMMEDIATE 'DROP TABLE vendor.app.x'",
        "ALTER TABLE vendor.app.x ADD COLUMN b INT",
        "DELETE FROM vendor.app.x WHERE a = 1",
        "WITH s AS (SELECT 1 AS a) DELETE FROM vendor.app.x WHERE a IN (SELECT a FROM s)",
        "UPDATE vendor.app.x SET a = 1",
        "MERGE INTO vendor.app.x USING old ON x.a = old.a WHEN MATCHED THEN DELETE",
        "MERGE INTO vendor.app.x AS y USING old ON y.a = old.a WHEN MATCHED THEN DELETE",
        "BEGIN DELETE FROM vendor.app.x WHERE a = 1; END",
        "BEGIN SELECT 1; UPDATE vendor.app.x SET a = 1; END",
        "BEGIN IF 1 = 1 THEN MERGE INTO vendor.app.x USING old ON x.a = old.a WHEN MATCHED THEN DELETE; END IF; END",
        "EXECUTE IMMEDIATE 'DELETE FROM vendor.app.x WHERE a = 1'",
        "BEGIN EXECUTE IMMEDIATE 'UPDATE vendor.app.x SET a = 1'; END",
    ],
)
@pytest.mark.usefixtures("staged")
def test_what_would_take_effect_at_once_is_refused(spark: SparkSession, text: str) -> None:
    with pytest.raises(AtomicityNotSupportedError, match="takes effect immediately"):
        spark.sql(text)
    assert rows(spark, "SELECT * FROM t") == [(0,), (1,), (2,)]
    assert rows(spark, "SELECT * FROM old") == [(1,)]


@pytest.mark.parametrize("name", ["t", "old"])
@pytest.mark.parametrize("alias", ["", " AS x"])
@pytest.mark.parametrize("change", ["DELETE FROM {} WHERE a = 1", "UPDATE {} SET a = 5"])
@pytest.mark.usefixtures("staged")
def test_that_rows_of_a_session_table_do_not_change_is_said_by_spark(
    spark: SparkSession, change: str, alias: str, name: str
) -> None:
    with pytest.raises((AnalysisException, UnsupportedOperationException), match="not support"):
        spark.sql(change.format(name + alias))


@pytest.mark.usefixtures("staged")
def test_that_a_table_of_several_is_not_there_is_said_by_spark(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("FROM old INSERT INTO t SELECT a INSERT INTO nowhere SELECT a")
    assert rows(spark, "SELECT * FROM t") == [(0,), (1,), (2,)]


@pytest.fixture
def views(spark: SparkSession) -> Iterator[None]:
    """Views over table ``old``, made before anything is staged."""
    spark.sql("CREATE VIEW kept AS SELECT a FROM old")
    spark.sql("CREATE VIEW above AS SELECT max(a) AS a FROM kept")
    spark.sql("CREATE TEMPORARY VIEW nested AS SELECT 1 AS a WHERE 1 IN (SELECT a FROM above)")
    spark.table("old").createOrReplaceTempView("frame")
    spark.table("old").createOrReplaceGlobalTempView("everywhere")
    spark.sql("CREATE VIEW unconcerned AS SELECT 7 AS a")
    yield
    for name in ("kept", "above", "nested", "frame", "global_temp.everywhere", "unconcerned"):
        spark.sql(f"DROP VIEW {name}")


@pytest.mark.promise("staged-reads", "a view reads what was staged")
@pytest.mark.parametrize("name", ["kept", "default.above", "nested"])
@pytest.mark.usefixtures("views")
def test_a_view_shows_what_was_staged(spark: SparkSession, name: str) -> None:
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        spark.sql("INSERT OVERWRITE old VALUES (1), (2)")
        expected = {"kept": [(1,), (2,)], "default.above": [(2,)], "nested": []}[name]
        assert rows(spark, f"SELECT * FROM {name}") == expected
        assert rows(spark, f"WITH x AS (SELECT a FROM {name}) SELECT * FROM x") == expected
        assert rows(spark, f"BEGIN SELECT * FROM {name}; END") == expected
        assert sorted(tuple(row) for row in spark.table(name).collect()) == expected
        assert spark.read.table(name).count() == len(expected)
        1 / 0  # noqa: B018
    assert rows(spark, f"SELECT * FROM {name}") == [(1,)]


@pytest.mark.promise("staged-reads", "a view of a DataFrame that was made before is refused, not read as it was")
@pytest.mark.parametrize("name", ["frame", "global_temp.everywhere"])
@pytest.mark.usefixtures("views")
def test_a_view_of_a_frame_that_was_made_before_is_refused_and_not_read_as_it_was(
    spark: SparkSession, name: str
) -> None:
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        before = spark.table(name)
        assert rows(spark, f"SELECT * FROM {name}") == [(1,)]
        spark.sql("INSERT INTO old VALUES (2)")
        for read in (
            lambda: spark.sql(f"SELECT * FROM {name}"),
            lambda: spark.sql(f"SELECT 1 WHERE 1 IN (SELECT a FROM {name})"),
            lambda: spark.sql(f"WITH x AS (SELECT a FROM {name}) INSERT INTO old SELECT * FROM x"),
            lambda: spark.sql(f"BEGIN SELECT 1; SELECT * FROM {name}; END"),
            lambda: spark.table(name),
            lambda: spark.read.table(name),
            lambda: before.where("a > 0"),
        ):
            with pytest.raises(AtomicityNotSupportedError, match="without what this transaction has written"):
                read()
        assert before.collect() == [(1,)]  # Spark does not look at it again.
        assert rows(spark, "SELECT * FROM unconcerned") == [(7,)]
        assert rows(spark, "WITH frame AS (SELECT 3 AS a) SELECT * FROM frame") == [(3,)]
        assert spark.table("unconcerned").count() == 1
        1 / 0  # noqa: B018
    assert rows(spark, f"SELECT * FROM {name}") == [(1,)]


def test_a_thread_joins_the_transaction_where_it_inherits_local_properties(spark: SparkSession) -> None:
    def insert(table: str) -> None:
        spark.sql(f"INSERT INTO {table} VALUES (2)")

    spark.sql("CREATE TABLE aside AS SELECT 1 AS a")
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        for thread in (
            InheritableThread(target=insert, args=("old",)),
            threading.Thread(target=insert, args=("aside",)),
        ):
            thread.start()
            thread.join()
        assert rows(spark, "SELECT * FROM old") == [(1,), (2,)]
        1 / 0  # noqa: B018
    assert rows(spark, "SELECT * FROM old") == [(1,)]
    assert rows(spark, "SELECT * FROM aside") == [(1,), (2,)]  # a plain thread stands outside
    spark.sql("DROP TABLE aside")


@pytest.mark.usefixtures("staged")
def test_views_and_settings_are_no_matter_of_the_transaction(spark: SparkSession) -> None:
    spark.sql("CREATE TEMPORARY VIEW seen AS SELECT max(a) AS m FROM t")
    assert rows(spark, "SELECT * FROM seen") == [(2,)]
    spark.sql("DROP VIEW seen")
    spark.sql("SET some.key = value")
    assert spark.sql("EXPLAIN SELECT * FROM t").count() == 1


@pytest.mark.usefixtures("staged")
def test_a_write_past_us_is_refused_at_every_door(spark: SparkSession) -> None:
    for write in (
        lambda: spark.range(1).write.format("xml").saveAsTable("x"),
        lambda: spark.range(1).selectExpr("1 AS a").write.insertInto("other"),
        lambda: spark.range(1).writeTo("x").using("xml").create(),
        lambda: spark.range(1).mergeInto("vendor.app.x", col("id") == 1).whenMatched().delete().merge(),
        lambda: spark.readStream.format("rate").load().writeStream.toTable("x"),
    ):
        with pytest.raises(AtomicityNotSupportedError, match="takes effect immediately"):
            write()


def test_several_statements_on_one_table_build_on_each_other(spark: SparkSession) -> None:
    with twophase.transaction(spark) as tx:
        spark.sql("CREATE TABLE built AS SELECT 1 AS a")
        spark.sql("INSERT INTO built VALUES (2)")
        spark.sql("FROM range(11, 13) INSERT INTO built SELECT id INSERT INTO old SELECT id")
        spark.sql("INSERT INTO built SELECT count(*) FROM built")
    assert rows(spark, "SELECT * FROM built") == [(1,), (2,), (4,), (11,), (12,)]
    assert rows(spark, "SELECT * FROM old") == [(1,), (11,), (12,)]
    assert tx.state.name == "COMPLETED"
    spark.sql("DROP TABLE built")
    spark.sql("INSERT OVERWRITE old SELECT 1")


def test_what_a_block_cached_stands_in_no_later_statements_way(spark: SparkSession) -> None:
    with twophase.transaction(spark):
        spark.sql("INSERT INTO old VALUES (2)")
        spark.sql("CACHE TABLE old")
        spark.sql("CACHE TABLE more AS SELECT a + 10 AS a FROM old")
        assert rows(spark, "SELECT * FROM more") == [(11,), (12,)]
    assert rows(spark, "SELECT * FROM more") == [(11,), (12,)]
    spark.sql("INSERT INTO old VALUES (3)")
    assert rows(spark, "SELECT * FROM old") == [(1,), (2,), (3,)]
    assert rows(spark, "SELECT * FROM more") == [(11,), (12,), (13,)]
    spark.sql("DROP VIEW more")
    spark.sql("INSERT OVERWRITE old SELECT 1")


def test_rows_written_past_a_block_to_a_partition_that_it_registered_are_kept(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE shared PARTITIONED BY (p) AS SELECT 1 AS a, 1 AS p")
    try:
        with pytest.raises(WriteConflictError, match="outside twophase"), twophase.transaction(spark):
            spark.sql("INSERT OVERWRITE shared SELECT 2, 2")
            spark.sql("INSERT INTO shared SELECT 3, 2")
            spark._jsparkSession.newSession().sql("INSERT INTO shared SELECT 4, 2")
        spark.sql("REFRESH TABLE shared")
        assert rows(spark, "SELECT * FROM shared") == [(1, 1), (4, 2)]
    finally:
        spark.sql("DROP TABLE shared")


@pytest.fixture
def part(spark: SparkSession) -> Iterator[None]:
    """A partitioned table ``part`` with one row in the partitions 3 and 9."""
    spark.sql("CREATE TABLE part PARTITIONED BY (p) AS SELECT id AS a, id AS p FROM VALUES (3L), (9L) AS v(id)")
    yield
    spark.sql("DROP TABLE part")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            ["PARTITION (p = 8) IF NOT EXISTS SELECT 1", "PARTITION (p = 8) IF NOT EXISTS SELECT 2"],
            [(1, 8), (3, 3), (9, 9)],
        ),
        (["SELECT 1, 1", "PARTITION (p = 9) IF NOT EXISTS SELECT 2"], [(1, 1), (2, 9)]),
        (["SELECT 1, 1", "PARTITION (p = 1) IF NOT EXISTS SELECT 2"], [(1, 1)]),
        # The first one registers its new partition, and is superseded.
        (["SELECT 1, 1", "PARTITION (p = 9) SELECT 2"], [(1, 1), (2, 9)]),
    ],
)
@pytest.mark.usefixtures("part")
def test_overwrites_of_partitions_go_by_what_the_block_has_left(
    spark: SparkSession, texts: list[str], expected: list[Any]
) -> None:
    with twophase.transaction(spark):
        for text in texts:
            spark.sql(f"INSERT OVERWRITE part {text}")
        assert rows(spark, "SELECT * FROM part") == expected
    assert rows(spark, "SELECT * FROM part") == expected


@pytest.mark.usefixtures("part")
def test_if_not_exists_goes_by_the_partitions_of_the_snapshot(spark: SparkSession) -> None:
    begun = twophase.transaction(spark, isolation="snapshot")
    with ThreadPoolExecutor(1) as other, pytest.raises(WriteConflictError), begun:
        assert spark.table("part").count() == 2
        other.submit(spark.sql, "INSERT OVERWRITE part SELECT 1, 8").result()
        spark.sql("INSERT OVERWRITE part PARTITION (p = 9) IF NOT EXISTS SELECT 2")
        assert rows(spark, "SELECT * FROM part") == [(3, 3), (9, 9)]
        spark.sql("INSERT OVERWRITE part PARTITION (p = 8) IF NOT EXISTS SELECT 2")  # It is not there, and refused.
    assert rows(spark, "SELECT * FROM part") == [(1, 8)]


@pytest.mark.usefixtures("part")
def test_a_partition_of_a_table_that_the_block_made_is_looked_for_in_it(spark: SparkSession) -> None:
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        spark.sql("CREATE OR REPLACE TABLE part PARTITIONED BY (p) AS SELECT 1 AS a, 'x' AS p")
        spark.sql("INSERT OVERWRITE part PARTITION (p = 'x') IF NOT EXISTS SELECT 2")
        spark.sql("INSERT OVERWRITE part PARTITION (p = '9') IF NOT EXISTS SELECT 3")
        assert rows(spark, "SELECT * FROM part") == [(1, "x"), (3, "9")]
        1 / 0  # noqa: B018


@pytest.mark.usefixtures("part")
def test_what_stands_behind_execute_immediate_writes_no_partition_past_the_block(spark: SparkSession) -> None:
    overwrite = "INSERT OVERWRITE part PARTITION (p = {}) {} SELECT 2"
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        spark.sql("INSERT INTO part VALUES (1, 8)")
        spark.sql(f"EXECUTE IMMEDIATE '{overwrite.format(8, 'IF NOT EXISTS')}'")
        assert (1, 8) in rows(spark, "SELECT * FROM part")
        given = (
            "'{}' USING 3".format(overwrite.format("?", "")) if __version__ >= "4.1" else f"'{overwrite.format(3, '')}'"
        )
        spark.sql(f"EXECUTE IMMEDIATE {given}")
        assert rows(spark, "SELECT * FROM part") == [(1, 8), (2, 3), (9, 9)]
        1 / 0  # noqa: B018
    assert rows(spark, "SELECT * FROM part") == [(3, 3), (9, 9)]


@pytest.mark.usefixtures("staged")
def test_rows_that_do_not_fit_a_staged_table_are_not_appended_by_save_as_table(spark: SparkSession) -> None:
    spark.sql("CREATE OR REPLACE TABLE old AS SELECT 'x' AS b, 1 AS c")
    new, was = spark.sql("SELECT 2 AS c, 'y' AS b"), spark.sql("SELECT 2 AS a")
    for frame, options in (
        (was, {}),
        (new.select("b"), {}),
        (new, {"format": "orc"}),
        (new, {"partitionBy": "b"}),
        (new, {"path": "/nowhere"}),
    ):
        with pytest.raises(
            AtomicityNotSupportedError, match=r"not those of default\.old as this transaction has left it"
        ):
            frame.write.saveAsTable("old", mode="append", **options)
    with pytest.raises(AtomicityNotSupportedError, match="not those of"):
        new.write.bucketBy(2, "b").mode("append").saveAsTable("old")
    new.write.mode("append").saveAsTable("old")
    assert rows(spark, "SELECT * FROM old") == [("x", 1), ("y", 2)]
    spark.sql("CREATE TABLE bucketed CLUSTERED BY (a) INTO 2 BUCKETS AS SELECT 1 AS a")
    was.write.bucketBy(2, "a").mode("append").saveAsTable("bucketed")
    assert rows(spark, "SELECT * FROM bucketed") == [(1,), (2,)]


@pytest.mark.usefixtures("part")
def test_if_not_exists_in_a_script_looks_when_it_is_reached(spark: SparkSession) -> None:
    overwrite = "INSERT OVERWRITE part PARTITION (p = 8) IF NOT EXISTS SELECT {};"
    spark.sql(f"BEGIN INSERT INTO part VALUES (1, 8); {overwrite.format(2)} END")
    assert rows(spark, "SELECT * FROM part") == [(1, 8), (3, 3), (9, 9)]
    spark.sql("ALTER TABLE part DROP PARTITION (p = 8)")
    spark.sql(f"BEGIN REPEAT {overwrite.format(5)} UNTIL TRUE END REPEAT; {overwrite.format(6)} END")
    assert rows(spark, "SELECT * FROM part") == [(3, 3), (5, 8), (9, 9)]


@pytest.mark.promise("multi-inserts", "in a block a failing multi-insert stages none of its tables")
@pytest.mark.usefixtures("staged")
@pytest.mark.parametrize("first", ["old", "t", "hive.default.t"])
def test_in_a_block_a_failing_multi_insert_stages_none_of_its_tables(spark: SparkSession, first: str) -> None:
    spark.sql("INSERT INTO old VALUES (5)")
    before = rows(spark, f"SELECT * FROM {first}")
    with pytest.raises(SparkRuntimeException):
        spark.sql(
            f"FROM range(3) INSERT INTO {first} SELECT id INSERT INTO {first} SELECT id + 10 "
            "INSERT INTO old SELECT CAST(raise_error('broken') AS INT)"
        )
    assert rows(spark, f"SELECT * FROM {first}") == before
    assert rows(spark, "SELECT * FROM old") == [(1,), (5,)]
    spark.sql(f"FROM range(2) INSERT INTO {first} SELECT id + 20 INSERT INTO old SELECT id + 30")
    assert rows(spark, f"SELECT * FROM {first}")[-2:] in ([(20,), (21,)], [(30,), (31,)])
    assert (30,) in rows(spark, "SELECT * FROM old")


def test_in_a_block_a_failing_multi_insert_is_not_published(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE one AS SELECT 1 AS a")
    spark.sql("CREATE TABLE two AS SELECT 1 AS a")
    with twophase.transaction(spark):
        spark.sql("INSERT INTO two VALUES (2)")
        with pytest.raises(SparkRuntimeException):
            spark.sql("FROM range(3) INSERT INTO one SELECT id INSERT INTO two SELECT INT(raise_error('broken'))")
    assert rows(spark, "SELECT * FROM one") == [(1,)]
    assert rows(spark, "SELECT * FROM two") == [(1,), (2,)]


@pytest.mark.promise("multi-inserts", "in a block the inserts of a multi-insert read what was there before it")
@pytest.mark.usefixtures("staged")
def test_in_a_block_the_inserts_of_a_multi_insert_read_what_was_there_before_it(spark: SparkSession) -> None:
    spark.sql("FROM t INSERT INTO t SELECT a + 10 INSERT INTO old SELECT a + 20 WHERE a IN (SELECT max(a) FROM t)")
    assert rows(spark, "SELECT * FROM t") == [(0,), (1,), (2,), (10,), (11,), (12,)]
    assert rows(spark, "SELECT * FROM old") == [(1,), (22,)]


@pytest.mark.promise("blocks", "a block replaces and drops partitions that it has added itself")
@pytest.mark.usefixtures("part")
@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("INSERT OVERWRITE part VALUES (7, 7)", [(7, 7)]),
        ("INSERT OVERWRITE part PARTITION (p = 5) VALUES (7)", [(2, 3), (4, 4), (6, 6), (7, 5), (9, 9)]),
        ("CREATE OR REPLACE TABLE part PARTITIONED BY (p) AS SELECT 7L AS a, 7L AS p", [(7, 7)]),
        ("CREATE OR REPLACE TABLE part AS SELECT 7 AS a", [(7,)]),
        ("TRUNCATE TABLE part", []),
        ("DROP TABLE part", None),
    ],
)
def test_partitions_that_a_block_has_added_are_replaced_and_dropped_in_it(
    spark: SparkSession, last: str, expected: list[Any] | None
) -> None:
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        with twophase.transaction(spark):
            spark.sql("INSERT OVERWRITE part VALUES (2, 3), (4, 4)")
            spark.sql("INSERT INTO part VALUES (5, 5)")
            spark.sql("INSERT OVERWRITE part VALUES (6, 6)")
            spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")
            spark.sql(last)
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    if expected is None:
        assert not spark.catalog.tableExists("part")
        spark.sql("CREATE TABLE part AS SELECT 1 AS a")
    else:
        assert rows(spark, "SELECT * FROM part") == expected


@pytest.mark.usefixtures("part")
def test_if_not_exists_where_the_session_s_overwrites_are_dynamic(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        with twophase.transaction(spark):
            spark.sql("INSERT INTO part VALUES (1, 8)")
            for key in (8, 7):
                spark.sql(f"INSERT OVERWRITE part PARTITION (p = {key}) IF NOT EXISTS SELECT 2")
        spark.sql("INSERT OVERWRITE hive.default.part PARTITION (p = 6) IF NOT EXISTS SELECT 5")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert rows(spark, "SELECT * FROM part") == [(1, 8), (2, 7), (3, 3), (5, 6), (9, 9)]


@pytest.mark.usefixtures("staged")
@pytest.mark.parametrize("change", ["RENAME TO other_name", "ADD COLUMN b INT", "SET TBLPROPERTIES ('k' = 'v')"])
def test_in_a_block_an_alter_of_no_table_says_that_there_is_none(spark: SparkSession, change: str) -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"ALTER TABLE nowhere {change}")
    assert rows(spark, "SELECT * FROM t") == [(0,), (1,), (2,)]


@pytest.mark.promise("blocks", "a table whose name is an expression is part of the block that creates it")
@pytest.mark.parametrize("create", ["AS SELECT 5 AS a", "(a INT) USING parquet"])
def test_a_table_whose_name_is_an_expression_is_part_of_the_block(spark: SparkSession, create: str) -> None:
    other = spark.newSession()
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        spark.sql(f"CREATE TABLE IDENTIFIER('ma' || 'de') {create}")
        spark.sql("INSERT INTO IDENTIFIER(lower('MADE')) VALUES (6)")
        assert (6,) in rows(spark, "SELECT * FROM made")
        assert not other.catalog.tableExists("made")
        for change in ("DROP TABLE", "TRUNCATE TABLE"):
            with pytest.raises((AtomicityNotSupportedError, AnalysisException)):
                spark.sql(f"{change} IDENTIFIER('ol' || 'd')")
        1 / 0  # noqa: B018
    assert not spark.catalog.tableExists("made")
    assert rows(spark, "SELECT * FROM old") == [(1,)]

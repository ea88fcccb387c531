"""Text in, text out: what Spark runs instead of a statement of an unchanged job. Nothing is executed."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import twophase
from tests.spark.conftest import Start
from twophase.model import OverwriteScope
from twophase.spark.intent import option_clause, stated_overwrite
from twophase.spark.routing.doors import router_of
from twophase.spark.routing.rewrite import Rewriter, Rewritten, Untellable

pytestmark = pytest.mark.spark40

MODE = "spark.sql.sources.partitionOverwriteMode"


@pytest.fixture(scope="module")
def spark(start: Start) -> SparkSession:
    session = start({"spark.sql.scripting.enabled": "true", "spark.sql.variable.substitute": "true"})
    session.sql("CREATE DATABASE db")
    for name in ("t", "b", "db.t"):
        session.sql(f"CREATE TABLE {name} (a INT, p INT, q INT) USING parquet PARTITIONED BY (p, q)")
    session.sql("CREATE TABLE plain (a INT) USING csv")
    session.sql("CREATE TABLE other (a INT) USING xml")
    session.sql("CREATE VIEW view AS SELECT 1 AS a")
    session.range(1).createOrReplaceTempView("temporary")
    session.range(1).createGlobalTempView("everywhere")
    session.sql("DECLARE VARIABLE name STRING DEFAULT 'db.t'")
    session.sql("DECLARE VARIABLE statement STRING DEFAULT 'INSERT INTO t SELECT 1, 2, 3'")
    session.sql("SET target = db.t")
    twophase.attach(session)
    return session


@pytest.fixture
def rewriter(spark: SparkSession) -> Rewriter:
    router = router_of(spark)
    assert router is not None
    return router.rewriter


def rewritten(rewriter: Rewriter, text: str, args: Any = None) -> Rewritten:
    result = rewriter.rewrite(text, args)
    assert result is not None, text
    return result


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CREATE TABLE n AS SELECT 1 a", "CREATE TABLE `hive`.`default`.n AS SELECT 1 a"),
        ("create table if not exists db.n as select 1 a", "create table if not exists `hive`.db.n as select 1 a"),
        (
            "CREATE TABLE db /* c */ . `n``x` USING parquet AS SELECT 1 a",
            "CREATE TABLE `hive`.db /* c */ . `n``x` USING parquet AS SELECT 1 a",
        ),
        (
            "/* 😀 */ CREATE TABLE n TBLPROPERTIES ('😀' = '😀') AS SELECT '😀' a",
            "/* 😀 */ CREATE TABLE `hive`.`default`.n TBLPROPERTIES ('😀' = '😀') AS SELECT '😀' a",
        ),
        ("CREATE TABLE n USING csv SELECT 1", "CREATE TABLE `hive`.`default`.n USING csv SELECT 1"),
        (
            "CREATE TABLE n USING org.apache.spark.sql.parquet AS SELECT 1",
            "CREATE TABLE `hive`.`default`.n USING org.apache.spark.sql.parquet AS SELECT 1",
        ),
        (
            "-- first\nCREATE TABLE spark_catalog.db.n AS WITH x AS (SELECT 1 a) SELECT * FROM x",
            "-- first\nCREATE TABLE `hive`.`db`.`n` AS WITH x AS (SELECT 1 a) SELECT * FROM x",
        ),
        (
            "CREATE OR REPLACE TABLE t AS SELECT * FROM t",
            "CREATE OR REPLACE TABLE `hive`.`default`.t AS SELECT * FROM t",
        ),
        ("REPLACE TABLE t AS SELECT 1 a", "REPLACE TABLE `hive`.`default`.t AS SELECT 1 a"),
        ("CREATE TABLE n AS TABLE t", "CREATE TABLE `hive`.`default`.n AS TABLE t"),
        ("INSERT INTO t VALUES (1, 2, 3)", "INSERT INTO `hive`.`default`.t VALUES (1, 2, 3)"),
        ("INSERT INTO TABLE db.t TABLE b", "INSERT INTO TABLE `hive`.db.t TABLE b"),
        ("INSERT INTO SPARK_CATALOG.db.t SELECT 1", "INSERT INTO `hive`.`db`.`t` SELECT 1"),
        (
            "WITH `ü😀` AS (SELECT '😀' a) INSERT INTO db.t SELECT * FROM `ü😀`",
            "WITH `ü😀` AS (SELECT '😀' a) INSERT INTO `hive`.db.t SELECT * FROM `ü😀`",
        ),
        (
            "INSERT INTO t PARTITION (p = 1, q) (a, q) SELECT 1, 2",
            "INSERT INTO `hive`.`default`.t PARTITION (p = 1, q) (a, q) SELECT 1, 2",
        ),
        ("INSERT INTO t (a) SELECT 1", "INSERT INTO `hive`.`default`.t (a) SELECT 1"),
        ("INSERT INTO t BY NAME SELECT 1 a", "INSERT INTO `hive`.`default`.t BY NAME SELECT 1 a"),
        ("INSERT OVERWRITE t SELECT 1", "INSERT OVERWRITE `hive`.`default`.t SELECT 1"),
        (
            "INSERT OVERWRITE TABLE t PARTITION (p = 1, q = 2) SELECT 1",
            "INSERT OVERWRITE TABLE `hive`.`default`.t PARTITION (p = 1, q = 2) SELECT 1",
        ),
        (
            "INSERT OVERWRITE t PARTITION (p = 1, q = 2) IF NOT EXISTS SELECT 1",
            "INSERT OVERWRITE `hive`.`default`.t PARTITION (p = 1, q = 2)  SELECT 1",
        ),
        (
            "WITH t AS (SELECT * FROM b) INSERT INTO t SELECT * FROM t",
            "WITH t AS (SELECT * FROM b) INSERT INTO `hive`.`default`.t SELECT * FROM t",
        ),
        (
            "FROM b INSERT INTO t SELECT a INSERT OVERWRITE TABLE db.t PARTITION (p = 1, q) SELECT q WHERE q > 1",
            "FROM b INSERT INTO `hive`.`default`.t SELECT a "
            "INSERT OVERWRITE TABLE `hive`.db.t PARTITION (p = 1, q) SELECT q WHERE q > 1",
        ),
        ("INSERT INTO ${target} SELECT '${target}'", "INSERT INTO `hive`.db.t SELECT 'db.t'"),
        ("INSERT INTO IDENTIFIER(name) SELECT 1", "INSERT INTO `hive`.`db`.`t` SELECT 1"),
        ("INSERT INTO IDENTIFIER('db' || '.t') SELECT 1", "INSERT INTO `hive`.`db`.`t` SELECT 1"),
        (
            r"EXECUTE IMMEDIATE 'INSERT INTO t SELECT ?, \'x\'' USING 1",
            r"EXECUTE IMMEDIATE 'INSERT INTO `hive`.`default`.t SELECT ?, \'x\'' USING 1",
        ),
        ("EXECUTE IMMEDIATE statement", "EXECUTE IMMEDIATE 'INSERT INTO `hive`.`default`.t SELECT 1, 2, 3'"),
        (
            "BEGIN INSERT INTO t SELECT 1; IF 1 = 1 THEN INSERT OVERWRITE db.t SELECT 1; END IF; "
            "CREATE TABLE n AS SELECT 1 a; INSERT INTO n SELECT 2; END",
            "BEGIN INSERT INTO `hive`.`default`.t SELECT 1; "
            "IF 1 = 1 THEN INSERT OVERWRITE `hive`.db.t SELECT 1; END IF; "
            "CREATE TABLE `hive`.`default`.n AS SELECT 1 a; INSERT INTO `hive`.`default`.n SELECT 2; END",
        ),
        (
            "BEGIN DECLARE x INT DEFAULT 1; WHILE x < 3 DO INSERT INTO t SELECT x; SET x = x + 1; END WHILE; END",
            "BEGIN DECLARE x INT DEFAULT 1; WHILE x < 3 DO INSERT INTO `hive`.`default`.t SELECT x; "
            "SET x = x + 1; END WHILE; END",
        ),
    ],
)
def test_the_catalog_is_put_before_the_target(rewriter: Rewriter, text: str, expected: str) -> None:
    assert rewritten(rewriter, text).text == expected


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "EXPLAIN INSERT INTO t SELECT 1",
        "CREATE TABLE n (a INT)",
        "CREATE TABLE n LIKE t",
        "CREATE TABLE n USING jdbc AS SELECT 1",
        "CREATE TABLE n STORED AS orc AS SELECT 1",  # without Hive support Spark refuses it
        "CREATE VIEW v AS SELECT 1",
        "CACHE TABLE c AS SELECT 1",
        "INSERT INTO view SELECT 1",
        "INSERT INTO temporary SELECT 1",
        "INSERT INTO global_temp.everywhere SELECT 1",
        "INSERT INTO other SELECT 1",
        "INSERT INTO missing SELECT 1",
        "INSERT INTO nowhere.missing SELECT 1",
        "INSERT INTO parquet.`/some/path` SELECT 1",
        "INSERT INTO t REPLACE WHERE a = 1 SELECT 1",
        "INSERT OVERWRITE DIRECTORY '/some/path' USING parquet SELECT 1",
        "INSERT INTO a.b.c.d SELECT 1",
        "INSERT INTO t SELEKT 1",
        "INSERT",
        "DELETE FROM t WHERE a = 1",
        "UPDATE t SET a = 1",
        "EXECUTE IMMEDIATE 'SELECT 1'",
        "BEGIN SELECT 1; END",
    ],
)
def test_everything_else_stays_as_it_is(rewriter: Rewriter, text: str) -> None:
    assert rewriter.rewrite(text) is None


@pytest.mark.parametrize(
    "text",
    [
        *("INSERT INTO lake.db.t SELECT 1", "INSERT INTO hive.db.t SELECT 1", "CREATE TABLE lake.db.n AS SELECT 1"),
        "EXECUTE IMMEDIATE 'INSERT INTO lake.db.t SELECT 1'",
    ],
)
def test_a_name_with_its_catalog_stays_and_is_known_to_be_ours(rewriter: Rewriter, text: str) -> None:
    found = rewritten(rewriter, text)
    assert found.text == text
    assert [target.spliced for target in found.targets] == [False]


@pytest.mark.parametrize("text", ["${verb} INTO t SELECT 1", "WITH a AS (SELECT 1) ${verb} INTO t SELECT * FROM a"])
def test_a_verb_in_a_variable_is_seen(spark: SparkSession, rewriter: Rewriter, text: str) -> None:
    spark.conf.set("verb", "INSERT")
    try:
        assert "INSERT INTO `hive`.`default`.t" in rewritten(rewriter, text).text
    finally:
        spark.conf.unset("verb")


@pytest.mark.parametrize(
    ("text", "args", "expected", "left"),
    [
        ("INSERT INTO t SELECT :a", {"a": 1}, "INSERT INTO `hive`.`default`.t SELECT :a", {"a": 1}),
        ("INSERT INTO t SELECT ?", [1], "INSERT INTO `hive`.`default`.t SELECT ?", [1]),
        (
            "INSERT INTO IDENTIFIER(:n) SELECT :a",
            {"n": "db.t", "a": 1},
            "INSERT INTO `hive`.`db`.`t` SELECT :a",
            {"n": "db.t", "a": 1},
        ),
        (
            "WITH x AS (SELECT ? a) INSERT INTO IDENTIFIER(? || '.t') SELECT a, ? FROM x",
            [1, "db", 2],
            "WITH x AS (SELECT ? a) INSERT INTO `hive`.`db`.`t` SELECT a, ? FROM x",
            [1, 2],
        ),
        (
            "CREATE TABLE IDENTIFIER(:n) USING parquet AS SELECT 1 a",
            {"n": "`n x`"},
            "CREATE TABLE `hive`.`default`.`n x` USING parquet AS SELECT 1 a",
            {"n": "`n x`"},
        ),
    ],
)
def test_parameters_are_put_in_where_they_name_the_target(
    rewriter: Rewriter, text: str, args: Any, expected: str, left: Any
) -> None:
    result = rewritten(rewriter, text, args)
    assert (result.text, result.args) == (expected, left)


def test_a_parameter_in_the_partition_clause_is_no_obstacle(spark: SparkSession, rewriter: Rewriter) -> None:
    result = rewriter.rewrite("INSERT INTO t PARTITION (p = :p, q = 1) SELECT :a", {"p": 1, "a": 2})
    if spark.version < "4.1":  # Spark itself refuses it
        assert result is None
    else:
        assert result is not None
        assert result.text == "INSERT INTO `hive`.`default`.t PARTITION (p = :p, q = 1) SELECT :a"


def test_an_unbound_parameter_is_sparks_own_error(rewriter: Rewriter) -> None:
    with pytest.raises(AnalysisException) as caught:
        rewriter.rewrite("INSERT INTO IDENTIFIER(:n) SELECT 1", {"m": "t"})
    assert caught.value.getCondition() == "UNBOUND_SQL_PARAMETER"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("BEGIN DECLARE v STRING; INSERT INTO IDENTIFIER(v) SELECT 1; END", "only when the script runs"),
        ("BEGIN DECLARE v STRING; EXECUTE IMMEDIATE v; END", "only when the script runs"),
        ("BEGIN USE db; INSERT INTO t SELECT 1; END", "the script says USE"),
        ("EXECUTE IMMEDIATE 'INSERT INTO IDENTIFIER(:n) SELECT 1' USING 't' AS n", None),
    ],
)
def test_a_target_that_cannot_be_told_is_refused(
    spark: SparkSession, rewriter: Rewriter, text: str, reason: str | None
) -> None:
    spark.conf.set(MODE, "dynamic")
    try:
        with pytest.raises((Untellable, AnalysisException), match=reason):
            rewriter.rewrite(text)
    finally:
        spark.conf.unset(MODE)


def option(scope: OverwriteScope) -> str:
    return f"WITH ({option_clause(scope)})"


ALL = option(OverwriteScope({}, dynamic=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INSERT OVERWRITE t SELECT 1, 2, 3", f"INSERT INTO `hive`.`default`.t {ALL} SELECT 1, 2, 3"),
        (
            "INSERT OVERWRITE TABLE db.t PARTITION (p = 1, q) SELECT 1, 2",
            f"INSERT INTO TABLE `hive`.db.t {option(OverwriteScope({'p': '1'}, dynamic=True))} PARTITION (p = 1, q) "
            "SELECT 1, 2",
        ),
        (
            "INSERT OVERWRITE t PARTITION (p = 1, q = 2) SELECT 1",
            f"INSERT INTO `hive`.`default`.t {option(OverwriteScope({'p': '1', 'q': '2'}))} PARTITION (p = 1, q = 2) "
            "SELECT 1",
        ),
        (
            "INSERT OVERWRITE plain SELECT 1",
            f"INSERT INTO `hive`.`default`.plain {option(OverwriteScope())} SELECT 1",
        ),
        (
            "FROM b INSERT INTO t SELECT * INSERT OVERWRITE t SELECT *",
            f"FROM b INSERT INTO `hive`.`default`.t SELECT * INSERT INTO `hive`.`default`.t {ALL} SELECT *",
        ),
        ("INSERT OVERWRITE hive.db.t SELECT 1, 2, 3", f"INSERT INTO hive.db.t {ALL} SELECT 1, 2, 3"),
        (
            "BEGIN INSERT INTO t SELECT 1, 2, 3; EXECUTE IMMEDIATE 'INSERT OVERWRITE t SELECT 1, 2, 3'; END",
            "BEGIN INSERT INTO `hive`.`default`.t SELECT 1, 2, 3; "
            "EXECUTE IMMEDIATE 'INSERT INTO `hive`.`default`.t " + ALL.replace("'", "\\'") + " SELECT 1, 2, 3'; END",
        ),
    ],
)
def test_a_dynamic_overwrite_runs_as_an_append_that_says_what_it_means(
    spark: SparkSession, rewriter: Rewriter, text: str, expected: str
) -> None:
    spark.conf.set(MODE, "dynamic")
    try:
        assert rewritten(rewriter, text).text == expected
    finally:
        spark.conf.unset(MODE)


def test_the_statement_may_ask_for_a_dynamic_overwrite_itself(rewriter: Rewriter) -> None:
    result = rewritten(rewriter, "INSERT OVERWRITE t WITH ('partitionOverwriteMode' = 'dynamic') SELECT 1, 2, 3")
    both = f"({option_clause(OverwriteScope({}, dynamic=True))}, 'partitionOverwriteMode' = 'dynamic')"
    assert result.text == f"INSERT INTO `hive`.`default`.t WITH {both} SELECT 1, 2, 3"


@pytest.mark.parametrize("value", ["1", "it's", 'a "b"', "\\", "%41", "$x$ ${y} ?", "ü😀", "a/b;c", None])
def test_what_an_append_means_survives_the_text(value: str | None) -> None:
    scope = OverwriteScope({"p": value}, dynamic=True)
    clause = option_clause(scope)
    key, _, literal = clause.partition(" = ")
    assert not set(literal[1:-1]) & set("'\\$?")
    options = {key.strip("'"): literal[1:-1], "other": "x"}
    assert stated_overwrite(options) == (scope, {"other": "x"})


def test_several_inserts_of_one_statement_are_a_group_and_those_of_a_script_are_not(rewriter: Rewriter) -> None:
    assert rewritten(rewriter, "FROM b INSERT INTO t SELECT * INSERT INTO db.t SELECT *").is_group
    assert not rewritten(rewriter, "INSERT INTO t SELECT 1").is_group
    assert not rewritten(rewriter, "BEGIN INSERT INTO t SELECT 1; INSERT INTO db.t SELECT 1; END").is_group


def test_names_follow_the_current_database_and_catalog(spark: SparkSession, rewriter: Rewriter) -> None:
    spark.sql("USE db")
    try:
        assert rewritten(rewriter, "INSERT INTO t SELECT 1").text == "INSERT INTO `hive`.`db`.t SELECT 1"
        spark.sql("USE lake")
        for text in ("INSERT INTO t SELECT 1", "CREATE TABLE n AS SELECT 1"):
            assert rewritten(rewriter, text).text == text
        assert rewritten(rewriter, "INSERT INTO spark_catalog.db.t SELECT 1").text.startswith("INSERT INTO `hive`.`db`")
    finally:
        spark.sql("USE spark_catalog.default")


def test_another_lakehouses_extension_keeps_its_tables(spark: SparkSession, rewriter: Rewriter) -> None:
    spark.conf.set("spark.sql.catalog.spark_catalog", "org.example.LakehouseCatalog")
    try:
        assert rewriter.rewrite("INSERT INTO t SELECT 1") is None
    finally:
        spark.conf.unset("spark.sql.catalog.spark_catalog")

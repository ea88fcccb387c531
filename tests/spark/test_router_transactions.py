"""Inside a transaction: statements read what earlier ones staged, and nothing takes effect at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.spark.conftest import Start
from twophase.errors import AtomicityNotSupportedError
from twophase.spark.session import Handle

pytestmark = pytest.mark.spark40


@pytest.fixture(scope="module")
def spark(start: Start) -> SparkSession:
    session = start({"spark.sql.scripting.enabled": "true"})
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
        ("SELECT '😀', max(a) FROM /* t */ `t`", [("😀", 2)]),
        ("WITH t AS (SELECT 9 AS a) SELECT * FROM t", [(9,)]),
        ("WITH s AS (SELECT max(a) AS m FROM t), t AS (SELECT m FROM s) SELECT * FROM t", [(2,)]),
        ("SELECT (SELECT max(a) FROM t), EXISTS (SELECT 1 FROM t WHERE a = 7)", [(2, False)]),
        ("SELECT a FROM old WHERE a IN (SELECT a FROM (SELECT * FROM t WHERE a > 0) u)", [(1,)]),
        ("SELECT a FROM t UNION ALL SELECT a FROM old", [(0,), (1,), (1,), (2,)]),
        ("TABLE t", [(0,), (1,), (2,)]),
        ("FROM t SELECT a WHERE a = 0", [(0,)]),
        ("SELECT * FROM IDENTIFIER('t') WHERE a = 1", [(1,)]),
        ("BEGIN IF EXISTS (SELECT 1 FROM t) THEN SELECT sum(a) FROM t; END IF; END", [(3,)]),
    ],
)
@pytest.mark.usefixtures("staged")
def test_a_staged_table_is_read_wherever_it_is_named(spark: SparkSession, query: str, expected: list[Any]) -> None:
    if "IDENTIFIER" in query and spark.version < "4.1":
        pytest.skip("the parser of Spark 4.0 does not tell the name")
    assert rows(spark, query) == expected


@pytest.mark.usefixtures("staged")
def test_the_data_frame_api_reads_it_too(spark: SparkSession) -> None:
    assert spark.table("t").count() == spark.read.table("default.t").count() == 3
    spark.table("t").write.mode("append").saveAsTable("t")
    spark.table("t").write.insertInto("t")
    assert spark.table("t").count() == 12
    spark.range(1).selectExpr("5L AS a").writeTo("t").createOrReplace()
    assert rows(spark, "SELECT * FROM t WHERE a = :a", {"a": 5}) == [(5,)]


@pytest.mark.usefixtures("staged")
def test_a_read_that_cannot_be_told_is_refused(spark: SparkSession) -> None:
    with pytest.raises(AtomicityNotSupportedError, match="IDENTIFIER"):
        spark.sql("SELECT * FROM IDENTIFIER(:name)", {"name": "t"})


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


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE plain (a INT)",
        "DROP TABLE old",
        "ALTER TABLE old ADD COLUMN b INT",
        "TRUNCATE TABLE old",
        "LOAD DATA INPATH '/nowhere' INTO TABLE old",
        "DROP DATABASE default CASCADE",
        "INSERT INTO other VALUES (1)",
        "CREATE TABLE x USING xml AS SELECT 1 AS a",
        "BEGIN CREATE TABLE plain (a INT); END",
    ],
)
@pytest.mark.usefixtures("staged")
def test_what_would_take_effect_at_once_is_refused(spark: SparkSession, text: str) -> None:
    with pytest.raises(AtomicityNotSupportedError, match="takes effect at once"):
        spark.sql(text)
    assert rows(spark, "SELECT * FROM t") == [(0,), (1,), (2,)]


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
    ):
        with pytest.raises(AtomicityNotSupportedError, match="takes effect at once"):
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

"""A set of Spark statements gives the same answers with and without ``twophase.attach``; for Hive see tests/hive."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import twophase
from tests.spark.answers import Call, assert_same_answers
from tests.spark.conftest import Start
from twophase.spark.attach import handle_of

spark40_first_cases = True

STATEMENTS = [
    # Tables of every kind
    "CREATE TABLE plain (a INT COMMENT 'c', b STRING DEFAULT 'x') USING parquet COMMENT 'a' TBLPROPERTIES (k = 'v')",
    "CREATE TABLE parts (a INT, p INT) USING parquet PARTITIONED BY (p)",
    "CREATE TABLE text USING csv OPTIONS (header 'true') AS SELECT 1 AS a, 'x' AS b",
    "CREATE TABLE plain (a INT) USING parquet",
    "CREATE TABLE IF NOT EXISTS plain (z INT) USING parquet",
    "CREATE TABLE IF NOT EXISTS plain AS SELECT 1 AS z",
    "CREATE TABLE plain AS SELECT 1 AS z",
    "CREATE TABLE nowhere.t AS SELECT 1 AS a",
    "CREATE TABLE a.b.c AS SELECT 1 AS a",
    "CREATE TABLE like_plain LIKE plain",
    "CREATE TABLE twice AS SELECT 1 AS a, 2 AS a",
    "CREATE TABLE unknown_format USING nonsense AS SELECT 1 AS a",
    "CREATE TABLE bad_partition PARTITIONED BY (z) AS SELECT 1 AS a",
    "CREATE TABLE void_column USING parquet AS SELECT INTERVAL 1 MONTH AS i",
    # Rows
    "INSERT INTO plain VALUES (1, 'one'), (2, 'two')",
    "INSERT INTO plain (a) VALUES (3)",
    "INSERT INTO plain (b, a) SELECT 'four', 4",
    "INSERT INTO plain BY NAME SELECT 'five' AS b, 5 AS a",
    "INSERT INTO plain VALUES (1)",
    "INSERT INTO plain VALUES ('no number', 'x')",
    "INSERT INTO plain (z) VALUES (1)",
    "INSERT INTO missing VALUES (1)",
    "INSERT INTO nowhere.missing VALUES (1)",
    "SELECT * FROM plain ORDER BY a",
    "INSERT INTO parts PARTITION (p = 1) VALUES (10), (11)",
    "INSERT INTO parts PARTITION (p) SELECT 20, 2",
    "INSERT INTO parts PARTITION (z = 1) VALUES (10)",
    "INSERT OVERWRITE parts PARTITION (p = 1) VALUES (12)",
    "SELECT * FROM parts ORDER BY a",
    "INSERT OVERWRITE parts PARTITION (p = 1) IF NOT EXISTS VALUES (13)",
    "INSERT OVERWRITE parts PARTITION (p = 3) IF NOT EXISTS VALUES (30)",
    "SELECT * FROM parts ORDER BY a",
    "SET spark.sql.sources.partitionOverwriteMode = dynamic",
    "INSERT OVERWRITE parts VALUES (21, 2)",
    "SELECT * FROM parts ORDER BY a",
    "SET spark.sql.sources.partitionOverwriteMode = static",
    "CREATE TABLE deep (a INT, d DATE, s STRING) USING parquet PARTITIONED BY (d, s)",
    "INSERT INTO deep VALUES (1, DATE'2020-01-01', 'x'), (2, DATE'2020-01-02', 'x')",
    "INSERT INTO deep PARTITION (d = '2020-01-09') SELECT 12, 'y'",
    "INSERT INTO deep PARTITION (d, s = 'x') SELECT 13, DATE'2020-01-08'",
    "INSERT INTO deep PARTITION (s) SELECT 14, 'x'",
    "INSERT INTO deep PARTITION (s = 'x', D = '2020-01-03') SELECT 15",
    "INSERT INTO deep PARTITION (s, d = '2020-01-04') SELECT 16, 'x'",
    "INSERT OVERWRITE deep PARTITION (d, s = 'x') SELECT 101, DATE'2020-01-08'",
    "INSERT OVERWRITE deep PARTITION (d = '2020-01-01') IF NOT EXISTS SELECT 102, 'x'",
    "FROM (SELECT 17 AS a) INSERT INTO deep PARTITION (d = '2020-01-09') SELECT a, 'y'",
    "SELECT * FROM deep ORDER BY a",
    "INSERT OVERWRITE parts VALUES (1, 1)",
    "SELECT * FROM parts ORDER BY a",
    "INSERT OVERWRITE plain TABLE plain_copy",
    "INSERT OVERWRITE plain SELECT 9, 'nine'",
    "SELECT * FROM plain",
    "WITH s AS (SELECT 6 AS a) INSERT INTO plain SELECT a, 'six' FROM s",
    "FROM plain INSERT INTO text SELECT a, b INSERT INTO parts SELECT a, 5",
    "SELECT * FROM text ORDER BY a",
    # Looking
    "SHOW TABLES",
    "SHOW TABLES LIKE 'p*'",
    "SHOW DATABASES LIKE 'same'",
    "SHOW PARTITIONS parts",
    "SHOW COLUMNS IN plain",
    "SHOW CREATE TABLE like_plain",
    "SHOW CURRENT NAMESPACE",
    "DESCRIBE plain",
    "DESCRIBE parts",
    "DESCRIBE TABLE missing",
    "DESCRIBE QUERY SELECT 1 AS a",
    "DESCRIBE FUNCTION abs",
    "EXPLAIN SELECT 1 AS a",
    "SELECT current_catalog(), current_database()",
    # Views
    "CREATE VIEW v AS SELECT a FROM plain",
    "CREATE VIEW v AS SELECT 1",
    "SELECT * FROM v ORDER BY a",
    "INSERT INTO v VALUES (1)",
    "INSERT OVERWRITE v VALUES (1)",
    "CREATE TABLE v AS SELECT 1 AS a",
    "CREATE TABLE IF NOT EXISTS v AS SELECT 1 AS a",
    "ALTER VIEW v AS SELECT a + 1 AS a FROM plain",
    "SELECT * FROM v ORDER BY a",
    "CREATE TEMPORARY VIEW tv AS SELECT 1 AS a",
    "INSERT INTO tv VALUES (1)",
    "CREATE TEMPORARY VIEW files USING csv OPTIONS (path '/nowhere')",
    "SELECT * FROM global_temp.missing",
    "DROP VIEW v",
    "DROP VIEW tv",
    # Functions, variables, settings
    "CREATE FUNCTION f AS 'org.example.Missing'",
    "DROP FUNCTION f",
    "CREATE TEMPORARY FUNCTION plus_one(x INT) RETURNS INT RETURN x + 1",
    "SELECT plus_one(1)",
    "DECLARE VARIABLE var INT DEFAULT 5",
    "SET VARIABLE var = 6",
    "SELECT var",
    "SET spark.sql.shuffle.partitions",
    "SELECT * FROM VALUES (1), (2) AS t(a) ORDER BY a",
    # Changing
    "ALTER TABLE plain ADD COLUMN c INT",
    "ALTER TABLE plain SET TBLPROPERTIES (k = 'w')",
    "SELECT * FROM plain ORDER BY a",
    "ALTER TABLE parts ADD PARTITION (p = 8)",
    "ALTER TABLE parts DROP PARTITION (p = 8)",
    "ALTER TABLE parts DROP PARTITION (p = 80)",
    "ANALYZE TABLE plain COMPUTE STATISTICS",
    "REFRESH TABLE plain",
    "CACHE TABLE cached AS SELECT 1 AS a",
    "UNCACHE TABLE cached",
    "TRUNCATE TABLE text",
    "SELECT * FROM text",
    "ALTER TABLE text RENAME TO renamed",
    "SELECT * FROM renamed",
    "DELETE FROM plain WHERE a = 1",
    "UPDATE plain SET a = 1",
    "MERGE INTO plain USING parts ON plain.a = parts.a WHEN NOT MATCHED THEN INSERT (a) VALUES (1)",
    "DROP TABLE missing",
    "DROP TABLE IF EXISTS missing",
    "DROP TABLE plain",
    "CREATE TABLE plain (other INT) USING parquet",
    "SELECT * FROM plain",
    # Not SQL at all
    "SELEKT 1",
    "INSERT INTO",
    "CREATE TABLE t AS",
    "",
    "SELECT 1; SELECT 2",
]


def _rows(query: str, name: str, use: Callable[[DataFrame], Any]) -> Call:
    """A method of the DataFrame API, called of a query's rows."""
    return Call(f"{name} of {query}", lambda session: use(session.sql(query)))


def _in_a_block(text: str) -> Call:
    def run(session: SparkSession) -> None:
        with twophase.transaction(session) if handle_of(session) else nullcontext():
            session.sql(text)

    return Call(f"in a block: {text}", run)


#: Queries, and tables into which their rows cannot be written.
UNFIT = [
    ("SELECT 1 AS a", "plain"),
    ("SELECT 1, 'x', 3", "plain"),
    ("SELECT array(1) AS a, 'x' AS b", "plain"),
    ("SELECT 'no number' AS a, 'x' AS b", "plain"),
    ("SELECT 1 AS a", "parts"),
    ("SELECT 1 AS a, 'no number' AS p", "parts"),
    ("SELECT nothing", "plain"),
    ("SELECT 1 AS a, 'x' AS b", "v"),
    ("SELECT 1 AS a, 'x' AS b", "tv"),
    ("SELECT 1 AS a, 'x' AS b", "missing"),
    ("SELECT 1 AS a, 'x' AS b", "nowhere.missing"),
    ("SELECT 1 AS a, 'x' AS b", "a.b.c"),
]


def _inserted(query: str, table: str, overwrite: bool) -> Call:
    return _rows(query, f"insertInto {table}, {overwrite}", lambda rows: rows.write.insertInto(table, overwrite))


def _unfit(query: str, table: str) -> list[str | Call]:
    steps: list[str | Call] = []
    for overwrite in (False, True):
        insert = f"INSERT {'OVERWRITE' if overwrite else 'INTO'} {table} {query}"
        steps += [
            insert,
            f"BEGIN {insert}; END",
            f'EXECUTE IMMEDIATE "{insert}"',
            # Outside its tables a block refuses all that writes.
            *([_in_a_block(insert)] if table in ("plain", "parts") else []),
            _inserted(query, table, overwrite),
        ]
    return steps


def _saved(query: str, table: str, mode: str, **said: str) -> Call:
    return _rows(
        query, f"saveAsTable {table}, {mode}, {said}", lambda rows: rows.write.saveAsTable(table, mode=mode, **said)
    )


FAULTS: list[str | Call] = [
    "SET spark.sql.scripting.enabled = true",
    "CREATE TABLE plain (a INT, b STRING) USING parquet",
    "CREATE TABLE parts (a INT, p INT) USING parquet PARTITIONED BY (p)",
    "CREATE VIEW v AS SELECT 1 AS a, 'x' AS b",
    "CREATE TEMPORARY VIEW tv AS SELECT 1 AS a, 'x' AS b",
    *(step for query, table in UNFIT for step in _unfit(query, table)),
    _rows("SELECT 1 AS a", "insertInto a name that is none", lambda rows: rows.write.insertInto("a b")),
    _rows("SELECT 1, 2", "insertInto, partitionBy", lambda rows: rows.write.partitionBy("p").insertInto("parts")),
    _rows("SELECT 1, 2", "insertInto, bucketBy", lambda rows: rows.write.bucketBy(2, "a").insertInto("parts")),
    *(_saved(query, table, "append") for query, table in UNFIT if "missing" not in table),
    *(
        _saved("SELECT 1 AS a, 'x' AS b", table, "errorifexists")
        for table in ("plain", "v", "a.b.c", "nowhere.t", "a b")
    ),
    _saved("SELECT 1 AS a, 'x' AS b", "plain", "append", format="orc"),
    _saved("SELECT 1 AS a, 'x' AS b", "plain", "append", format="nonsense"),
    _saved("SELECT 1 AS a, 'x' AS b", "new", "errorifexists", format="nonsense"),
    _saved("SELECT 1 AS a, 'x' AS b", "plain", "append", partitionBy="a"),
    _saved("SELECT 1 AS a, 'x' AS b", "new", "errorifexists", partitionBy="z"),
    _saved("SELECT 1 AS a, 'x' AS b", "v", "overwrite"),
    _rows("SELECT 1 AS a", "writeTo missing", lambda rows: rows.writeTo("missing").append()),
    _rows("SELECT 1 AS a", "writeTo what is there", lambda rows: rows.writeTo("plain").create()),
    _rows("SELECT 1 AS a", "writeTo nowhere", lambda rows: rows.writeTo("nowhere.t").create()),
    _rows("SELECT 1 AS a", "writeTo a.b.c", lambda rows: rows.writeTo("a.b.c").create()),
    _rows("SELECT 1 AS a", "writeTo, format", lambda rows: rows.writeTo("new").using("nonsense").create()),
    "BEGIN CREATE TABLE plain AS SELECT 1 AS z; END",
    "EXECUTE IMMEDIATE 'CREATE TABLE nowhere.t AS SELECT 1 AS a'",
    "EXECUTE IMMEDIATE 'INSERT INTO parts PARTITION (z = ?) VALUES (10)' USING 1",
    _in_a_block("INSERT INTO parts PARTITION (z = 1) VALUES (10)"),
    "SHOW TABLES",
    "SELECT * FROM plain",
    "SET spark.sql.storeAssignmentPolicy = LEGACY",
    *(step for query, table in UNFIT[:6] for step in _unfit(query, table)),
    "SELECT * FROM plain ORDER BY a, b",
    "SELECT * FROM parts ORDER BY a, p",
    "SET spark.sql.storeAssignmentPolicy = STRICT",
    *(step for step in _unfit("SELECT 1L AS a, 'x' AS b", "plain")),
    "RESET spark.sql.storeAssignmentPolicy",
    "INSERT INTO plain VALUES (7, 'seven')",
]


@pytest.mark.promise(
    "same-answers", "a user's own mistakes are told in Spark's words, by whichever way they come", detail=True
)
@pytest.mark.timeout(1200)
def test_the_mistakes_of_users_are_told_as_without_twophase(start: Start) -> None:
    assert_same_answers(start({"spark.sql.session.timeZone": "UTC"}), FAULTS)


@pytest.mark.promise("same-answers", "all other statements answer as without twophase")
@pytest.mark.timeout(1200)
def test_the_answers_are_the_same(start: Start) -> None:
    assert_same_answers(start({"spark.sql.session.timeZone": "UTC"}), STATEMENTS)

"""A set of Spark statements gives the same answers with and without ``twophase.attach``.

The statements are run twice over, in two databases of the same name in turn, once by an attached session and once by
one that is not. What must differ is put aside by name: locations, expression ids and the owner stamp.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import twophase
from tests.spark.conftest import Start

pytestmark = pytest.mark.spark40

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
    "EXPLAIN CREATE TABLE later AS SELECT 1 AS a",
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

#: What is never the same twice, and the owner stamp that is to be there.
_VARYING = [
    (r"'?twophase\.transaction'?\s*=\s*'?[\w-]+'?,?\s*", ""),
    (r"file:/\S*", "<location>"),
    (r"`?(hive|spark_catalog)`?\.", ""),
    (r"#\d+L?", "#"),
    (r"\[path=[^\]]*\]", "[path]"),
]


def _stable(value: Any) -> Any:
    if isinstance(value, str):
        for pattern, replacement in _VARYING:
            value = re.sub(pattern, replacement, value)
    return value


def _answer(session: SparkSession, text: str) -> Any:
    try:
        frame = session.sql(text)
        return [tuple(_stable(value) for value in row) for row in frame.collect()]
    except PySparkException as error:
        return type(error).__name__, error.getCondition()
    except Py4JJavaError as error:  # what PySpark has no class for
        return str(error.java_exception.getClass().getName()), str(error.java_exception.getCondition())


def _answers(session: SparkSession) -> dict[str, Any]:
    session.sql("CREATE DATABASE same")
    session.sql("USE same")
    try:
        return {f"{number} {text}": _answer(session, text) for number, text in enumerate(STATEMENTS)}
    finally:
        session.sql("USE default")
        session.sql("DROP DATABASE same CASCADE")


@pytest.mark.timeout(1200)
def test_the_answers_are_the_same(start: Start) -> None:
    session = start({"spark.sql.session.timeZone": "UTC"})
    stock = _answers(session.newSession())
    attached = session.newSession()
    handle = twophase.attach(attached)
    ours = _answers(attached)
    assert {text: (answer, stock[text]) for text, answer in ours.items() if answer != stock[text]} == {}
    assert handle.timeline.transactions()

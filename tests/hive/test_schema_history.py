"""The history of the schemas of session tables: on the timeline by who changed them, and from what is there."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import twophase
from tests import strict_schemas
from tests.hive.conftest import start_session
from twophase.errors import ConcurrentSchemaEvolutionError, ConfigurationError


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    root = tmp_path_factory.mktemp("history")
    session = start_session(root, hive=True)
    session.conf.set("spark.sql.catalog.hive.schema_conflicts", strict_schemas.NAME)
    session.conf.set("spark.sql.catalog.db", "twophase.jdbc")
    session.conf.set("spark.sql.catalog.db.url", f"sqlite:///{root}/history.db")
    handle = twophase.attach(session)
    yield session
    handle.detach()
    session.stop()


def shown(spark: SparkSession, table: str = "t") -> list[str]:
    """The columns of each version of a table, with their ids."""
    versions = twophase.schema_history(spark, table)
    assert [version.schema.schema_id for version in versions] == list(range(len(versions)))
    assert [version.is_current for version in versions] == [*[False] * (len(versions) - 1), True]
    return [" ".join(f"{f.name}:{f.id}" for f in version.schema) for version in versions]


def known(spark: SparkSession, table: str = "t") -> list[str]:
    """What is known of each version: its commit, only its time, or nothing."""
    found = []
    for version in twophase.schema_history(spark, table):
        assert (version.commit is None) == (version.transaction_id is None)
        found.append("commit" if version.commit else "time" if version.since else "")
    return found


def add_outside(spark: SparkSession, column: str) -> None:
    """Another program adds a column, past Spark's session."""
    catalog = spark._jsparkSession.sharedState().externalCatalog().unwrapped()
    table = catalog.getTable("default", "t")
    catalog.alterTableDataSchema("default", "t", table.dataSchema().add(column, "int"))
    spark.catalog.refreshTable("t")


@pytest.mark.promise("evolution", "every version of a session table's schema is known, with the commit that made it")
def test_every_change_of_a_schema_is_a_version_with_its_commit(spark: SparkSession, t: str) -> None:
    spark.sql("CREATE TABLE t USING parquet TBLPROPERTIES ('twophase.field_ids'='true') AS SELECT 1 AS a, 'x' AS b")
    spark.sql("INSERT INTO t VALUES (2, 'y')")
    spark.sql("INSERT OVERWRITE t VALUES (3, 'z')")
    assert (shown(spark), known(spark)) == (["a:1 b:2"], ["commit"])
    spark.sql("ALTER TABLE t RENAME COLUMN b TO c")
    with twophase.transaction(spark):
        spark.sql("ALTER TABLE t DROP COLUMN c")
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        spark.sql("ALTER TABLE t ADD COLUMN never INT")
        raise ZeroDivisionError
    spark.sql("SELECT CAST(4 AS BIGINT) AS a, 'w' AS d").write.option("mergeSchema", "true").insertInto("t")
    spark.sql("CREATE OR REPLACE TABLE t USING parquet AS SELECT * FROM t")
    spark.sql("CREATE OR REPLACE TABLE t USING parquet AS SELECT a, d, 5 AS e FROM t")
    assert shown(spark) == ["a:1 b:2", "a:1 c:2", "a:1", "a:1 d:3", "a:1 d:3 e:4"]
    assert known(spark) == ["commit"] * 5
    versions = twophase.schema_history(spark, "t")
    assert [version.since for version in versions] == sorted(version.since or 0 for version in versions)
    commits = [int(version.commit) for version in versions if version.commit]
    assert commits == sorted(set(commits))
    timeline = twophase.attach(spark).timeline
    assert timeline.transaction(versions[3].transaction_id or "") is not None

    timeline.prune(-1, limit=1000)
    assert timeline.transaction(versions[3].transaction_id or "") is None
    assert twophase.schema_history(spark, "t") == versions

    queried = spark.sql("SELECT schema_id, commit, is_current FROM hive.default.t.schema_history WHERE schema_id > 1")
    assert [tuple(row) for row in queried.collect()] == [
        (number, version.commit, version.is_current) for number, version in enumerate(versions) if number > 1
    ]
    assert spark.table("hive.default.t.schema_history").where("since IS NULL OR schema IS NULL").count() == 0

    spark.sql("DROP TABLE t")
    spark.sql("CREATE TABLE t USING parquet AS SELECT 1 AS z")
    assert (shown(spark), known(spark)) == (["z:1"], ["commit"])
    timeline.prune(-1, limit=1000)
    assert (shown(spark), known(spark)) == (["z:1"], ["commit"])


@pytest.mark.promise("evolution", "a table's schema is known as of any commit", detail=True)
def test_the_schema_as_of_a_commit_is_the_last_one_up_to_it(spark: SparkSession, t: str) -> None:
    timeline = twophase.attach(spark).timeline
    spark.sql("CREATE TABLE t (z INT) USING parquet")
    spark.sql("INSERT INTO t VALUES (0)")
    first = timeline.transactions()[0]
    spark.sql("ALTER TABLE t ADD COLUMN a INT")
    spark.sql("INSERT INTO t VALUES (1, 1)")
    second = timeline.transactions()[0]
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        spark.sql("INSERT INTO t VALUES (2, 2)")
        raise ZeroDivisionError
    rolled_back = timeline.transactions()[0]
    add_outside(spark, "b")
    spark.sql("INSERT INTO t VALUES (3, 3, 3)")
    third = timeline.transactions()[0]
    spark.sql("ALTER TABLE t ADD COLUMN c INT")
    versions = twophase.schema_history(spark, "t")
    assert shown(spark) == ["z:1", "z:1 a:2", "z:1 a:2 b:3", "z:1 a:2 b:3 c:4"]

    def as_of(commit: str | int) -> list[str]:
        return [field.name for field in twophase.schema_as_of(spark, "t", commit).schema]

    assert (as_of(first.id), as_of(second.id)) == (["z"], ["z", "a"])
    assert as_of(third.id) == ["z", "a"]  # It is not recorded that the other program was before it.
    assert as_of(second.number or 0) == ["z", "a"]
    assert twophase.schema_as_of(spark, "t", versions[-1].commit or "") == versions[-1]
    for unknown in (rolled_back.id, "no-such-transaction"):
        with pytest.raises(ConfigurationError, match=f"No schema of t is known as of {unknown}"):
            as_of(unknown)
    timeline.prune(-1, limit=1000)
    assert as_of(versions[-1].transaction_id or "") == ["z", "a", "b", "c"]
    spark.sql("CREATE OR REPLACE TABLE t AS SELECT 1 AS other")
    spark.sql("DROP TABLE t")
    spark.sql("CREATE TABLE t USING parquet AS SELECT 1 AS young")
    with pytest.raises(ConfigurationError, match="No schema of t is known"):
        as_of(versions[-1].commit or "")


@pytest.mark.parametrize("database", ["db.main.", ""])
def test_a_table_that_gets_another_name_begins_a_new_history(spark: SparkSession, database: str) -> None:
    """Also by Spark's own statement."""
    spark.sql(f"CREATE TABLE {database}t AS SELECT 1 AS a, 2 AS z")
    spark.sql(f"CREATE TABLE {database}other AS SELECT 2 AS z")
    spark.sql(f"ALTER TABLE {database}t RENAME TO {database.removeprefix('db.')}former")
    spark.sql(f"ALTER TABLE {database}other RENAME TO {database.removeprefix('db.')}t")
    assert shown(spark, f"{database}t") == ["z:1"]
    assert shown(spark, f"{database}former") == ["a:1 z:2"]
    for name in ("t", "former"):
        spark.sql(f"DROP TABLE {database}{name}")


def test_what_others_change_is_found_without_a_commit(spark: SparkSession, t: str) -> None:
    spark.sql("CREATE TABLE t USING parquet PARTITIONED BY (p) AS SELECT 1 AS a, named_struct('x', 1) AS s, 1 AS p")
    add_outside(spark, "b")
    assert (shown(spark), known(spark)) == (["a:1 s:2 p:3", "a:1 s:2 b:5 p:3"], ["commit", ""])
    spark.sql("ALTER TABLE t DROP COLUMN a")
    assert shown(spark)[-1] == "s:2 b:5 p:3"
    spark.sql("ALTER TABLE spark_catalog.default.t ADD COLUMNS (c INT)")  # Spark's own.
    assert shown(spark)[-1] == "s:2 b:5 c:6 p:3"
    assert known(spark) == ["commit", "", "commit", "commit"]


def test_the_first_versions_are_those_of_the_files_where_nothing_is_recorded(spark: SparkSession, t: str) -> None:
    spark.sql("CREATE TABLE t (a INT, c CHAR(3)) USING parquet")
    assert (shown(spark), known(spark)) == (["a:1 c:2"], [""])
    directory = Path(spark.sql("DESCRIBE FORMATTED t").where("col_name = 'Location'").collect()[0][1][5:])
    long_ago = time.time() - 86400

    def age(hours: int) -> None:
        for file in set(directory.rglob("*.parquet")) - old:
            os.utime(file, (long_ago + 3600 * hours,) * 2)
            old.add(file)

    old: set[Path] = set()
    for hour in range(3):
        spark.sql("INSERT INTO t VALUES (1, 'x')")
        age(hour)
    add_outside(spark, "b")
    for hour in range(3, 6):
        spark.sql("INSERT INTO t VALUES (1, 'x', 2)")
        age(hour)
    assert (shown(spark), known(spark)) == (["a:1 c:2", "a:1 c:2 b:3"], ["time", "time"])
    first, second = twophase.schema_history(spark, "t")
    assert (first.since, second.since) == (pytest.approx(long_ago), pytest.approx(long_ago + 3 * 3600))
    spark.sql("ALTER TABLE t DROP COLUMN a")
    assert [len(version.schema.fields) for version in twophase.schema_history(spark, "t")] == [2, 3, 2]
    assert known(spark) == ["time", "time", "commit"]


def test_a_database_has_a_history_too(spark: SparkSession) -> None:
    name = "db.main.t"
    spark.sql(f"CREATE TABLE {name} AS SELECT CAST(1 AS TINYINT) AS a, DATE'2026-01-01' AS b, 1.5 AS c, TRUE AS d")
    assert (shown(spark, name), known(spark, name)) == (["a:1 b:2 c:3 d:4"], ["commit"])
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN b TO x")
    with twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {name} DROP COLUMN c")
        spark.sql(f"ALTER TABLE {name} RENAME COLUMN d TO c")
    spark.sql("SELECT CAST(2 AS TINYINT) AS a, 'new' AS e").write.option("mergeSchema", "true").insertInto(name)
    spark.sql(f"INSERT INTO {name} VALUES (3, NULL, FALSE, 'old')")
    with sqlite3.connect(spark.conf.get("spark.sql.catalog.db.url").removeprefix("sqlite:///")) as connection:
        connection.execute("ALTER TABLE t ADD COLUMN y INTEGER")
    versions = ["a:1 b:2 c:3 d:4", "a:1 x:2 c:3 d:4", "a:1 x:2 c:4", "a:1 x:2 c:4 e:5", "a:1 x:2 c:4 e:5 y:6"]
    assert shown(spark, name) == versions
    assert known(spark, name) == ["commit", "commit", "commit", "commit", ""]
    assert spark.sql(f"SELECT count(*), count(since) FROM {name}.schema_history").collect()[0][:] == (5, 4)
    spark.sql(f"CREATE OR REPLACE TABLE {name} AS SELECT 1 AS a")
    assert known(spark, name)[-2:] == ["", "commit"]
    spark.sql(f"DROP TABLE {name}")
    spark.sql(f"CREATE TABLE {name} (z INT)")
    assert (shown(spark, name), known(spark, name)) == (["z:1"], [""])


def test_a_strategy_of_the_users_decides_on_rows_that_were_staged_for_other_columns(
    spark: SparkSession, t: str
) -> None:
    spark.sql("CREATE TABLE t USING parquet AS SELECT 1 AS a")
    refused = pytest.raises(ConcurrentSchemaEvolutionError, match="says the user")
    with refused, ThreadPoolExecutor(1) as other, twophase.transaction(spark):
        spark.sql("INSERT INTO t VALUES (2)")
        other.submit(spark.sql, "ALTER TABLE t ADD COLUMN b INT AFTER a").result()
    assert [tuple(row) for row in spark.table("t").collect()] == [(1, None)]

"""Statements other than a write of one table, on an object store and on a file system like HDFS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import twophase
from tests.storage.counting import SCHEMES, limit, place_of
from twophase.cli import commands
from twophase.errors import AtomicityNotSupportedError, TwoPhaseError
from twophase.spark.handle import Handle


@pytest.fixture(scope="module")
def handle(spark: SparkSession) -> Iterator[Handle]:
    found = twophase.attach(spark)
    yield found
    found.detach()


@pytest.fixture(params=[SCHEMES[0], *(pytest.param(other, marks=pytest.mark.exhaustive) for other in SCHEMES[1:])])
def scheme(request: pytest.FixtureRequest, spark: SparkSession, handle: Handle) -> Iterator[str]:
    """A file system, whose database is empty before and after; no staging is left there."""
    yield request.param
    left = handle.current_transaction()
    if left is not None:
        spark.sql("ROLLBACK")
    for row in spark.sql(f"SHOW TABLES IN {request.param}").collect():
        spark.sql(f"DROP TABLE {request.param}.{row.tableName}")
    kept = {leftover.kind for leftover in handle.catalog("hive").leftovers()}
    assert (left, kept - {"version"}) == (None, set())


def rows(spark: SparkSession, table: str) -> list[Any]:
    return sorted(tuple(row) for row in spark.table(table).collect())


def create(spark: SparkSession, table: str, *, count: int = 2, more: str = "") -> None:
    query = f"SELECT /*+ REPARTITION(2) */ CAST(id AS INT) AS a FROM range({count})"
    spark.sql(f"CREATE TABLE {table} USING parquet {more} AS {query}")


# -- definitions -------------------------------------------------------------------------------------------------------


def test_columns_are_added_renamed_and_dropped(spark: SparkSession, scheme: str) -> None:
    create(spark, f"{scheme}.t", more="TBLPROPERTIES ('twophase.field_ids' = 'true')")
    spark.sql(f"ALTER TABLE {scheme}.t ADD COLUMN b STRING")
    spark.sql(f"INSERT INTO {scheme}.t VALUES (7, 'x')")
    spark.sql(f"ALTER TABLE {scheme}.t RENAME COLUMN b TO c")
    assert rows(spark, f"{scheme}.t") == [(0, None), (1, None), (7, "x")]
    with twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {scheme}.t DROP COLUMN a")
    assert spark.table(f"{scheme}.t").columns == ["c"]
    with pytest.raises(RuntimeError), twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {scheme}.t ADD COLUMN d INT")
        raise RuntimeError
    assert spark.table(f"{scheme}.t").columns == ["c"]


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_a_block_of_sql_is_published_as_a_whole_or_not_at_all(spark: SparkSession, handle: Handle, scheme: str) -> None:
    create(spark, f"{scheme}.t")
    spark.sql("BEGIN TRANSACTION")
    spark.sql(f"INSERT OVERWRITE {scheme}.t SELECT 5")
    create(spark, f"{scheme}.u")
    spark.sql("ROLLBACK")
    assert (rows(spark, f"{scheme}.t"), spark.catalog.tableExists(f"{scheme}.u")) == ([(0,), (1,)], False)

    spark.sql("BEGIN TRANSACTION")
    spark.sql(f"INSERT OVERWRITE {scheme}.t SELECT 5")
    spark.sql("SAVEPOINT s")
    create(spark, f"{scheme}.u")
    spark.sql("ROLLBACK TO SAVEPOINT s")
    create(spark, f"{scheme}.v", count=1)
    assert rows(spark, f"{scheme}.v") == [(0,)]
    spark.sql("COMMIT")
    assert (rows(spark, f"{scheme}.t"), rows(spark, f"{scheme}.v")) == ([(5,)], [(0,)])
    assert not spark.catalog.tableExists(f"{scheme}.u")


def test_a_second_statement_on_one_table_is_refused_before_any_work(spark: SparkSession, scheme: str) -> None:
    create(spark, f"{scheme}.t")
    with twophase.transaction(spark):
        spark.sql(f"INSERT OVERWRITE {scheme}.t SELECT 5")
        with pytest.raises(AtomicityNotSupportedError, match="was already written in this transaction"):
            spark.sql(f"INSERT INTO {scheme}.t SELECT 6")
    assert rows(spark, f"{scheme}.t") == [(5,)]


# -- savepoints --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("restore", "where files cannot be linked, a savepoint copies them if that is allowed", detail=True)
def test_a_savepoint_copies_the_files_if_that_is_allowed(spark: SparkSession, scheme: str) -> None:
    create(spark, f"{scheme}.t")
    with pytest.raises(TwoPhaseError, match="without copying its rows") as refused:
        spark.sql(f"CREATE SAVEPOINT before_{scheme} FOR TABLE {scheme}.t")
    assert "WITH COPIES" in str(refused.value)
    spark.sql(f"CREATE SAVEPOINT before_{scheme} FOR TABLE {scheme}.t WITH COPIES")
    spark.sql(f"DROP TABLE {scheme}.t")
    spark.sql(f"RESTORE TO SAVEPOINT before_{scheme}")
    assert rows(spark, f"{scheme}.t") == [(0,), (1,)]
    spark.sql(f"DROP SAVEPOINT before_{scheme}")
    assert rows(spark, f"{scheme}.t") == [(0,), (1,)]


# -- what is left ------------------------------------------------------------------------------------------------------


def test_clean_removes_the_replaced_version_and_no_other_file(
    spark: SparkSession, handle: Handle, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, f"{scheme}.t")
    spark.sql(f"INSERT OVERWRITE {scheme}.t SELECT 5")
    monkeypatch.setattr(commands.Context, "session", lambda _, **__: handle)
    monkeypatch.setattr(handle.catalog("hive").store.environment, "retention", 0.0)  # type: ignore[attr-defined]
    done = CliRunner().invoke(commands.main, ["clean", "--output", "json"])
    assert done.exit_code == 0, done.output
    removed = [entry["location"] for entry in json.loads(done.stdout)["leftovers"] if entry["removed"]]
    assert scheme in {location.partition(":")[0] for location in removed}
    assert rows(spark, f"{scheme}.t") == [(5,)]


# -- like HDFS ---------------------------------------------------------------------------------------------------------

STATEMENTS = [
    "CREATE TABLE hdfslike.u USING parquet AS SELECT id FROM range(1000)",
    "INSERT INTO hdfslike.t SELECT 7",
    "INSERT OVERWRITE hdfslike.t SELECT 7",
]


@pytest.fixture
def limited(spark: SparkSession, handle: Handle, root: Path) -> Iterator[Any]:
    """Limits the database's directory, which holds a table of two rows."""
    create(spark, "hdfslike.t")
    yield lambda most: limit(place_of(root, "hdfslike").removeprefix("hdfslike:"), most)
    limit(place_of(root, "hdfslike").removeprefix("hdfslike:"), None)
    spark.sql("DROP TABLE hdfslike.t")


@pytest.mark.promise("failed-statement", "a quota or a permission of the file system ends a write, and nothing is left")
@pytest.mark.parametrize(
    ("words", "more"), [("DSQuotaExceeded", 400), ("DSQuotaExceeded", 0), ("Permission denied", None)]
)
@pytest.mark.parametrize(
    "statement", [STATEMENTS[0], *(pytest.param(other, marks=pytest.mark.exhaustive) for other in STATEMENTS[1:])]
)
def test_a_quota_or_a_permission_ends_a_write_with_its_own_words_and_nothing_is_left(
    spark: SparkSession, handle: Handle, root: Path, limited: Any, statement: str, words: str, more: int | None
) -> None:
    below = Path(place_of(root, "hdfslike").removeprefix("hdfslike:"))
    before = sorted(file for file in below.rglob("*") if file.is_file())
    limited(-1 if more is None else sum(file.stat().st_size for file in before) + more)
    with pytest.raises(Exception, match=words):
        spark.sql(statement)
    limited(None)
    assert sorted(file for file in below.rglob("*") if file.is_file()) == before
    assert rows(spark, "hdfslike.t") == [(0,), (1,)]
    assert not spark.catalog.tableExists("hdfslike.u")
    assert handle.timeline.transactions(open_only=True) == []

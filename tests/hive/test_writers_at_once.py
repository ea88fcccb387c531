"""Threads and blocks of one attached session that write one table at once: what cannot meet, all of it lands."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import start_session
from twophase import failpoints
from twophase.errors import WriteConflictError


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session(tmp_path_factory.mktemp("at_once"), hive=True)
    twophase.attach(session)
    yield session
    session.stop()


def at_once(work: Callable[[int], Any], count: int, threads: int = 4) -> None:
    """Call it for each number, several at a time; the first error comes out."""
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, number) for number in range(count)]:
            done.result()


def move(spark: SparkSession, name: str, *, stamped: bool = True) -> None:
    """Point a table at a copy of its files, as another application does, with a stamp if it has twophase."""
    metastore = twophase.attach(spark).catalog("hive").metastore
    table = metastore.get_table("default", name.lower())
    other = f"{table.location}-other"
    shutil.copytree(table.location.removeprefix("file:"), other.removeprefix("file:"))
    moved = replace(table, location=other)
    metastore.point_table(moved.with_stamp("other-20260101t000000-00000000") if stamped else moved, 1, 500)


def rows(spark: SparkSession, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.table(table).collect())


@pytest.mark.promise("appends", "concurrent overwrites of different partitions of a session table all land")
@pytest.mark.parametrize("scope", ["PARTITION (p = {n}) SELECT id", "PARTITION (p) SELECT id, {n}"])
def test_overwrites_of_partitions_that_cannot_meet_all_land(spark: SparkSession, scope: str) -> None:
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    table = "static" if "=" in scope else "dynamic"
    spark.sql(f"CREATE TABLE {table} (id BIGINT, p INT) USING parquet PARTITIONED BY (p)")
    for _ in range(2):
        at_once(lambda n: spark.sql(f"INSERT OVERWRITE {table} {scope.format(n=n)} FROM range(10)"), 8)
    assert rows(spark, table) == sorted((n, p) for n in range(10) for p in range(8))


@pytest.mark.promise("appends", "concurrent appends to one session table all land")
@pytest.mark.parametrize("files", [1, 3])
def test_appends_to_one_table_all_land(spark: SparkSession, files: int) -> None:
    spark.sql(f"CREATE TABLE appended_{files} (id BIGINT) USING parquet")
    at_once(lambda n: spark.sql(f"INSERT INTO appended_{files} SELECT {n} FROM range(0, 3, 1, {files})"), 8)
    assert rows(spark, f"appended_{files}") == [(n,) for n in range(8) for _ in range(3)]


@pytest.mark.promise("appends", "concurrent appends to one partition all land")
def test_appends_to_one_partition_all_land(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE parted (id BIGINT, p INT) USING parquet PARTITIONED BY (p)")
    at_once(lambda n: spark.sql(f"INSERT INTO parted SELECT {n}, id % 2 FROM range(0, 4, 1, {1 + n % 2})"), 6)
    assert rows(spark, "parted") == sorted((n, p) for n in range(6) for p in (0, 0, 1, 1))


@pytest.mark.promise("appends", "two blocks that append to one table both land")
def test_two_blocks_that_append_to_one_table_both_land(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE blocks USING parquet AS SELECT 0L AS id")

    def block() -> None:
        with twophase.transaction(spark):
            spark.sql("INSERT INTO blocks VALUES (2)")
            spark.sql("INSERT INTO blocks VALUES (3)")
            assert rows(spark, "blocks") == [(0,), (2,), (3,)]

    with twophase.transaction(spark):
        spark.sql("INSERT INTO blocks VALUES (1)")
        assert rows(spark, "blocks") == [(0,), (1,)]
        with ThreadPoolExecutor(1) as other:
            other.submit(block).result()
        assert rows(spark, "blocks") == [(0,), (1,)]
    assert rows(spark, "blocks") == [(0,), (1,), (2,), (3,)]


@pytest.mark.promise("appends", "a table has no more directory entries than its appends wrote files")
def test_a_table_keeps_as_many_entries_as_its_appends_brought(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("CREATE TABLE long USING parquet AS SELECT 0L AS id")
    location = Path(str(spark.sql("DESCRIBE EXTENDED long").where("col_name = 'Location'").first()[1])[5:])  # type: ignore[index]
    before = len(list(location.parent.rglob("*")))
    for n in range(5):
        spark.sql(f"INSERT INTO long VALUES ({n})")
    assert len(list(location.parent.rglob("*"))) == before + 10  # Each a file and its checksum.
    assert spark.table("long").count() == 6


@pytest.mark.parametrize("column", ["BIGINT", "CHAR(1)"])
@pytest.mark.parametrize("insert", ["INTO", "OVERWRITE"])
def test_an_insert_goes_to_where_another_application_has_put_a_table_that_this_session_knew(
    spark: SparkSession, insert: str, column: str
) -> None:
    table = f"known_{insert}_{column[0]}"
    spark.sql(f"CREATE TABLE {table} (id {column}) USING parquet")
    spark.sql(f"INSERT INTO {table} SELECT CAST(1 AS {column})")
    assert spark.table(table).count() == 1  # Spark now caches the relation, with the table's entry.
    move(spark, table)
    spark.sql(f"INSERT {insert} {table} SELECT CAST(2 AS {column})")
    assert [str(*row) for row in rows(spark, table)] == (["1", "2"] if insert == "INTO" else ["2"])


@pytest.fixture
def held_by(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Future[Any]]]:
    """Runs a statement elsewhere up to its publish, which goes on when another statement waits for it."""
    coordinator = twophase.attach(spark).coordinator
    decided, waiting = threading.Event(), threading.Event()
    clear = coordinator.clear

    def pause(_: str) -> None:
        decided.set()
        assert waiting.wait(60)

    def let_go(holder: str) -> Any:
        waiting.set()
        return clear(holder)

    monkeypatch.setattr(coordinator, "clear", let_go)
    with ThreadPoolExecutor(1) as other:

        def hold(sql: str) -> Future[Any]:
            failpoints.arm("core.publish", pause, nth=1)
            first = other.submit(lambda: spark.sql(sql))
            assert decided.wait(60)
            return first

        yield hold
    failpoints.disarm()
    assert waiting.is_set()


@pytest.mark.promise(
    "conflicts", "an INSERT OVERWRITE that has waited for another one replaces what that has published"
)
def test_an_overwrite_that_has_waited_for_another_one_replaces_what_that_has_published(
    spark: SparkSession, held_by: Callable[[str], Future[Any]]
) -> None:
    spark.sql("CREATE TABLE awaited (id INT) USING parquet")
    spark.sql("INSERT OVERWRITE awaited SELECT 1")
    first = held_by("INSERT OVERWRITE awaited SELECT 2")
    spark.sql("INSERT OVERWRITE awaited SELECT 3")
    first.result()
    assert rows(spark, "awaited") == [(3,)]


@pytest.mark.promise(
    "conflicts", "rows of an insert that has waited go into no other columns than it was analysed with"
)
def test_an_overwrite_that_has_waited_is_refused_if_the_columns_have_changed(
    spark: SparkSession, held_by: Callable[[str], Future[Any]]
) -> None:
    spark.sql("CREATE TABLE renewed USING parquet AS SELECT 1 AS a, 2 AS b")
    first = held_by("CREATE OR REPLACE TABLE renewed USING parquet AS SELECT 2 AS b, 3 AS c")
    with pytest.raises(WriteConflictError, match=r"renewed was not written.* from a, b to b, c"):
        spark.sql("INSERT OVERWRITE renewed SELECT 7, 8")
    first.result()
    assert rows(spark, "renewed") == [(2, 3)]


@pytest.mark.parametrize("before", ["INTO", "OVERWRITE"])
def test_an_overwrite_is_refused_if_another_application_moves_its_table_just_before_the_publish(
    spark: SparkSession, before: str
) -> None:
    """The table as the statement's analysis has loaded it is compared with the one that the publish changes."""
    table = f"moved_{before.lower()}"
    spark.sql(f"CREATE TABLE {table} (id INT) USING parquet")
    for _ in range(2):
        assert spark.table(table).count() <= 1
        spark.sql(f"INSERT {before} {table} SELECT 1")
    failpoints.arm("hive.pointer.publish", lambda _: move(spark, table, stamped=False), nth=1)
    with pytest.raises(WriteConflictError, match=rf"default\.{table} was not written"):
        spark.sql(f"INSERT OVERWRITE {table} SELECT 2")
    failpoints.disarm()
    assert set(rows(spark, table)) == {(1,)}


@pytest.mark.promise("conflicts", "INSERT OVERWRITE of a partition IF NOT EXISTS replaces none that came meanwhile")
@pytest.mark.parametrize("form", ["USING parquet", "STORED AS PARQUET", "USING parquet LOCATION '{}'"])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_if_not_exists_replaces_no_partition_that_came_meanwhile(
    spark: SparkSession, t: str, tmp_path: Path, form: str, mode: str
) -> None:
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", mode)
    spark.sql(f"CREATE TABLE {t} (id INT) {form.format(tmp_path)} PARTITIONED BY (p INT)")
    with ThreadPoolExecutor(1) as other:
        come = partial(other.submit, spark.sql, f"INSERT INTO {t} PARTITION (p = 1) VALUES (1)")
        failpoints.arm("core.begin", lambda _: come().result(), nth=1)
        with pytest.raises(WriteConflictError, match="has added its partition 1 meanwhile"):
            spark.sql(f"INSERT OVERWRITE {t} PARTITION (p = 1) IF NOT EXISTS VALUES (2)")
    assert rows(spark, t) == [(1, 1)]

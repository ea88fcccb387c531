"""Savepoints in a block, in all stores: what its statements read after a rollback to one, and what is published."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.isolation.places import session
from tests.spark.blocks import EACH_STORE, STORES, elsewhere
from twophase.errors import SnapshotTooOldError, WriteConflictError
from twophase.hooks import JobStatusHook


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, postgresql: Any) -> Iterator[SparkSession]:
    with session(tmp_path_factory.mktemp("savepoints"), {"pg": postgresql}) as found:
        yield found


@pytest.fixture(params=EACH_STORE)
def named(spark: SparkSession, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names of tables of a store, of this test only; a and b exist, and have one row."""
    database, clause = STORES[request.param]
    suffix = abs(hash(request.node.name)) % 10**8
    names = {name: f"{database}.{name}_{suffix}" for name in "abc"}
    for name in "ab":
        spark.sql(f"CREATE TABLE {names[name]} {clause} AS SELECT 0 AS id")
    return names.__getitem__


def ids(spark: SparkSession, table: str) -> list[int]:
    return sorted(row.id for row in spark.sql(f"SELECT id FROM {table}").collect())


def shown(spark: SparkSession, table: str) -> bool:
    database, _, name = table.rpartition(".")
    return name in [row.tableName for row in spark.sql(f"SHOW TABLES IN {database}").collect()]


def work(spark: SparkSession, a: str, b: str, c: str) -> None:
    """Since the savepoint: an append, an overwrite, a new table, and an overwrite of the append."""
    spark.sql(f"INSERT INTO {a} VALUES (2)")
    spark.sql(f"INSERT OVERWRITE {b} VALUES (3)")
    clause = STORES["session"][1] if a.startswith("default") else ""
    spark.sql(f"CREATE TABLE {c} {clause} AS SELECT 4 AS id")
    spark.sql(f"INSERT OVERWRITE {a} VALUES (5)")
    assert (ids(spark, a), ids(spark, b), ids(spark, c)) == ([5], [3], [4])


@pytest.mark.promise("savepoints", "after a rollback to a savepoint the block reads and publishes what was before it")
@pytest.mark.parametrize(("words", "isolation"), [("python", "snapshot"), ("sql", "read_committed")])
def test_a_rollback_to_a_savepoint_takes_back_what_was_written_since(
    spark: SparkSession, named: Callable[[str], str], words: str, isolation: str
) -> None:
    a, b, c = map(named, "abc")
    with twophase.transaction(spark, isolation=isolation) as tx:
        spark.sql(f"INSERT INTO {a} VALUES (1)")
        tx.savepoint("s") if words == "python" else spark.sql("SAVEPOINT s")
        work(spark, a, b, c)
        tx.rollback_to("s") if words == "python" else spark.sql("ROLLBACK TO SAVEPOINT s")
        assert (ids(spark, a), ids(spark, b)) == ([0, 1], [0])
        assert not spark.catalog.tableExists(c)
        assert (shown(spark, a), shown(spark, c)) == (True, False)
        work(spark, a, b, c)  # The names are free again.
        tx.rollback_to("s")
        spark.sql(f"INSERT INTO {a} SELECT id + 6 FROM {b}")
        assert ids(spark, a) == [0, 1, 6]
    assert (ids(spark, a), ids(spark, b)) == ([0, 1, 6], [0])
    assert not spark.catalog.tableExists(c)


@pytest.mark.promise("savepoints", "an error that the user's code catches loses only its statement")
def test_an_error_that_is_caught_loses_only_its_statement(spark: SparkSession, named: Callable[[str], str]) -> None:
    a, b, _ = map(named, "abc")
    with twophase.transaction(spark):
        spark.sql(f"INSERT INTO {a} VALUES (1)")
        for statement in (f"INSERT INTO {a}", f"INSERT OVERWRITE {a}", f"INSERT INTO {b}"):
            with pytest.raises(Exception, match="no such row"):
                spark.sql(f"{statement} SELECT CAST(raise_error('no such row') AS INT)")
            assert (ids(spark, a), ids(spark, b)) == ([0, 1], [0])
        spark.sql(f"INSERT INTO {a} VALUES (2)")
    assert (ids(spark, a), ids(spark, b)) == ([0, 1, 2], [0])


@pytest.mark.promise("savepoints", "after a rollback to a savepoint a block goes on seeing one state of all tables")
def test_after_a_rollback_to_a_savepoint_the_block_sees_the_same_state(
    spark: SparkSession, named: Callable[[str], str]
) -> None:
    a, b, c = map(named, "abc")
    with twophase.transaction(spark) as tx:
        assert ids(spark, a) == [0]
        tx.savepoint("s")
        spark.sql(f"INSERT INTO {b} VALUES (1)")
        assert ids(spark, b) == [0, 1]
        for table in (a, b):
            elsewhere(lambda table=table: spark.sql(f"INSERT OVERWRITE {table} VALUES (7)"))  # type: ignore[misc]
        tx.rollback_to("s")
        for table in (a, b):
            if table.startswith("lite"):
                with pytest.raises(SnapshotTooOldError, match=table):
                    ids(spark, table)
            else:
                assert ids(spark, table) == [0]
    assert ids(spark, a) == ids(spark, b) == [7]
    with (
        pytest.raises(WriteConflictError, match=f"reads table .*{a}"),
        twophase.transaction(spark, isolation="serializable") as tx,
    ):
        tx.savepoint("s")
        spark.sql(f"INSERT INTO {b} SELECT id + 1 FROM {a}")
        tx.rollback_to("s")
        elsewhere(lambda: spark.sql(f"INSERT INTO {a} VALUES (8)"))
        spark.sql(f"CREATE TABLE {c} AS SELECT 1 AS id")
    assert (ids(spark, a), ids(spark, b)) == ([7, 8], [7])


def test_a_cached_table_whose_write_is_discarded_is_cached_again_after_the_commit(
    spark: SparkSession, named: Callable[[str], str]
) -> None:
    a, b, _ = map(named, "abc")
    spark.sql(f"CACHE TABLE {b}")
    with twophase.transaction(spark) as tx:
        spark.sql(f"INSERT INTO {a} VALUES (1)")
        mark = tx.savepoint()
        spark.sql(f"INSERT OVERWRITE {b} VALUES (2)")
        assert ids(spark, b) == [2]
        tx.rollback_to(mark)
        assert ids(spark, b) == [0]
    assert spark.catalog.isCached(b)
    assert ids(spark, b) == [0]
    spark.catalog.uncacheTable(b)


def test_hooks_are_told_that_a_discarded_statement_was_rolled_back(
    spark: SparkSession, named: Callable[[str], str]
) -> None:
    told: list[tuple[str, str]] = []

    class Told(JobStatusHook):
        def on_committed(self, job: Any) -> None:
            told.append(("committed", job.path))

        def on_rolled_back(self, job: Any) -> None:
            told.append(("rolled back", job.path))

    a, b, _ = map(named, "abc")
    with twophase.transaction(spark, hooks=[Told()]) as tx:
        spark.sql(f"INSERT INTO {a} VALUES (1)")
        mark = tx.savepoint()
        spark.sql(f"INSERT INTO {b} VALUES (2)")
        tx.rollback_to(mark)
    assert [how for how, _ in told] == ["committed", "rolled back"]

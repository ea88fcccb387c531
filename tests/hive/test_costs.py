"""What a write of one row costs beside Spark's own work: counted, as times depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from benchmarks.routing.counting import Counts, counted
from tests.hive.conftest import start_session
from twophase import Isolation
from twophase.catalogs import fsync
from twophase.catalogs.hive.catalog import HiveCatalog

#: By statement, the most calls of the metastore, from Python to the JVM, commits of the timeline, and files synced.
COSTS = {
    "INSERT INTO t SELECT 1": (5, 24, 5, 10),
    "INSERT OVERWRITE t SELECT 1": (6, 39, 6, 6),
    "INSERT INTO p PARTITION (k = 5) SELECT 1": (7, 32, 5, 10),
    "INSERT OVERWRITE p PARTITION (k = 5) SELECT 1": (9, 46, 6, 11),
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    root: Path = tmp_path_factory.mktemp("costs")
    session = start_session(root, hive=True)
    twophase.attach(session)
    session.sql("CREATE TABLE t (a INT) USING parquet")
    session.sql("CREATE TABLE p (a INT, k INT) USING parquet PARTITIONED BY (k)")
    session.sql("INSERT INTO p SELECT 1, id FROM range(3, 9)")
    yield session
    session.stop()


def totals(spent: Counts) -> tuple[int, ...]:
    return (spent.metastore, *(spent.calls[name] for name in ("send_command", "do_commit", "fsync")))


@pytest.mark.promise("cost", "a write of one row makes few calls of the metastore, of the JVM and of the timeline")
@pytest.mark.parametrize("statement", COSTS)
def test_a_write_of_one_row_makes_few_calls(
    spark: SparkSession, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsync, "SETTLED", -60.0)  # The directories of the fixture count as old, as those of users are.
    for _ in range(2):
        spark.sql(statement)
    spent: Counts = counted(spark, lambda: spark.sql(statement))
    told = totals(spent)
    assert all(one <= most for one, most in zip(told, COSTS[statement], strict=True)), told


@pytest.mark.promise("cost", "a table is looked up each time, and transferred again only if it has changed")
def test_a_table_is_transferred_only_if_it_has_changed(spark: SparkSession) -> None:
    catalog = twophase.attach(spark).catalog("hive")
    assert isinstance(catalog, HiveCatalog)
    find: Any = partial(catalog.metastore.get_table, "default", "changing")
    others = spark.newSession()
    others.sql("CREATE TABLE changing (a INT) USING parquet")
    created = find()
    assert find() is created

    others.sql("ALTER TABLE changing SET TBLPROPERTIES ('changed' = 'yes')")
    assert find().properties["changed"] == "yes"
    others.sql("ANALYZE TABLE changing COMPUTE STATISTICS")
    assert (created.extra["facts"]["stats"], find().extra["facts"]["stats"]) == (False, True)
    others.sql("DROP TABLE changing")
    assert find() is None
    others.sql("CREATE TABLE changing (b STRING) USING parquet")
    assert find().schema.names == ["b"]


@pytest.mark.promise("cost", "what a serializable block has read is reserved in one step and looked up in one call")
def test_ten_reads_of_a_serializable_block_cost_little_more_than_those_of_a_snapshot(spark: SparkSession) -> None:
    for number in range(10):
        spark.sql(f"CREATE TABLE r{number} USING parquet AS SELECT {number} AS a")

    def block(isolation: Isolation) -> None:
        with twophase.transaction(spark, isolation=isolation):
            total = sum(spark.sql(f"SELECT a FROM r{number}").collect()[0][0] for number in range(10))
            spark.sql(f"INSERT INTO t SELECT {total}")

    spent = {}
    for isolation in Isolation:
        for _ in range(2):
            block(isolation)
        spent[isolation] = totals(counted(spark, lambda level=isolation: block(level)))
    more = [b - a for a, b in zip(spent[Isolation.SNAPSHOT], spent[Isolation.SERIALIZABLE], strict=True)]
    assert more == [1, 1, 0, 0], spent
    reads = spent[Isolation.SNAPSHOT][2] - spent[Isolation.READ_COMMITTED][2]
    assert reads <= 13, "of the timeline: one for each read and for the rows, and none that waits for the disk"

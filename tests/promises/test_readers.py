"""Readers: a table that is replaced again and again is old or new in every look, never missing, empty or mixed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.servers import Server

REPLACES = 12
ROWS = "SELECT {v} AS version, id, id % 5 AS k FROM range(0, 100, 1, 2)"
MORE_ROWS = "SELECT {v} AS version, id, 'more' AS added_{v}, id % 5 AS k FROM range(0, 100, 1, 2)"


@pytest.fixture(scope="module")
def spark(hive_metastore: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "OFF")
        .config("spark.hadoop.hive.metastore.uris", hive_metastore.url)
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.twophase.retention", "1h")
        .enableHiveSupport()
        .getOrCreate()
    )
    database = tmp_path_factory.mktemp("readers_db")
    session.sql(f"CREATE DATABASE readers LOCATION '{database}'")
    session.sql("USE readers")
    twophase.attach(session)
    yield session
    session.stop()


@pytest.mark.promise("visibility", "a reader in a loop sees old or new, never missing, empty or mixed")
@pytest.mark.timeout(900)
def test_a_reader_sees_many_replaces_each_wholly_or_not_at_all(
    spark: SparkSession, hive_metastore: Server, tmp_path: Path
) -> None:
    spark.sql("CREATE TABLE flat AS " + ROWS.format(v=0))
    spark.sql("CREATE TABLE parts PARTITIONED BY (k) AS " + ROWS.format(v=0))
    spark.sql("CREATE TABLE evolving PARTITIONED BY (k) AS " + ROWS.format(v=0))
    stop = tmp_path / "stop"
    tables = ["readers.flat", "readers.parts", "readers.evolving"]
    warehouse = spark.conf.get("spark.sql.warehouse.dir")
    reader = subprocess.Popen(
        [sys.executable, "-m", "tests.promises.stock_reader", hive_metastore.url, warehouse, str(stop), *tables],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert reader.stdout is not None
    try:
        assert reader.stdout.readline() == "READY\n"
        for version in range(1, REPLACES + 1):
            replace(spark, version)
    finally:
        stop.touch()
        output, _ = reader.communicate(timeout=120)
    looks = [json.loads(line) for line in output.splitlines()]
    assert [look for look in looks if not is_whole(look)] == []
    for table in tables:
        versions = [int(next(iter(look["seen"]))) for look in looks if look["table"] == table]
        assert versions == sorted(versions), f"{table} went back in time"
        assert versions[-1] in (REPLACES - 2, REPLACES - 1, REPLACES)
        assert len(set(versions)) > 3, "the reader saw too few versions to prove anything"


def replace(spark: SparkSession, version: int) -> None:
    """Replace one of the tables: flat and partitioned, with the same columns and with others."""
    match version % 3:
        case 0:
            spark.sql("CREATE OR REPLACE TABLE flat AS " + MORE_ROWS.format(v=version))
        case 1:
            spark.sql("CREATE OR REPLACE TABLE parts PARTITIONED BY (k) AS " + ROWS.format(v=version))
        case _:
            spark.sql("CREATE OR REPLACE TABLE evolving PARTITIONED BY (k) AS " + MORE_ROWS.format(v=version))


def is_whole(look: dict[str, dict[str, int]]) -> bool:
    """A hundred rows of one version."""
    return "seen" in look and list(look["seen"].values()) == [100]


@pytest.mark.promise("visibility", "a query that already reads the old version finishes on it")
def test_a_query_that_began_before_a_replace_finishes_on_the_old_rows(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE held AS SELECT id FROM range(10)")
    before = spark.table("held")
    assert before.count() == 10
    iterator = before.toLocalIterator()
    next(iterator)
    spark.sql("CREATE OR REPLACE TABLE held AS SELECT id FROM range(3)")
    assert len(list(iterator)) == 9
    assert spark.table("held").count() == 3

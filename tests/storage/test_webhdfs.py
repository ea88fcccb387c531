"""Tables behind the WebHDFS client that comes with PySpark, and a server of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import start_session
from tests.hive.world import World
from tests.storage import counting, webhdfs
from twophase.model import Level, Purpose


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    root: Path = tmp_path_factory.mktemp("webhdfs")
    (root / "served").mkdir()
    with webhdfs.serving(root / "served") as (uri, _):
        conf = {"spark.twophase.storage.untested": "allow", "spark.twophase.timeline.local": "allow"}
        session = start_session(root, hive=True, conf=conf)
        session.sql(f"CREATE DATABASE web LOCATION '{uri}/warehouse'")
        yield session
        session.stop()


def test_a_table_behind_webhdfs_is_created_overwritten_and_appended_to(spark: SparkSession) -> None:
    handle = twophase.attach(spark)
    try:
        spark.sql("CREATE TABLE web.t USING parquet AS SELECT 1 AS a")
        spark.sql("INSERT OVERWRITE web.t SELECT 2")
        spark.sql("INSERT INTO web.t SELECT 3")
        levels = [record.level for record in handle.timeline.transactions()]
        found = sorted(tuple(row) for row in spark.table("web.t").collect())
        spark.sql("DROP TABLE web.t")
        kept = {leftover.kind for leftover in handle.catalog("hive").leftovers()}
    finally:
        handle.detach()
    assert (found, levels) == ([(2,), (3,)], [Level.ATOMIC] * 3)
    assert kept <= {"version"}


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    return counting.world_of(spark, str(tmp_path_factory.mktemp("warehouse")))


@pytest.mark.parametrize("purpose", [Purpose.REPLACE_TABLE_AS, Purpose.INSERT_INTO])
def test_what_has_died_behind_webhdfs_is_recovered(world: World, purpose: Purpose) -> None:
    world.run("d", world.sql("SELECT 0L AS id"), Purpose.CREATE_OR_REPLACE_TABLE_AS, database="web")
    world.reborn(world.stage("d", world.spark.range(1, 3), purpose, database="web")).abort()
    assert (world.rows("web.d"), world.staged()) == ([(0,)], [])
    survivor = world.reborn(world.stage("d", world.spark.range(1, 3), purpose, database="web"))
    survivor.commit()
    survivor.finish()
    assert world.rows("web.d") == ([(0,)] if purpose.inserts else []) + [(1,), (2,)]

"""Sessions for the tests of the Hive catalog: with Spark's catalog in memory, and with an embedded Hive metastore."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.hive.world import World
from twophase import failpoints
from twophase.spark.metastore.session import SessionMetastore


def start_session(root: Path, *, hive: bool, conf: dict[str, str] | None = None) -> SparkSession:
    """A small local session on a warehouse of its own."""
    builder: Any = SparkSession.builder.master("local[2]").appName("hive tests")
    facts = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "OFF",
        "spark.sql.warehouse.dir": str(root / "warehouse"),
        "spark.sql.catalogImplementation": "hive" if hive else "in-memory",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={root / 'metastore'};create=true",
        "spark.hadoop.hive.exec.scratchdir": str(root / "scratch"),
        # What a metastore refuses it tries ten times, with two seconds in between.
        "spark.hadoop.hive.hmshandler.retry.interval": "1ms",
    }
    for key, value in {**facts, **(conf or {})}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def attached_session(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that is attached, with a ``hive`` metastore, or Spark's catalog in ``memory``; for a fixture."""
    session = start_session(tmp_path_factory.mktemp(kind), hive=kind == "hive")
    handle = twophase.attach(session)
    yield session
    handle.detach()
    session.stop()


@pytest.fixture
def t(spark: SparkSession) -> Iterator[str]:
    """The name of a table that is dropped at the end, of modules with a session ``spark`` of their own."""
    yield "t"
    failpoints.disarm()
    spark.sql("DROP TABLE IF EXISTS t")


# The first one is what `make test` proves promises on.
@pytest.fixture(scope="module", params=["hive", "memory"])
def shared_world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One session a module and kind of metastore."""
    root = tmp_path_factory.mktemp(request.param)
    spark = start_session(root, hive=request.param == "hive")
    yield World(spark, root / "warehouse")
    spark.stop()


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    """The shared session; afterwards nothing is armed, no hidden table and no staging may be left."""
    yield shared_world
    failpoints.disarm()
    left = (shared_world.hidden_tables(), shared_world.staged())
    tables = [row.tableName for row in shared_world.sql("SHOW TABLES").collect()]
    shared_world.drop(*tables)
    shared_world.clean()
    assert left == ([], [])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A metastore that does not end with its driver, whose last call may then come late."""
    monkeypatch.setattr(SessionMetastore, "ends_with_driver", False)

"""The plugin of the examples through Spark: statements, a block with a session table, hooks, and a killed driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.project import source
from tests.recorder import Recorder
from tests.spark.conftest import Start, warehouse_of
from twophase import Capabilities, Purpose
from twophase.testing import SparkConformance

PLUGIN = "examples.sqlite_plugin:SqliteCatalog"


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def spark(start: Start, recorder: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Whose executors find the plugin's module."""
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(source.ROOT), before]))
    session = start(
        {
            "spark.sql.catalog.lite": PLUGIN,
            "spark.sql.catalog.lite.file": str(tmp_path_factory.mktemp("lite") / "tables.db"),
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        }
    )
    twophase.attach(session, hooks=[recorder])
    yield session
    os.environ["PYTHONPATH"] = before


class TestSqlitePlugin(SparkConformance):
    capabilities = Capabilities(purposes=frozenset(Purpose), read=True, group_publish=True)

    @pytest.fixture
    def name(self) -> str:
        return "lite"


def rows(spark: SparkSession, table: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in spark.table(table).collect())


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_learn_of_a_block_over_a_session_table_and_the_plugins_what_becomes_of_it(
    spark: SparkSession, recorder: Recorder, fails: bool
) -> None:
    first, second = f"block_{fails}", f"lite.default.block_{fails}"
    recorder.clear()
    try:
        with twophase.transaction(spark) as tx:
            spark.sql(f"CREATE TABLE {first} USING parquet AS SELECT 1 AS id")
            spark.sql(f"CREATE TABLE {second} AS SELECT id + 1 AS id FROM {first}")
            assert (recorder.events, recorder.fates) == (["created", "finished"] * 2, [])
            assert all(job.in_transaction and job.published is None for job in recorder.jobs)
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert [spark.catalog.tableExists(table) for table in (first, second)] == [False, False]
    else:
        assert tx.state.name == "COMPLETED"
        assert (rows(spark, first), rows(spark, second)) == ([(1,)], [(2,)])
    assert [fate for fate, _ in recorder.fates] == ["rolled_back" if fails else "committed"] * 2
    assert {job.published for job in recorder.jobs} == {not fails}


def test_a_killed_driver_is_recovered(spark: SparkSession, tmp_path: Path) -> None:
    """It dies when the store has published and nobody has heard of it: the rows are there once."""
    spark.sql("CREATE TABLE lite.default.survivor AS SELECT 1 AS id")
    timeline = warehouse_of(spark) / ".twophase" / "timeline.db"
    conf = {
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.sql.catalog.lite": PLUGIN,
        "spark.sql.catalog.lite.file": spark.conf.get("spark.sql.catalog.lite.file"),
        "spark.twophase.timeline": f"sqlite:///{timeline}",
    }
    job = tmp_path / "job.py"
    job.write_text(KILLED)
    child = subprocess.run(
        [sys.executable, str(job), json.dumps(conf)], capture_output=True, text=True, timeout=200, cwd=source.ROOT
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    handle = twophase.attach(spark)
    recovered = [found.state.name for found in handle.recover()]
    assert recovered == ["COMPLETED"]
    assert rows(spark, "lite.default.survivor") == [(1,), (2,)]
    assert [leftover.kind for leftover in handle.catalog("lite").leftovers() if leftover.kind == "staging"] == []


KILLED = """
import json, os, signal, sys
from pyspark.sql import SparkSession
import twophase
from twophase.catalog.transactional_table import TransactionalTable

builder = SparkSession.builder.master("local[1]").appName("killed")
for key, value in json.loads(sys.argv[1]).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
twophase.attach(spark)
publish = TransactionalTable.commit

def commit(self):
    publish(self)
    os.kill(os.getpid(), signal.SIGKILL)

TransactionalTable.commit = commit
spark.sql("INSERT INTO lite.default.survivor VALUES (2)")
"""

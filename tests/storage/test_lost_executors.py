"""Appends on an object store by executors in processes of their own: a session of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import twophase
from tests import lost_executors
from tests.storage import counting, filesystems
from tests.storage.test_task_files import rows
from twophase.model import Level


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_lost_executors_and_speculation_append_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    jar = filesystems.make_jar(tmp_path)
    conf = {
        **lost_executors.CONF,
        "spark.executor.extraClassPath": str(jar),
        "spark.sql.files.maxRecordsPerFile": "100",
    }
    spark = counting.session(tmp_path, conf)
    try:
        handle = twophase.attach(spark)
        spark.sql(f"CREATE DATABASE d LOCATION '{counting.place_of(tmp_path, 'counted')}'")
        spark.sql("CREATE TABLE d.t (id BIGINT) USING parquet")
        added = spark.range(0, 4000, numPartitions=8).mapInArrow(lost_executors.deadly(), "id BIGINT")
        for number in (1, 2):
            added.write.insertInto("d.t")
            (last, *_) = handle.timeline.transactions()
            assert last.level is Level.REVERSIBLE
            expected = (4000 * number, 4000, number * sum(range(4000)))
            assert rows(spark, "d.t", "count(*), count(DISTINCT id), sum(id)") == [expected]
        assert {leftover.kind for leftover in handle.catalog("hive").leftovers()} <= {"staging"}
    finally:
        spark.stop()

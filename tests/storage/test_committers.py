"""Writes with other committers than Hadoop's own: files are where the committer of the session puts them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import start_session
from tests.storage import filesystems
from twophase.model import Level

_MANIFEST = "org.apache.hadoop.mapreduce.lib.output.committer.manifest.ManifestCommitterFactory"
#: The manifest committer of Hadoop's client, which Spark's Parquet writer takes by a jar that the wheel does not hold;
#: and a protocol like S3A's magic committer.
COMMITTERS = {
    "manifest": {"mapreduce.outputcommitter.factory.scheme.file": _MANIFEST},
    "magic": {"spark.sql.sources.commitProtocolClass": "twophasetests.MagicProtocol"},
}
#: The writes that each commits.
JOBS = {"manifest": 4, "magic": 5}
_ROWS = "SELECT /*+ REPARTITION(2) */ id AS a, id % 2 AS k FROM range({}, {})"
WRITES = [
    f"CREATE TABLE t USING orc AS {_ROWS.format(0, 4)}",
    f"INSERT INTO t {_ROWS.format(4, 6)}",
    f"CREATE TABLE p USING orc PARTITIONED BY (k) AS {_ROWS.format(0, 4)}",
    f"INSERT OVERWRITE p PARTITION (k) {_ROWS.format(6, 8)}",
    f"CREATE TABLE lake.d.t AS {_ROWS.format(0, 4)}",
]
TABLES = {
    "t": [(number, number % 2) for number in range(6)],
    "p": [(6, 0), (7, 1)],
    "lake.d.t": [(number, number % 2) for number in range(4)],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("committers")


@pytest.fixture(scope="module")
def spark(root: Path) -> Iterator[SparkSession]:
    filesystems.install(root / "classes")
    conf = {
        "spark.hadoop.mapreduce.manifest.committer.summary.report.directory": f"file://{root}/reports",
        "spark.sql.catalog.lake": "twophase.lakehouse",
        "spark.sql.catalog.lake.warehouse": f"{root}/lake",
    }
    session = start_session(root, hive=False, conf=conf)
    session.sql("CREATE DATABASE IF NOT EXISTS default")
    yield session
    session.stop()


def jobs(spark: SparkSession, root: Path, committer: str) -> int:
    """How many jobs a committer has ended with success."""
    if committer == "magic":
        return int(spark.sparkContext._jvm.java.lang.Integer.getInteger("twophasetests.magic.jobs", 0))
    found = [json.loads(file.read_text()) for file in (root / "reports").glob("*.json")]
    return sum(bool(report["success"]) for report in found)


@pytest.mark.promise(
    "same-answers", "the committer that a session is configured with writes the staged files", detail=True
)
@pytest.mark.parametrize("committer", COMMITTERS)
def test_the_committer_of_the_session_writes_what_is_staged(spark: SparkSession, root: Path, committer: str) -> None:
    for key, value in COMMITTERS[committer].items():
        spark.conf.set(key, value)
    handle = twophase.attach(spark)
    try:
        spark.sql("CREATE DATABASE IF NOT EXISTS lake.d")
        before = jobs(spark, root, committer)
        for text in WRITES:
            spark.sql(text)
            (last, *_) = handle.timeline.transactions()
            assert (last.state, last.level) == (twophase.TransactionState.COMPLETED, Level.ATOMIC), text
        assert jobs(spark, root, committer) - before == JOBS[committer]
        with pytest.raises(PySparkException):
            spark.sql("INSERT INTO t SELECT a, raise_error('no') FROM t")
        found = {name: sorted(map(tuple, spark.table(name).collect())) for name in TABLES}
        directories = {place.name for place in root.rglob("_*") if place.is_dir()}
        for name in TABLES:
            spark.sql(f"DROP TABLE {name}")
    finally:
        handle.detach()
        for key in COMMITTERS[committer]:
            spark.conf.unset(key)
    assert found == TABLES
    assert directories & {"_temporary", "__magic_job"} == set()

"""Metrics and lineage of a real session: statements of their own, and a block."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pyspark.sql import SparkSession

import twophase
from tests.spark.conftest import Start
from twophase.model import ObjectPath
from twophase.monitoring import lineage, metrics
from twophase.monitoring.lineage import Lineage, run_id
from twophase.monitoring.metrics import Metrics
from twophase.spark.handle import attached
from twophase.spark.jvm.gateway import Jvm
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator


@pytest.fixture(scope="module")
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lineage") / "events.json"


@pytest.fixture(scope="module")
def spark(start: Start, reader: InMemoryMetricReader, events: Path) -> Iterator[SparkSession]:
    provider = MeterProvider([reader])
    before = metrics._process, lineage._process
    transport = FileTransport(FileConfig(log_file_path=str(events), append=True))
    metrics._process, lineage._process = Metrics(provider), Lineage(OpenLineageClient(transport=transport))
    spark = start(
        {
            "spark.twophase.openlineage": "true",
            "spark.sql.catalog.db": "twophase.jdbc",
            "spark.sql.catalog.db.url": f"sqlite:///{events.parent / 'shop.db'}",
        }
    )
    twophase.attach(spark)
    yield spark
    twophase.attach(spark).detach()
    metrics._process, lineage._process = before
    provider.shutdown()


def ends(events: Path) -> list[dict[str, Any]]:
    assert lineage.of_process().flush()
    found = [json.loads(line) for line in events.read_text().splitlines()]
    return [event for event in found if event["eventType"] != "START"]


def datasets(found: list[dict[str, Any]]) -> dict[str, str | None]:
    return {d["name"]: d.get("facets", {}).get("version", {}).get("datasetVersion") for d in found}


def test_each_statement_and_each_block_is_a_run_with_the_versions_that_it_reads_and_writes(
    spark: SparkSession, events: Path
) -> None:
    spark.sql("CREATE TABLE first AS SELECT 1 AS id")
    spark.sql("CREATE TABLE db.main.copied AS SELECT * FROM first")
    spark.sql("CREATE TABLE lake.default.third AS SELECT id FROM db.main.copied JOIN first USING (id)")
    with twophase.transaction(spark) as tx:
        spark.sql("INSERT INTO first SELECT id FROM lake.default.third")
        spark.sql("CREATE TABLE second AS SELECT * FROM first")
    with pytest.raises(Exception, match="BOOM"):
        spark.sql("INSERT INTO second SELECT CAST(raise_error('BOOM') AS INT) FROM first")

    created, copied, third, block, failed = ends(events)
    version = datasets(created["outputs"])["default.first"]
    assert version is not None
    assert datasets(copied["inputs"]) == {"default.first": version}
    assert set(datasets(third["inputs"])) == {"main.copied", "default.first"}
    assert datasets(third["inputs"])["default.first"] == version
    assert datasets(block["inputs"])["default.third"] == datasets(third["outputs"])["default.third"]
    assert set(datasets(block["outputs"])) == {"default.first", "default.second"}
    assert block["run"]["runId"] == run_id(tx.id)
    assert [event["eventType"] for event in (created, copied, third, block, failed)] == ["COMPLETE"] * 4 + ["FAIL"]
    assert "BOOM" in failed["run"]["facets"]["errorMessage"]["message"]


def test_the_session_of_the_pages_recovers_nothing(spark: SparkSession) -> None:
    """``twophase ui --leftovers`` only reads the timeline."""
    handle = twophase.attach(spark)
    url, table = handle.timeline.display_url, (handle.catalog("lake"), ObjectPath.of("default", "locked"))
    dead = Coordinator(Timeline(url), handle.catalog, name=spark.sparkContext.appName)
    tx = dead.begin()
    tx.lock(table)
    assert tx._life.lease is not None
    dead.timeline.give_up(tx._life.lease)
    handle.detach()

    looking = attached(Jvm(spark), (), recovers=False)
    record = looking.timeline.transaction(tx.id)
    assert record is not None and record.is_open
    looking.detach()
    found = twophase.attach(spark).timeline.transaction(tx.id)
    assert found is None or not found.is_open


def test_statements_are_counted_by_their_stores(spark: SparkSession, reader: InMemoryMetricReader) -> None:
    data = reader.get_metrics_data()
    assert data is not None
    (found,) = (m for m in data.resource_metrics[0].scope_metrics[0].metrics if m.name == metrics.DURATION.name)
    stores = {(p.attributes[metrics.STORE], p.attributes[metrics.STATE]) for p in found.data.data_points}
    assert {("hive", "COMPLETED"), ("jdbc", "COMPLETED"), ("ChaosCatalog", "COMPLETED")} <= stores
    assert ("hive", "ROLLED_BACK") in stores

"""A Spark driver whose disks lose their power inside its statements: ``python -m tests.crash.cut_driver FACTS.json``.

Each cut has a disk of its own, with a database, an Iceberg catalog and a SQLite file on it; the metastore and the
timeline are on another one, which is copied last. A statement reaches its moment, its disk is copied, and it stays
there while the next one begins: what is synced for others, or for the timeline, saves nothing of it, and one driver
recovers all of them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import twophase
from tests.crash import loop_device, power_driver
from twophase import failpoints
from twophase.transactions.clean import clean

#: Seconds for one statement to reach its moment.
_PATIENCE = 120


def main(file: str) -> None:
    facts = json.loads(Path(file).read_text())
    spark = power_driver.session(Path(facts["root"]), **facts["conf"])
    handle = twophase.attach(spark)
    if facts["recovers"]:
        found = {"rows": rows(spark, facts), "open": [t.id for t in handle.timeline.transactions() if t.is_open]}
        handle.environment.retention = 0.0
        cleaned = clean(handle.coordinator, handle.catalogs.values())
        found["kept"] = [one.leftover.location for one in cleaned if not one.removed]
        power_driver.tell({**found, "cleaned": rows(spark, facts)})
        spark.stop()
        return
    for cut in facts["cuts"].values():
        for statement in cut["before"]:
            spark.sql(statement)
    os.sync()
    for name, cut in facts["cuts"].items():
        stop_inside(spark, name, cut)
    loop_device.cut(Path(facts["image"]), Path(facts["image"]).with_suffix(".cut"))
    power_driver.tell("cut")
    threading.Event().wait()  # It is killed here, with all statements where they are.


def stop_inside(spark: SparkSession, name: str, cut: dict[str, Any]) -> None:
    """Run statements until they reach their moment, and cut the power of their disk there."""
    reached, failed = threading.Event(), []

    def stop(_: str) -> None:
        loop_device.cut(Path(cut["image"]), Path(cut["image"]).with_suffix(".cut"))
        reached.set()
        threading.Event().wait()

    def run() -> None:
        try:
            power_driver.in_one(spark, cut["statements"])
            failed.append(f"{name} never came to {cut['point']}, only to {sorted(failpoints.reached())}")
        except BaseException as error:
            failed.append(f"{name}: {error}")
        reached.set()

    failpoints.disarm()
    failpoints.arm(cut["point"], stop, nth=cut["nth"])
    threading.Thread(target=run, daemon=True).start()
    assert reached.wait(_PATIENCE), name
    assert not failed, failed


def rows(spark: SparkSession, facts: dict[str, Any]) -> dict[str, Any]:
    """What each cut has left: the rows of its tables, None for one that is not there."""
    return {name: {table: _rows(spark, table) for table in cut["tables"]} for name, cut in facts["cuts"].items()}


def _rows(spark: SparkSession, table: str) -> list[Any] | None:
    if not spark.catalog.tableExists(table):
        return None
    try:
        return sorted(json.dumps(row.asDict()) for row in spark.table(table).collect())
    except Exception as error:
        return [f"cannot be read: {type(error).__name__}"]


if __name__ == "__main__":
    main(sys.argv[1])

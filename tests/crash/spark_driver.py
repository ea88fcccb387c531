"""A real driver that is going to be killed: ``python -m tests.crash.spark_driver FACTS.json``.

It attaches (and so recovers what the driver before it left), tells what it finds, and runs one statement, in which it
waits at a failpoint for its death.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import twophase
from twophase import failpoints
from twophase.transactions.clean import clean


def main(file: str) -> None:
    facts = json.loads(Path(file).read_text())
    spark = _session(facts["conf"])
    handle = twophase.attach(spark)
    for statement in facts.get("before", ()):
        spark.sql(statement)
    if facts.get("cleans"):
        handle.environment.retention = 0.0
        clean(handle.coordinator, [handle.catalog("hive")])
    found = {
        "rows": _rows(spark, facts["table"]),
        "open": [t.id for t in handle.timeline.transactions() if t.is_open],
        "leftovers": [r.location for r in handle.catalog("hive").leftovers() if r.kind == "staging"],
    }
    if facts.get("cleans"):
        found["files"] = [] if found["rows"] is None else spark.table(facts["table"]).inputFiles()
    # In one step, so that the parent never reads half of it.
    told = Path(facts["tell"])
    told.with_suffix(".new").write_text(json.dumps(found))
    os.replace(told.with_suffix(".new"), told)
    if "statement" in facts:
        failpoints.arm_from_environment(facts["arm"])
        spark.sql(facts["statement"])
    spark.stop()


def _session(conf: dict[str, str]) -> SparkSession:
    builder: Any = SparkSession.builder.master("local[2]").appName("deaths")
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()  # type: ignore[no-any-return]


def _rows(spark: SparkSession, table: str) -> list[Any] | None:
    if not spark.catalog.tableExists(table):
        return None
    return sorted([list(row) for row in spark.table(table).collect()])


if __name__ == "__main__":
    main(sys.argv[1])

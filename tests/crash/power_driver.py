"""A Spark driver on a file system that will lose its power: ``python -m tests.crash.power_driver DIRECTORY``.

It makes its tables, tells that it is ready, and runs the statements that it reads from its input, those of one line in
one transaction. After each line it tells what is stored then: every file that its tables rest on, with a digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import twophase

TABLES = ("t", "p", "e", "lake.d.i")
SET_UP = (
    "CREATE TABLE t USING parquet AS SELECT id FROM range(2)",
    "CREATE TABLE p USING parquet PARTITIONED BY (k) AS SELECT id, 1 AS k FROM range(2)",
    "CREATE TABLE e (id BIGINT) USING parquet LOCATION '{root}/external'",
    "CREATE DATABASE lake.d",
    "CREATE TABLE lake.d.i AS SELECT id FROM range(2)",
)


def main(root: Path) -> None:
    spark = session(root)
    twophase.attach(spark)
    for statement in SET_UP:
        spark.sql(statement.format(root=root))
    os.sync()
    tell("ready")
    for line in sys.stdin:
        run(spark, **json.loads(line))
        tell({table: stored(spark, table) for table in TABLES})
    spark.stop()


def read(root: str) -> None:
    """Tell the rows of all tables, after a recovery."""
    spark = session(Path(root))
    twophase.attach(spark)
    tell({table: stored(spark, table)["rows"] for table in TABLES})
    spark.stop()


def session(root: Path, **more: str) -> SparkSession:
    """A session whose metastore, tables, lake and timeline are all below one directory."""
    builder: Any = SparkSession.builder.master("local[2]").enableHiveSupport()
    facts = {
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": str(root / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={root}/metastore;create=true",
        "spark.sql.catalog.lake": "twophase.lakehouse",
        "spark.sql.catalog.lake.warehouse": str(root / "lake"),
        **more,
    }
    for key, value in facts.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()  # type: ignore[no-any-return]


def run(spark: SparkSession, statements: list[str], fsync: str) -> None:
    """Run what belongs together, with or without a wait for the disk."""
    if spark.conf.get("spark.twophase.fsync", "true") != fsync:
        spark.conf.set("spark.twophase.fsync", fsync)
        twophase.attach(spark).detach()
        twophase.attach(spark)
    in_one(spark, statements)


def in_one(spark: SparkSession, statements: list[str]) -> None:
    """One statement, or several in one transaction."""
    if len(statements) == 1:
        spark.sql(statements[0])
        return
    with twophase.transaction(spark):
        for statement in statements:
            spark.sql(statement)


def stored(spark: SparkSession, table: str) -> dict[str, Any]:
    """The rows of a table, and the files that it reads, with a digest of each."""
    frame = spark.table(table)
    files = [name.removeprefix("file:").replace("///", "/") for name in frame.inputFiles()]
    if table.startswith("lake."):
        files = [row[0].removeprefix("file:") for row in spark.table(f"{table}.files").select("file_path").collect()]
        files += metadata_files(Path(files[0]).parents[2] / "metadata") if files else []
    rows = sorted(json.dumps(row.asDict()) for row in frame.collect())
    return {"rows": rows, "files": {name: digest(name) for name in files}}


def metadata_files(directory: Path) -> list[str]:
    """The Iceberg metadata of a table: that of the published version is among it, and may not be in pieces."""
    return [str(file) for file in directory.iterdir() if file.suffix in (".json", ".avro")]


def digest(name: str) -> str:
    return hashlib.sha256(Path(name).read_bytes()).hexdigest()


def tell(what: Any) -> None:
    print("TOLD " + json.dumps(what), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

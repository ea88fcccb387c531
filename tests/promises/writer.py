"""A driver of its own: at each line on its input it runs one statement and says how it ended."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

import twophase
from twophase.errors import TransactionAborted


def main(metastore: str, warehouse: str, database: str, timeline: str) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.log.level", "OFF")
        .config("spark.hadoop.hive.metastore.uris", metastore)
        .config("spark.sql.warehouse.dir", warehouse)
        .config("spark.twophase.timeline", timeline)
        .enableHiveSupport()
        .getOrCreate()
    )
    twophase.attach(spark)
    spark.sql(f"USE {database}")
    print(json.dumps("READY"), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(spark, json.loads(line))), flush=True)
    spark.stop()


def run(spark: SparkSession, statement: str) -> str:
    """``done``, ``exists`` (it lost to an earlier create), ``conflict`` (it was refused) or the error."""
    try:
        spark.sql(statement)
    except TransactionAborted:
        return "conflict"
    except Exception as error:
        exists = "TABLE_OR_VIEW_ALREADY_EXISTS" in str(error)
        return "exists" if exists else f"{type(error).__name__}: {error}"[:1000]
    return "done"


if __name__ == "__main__":
    main(*sys.argv[1:])

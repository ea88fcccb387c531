"""A driver of its own: at each line on its input it runs one statement and says how it ended.

A statement is SQL, or a query: with the table that its rows and columns are appended to, or whose rows are the answer.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

import twophase
from twophase.errors import TransactionAborted


def main(metastore: str, warehouse: str, database: str, timeline: str, conf: str = "{}") -> None:
    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.log.level", "OFF")
        .config("spark.hadoop.hive.metastore.uris", metastore)
        .config("spark.sql.warehouse.dir", warehouse)
        .config("spark.twophase.timeline", timeline)
        .enableHiveSupport()
    )
    for key, value in json.loads(conf).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    twophase.attach(spark)
    spark.sql(f"USE {database}")
    print(json.dumps("READY"), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(spark, json.loads(line))), flush=True)
    spark.stop()


def run(spark: SparkSession, statement: str | dict[str, str]) -> Any:
    """``done``, ``exists`` (it lost to an earlier create), ``conflict`` (it was refused) or the error."""
    try:
        if isinstance(statement, str):
            spark.sql(statement)
        elif "rows" in statement:
            frame = spark.sql(statement["rows"])
            return [frame.columns, sorted([list(row) for row in frame.collect()], key=str)]
        else:
            rows = spark.sql(statement["query"]).write.option("mergeSchema", "true")
            rows.insertInto(statement["into"])
    except TransactionAborted:
        return "conflict"
    except Exception as error:
        exists = "TABLE_OR_VIEW_ALREADY_EXISTS" in str(error)
        return "exists" if exists else f"{type(error).__name__}: {error}"[:1000]
    return "done"


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A reader without twophase, in a process of its own: reads tables again and again and prints what it saw.

Each table holds rows of one ``version`` only, a hundred of them: anything else is a mixed, an empty or a missing table.
Ends when the file ``stop`` exists, after one more round.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession


def main(metastore: str, warehouse: str, stop: str, tables: list[str]) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.log.level", "OFF")
        .config("spark.hadoop.hive.metastore.uris", metastore)
        .config("spark.sql.warehouse.dir", warehouse)
        .enableHiveSupport()
        .getOrCreate()
    )
    print("READY", flush=True)
    last = False
    while True:
        for table in tables:
            print(json.dumps({"table": table, **look(spark, table)}), flush=True)
        if last:
            break
        last = Path(stop).exists()
    spark.stop()


def look(spark: SparkSession, table: str) -> dict[str, object]:
    """One look: how many rows of which versions, or the error."""
    try:
        spark.catalog.refreshTable(table)
        # Counted here: a look is short, and there are more of them.
        rows = spark.sql(f"SELECT version FROM {table}").collect()
    except Exception as error:
        return {"error": str(error)[:500]}
    return {"seen": Counter(str(row.version) for row in rows)}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])

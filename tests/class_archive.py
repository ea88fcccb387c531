"""Write an archive of the classes that Spark loads, so that the JVMs of the tests need not load and verify them again.

A session takes half as long to start with it (Java's class data sharing, JEP 350). ``make test`` writes it once for an
environment; tests that are run without it are slower, and Java ignores an archive of another Java or of other jars.

Usage: python -m tests.class_archive FILE
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import twophase
from tests.servers import JAVA_FOR_SHORT_RUNS

#: What most tests do in some form: every statement loads classes.
STATEMENTS = (
    "CREATE DATABASE db",
    "CREATE TABLE db.t USING parquet PARTITIONED BY (p) AS SELECT id, CAST(id % 2 AS INT) AS p, 'x' AS s FROM range(4)",
    "INSERT INTO db.t SELECT id, 'y', 1 FROM range(2)",
    "INSERT OVERWRITE db.t PARTITION (p = 1) SELECT id, 'z' FROM range(2)",
    "CREATE OR REPLACE TABLE db.t USING orc AS SELECT id, array(1) AS a, named_struct('b', 2) AS b FROM range(4)",
    "CREATE TABLE db.h STORED AS TEXTFILE AS SELECT id FROM db.t",
    "CREATE TABLE db.c USING csv AS SELECT l.id FROM db.t l JOIN db.h r ON l.id = r.id ORDER BY 1",
    "ALTER TABLE db.c SET TBLPROPERTIES ('k' = 'v')",
    "DESCRIBE EXTENDED db.c",
    "SHOW TABLES IN db",
    "DROP DATABASE db CASCADE",
)


def main(archive: Path) -> None:
    unfinished = archive.with_suffix(".unfinished")
    options = (*JAVA_FOR_SHORT_RUNS, f"-XX:ArchiveClassesAtExit={unfinished}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(options)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        builder: Any = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").enableHiveSupport()
        spark = builder.config("spark.log.level", "OFF").getOrCreate()
        run(spark)
        gateway = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # its JVM ends then, and writes the archive
        gateway.proc.wait()
    unfinished.replace(archive)


def run(spark: SparkSession) -> None:
    twophase.attach(spark)
    for statement in STATEMENTS:
        spark.sql(statement).collect()
    spark.range(2).write.saveAsTable("u")
    spark.table("u").toPandas()
    spark.createDataFrame([(1, "a")], "a INT, b STRING").writeTo("v").create()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

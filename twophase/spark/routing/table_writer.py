"""Writes a DataFrame as Spark's own ``INSERT`` does, without routing through twophase."""

from __future__ import annotations

import secrets
from typing import Any

from twophase.catalogs.hive.metastore import TableWriter
from twophase.model import quote
from twophase.spark.held_settings import HeldSettings
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.statements import NameReader
from twophase.spark.routing.targets import SESSION_CATALOG

#: Hive's strict mode guards the user's inserts, not the staging of a whole table.
HELD = HeldSettings({"hive.exec.dynamic.partition.mode": "nonstrict"})


class SessionTableWriter(TableWriter):
    """Spark's v1 insert into a table of the session catalog.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    """

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def insert(self, df: Any, database: str, name: str) -> None:
        # The JVM's writer: the Python one may be routed to twophase.
        target = ".".join(quote(part) for part in (SESSION_CATALOG, database, name))
        with HELD.held(self._spark):
            if NameReader(Jvm(self._spark)).current_catalog() == SESSION_CATALOG:
                df._jdf.write().mode("append").insertInto(target)
            else:
                self._insert_by_text(df, target)

    def _insert_by_text(self, df: Any, target: str) -> None:
        """Insert by SQL, which after ``USE catalog`` finds the session catalog's v1 table; ``insertInto`` does not."""
        rows = f"__twophase_rows_{secrets.token_hex(12)}"
        names = [f"c{index}" for index in range(len(df.columns))]
        df.toDF(*names)._jdf.createTempView(rows)
        try:
            self._spark._jsparkSession.sql(f"INSERT INTO {target} SELECT * FROM {rows}")
        finally:
            self._spark.catalog.dropTempView(rows)

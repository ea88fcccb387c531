"""What the tests of DDL in a block share: the stores, another session beside the block, and looks at a table."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

import twophase

#: The database of each store, and the clause of a plain table there.
STORES = {
    "session": ("default", "USING parquet"),
    "lakehouse": ("ice.db", ""),
    "sqlite": ("lite.main", ""),
    "postgresql": ("pg.hermitage", ""),
}


class RolledBack(Exception):
    """Ends a block without an error of its own."""


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.sql(query).collect())


def columns(spark: SparkSession, name: str) -> list[str]:
    return [f"{field.name} {field.dataType.simpleString()}" for field in spark.table(name).schema]


def properties(spark: SparkSession, name: str) -> dict[str, str]:
    return {row.key: row.value for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}


def elsewhere(run: Callable[[], object]) -> None:
    """Run something outside of the block around it."""
    failed: list[BaseException] = []

    def target() -> None:
        try:
            run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    assert failed == []


def altered_elsewhere(spark: SparkSession, text: str) -> None:
    with twophase.transaction(spark):
        spark.sql(text)

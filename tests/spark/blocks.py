"""What the tests of DDL in a block share: the stores, another session beside the block, and looks at a table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

import twophase

#: The database of each store, and the clause of a plain table there.
STORES = {
    "session": ("default", "USING parquet"),
    "lakehouse": ("ice.db", ""),
    "sqlite": ("lite.main", ""),
    "postgresql": ("pg.hermitage", ""),
}
#: The parameters of a test of each catalog: that of databases is tried on the server.
EACH_STORE = [pytest.param(name, marks=pytest.mark.exhaustive if name == "sqlite" else ()) for name in STORES]


class RolledBack(Exception):
    """Ends a block without an error of its own."""


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.sql(query).collect())


def rolled_back_then_published(
    spark: SparkSession, run: Callable[[Any], None], unchanged: Callable[[], bool], **facts: Any
) -> Any:
    """Run a block that is rolled back at its end, after which nothing has changed, and again to be published."""
    with pytest.raises(RolledBack), twophase.transaction(spark, **facts) as tx:
        run(tx)
        raise RolledBack
    assert unchanged()
    with twophase.transaction(spark, **facts) as tx:
        run(tx)
    return tx


def columns(spark: SparkSession, name: str) -> list[str]:
    return [f"{field.name} {field.dataType.simpleString()}" for field in spark.table(name).schema]


def properties(spark: SparkSession, name: str) -> dict[str, str]:
    return {row.key: row.value for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}


def insert_id(spark: SparkSession, table: str, value: int) -> None:
    """Insert a row of an id, and leave the other columns to their defaults."""
    left_out, given = "(id)", [str(value)]
    if pyspark.__version__.startswith("4.0."):  # It leaves no column of another catalog's table out.
        left_out, given = "", [*given, *["DEFAULT"] * (len(columns(spark, table)) - 1)]
    spark.sql(f"INSERT INTO {table} {left_out} VALUES ({', '.join(given)})")


def run_each(spark: SparkSession, table: str, steps: Iterable[str | int]) -> None:
    """Run statements on a table; a number is an id to insert."""
    for step in steps:
        if isinstance(step, int):
            insert_id(spark, table, step)
        else:
            spark.sql(step.format(t=table))


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

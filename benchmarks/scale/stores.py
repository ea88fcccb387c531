"""A database and a lake; stock Spark reaches neither without a jar, so each row stands beside a smaller one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from benchmarks.scale.measure import Row, alone
from twophase.transactions.clean import clean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def beside_relations(spark: SparkSession, url: str, counts: list[int], rounds: int) -> Iterator[Row]:
    """PostgreSQL: a row into a table of a schema of so many."""
    engine = sa.create_engine(url)
    for count in counts:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA s{count}")
        for first in range(0, count, 500):  # Each takes a lock until the transaction ends.
            with engine.begin() as connection:
                for number in range(first, min(first + 500, count)):
                    connection.exec_driver_sql(f"CREATE TABLE s{count}.t{number} (a INT)")
        table, beside = f"pg.s{count}.t1", f"PostgreSQL, {count:,} tables"

        def insert(_: int, table: str = table) -> None:
            spark.sql(f"INSERT INTO {table} SELECT 1")

        def overwrite(_: int, table: str = table) -> None:
            spark.sql(f"INSERT OVERWRITE {table} SELECT 1")

        yield alone("INSERT INTO, one row", beside, insert, rounds)
        yield alone("INSERT OVERWRITE, one row", beside, overwrite, rounds)
    engine.dispose()


def beside_snapshots(spark: SparkSession, handle: Any, counts: list[int], rounds: int) -> Iterator[Row]:
    """Iceberg: an append to a table of so many snapshots, a read of it, and the expiry of all but the last."""
    spark.sql("CREATE DATABASE lake.bench")
    lake = handle.catalog("lake")
    for count in counts:
        table = f"lake.bench.t{count}"
        spark.sql(f"CREATE TABLE {table} (a INT)")
        for _ in range(count):
            spark.sql(f"INSERT INTO {table} SELECT 1")
        beside = f"Iceberg, {count:,} snapshots"

        def insert(_: int, table: str = table) -> None:
            spark.sql(f"INSERT INTO {table} SELECT 1")

        def read(_: int, table: str = table) -> None:
            spark.table(table).collect()

        yield alone("INSERT INTO, one row", beside, insert, rounds)
        yield alone("SELECT of all rows", beside, read, rounds)
        retention, lake.environment.retention = lake.environment.retention, 0.0
        what = "clean: all snapshots but the last expire"
        yield alone(what, beside, lambda _: clean(handle.coordinator, [lake]), 1, warm=0)
        lake.environment.retention = retention

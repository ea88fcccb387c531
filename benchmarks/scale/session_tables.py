"""Statements over the session's own tables, in stock Spark and attached, in one JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.scale.measure import Row, alone, paired

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Statements that add partitions to Derby grow slower than they are many.
_AT_ONCE = 500


class Sides:
    """Two sessions of one JVM, of which one is attached; each has tables of its own.

    Parameters
    ----------
    stock, ours : SparkSession
    rounds : int
        Pairs for each row.
    """

    def __init__(self, stock: SparkSession, ours: SparkSession, rounds: int) -> None:
        self.stock, self.ours, self.rounds = stock, ours, rounds

    def paired(self, what: str, beside: str, statement: str, *, before: Sequence[str] = ()) -> Row:
        """Measure a statement with ``{side}`` and ``{n}`` in it; what comes ``before`` it is not measured."""
        runs = {}
        for side, spark in (("ours", self.ours), ("stock", self.stock)):
            for number in range(-1, self.rounds):
                for made in before:
                    spark.sql(made.format(side=side, n=number + 1))
            runs[side] = _running(spark, statement, side)
        return paired(what, beside, runs["ours"], runs["stock"], self.rounds)


def _running(spark: SparkSession, statement: str, side: str) -> Any:
    return lambda number: spark.sql(statement.format(side=side, n=number + 1)).collect()


def _overwriting(spark: SparkSession, table: str) -> Any:
    return lambda _: spark.sql("SELECT 1 AS a").write.mode("overwrite").saveAsTable(table)


def beside_tables(sides: Sides, counts: list[int]) -> Iterator[Row]:
    """INSERT, replace and DROP in a database of so many tables."""
    for count in counts:
        name = f"tables_{count}"
        sides.stock.sql(f"CREATE DATABASE {name}")
        for number in range(count):
            # Some have a version of ours: what looks at the tables of a database must look at those.
            if number % 10:
                sides.stock.sql(f"CREATE TABLE {name}.t{number} (a INT) USING parquet")
            else:
                sides.ours.sql(f"CREATE TABLE {name}.t{number} USING parquet AS SELECT 1 AS a")
        for side, spark in (("ours", sides.ours), ("stock", sides.stock)):
            spark.sql(f"CREATE TABLE {name}.{side} USING parquet AS SELECT 1 AS a")
        beside = f"{count:,} tables"
        yield sides.paired("INSERT INTO, one row", beside, f"INSERT INTO {name}.{{side}} SELECT 1")
        yield sides.paired("INSERT OVERWRITE, one row", beside, f"INSERT OVERWRITE {name}.{{side}} SELECT 1")
        replace, overwrite = f"CREATE OR REPLACE TABLE {name}.ours AS SELECT 1 AS a", f"{name}.stock"
        yield paired(
            "CREATE OR REPLACE / saveAsTable",
            beside,
            _running(sides.ours, replace, "ours"),
            _overwriting(sides.stock, overwrite),
            sides.rounds,
        )
        table = f"{name}.{{side}}_{{n}}"
        drop, create = f"DROP TABLE {table}", f"CREATE TABLE {table} USING parquet AS SELECT 1 AS a"
        yield sides.paired("DROP TABLE", beside, drop, before=[create])
        made = [f"CREATE TABLE {table} (a INT) USING parquet", f"INSERT INTO {table} SELECT 1"]
        overwrite = f"INSERT OVERWRITE {table} SELECT 2"  # It leaves the rows of the INSERT where they are.
        yield sides.paired("DROP TABLE after an INSERT OVERWRITE", beside, drop, before=[*made, overwrite])


def beside_partitions(sides: Sides, counts: list[int]) -> Iterator[Row]:
    """One row into one of so many partitions."""
    for count in counts:
        for side, spark in (("ours", sides.ours), ("stock", sides.stock)):
            name = f"partitions_{count}_{side}"
            spark.sql(f"CREATE TABLE {name} (a INT, k INT) USING parquet PARTITIONED BY (k)")
            for first in range(0, count, _AT_ONCE):
                parts = " ".join(f"PARTITION (k = {k})" for k in range(first, min(first + _AT_ONCE, count)))
                sides.stock.sql(f"ALTER TABLE {name} ADD {parts}")
        beside, table = f"{count:,} partitions", f"partitions_{count}_{{side}}"
        yield sides.paired("INSERT INTO one partition", beside, f"INSERT INTO {table} PARTITION (k = 5) SELECT 1")
        overwrite = f"INSERT OVERWRITE {table} PARTITION (k = 6) SELECT 1"
        yield sides.paired("INSERT OVERWRITE one partition", beside, overwrite)
        yield sides.paired("INSERT INTO, dynamic, one row", beside, f"INSERT INTO {table} SELECT 1, 7")


def appends(sides: Sides, numbers: list[int]) -> Iterator[Row]:
    """The first, the hundredth, the thousandth append of one row, and what they leave in directories."""
    for side, spark in (("ours", sides.ours), ("stock", sides.stock)):
        spark.sql(f"CREATE TABLE appends_{side} (a INT) USING parquet")
    done = 0
    for number in numbers:
        while done < number - sides.rounds - 1:
            for side, spark in (("ours", sides.ours), ("stock", sides.stock)):
                spark.sql(f"INSERT INTO appends_{side} SELECT {done}")
            done += 1
        row = sides.paired("INSERT INTO, one row", f"append {number:,}", "INSERT INTO appends_{side} SELECT 1")
        done += sides.rounds + 1
        entries = {side: _entries(sides.stock, f"appends_{side}") for side in ("ours", "stock")}
        told = f"append {number:,}; {entries['ours']:,} and {entries['stock']:,} directory entries"
        yield Row(row.what, told, row.ours, row.stock, row.ratio)


def _entries(spark: SparkSession, table: str) -> int:
    """Names below a table's directory, and below that of its versions."""
    warehouse = Path(urlsplit(spark.conf.get("spark.sql.warehouse.dir")).path)
    return sum(1 for root in (warehouse / table, warehouse / ".twophase" / table) for _ in root.rglob("*"))


def beside_files(sides: Sides, counts: list[int]) -> Iterator[Row]:
    """One row into a table of so many files; only a table that stock Spark wrote has them at once."""
    for count in counts:
        for side in ("ours", "stock"):
            sides.stock.conf.set("spark.sql.files.maxRecordsPerFile", 1)
            query = f"SELECT CAST(id AS INT) a FROM range({count})"
            sides.stock.sql(f"CREATE TABLE files_{count}_{side} USING parquet AS {query}")
            sides.stock.conf.unset("spark.sql.files.maxRecordsPerFile")
        yield sides.paired("INSERT INTO, one row", f"{count:,} files", f"INSERT INTO files_{count}_{{side}} SELECT 1")


def statements(sides: Sides, sizes: list[int]) -> Iterator[Row]:
    """A text of so many characters."""
    for size in sizes:
        beside = f"a text of {size:,} characters"
        yield sides.paired("SELECT of a literal", beside, f"SELECT length('{'x' * size}')")
        yield sides.paired("SELECT with a comment", beside, f"SELECT 1 /* {'DROP TABLE INTO ' * (size // 16)} */")


def cleaning(sides: Sides, handle: Any, counts: list[int]) -> Iterator[Row]:
    """``twophase clean`` of so many replaced versions, all past their retention."""
    from twophase.transactions.clean import clean

    sides.ours.sql("CREATE TABLE cleaned (a INT) USING parquet")
    hive = handle.catalog("hive")
    retention, hive.environment.retention = hive.environment.retention, 0.0
    for count in counts:
        for _ in range(count):
            sides.ours.sql("INSERT OVERWRITE cleaned SELECT 1")
        yield alone("clean", f"{count:,} replaced versions", lambda _: clean(handle.coordinator, [hive]), 1, warm=0)
    hive.environment.retention = retention

"""What a savepoint in a block costs, a named one, and a restore beside a CREATE OR REPLACE of the same tables.

``python -m benchmarks.savepoints`` measures 100 session tables of 1,000 files, and ten Iceberg tables of ten; with
``--tables`` and ``--files`` others. A restore is compared with a replace by a query, for some of the tables. In a block
the mark, and the rollback to it, come after an INSERT of one row and of many, and take back another one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

import twophase
from benchmarks.hive_ctas import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMPARED = 3
#: Blocks of each kind, of which the median is shown.
_BLOCKS = 5


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=100, help="session tables")
    parser.add_argument("--files", type=int, default=1000, help="files of each")
    parser.add_argument("--lake-tables", type=int, default=10, help="Iceberg tables, of ten files each")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of an INSERT in a block, beside one row")
    options = parser.parse_args(arguments)
    shown = Table("what", "tables", "seconds", "beside", "ratio")
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        conf = {
            "spark.sql.catalog.lake": "twophase.lakehouse",
            "spark.sql.catalog.lake.uri": f"sqlite:///{root / 'lake.db'}",
            "spark.sql.catalog.lake.warehouse": str(root / "lake"),
        }
        spark = stack.enter_context(session(root))
        for key, value in conf.items():
            spark.conf.set(key, value)
        twophase.attach(spark)
        spark.sql("CREATE DATABASE lake.db")
        for what, name in (("session table", "marked"), ("Iceberg table", "lake.db.marked")):
            _measure_in_a_block(spark, shown, what, name, options.rows)
        if tables := _session_tables(spark, root, options.tables, options.files):
            _measure(spark, shown, f"session tables, {options.files} files each", tables, root)
        lake = [f"lake.db.t{number}" for number in range(options.lake_tables)]
        for name in lake:
            spark.sql(f"CREATE TABLE {name} AS SELECT /*+ REPARTITION(10) */ id FROM range(100)")
        if lake:
            _measure(spark, shown, "Iceberg tables, 10 files each", lake, root)
    Console(width=max(100, Console().width)).print(shown)


def _measure_in_a_block(spark: SparkSession, shown: Table, what: str, name: str, rows: int) -> None:
    """Set a mark between two INSERTs, and roll back to it."""
    provider = "" if name.startswith("lake.") else "USING parquet "
    spark.sql(f"CREATE TABLE {name} {provider}AS SELECT id FROM range(1)")
    base: list[float] = []
    for count in (1, rows):
        taken = [_block(spark, name, count) for _ in range(_BLOCKS + 1)][1:]  # The first one warms up.
        inserted, *marks = (statistics.median(times) for times in zip(*taken, strict=True))
        base = base or marks
        for word, seconds, one in zip(("SAVEPOINT", "ROLLBACK TO"), marks, base, strict=True):
            label = f"{word} in a block, {what}, INSERT of {count:,} rows"
            shown.add_row(label, "1", f"{seconds:.5f}", f"{inserted:.2f} s for the INSERT", f"{seconds / one:.2f}")


def _block(spark: SparkSession, name: str, rows: int) -> tuple[float, float, float]:
    """The seconds of an INSERT, of a mark after it, and of the way back to it after another INSERT."""
    insert = f"INSERT INTO {name} SELECT id FROM range({rows})"
    tx = twophase.begin(spark)
    try:
        inserted = _seconds(lambda: spark.sql(insert))
        set_ = _seconds(lambda: tx.savepoint("mark"))
        spark.sql(insert)
        return inserted, set_, _seconds(lambda: tx.rollback_to("mark"))
    finally:
        tx.rollback()


def _session_tables(spark: SparkSession, root: Path, count: int, files: int) -> list[str]:
    """Make tables whose other files are copies of their first one, as another engine would add them."""
    names = [f"t{number}" for number in range(count)]
    for name in names:
        spark.sql(f"CREATE TABLE {name} USING parquet AS SELECT /*+ COALESCE(1) */ id FROM range(100)")
        (first,) = (file for file in (root / "warehouse").rglob("*.parquet") if f"/{name}/" in str(file))
        for number in range(1, files):
            shutil.copyfile(first, first.with_name(f"copy-{number}.parquet"))
        spark.sql(f"REFRESH TABLE {name}")
    return names


def _measure(spark: SparkSession, shown: Table, what: str, tables: Sequence[str], root: Path) -> None:
    some = list(tables[:_COMPARED])
    bytes_before = _bytes(root)
    created = _seconds(lambda: twophase.create_savepoint(spark, "measured", tables=tables))
    copied = _bytes(root) - bytes_before
    shown.add_row(f"savepoint of {what}", str(len(tables)), f"{created:.2f}", f"{copied} bytes of rows copied", "")
    replaced = _seconds(lambda: _replace(spark, some))
    restored = _seconds(lambda: twophase.restore(spark, "measured", tables=some))
    beside = f"{replaced:.2f} s for CREATE OR REPLACE"
    shown.add_row("restore of some", str(len(some)), f"{restored:.2f}", beside, f"{restored / replaced:.2f}")
    bytes_before = _bytes(root)
    whole = _seconds(lambda: twophase.restore(spark, "measured"))
    copied = _bytes(root) - bytes_before
    shown.add_row("restore of all", str(len(tables)), f"{whole:.2f}", f"{copied} bytes of rows copied", "")
    dropped = _seconds(lambda: twophase.drop_savepoint(spark, "measured"))
    shown.add_row("drop of the savepoint", str(len(tables)), f"{dropped:.2f}", "", "")


def _replace(spark: SparkSession, tables: Sequence[str]) -> None:
    with twophase.transaction(spark):
        for name in tables:
            provider = "" if name.startswith("lake.") else "USING parquet "
            spark.sql(f"CREATE OR REPLACE TABLE {name} {provider}AS SELECT id + 1 AS id FROM {name}")


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _bytes(root: Path) -> int:
    """Bytes of all Parquet files, each counted once, however many names it has."""
    found = {}
    for file in root.rglob("*.parquet"):
        facts = os.stat(file)
        found[facts.st_ino] = facts.st_size
    return sum(found.values())


if __name__ == "__main__":
    main(sys.argv[1:])

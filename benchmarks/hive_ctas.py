"""CTAS of Hive tables: stock Spark against twophase, and what the publish step costs by itself.

Both sides run in one JVM, in pairs that alternate who goes first, so that a noisy machine, a warm cache or a growing
heap favours nobody; the number to read is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import twophase
from twophase import ObjectPath, Purpose, TableDefinition
from twophase.catalog import Catalog
from twophase.model import WriteContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Comparison:
    """Stock against ours, for one size.

    Attributes
    ----------
    rows, partitions : int
        ``partitions`` is 0 for a table without any.
    stock, ours : float
        Medians, in seconds.
    ratio : float
        Median of ours / stock over the pairs.
    """

    rows: int
    partitions: int
    stock: float
    ours: float
    ratio: float


@dataclass(frozen=True)
class Publish:
    """The publish step alone, in seconds (median), for a staged table of that many files."""

    files: int
    seconds: float


@contextlib.contextmanager
def session(directory: Path) -> Iterator[SparkSession]:
    """A session over an embedded Hive metastore."""
    from pyspark.sql import SparkSession

    metastore = f"jdbc:derby:;databaseName={directory / 'metastore_db'};create=true"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": metastore,
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
    }
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]").appName("hive_ctas")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.enableHiveSupport().getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def statement(table: str, rows: int, partitions: int) -> str:
    """The CTAS: five columns of the usual types."""
    columns = "id, id % 1000 AS k, CAST(id AS STRING) AS name, rand(7) AS x"
    if not partitions:
        return f"CREATE TABLE {table} USING parquet AS SELECT {columns}, id % 7 AS p FROM range({rows})"
    query = f"SELECT {columns}, id % {partitions} AS p FROM range({rows}) DISTRIBUTE BY p"
    return f"CREATE TABLE {table} USING parquet PARTITIONED BY (p) AS {query}"


def seconds(spark: SparkSession, table: str, rows: int, partitions: int) -> float:
    """Time one CTAS; its table is dropped outside the measured time."""
    sql = statement(table, rows, partitions)
    gc.collect()
    start = time.perf_counter()
    spark.sql(sql)
    taken = time.perf_counter() - start
    spark.sql(f"DROP TABLE {table}")
    return taken


def compare(stock: SparkSession, ours: SparkSession, rows: int, partitions: int, pairs: int) -> Comparison:
    """Run the pairs, after one of each that warms up and does not count."""
    times: dict[str, list[float]] = {"stock": [], "ours": []}
    sides = [("stock", stock), ("ours", ours)]
    for number in range(-1, pairs):
        for name, spark in sides if number % 2 else reversed(sides):
            taken = seconds(spark, f"{name}_table", rows, partitions)
            if number >= 0:
                times[name].append(taken)
    ratios = [b / a for a, b in zip(times["stock"], times["ours"], strict=True)]
    median = statistics.median
    return Comparison(rows, partitions, median(times["stock"]), median(times["ours"]), median(ratios))


def publish(spark: SparkSession, catalog: Catalog, files: int, repeats: int) -> Publish:
    """Stage a table of so many files, as a statement does, and time nothing but its commit."""
    return Publish(files, statistics.median(publish_once(spark, catalog, files, n) for n in range(repeats)))


def publish_once(spark: SparkSession, catalog: Catalog, files: int, number: int) -> float:
    path = ObjectPath.of("default", f"published_{files}_{number}")
    participant = catalog.two_phase_create_table(
        path,
        TableDefinition(pa.schema([("id", pa.int64())]), provider="parquet"),
        purpose=Purpose.CREATE_TABLE_AS,
        context=WriteContext(f"bench-{files}-{number}", autocommit=True),
    )
    assert participant is not None
    participant.begin()
    with one_row_a_file(spark):
        participant.write(spark.range(0, files, numPartitions=min(files, 4)).toDF("id"))
    participant.prepare()
    start = time.perf_counter()
    participant.commit()
    taken = time.perf_counter() - start
    participant.finish()
    catalog.drop_table(path)
    return taken


@contextlib.contextmanager
def one_row_a_file(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.files.maxRecordsPerFile", 1)
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")


def report(comparisons: Sequence[Comparison], publishes: Sequence[Publish], console: Console) -> None:
    table = Table(title="CTAS, stock Spark against twophase (medians)")
    for column in ("rows", "partitions", "stock, s", "twophase, s", "ratio"):
        table.add_column(column, justify="right")
    for row in comparisons:
        partitions = str(row.partitions or "none")
        table.add_row(f"{row.rows:,}", partitions, f"{row.stock:.3f}", f"{row.ours:.3f}", f"{row.ratio:.2f}")
    if comparisons:
        console.print(table)
    table = Table(title="The publish step alone")
    for column in ("files", "ms"):
        table.add_column(column, justify="right")
    for line in publishes:
        table.add_row(f"{line.files:,}", f"{line.seconds * 1000:.1f}")
    if publishes:
        console.print(table)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.replace("_", "").split(",") if part]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hive_ctas", description=__doc__)
    parser.add_argument("--rows", type=numbers, default=[1, 1_000_000, 10_000_000], metavar="N,N")
    parser.add_argument("--partitions", type=numbers, default=[0, 200], metavar="N,N", help="0: not partitioned")
    parser.add_argument(
        "--pairs", type=int, default=7, help="pairs for each size (fewer for the largest: --pairs-large)"
    )
    parser.add_argument("--pairs-large", type=int, default=3, help="pairs from 10 M rows on")
    parser.add_argument("--files", type=numbers, default=[1, 1_000, 10_000], metavar="N,N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    return parser.parse_args(arguments)


def measure(
    spark: SparkSession, options: argparse.Namespace, console: Console
) -> tuple[list[Comparison], list[Publish]]:
    """Measure in two sessions of one JVM, of which only one is attached."""
    stock, ours = spark, spark.newSession()
    handle = twophase.attach(ours)
    comparisons, publishes = [], []
    for rows in options.rows:
        for partitions in options.partitions:
            pairs = options.pairs_large if rows >= 10_000_000 else options.pairs
            with console.status(f"{rows:,} rows, {partitions or 'no'} partitions: {pairs} pairs"):
                comparisons.append(compare(stock, ours, rows, partitions, pairs))
    for files in options.files:
        with console.status(f"publishing {files:,} files"):
            publishes.append(publish(ours, handle.catalog("hive"), files, 3 if files < 10_000 else 1))
    return comparisons, publishes


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="twophase-bench-") as directory, session(Path(directory)) as spark:
        comparisons, publishes = measure(spark, options, console)
    report(comparisons, publishes, console)
    if options.json:
        document = {"ctas": [asdict(row) for row in comparisons], "publish": [asdict(row) for row in publishes]}
        options.json.write_text(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()

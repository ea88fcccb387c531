"""The lakehouse catalog against plain Parquet and PyIceberg: writes, reads of an evolved table, and commits.

All sides write or read the same rows in one run, in rounds that change who goes first; the number to read is the median
of each round's ratio. ``python -m benchmarks.lakehouse --rows 1000000,10000000``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from rich.console import Console
from rich.table import Table

import twophase
from twophase.catalog import Environment
from twophase.catalogs.lakehouse import LakehouseCatalog, manifests
from twophase.model import ObjectPath, Purpose, TableDefinition
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twophase.catalogs.lakehouse.participant import LakehouseParticipant

COLUMNS = ("id", "id % 1000 AS k", "CAST(id AS STRING) AS name", "id / 7 AS x", "timestamp_seconds(id) AS at")
EVOLUTION = (
    "RENAME COLUMN k TO bucket",
    "ADD COLUMN note STRING",
    "ALTER COLUMN n TYPE BIGINT",
    "DROP COLUMN x",
    "ADD COLUMN x STRING",
)
SMALL = pa.schema([("id", pa.int64()), ("name", pa.string())])


@contextlib.contextmanager
def session(directory: Path) -> Iterator[SparkSession]:
    """A session with the catalog."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.catalog.lake": "twophase.lakehouse",
    }
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]").appName("lakehouse")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    twophase.attach(spark).catalog("lake").create_database("bench")
    try:
        yield spark
    finally:
        spark.stop()


def compare(sides: Mapping[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of each side, and median ratios of the first side to each other one."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for run in sides.values():
        run()  # Warm.
    for number in range(rounds):
        names = list(sides)[number % len(sides) :] + list(sides)[: number % len(sides)]
        for name in names:
            begun = time.perf_counter()
            sides[name]()
            taken[name].append(time.perf_counter() - begun)
    first = next(iter(sides))
    seconds = {name: statistics.median(values) for name, values in taken.items()}
    ratios = {
        name: statistics.median(a / b for a, b in zip(taken[first], taken[name], strict=True))
        for name in list(sides)[1:]
    }
    return seconds, ratios


# -- writes and reads --------------------------------------------------------------------------------------------------


def writes(spark: SparkSession, directory: Path, rows: int, rounds: int) -> Iterator[tuple[str, Any]]:
    """CTAS and append against plain Parquet; an append against PyIceberg's own of an Arrow table."""
    frame = spark.range(rows).selectExpr(*COLUMNS)
    plain = directory / "plain"

    def parquet() -> None:
        frame.write.mode("overwrite").parquet(str(plain))

    yield (
        f"CTAS of {rows:,} rows / plain Parquet",
        compare({"twophase": lambda: frame.writeTo("lake.bench.t").createOrReplace(), "parquet": parquet}, rounds),
    )
    table = frame.toArrow()
    iceberg = SqlCatalog("plain", uri=f"sqlite:///{directory}/plain.db", warehouse=f"file://{directory}/iceberg")
    iceberg.create_namespace_if_not_exists("bench")
    target = iceberg.create_table_if_not_exists("bench.t", schema=table.schema)
    sides = {"twophase": lambda: frame.writeTo("lake.bench.t").append(), "pyiceberg": lambda: target.append(table)}
    yield f"append of {rows:,} rows / PyIceberg's own", compare(sides, rounds)
    iceberg.close()


def reads(spark: SparkSession, directory: Path, rows: int, rounds: int) -> Iterator[tuple[str, Any]]:
    """A table that was evolved five times against plain files of the same rows."""
    spark.sql("DROP TABLE IF EXISTS lake.bench.evolved PURGE")
    source = spark.range(rows).selectExpr(*COLUMNS, "CAST(id % 100 AS INT) AS n")
    source.writeTo("lake.bench.evolved").create()
    for change in EVOLUTION:
        spark.sql(f"ALTER TABLE lake.bench.evolved {change}")
    same = str(directory / "same")
    spark.table("lake.bench.evolved").write.mode("overwrite").parquet(same)

    def scan(frame: DataFrame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    sides = {
        "twophase": lambda: scan(spark.table("lake.bench.evolved")),
        "parquet": lambda: scan(spark.read.parquet(same)),
    }
    yield f"read of {rows:,} rows after five evolutions / plain Parquet", compare(sides, rounds)
    filtered = {
        "twophase": lambda: scan(spark.table("lake.bench.evolved").where("id < 1000")),
        "parquet": lambda: scan(spark.read.parquet(same).where("id < 1000")),
    }
    yield "the same, of a thousand rows by a condition", compare(filtered, rounds)


# -- commits -----------------------------------------------------------------------------------------------------------


def _fabricated(member: LakehouseParticipant, count: int) -> list[DataFile]:
    """Data files that nobody reads: what a commit does with them does not depend on their rows."""
    return [
        DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{member.place.data}/{uuid.uuid4()}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1000,
            file_size_in_bytes=100_000,
            column_sizes={1: 50_000, 2: 50_000},
            value_counts={1: 1000, 2: 1000},
            null_value_counts={1: 0, 2: 0},
            nan_value_counts={},
            lower_bounds={1: number.to_bytes(8, "little"), 2: b"a"},
            upper_bounds={1: (number + 1000).to_bytes(8, "little"), 2: b"z"},
            split_offsets=[4],
            spec_id=0,
        )
        for number in range(count)
    ]


def file_commits(directory: Path, counts: Sequence[int], rounds: int) -> Iterator[tuple[str, float]]:
    """Seconds from the last file written to the publish, by the number of new files."""
    catalog = LakehouseCatalog("lake", {"warehouse": str(directory / "files")}, Environment())
    catalog.create_database("bench")
    path = ObjectPath.of("bench", "t")
    catalog.create_table(path, TableDefinition(SMALL))
    for count in counts:
        taken = []
        for _ in range(rounds):
            member: Any = catalog.two_phase_create_table(path, TableDefinition(SMALL), purpose=Purpose.INSERT_INTO)
            member.begin()
            files = _fabricated(member, count)
            begun = time.perf_counter()
            member.document["added"] = [manifests.to_document(m) for m in member.work().add(0, files)]
            member.prepare()
            member.commit()
            taken.append(time.perf_counter() - begun)
        yield f"commit of {count:,} files", statistics.median(taken)
    catalog.close()


def table_commits(directory: Path, counts: Sequence[int], rounds: int) -> Iterator[tuple[str, float]]:
    """Seconds of a transaction's commit, by the number of its tables."""
    catalog = LakehouseCatalog("lake", {"warehouse": str(directory / "tables")}, Environment())
    catalog.create_database("bench")
    coordinator = Coordinator(Timeline(f"sqlite:///{directory}/timeline.db"), lambda _: catalog, name="bench")
    rows = pa.table({"id": [1], "name": ["x"]}, schema=SMALL)
    paths = [ObjectPath.of("bench", f"t{number}") for number in range(max(counts))]
    for path in paths:
        catalog.create_table(path, TableDefinition(SMALL))
    for count in counts:
        taken = []
        for _ in range(rounds):
            transaction = coordinator.begin()
            for path in paths[:count]:
                member = transaction.stage(catalog, path, TableDefinition(SMALL), purpose=Purpose.INSERT_INTO)
                assert member is not None
                transaction.begin_participant(member)
                transaction.write(member, rows)
                transaction.prepare_participant(member)
            begun = time.perf_counter()
            transaction.commit()
            taken.append(time.perf_counter() - begun)
        yield f"commit of {count} tables in one transaction", statistics.median(taken)
    coordinator.close()
    catalog.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", default="1000000", help="sizes, with commas between")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commits-only", action="store_true")
    given = parser.parse_args(arguments)
    shown = Table("what", "twophase, s", "other, s", "ratio")
    with tempfile.TemporaryDirectory(prefix="lakehouse-") as made:
        directory = Path(made)
        commits = [
            *file_commits(directory, (10, 1000, 10_000), given.rounds),
            *table_commits(directory, (1, 10, 100), given.rounds),
        ]
        for what, seconds in commits:
            base = commits[0][1] if "files" in what else commits[3][1]
            shown.add_row(what, f"{seconds:.3f}", f"{base:.3f}", f"{seconds / base:.1f}")
        if not given.commits_only:
            with session(directory) as spark:
                for size in map(int, given.rows.split(",")):
                    for what, (taken, ratios) in (
                        *writes(spark, directory, size, given.rounds),
                        *reads(spark, directory, size, given.rounds),
                    ):
                        (other,) = ratios
                        shown.add_row(what, f"{taken['twophase']:.2f}", f"{taken[other]:.2f}", f"{ratios[other]:.2f}")
                    shutil.rmtree(directory / "plain", ignore_errors=True)
    Console(width=120).print(shown)


if __name__ == "__main__":
    main()

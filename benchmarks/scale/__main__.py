"""What a statement costs beside tables, partitions, files, transactions, text and leftovers that it does not touch.

``python -m benchmarks.scale`` measures all of it in half an hour; ``--only tables,statements`` some, ``--small`` sizes
for a first look, ``--smallest`` one of them each. Pairs with stock Spark run in one JVM over an embedded metastore, in
turn.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

import twophase
from benchmarks.hive_ctas import session
from benchmarks.scale import measure, session_tables, stores, timeline
from benchmarks.scale.measure import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = {
    "tables": [10, 2000],
    "partitions": [10, 3000, 20_000],
    "appends": [1, 100, 1000],
    "files": [10, 10_000],
    "statements": [1000, 1_000_000, 10_000_000],
    "clean": [10, 1000],
    "postgresql": [10, 10_000],
    "snapshots": [10, 1000],
    "timeline": [0, 1_000_000],
}
SMALL = {
    "tables": [10, 100],
    "partitions": [10, 300],
    "appends": [1, 50],
    "files": [10, 300],
    "statements": [1000, 1_000_000],
    "clean": [10, 40],
    "postgresql": [10, 300],
    "snapshots": [10, 40],
    "timeline": [0, 20_000],
}


def rows(directory: Path, sizes: dict[str, list[int]], wanted: Sequence[str], rounds: int) -> Iterator[Row]:
    if "timeline" in wanted:
        yield from timeline.beside_transactions(directory, sizes["timeline"], rounds)
    if not set(wanted) - {"timeline"}:
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with session(directory) as spark:
        yield from _of_session_tables(spark, sizes, wanted, rounds)
        if "snapshots" in wanted:
            yield from _of_a_lake(spark, directory, sizes["snapshots"], rounds)
        if "postgresql" in wanted:
            yield from _of_postgresql(spark, sizes["postgresql"], rounds)


def _of_session_tables(
    spark: SparkSession, sizes: dict[str, list[int]], wanted: Sequence[str], rounds: int
) -> Iterator[Row]:
    ours = spark.newSession()
    handle = twophase.attach(ours)
    sides = session_tables.Sides(spark, ours, rounds)
    kinds = {
        "statements": session_tables.statements,
        "appends": session_tables.appends,
        "tables": session_tables.beside_tables,
        "files": session_tables.beside_files,
        "partitions": session_tables.beside_partitions,
    }
    for name, kind in kinds.items():
        if name in wanted:
            yield from kind(sides, sizes[name])
    if "clean" in wanted:
        yield from session_tables.cleaning(sides, handle, sizes["clean"])
    handle.detach()


def _of_a_lake(spark: SparkSession, directory: Path, counts: list[int], rounds: int) -> Iterator[Row]:
    attached = spark.newSession()
    attached.conf.set("spark.sql.catalog.lake", "twophase.lakehouse")
    attached.conf.set("spark.sql.catalog.lake.warehouse", str(directory / "lake"))
    handle = twophase.attach(attached)
    yield from stores.beside_snapshots(attached, handle, counts, rounds)
    handle.detach()


def _of_postgresql(spark: SparkSession, counts: list[int], rounds: int) -> Iterator[Row]:
    from tests import servers

    with servers.postgresql() as server:
        attached = spark.newSession()
        attached.conf.set("spark.sql.catalog.pg", "twophase.jdbc")
        attached.conf.set("spark.sql.catalog.pg.url", server.url)
        handle = twophase.attach(attached)
        yield from stores.beside_relations(attached, server.url, counts, rounds)
        handle.detach()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--only", default=",".join(SIZES), metavar="KIND,KIND", help=f"some of {', '.join(SIZES)}")
    parser.add_argument("--small", action="store_true", help="small sizes")
    parser.add_argument("--smallest", action="store_true", help="the smallest size of each kind only")
    parser.add_argument("--rounds", type=int, default=7, help="pairs for each row")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args(arguments)
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(SIZES):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; known: {', '.join(SIZES)}")
    sizes = SMALL if options.small or options.smallest else SIZES
    if options.smallest:
        sizes = {kind: every[:1] for kind, every in sizes.items()}
    console = Console(width=140)
    with tempfile.TemporaryDirectory(prefix="twophase-scale-") as directory:
        measured = rows(Path(directory), sizes, wanted, options.rounds)
        found = list(measure.shown(measured, console))
    console.print(measure.table(found))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in found], indent=2))


if __name__ == "__main__":
    main()

"""What ``ALTER TABLE`` of a session table costs by its files and fields, and what a query of an evolved table costs.

The files of the large tables are links to few: an ``ALTER TABLE`` that changes only the metastore reads none of them.
Queries of an evolved and of an unevolved table of the same rows alternate, and are measured by the processor time of
Spark's JVM, so that a busy machine favours neither; the number to read is the median of ratios.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

import twophase
from benchmarks.hive_ctas import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = (10, 1_000, 100_000)
#: A file system allows some tens of thousands of links to one file.
_LINKS = 20_000
_IDS = "TBLPROPERTIES ('twophase.field_ids' = 'true')"
#: Each change, and the one that takes it back, as far as there is one.
CHANGES = (
    "RENAME COLUMN a TO b{n}",
    "ADD COLUMN c{n} INT FIRST",
    "DROP COLUMN c{n}",
    "ALTER COLUMN k COMMENT 'the {n}th'",
    "RENAME COLUMN b{n} TO a",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", default=",".join(map(str, FILES)), help="files of the altered tables")
    parser.add_argument("--fields", default="2,10000", help="fields of the altered tables")
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of the tables that are read")
    parser.add_argument("--rounds", type=int, default=5, help="of each change and query")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="twophase-schema-"))
    console = Console()
    try:
        with session(directory) as spark:
            handle = twophase.attach(spark)
            files, fields = ([int(size) for size in sizes.split(",")] for sizes in (options.files, options.fields))
            console.print(altering(spark, {f"{size:,} files": (size, 2) for size in files}, options.rounds))
            console.print(altering(spark, {f"{size:,} fields": (1, size) for size in fields}, options.rounds))
            console.print(reading(spark, options.rows, options.rounds))
            handle.detach()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def altering(spark: SparkSession, sizes: Mapping[str, tuple[int, int]], rounds: int) -> Table:
    """Measure each change of tables of so many files and fields."""
    times = {title: dict(_altered(spark, *size, rounds)) for title, size in sizes.items()}
    shown = Table("ALTER TABLE t ...", *sizes, "largest / smallest", title="seconds")
    for change in CHANGES:
        cells = [found[change] for found in times.values()]
        shown.add_row(change, *(f"{cell:.3f}" for cell in cells), f"{cells[-1] / cells[0]:.2f}")
    return shown


def _altered(spark: SparkSession, files: int, fields: int, rounds: int) -> Iterator[tuple[str, float]]:
    spark.sql(f"CREATE OR REPLACE TABLE t USING parquet {_IDS} AS SELECT 1 AS a, 2 AS k{_more(fields - 2)}")
    _multiply(spark, files)
    times: dict[str, list[float]] = {change: [] for change in CHANGES}
    for number in range(-1, rounds):  # The first one warms up and does not count.
        for change in CHANGES:
            start = time.perf_counter()
            spark.sql(f"ALTER TABLE t {change.format(n=number + 1)}")
            if number >= 0:
                times[change].append(time.perf_counter() - start)
    spark.sql("DROP TABLE t")
    for change, found in times.items():
        yield change, statistics.median(found)


def _more(fields: int) -> str:
    """Further columns of a hundred fields each: Spark takes minutes to write a row of thousands of columns."""
    struct = ", ".join(f"f{number}: INT" for number in range(99))
    return "".join(f", CAST(NULL AS STRUCT<{struct}>) AS s{number}" for number in range(fields // 100))


def _multiply(spark: SparkSession, files: int) -> None:
    """Give a table of one file so many."""
    (name,) = spark.table("t").inputFiles()
    source = Path(name.removeprefix("file://"))
    for number in range(1, files):
        new = source.with_name(f"part-{number:06}-linked.parquet")
        if number % _LINKS == 0:
            source = Path(shutil.copyfile(source, new))
        else:
            os.link(source, new)


# -- reading -----------------------------------------------------------------------------------------------------------

#: What both tables answer alike: a renamed column, one of a wider type, and a filter on each.
QUERIES = {
    "a sum over a filter": "SELECT sum(b), count(w) FROM {t} WHERE b % 10 > 3 AND w < 900",
    "a filter that skips most": "SELECT count(*) FROM {t} WHERE b BETWEEN 1000 AND 2000",
    "a group": "SELECT w, max(b), min(s.y) FROM {t} GROUP BY w",
}


#: Runs of a query for one figure: the clock of processor time ticks a hundred times a second.
_REPEATED = 3


def reading(spark: SparkSession, rows: int, rounds: int) -> Table:
    """Compare queries of an evolved table with those of one that was written as it is."""
    old = f"SELECT id AS a, CAST(id % 1000 AS INT) AS w, uuid() AS gone, named_struct('x', id) AS s FROM range({rows})"
    spark.sql(f"CREATE OR REPLACE TABLE evolved USING parquet {_IDS} AS {old}")
    new = "SELECT a AS b, CAST(w AS BIGINT) AS w, named_struct('y', s.x) AS s, CAST(NULL AS INT) AS n FROM evolved"
    spark.sql(f"CREATE OR REPLACE TABLE unevolved USING parquet AS {new}")
    for change in ("RENAME COLUMN a TO b", "ALTER COLUMN w TYPE BIGINT", "DROP COLUMN gone", "RENAME COLUMN s.x TO y"):
        spark.sql(f"ALTER TABLE evolved {change}")
    spark.sql("ALTER TABLE evolved ADD COLUMN n INT")
    shown = Table("query", "unevolved", "evolved", "ratio", title=f"processor seconds, {rows:,} rows")
    for title, query in QUERIES.items():
        times: dict[str, list[float]] = {"unevolved": [], "evolved": []}
        for number in range(-1, rounds):
            for table in times if number % 2 else reversed(times):
                start = _processor_seconds(spark)
                for _ in range(_REPEATED):
                    spark.sql(query.format(t=table)).collect()
                if number >= 0:
                    times[table].append((_processor_seconds(spark) - start) / _REPEATED)
        ratios = [new / old for old, new in zip(times["unevolved"], times["evolved"], strict=True)]
        medians = [f"{statistics.median(times[table]):.3f}" for table in times]
        shown.add_row(title, *medians, f"{statistics.median(ratios):.2f}")
    return shown


def _processor_seconds(spark: SparkSession) -> float:
    """The processor time of Spark's JVM so far, in all of its threads."""
    gateway: Any = spark.sparkContext._gateway
    used = Path(f"/proc/{gateway.proc.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()

"""What each kind of statement costs with ``attach``, beside stock Spark, and where its time goes.

``python -m benchmarks.routing`` measures all of them in some minutes; ``--only select,insert`` some. Pairs run in one
JVM over an embedded metastore, in turn; what one statement of each kind does is counted afterwards. ``--fsync``
measures what the wait for the disk costs: beside ``attach`` with ``spark.twophase.fsync=false`` instead of stock Spark.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

import twophase
from benchmarks.hive_ctas import session
from benchmarks.routing.counting import counted
from benchmarks.scale.measure import Row, paired

if TYPE_CHECKING:
    from pyspark.sql import DataFrameWriter, SparkSession

#: A megabyte in one literal.
_LONG = f"length('{'x' * 1_000_000}')"
_SCRIPT = f"BEGIN {'SELECT 1; ' * 99} INSERT INTO {{side}}.t SELECT 1; END"

#: Key -> what it is called, and its text; ``{side}`` is the database, ``{n}`` the number of the round.
STATEMENTS: Mapping[str, tuple[str, str]] = {
    "select": ("SELECT 1", "SELECT 1"),
    "insert": ("INSERT INTO, one row", "INSERT INTO {side}.t SELECT 1"),
    "overwrite": ("INSERT OVERWRITE, one row", "INSERT OVERWRITE {side}.o SELECT 1"),
    "partition": ("INSERT INTO one partition", "INSERT INTO {side}.p PARTITION (k = 5) SELECT 1"),
    "block": ("ten INSERT INTO, one block", "INSERT INTO {side}.b SELECT 1"),
    "long": ("INSERT INTO, text of 1 MB", f"INSERT INTO {{side}}.t SELECT {_LONG}"),
    "longselect": ("SELECT, text of 1 MB", f"SELECT {_LONG}"),
    "script": ("script: 99 SELECT, 1 INSERT", _SCRIPT),
    "immediate": ("EXECUTE IMMEDIATE INSERT", "EXECUTE IMMEDIATE 'INSERT INTO {side}.t SELECT 1'"),
    "ctas": ("CTAS, one row", "CREATE TABLE {side}.c{n} USING parquet AS SELECT 1 AS a"),
    "files": (
        "CTAS, 200 files",
        "CREATE TABLE {side}.f{n} USING parquet OPTIONS (maxRecordsPerFile 1) AS SELECT id FROM range(200)",
    ),
}
#: Those of a ``DataFrameWriter``: key -> what it is called, and what writes a row.
WRITERS: Mapping[str, tuple[str, Callable[[DataFrameWriter, str], None]]] = {
    "into": ("insertInto, one row", lambda writer, side: writer.insertInto(f"{side}.t")),
    "append": ("saveAsTable, append", lambda writer, side: writer.mode("append").saveAsTable(f"{side}.t")),
    "replace": ("saveAsTable, overwrite", lambda writer, side: writer.mode("overwrite").saveAsTable(f"{side}.r")),
}
#: Key -> what it is called.
KINDS = {key: title for key, (title, _) in (*STATEMENTS.items(), *WRITERS.items())}
_TEN = 10


@dataclass(frozen=True)
class Measured:
    """One kind of statement.

    Attributes
    ----------
    row : Row
        The pairs.
    counts : dict of str to (dict of str to object)
        What one statement did, with ``attach`` and without.
    """

    row: Row
    counts: dict[str, dict[str, Any]]


def runs(key: str, spark: SparkSession, side: str) -> Callable[[int], object]:
    """What runs one statement, by the number of its round."""
    if key in WRITERS:
        write, rows = WRITERS[key][1], spark.sql("SELECT 1 AS a")
        return lambda _: write(rows.write, side)
    text = STATEMENTS[key][1]
    if key != "block":
        return lambda number: spark.sql(text.format(side=side, n=number + 2)).collect()

    def block(_: int) -> None:
        around: AbstractContextManager[Any] = twophase.transaction(spark) if side == "ours" else nullcontext()
        with around:
            for _ in range(_TEN):
                spark.sql(text.format(side=side))

    return block


def measured(
    spark: SparkSession, wanted: Sequence[str], rounds: int, console: Console, *, fsync: bool
) -> Iterator[Measured]:
    ours = spark.newSession()
    handles = [twophase.attach(ours)]
    if fsync:
        spark.conf.set("spark.twophase.fsync", "false")
        handles.append(twophase.attach(spark))
    sides = {"ours": ours, "stock": spark}
    for side, used in sides.items():
        used.conf.set("spark.sql.scripting.enabled", "true")
        used.sql(f"CREATE DATABASE {side}")
        for table in ("t", "o", "b"):
            used.sql(f"CREATE TABLE {side}.{table} (a INT) USING parquet")
        used.sql(f"CREATE TABLE {side}.p (a INT, k INT) USING parquet PARTITIONED BY (k)")
    for key in wanted:
        one = {side: runs(key, used, side) for side, used in sides.items()}
        row = paired(KINDS[key], "", one["ours"], one["stock"], rounds, warm=2)
        counts = {side: counted(used, partial(one[side], rounds)).told() for side, used in sides.items()}
        console.print(f"{row.what}: ratio {row.ratio:.2f}")
        yield Measured(row, counts)
    for handle in handles:
        handle.detach()


def speeds(found: Sequence[Measured], other: str) -> Table:
    table = Table(title=f"With attach, beside {other}, medians")
    table.add_column("statement")
    for column in ("twophase, ms", f"{other}, ms", "ratio"):
        table.add_column(column, justify="right")
    for row in (item.row for item in found):
        assert row.stock is not None
        table.add_row(row.what, f"{row.ours * 1000:.1f}", f"{row.stock * 1000:.1f}", f"{row.ratio:.2f}")
    return table


def parts(found: Sequence[Measured], other: str) -> Table:
    table = Table(title="One statement: crossings of Py4J, calls and commits, and its time by part")
    table.add_column("statement")
    for column in ("", *found[0].counts["ours"]):
        table.add_column(column, justify="right")
    for item in found:
        for side, counts in item.counts.items():
            what, name = (item.row.what, side) if side == "ours" else ("", other)
            table.add_row(what, name, *map(str, counts.values()))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing", description=__doc__)
    parser.add_argument("--only", default=",".join(KINDS), metavar="KIND,KIND", help=", ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=20, help="pairs for each row")
    parser.add_argument("--fsync", action="store_true", help="beside fsync=false instead of stock Spark")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args(arguments)
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    console = Console(width=170)
    with tempfile.TemporaryDirectory(prefix="twophase-routing-") as directory, session(Path(directory)) as spark:
        found = list(measured(spark, wanted, options.rounds, console, fsync=options.fsync))
    other = "fsync=false" if options.fsync else "stock"
    console.print(speeds(found, other))
    console.print(parts(found, other))
    if options.json:
        options.json.write_text(json.dumps([asdict(item) for item in found], indent=2))


if __name__ == "__main__":
    main()

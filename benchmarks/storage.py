"""What each kind of write asks of an object store, beside stock Spark with its own committer.

``python -m benchmarks.storage`` counts the requests of 10 and of 1,000 files in some minutes; ``--files 10,100`` of
others. The store is the tests' own: it makes the requests that S3A makes for each operation of Hadoop's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

import twophase
from tests.hive.world import World
from tests.storage import counting
from twophase.model import Purpose

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Act = Callable[["Side"], None]
#: The requests of an object store that are counted.
VERBS = ("HEAD", "LIST", "GET", "PUT", "COPY", "DELETE")
PARTITIONS = 2


@dataclass(frozen=True)
class Counted:
    """The requests of one kind of write.

    Attributes
    ----------
    kind : str
    files : int
        How many it writes or removes.
    ours, stock : dict of str to int
        Requests by their verb.
    """

    kind: str
    files: int
    ours: dict[str, int]
    stock: dict[str, int]

    @property
    def more(self) -> int:
        """How many more requests than stock Spark are made."""
        return sum(self.ours.values()) - sum(self.stock.values())


class Side:
    """One of the two sides, in a database of its own.

    Parameters
    ----------
    spark : SparkSession
    world : World
        For what no statement does: a death, recovery and ``clean``.
    database : str
    files : int
        How many each statement writes.
    """

    _staged: Any = None

    def __init__(self, spark: SparkSession, world: World, database: str, files: int) -> None:
        self._spark, self._world, self._database = spark, world, database
        self._files = files
        self._rows = f"SELECT id FROM range(0, {files}, 1, 1)"

    def _by_partitions(self, first: int = 0) -> str:
        """Rows of a few partitions: each task writes to all of them, a file of each row."""
        return f"SELECT id, CAST({first} + id % {PARTITIONS} AS INT) AS k FROM range(0, {self._files}, 1, 1)"

    def nothing(self) -> None:
        """What one side does not need."""

    # -- statements ----------------------------------------------------------------------------------------------

    def create(self) -> None:
        self._spark.sql(f"CREATE TABLE {self._database}.t USING parquet AS {self._rows}")

    def create_partitions(self) -> None:
        self._spark.sql(f"CREATE TABLE {self._database}.t (id BIGINT, k INT) USING parquet PARTITIONED BY (k)")
        self.overwrite_partition()

    def create_by_partitions(self) -> None:
        self._spark.sql(f"CREATE TABLE {self._database}.t USING parquet PARTITIONED BY (k) AS {self._by_partitions()}")

    @property
    def _each_in_its_partition(self) -> str:
        """Rows of as many partitions as files."""
        return f"SELECT id, CAST(id AS INT) AS k FROM range(0, {self._files}, 1, 1)"

    def create_many_partitions(self) -> None:
        rows = self._each_in_its_partition
        self._spark.sql(f"CREATE TABLE {self._database}.t USING parquet PARTITIONED BY (k) AS {rows}")

    def overwrite_all_partitions(self) -> None:
        self._spark.sql(f"INSERT OVERWRITE {self._database}.t {self._each_in_its_partition}")

    def append_to_partitions(self) -> None:
        self._spark.sql(f"INSERT INTO {self._database}.t {self._by_partitions()}")

    def append_partitions(self) -> None:
        self._spark.sql(f"INSERT INTO {self._database}.t {self._by_partitions(first=PARTITIONS)}")

    def overwrite_dynamically(self) -> None:
        self._spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
        self._spark.sql(f"INSERT OVERWRITE {self._database}.t {self._by_partitions()}")
        self._spark.conf.unset("spark.sql.sources.partitionOverwriteMode")

    def replace(self) -> None:
        rows = self._spark.sql(self._rows)
        rows.write.format("parquet").mode("overwrite").saveAsTable(f"{self._database}.t")

    def append(self) -> None:
        self._spark.sql(f"INSERT INTO {self._database}.t {self._rows}")

    def overwrite(self) -> None:
        self._spark.sql(f"INSERT OVERWRITE {self._database}.t {self._rows}")

    def overwrite_partition(self) -> None:
        self._spark.sql(f"INSERT OVERWRITE {self._database}.t PARTITION (k = 5) {self._rows}")

    def drop(self) -> None:
        self._spark.sql(f"DROP TABLE {self._database}.t")

    # -- what follows a death, and what a statement leaves to others -----------------------------------------------

    def die(self) -> None:
        """Stage a replace, and forget the process that did so."""
        self.create()
        staged = self._world.stage("t", self._world.sql(self._rows), _REPLACE, database=self._database)
        self._staged = self._world.reborn(staged)

    def publish(self) -> None:
        self._staged.commit()

    def complete(self) -> None:
        self._staged.commit()
        self._staged.finish()

    def roll_back(self) -> None:
        self._staged.abort()

    def leave_a_version(self) -> None:
        self.create()
        self.overwrite()

    def clean(self) -> None:
        assert self._world.clean() == ["version"]


_REPLACE = Purpose.REPLACE_TABLE_AS
#: Kind -> what both sides, or ours alone, do before; what twophase does; what stock Spark does, if anything.
KINDS: dict[str, tuple[_Act, _Act, _Act, _Act]] = {
    "CREATE TABLE AS SELECT": (Side.nothing, Side.nothing, Side.create, Side.create),
    "saveAsTable, overwrite": (Side.create, Side.create, Side.replace, Side.replace),
    "INSERT OVERWRITE": (Side.create, Side.create, Side.overwrite, Side.overwrite),
    "INSERT OVERWRITE PARTITION": (
        Side.create_partitions,
        Side.create_partitions,
        Side.overwrite_partition,
        Side.overwrite_partition,
    ),
    "INSERT INTO": (Side.create, Side.create, Side.append, Side.append),
    "CREATE TABLE AS SELECT, partitioned": (
        Side.nothing,
        Side.nothing,
        Side.create_by_partitions,
        Side.create_by_partitions,
    ),
    "CREATE TABLE AS SELECT, many partitions": (
        Side.nothing,
        Side.nothing,
        Side.create_many_partitions,
        Side.create_many_partitions,
    ),
    "INSERT OVERWRITE, dynamic": (
        Side.create_by_partitions,
        Side.create_by_partitions,
        Side.overwrite_dynamically,
        Side.overwrite_dynamically,
    ),
    "INSERT OVERWRITE, many partitions": (
        Side.create_many_partitions,
        Side.create_many_partitions,
        Side.overwrite_all_partitions,
        Side.overwrite_all_partitions,
    ),
    "INSERT INTO partitions": (
        Side.create_by_partitions,
        Side.create_by_partitions,
        Side.append_to_partitions,
        Side.append_to_partitions,
    ),
    "INSERT INTO new partitions": (
        Side.create_by_partitions,
        Side.create_by_partitions,
        Side.append_partitions,
        Side.append_partitions,
    ),
    "publish by pointer": (Side.die, Side.nothing, Side.publish, Side.nothing),
    "recovery, forward": (Side.die, Side.nothing, Side.complete, Side.nothing),
    "recovery, back, beside DROP": (Side.die, Side.create, Side.roll_back, Side.drop),
    "clean, beside DROP": (Side.leave_a_version, Side.create, Side.clean, Side.drop),
}


@contextmanager
def sessions(root: Path) -> Iterator[tuple[SparkSession, SparkSession, World]]:
    """A session that is attached, a stock one, and a catalog over both, with the object store."""
    stock = counting.session(root, {"spark.sql.files.maxRecordsPerFile": "1"})
    ours = stock.newSession()
    handle = twophase.attach(ours)
    try:
        yield ours, stock, counting.world_of(stock, str(root / "warehouse"))
    finally:
        handle.detach()
        stock.stop()


def counted(ours: SparkSession, stock: SparkSession, world: World, kind: str, files: int) -> Counted:
    """Count the requests of one kind of write, on both sides."""
    before_ours, before_stock, run_ours, run_stock = KINDS[kind]
    found = {}
    for name, spark, before, run in (("ours", ours, before_ours, run_ours), ("stock", stock, before_stock, run_stock)):
        spark.sql(f"CREATE DATABASE {name} LOCATION 'counted://bucket/{name}'")
        side = Side(spark, world, name, files)
        before(side)
        counting.requests()
        run(side)
        requests = counting.requests()
        found[name] = {verb: requests[verb] for verb in VERBS}
        spark.sql(f"DROP DATABASE {name} CASCADE")
        world.catalog.store.files.remove_tree(f"counted://bucket/{name}")
    return Counted(kind, files, found["ours"], found["stock"])


def shown(found: Sequence[Counted]) -> Table:
    table = Table(title="Requests to an object store")
    table.add_column("kind")
    table.add_column("files", justify="right")
    table.add_column("")
    for column in (*VERBS, "all", "more than stock"):
        table.add_column(column, justify="right")
    for row in found:
        for side, requests in (("twophase", row.ours), ("stock", row.stock)):
            is_ours = side == "twophase"
            table.add_row(
                row.kind if is_ours else "",
                str(row.files) if is_ours else "",
                side,
                *(str(requests[verb]) for verb in VERBS),
                str(sum(requests.values())),
                str(row.more) if is_ours else "",
            )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage", description=__doc__)
    parser.add_argument("--files", default="10,1000", metavar="N,N", help="files of each write")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args(arguments)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    numbers = [int(number) for number in options.files.split(",")]
    with tempfile.TemporaryDirectory(prefix="twophase-storage-") as directory, sessions(Path(directory)) as place:
        found = [counted(*place, kind, files) for kind in KINDS for files in numbers]
    Console(width=max(130, Console().width)).print(shown(found))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in found], indent=2))


if __name__ == "__main__":
    main()

"""CTAS into PostgreSQL: twophase against Spark's JDBC writer, as it comes and tuned, and against ``psql \\copy``.

All write the same rows to the same server in one run, in rounds that change who goes first; the number to read is the
median of each round's ratio. The server is started for the run. The JDBC driver is needed for Spark's writer only:
Debian's package ``libpostgresql-jdbc-java`` has it in ``/usr/share/java/postgresql.jar``.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

import twophase
from tests import servers
from tests.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JAR = Path("/usr/share/java/postgresql.jar")
COLUMNS = (
    "id",
    "id % 1000 AS k",
    "CAST(id AS STRING) AS name",
    "id / 7 AS x",
    "timestamp_seconds(id) AS at",
)


@dataclass(frozen=True)
class Result:
    """One size.

    Attributes
    ----------
    rows : int
    seconds : dict
        Median of each side.
    ratios : dict
        Median over the rounds of twophase / other.
    """

    rows: int
    seconds: dict[str, float]
    ratios: dict[str, float]


@contextlib.contextmanager
def session(server: Server, jar: Path, directory: Path) -> Iterator[SparkSession]:
    """A session with the catalog and, for Spark's own writer, the driver."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.jars": str(jar),
        "spark.driver.extraClassPath": str(jar),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.catalog.pg": "twophase.jdbc",
        "spark.sql.catalog.pg.url": server.url,
    }
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]").appName("jdbc_ctas")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    twophase.attach(spark)
    try:
        yield spark
    finally:
        spark.stop()


class Sides:
    """The ways to write, by name; each makes its table anew."""

    def __init__(self, spark: SparkSession, server: Server, file: Path, rows: int) -> None:
        self._spark = spark
        self._server = server
        self._file = file
        self._frame = spark.range(rows).selectExpr(*COLUMNS)

    def all(self) -> dict[str, Callable[[], None]]:
        return {"twophase": self.ours, "default": self.default, "tuned": self.tuned, "copy": self.copy}

    def ours(self) -> None:
        self._frame.writeTo("pg.public.ours").createOrReplace()

    def default(self) -> None:
        self._jdbc(self._frame, "", {})

    def tuned(self) -> None:
        self._jdbc(self._frame, "?reWriteBatchedInserts=true", {"batchsize": "10000"})

    def _jdbc(self, frame: DataFrame, query: str, options: dict[str, str]) -> None:
        url = f"jdbc:postgresql://{self._server.host}:{self._server.port}/twophase{query}"
        facts = {
            "url": url,
            "dbtable": "public.stock",
            "user": "twophase",
            "driver": "org.postgresql.Driver",
            **options,
        }
        frame.write.format("jdbc").options(**facts).mode("overwrite").save()

    def copy(self) -> None:
        self.psql("DROP TABLE IF EXISTS public.copied")
        self.psql("CREATE TABLE public.copied AS SELECT * FROM public.ours WITH NO DATA")
        self.psql(f"\\copy public.copied FROM '{self._file}' (FORMAT csv)")

    def psql(self, command: str) -> None:
        address = ["-h", self._server.host, "-p", str(self._server.port), "-U", "twophase", "-d", "twophase"]
        subprocess.run(["psql", "-q", *address, "-c", command], check=True, capture_output=True)


def measure(sides: Sides, rows: int, rounds: int, file: Path) -> Result:
    """Run the rounds, after one that warms up and does not count."""
    times: dict[str, list[float]] = {name: [] for name in sides.all()}
    sides.ours()
    sides.psql(f"\\copy public.ours TO '{file}' (FORMAT csv)")
    for number in range(-1, rounds):
        ways = list(sides.all().items())
        for name, way in ways[number % 4 :] + ways[: number % 4]:
            gc.collect()
            start = time.perf_counter()
            way()
            if number >= 0:
                times[name].append(time.perf_counter() - start)
    ratios = {
        name: statistics.median(a / b for a, b in zip(times["twophase"], other, strict=True))
        for name, other in times.items()
        if name != "twophase"
    }
    return Result(rows, {name: statistics.median(taken) for name, taken in times.items()}, ratios)


def report(results: Sequence[Result], console: Console) -> None:
    table = Table(title="CTAS into PostgreSQL (medians)")
    for column in ("rows", "twophase, s", "default, s", "tuned, s", "\\copy, s", "/ default", "/ tuned", "/ \\copy"):
        table.add_column(column, justify="right")
    for one in results:
        seconds = [f"{one.seconds[name]:.2f}" for name in ("twophase", "default", "tuned", "copy")]
        ratios = [f"{one.ratios[name]:.2f}" for name in ("default", "tuned", "copy")]
        table.add_row(f"{one.rows:,}", *seconds, *ratios)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jdbc_ctas", description=__doc__)
    parser.add_argument("--rows", default="1000000,10000000", metavar="N,N")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jar", type=Path, default=JAR, help="PostgreSQL's JDBC driver, for Spark's own writer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args(arguments)
    if not options.jar.exists():
        parser.error(f"{options.jar} is missing. Run: apt-get install -y libpostgresql-jdbc-java")
    console, results = Console(), []
    with tempfile.TemporaryDirectory(prefix="twophase-bench-") as made, servers.postgresql() as server:
        directory = Path(made)
        with session(server, options.jar, directory) as spark:
            for rows in (int(text) for text in options.rows.replace("_", "").split(",")):
                sides = Sides(spark, server, directory / "rows.csv", rows)
                results.append(measure(sides, rows, options.rounds, directory / "rows.csv"))
    report(results, console)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2))


if __name__ == "__main__":
    main()

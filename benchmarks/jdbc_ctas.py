"""CTAS into a database: twophase against Spark's JDBC writer, as it comes and tuned, and the database's own loader.

All write the same rows to the same server in one run, in rounds that change who goes first; the number to read is the
median of each round's ratio. Servers are started for the run. The loader is ``psql \\copy`` or ``LOAD DATA LOCAL``, out
of a file that is there already; SQLite has none. Spark's writer needs the drivers in ``/usr/share/java`` (of Debian's
packages ``libpostgresql-jdbc-java``, ``libmariadb-java``, ``libxerial-sqlite-jdbc-java``); it writes to SQLite in one
partition, because there is one writer.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.csv as pcsv
from rich.console import Console
from rich.table import Table
from sqlalchemy.engine import make_url

import twophase
from tests import servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS = Path("/usr/share/java")
COLUMNS = (
    "id",
    "id % 1000 AS k",
    "CAST(id AS STRING) AS name",
    "id / 7 AS x",
    # MariaDB's TIMESTAMP begins with the second second of 1970.
    "timestamp_seconds(id + 1) AS at",
)
LOADED = Path("rows.csv")


@dataclass(frozen=True)
class Kind:
    """A kind of database, and how Spark's own writer and the database's loader reach it.

    Attributes
    ----------
    title : str
    jar : str
        Below :data:`JARS`.
    driver : str
    schema : str
    tuned : str
        What the URL of the tuned writer ends with.
    loader : str
        What the database's own loader is called; empty without one.
    """

    title: str
    jar: str
    driver: str
    schema: str
    tuned: str
    loader: str


KINDS = {
    "postgresql": Kind(
        "PostgreSQL",
        "postgresql.jar",
        "org.postgresql.Driver",
        "public",
        "?reWriteBatchedInserts=true",
        "\\copy",
    ),
    "mariadb": Kind(
        "MariaDB",
        "mariadb-java-client.jar",
        "org.mariadb.jdbc.Driver",
        "twophase",
        "?rewriteBatchedStatements=true",
        "LOAD DATA",
    ),
    "sqlite": Kind("SQLite", "sqlite-jdbc.jar", "org.sqlite.JDBC", "main", "", ""),
}


@dataclass(frozen=True)
class Result:
    """One size.

    Attributes
    ----------
    database : str
    rows : int
    seconds : dict
        Median of each side.
    ratios : dict
        Median over the rounds of twophase / other.
    """

    database: str
    rows: int
    seconds: dict[str, float]
    ratios: dict[str, float]


@contextlib.contextmanager
def session(urls: dict[str, str], directory: Path) -> Iterator[SparkSession]:
    """A session with a catalog for each database and, for Spark's own writer, the drivers."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    jars = [str(JARS / KINDS[name].jar) for name in urls]
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.sql.session.timeZone": "UTC",
        "spark.jars": ",".join(jars),
        "spark.driver.extraClassPath": ":".join(jars),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    for name, url in urls.items():
        settings |= {f"spark.sql.catalog.{name}": "twophase.jdbc", f"spark.sql.catalog.{name}.url": url}
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
    """The ways to write into one database, by name; each makes its table anew."""

    def __init__(self, spark: SparkSession, name: str, url: str, file: Path, rows: int) -> None:
        self._name = name
        self._kind = KINDS[name]
        self._url = make_url(url)
        self._file = file
        self._frame = spark.range(rows).selectExpr(*COLUMNS)
        if name == "sqlite":
            # Spark does not understand how this driver says that a table is missing.
            with contextlib.closing(sqlite3.connect(str(self._url.database))) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS stock (id)")

    def all(self) -> dict[str, Callable[[], None]]:
        ways = {"twophase": self.ours, "default": self.default, "tuned": self.tuned}
        return {**ways, "loader": self.load} if self._kind.loader else ways

    def ours(self) -> None:
        self._frame.writeTo(f"{self._name}.{self._kind.schema}.ours").createOrReplace()

    def default(self) -> None:
        self._jdbc("", {})

    def tuned(self) -> None:
        self._jdbc(self._kind.tuned, {"batchsize": "10000"})

    def _jdbc(self, query: str, options: dict[str, str]) -> None:
        frame, url, facts = self._frame, self._url, {"driver": self._kind.driver, "dbtable": "stock", **options}
        if self._name == "sqlite":
            frame, facts["url"] = frame.coalesce(1), f"jdbc:sqlite:{url.database}"
        else:
            # MariaDB's driver answers to this scheme, too, and Spark knows its dialect by it.
            scheme = "postgresql" if self._name == "postgresql" else "mysql"
            facts["url"] = f"jdbc:{scheme}://{url.host}:{url.port}/{url.database}{query}"
            facts |= {"user": str(url.username), "password": str(url.password or "")}
        frame.write.format("jdbc").options(**facts).mode("overwrite").save()

    def make_file(self) -> None:
        """The rows as the loader takes them."""
        rows = self._frame.withColumn("at", self._frame["at"].cast("timestamp_ntz")).toArrow()
        pcsv.write_csv(rows, self._file, pcsv.WriteOptions(include_header=False, quoting_style="none"))

    def load(self) -> None:
        schema = self._kind.schema
        self.run(f"DROP TABLE IF EXISTS {schema}.loaded")
        if self._name == "postgresql":
            self.run(f"CREATE TABLE {schema}.loaded AS SELECT * FROM {schema}.ours WITH NO DATA")
            self.run(f"\\copy {schema}.loaded FROM '{self._file}' (FORMAT csv)")
        else:
            self.run(f"CREATE TABLE {schema}.loaded AS SELECT * FROM {schema}.ours LIMIT 0")
            self.run(f"LOAD DATA LOCAL INFILE '{self._file}' INTO TABLE {schema}.loaded FIELDS TERMINATED BY ','")

    def run(self, command: str) -> None:
        """Run a command in the database's own client."""
        url = self._url
        if self._name == "postgresql":
            words = ["psql", "-q", "-h", url.host, "-p", str(url.port), "-U", url.username, "-d", url.database, "-c"]
        else:
            words = ["mariadb", "--local-infile", "-h", url.host, "-P", str(url.port), "-u", url.username]
            words += [f"-p{url.password}", url.database, "-e"]
        subprocess.run([*map(str, words), command], check=True, capture_output=True)


def measure(sides: Sides, database: str, rows: int, rounds: int) -> Result:
    """Run the rounds, after one that warms up and does not count."""
    times: dict[str, list[float]] = {name: [] for name in sides.all()}
    sides.make_file()
    sides.ours()
    for number in range(-1, rounds):
        ways = list(sides.all().items())
        turn = number % len(ways)
        for name, way in ways[turn:] + ways[:turn]:
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
    return Result(database, rows, {name: statistics.median(taken) for name, taken in times.items()}, ratios)


def report(results: Sequence[Result], console: Console) -> None:
    table = Table(title="CTAS into a database: medians, in seconds, and twophase divided by each")
    for column in ("database", "rows", "twophase", "default", "tuned", "loader", "/ default", "/ tuned", "/ loader"):
        table.add_column(column, justify="left" if column == "database" else "right")
    for one in results:
        seconds = [_shown(one.seconds, name) for name in ("twophase", "default", "tuned", "loader")]
        ratios = [_shown(one.ratios, name) for name in ("default", "tuned", "loader")]
        table.add_row(KINDS[one.database].title, f"{one.rows:,}", *seconds, *ratios)
    console.print(table)


def _shown(numbers: dict[str, float], name: str) -> str:
    return f"{numbers[name]:.2f}" if name in numbers else ""


@contextlib.contextmanager
def places(names: Sequence[str], directory: Path) -> Iterator[dict[str, str]]:
    """URLs of the databases, whose servers run as long as the block."""
    with contextlib.ExitStack() as stack:
        starts = {"postgresql": servers.postgresql, "mariadb": servers.mariadb}
        urls = {name: stack.enter_context(starts[name]()).url for name in names if name in starts}
        yield urls | ({"sqlite": f"sqlite:///{directory / 'bench.db'}"} if "sqlite" in names else {})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jdbc_ctas", description=__doc__)
    parser.add_argument("--rows", default="1000000,10000000", metavar="N,N")
    parser.add_argument("--databases", default="postgresql,mariadb,sqlite", metavar="NAME,NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args(arguments)
    names = options.databases.split(",")
    for name in names:
        if name not in KINDS:
            parser.error(f"There is no database {name!r}. Known: {', '.join(KINDS)}")
        if not (JARS / KINDS[name].jar).exists():
            packages = "libpostgresql-jdbc-java libmariadb-java libxerial-sqlite-jdbc-java"
            parser.error(f"{JARS / KINDS[name].jar} is missing. Run: apt-get install -y {packages}")
    results = []
    with (
        tempfile.TemporaryDirectory(prefix="twophase-bench-") as made,
        places(names, Path(made)) as urls,
        session(urls, Path(made)) as spark,
    ):
        for rows in (int(text) for text in options.rows.replace("_", "").split(",")):
            for name in names:
                sides = Sides(spark, name, urls[name], Path(made) / LOADED, rows)
                results.append(measure(sides, name, rows, options.rounds))
    report(results, Console(width=120))
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2))


if __name__ == "__main__":
    main()

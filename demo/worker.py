"""One side of the demo in a separate process: a driver that can be killed.

It prints one JSON document per line: ``scene`` at the start of each scene, ``tasks`` while tasks run, ``armed`` when it
may be killed, ``result`` at the end of a scene, and ``lakehouse`` for each step of the lakehouse part at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo import data, lakehouse
from demo.scenes import SCENES, SERVER_URL, Job, Scene, attempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Transaction = Callable[[], AbstractContextManager[object]]


def say(kind: str, **facts: Any) -> None:
    print(json.dumps({"kind": kind, **facts}), flush=True)


def stores(side: str, directory: Path) -> dict[str, str]:
    """The other catalogs: SQLite and a lakehouse with twophase; with stock Spark the bundled Derby."""
    if side == "stock":
        facts = {
            "": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
            ".url": f"jdbc:derby:{directory / 'shop'};create=true",
            ".driver": "org.apache.derby.jdbc.EmbeddedDriver",
        }
        return {f"spark.sql.catalog.shop{key}": value for key, value in facts.items()}
    catalogs = {"shop": f"sqlite:///{directory / 'shop.db'}", "server": os.environ.get(SERVER_URL)}
    found = {}
    for name, url in catalogs.items():
        if url:
            found |= {f"spark.sql.catalog.{name}": "twophase.jdbc", f"spark.sql.catalog.{name}.url": url}
    return found | lakehouse.SETTINGS


def session(side: str, directory: Path) -> SparkSession:
    """Create a session with its own embedded Hive metastore, which survives the process, and with SQL databases."""
    from pyspark.sql import SparkSession

    # Spark would use the first python3 in the PATH, in which twophase may not be installed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    metastore = f"jdbc:derby:;databaseName={directory / 'metastore_db'};create=true"
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": metastore,
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
        "spark.ui.showConsoleProgress": "false",
        **stores(side, directory),
    }
    builder = SparkSession.builder.master("local[2]").appName("flights")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.enableHiveSupport().getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def protect(spark: SparkSession) -> tuple[Transaction, list[str]]:
    """Run the two lines of twophase; return a function that begins a transaction, and the results of recovery."""
    import twophase

    handle = twophase.attach(spark)
    return lambda: twophase.transaction(spark), [row.state.name for row in handle.timeline.transactions()]


def run(spark: SparkSession, scene: Scene, transaction: Transaction) -> None:
    """Run one scene: create the initial state, look, run the job with its fault, look again, and retry."""
    for sql in scene.before:
        spark.sql(sql)
    before = look(spark, scene)
    if scene.fault == "killed":
        say("armed", before=before)
    error = attempt(lambda: scene.job(Job(spark, scene.fault != "none", transaction)))
    finish(spark, scene, transaction, before, error)


def finish(
    spark: SparkSession, scene: Scene, transaction: Transaction, before: dict[str, Any], error: str | None
) -> None:
    """Look at the tables after a job, and run it again without the fault."""
    after, stray = look(spark, scene), stray_files(spark, scene)
    retry = attempt(lambda: scene.job(Job(spark, False, transaction))) if error else None
    say(
        "result",
        before=before,
        error=error,
        after=after,
        stray=stray,
        retry=retry,
        end=look(spark, scene),
    )


def look(spark: SparkSession, scene: Scene) -> dict[str, Any]:
    """Count the rows of each table of the scene; None if the table is gone, a word if it cannot be read."""
    return {table: rows(spark, table) for table in scene.complete}


def rows(spark: SparkSession, table: str) -> int | str | None:
    spark.catalog.clearCache()
    if not spark.catalog.tableExists(table):
        return None
    spark.catalog.refreshTable(table)
    counted: list[int] = []
    error = attempt(lambda: counted.append(spark.table(table).count()))
    return error or counted[0]


def stray_files(spark: SparkSession, scene: Scene) -> int:
    """Count the data files below the scene's directories that do not belong to any table."""
    warehouse = Path(str(spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"))
    found: set[str] = set()
    for table in scene.complete:
        for place in (warehouse / table, warehouse / ".twophase" / table):
            found |= {str(file) for file in place.rglob("part-*")}
    live: set[str] = set()
    for table in scene.complete:
        if spark.catalog.tableExists(table):
            live |= {name.removeprefix("file://") for name in spark.table(table).inputFiles()}
    return len(found - live)


@contextlib.contextmanager
def task_reports(spark: SparkSession) -> Iterator[None]:
    """Report running tasks to the parent process, from Spark's own status tracker."""
    over = threading.Event()

    def report() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not over.wait(0.25):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                say("tasks", done=sum(s.numCompletedTasks for s in known), total=sum(s.numTasks for s in known))

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def tell(spark: SparkSession) -> None:
    """Run the lakehouse part at the end; an error counts as a failed step, and the scenes before it are still shown."""

    def steps() -> None:
        for step in lakehouse.tell(spark):
            say("lakehouse", **asdict(step))

    if error := attempt(steps):
        say("lakehouse", **asdict(lakehouse.Step("the next step", error, False)))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("stock", "twophase"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--after-kill", metavar="BEFORE", help="what there was before the kill, as JSON")
    options = parser.parse_args(arguments)

    spark = session(options.side, options.directory / options.side)
    say("started")
    data.register(spark, options.directory / "data")
    transaction: Transaction = contextlib.nullcontext
    if options.side == "twophase":
        transaction, states = protect(spark)
        say("timeline", states=states)
    with task_reports(spark):
        if options.after_kill:
            say("scene", number=len(SCENES) - 1)
            finish(spark, SCENES[-1], transaction, json.loads(options.after_kill), "killed")
            if options.side == "twophase":
                tell(spark)
        else:
            for number, scene in enumerate(SCENES):
                say("scene", number=number)
                if options.side == "stock" and scene.stock:
                    say("result", skipped=scene.stock)
                else:
                    run(spark, scene, transaction)
    spark.stop()


def end_with_the_demo() -> None:
    """Kill this driver with its JVM once the demo has ended, however it did: standard input is at its end then."""

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)  # not the buffered reader, which a thread at the end may not hold
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end_with_the_demo()
    main(sys.argv[1:])

"""Run both sides, kill their drivers, and print what was left."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo import data
from demo.scenes import SCENES, Scene

#: Each driver runs for a minute: the optimising compiler would take a quarter of its time for little benefit. Without
#: it, Java's code cache is only a fifth of the usual size, and code would be compiled again and again.
JAVA_FOR_SHORT_RUNS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
TITLES = {"stock": "stock Spark", "twophase": "with twophase"}
Result = dict[str, Any]


class WorkerFailed(RuntimeError):
    """A driver ended without having been killed by the demo."""


class Side:
    """One side of the demo: its drivers, one after the other, and their results.

    Parameters
    ----------
    name : str
        ``stock`` or ``twophase``.
    directory : Path
        The directory of data, warehouse and metastore.
    progress : rich.progress.Progress
    """

    def __init__(self, name: str, directory: Path, progress: Progress) -> None:
        self.name = name
        self.directory = directory
        self.results: list[Result] = []
        self.recovered: list[str] = []
        self.steps: list[dict[str, Any]] = []
        self._progress = progress
        self._bar: TaskID = progress.add_task(TITLES[name], total=len(SCENES), what="starting Spark")
        self._killed_with: dict[str, Any] | None = None
        self._driver: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Stop the running driver, if any; for Ctrl-C."""
        self._stopped = True
        if self._driver is not None:
            _kill(self._driver)

    def run(self) -> None:
        """Run all scenes; in the last one the driver is killed, and a second driver finds the leftovers."""
        self._drive([])
        self._progress.update(self._bar, what="the driver was killed; starting another")
        self._drive(["--after-kill", json.dumps(self._killed_with)])
        self._progress.update(self._bar, completed=len(SCENES), what="done")

    def _drive(self, more: list[str]) -> None:
        if self._stopped:
            return
        (self.directory / self.name).mkdir(exist_ok=True)
        command = [sys.executable, "-m", "demo.worker", self.name, str(self.directory), *more]
        with open(self.log, "ab") as log:
            # In a separate process session: the kill must hit Python and its JVM together, like the loss of a machine.
            # Its standard input stays open as long as the demo lives: its end tells the driver that nobody reads on.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        self._driver = process
        try:
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    if line.startswith(b"{"):
                        self._handle(process, json.loads(line))
            killed = self._stopped or (self._killed_with is not None and not more)
            if process.wait() and not killed:
                raise WorkerFailed(f"A driver failed; see {self.log}")
        finally:
            _kill(process)
            assert process.stdin is not None
            process.stdin.close()

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    def _handle(self, process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
        kind = message.pop("kind")
        if kind == "scene":
            number = message["number"]
            self._progress.update(self._bar, completed=number, what=SCENES[number].title.replace("\n ", ""))
        elif kind == "tasks":
            done, total = message["done"], message["total"]
            self._progress.update(self._bar, completed=len(self.results) + done / max(total, 1))
        elif kind == "timeline":
            self.recovered = message["states"]
        elif kind == "result":
            self.results.append(message)
            if self._killed_with is not None and self.name == "twophase":
                self._progress.update(self._bar, what="the same on Apache Iceberg tables")
        elif kind == "lakehouse":
            self.steps.append(message)
        elif kind == "armed":
            self._killed_with = message["before"]
            self._kill_in_the_middle(process)

    def _kill_in_the_middle(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the driver when some of its tasks have written their files, in any location."""
        warehouse = self.directory / self.name / "warehouse"
        known = data_files(warehouse)
        while process.poll() is None and len(data_files(warehouse) - known) < 3:
            time.sleep(0.02)
        if process.poll() is not None:
            raise WorkerFailed(f"The driver ended before it could be killed; see {self.log}")
        _kill(process)


def data_files(directory: Path) -> set[str]:
    """All data files below, including incomplete ones. (``rglob`` would fail if a job removes a folder.)"""
    return {
        os.path.join(folder, name)
        for folder, _, names in os.walk(directory)
        for name in names
        if name.startswith("part-")
    }


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a driver with its JVM, unless it has ended (its process id may have been reused by then)."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# -- the table at the end --------------------------------------------------------------------------------------------


def whole(scene: Scene, result: Result) -> bool:
    """Return whether the job was atomic, and a retry completed it."""
    untouched = result["error"] is None or result["after"] == result["before"]
    return bool(untouched and result["retry"] is None and result["end"] == dict(scene.complete))


def describe(scene: Scene, result: Result) -> str:
    """Describe a side's tables after the scene."""
    if "skipped" in result:
        return f"[dim]{result['skipped']}[/]"
    error, retry = result["error"], result["retry"]
    lines = []
    if error:
        lines.append("[dim]driver killed while it wrote[/]" if error == "killed" else f"[dim]{error}[/]")
    for table, after in result["after"].items():
        lines.append(_state(table, result["before"][table], after, failed=bool(error)))
    if result["stray"] and not whole(scene, result):
        lines.append(f"[red]{result['stray']} stray data files[/]")
    if error:
        lines.append(f"run again: [red]{retry}[/]" if retry else f"run again: {_end(scene, result)}")
    return "\n".join(lines)


def _end(scene: Scene, result: Result) -> str:
    wrong = [table for table, rows in scene.complete.items() if result["end"][table] != rows]
    if not wrong:
        return "[green]works[/]"
    counts = ", ".join(
        f"{table} has {result['end'][table]:,} rows instead of {scene.complete[table]:,}" for table in wrong
    )
    return f"[red]{counts}[/]"


def _state(table: str, before: object, after: object, *, failed: bool) -> str:
    if after is None:
        lost = f", with its {before:,} rows" if isinstance(before, int) else ""
        return f"{table}: [red]gone{lost}[/]" if lost else f"{table}: [red]not there[/]"
    if not isinstance(after, int):
        return f"{table}: [red]cannot be read ({after})[/]"
    if not failed:
        return f"{table}: [green]{after:,} rows[/]"
    if after == before:
        return f"{table}: [green]as before, {after:,} rows[/]"
    return f"{table}: [red]{after:,} rows, {before or 0:,} before[/]"


def report(stock: Side, ours: Side) -> Table:
    table = Table(title="One job, two drivers, the same faults", show_lines=True, title_style="bold")
    for title in ("what the job ran", TITLES["stock"], TITLES["twophase"]):
        table.add_column(title, ratio=1, overflow="fold")
    for scene, left, right in zip(SCENES, stock.results, ours.results, strict=True):
        table.add_row(scene.title.replace("[", "\\["), describe(scene, left), describe(scene, right))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="work there and keep everything")
    options = parser.parse_args()
    directory = options.keep or Path(tempfile.mkdtemp(prefix="twophase-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    started = time.monotonic()
    os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_FOR_SHORT_RUNS)
    try:
        return show(directory.resolve(), console)
    except WorkerFailed as error:
        console.print(f"[red]{error}[/]")
        options.keep = directory
        return 1
    finally:
        console.print(f"[dim]{time.monotonic() - started:.0f} seconds.[/]")
        if options.keep is None:
            shutil.rmtree(directory, ignore_errors=True)


def show(directory: Path, console: Console) -> int:
    """Run the demo below ``directory``; return 0 if all scenes with twophase were atomic."""
    console.print("336,776 flights that left New York City in 2013. Two lines make the difference:\n")
    console.print("    [bold]import twophase\n    twophase.attach(spark)[/]\n")
    data.unpack(directory / "data")
    columns = (SpinnerColumn(), TextColumn("{task.description:<14}"), BarColumn(24), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[what]}"), console=console) as progress:
        sides = [Side(name, directory, progress) for name in ("stock", "twophase")]
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(side.run) for side in sides]
            try:
                for run in runs:
                    run.result()
            finally:
                # After Ctrl-C, or if one side failed, drivers are still running; otherwise this does nothing.
                for side in sides:
                    side.stop()
    stock, ours = sides
    console.print(report(stock, ours))
    states = ", ".join(f"{ours.recovered.count(state)} {state}" for state in sorted(set(ours.recovered)))
    console.print(f"The timeline after the kill, when the next driver had attached: {states}.")
    console.print(lakehouse(ours.steps))
    told = bool(ours.steps) and all(step["expected"] for step in ours.steps)
    return 0 if told and all(map(whole, SCENES, ours.results)) else 1


def lakehouse(steps: list[dict[str, Any]]) -> Table:
    """Show the results of the lakehouse part, step by step."""
    table = Table(title="Apache Iceberg tables, no jar", show_lines=True, title_style="bold")
    table.add_column("what the job ran", ratio=2, overflow="fold")
    table.add_column("with twophase", ratio=1, overflow="fold")
    for step in steps:
        table.add_row(step["ran"].replace("[", "\\["), f"[{'green' if step['expected'] else 'red'}]{step['seen']}[/]")
    return table


if __name__ == "__main__":
    raise SystemExit(main())

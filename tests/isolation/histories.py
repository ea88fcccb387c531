"""Random histories of several processes, some of which are killed, and what the checker finds in them.

Usage: python -m tests.isolation.histories --store session --isolation snapshot --transactions 10000 --kill 20

Each process is a driver of its own, with a real Spark; all share the stores and a timeline. The tables of a round are
new, and its history is checked by itself. A killed driver is followed by another one of the same name, whose ``attach``
recovers what it left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tests import servers
from tests.isolation.blocks import LISTS, TOTAL
from tests.isolation.elle import FORBIDDEN, Anomaly, Kind, check
from tests.isolation.history import Block, load
from tests.isolation.stores import STORES, Stores

ROOT = Path(__file__).parents[2]
#: Values of one driver: no other one of the run writes those between its first and the next driver's.
VALUES = 1_000_000
#: Seconds after which a round that does not end has failed.
PATIENCE = 900.0


@dataclass
class Result:
    """What became of the blocks of a run.

    Parameters
    ----------
    store, level : str
    """

    store: str
    level: str
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    anomalies: list[Anomaly] = field(default_factory=list)
    kills: int = 0
    #: Transactions that have not ended though all that died was recovered.
    left_open: int = 0
    seconds: float = 0.0

    def add(self, blocks: Sequence[Block]) -> list[Anomaly]:
        """Check the history of a round."""
        self.outcomes.update(block.outcome for block in blocks if not block.final)
        self.errors.update(block.error.partition(":")[0] for block in blocks if block.error)
        found = check(blocks, ordered=LISTS, total=TOTAL)
        self.anomalies += found
        return found

    @property
    def wrong(self) -> list[Anomaly]:
        """What the level forbids."""
        return [anomaly for anomaly in self.anomalies if anomaly.kind in FORBIDDEN[self.level]]

    def per_hundred(self, kind: Kind) -> float:
        """Anomalies for each hundred committed blocks."""
        return 100 * sum(anomaly.kind is kind for anomaly in self.anomalies) / max(self.outcomes["ok"], 1)


class Driver:
    """The parent's end of a driver: one process of the history, by one incarnation after the other.

    Parameters
    ----------
    number : int
    facts : dict
        What each incarnation is told.
    directory : Path
    kills : float
        Seconds between two kills, on average; 0 for none.
    """

    def __init__(self, number: int, facts: dict[str, Any], directory: Path, kills: float) -> None:
        self.name = f"p{number}"
        self._number = number
        self._facts = facts
        self._directory = directory
        self._kills = kills
        self._dice = Random(f"{facts['seed']} {number}")
        self._incarnation = 0
        self._process: subprocess.Popen[str] | None = None
        self.killed = 0

    @property
    def log(self) -> Path:
        """What it and its JVM have printed."""
        return self._directory / f"{self.name}.log"

    def ask(self, do: str, round_number: int, **task: Any) -> list[Any]:
        """Let the incarnation of now do something; whoever kills it asks again."""
        driver = self._process or self._start()
        assert driver.stdin
        file = self._directory / f"round-{round_number}" / f"{self.name}-{self._incarnation}.jsonl"
        task |= {"do": do, "round": round_number, "file": str(file), "seed": self._dice.random()}
        try:
            driver.stdin.write(json.dumps(task) + "\n")
            driver.stdin.flush()
        except BrokenPipeError as error:
            raise DriverDied(self.name) from error
        facts = []
        while (answer := self._answer(driver))["says"] != "done":
            facts.append(answer["fact"])
        return facts

    def blocks(self, round_number: int, blocks: int) -> None:
        """Run blocks; the incarnation may die of it, and the next one runs the rest."""
        directory = self._directory / f"round-{round_number}"
        while (left := blocks - len([b for b in load(directory.glob(f"{self.name}-*")) if b.process == self.name])) > 0:
            process = self._process or self._start()
            timer = None
            dies_at = None
            if self._kills and self._dice.random() < 0.5:
                timer = threading.Timer(self._dice.expovariate(1 / self._kills), self._kill, [process])
                timer.start()
            elif self._kills:
                dies_at = int(self._dice.expovariate(1 / (20 * self._kills))) + 1
            try:
                self.ask("run", round_number, blocks=left, dies_at=dies_at)
            except DriverDied:
                if not self._kills:
                    raise
                self.killed += 1
                self.end()
            finally:
                if timer:
                    timer.cancel()

    def end(self) -> None:
        """End the incarnation of now, if there is one."""
        process, self._process = self._process, None
        if process:
            self._kill(process)
            process.wait(30)
            assert process.stdin and process.stdout
            process.stdout.close()
            with suppress(BrokenPipeError):
                process.stdin.close()

    def _start(self) -> subprocess.Popen[str]:
        self._incarnation += 1
        first = (self._number * 1000 + self._incarnation) * VALUES
        facts = self._directory / f"{self.name}.json"
        facts.write_text(json.dumps({**self._facts, "process": self.name, "first_value": first}))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.isolation.driver", str(facts)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "SPARK_SUBMIT_OPTS": " ".join(_java()), "PYSPARK_PYTHON": sys.executable},
                start_new_session=True,
            )
        answer = self._answer(self._process)
        assert answer["says"] == "ready", answer
        return self._process

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout
        for line in process.stdout:
            if line.startswith('{"says"'):
                return json.loads(line)  # type: ignore[no-any-return]
        raise DriverDied(f"{self.name} ended with {process.wait(30)}; its log is {self.log}")

    @staticmethod
    def _kill(process: subprocess.Popen[str]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class DriverDied(Exception):
    """A driver's process has ended."""


def _java() -> list[str]:
    return [
        *servers.java_of_short_runs(),
        "-Dspark.sql.codegen.wholeStage=false",
        "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
    ]


def run(
    store: str,
    level: str,
    *,
    transactions: int,
    processes: int,
    per_round: int,
    kills: float,
    seed: int,
    directory: Path,
    tell: Any,
    has_spark: bool = True,
) -> Result:
    """Run rounds of blocks, and check each.

    Parameters
    ----------
    store, level : str
    transactions, processes, per_round : int
    kills : float
        Seconds between two kills of one process, on average; 0 for none.
    seed : int
        Of all that is random but the times.
    directory : Path
        Where the records go.
    tell : callable
        Is given a line of text after each round, and for each anomaly.
    has_spark : bool
        Whether each process has a session; otherwise the catalogs' own code reads and writes.

    Returns
    -------
    Result
    """
    result, began = Result(store, level), time.monotonic()
    with Stores(store, directory, has_spark=has_spark) as stores, ThreadPoolExecutor(processes) as pool:
        facts = {"conf": stores.conf, "prefixes": dict(stores.prefixes), "isolation": level, "seed": seed}
        facts["has_spark"] = has_spark
        drivers = [Driver(number, facts, directory, kills) for number in range(processes)]
        try:
            for number in range(1, -(-transactions // per_round) + 1):
                records = directory / f"round-{number}"
                records.mkdir()
                drivers[0].ask("create", number)
                todo = [pool.submit(driver.blocks, number, -(-per_round // processes)) for driver in drivers]
                for future in todo:
                    future.result(PATIENCE)
                # Whoever was killed last is followed by one that recovers.
                [*pool.map(lambda driver: driver._process or driver._start(), drivers)]
                left = drivers[0].ask("look", number)[0]
                result.left_open += len(left)
                found = result.add(load(records.glob("*.jsonl")))
                result.kills = sum(driver.killed for driver in drivers)
                result.seconds = time.monotonic() - began
                counts = f"{dict(result.outcomes)}, {len(found)} anomalies, {len(left)} open"
                tell(f"round {number}: {counts}, {result.seconds:.0f} s")
                for anomaly in found:
                    if anomaly.kind in FORBIDDEN[level]:
                        tell(f"  {anomaly}")
        finally:
            for driver in drivers:
                driver.end()
    return result


def table(results: Sequence[Result]) -> Table:
    """What the runs have found: a column each."""
    made = Table(title="Anomalies for each 100 committed blocks", show_header=False)
    rows: dict[str, list[object]] = {
        "store": [result.store for result in results],
        "level": [result.level for result in results],
        "committed": [result.outcomes["ok"] for result in results],
        "refused": [result.outcomes["fail"] for result in results],
        "end unknown": [result.outcomes["info"] for result in results],
        "drivers killed": [result.kills for result in results],
    }
    for kind in Kind:
        rows[kind.value] = [f"{result.per_hundred(kind):.1f}" for result in results]
    rows["lost values, in all"] = [sum(a.kind is Kind.LOST for a in result.anomalies) for result in results]
    rows["forbidden by the level, in all"] = [len(result.wrong) for result in results]
    rows["left open"] = [result.left_open for result in results]
    rows["blocks a second"] = [f"{result.outcomes.total() / max(result.seconds, 1):.1f}" for result in results]
    for head, cells in rows.items():
        made.add_row(head, *map(str, cells))
    return made


@click.command()
@click.option(
    "--store", "stores", type=click.Choice(STORES), multiple=True, default=["session"], help="may be repeated"
)
@click.option(
    "--isolation",
    "levels",
    type=click.Choice([*FORBIDDEN]),
    multiple=True,
    default=["snapshot"],
    help="may be repeated",
)
@click.option("--transactions", default=1000, help="blocks of a run")
@click.option("--processes", default=3, help="drivers side by side")
@click.option("--round", "per_round", default=150, help="blocks over the same tables")
@click.option("--kill", "kills", default=0.0, help="seconds until a driver is killed, on average; 0: none is")
@click.option("--seed", default=1)
@click.option("--spark/--no-spark", "has_spark", default=True, help="whether each driver has a session; not: faster")
@click.option("--keep", type=click.Path(path_type=Path), help="a directory for the records, which stay")
def main(stores: Sequence[str], levels: Sequence[str], keep: Path | None, **options: Any) -> None:
    """Run random histories, and print what the checker finds in them."""
    console, results = Console(), []
    for store in stores:
        for level in levels:
            with tempfile.TemporaryDirectory() as scratch:
                directory = (keep or Path(scratch)) / f"{store}-{level}"
                directory.mkdir(parents=True)
                console.print(f"{store}, {level}")
                results.append(
                    run(
                        store,
                        level,
                        directory=directory,
                        tell=lambda text: console.print(text, markup=False),
                        **options,
                    )
                )
            console.print(f"errors: {dict(results[-1].errors)}", markup=False)
    console.print(table(results))
    sys.exit(any(result.wrong or result.left_open for result in results))


if __name__ == "__main__":
    main()

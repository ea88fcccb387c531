"""What isolation costs: the begin of a block, its reads, and the commits of several processes.

``python -m benchmarks.isolation`` measures all of it in some minutes; ``--only begin,reads`` some. Commits are of small
blocks without Spark, each process on a table of its own, with the timeline in SQLite and in PostgreSQL. Under
contention all processes overwrite one table again and again, by blocks with a job of 50 ms: how many of them are
refused and run again, for each conflict policy, and how many get through.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import twophase
from benchmarks.hive_ctas import session
from twophase import Isolation, ObjectPath, Purpose, TableDefinition
from twophase.errors import WoundedError, WriteConflictError
from twophase.testing.chaos import ChaosCatalog
from twophase.timeline.owners import clock
from twophase.timeline.timeline import Timeline
from twophase.transactions.conflict_policy import conflict_policy
from twophase.transactions.coordinator import Coordinator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READS = 10
_PROCESSES = (1, 2, 4, 8)
_POLICIES = ("first_committer_wins", "wait_die", "wound_wait", "fail")
#: Processes on one table, and seconds of their jobs.
_RIVALS, _JOB = 4, 0.05
_ROWS = pa.table({"a": [1]})


@dataclass(frozen=True)
class Measured:
    """One number.

    Attributes
    ----------
    what, level : str
    value : float
        In ``unit``; a median.
    unit : str
    ratio : float or None
        To ``read_committed``, or to one process.
    """

    what: str
    level: str
    value: float
    unit: str
    ratio: float | None = None


def _seconds(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def in_turn(runs: Mapping[Isolation, Callable[[], object]], rounds: int) -> dict[Isolation, list[float]]:
    """Measure each level once a round, in an order that changes."""
    taken: dict[Isolation, list[float]] = {level: [] for level in runs}
    for number in range(-1, rounds):
        for level in sorted(runs, reverse=bool(number % 2)):
            seconds = _seconds(runs[level])
            if number >= 0:
                taken[level].append(seconds)
    return taken


# -- with Spark --------------------------------------------------------------------------------------------------------


def begin(spark: SparkSession, rounds: int) -> Iterator[Measured]:
    """An empty block."""

    def block(level: Isolation) -> None:
        with twophase.transaction(spark, isolation=level):
            pass

    yield from _by_level("begin and end of an empty block", block, rounds * 5)


def reads(spark: SparkSession, rounds: int) -> Iterator[Measured]:
    """A block of ten reads of ten tables and one write."""
    for number in range(_READS):
        spark.sql(f"CREATE TABLE t{number} USING parquet AS SELECT {number} AS a")
    spark.sql("CREATE TABLE sums (a BIGINT) USING parquet")

    def block(level: Isolation) -> None:
        with twophase.transaction(spark, isolation=level):
            total = sum(spark.sql(f"SELECT a FROM t{number}").collect()[0][0] for number in range(_READS))
            spark.sql(f"INSERT INTO sums SELECT {total}")

    yield from _by_level("ten reads and an INSERT", block, rounds)


def _by_level(what: str, block: Callable[[Isolation], None], rounds: int) -> Iterator[Measured]:
    taken = in_turn({level: lambda level=level: block(level) for level in Isolation}, rounds)
    base = taken[Isolation.READ_COMMITTED]
    for level, seconds in taken.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, base, strict=True))
        yield Measured(what, level.value, statistics.median(seconds) * 1000, "ms", ratio)


# -- several processes -------------------------------------------------------------------------------------------------


def commits(directory: Path, level: Isolation, seconds: float) -> Iterator[Measured]:
    """Commits a second of small blocks on tables of their own."""
    with timelines(directory) as urls:
        for store, url in urls.items():
            Timeline(url).close()
            one = 0.0
            for processes in _PROCESSES:
                place = directory / f"{store}_{processes}"
                rate = _rate(url, place, processes, level, seconds)
                one = one or rate
                what = f"commits, timeline in {store}, {processes} processes"
                yield Measured(what, level.value, rate, "1/s", rate / one)


@contextmanager
def timelines(directory: Path) -> Iterator[dict[str, str]]:
    """A timeline of each kind."""
    from tests.servers import postgresql

    with ExitStack() as stack:
        server = stack.enter_context(postgresql())
        yield {"SQLite": f"sqlite:///{directory / 'timeline.db'}", "PostgreSQL": server.url}


def contention(directory: Path, level: Isolation, seconds: float) -> Iterator[Measured]:
    """Blocks of several processes that overwrite one table."""
    first = 0.0
    for policy in _POLICIES:
        place = directory / policy
        place.mkdir()
        url = f"sqlite:///{place / 'timeline.db'}"
        catalog = _chaos(place)
        with closing(_coordinator(url, catalog)) as coordinator:
            _block(coordinator, catalog, "t", Purpose.CREATE_TABLE_AS)
        found = _in_processes(_contend, _RIVALS, (url, str(place), policy, level, seconds))
        committed, refused = (sum(numbers) for numbers in zip(*found, strict=True))
        first = first or committed
        what = f"{_RIVALS} processes on one table, {policy}"
        yield Measured(f"{what}: commits", level.value, committed / seconds, "1/s", committed / first)
        yield Measured(f"{what}: refused of 100 blocks", level.value, 100 * refused / (committed + refused), "")


def _contend(url: str, place: str, policy: str, level: Isolation, seconds: float, ready: Any, done: Any) -> None:
    catalog = _chaos(Path(place))
    coordinator = _coordinator(url, catalog, policy)
    ready.wait()
    begun, committed, refused = time.perf_counter(), 0, 0
    while time.perf_counter() - begun < seconds:
        first_begun = clock()
        for attempt in count():
            try:
                _block(coordinator, catalog, "t", Purpose.INSERT_OVERWRITE, level, first_begun=first_begun, job=_JOB)
                committed += 1
                break
            except (WriteConflictError, WoundedError):
                refused += 1
                time.sleep(random.random() * _JOB * 2 ** min(attempt, 4))  # As twophase.run does, in smaller steps.
    done.put((committed, refused))
    coordinator.close()


def _chaos(place: Path) -> ChaosCatalog:
    return ChaosCatalog("chaos", {"file": f"{place}/store.json"})


def _coordinator(url: str, catalog: ChaosCatalog, policy: str = _POLICIES[0]) -> Coordinator:
    return Coordinator(Timeline(url), lambda _: catalog, name="bench", conflict=conflict_policy(policy))


def _block(
    coordinator: Coordinator,
    catalog: ChaosCatalog,
    name: str,
    purpose: Purpose,
    level: Isolation = Isolation.SNAPSHOT,
    *,
    first_begun: float | None = None,
    job: float = 0.0,
) -> None:
    """A block of one read and one write."""
    path = ObjectPath.of("default", name)
    tx = coordinator.begin(level, first_begun=first_begun)
    try:
        tx.note_read(catalog, path, catalog.table_version(path))
        participant = tx.stage(catalog, path, TableDefinition(_ROWS.schema), purpose=purpose)
        assert participant is not None
        tx.begin_participant(participant)
        if job:
            time.sleep(job)
        tx.write(participant, _ROWS)
        tx.commit()
    except BaseException as error:
        tx.abort(error)
        raise


def _rate(url: str, place: Path, processes: int, level: Isolation, seconds: float) -> float:
    return sum(_in_processes(_work, processes, (url, str(place), level, seconds)))


def _in_processes(work: Callable[..., None], processes: int, arguments: tuple[Any, ...]) -> list[Any]:
    """What each of some processes, which begin together, has found."""
    context = multiprocessing.get_context("spawn")
    ready, done = context.Barrier(processes), context.Queue()
    workers = [context.Process(target=work, args=(*arguments, ready, done)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    found = [done.get() for _ in workers]
    for worker in workers:
        worker.join()
    return found


def _work(url: str, place: str, level: Isolation, seconds: float, ready: Any, done: Any) -> None:
    own = Path(place) / str(os.getpid())
    own.mkdir(parents=True)
    catalog = _chaos(own)
    coordinator = _coordinator(url, catalog)
    name = f"t{own.name}"
    _block(coordinator, catalog, name, Purpose.CREATE_TABLE_AS, level)
    ready.wait()
    begun, committed = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        _block(coordinator, catalog, name, Purpose.CREATE_OR_REPLACE_TABLE_AS, level)
        committed += 1
    done.put(committed / (time.perf_counter() - begun))
    coordinator.close()


# -- the table ---------------------------------------------------------------------------------------------------------


def table(found: Sequence[Measured]) -> Table:
    shown = Table("what", "level", "median", "", "ratio", title="What isolation costs")
    for row in found:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        shown.add_row(row.what, row.level, f"{row.value:,.1f}", row.unit, ratio)
    return shown


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    kinds = ("begin", "reads", "commits", "contention")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.isolation", description=__doc__)
    parser.add_argument("--only", default=",".join(kinds), metavar="KIND,KIND", help=", ".join(kinds))
    parser.add_argument("--rounds", type=int, default=20, help="rounds of the blocks with Spark")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long the processes commit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args(arguments)
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(kinds):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; known: {', '.join(kinds)}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    found: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="twophase-isolation-") as name:
        directory = Path(name)
        if {"begin", "reads"} & set(wanted):
            with session(directory) as spark:
                twophase.attach(spark)
                for kind, measure in (("begin", begin), ("reads", reads)):
                    found += measure(spark, options.rounds) if kind in wanted else ()
        if "commits" in wanted:
            found += commits(directory, Isolation.SNAPSHOT, options.seconds)
        if "contention" in wanted:
            found += contention(directory, Isolation.SNAPSHOT, options.seconds)
    Console(width=120).print(table(found))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in found], indent=2))


if __name__ == "__main__":
    main()

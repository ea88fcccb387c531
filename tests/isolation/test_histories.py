"""Random blocks, of threads of one session and of processes of which some are killed: histories without anomalies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.isolation import histories, stores
from tests.isolation.access import Place, WithSpark
from tests.isolation.blocks import LISTS, TOTAL, Worker, create
from tests.isolation.elle import FORBIDDEN, check, violations
from tests.isolation.history import Recorder, load
from tests.numbers import NUMBERS

pytestmark = pytest.mark.timeout(600)

THREADS = 3
CONFLICTS = ("WriteConflictError", "SnapshotTooOldError")
KINDS = ("lakehouse", "sqlite")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    directory = tmp_path_factory.mktemp("histories")
    patch = pytest.MonkeyPatch()
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.master("local[2]").appName("histories")
    for key, value in {**stores.base(directory), **stores.conf(KINDS, directory, None)}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    handle = twophase.attach(session)
    yield session
    handle.detach()
    session.stop()
    patch.undo()


@pytest.mark.parametrize(("level", "number_of_blocks"), [("serializable", 10), ("snapshot", 20)])
def test_concurrent_blocks_leave_a_history_without_the_anomalies_that_their_level_forbids(
    spark: SparkSession, level: str, number_of_blocks: int, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    place = Place([*FORBIDDEN].index(level), stores.prefixes(KINDS))
    create(WithSpark(spark, place, Random(0)))

    def run(number: int) -> None:
        recorder = Recorder(tmp_path / f"{number}.jsonl")
        values = count(number * 1_000_000)
        dice = Random(number)
        access = WithSpark(spark.newSession(), place, dice)
        worker = Worker(access, recorder, f"t{number}", values, dice, level)
        for _ in range(number_of_blocks):
            worker.run()
        recorder.close()

    with ThreadPoolExecutor(THREADS) as pool:
        [*pool.map(run, range(1, THREADS + 1))]
    last = Recorder(tmp_path / "last.jsonl")
    Worker(WithSpark(spark, place, Random(0)), last, "last", count(0), Random(0)).look()
    last.close()
    blocks = load(tmp_path.glob("*.jsonl"))
    ends = [block.outcome for block in blocks]
    wrong = violations(check(blocks, ordered=LISTS, total=TOTAL), level)
    assert not wrong, "\n".join(map(str, wrong))
    # What a task has found is in the text of another error.
    assert not [b.error for b in blocks if b.error and not any(name in b.error for name in CONFLICTS)]
    assert ends.count("ok") > len(ends) / 2
    pytestconfig.stash[NUMBERS].append(f"histories, {level}: {ends.count('ok')} of {len(ends)} blocks committed")


#: Of the history of processes; and seconds until one of them is killed, on average.
PROCESSES, BLOCKS, KILLS = 3, 200, 15.0


def test_processes_that_are_killed_leave_a_history_without_the_anomalies_that_their_level_forbids(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Each is recovered by the one that follows it, and no value of which a block was told that it is there is lost."""
    found = histories.run(
        "sqlite",
        "snapshot",
        transactions=BLOCKS,
        processes=PROCESSES,
        per_round=BLOCKS // 2,
        kills=KILLS,
        seed=3,  # By which some die early.
        directory=tmp_path,
        tell=lambda _: None,
        has_spark=False,
    )
    assert not found.wrong, "\n".join(map(str, found.wrong))
    assert (found.left_open, found.kills > 0) == (0, True)
    assert found.outcomes.total() >= BLOCKS
    assert found.outcomes["ok"] > BLOCKS / 2
    counts = f"{found.outcomes['ok']} of {found.outcomes.total()} blocks committed, {found.kills} processes killed"
    pytestconfig.stash[NUMBERS].append(f"histories of {PROCESSES} processes, snapshot: {counts}")

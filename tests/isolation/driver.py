"""A driver of the histories: ``python -m tests.isolation.driver FACTS.json``.

It attaches, and so recovers what the one before it left; then it does what each line of its input says, and answers
with a line. It may be killed at any time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import twophase
from tests.isolation.access import Access, Engine, Place, WithoutSpark, WithSpark
from tests.isolation.blocks import Worker, create
from tests.isolation.history import Recorder
from twophase import failpoints
from twophase.timeline.timeline import Timeline

#: Gives access to the tables of a round; and the timeline.
Opened: TypeAlias = tuple[Callable[[Place, Random], Access], Timeline]


def main(file: str) -> None:
    facts = json.loads(Path(file).read_text())
    engine = _session(facts) if facts["has_spark"] else _engine(facts)
    values = count(facts["first_value"])
    with engine as (access_to, timeline):
        _answer("ready")
        for line in sys.stdin:
            task = json.loads(line)
            recorder, dice = Recorder(Path(task["file"])), Random(task["seed"])
            access = access_to(Place(task["round"], facts["prefixes"]), dice)
            worker = Worker(access, recorder, facts["process"], values, dice, facts["isolation"])
            if task["do"] == "create":
                create(access)
            elif task["do"] == "look":
                worker.look()
                _answer("open", [t.id for t in timeline.transactions() if t.is_open])
            else:
                _die_at(task.get("dies_at"))
                for _ in range(task["blocks"]):
                    worker.run()
                failpoints.disarm()
            recorder.close()
            _answer("done")


@contextmanager
def _session(facts: Mapping[str, Any]) -> Iterator[Opened]:
    """A session, attached."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.master("local[1]").appName(facts["process"])
    for key, value in facts["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    handle = twophase.attach(spark)
    yield lambda place, dice: WithSpark(spark, place, dice), handle.timeline
    spark.stop()


@contextmanager
def _engine(facts: Mapping[str, Any]) -> Iterator[Opened]:
    """Catalogs and coordinator alone."""
    engine = Engine(facts["conf"], facts["process"])
    engine.recover()
    yield lambda place, _: WithoutSpark(engine, place), engine.timeline
    engine.close()


def _die_at(step: int | None) -> None:
    """Kill this process, with its JVM, before the n-th step of the protocol that it reaches."""
    steps = count(1)

    def reached(_: str) -> None:
        if next(steps) == step:
            os.killpg(0, signal.SIGKILL)

    for name in failpoints.declared() if step else ():
        failpoints.arm(name, reached)


def _answer(word: str, fact: Any = None) -> None:
    print(json.dumps({"says": word, "fact": fact}), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

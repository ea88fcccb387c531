"""Runs a schedule: each agent on a thread and in a session of its own, one step at a time."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from twophase import failpoints
from twophase.errors import WriteConflictError

Row = tuple[int, int]
Rows = list[Row]
#: Opens a transaction of a level; or a reader's snapshot.
Opens = Callable[[SparkSession, str], AbstractContextManager[Any]]

#: Longer than anything that waits here would be waited for.
PATIENCE = 100.0
_TABLE = re.compile(r"\b(FROM|INTO|OVERWRITE) ([abc])\b")


@dataclass(frozen=True)
class Step:
    """One step of an agent.

    Parameters
    ----------
    number : int
    agent : str
    text : str
    pause : str
        The failpoint at which it stops until the agent's RESUME.
    nth : int
        Which time that is reached.
    """

    number: int
    agent: str
    text: str
    pause: str = ""
    nth: int = 1


def steps_of(text: str) -> list[Step]:
    """The steps of a schedule, its shorthands written out."""
    found = []
    for number, words in enumerate(filter(None, map(str.strip, text.split(";")))):
        agent, _, statement = " ".join(words.split()).partition(" ")
        statement, _, pause = statement.partition(" PAUSED AT ")
        point, _, nth = pause.partition(" ")
        found.append(Step(number, agent, _written_out(statement), point, int(nth or 1)))
    return found


def _written_out(statement: str) -> str:
    given = re.fullmatch(r"SET (\w)\[(\d)\] = (.+)", statement)
    if not given:
        return statement
    table, key, value = given.groups()
    return f"INSERT OVERWRITE {table} SELECT CASE WHEN id = {key} THEN {value} ELSE value END, id FROM {table}"


@dataclass
class Unit:
    """A transaction of a run: a block, or one statement.

    Attributes
    ----------
    agent : str
    steps : list of Step
        Its statements.
    began, ended : int
        The numbers of the steps with which it began and ended.
    reads : dict
        What each SELECT has shown, by the step's number.
    committed : bool
    refused : WriteConflictError or None
    """

    agent: str
    began: int
    steps: list[Step] = field(default_factory=list)
    ended: int = sys.maxsize
    reads: dict[int, Rows] = field(default_factory=dict)
    committed: bool = False
    refused: WriteConflictError | None = None


def filled(statement: str, seen: Mapping[int, int]) -> str:
    """A statement with the values that its agent has seen last."""
    return re.sub(r"\{(\d)\}", lambda found: str(seen[int(found[1])]), statement)


class Rollback(Exception):
    """Leaves a block without a commit."""


class Agent:
    """A thread with a session of its own."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._thread = ThreadPoolExecutor(1)
        self._block: AbstractContextManager[Any] | None = None
        self._seen: dict[int, int] = {}
        self._frame: Any = None

    def start(self, text: str, tables: Mapping[str, str], opens: Opens) -> Future[Any]:
        """Do a step on the agent's thread."""
        return self._thread.submit(self._do, text, tables, opens)

    def call(self, function: Callable[[SparkSession], Any]) -> Future[Any]:
        """Call a function on the agent's thread."""
        return self._thread.submit(function, self._session)

    def close(self) -> None:
        """End the thread."""
        self.leave()
        self._thread.shutdown()

    def leave(self) -> None:
        """Roll back a block that is still open."""
        self._thread.submit(self._leave, Rollback()).result(PATIENCE)

    def _do(self, text: str, tables: Mapping[str, str], opens: Opens) -> Any:
        if text in ("BEGIN", "SNAPSHOT"):
            block = opens(self._session, text)
            block.__enter__()
            self._block = block
            return None
        if text == "COMMIT":
            block, self._block = self._block, None
            assert block is not None
            block.__exit__(None, None, None)
            return None
        if text == "ROLLBACK":
            return self._leave(Rollback())
        try:
            return self._run(filled(text, self._seen), tables)
        except BaseException as error:
            self._leave(error)
            raise

    def _run(self, text: str, tables: Mapping[str, str]) -> Rows | None:
        if text.startswith("INSERT") and " FRAME " in text:
            self._frame.write.insertInto(tables[text.split()[2]], overwrite=True)
            return None
        sql = _TABLE.sub(lambda found: f"{found[1]} {tables[found[2]]}", text)
        if text.startswith("FRAME"):
            self._frame = self._session.sql(sql.removeprefix("FRAME "))
            return None
        made = self._frame if text.startswith("SELECT FRAME") else self._session.sql(sql)
        if not text.startswith("SELECT"):
            return None
        rows = sorted((row.value, row.id) for row in made.collect())
        self._seen = {key: value for value, key in rows}
        return rows

    def _leave(self, error: BaseException) -> None:
        block, self._block = self._block, None
        if block is not None:
            try:
                block.__exit__(type(error), error, None)
            except BaseException as raised:
                if raised is not error:
                    raise


class Run:
    """One run of a schedule.

    Parameters
    ----------
    agents : mapping of str to Agent
    tables : mapping of str to str
        The full names of the schedule's tables.
    opens : callable
    """

    def __init__(self, agents: Mapping[str, Agent], tables: Mapping[str, str], opens: Opens) -> None:
        self._agents = agents
        self._tables = tables
        self._opens = opens
        self._open: dict[str, Unit] = {}
        self._paused: dict[str, tuple[Step, Future[Any], threading.Event]] = {}
        self._gone: set[str] = set()
        self.units: list[Unit] = []

    def all(self, steps: list[Step]) -> list[Unit]:
        """Do all steps, and return the transactions that they were."""
        try:
            for step in steps:
                self._step(step)
        finally:
            failpoints.disarm()
            for _, _, go in self._paused.values():
                go.set()
            for agent in self._agents.values():
                agent.leave()
        return self.units

    def _step(self, step: Step) -> None:
        if step.text == "RESUME":
            self._resume(step)
        elif step.text in ("BEGIN", "SNAPSHOT"):
            self._gone.discard(step.agent)
            self._open[step.agent] = self._new(step)
            self._start(step).result(PATIENCE)
        elif step.agent in self._gone:
            # Its block has ended with an error.
            if step.text in ("COMMIT", "ROLLBACK"):
                self._gone.discard(step.agent)
        else:
            if step.agent not in self._open and not step.text.startswith("FRAME"):
                self._open[step.agent] = self._new(step)
            self._begin(step)

    def _new(self, step: Step) -> Unit:
        unit = Unit(step.agent, step.number)
        self.units.append(unit)
        return unit

    def _start(self, step: Step) -> Future[Any]:
        return self._agents[step.agent].start(step.text, self._tables, self._opens)

    def _begin(self, step: Step) -> None:
        if not step.pause:
            self._end(step, self._start(step), step.number)
            return
        reached, go = threading.Event(), threading.Event()

        def stop(_: str) -> None:
            reached.set()
            go.wait(PATIENCE)

        failpoints.disarm()
        failpoints.arm(step.pause, stop, nth=step.nth)
        future = self._start(step)
        future.add_done_callback(lambda _: reached.set())  # Not all stores take so many steps.
        assert reached.wait(PATIENCE)
        if future.done():
            self._end(step, future, step.number)
        else:
            self._paused[step.agent] = (step, future, go)

    def _resume(self, step: Step) -> None:
        if step.agent not in self._paused:
            return
        paused, future, go = self._paused.pop(step.agent)
        failpoints.disarm()
        go.set()
        wait([future], PATIENCE)
        self._end(paused, future, step.number)

    def _end(self, step: Step, future: Future[Any], now: int) -> None:
        if step.text.startswith("FRAME"):
            future.result(PATIENCE)
            return
        unit = self._open[step.agent]
        in_block = unit.began < step.number
        try:
            rows = future.result(PATIENCE)
        except WriteConflictError as error:
            unit.refused, unit.ended = error, now
            if in_block and step.text != "COMMIT":
                self._gone.add(step.agent)
            del self._open[step.agent]
            return
        if step.text not in ("COMMIT", "ROLLBACK"):
            unit.steps.append(step)
        if rows is not None:
            unit.reads[step.number] = rows
        if step.text in ("COMMIT", "ROLLBACK") or not in_block:
            unit.committed, unit.ended = step.text != "ROLLBACK", now
            del self._open[step.agent]

"""One statement that reads a table twice, while another session writes the table between the two."""

from __future__ import annotations

import os
import select
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import twophase
from tests.isolation.places import WITH_OLD_STATES, World
from tests.isolation.schedules import PATIENCE
from twophase.errors import WriteConflictError


class Gate:
    """A stop inside of a statement, at which a task of the executors waits.

    Parameters
    ----------
    directory : Path
        Takes two named pipes.
    """

    def __init__(self, directory: Path) -> None:
        self._reached, self._go = str(directory / "reached"), str(directory / "go")
        for pipe in (self._reached, self._go):
            os.mkfifo(pipe)
        # For reading and writing: so neither side waits for the other one to open it.
        self._pipes = [os.open(pipe, os.O_RDWR) for pipe in (self._reached, self._go)]

    def close(self) -> None:
        self.open()
        for pipe in self._pipes:
            os.close(pipe)

    def function(self) -> Any:
        """A function of SQL that returns its argument once the gate is open."""
        reached, go = self._reached, self._go

        def gate(value: int) -> int:
            with open(reached, "wb", buffering=0) as pipe:
                pipe.write(b"x")
            with open(go, "rb", buffering=0) as pipe:
                pipe.read(1)
            return value

        return udf(gate, "int", useArrow=False)

    def wait(self, statement: Future[Any]) -> None:
        """Until the statement has come to the gate; raises its error if it ends before."""
        statement.add_done_callback(lambda _: self._reach())
        ready, _, _ = select.select([self._pipes[0]], [], [], PATIENCE)
        assert ready
        if statement.done():
            statement.result()

    def _reach(self) -> None:
        with suppress(OSError):  # It is closed by now.
            os.write(self._pipes[0], b"x")

    def open(self) -> None:
        """Let the statement go on."""
        os.write(self._pipes[1], b"x")


def check_one_statement(world: World, store: str, directory: Path) -> None:
    """Let T2 write a table between the two scans of one statement of T1, which is in a block."""
    table, gate = world.one_table(store), Gate(directory)
    sql = f"SELECT value, (SELECT gate(max(value)) FROM {table}) AS greatest FROM {table}"

    def read(session: SparkSession) -> set[tuple[int, int]]:
        session.udf.register("gate", gate.function())
        with twophase.transaction(session, isolation="snapshot"):
            return {(row.value, row.greatest) for row in session.sql(sql).collect()}

    try:
        reading = world.agents["T1"].call(read)
        gate.wait(reading)
        write = f"INSERT OVERWRITE {table} SELECT value + 100, id FROM {table}"
        world.agents["T2"].call(lambda session: session.sql(write)).result(PATIENCE)
        gate.open()
        seen = reading.result(PATIENCE)
        assert seen == {(10, 20), (20, 20)}
    except WriteConflictError:
        assert store not in WITH_OLD_STATES
    finally:
        gate.close()

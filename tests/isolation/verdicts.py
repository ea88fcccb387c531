"""Judges a run: what its transactions have seen and left, beside a model of each level.

The model runs the same statements on SQLite in memory, one transaction after the other, or each on its snapshot.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import permutations

from tests.isolation.hermitage import Kind
from tests.isolation.schedules import Rows, Step, Unit, filled

#: The rows of each table.
State = Mapping[str, Rows]
INITIAL: State = {table: [(10, 1), (20, 2)] for table in "abc"}
_INSERT = re.compile(r"INSERT (INTO|OVERWRITE) ([abc]) (?:PARTITION \(id = (\d)\) )?(?:FRAME )?(.*)")


@dataclass(frozen=True)
class Write:
    """The rows that a statement puts into a table, or into one partition of it."""

    table: str
    rows: Rows
    appends: bool
    partition: int | None

    def on(self, state: State) -> State:
        """The state with it."""
        rows = state[self.table]
        kept = rows if self.appends else [row for row in rows if self.partition not in (None, row[1])]
        return {**state, self.table: sorted([*kept, *self.rows])}

    def excludes(self, other: Write) -> bool:
        """Whether of two transactions with these writes only one can rest on a state without the other's."""
        if self.table != other.table or (self.appends and other.appends):
            return False
        return None in (self.partition, other.partition) or self.partition == other.partition


class Model:
    """One transaction on states that are given to it: what its statements read and write."""

    def __init__(self) -> None:
        self.reads: dict[int, Rows] = {}
        self.writes: list[Write] = []
        self._seen: dict[int, int] = {}

    def run(self, unit: Unit, state: Callable[[Step], State]) -> Model:
        """Run all statements, each on a state and what the transaction has written itself."""
        for step in unit.steps:
            now = replayed(self.writes, state(step))
            text = filled(step.text, self._seen)
            write = _INSERT.fullmatch(text)
            if write:
                self.writes.append(_written(write, now))
            else:
                rows = self.reads[step.number] = sorted(_query(text.removeprefix("SELECT FRAME "), now))
                self._seen = {key: value for value, key in rows}
        return self


def _written(match: re.Match[str], state: State) -> Write:
    mode, table, partition, query = match.groups()
    rows = _query(query, state)
    if partition:
        rows = [(row[0], int(partition)) for row in rows]
    return Write(table, rows, mode == "INTO", int(partition) if partition else None)


def _query(query: str, state: State) -> Rows:
    with closing(sqlite3.connect(":memory:")) as connection:
        for table, rows in state.items():
            connection.execute(f"CREATE TABLE {table} (value, id)")
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)
        return list(connection.execute(query))


def replayed(writes: Iterable[Write], state: State) -> State:
    """The state after some writes."""
    for write in writes:
        state = write.on(state)
    return state


class Judge:
    """What one run was.

    Parameters
    ----------
    units : list of Unit
        Its transactions.
    final : State
        What the tables hold in the end.
    """

    def __init__(self, units: Sequence[Unit], final: State) -> None:
        self._units = units
        self._committed = [unit for unit in units if unit.committed]
        self._final = {**INITIAL, **final}

    def kind(self) -> Kind:
        """The first kind that explains the run."""
        if self._is_serial():
            return Kind.SERIAL
        if self.read_one_state_each() is None and self._first_committer_has_won():
            return Kind.WRITE_SKEW
        return Kind.ANOMALY if self.read_committed_states() is None else Kind.DIRTY

    # -- one after the other -----------------------------------------------------------------------------------------

    def _is_serial(self) -> bool:
        return any(self._explains(order) for order in permutations(self._committed))

    def _explains(self, order: Iterable[Unit]) -> bool:
        state = INITIAL
        for unit in order:
            before = state
            model = Model().run(unit, lambda _, before=before: before)  # type: ignore[misc]
            if model.reads != unit.reads:
                return False
            state = replayed(model.writes, state)
        return state == self._final

    # -- each on its snapshot ----------------------------------------------------------------------------------------

    def read_one_state_each(self) -> str | None:
        """What a transaction has read, or left, that is not of the state in which it began."""
        return self._wrong(lambda unit, _: unit.began)

    def _first_committer_has_won(self) -> bool:
        writes = {id(unit): self._model(unit, lambda unit, _: unit.began).writes for unit in self._committed}
        return not any(
            first.excludes(second)
            for one, other in permutations(self._committed, 2)
            if one.began < other.ended and other.began < one.ended
            for first in writes[id(one)]
            for second in writes[id(other)]
        )

    # -- each statement on what is committed -------------------------------------------------------------------------

    def read_committed_states(self) -> str | None:
        """What a statement has read, or left, that is not of a state that was committed when it began.

        A DataFrame that is collected later may show what was committed when it was made, as one of Iceberg does.
        """
        first = self._wrong(lambda _, step: step.number)
        return first and self._wrong(lambda unit, step: unit.began if " FRAME " in step.text else step.number) and first

    def _wrong(self, moment: Callable[[Unit, Step], int]) -> str | None:
        models = {id(unit): self._model(unit, moment) for unit in self._units}
        for unit in self._units:
            expected = models[id(unit)].reads
            for number, rows in unit.reads.items():
                if rows != expected[number]:
                    return f"{unit.agent} has read {rows} at step {number}, and not {expected[number]}"
        results = [
            replayed((write for unit in order for write in models[id(unit)].writes), INITIAL)
            for order in permutations(self._committed)
        ]
        return None if self._final in results else f"the tables hold {self._final}"

    def _model(self, unit: Unit, moment: Callable[[Unit, Step], int]) -> Model:
        return Model().run(unit, lambda step: self._state_at(moment(unit, step), moment))

    def _state_at(self, number: int, moment: Callable[[Unit, Step], int]) -> State:
        """What was committed before a step."""
        state = INITIAL
        for unit in sorted(self._committed, key=lambda unit: unit.ended):
            if unit.ended < number:
                state = replayed(self._model(unit, moment).writes, state)
        return state

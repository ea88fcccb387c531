"""The checker of histories: planted anomalies are named, and serial histories have none."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.isolation.elle import Anomaly, Kind, check, violations
from tests.isolation.history import Append, Block, Operation, Read, Recorder, Sum, load


def history(*lines: str) -> list[Block]:
    """Blocks in a short form: ``name outcome: +table value, table values...``; all at once, but the final one."""
    return [_block(i, *line.split(":")) for i, line in enumerate(lines)]


def _block(number: int, head: str, body: str) -> Block:
    name, outcome, *times = head.split()
    began, ended = map(float, times or (0, 1))
    final = outcome == "final"
    operations = tuple(map(_operation, filter(None, (part.split() for part in body.split(",")))))
    times_ = (9.0, 10.0) if final else (began, math.inf if outcome == "info" else ended)
    return Block(name, f"process {number}", "ok" if final else outcome, operations, *times_, final=final)


def _operation(words: list[str]) -> Operation:
    table, *values = words
    if table == "sum":
        return Sum(int(values[0]))
    return Append(table[1:], int(values[0])) if table[0] == "+" else Read(table, tuple(map(int, values)))


def kinds(found: Iterable[Anomaly], *, in_time: bool = False) -> set[Kind]:
    return {anomaly.kind for anomaly in found if in_time or not anomaly.in_time}


# Tables a, b, c have an order, the others have none.
PLANTED = {
    Kind.DUPLICATE: ["W ok: +x 1", "R ok: x 1 1"],
    Kind.UNKNOWN: ["W ok: +x 1", "R ok: x 1 7"],
    Kind.OWN_WRITE: ["W ok: x, +x 1, x"],
    Kind.G0: ["T1 ok: +a 1, +b 1", "T2 ok: +a 2, +b 2", "R ok: a 1 2", "S ok: b 2 1"],
    Kind.G1A: ["W fail: +x 1", "R ok: x 1"],
    Kind.G1B: ["W ok: +x 1, +x 2", "R ok: x 1"],
    Kind.G1C: ["T1 ok: +x 1, y 2", "T2 ok: +y 2, x 1"],
    Kind.LOST: ["W ok: +x 1", "R final: x"],
    Kind.ORDER: ["T1 ok: +a 1", "T2 ok: +a 2", "R ok: a 1", "S ok: a 2 1"],
    Kind.FUZZY: ["W ok: +x 1", "R ok: x, x 1"],
    Kind.FRACTURED: ["W ok: +x 1, +y 1", "R ok: x 1, y"],
    Kind.P4: ["T1 ok: a, +a 1", "T2 ok: a, +a 2"],
    Kind.G_SINGLE: ["T1 ok: +x 1", "T2 ok: x 1, +y 2", "R ok: x, y 2"],
    Kind.G_NONADJACENT: ["T1 ok: +x 1", "T2 ok: +y 2", "R ok: x 1, y", "S ok: x, y 2"],
    Kind.BANK: ["R ok: sum 99"],
    Kind.G2: ["T1 ok: x, y, +x 1", "T2 ok: x, y, +y 2"],
}


@pytest.mark.parametrize("kind", Kind)
def test_a_planted_anomaly_is_named(kind: Kind) -> None:
    assert kind in kinds(check(history(*PLANTED[kind]), ordered="abc", total=100))


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        # The circle through a table with an order: T2 overwrites what T1 has not seen, and T1 goes on.
        (Kind.G_SINGLE, ["T1 ok: a, +a 1", "T2 ok: a, +a 2", "R ok: a 1 2"]),
        (Kind.G2, ["T1 ok: a, b, +a 1", "T2 ok: a, b, +b 2", "R final: a 1, b 2"]),
        (Kind.G2, ["T1 ok: x, +x 1", "T2 ok: x, +x 2"]),
        # Of a block whose end nobody knows, a half was published.
        (Kind.LOST, ["W info: +x 1, +y 1", "R final: x 1, y"]),
        (Kind.FRACTURED, ["W info: +x 1, +y 1", "R ok: x 1, y"]),
        # Also a block that was rolled back may only have seen what was there.
        (Kind.G_SINGLE, ["T1 ok: +x 1", "T2 ok: x 1, +y 2", "R fail: x, y 2, +z 3"]),
        # Interleaved writes of one table.
        (Kind.G0, ["T1 ok: +a 1, +a 3", "T2 ok: +a 2", "R ok: a 1 2 3"]),
    ],
)
def test_an_anomaly_that_shows_in_another_way_is_named(kind: Kind, lines: list[str]) -> None:
    assert kind in kinds(check(history(*lines), ordered="abc"))


def test_what_only_the_times_show_is_told_as_such() -> None:
    stale = history("W ok 0 1: +x 1", "R ok 2 3: x", "S ok 0 9: x")
    (found,) = check(stale)
    assert (found.kind, found.blocks[0], found.in_time) == (Kind.G_SINGLE, "R", True)
    assert "rt" in found.why


@pytest.mark.parametrize(
    "lines",
    [
        ["T1 ok: a, +a 1", "T2 ok: a 1, +a 2, a 1 2", "R ok: a", "S ok: a 1", "F final: a 1 2"],
        ["T1 ok: +x 1", "T2 ok: +x 2", "R ok: x 2", "S ok: x 1 2", "F final: x 1 2"],
        ["W fail: +x 1, x 1", "R ok: x", "F final: x"],
        # A value of an unknown end is there, and another one is not.
        ["W info: +x 1, +y 1", "V info: +x 2, +y 2", "F final: x 1, y 1"],
        ["R ok: sum 100", "S fail: sum 100"],
    ],
)
def test_a_clean_history_has_no_anomaly(lines: list[str]) -> None:
    assert check(history(*lines), ordered="abc", total=100) == []


def test_write_skew_is_what_snapshots_allow_and_serializable_does_not() -> None:
    skew, read_skew = check(history(*PLANTED[Kind.G2])), check(history(*PLANTED[Kind.G_SINGLE]))
    assert skew and not violations(skew, "snapshot") and violations(skew, "serializable")
    assert read_skew and not violations(read_skew, "read_committed") and violations(read_skew, "snapshot")


def test_a_circle_tells_each_of_its_edges() -> None:
    (found,) = (a for a in check(history(*PLANTED[Kind.G_SINGLE])) if a.kind is Kind.G_SINGLE)
    assert str(found) == "G-single: R -[rw x: 1]-> T1 -[wr x: 1]-> T2 -[wr y: 2]-> R"


def test_a_value_with_two_writers_is_no_history() -> None:
    with pytest.raises(ValueError, match="Two blocks append 1 to x"):
        check(history("T1 ok: +x 1", "T2 ok: +x 1"))


# -- histories of a store that works --------------------------------------------------------------------------------

LISTS, SETS = ("a", "b"), ("x", "y")
TABLES = (*LISTS, *SETS)


@dataclass
class Running:
    """A block of :class:`Store` that has not ended."""

    block: Block
    snapshot: dict[str, list[int]]
    written: dict[str, list[int]]


class Store:
    """Tables in memory, with blocks side by side: what each level is, in as few lines as that takes.

    Parameters
    ----------
    level : str
    """

    def __init__(self, level: str) -> None:
        self._level = level
        self._tables: dict[str, list[int]] = {table: [] for table in TABLES}
        self._running: dict[int, Running] = {}
        self._clock = self._values = 0
        self.blocks: list[Block] = []

    def step(self, process: int, choice: int) -> None:
        """Let a process do its next step: begin, read or write a table, or end, by a number."""
        self._clock += 1
        if process not in self._running:
            block = Block(f"T{self._clock}", str(process), "info", (), self._clock)
            self._running[process] = Running(block, {t: [*v] for t, v in self._tables.items()}, {})
            return
        action, table = divmod(choice, len(TABLES))
        if action >= 2:
            self.end(process, abort=action == 3)
        elif action == 0 or TABLES[table] in LISTS:
            self._read(self._running[process], TABLES[table])
        if action == 1:
            self._append(self._running[process], TABLES[table])

    def _read(self, running: Running, table: str) -> None:
        now = self._tables if self._level == "read_committed" else running.snapshot
        self._did(running, Read(table, (*now[table], *running.written.get(table, ()))))

    def _append(self, running: Running, table: str) -> None:
        self._values += 1
        running.written.setdefault(table, []).append(self._values)
        self._did(running, Append(table, self._values))

    def _did(self, running: Running, operation: Operation) -> None:
        running.block = replace(running.block, operations=(*running.block.operations, operation))

    def end(self, process: int, *, abort: bool = False, told: bool = True) -> None:
        """Commit, unless there is a conflict; or roll back."""
        self._clock += 1
        running = self._running.pop(process)
        read = {op.table for op in running.block.operations if isinstance(op, Read)}
        meets = read if self._level == "serializable" else {t for t in running.written if t in LISTS}
        conflicts = self._level != "read_committed" and any(self._tables[t] != running.snapshot[t] for t in meets)
        goes = not abort and not (conflicts and running.written)
        if goes:
            for table, values in running.written.items():
                self._tables[table] += values
        outcome = ("ok" if goes else "fail") if told else "info"
        ended = self._clock if told else math.inf
        self.blocks.append(replace(running.block, outcome=outcome, ended=ended))

    def finish(self) -> list[Block]:
        """Let all end, some in doubt, and read what is left."""
        for process in [*self._running]:
            self.end(process, told=process % 2 == 0)
        operations = tuple(Read(table, tuple(values)) for table, values in self._tables.items())
        return [*self.blocks, Block("final", "final", "ok", operations, self._clock + 1, self._clock + 2, final=True)]


STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4 * len(TABLES) - 1)), max_size=60)
#: One after the other: a process goes on until its block has ended.
SERIAL = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2 * len(TABLES) - 1), max_size=5)), max_size=15)


def concurrent(level: str, steps: list[tuple[int, int]]) -> list[Block]:
    store = Store(level)
    for process, choice in steps:
        store.step(process, choice)
    return store.finish()


def serial(blocks: list[tuple[int, list[int]]]) -> list[Block]:
    store = Store("serializable")
    for process, choices in blocks:
        store.step(process, 0)
        for choice in choices:
            store.step(process, choice)
        store.end(process, abort=len(choices) == 5)
    return store.finish()


@given(SERIAL)
@settings(deadline=None)
def test_a_serial_history_raises_no_alarm(blocks: list[tuple[int, list[int]]]) -> None:
    assert check(serial(blocks), ordered=LISTS) == []


@pytest.mark.parametrize("level", ["snapshot", "serializable"])
@given(steps=STEPS)
@settings(deadline=None)
def test_a_concurrent_history_has_what_its_level_allows(level: str, steps: list[tuple[int, int]]) -> None:
    assert violations(check(concurrent(level, steps), ordered=LISTS), level) == []


@pytest.mark.parametrize(
    ("level", "kinds_found"),
    [
        ("read_committed", {Kind.FUZZY, Kind.FRACTURED, Kind.P4, Kind.G_SINGLE, Kind.G2}),
        ("snapshot", {Kind.G2}),
        ("serializable", set()),
    ],
)
def test_of_many_histories_the_checker_finds_all_that_a_level_allows(level: str, kinds_found: set[Kind]) -> None:
    found: set[Kind] = set()
    for seed in range(50):
        dice = Random(seed)
        found |= kinds(
            check(concurrent(level, [(dice.randrange(4), dice.randrange(16)) for _ in range(80)]), ordered=LISTS)
        )
    assert found == kinds_found


@given(SERIAL, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_serial_history_in_which_one_thing_was_changed_is_found(
    blocks: list[tuple[int, list[int]]], dice: Random
) -> None:
    clean = serial(blocks)
    for kind, changed in _mutants(clean, dice):
        assert kind in kinds(check(changed, ordered=LISTS), in_time=True), kind


def _mutants(blocks: list[Block], dice: Random) -> Iterable[tuple[Kind, list[Block]]]:
    *others, final = blocks
    reads = [(i, j) for i, b in enumerate(others) for j, op in enumerate(b.operations) if isinstance(op, Read)]
    full = [place for place in reads if _at(others, place).values]
    kept = [op for op in final.operations if isinstance(op, Read) and op.values]
    if kept:
        lost = dice.choice(kept)
        rest = tuple(op for op in final.operations if op is not lost)
        yield Kind.LOST, [*others, replace(final, operations=(*rest, Read(lost.table, lost.values[:-1])))]
    if full:
        place = dice.choice(full)
        table, values = _at(others, place).table, _at(others, place).values
        yield Kind.DUPLICATE, [*_with(others, place, Read(table, (*values, values[0]))), final]
        yield Kind.UNKNOWN, [*_with(others, place, Read(table, (*values, 1000))), final]
    rolled_back = [
        (op.table, op.value) for b in others if b.outcome == "fail" for op in b.operations if isinstance(op, Append)
    ]
    own = {(op.table, op.value): b for b in others for op in b.operations if isinstance(op, Append)}
    for table, value in rolled_back[:1]:
        for place in (p for p in reads if _at(others, p).table == table and others[p[0]] is not own[table, value]):
            changed = Read(table, (*_at(others, place).values, value))
            yield Kind.G1A, [*_with(others, place, changed), final]


def _at(blocks: list[Block], place: tuple[int, int]) -> Read:
    operation = blocks[place[0]].operations[place[1]]
    assert isinstance(operation, Read)
    return operation


def _with(blocks: list[Block], place: tuple[int, int], operation: Operation) -> list[Block]:
    block, position = place
    operations = [*blocks[block].operations]
    operations[position] = operation
    return [*blocks[:block], replace(blocks[block], operations=tuple(operations)), *blocks[block + 1 :]]


@given(SERIAL, st.data())
@settings(deadline=None)
def test_a_read_of_an_older_state_is_found_in_a_serial_history(
    blocks: list[tuple[int, list[int]]], data: st.DataObject
) -> None:
    clean = serial(blocks)
    stale = [
        (i, j)
        for i, block in enumerate(clean[:-1])
        for j, op in enumerate(block.operations)
        if isinstance(op, Read) and _others(clean, block, op)
    ]
    assume(stale)
    place = data.draw(st.sampled_from(stale))
    read = _at(clean, place)
    old = Read(read.table, tuple(v for v in read.values if v not in _others(clean, clean[place[0]], read)))
    found = check(_with(clean, place, old), ordered=LISTS)
    assert violations(found, "snapshot"), found


def _others(blocks: list[Block], block: Block, read: Read) -> set[int]:
    """What it has read of a block that was acknowledged before."""
    own = {op.value for op in block.operations if isinstance(op, Append)}
    known = {op.value for b in blocks if b.outcome == "ok" for op in b.operations if isinstance(op, Append)}
    return {*read.values} & known - own


# -- the record -----------------------------------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written_but_for_a_line_that_a_death_has_cut(tmp_path: Path) -> None:
    file = tmp_path / "1.jsonl"
    recorder = Recorder(file)
    recorder.write("invoke", "1", process="p", time=1.0)
    for operation in (Append("x", 1), Read("x", (1,)), Sum(100)):
        recorder.operation("1", operation)
    recorder.write("ok", "1", time=2.0)
    recorder.write("invoke", "2", process="p", time=3.0)
    recorder.close()
    with file.open("a") as raw:
        raw.write('{"event": "op", "bl')
    one, two = load([file])
    assert one == Block("1", "p", "ok", (Append("x", 1), Read("x", (1,)), Sum(100)), 1.0, 2.0)
    assert two == Block("2", "p", "info", (), 3.0)

"""Writers of one table: what they wait for, who gets through, and what the others are told; on both timelines."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.core.bench import Bench, child, path, reserve, run_shape_in, stage, with_rows, write
from tests.core.test_timeline import begin
from twophase import failpoints
from twophase.catalog import TwoPhaseCatalogTable
from twophase.errors import TransactionAborted, WriteConflictError
from twophase.failpoints import EXIT_CODE
from twophase.hooks.interrupts import deferred_interrupts
from twophase.model import Isolation, Purpose
from twophase.protocol.states import TransactionState
from twophase.testing._participant import ChaosTable
from twophase.timeline.reservations import MANY_PARTS, WHOLE_TABLE, Mode, Reservation
from twophase.timeline.timeline import Timeline
from twophase.transactions.transaction import Transaction

APPEND = Reservation(Mode.APPEND)
OVERWRITE = Purpose.CREATE_OR_REPLACE_TABLE_AS


@pytest.fixture
def bench(url: str, tmp_path: Path) -> Iterator[Bench]:
    """Tables ``one.a`` and ``one.b`` with rows 1 and 2."""
    bench = Bench(url, tmp_path)
    for name in ("a", "b"):
        with_rows(bench, name)
    yield bench
    bench.close()


@pytest.fixture
def timeline(url: str) -> Iterator[Timeline]:
    with closing(Timeline(url)) as timeline:
        yield timeline


def rows(number: int) -> pa.Table:
    return pa.table({"id": [number]})


def ids(bench: Bench, name: str) -> list[int]:
    return sorted(row["id"] for row in bench.catalogs["one"].rows(path(name)))


def append(tx: Transaction, bench: Bench, name: str, number: int) -> TwoPhaseCatalogTable:
    return write(tx, bench.catalogs["one"], name, Purpose.INSERT_INTO, rows(number))


def overwrite(tx: Transaction, bench: Bench, name: str, number: int) -> TwoPhaseCatalogTable:
    return write(tx, bench.catalogs["one"], name, OVERWRITE, rows(number))


def at_once(*functions: Callable[[], Any]) -> list[BaseException]:
    """Run them in threads of their own; what they raised."""
    raised: list[BaseException] = []
    barrier = threading.Barrier(len(functions))

    def run(function: Callable[[], Any]) -> None:
        try:
            barrier.wait(60)
            function()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return raised


# -- who excludes whom ------------------------------------------------------------------------------------------------


def test_a_table_is_written_by_one_transaction_at_a_time(timeline: Timeline) -> None:
    first, second = begin(timeline, "app-1"), begin(timeline, "app-2")
    assert reserve(timeline, first, "t") is None
    assert reserve(timeline, first, "t") is None
    assert reserve(timeline, second, "t") == "app-1"
    assert reserve(timeline, second, "t", catalog="other") is None
    assert timeline.holders("hive", path("t")) == {"app-1": WHOLE_TABLE}
    timeline.record(first, TransactionState.ROLLED_BACK)
    timeline.finish(first)
    assert timeline.holders("hive", path("t")) == {}
    assert reserve(timeline, second, "t") is None


def test_appends_share_a_table_and_a_write_is_alone(timeline: Timeline) -> None:
    first, second, third = (begin(timeline, f"app-{number}") for number in range(3))
    assert reserve(timeline, first, "t", APPEND) is None
    assert reserve(timeline, second, "t", APPEND) is None
    assert reserve(timeline, third, "t") == "app-0"
    assert reserve(timeline, first, "t") == "app-1", "an append becomes a write only when it is alone"
    timeline.finish(second)
    assert reserve(timeline, first, "t") is None
    assert reserve(timeline, third, "t", APPEND) == "app-0"
    assert timeline.holders("hive", path("t")) == {"app-0": WHOLE_TABLE}


def test_writes_of_parts_that_do_not_meet_share_a_table(timeline: Timeline) -> None:
    first, second, third = (begin(timeline, f"app-{number}") for number in range(3))
    parts = [frozenset({"p=1", "p=ü"}), frozenset({"p=2"}), frozenset({"p=2", "p=3"})]
    assert reserve(timeline, first, "t", Reservation(scope=parts[0])) is None
    assert reserve(timeline, second, "t", Reservation(scope=parts[1])) is None
    assert reserve(timeline, third, "t", Reservation(scope=parts[2])) == "app-1"
    assert reserve(timeline, third, "t", Reservation(Mode.APPEND, parts[2])) == "app-1"
    assert reserve(timeline, third, "t", APPEND) == "app-0"
    assert reserve(timeline, third, "t", Reservation(scope=frozenset())) is None
    held = {f"app-{n}": Reservation(scope=scope) for n, scope in enumerate([parts[0], parts[1], frozenset()])}
    assert timeline.holders("hive", path("t")) == held


def test_a_suspended_transaction_keeps_what_is_unfinished_and_shares_it_with_no_append(timeline: Timeline) -> None:
    first, second = begin(timeline, "app-1"), begin(timeline, "app-2")
    for name in ("a", "b", "c"):
        assert reserve(timeline, first, name, APPEND) is None
    timeline.record(first, TransactionState.ROLLED_BACK)
    timeline.suspend(first, [("hive", path("b"))])
    wanted = [("hive", path(name), APPEND) for name in ("a", "c", "b")]
    assert timeline.reserve_all(second, wanted) == (2, "app-1")


def test_several_tables_are_reserved_up_to_the_first_that_another_keeps(timeline: Timeline) -> None:
    first, second = begin(timeline, "app-1"), begin(timeline, "app-2")
    assert reserve(timeline, first, "c") is None
    wanted = [("hive", path(name), WHOLE_TABLE) for name in "abcd"]
    assert timeline.reserve_all(second, wanted) == (2, "app-1")
    assert [list(timeline.holders("hive", path(name))) for name in "abcd"] == [["app-2"], ["app-2"], ["app-1"], []]
    timeline.finish(first)
    assert timeline.reserve_all(second, wanted[2:]) == (2, None)


@pytest.mark.parametrize("isolation", Isolation)
def test_a_commit_reserves_all_its_tables_in_one_step(bench: Bench, isolation: Isolation) -> None:
    for number in range(10):
        with_rows(bench, f"r{number}")
    tx = bench.coordinator().begin(isolation)
    for number in range(10):
        tx.note_read(bench.catalogs["one"], path(f"r{number}"), bench.catalogs["one"].table_version(path(f"r{number}")))
    append(tx, bench, "a", 3)
    append(tx, bench, "b", 4)
    failpoints.arm("core.reserve", lambda _: None)
    tx.commit()
    assert failpoints.reached()["core.reserve"] == 1
    failpoints.disarm()


@pytest.mark.parametrize("mode", [Mode.WRITE, Mode.APPEND])
def test_of_many_who_reserve_at_once_one_writes_or_all_append(url: str, mode: Mode) -> None:
    timelines = [Timeline(url) for _ in range(6)]
    leases = [begin(timeline, f"app-{number}") for number, timeline in enumerate(timelines)]
    holders: list[str | None] = []

    def attempt(timeline: Timeline, lease: Any) -> None:
        holders.append(reserve(timeline, lease, "t", Reservation(mode)))

    pairs = zip(timelines, leases, strict=True)
    assert at_once(*(lambda pair=pair: attempt(*pair) for pair in pairs)) == []
    for timeline in timelines:
        timeline.close()
    assert holders.count(None) == (1 if mode is Mode.WRITE else 6)
    assert len(set(holders)) == (2 if mode is Mode.WRITE else 1)


def test_a_statement_takes_over_what_those_before_it_need_of_the_table(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    overwrite(tx, bench, "a", 3)
    append(tx, bench, "a", 4)
    append(tx, bench, "b", 5)
    held = held_at_the_decision(tx, bench, "a", "b")
    assert held == [{tx.id: WHOLE_TABLE}, {tx.id: APPEND}]
    assert (ids(bench, "a"), ids(bench, "b")) == ([3, 4], [1, 2, 5])


class Partitioned(ChaosTable):
    """It writes the partitions that its rows name."""

    parts: frozenset[str] | None = None

    def reservation_scope(self) -> frozenset[str] | None:
        return self.parts


@pytest.mark.parametrize(
    ("parts", "reserved"),
    [
        (frozenset({"p=1"}), frozenset({"p=1"})),
        (frozenset(map(str, range(MANY_PARTS + 1))), None),
        (None, None),
    ],
    ids=["one", "too many to list", "all"],
)
def test_a_participant_says_what_it_writes(
    bench: Bench, parts: frozenset[str] | None, reserved: frozenset[str] | None
) -> None:
    tx = bench.coordinator().begin()
    participant = overwrite(tx, bench, "a", 3)
    participant.__class__ = Partitioned
    participant.parts = parts  # type: ignore[attr-defined]
    assert held_at_the_decision(tx, bench, "a") == [{tx.id: Reservation(scope=reserved)}]


def held_at_the_decision(tx: Transaction, bench: Bench, *names: str) -> list[dict[str, Reservation]]:
    """What is reserved when a transaction decides; before and after that nothing is."""
    found: list[dict[str, Reservation]] = []
    timeline = bench.coordinator().timeline

    def held() -> list[dict[str, Reservation]]:
        return [timeline.holders("one", path(name)) for name in names]

    assert held() == [{} for _ in names]
    failpoints.arm("core.record_committing", lambda _: found.extend(held()))
    tx.commit()
    failpoints.disarm()
    assert held() == [{} for _ in names]
    return found


# -- who waits --------------------------------------------------------------------------------------------------------


class Publishing:
    """A transaction that has decided, and publishes when it is let go."""

    def __init__(self, bench: Bench, step: str = "core.record_committing") -> None:
        self._there, self._go, self._mine = threading.Event(), threading.Event(), threading.get_ident()
        self.tx = bench.coordinator().begin()
        overwrite(self.tx, bench, "a", 7)
        failpoints.arm(step, self._wait, nth=1)
        self._thread = threading.Thread(target=self.tx.commit)
        self._thread.start()
        assert self._there.wait(60)

    def _wait(self, _: str) -> None:
        self._there.set()
        assert self._go.wait(60)

    def go(self) -> None:
        self._go.set()
        self._thread.join(60)


def waits(bench: Bench, holder: Publishing) -> Any:
    """A coordinator whose transactions let the holder go as soon as they wait."""
    coordinator = bench.coordinator()
    clear = coordinator.clear

    def and_let_go(transaction_id: str) -> Any:
        found = clear(transaction_id)
        holder.go()
        return found

    coordinator.clear = and_let_go
    return coordinator


def test_a_statement_begins_with_what_another_one_is_just_publishing(bench: Bench) -> None:
    holder = Publishing(bench)
    tx = waits(bench, holder).begin()
    overwrite(tx, bench, "a", 8)
    tx.commit()
    assert ids(bench, "a") == [8]


def test_an_append_that_waited_goes_on_top_and_an_overwrite_of_what_was_there_is_refused(bench: Bench) -> None:
    appending, overwriting = (bench.coordinator().begin() for _ in range(2))
    append(appending, bench, "a", 8)
    overwrite(overwriting, bench, "a", 9)
    holder = Publishing(bench)
    for tx in (appending, overwriting):
        tx._life.coordinator = waits(bench, holder)
    raised = at_once(appending.commit, overwriting.commit)
    assert ids(bench, "a") == [7, 8]
    assert [type(error) for error in raised] == [WriteConflictError]


@pytest.mark.promise(
    "conflicts",
    "a write waits for a publish of its table only as long as `spark.twophase.wait`, and names the holder",
)
@pytest.mark.parametrize("purpose", [Purpose.INSERT_INTO, OVERWRITE])
def test_a_write_waits_only_so_long_and_names_the_holder(bench: Bench, purpose: Purpose) -> None:
    tx = bench.coordinator(wait_seconds=0.2).begin()
    write(tx, bench.catalogs["one"], "a", purpose)
    holder = Publishing(bench)
    with pytest.raises(WriteConflictError, match=rf"{holder.tx.id} after 0\.2 s.*twophase show {holder.tx.id}"):
        tx.commit()
    assert tx.state is TransactionState.ROLLED_BACK
    holder.go()
    assert ids(bench, "a") == [7]
    assert bench.staged() == []


def test_without_patience_a_statement_is_refused_before_its_job_and_leaves_no_row(bench: Bench) -> None:
    holder = Publishing(bench)
    tx = bench.coordinator(wait_seconds=0.0).begin()
    with pytest.raises(WriteConflictError, match=holder.tx.id):
        stage(tx, bench.catalogs["one"], "a", OVERWRITE)
    assert bench.coordinator().timeline.transaction(tx.id) is None
    holder.go()


@pytest.mark.promise("conflicts", "a signal ends the waiting for another writer")
def test_a_signal_ends_the_waiting(bench: Bench, pythons_own_handler: None) -> None:
    tx = bench.coordinator(wait_seconds=3600.0).begin()
    append(tx, bench, "a", 8)
    holder = Publishing(bench)
    with pytest.raises(KeyboardInterrupt) as caught, deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        tx.commit()
    assert isinstance(caught.value.__context__, TransactionAborted)
    assert tx.state is TransactionState.ROLLED_BACK
    holder.go()


# -- transactions in each other's way ---------------------------------------------------------------------------------


@pytest.mark.promise("reservations", "of crossed overwrites one always gets through")
@pytest.mark.parametrize("together", [True, False])
def test_of_crossed_overwrites_one_gets_through(bench: Bench, together: bool) -> None:
    one, other = (bench.coordinator().begin() for _ in range(2))
    for tx, names, number in ((one, "ab", 3), (other, "ba", 4)):
        for name in names:
            overwrite(tx, bench, name, number)
    raised = at_once(one.commit, other.commit) if together else [*at_once(one.commit), *at_once(other.commit)]
    assert [type(error) for error in raised] == [WriteConflictError]
    assert {one.state, other.state} == {TransactionState.COMPLETED, TransactionState.ROLLED_BACK}
    winner = 3 if one.state is TransactionState.COMPLETED else 4
    assert (ids(bench, "a"), ids(bench, "b")) == ([winner], [winner])
    assert bench.staged() == []


@pytest.mark.promise("reservations", "of crossed inserts both get through")
def test_of_crossed_inserts_both_get_through(bench: Bench) -> None:
    one, other = (bench.coordinator().begin() for _ in range(2))
    for tx, names, number in ((one, "ab", 3), (other, "ba", 4)):
        for name in names:
            append(tx, bench, name, number)
    assert at_once(one.commit, other.commit) == []
    assert (ids(bench, "a"), ids(bench, "b")) == ([1, 2, 3, 4], [1, 2, 3, 4])


@pytest.mark.promise("reservations", "a long transaction does not prevent others from writing its tables")
def test_a_long_transaction_keeps_nobody_from_writing_its_tables(bench: Bench) -> None:
    coordinator = bench.coordinator(wait_seconds=0.0)
    appending, overwriting = coordinator.begin(), coordinator.begin()
    append(appending, bench, "a", 3)
    append(appending, bench, "a", 4)
    overwrite(overwriting, bench, "b", 3)
    for name in ("a", "b"):
        for change in (append, overwrite):
            tx = coordinator.begin()
            change(tx, bench, name, 9)
            tx.commit()
    appending.commit()
    with pytest.raises(WriteConflictError):
        overwriting.commit()  # What it replaces is not what it found.
    assert (ids(bench, "a"), ids(bench, "b")) == ([3, 4, 9], [9])


# -- what a transaction has read --------------------------------------------------------------------------------------


def read(tx: Transaction, bench: Bench, name: str) -> list[int]:
    catalog = bench.catalogs["one"]
    tx.note_read(catalog, path(name), catalog.table_version(path(name)))
    return ids(bench, name)


@pytest.mark.parametrize("meanwhile", [append, overwrite])
def test_what_was_read_and_changed_since_is_not_replaced(bench: Bench, meanwhile: Callable[..., Any]) -> None:
    tx, other = bench.coordinator().begin(), bench.coordinator().begin()
    read(tx, bench, "a")
    meanwhile(other, bench, "a", 9)
    other.commit()
    read(tx, bench, "a")  # A second look does not make the first one undone.
    after = ids(bench, "a")
    with pytest.raises(WriteConflictError, match=r"one\.default\.a .*has read it"):
        stage(tx, bench.catalogs["one"], "a", OVERWRITE)
    append(tx, bench, "a", 5)
    overwrite(tx, bench, "b", 6)
    tx.commit()
    assert (ids(bench, "a"), ids(bench, "b")) == (sorted([*after, 5]), [6])


def test_what_changes_while_a_statement_is_offered_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = bench.catalogs["one"]
    tx, other = bench.coordinator().begin(), bench.coordinator().begin()
    read(tx, bench, "a")
    overwrite(other, bench, "a", 9)
    offer = type(catalog).two_phase_create_table

    def late(self: Any, *arguments: Any, **more: Any) -> Any:
        other.commit()
        return offer(self, *arguments, **more)

    monkeypatch.setattr(type(catalog), "two_phase_create_table", late)
    with pytest.raises(WriteConflictError):
        stage(tx, catalog, "a", OVERWRITE)


def test_a_table_that_was_read_and_is_gone_is_not_made_anew(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    read(tx, bench, "a")
    bench.catalogs["one"].drop_table(path("a"))
    with pytest.raises(WriteConflictError):
        stage(tx, bench.catalogs["one"], "a", OVERWRITE)


def test_its_own_statements_do_not_stand_in_its_way(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    read(tx, bench, "a")
    append(tx, bench, "a", 3)
    overwrite(tx, bench, "a", 4)
    overwrite(tx, bench, "a", 5)
    tx.commit()
    assert ids(bench, "a") == [5]


# -- dead holders -----------------------------------------------------------------------------------------------------


def die(bench: Bench, step: str, shape: str = "single", name: str = "theirs") -> None:
    """A driver of another application dies at a step."""
    process = child(run_shape_in, bench.url, bench.directory, shape, 60.0, name, failpoint=f"{step}=exit_after@1")
    process.join(60)
    assert process.exitcode == EXIT_CODE


@pytest.mark.promise("reservations", "an undecided transaction of a dead process is rolled back by whoever meets it")
def test_whoever_meets_what_a_dead_process_has_not_decided_rolls_it_back(bench: Bench) -> None:
    die(bench, "core.reserve")
    tx = bench.coordinator(name="ours").begin()
    write(tx, bench.catalogs["one"], "t", rows=rows(8))
    tx.commit()
    assert ids(bench, "t") == [8]
    assert bench.staged() == []


@pytest.mark.promise("reservations", "a decided transaction of a dead process is completed by whoever meets it")
def test_whoever_meets_what_a_dead_process_has_decided_carries_it_on(bench: Bench) -> None:
    die(bench, "core.publish", "several")
    assert (bench.tables(), len(bench.staged())) == (["one.a", "one.b", "one.t"], 1)
    tx = bench.coordinator(name="ours").begin()
    append(tx, bench, "t", 8)
    tx.commit()
    assert ids(bench, "t") == [1, 2, 8]
    assert "two.u" in bench.tables()
    assert bench.staged() == []


def test_a_dead_holder_over_a_catalog_that_is_not_here_is_told_at_once_with_the_reason(bench: Bench) -> None:
    die(bench, "core.publish", "several")
    here = bench.coordinator(name="ours")
    two = bench.catalogs.pop("two")
    tx = here.begin()
    with pytest.raises(WriteConflictError, match=r"could not be ended from here: .*two.*twophase recover theirs-"):
        stage(tx, bench.catalogs["one"], "t", OVERWRITE)
    bench.catalogs["two"] = two
    assert [r.state for r in bench.coordinator().recover(own_only=False)] == [TransactionState.COMPLETED]


def test_a_silent_holder_of_another_coordinator_is_left_alone(bench: Bench) -> None:
    holder = Publishing(bench)
    coordinator = bench.coordinator(name="ours", wait_seconds=0.2)
    coordinator.timeline.now = lambda: 2**40  # type: ignore[method-assign]
    with pytest.raises(WriteConflictError, match=holder.tx.id):
        stage(coordinator.begin(), bench.catalogs["one"], "a", OVERWRITE)
    holder.go()
    assert holder.tx.state is TransactionState.COMPLETED


def test_what_dead_processes_have_decided_is_carried_on_where_all_catalogs_are_here(bench: Bench) -> None:
    die(bench, "core.write", "single")
    die(bench, "core.publish", "several")
    two = bench.catalogs.pop("two")
    ours = bench.coordinator(name="ours")
    assert ours.carry_on() == []
    bench.catalogs["two"] = two
    assert [r.state for r in ours.carry_on()] == [TransactionState.COMPLETED]
    assert "two.u" in bench.tables()
    assert [r.state for r in ours.timeline.transactions(open_only=True)] == [TransactionState.INFLIGHT]

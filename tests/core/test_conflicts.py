"""Conflict policies: who waits, who is refused and who is rolled back; on both timelines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.core.bench import DEFINITION, Bench, child, path, stage, with_rows
from tests.core.test_reservations import append, at_once, ids, overwrite, rows
from twophase import failpoints
from twophase.errors import ConfigurationError, LeaseLostError, TransactionAborted, WoundedError, WriteConflictError
from twophase.failpoints import EXIT_CODE
from twophase.model import Isolation, Purpose
from twophase.protocol.states import TransactionState
from twophase.timeline.owners import clock
from twophase.timeline.timeline import Timeline
from twophase.transactions.conflict_policy import (
    ConflictPolicy,
    Contender,
    Fail,
    Resolution,
    WaitDie,
    WoundWait,
    conflict_policy,
)
from twophase.transactions.transaction import Transaction

OVERWRITE = Purpose.CREATE_OR_REPLACE_TABLE_AS


@pytest.fixture
def bench(url: str, tmp_path: Path) -> Iterator[Bench]:
    """Tables ``one.a`` and ``one.b`` with rows 1 and 2."""
    bench = Bench(url, tmp_path)
    for name in ("a", "b"):
        with_rows(bench, name)
    yield bench
    bench.close()


def begun(bench: Bench, policy: ConflictPolicy, count: int = 2, **terms: Any) -> list[Transaction]:
    """Transactions, each of a coordinator of its own, the oldest first."""
    return [
        bench.coordinator().begin(conflict=policy, first_begun=clock() - 100 + number, **terms)
        for number in range(count)
    ]


def in_thread(function: Callable[[], Any]) -> Callable[[], BaseException | None]:
    """Start a function; the result waits for its end and returns what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def ended() -> BaseException | None:
        thread.join(60)
        assert not thread.is_alive()
        return raised[0] if raised else None

    return ended


def waits(timeline: Timeline, tx: Transaction) -> None:
    """Return once a transaction waits for another one."""
    gate = threading.Event()
    while not any(lock.transaction_id == tx.id and lock.since is not None for lock in timeline.locks()):
        gate.wait(0.01)


def states(*transactions: Transaction) -> list[str]:
    return [tx.state.name for tx in transactions]


# -- the policies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [WaitDie(), Fail()])
def test_a_younger_one_is_refused_before_its_job(bench: Bench, policy: ConflictPolicy) -> None:
    old, young = begun(bench, policy)
    overwrite(old, bench, "a", 3)
    with pytest.raises(WriteConflictError, match=old.id):
        stage(young, bench.catalogs["one"], "a", OVERWRITE)
    young.abort()
    old.commit()
    assert ids(bench, "a") == [3]
    assert bench.coordinator().timeline.locks() == []


def test_under_fail_an_older_one_is_refused_too(bench: Bench) -> None:
    old, young = begun(bench, Fail())
    overwrite(young, bench, "a", 3)
    with pytest.raises(WriteConflictError, match=young.id):
        stage(old, bench.catalogs["one"], "a", OVERWRITE)


@pytest.mark.parametrize(("policy", "older_waits"), [(WaitDie(), True), (WoundWait(), False)])
def test_an_older_one_waits_under_wait_die_and_a_younger_one_under_wound_wait(
    bench: Bench, policy: ConflictPolicy, older_waits: bool
) -> None:
    old, young = begun(bench, policy)
    waiter, holder = (old, young) if older_waits else (young, old)
    overwrite(holder, bench, "a", 3)
    ended = in_thread(lambda: overwrite(waiter, bench, "a", 4))
    waits(bench.coordinator().timeline, waiter)
    holder.commit()
    assert ended() is None
    waiter.commit()
    assert ids(bench, "a") == [4]


@pytest.mark.parametrize("then", ["statement", "commit", "abort"])
def test_under_wound_wait_an_older_one_rolls_a_younger_one_back_which_is_told_by_whom(bench: Bench, then: str) -> None:
    old, young = begun(bench, WoundWait())
    overwrite(young, bench, "a", 3)
    append(young, bench, "b", 3)
    overwrite(old, bench, "a", 4)
    told = rf"{young.id} was rolled back .*transaction {old.id} needed table one\.default\.a"
    if then == "abort":
        young.abort()
    else:
        with pytest.raises(WoundedError, match=told):
            young.commit() if then == "commit" else append(young, bench, "b", 3)
        young.abort()
    assert states(young) == ["ROLLED_BACK"]
    old.commit()
    assert (ids(bench, "a"), ids(bench, "b")) == ([4], [1, 2])
    assert bench.staged() == []
    record = old._life.coordinator.timeline.transaction(young.id)
    assert record is not None
    assert (record.state, record.wounded_by) == (TransactionState.ROLLED_BACK, old.id)


def test_what_a_rolled_back_block_has_written_is_not_read_any_more(bench: Bench) -> None:
    old, young = begun(bench, WoundWait())
    overwrite(young, bench, "a", 3)
    overwrite(old, bench, "a", 4)
    participant = young.find("one", path("a"))
    assert participant is not None
    assert young._life.lease is not None
    with suppress(LeaseLostError):
        young._life.coordinator.timeline.renew(young._life.lease)  # As its heartbeat does.
    with pytest.raises(WoundedError, match=old.id):
        young.require_written(participant)
    with pytest.raises(WoundedError, match=old.id):
        young.note_read(bench.catalogs["one"], path("b"), None)
    old.commit()


def test_a_block_that_only_locked_and_was_rolled_back_does_not_end_as_committed(bench: Bench) -> None:
    old, young = begun(bench, WoundWait())
    young.lock((bench.catalogs["one"], path("a")))
    overwrite(old, bench, "a", 4)
    with pytest.raises(WoundedError, match=old.id):
        young.commit()
    assert young.state is TransactionState.ROLLED_BACK
    old.commit()


def test_a_single_statement_that_is_refused_leaves_nothing_on_the_timeline(bench: Bench) -> None:
    first, second = begun(bench, Fail())
    overwrite(first, bench, "a", 3)
    with pytest.raises(WriteConflictError):
        second.stage(bench.catalogs["one"], path("a"), DEFINITION, purpose=OVERWRITE, autocommit=True)
    opened = bench.coordinator().timeline.transactions(open_only=True)
    assert [record.id for record in opened] == [first.id]
    first.abort()


def test_a_table_is_locked_for_writing_or_appending_only(bench: Bench) -> None:
    tx, _ = begun(bench, WoundWait())
    with pytest.raises(ConfigurationError, match="'read'"):
        tx.lock((bench.catalogs["one"], path("a")), "read")


def test_appends_do_not_conflict_under_any_policy(bench: Bench) -> None:
    for policy in (WaitDie(), WoundWait(), Fail()):
        old, young = begun(bench, policy)
        append(old, bench, "a", 3)
        append(young, bench, "a", 3)
        old.commit()
        young.commit()
    assert ids(bench, "a") == [1, 2, *[3] * 6]


class NightlyFirst(ConflictPolicy):
    """The application ``nightly`` comes first, whoever began first."""

    def on_conflict(self, requester: Contender, holder: Contender, mode: str) -> Resolution:
        assert mode in ("append", "write")
        return Resolution.WOUND if requester.application == "nightly" else Resolution.DIE


def test_a_class_of_the_user_s_decides(bench: Bench) -> None:
    policy = conflict_policy(f"{__name__}:NightlyFirst")
    adhoc = bench.coordinator().begin(conflict=policy)
    nightly = bench.coordinator("n", application="nightly").begin(conflict=policy)
    overwrite(adhoc, bench, "a", 3)
    overwrite(nightly, bench, "a", 4)
    with pytest.raises(WoundedError, match=nightly.id):
        adhoc.commit()
    with pytest.raises(WriteConflictError, match=nightly.id):
        stage(bench.coordinator().begin(conflict=policy), bench.catalogs["one"], "a", OVERWRITE)
    nightly.commit()
    assert ids(bench, "a") == [4]


@pytest.mark.parametrize(
    "name", ["wound_wiat", "no.such.module:Class", "tests.core.test_conflicts:Bench", "twophase.errors:NoSuchClass"]
)
def test_a_conflict_policy_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="conflict policy"):
        conflict_policy(name)


def test_an_answer_that_is_none_is_refused(bench: Bench) -> None:
    class Wrong(WaitDie):
        def on_conflict(self, *_: Any) -> Any:
            return "wait"

    old, young = begun(bench, Wrong())
    overwrite(old, bench, "a", 3)
    with pytest.raises(ConfigurationError, match=r"Wrong.on_conflict returned 'wait'"):
        stage(young, bench.catalogs["one"], "a", OVERWRITE)


# -- crossed, inverted, starved ---------------------------------------------------------------------------------------


@pytest.mark.promise("conflicts", "of crossed blocks exactly one gets through, and the other one is told by whom")
@pytest.mark.parametrize("policy", [WaitDie(), WoundWait(), None], ids=["wait_die", "wound_wait", "locks"])
def test_of_crossed_blocks_exactly_one_gets_through(bench: Bench, policy: ConflictPolicy | None) -> None:
    """Also where they have locked the tables themselves: there is no circle of waits."""
    pair = [bench.coordinator().begin(conflict=policy) for _ in range(2)]
    met = threading.Barrier(2)

    def block(tx: Transaction, names: str, number: int) -> None:
        try:
            for position, name in enumerate(names):
                tx.lock((bench.catalogs["one"], path(name)))
                overwrite(tx, bench, name, number)
                if not position:
                    met.wait(60)
            tx.commit()
        except BaseException as error:
            tx.abort(error)
            raise

    raised = at_once(lambda: block(pair[0], "ab", 3), lambda: block(pair[1], "ba", 4))
    assert sorted(states(*pair)) == ["COMPLETED", "ROLLED_BACK"]
    winner, loser = sorted(pair, key=lambda tx: tx.state.name)
    (error,) = raised
    assert isinstance(error, WriteConflictError | WoundedError)
    assert winner.id in str(error)
    assert error.transaction_id == loser.id
    assert ids(bench, "a") == ids(bench, "b") == ([3] if winner is pair[0] else [4])
    assert bench.staged() == []


def test_a_circle_of_three_is_refused_where_it_closes(bench: Bench) -> None:
    one, two, three = (bench.coordinator().begin() for _ in range(3))
    with_rows(bench, "c")
    tables = {tx: (bench.catalogs["one"], path(name)) for tx, name in ((one, "a"), (two, "b"), (three, "c"))}
    for tx, table in tables.items():
        tx.lock(table)
    first = in_thread(lambda: one.lock(tables[two]))
    waits(one._life.coordinator.timeline, one)
    second = in_thread(lambda: two.lock(tables[three]))
    waits(one._life.coordinator.timeline, two)
    with pytest.raises(WriteConflictError, match=rf"{three.id} would wait for itself: .*{one.id}.*{two.id}.*this one"):
        three.lock(tables[one])
    three.abort()
    assert second() is None
    two.abort()
    assert first() is None


@pytest.mark.promise("conflicts", "under wound_wait an old block does not wait for a younger one that waits itself")
def test_no_old_one_waits_for_a_younger_one_that_waits_for_the_youngest(bench: Bench) -> None:
    """Priority inversion: the youngest goes on with what nobody needs, the one in the middle waits for it."""
    old, middle, youngest = begun(bench, WoundWait(), 3)
    youngest._life.contention._policy = WaitDie()
    overwrite(youngest, bench, "b", 3)
    overwrite(middle, bench, "a", 4)
    middle._life.contention._policy = WaitDie()
    ended = in_thread(lambda: overwrite(middle, bench, "b", 4))
    waits(bench.coordinator().timeline, middle)
    overwrite(old, bench, "a", 5)
    old.commit()
    assert isinstance(ended(), WoundedError)
    youngest.commit()
    assert (ids(bench, "a"), ids(bench, "b")) == ([5], [3])


@pytest.mark.promise("conflicts", "a long block gets through next to quick writers, because it keeps its age")
@pytest.mark.parametrize("policy", [WaitDie(), WoundWait()])
def test_a_long_block_gets_through_next_to_quick_writers(bench: Bench, policy: ConflictPolicy) -> None:
    """Each quick writer begins before the one before it has ended: there is always one that holds the table."""
    begin, attempts, long = clock(), 0, None
    over = threading.Event()
    holding = threading.Event()

    def quick() -> None:
        while not over.is_set():
            tx = bench.coordinator().begin(conflict=policy)
            try:
                overwrite(tx, bench, "a", 3)
                holding.set()
                tx.commit()
            except (WriteConflictError, WoundedError) as error:
                tx.abort(error)

    writers = [in_thread(quick) for _ in range(2)]
    assert holding.wait(60)
    while long is None:
        attempts += 1
        assert attempts < 4
        tx = bench.coordinator().begin(conflict=policy, first_begun=begin)
        try:
            overwrite(tx, bench, "a", 4)
            overwrite(tx, bench, "a", 5)
            tx.commit()
            long = tx
        except (WriteConflictError, WoundedError) as error:
            tx.abort(error)
    over.set()
    assert [writer() for writer in writers] == [None, None]


def test_nobody_younger_overtakes_one_that_waits(bench: Bench) -> None:
    holder, old, young = (bench.coordinator().begin(first_begun=clock() - age) for age in (10, 20, 5))
    table = (bench.catalogs["one"], path("a"))
    holder.lock(table)
    ended = in_thread(lambda: old.lock(table))
    waits(bench.coordinator().timeline, old)
    holder.abort()
    with pytest.raises(WriteConflictError, match=old.id):
        young.lock(table, wait=0)
    assert ended() is None


# -- wounding ---------------------------------------------------------------------------------------------------------


def test_one_is_wounded_during_its_job_which_is_cancelled(bench: Bench) -> None:
    old, young = begun(bench, WoundWait())
    cancelled, writing = threading.Event(), threading.Event()
    young.cancels_by(lambda transaction_id, _: cancelled.set() if transaction_id == young.id else None)
    participant = stage(young, bench.catalogs["one"], "a", OVERWRITE)
    young.begin_participant(participant)

    def job(_: str) -> None:
        writing.set()
        assert cancelled.wait(30)
        raise ConnectionError("cancelled")

    failpoints.arm("chaos.write", job, nth=1)
    ended = in_thread(lambda: young.write(participant, rows(3)))
    assert writing.wait(60)
    failpoints.disarm()
    overwrite(old, bench, "a", 4)
    error = ended()
    assert isinstance(error, WoundedError)
    assert old.id in str(error)
    young.abort(error)
    old.commit()
    assert ids(bench, "a") == [4]
    assert bench.staged() == []


@pytest.mark.parametrize("step", ["core.record_committing", "core.prepare", "core.persist"])
def test_one_that_decides_at_that_moment_is_wounded_or_waited_for(bench: Bench, step: str) -> None:
    """Before its decision it is rolled back, and afterwards the other one waits until it has published."""
    old, young = begun(bench, WoundWait())
    overwrite(young, bench, "a", 3)
    failpoints.arm(step, lambda _: (failpoints.disarm(), overwrite(old, bench, "a", 4)), nth=1)
    with pytest.raises(WoundedError, match=old.id):
        young.commit()
    assert states(young) == ["ROLLED_BACK"]
    old.commit()
    assert ids(bench, "a") == [4]
    assert bench.staged() == []


def test_one_that_has_decided_is_waited_for(bench: Bench) -> None:
    old, young = begun(bench, WoundWait())
    overwrite(young, bench, "a", 3)
    endings: list[Callable[[], BaseException | None]] = []

    def meet(_: str) -> None:
        failpoints.disarm()
        endings.append(in_thread(lambda: overwrite(old, bench, "a", 4)))
        waits(bench.coordinator().timeline, old)

    failpoints.arm("core.publish", meet, nth=1)
    young.commit()
    assert endings[0]() is None
    old.commit()
    assert ids(bench, "a") == [4]


def hold_in(url: str, directory: Path) -> None:
    bench = Bench(url, directory)
    tx = bench.coordinator().begin(conflict=WoundWait(), first_begun=clock() - 1000)
    overwrite(tx, bench, "a", 3)
    append(tx, bench, "b", 3)


@pytest.mark.parametrize("policy", [WaitDie(), WoundWait(), Fail()])
def test_nobody_waits_for_a_dead_holder(bench: Bench, url: str, tmp_path: Path, policy: ConflictPolicy) -> None:
    dead = child(hold_in, url, tmp_path, failpoint="chaos.write=exit@2")
    dead.join()
    assert dead.exitcode == EXIT_CODE
    tx = bench.coordinator().begin(conflict=policy)
    overwrite(tx, bench, "a", 4)
    tx.commit()
    assert (ids(bench, "a"), bench.staged()) == ([4], [])


def test_one_is_wounded_by_a_killed_process_and_ended_by_the_next(bench: Bench, url: str, tmp_path: Path) -> None:
    young = bench.coordinator().begin(conflict=WoundWait())
    overwrite(young, bench, "a", 3)
    dead = child(hold_in, url, tmp_path, failpoint="core.take_over=exit_after")
    dead.join()
    assert dead.exitcode == EXIT_CODE
    with pytest.raises(WoundedError):
        young.commit()
    assert bench.staged() == []
    tx = bench.coordinator().begin(conflict=Fail())
    overwrite(tx, bench, "a", 4)
    tx.commit()
    assert ids(bench, "a") == [4]


# -- locks, waits and timeouts ----------------------------------------------------------------------------------------


def test_a_lock_keeps_writers_out_until_the_end_and_may_permit_appends(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    other = bench.coordinator(wait_seconds=0.0).begin()
    tx.lock((bench.catalogs["one"], path("a")), "append")
    tx.lock((bench.catalogs["one"], path("b")))
    append(other, bench, "a", 3)
    with pytest.raises(WriteConflictError, match=tx.id):
        stage(other, bench.catalogs["one"], "a", OVERWRITE)
    append(other, bench, "b", 3)
    with pytest.raises(WriteConflictError, match=tx.id):
        other.commit()
    tx.commit()
    assert (tx.state, ids(bench, "b")) == (TransactionState.COMPLETED, [1, 2])
    assert tx._life.coordinator.timeline.locks() == []


def test_a_lock_without_a_wait_is_refused_at_once_and_the_block_goes_on(bench: Bench) -> None:
    holder, tx = bench.coordinator().begin(), bench.coordinator().begin()
    holder.lock((bench.catalogs["one"], path("a")))
    with pytest.raises(WriteConflictError, match=holder.id):
        tx.lock((bench.catalogs["one"], path("a")), wait=0)
    append(tx, bench, "b", 3)
    tx.commit()
    assert ids(bench, "b") == [1, 2, 3]
    with pytest.raises(ConfigurationError, match="'share'"):
        holder.lock((bench.catalogs["one"], path("a")), "share")


def test_a_block_that_has_waited_for_its_first_lock_sees_what_it_has_waited_for(bench: Bench) -> None:
    holder = bench.coordinator().begin()
    holder.lock((bench.catalogs["one"], path("a")))
    overwrite(holder, bench, "a", 3)
    tx = bench.coordinator().begin(Isolation.SNAPSHOT)
    ended = in_thread(lambda: tx.lock((bench.catalogs["one"], path("a"))))
    waits(bench.coordinator().timeline, tx)
    holder.commit()
    assert ended() is None
    overwrite(tx, bench, "a", 4)
    tx.commit()
    assert ids(bench, "a") == [4]


def test_a_block_that_lasts_too_long_is_rolled_back_and_its_next_statement_says_so(bench: Bench) -> None:
    tx = bench.coordinator().begin(timeout_seconds=0.4)
    ended = threading.Event()
    tx.at_end(ended.set)  # type: ignore[arg-type]
    overwrite(tx, bench, "a", 3)
    assert ended.wait(30)
    assert (states(tx), bench.staged()) == (["ROLLED_BACK"], [])
    with pytest.raises(TransactionAborted, match="longer than its timeout"):
        append(tx, bench, "a", 3)
    with pytest.raises(TransactionAborted, match="longer than its timeout"):
        tx.commit()


def test_a_wait_ends_with_the_time_of_its_block(bench: Bench) -> None:
    holder, tx = bench.coordinator().begin(), bench.coordinator().begin(timeout_seconds=0.3)
    holder.lock((bench.catalogs["one"], path("a")))
    with pytest.raises(TransactionAborted, match="longer than its timeout"):
        tx.lock((bench.catalogs["one"], path("a")))

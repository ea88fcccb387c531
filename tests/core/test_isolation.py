"""The commit order and what a transaction sees, on both timelines, over stores that have no former states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.core.bench import Bench, child, path, with_rows, write
from twophase import failpoints
from twophase.catalog import Change, OpenSnapshot, SupportsOpenSnapshots
from twophase.catalog.reading import ReadSource
from twophase.errors import SnapshotTooOldError, TableNotExistError, TwoPhaseError, WriteConflictError
from twophase.failpoints import EXIT_CODE
from twophase.model import Isolation, ObjectPath, Purpose
from twophase.protocol.states import TransactionState
from twophase.testing.chaos import ChaosCatalog
from twophase.timeline.immediate import Immediate
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.immediate import TableChange, changing
from twophase.transactions.transaction import Transaction

APPEND, OVERWRITE = Purpose.INSERT_INTO, Purpose.CREATE_OR_REPLACE_TABLE_AS
SNAPSHOT, SERIALIZABLE = Isolation.SNAPSHOT, Isolation.SERIALIZABLE
both_levels = pytest.mark.parametrize("isolation", [SNAPSHOT, SERIALIZABLE])


@pytest.fixture
def bench(url: str, tmp_path: Path) -> Iterator[Bench]:
    """Tables ``one.a`` and ``two.b`` with rows 1 and 2."""
    bench = Bench(url, tmp_path)
    with_rows(bench, "a")
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["two"], "b")
    tx.commit()
    yield bench
    bench.close()


@pytest.fixture
def coordinator(bench: Bench) -> Coordinator:
    return bench.coordinator()


def read(bench: Bench, tx: Transaction, catalog: str, name: str) -> None:
    tx.note_read(bench.catalogs[catalog], path(name), bench.catalogs[catalog].table_version(path(name)))


def other(bench: Bench, *tables: tuple[str, str], purpose: Purpose = OVERWRITE) -> None:
    """Another transaction writes these tables and commits."""
    tx = bench.coordinator().begin()
    for catalog, name in tables:
        write(tx, bench.catalogs[catalog], name, purpose)
    tx.commit()


def numbers(timeline: Timeline, catalog: str, name: str) -> list[int | None]:
    return [change.number for change in timeline.changes_since(catalog, path(name), 0, "-")]


def test_what_is_published_is_numbered_in_the_order_of_the_commits(bench: Bench, coordinator: Coordinator) -> None:
    timeline = coordinator.timeline
    before = timeline.last_number()
    other(bench, ("one", "a"), ("two", "b"))
    other(bench, ("two", "b"), purpose=APPEND)
    failed = coordinator.begin()
    write(failed, bench.catalogs["one"], "a", OVERWRITE)
    failed.abort()
    assert timeline.last_number() == before + 2
    assert numbers(timeline, "one", "a")[-1] == before + 1
    assert numbers(timeline, "two", "b")[-2:] == [before + 1, before + 2]


@both_levels
def test_a_table_that_has_changed_since_the_begin_is_not_read_as_it_is_now(
    bench: Bench, coordinator: Coordinator, isolation: Isolation
) -> None:
    tx = coordinator.begin(isolation)
    read(bench, tx, "one", "a")
    other(bench, ("one", "a"), ("two", "b"))
    for catalog, name in (("one", "a"), ("two", "b")):
        with pytest.raises(SnapshotTooOldError, match=rf"{catalog}.default.{name} .* began: transaction app-"):
            read(bench, tx, catalog, name)
    tx.commit()


def test_what_is_published_in_part_is_in_no_snapshot(bench: Bench, url: str, tmp_path: Path) -> None:
    """Also not for the transactions that begin until it is recovered: then it is in those that begin later."""
    dead = child(overwrite_both, url, tmp_path, failpoint="core.publish=exit_after@1")
    dead.join()
    assert dead.exitcode == EXIT_CODE
    coordinator = bench.coordinator("other")
    tx = coordinator.begin(SNAPSHOT)
    for catalog, name in (("one", "a"), ("two", "b")):
        with pytest.raises(SnapshotTooOldError):
            read(bench, tx, catalog, name)
    bench.coordinator().recover()
    with pytest.raises(SnapshotTooOldError):
        read(bench, tx, "one", "a")
    later = coordinator.begin(SNAPSHOT)
    read(bench, later, "one", "a")
    read(bench, later, "two", "b")


def overwrite_both(url: str, directory: Path) -> None:
    bench = Bench(url, directory)
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "a", OVERWRITE)
    write(tx, bench.catalogs["two"], "b", OVERWRITE)
    tx.commit()


@pytest.mark.promise("isolation", "a plain ALTER TABLE whose driver is killed is in no snapshot until it is recovered")
@pytest.mark.parametrize("point", ["core.record_immediate=exit_after@1", "core.record_immediate_end=exit@1"])
def test_a_change_outside_transactions_that_is_killed_counts_whether_or_not_it_was_made(
    bench: Bench,
    url: str,
    tmp_path: Path,
    point: str,
) -> None:
    coordinator = bench.coordinator("other")
    before = coordinator.begin(SNAPSHOT)
    dead = child(alter, url, tmp_path, failpoint=point)
    dead.join()
    assert dead.exitcode == EXIT_CODE
    for tx in (before, coordinator.begin(SNAPSHOT)):
        with pytest.raises(SnapshotTooOldError, match=r"one\.default\.a"):
            read(bench, tx, "one", "a")
    (recovered,) = bench.coordinator().recover()
    assert recovered.state is TransactionState.COMPLETED
    with pytest.raises(SnapshotTooOldError):
        read(bench, before, "one", "a")
    read(bench, coordinator.begin(SNAPSHOT), "one", "a")
    other(bench, ("one", "a"))
    (record,) = (found for found in coordinator.timeline.transactions() if found.id == recovered.transaction_id)
    assert [(p.name, p.purpose, p.state.value) for p in record.participants] == [
        ("one.default.a", Purpose.ALTER_TABLE, "published")
    ]


def alter(url: str, directory: Path) -> None:
    bench = Bench(url, directory)
    with changing(bench.coordinator(), TableChange(bench.catalogs["one"], path("a"), Purpose.ALTER_TABLE)):
        pass


def test_a_writer_that_is_refused_a_table_or_waits_for_it_meets_the_change_of_a_killed_driver(
    bench: Bench,
    url: str,
    tmp_path: Path,
) -> None:
    child(alter, url, tmp_path, failpoint="core.record_immediate=exit_after@1").join()
    other(bench, ("one", "a"))  # Ended by whoever needs its table.
    assert bench.coordinator().timeline.transactions(open_only=True) == []


def test_the_state_before_a_change_is_recorded_only_if_no_transaction_can_publish_meanwhile(
    bench: Bench, coordinator: Coordinator
) -> None:
    timeline = coordinator.timeline
    changes = [Immediate("one", path("a"), Purpose.ALTER_TABLE, {"state": 1})]

    def recorded() -> Any:
        return timeline.changes_since("one", path("a"), since, "-")[-1].before

    since = timeline.last_number()
    timeline.settle(coordinator.announce(changes, since))
    assert recorded() == {"state": 1}
    timeline.settle(coordinator.announce(changes, since))  # It was loaded before the first one.
    assert recorded() is None
    holder = coordinator.begin()
    holder.lock((bench.catalogs["one"], path("a")))
    timeline.settle(coordinator.announce(changes, timeline.last_number()))
    assert recorded() is None
    holder.abort()
    assert timeline.locks() == []
    assert timeline.last_number() == since + 3
    timeline.revoke(coordinator.announce(changes, timeline.last_number()))
    assert (timeline.last_number(), timeline.locks()) == (since + 3, [])
    assert timeline.prune(-1, limit=100) and timeline.knows_all_since(timeline.last_number())


@both_levels
def test_of_two_that_write_a_table_the_first_to_commit_wins(
    bench: Bench, coordinator: Coordinator, isolation: Isolation
) -> None:
    tx = coordinator.begin(isolation)
    write(tx, bench.catalogs["one"], "a", OVERWRITE)
    other(bench, ("one", "a"))
    with pytest.raises(WriteConflictError):
        tx.commit()
    assert tx.state is TransactionState.ROLLED_BACK
    tx = coordinator.begin(isolation)
    other(bench, ("one", "a"))
    with pytest.raises(WriteConflictError, match="has changed it since transaction"):
        write(tx, bench.catalogs["one"], "a", OVERWRITE)


def test_appends_go_with_everything_under_snapshot(bench: Bench, coordinator: Coordinator) -> None:
    tx = coordinator.begin(SNAPSHOT)
    write(tx, bench.catalogs["one"], "a", APPEND)
    other(bench, ("one", "a"), purpose=APPEND)
    other(bench, ("one", "a"))
    tx.commit()
    assert tx.state is TransactionState.COMPLETED


def write_skew(bench: Bench, isolation: Isolation, **arguments: Any) -> tuple[Transaction, Transaction]:
    """Each reads both tables, and writes another one of them."""
    one, two = (bench.coordinator(**arguments).begin(isolation) for _ in range(2))
    for tx in (one, two):
        read(bench, tx, "one", "a")
        read(bench, tx, "two", "b")
    write(one, bench.catalogs["one"], "a", OVERWRITE)
    write(two, bench.catalogs["two"], "b", OVERWRITE)
    return one, two


def test_write_skew_is_possible_under_snapshot_and_refused_under_serializable(bench: Bench) -> None:
    for tx in write_skew(bench, SNAPSHOT):
        tx.commit()
    one, two = write_skew(bench, SERIALIZABLE)
    one.commit()
    with pytest.raises(WriteConflictError, match=rf"reads table \w+\.default\.[ab], which transaction {one.id} has"):
        two.commit()
    assert bench.staged() == []


@pytest.mark.promise("isolation", "under `serializable` a table that was not there counts as read, too", detail=True)
def test_that_a_table_is_not_there_has_been_read_under_serializable(bench: Bench) -> None:
    catalog = bench.catalogs["one"]
    transactions = [bench.coordinator().begin(SERIALIZABLE) for _ in range(2)]
    for tx, absent in zip(transactions, ("x", "y"), strict=True):
        with pytest.raises(TableNotExistError):
            tx.read_source(catalog, path(absent))
    for tx, new in zip(transactions, ("y", "x"), strict=True):
        write(tx, catalog, new, Purpose.CREATE_TABLE_AS)
    transactions[0].commit()
    with pytest.raises(WriteConflictError):
        transactions[1].commit()


def test_what_was_read_is_validated_also_where_it_is_appended_to(bench: Bench) -> None:
    transactions = [bench.coordinator().begin(SERIALIZABLE) for _ in range(2)]
    for tx in transactions:
        read(bench, tx, "one", "a")
        write(tx, bench.catalogs["one"], "a", APPEND)
    transactions[0].commit()
    with pytest.raises(WriteConflictError):
        transactions[1].commit()


def test_two_that_decide_at_once_do_not_overlook_each_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever decides first has its changes on the timeline before the other one is validated."""
    one, two = write_skew(bench, SERIALIZABLE, wait_seconds=0.0)
    decide = Timeline.record
    ended: list[TransactionState] = []

    def between(self: Timeline, lease: object, state: TransactionState, **facts: object) -> None:
        decide(self, lease, state, **facts)  # type: ignore[arg-type]
        if state is TransactionState.COMMITTING and not ended:
            ended.append(state)
            with pytest.raises(WriteConflictError):  # Decided, but not yet published.
                two.commit()

    monkeypatch.setattr(Timeline, "record", between)
    one.commit()
    assert [tx.state for tx in (one, two)] == [TransactionState.COMPLETED, TransactionState.ROLLED_BACK]


def test_a_conflict_after_a_lost_reply_to_the_decision_withdraws_it(bench: Bench) -> None:
    one, two = write_skew(bench, SERIALIZABLE)
    failpoints.arm("core.record_committing", "lost_reply", nth=1)
    with pytest.raises(TwoPhaseError):
        two.commit()
    failpoints.disarm()
    assert two.state is TransactionState.ROLLED_BACK
    one.commit()


@both_levels
def test_a_block_that_only_reads_leaves_nothing_on_the_timeline(
    bench: Bench, coordinator: Coordinator, isolation: Isolation
) -> None:
    known = len(coordinator.timeline.transactions())
    tx = coordinator.begin(isolation)
    assert len(coordinator.timeline.transactions()) == known
    read(bench, tx, "one", "a")
    (held,) = coordinator.timeline.transactions(open_only=True)
    assert held.id == tx.id
    tx.commit()
    assert len(coordinator.timeline.transactions()) == known
    tx = coordinator.begin(isolation)
    read(bench, tx, "one", "a")
    tx.abort()
    assert tx.state is TransactionState.ROLLED_BACK and len(coordinator.timeline.transactions()) == known


@pytest.mark.parametrize("action", ["error", "error_after", "lost_reply"])
def test_a_failure_to_hold_the_snapshot_leaves_nothing_open(bench: Bench, action: str) -> None:
    coordinator = bench.coordinator()
    tx = coordinator.begin(SNAPSHOT)
    failpoints.arm("core.record_snapshot", action, nth=1)
    with pytest.raises(TwoPhaseError):
        read(bench, tx, "one", "a")
    failpoints.disarm()
    tx.abort()
    del tx
    coordinator.recover()
    assert not coordinator.timeline.transactions(open_only=True)


def test_nothing_is_written_in_a_snapshot_for_readers(bench: Bench, coordinator: Coordinator) -> None:
    tx = coordinator.begin(SNAPSHOT, read_only=True)
    with pytest.raises(TwoPhaseError, match="only reads"):
        write(tx, bench.catalogs["one"], "a", APPEND)
    tx.commit()


def test_what_was_read_is_not_changed_between_the_decision_and_the_commit_number(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a third transaction would see the change, and not the commit that comes before it in the order."""
    one, two = bench.coordinator().begin(SERIALIZABLE), bench.coordinator(wait_seconds=0.0).begin(SNAPSHOT)
    read(bench, one, "two", "b")
    write(one, bench.catalogs["one"], "a", APPEND)
    write(two, bench.catalogs["two"], "b", OVERWRITE)
    decide = Timeline.record

    def between(self: Timeline, lease: object, state: TransactionState, **facts: object) -> None:
        decide(self, lease, state, **facts)  # type: ignore[arg-type]
        if state is TransactionState.COMMITTING and two.state is TransactionState.INFLIGHT:
            with pytest.raises(WriteConflictError, match=f"is being written by transaction {one.id}"):
                two.commit()

    monkeypatch.setattr(Timeline, "record", between)
    one.commit()
    assert [tx.state for tx in (one, two)] == [TransactionState.COMPLETED, TransactionState.ROLLED_BACK]


def test_readers_share_a_table_that_they_have_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (bench.coordinator(wait_seconds=0.0).begin(SERIALIZABLE) for _ in range(2))
    for tx, name in ((one, "x"), (two, "y")):
        read(bench, tx, "one", "a")
        write(tx, bench.catalogs["two"], name)
    decide = Timeline.record

    def between(self: Timeline, lease: object, state: TransactionState, **facts: object) -> None:
        decide(self, lease, state, **facts)  # type: ignore[arg-type]
        if state is TransactionState.COMMITTING and two.state is TransactionState.INFLIGHT:
            two.commit()

    monkeypatch.setattr(Timeline, "record", between)
    one.commit()
    assert [tx.state for tx in (one, two)] == [TransactionState.COMPLETED] * 2


class Opened(OpenSnapshot):
    is_closed = False

    def read_source_before(self, path: ObjectPath, changes: Sequence[Change], version: Any = None) -> ReadSource:
        raise NotImplementedError

    def close(self) -> None:
        self.is_closed = True


class Keeping(ChaosCatalog, SupportsOpenSnapshots):
    def read_source_before(self, path: ObjectPath, changes: Sequence[Change], version: Any = None) -> ReadSource:
        raise NotImplementedError

    def open_snapshot(self) -> OpenSnapshot:
        self.opened = Opened()
        return self.opened


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_a_snapshot_that_a_store_keeps_is_closed_with_its_transaction(
    bench: Bench, coordinator: Coordinator, ends: str
) -> None:
    keeping = Keeping("keeping", {"file": str(bench.directory / "keeping.json")})
    tx = coordinator.begin(SNAPSHOT, catalogs=[keeping])
    assert not keeping.opened.is_closed
    getattr(tx, ends)()
    assert keeping.opened.is_closed


def test_a_table_that_is_read_with_own_rows_counts_as_read(bench: Bench, coordinator: Coordinator) -> None:
    tx = coordinator.begin(SERIALIZABLE)
    tx.require_base(write(tx, bench.catalogs["one"], "a", APPEND))
    other(bench, ("one", "a"), purpose=APPEND)
    with pytest.raises(WriteConflictError):
        tx.commit()


def test_the_decision_itself_checks_what_is_written(
    bench: Bench, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every store notices that others have changed a table since the write was planned."""
    tx = coordinator.begin(SNAPSHOT)
    participant = write(tx, bench.catalogs["one"], "a", OVERWRITE)
    monkeypatch.setattr(participant, "prepare", lambda: None)
    other(bench, ("one", "a"))
    with pytest.raises(WriteConflictError, match=r"writes table one\.default\.a, which transaction app-"):
        tx.commit()


def test_what_was_read_and_changed_outside_twophase_is_a_conflict(bench: Bench, tmp_path: Path) -> None:
    tx = bench.coordinator().begin(SERIALIZABLE)
    read(bench, tx, "one", "a")
    write(tx, bench.catalogs["two"], "new")
    elsewhere = Bench(f"sqlite:///{tmp_path / 'elsewhere.db'}", tmp_path)
    other(elsewhere, ("one", "a"))
    elsewhere.close()
    with pytest.raises(WriteConflictError, match="another writer"):
        tx.commit()


def test_a_dead_process_holds_no_changes_and_no_files_back(bench: Bench, url: str, tmp_path: Path) -> None:
    """Also where its transaction cannot be recovered, because nobody has its catalogs."""
    dead = child(read_and_die, url, tmp_path, failpoint="core.begin=exit@1")
    dead.join()
    other(bench, ("one", "a"))
    assert bench.coordinator().timeline.transactions(open_only=True)
    assert bench.coordinator().timeline.needed_since() is None
    living = bench.coordinator().begin(SNAPSHOT)
    read(bench, living, "one", "a")
    other(bench, ("two", "b"))
    assert bench.coordinator().timeline.needed_since() is not None


def read_and_die(url: str, directory: Path) -> None:
    bench = Bench(url, directory)
    tx = bench.coordinator().begin(SNAPSHOT)
    read(bench, tx, "one", "a")
    write(tx, bench.catalogs["two"], "new")


class Broken(Opened):
    def close(self) -> None:
        raise OSError


def test_a_store_that_cannot_close_its_snapshot_changes_no_outcome(
    bench: Bench, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping = Keeping("keeping", {"file": str(bench.directory / "keeping.json")})
    monkeypatch.setattr(keeping, "open_snapshot", Broken)
    tx = coordinator.begin(SNAPSHOT, catalogs=[keeping])
    told: list[TransactionState] = []
    tx.at_end(lambda: told.append(tx.state))
    write(tx, bench.catalogs["one"], "a", APPEND)
    tx.commit()
    assert told == [TransactionState.COMPLETED]


def test_a_snapshot_is_closed_if_the_next_store_cannot_open_one(
    bench: Bench, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise OSError

    first, second = (Keeping(name, {"file": str(bench.directory / f"{name}.json")}) for name in ("x", "y"))
    monkeypatch.setattr(second, "open_snapshot", refused)
    with pytest.raises(OSError):
        coordinator.begin(SNAPSHOT, catalogs=[first, second])
    assert first.opened.is_closed

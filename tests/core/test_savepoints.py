"""Savepoints inside a transaction: what is written after a mark can be taken back while the transaction goes on."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from tests.core.bench import Bench, child, path, recover_in, stage, write
from twophase import failpoints
from twophase.errors import ConfigurationError, TimelineError, TransactionAborted, WriteConflictError
from twophase.model import Purpose
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.transactions.conflict_policy import WaitDie
from twophase.transactions.transaction import Transaction


def insert(tx: Transaction, bench: Bench, name: str, row: int) -> None:
    write(tx, bench.catalogs["one"], name, Purpose.INSERT_INTO, pa.table({"id": [row]}))


def ids(bench: Bench, name: str, catalog: str = "one") -> list[int]:
    return [row["id"] for row in bench.catalogs[catalog].rows(path(name))]


def published(bench: Bench, *names: str) -> None:
    tx = bench.coordinator().begin()
    for name in names:
        write(tx, bench.catalogs["one"], name)
    tx.commit()


def statements(tx: Transaction, bench: Bench) -> None:
    """An append; a mark; an append and a replacement of it, a new table, and another append."""
    insert(tx, bench, "a", 10)
    tx.savepoint("s")
    insert(tx, bench, "a", 11)
    write(tx, bench.catalogs["one"], "a", Purpose.INSERT_OVERWRITE, pa.table({"id": [12]}))
    write(tx, bench.catalogs["two"], "c")
    insert(tx, bench, "b", 13)


def test_what_was_written_since_a_savepoint_is_taken_back_and_the_rest_is_published(bench: Bench) -> None:
    published(bench, "a", "b")
    coordinator = bench.coordinator()
    tx = coordinator.begin()
    statements(tx, bench)
    tx.rollback_to("s")
    assert [p.path for p in tx.participants] == [path("a")]
    assert tx.find("two", path("c")) is None
    insert(tx, bench, "a", 14)
    tx.commit()
    assert ids(bench, "a") == [1, 2, 10, 14]
    assert bench.tables() == ["one.a", "one.b"]
    assert (ids(bench, "b"), bench.staged()) == ([1, 2], [])
    record = coordinator.timeline.transaction(tx.id)
    assert record is not None
    states = [p.state for p in record.participants]
    discarded = [ParticipantState.DISCARDED] * 4
    assert states == [ParticipantState.SUPERSEDED, *discarded, ParticipantState.PUBLISHED]


def test_a_transaction_that_is_rolled_back_to_its_beginning_publishes_nothing(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    mark = tx.savepoint()
    write(tx, bench.catalogs["one"], "t")
    tx.rollback_to(mark)
    tx.rollback_to(mark)
    tx.commit()
    assert (tx.state, bench.tables(), bench.staged()) == (TransactionState.COMPLETED, [], [])


def test_names_are_nested_as_in_sql(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    outer = tx.savepoint("s")
    write(tx, bench.catalogs["one"], "t")
    inner = tx.savepoint("s")
    write(tx, bench.catalogs["one"], "u")
    tx.savepoint("later")
    tx.rollback_to("s")
    assert [p.path.name for p in tx.participants] == ["t"]
    with pytest.raises(ConfigurationError, match="no savepoint later"):
        tx.release("later")
    tx.release("s")
    with pytest.raises(ConfigurationError, match="no savepoint s"):
        tx.rollback_to(inner)
    assert [p.path.name for p in tx.participants] == ["t"]
    tx.rollback_to("s")
    assert tx.participants == []
    write(tx, bench.catalogs["one"], "v")
    tx.release(outer)
    with pytest.raises(ConfigurationError, match=f"Transaction {tx.id} has no savepoint s") as caught:
        tx.rollback_to("s")
    assert "It has none" in str(caught.value)
    tx.commit()
    assert bench.tables() == ["one.v"]


def test_an_unknown_savepoint_is_refused_with_the_known_ones_and_nothing_changes(bench: Bench) -> None:
    tx, other = (bench.coordinator().begin() for _ in range(2))
    for name in ("first", "second", "first"):
        tx.savepoint(name)
    write(tx, bench.catalogs["one"], "t")
    for call in (tx.rollback_to, tx.release):
        for unknown in ("third", other.savepoint("third")):
            with pytest.raises(ConfigurationError, match="no savepoint third") as caught:
                call(unknown)
            assert "first, second" in str(caught.value)
    tx.commit()
    assert bench.tables() == ["one.t"]


def test_a_savepoint_costs_no_write_and_a_rollback_to_it_one(bench: Bench) -> None:
    published(bench, "a", "b")
    tx = bench.coordinator().begin()
    insert(tx, bench, "a", 1)
    writes: list[str] = []
    failpoints.arm("core.save_participant", lambda _: writes.append("discard"))
    failpoints.arm("core.record_inflight", lambda _: writes.append("enlist"))
    failpoints.arm("core.heartbeat", lambda _: writes.append("renew"))
    mark = tx.savepoint()
    assert writes == []
    failpoints.disarm()
    for row in range(3):
        insert(tx, bench, "a", row)
        insert(tx, bench, "b", row)
    failpoints.arm("core.save_participant", lambda _: writes.append("discard"))
    tx.rollback_to(mark)
    tx.rollback_to(mark)
    failpoints.disarm()
    assert writes == ["discard"]
    tx.abort()


def test_what_was_reserved_since_a_savepoint_is_given_back(bench: Bench) -> None:
    published(bench, "a", "b")
    coordinator = bench.coordinator()
    tx = coordinator.begin(conflict=WaitDie())
    insert(tx, bench, "a", 3)
    mark = tx.savepoint()
    insert(tx, bench, "a", 4)
    insert(tx, bench, "b", 5)
    tx.lock((bench.catalogs["two"], path("c")))
    tx.rollback_to(mark)
    assert {lock.path.name for lock in coordinator.timeline.locks()} == {"a"}
    other = coordinator.begin(conflict=WaitDie(), wait_seconds=0)
    write(other, bench.catalogs["one"], "b", Purpose.INSERT_OVERWRITE, pa.table({"id": [6]}))
    other.commit()
    insert(tx, bench, "a", 7)
    tx.commit()
    assert (ids(bench, "a"), ids(bench, "b")) == ([1, 2, 3, 7], [6])


def test_it_is_refused_while_another_thread_still_writes_what_would_be_taken_back(bench: Bench) -> None:
    published(bench, "a")
    tx = bench.coordinator().begin()
    mark = tx.savepoint("s")
    writing, go_on = threading.Event(), threading.Event()

    def pause(_: object) -> None:
        writing.set()
        assert go_on.wait(60)

    failpoints.arm("core.write", pause)
    thread = threading.Thread(target=insert, args=(tx, bench, "a", 3))
    thread.start()
    assert writing.wait(60)
    with pytest.raises(
        WriteConflictError, match=r"not rolled back to savepoint s: .* still writing table one.default.a"
    ):
        tx.rollback_to(mark)
    tx.savepoint("within")
    tx.rollback_to("within")  # The statement began before it.
    go_on.set()
    thread.join()
    failpoints.disarm()
    tx.rollback_to(mark)
    insert(tx, bench, "a", 4)
    tx.commit()
    assert ids(bench, "a") == [1, 2, 4]


def test_it_is_refused_in_a_transaction_that_has_ended(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    mark = tx.savepoint()
    tx.abort()
    for call in (tx.savepoint, lambda: tx.rollback_to(mark), lambda: tx.release(mark)):
        with pytest.raises(TransactionAborted, match="has ended"):
            call()


def test_what_cannot_be_removed_now_is_not_published_and_is_removed_at_the_end(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    published(bench, "a")
    tx = bench.coordinator().begin()
    insert(tx, bench, "a", 3)
    mark = tx.savepoint()
    insert(tx, bench, "a", 4)
    write(tx, bench.catalogs["two"], "c")
    bench.catalogs["one"].faults.add("abort", "error", 1)
    tx.rollback_to(mark)
    assert "has discarded its write of one.default.a" in caplog.text
    tx.commit()
    assert (ids(bench, "a"), bench.tables(), bench.staged()) == ([1, 2, 3], ["one.a"], [])


def test_a_rollback_to_a_savepoint_that_cannot_be_recorded_lets_the_whole_transaction_end(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    mark = tx.savepoint()
    write(tx, bench.catalogs["two"], "u")
    failpoints.arm("core.save_participant", "error")
    with pytest.raises(TimelineError):
        tx.rollback_to(mark)
    failpoints.disarm()
    for call in (lambda: tx.rollback_to(mark), tx.commit):
        with pytest.raises(TimelineError):
            call()
    assert (tx.state, bench.tables(), bench.staged()) == (TransactionState.ROLLED_BACK, [], [])


def roll_back_to_and_commit(url: str, directory: object) -> None:
    bench = Bench(url, directory)  # type: ignore[arg-type]
    tx = bench.coordinator().begin()
    statements(tx, bench)
    tx.rollback_to("s")
    tx.commit()


@pytest.mark.promise("savepoints", "a death at a rollback to a savepoint, or after it, publishes nothing discarded")
@pytest.mark.parametrize(
    ("step", "is_published"),
    [
        ("core.abort=exit", False),
        ("core.abort=exit_after", False),
        ("core.abort=exit@3", False),
        ("core.record_committing=exit", False),
        ("core.publish=exit_after", True),
    ],
)
def test_a_death_on_the_way_publishes_what_was_before_the_savepoint_or_nothing(
    bench: Bench, step: str, is_published: bool
) -> None:
    published(bench, "a", "b")
    process = child(roll_back_to_and_commit, bench.url, bench.directory, failpoint=step)
    process.join(60)
    assert process.exitcode not in (0, 1)
    for _ in range(2):
        recovery = child(recover_in, bench.url, bench.directory)
        recovery.join(60)
        assert recovery.exitcode == 0
    assert ids(bench, "a") == ([1, 2, 10] if is_published else [1, 2])
    assert (bench.tables(), ids(bench, "b"), bench.staged()) == (["one.a", "one.b"], [1, 2], [])


def test_a_failed_statement_whose_error_is_caught_loses_only_itself(bench: Bench) -> None:
    published(bench, "a")
    tx = bench.coordinator().begin()
    insert(tx, bench, "a", 3)
    participant = stage(tx, bench.catalogs["one"], "a", Purpose.INSERT_INTO)
    tx.begin_participant(participant)
    failpoints.arm("core.write", "error")
    with pytest.raises(Exception, match=r"core\.write"):
        tx.write(participant, pa.table({"id": [4]}))
    failpoints.disarm()
    tx.discard(participant)
    insert(tx, bench, "a", 5)
    tx.commit()
    assert ids(bench, "a") == [1, 2, 3, 5]

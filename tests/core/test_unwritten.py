"""Only what is written to its end is published: statements that still write, that failed, or that come too late."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.core.bench import ROWS, Bench, path, stage, write
from twophase import failpoints
from twophase.errors import TransactionAborted, TransactionInDoubt, TwoPhaseError, WriteConflictError
from twophase.failpoints import FailpointError
from twophase.model import Purpose
from twophase.protocol.states import TransactionState
from twophase.transactions.transaction import Transaction

MORE = pa.table({"id": [3]})


class Straggler:
    """A statement on a thread of its own, which stands still at a step until it is let go.

    Parameters
    ----------
    step : str
        The failpoint where it stands.
    statement : callable
    """

    def __init__(self, step: str, statement: Callable[[], object]) -> None:
        self.problems: list[BaseException] = []
        self._statement = statement
        self._reached, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        failpoints.arm(step, self._stand)
        self._thread.start()
        assert self._reached.wait(60)
        failpoints.disarm()

    def end(self) -> None:
        self._go.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _stand(self, _: str) -> None:
        self._reached.set()
        assert self._go.wait(60)

    def _run(self) -> None:
        try:
            self._statement()
        except BaseException as error:
            self.problems.append(error)


def ids(bench: Bench, name: str) -> list[int]:
    return [row["id"] for row in bench.catalogs["one"].rows(path(name))]


# -- a commit comes before the end of a statement ----------------------------------------------------------------------


@pytest.mark.parametrize("step", ["core.begin", "core.write"])
def test_a_commit_while_a_statement_still_writes_publishes_nothing_and_leaves_nothing(bench: Bench, step: str) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["two"], "u")
    straggler = Straggler(step, lambda: write(tx, bench.catalogs["one"], "t"))
    with pytest.raises(TransactionAborted, match=r"one\.default\.t had not ended.*Wait for the thread") as caught:
        tx.commit()
    assert caught.value.transaction_id == tx.id
    assert tx.state is TransactionState.ROLLED_BACK
    straggler.end()
    assert [type(problem) for problem in straggler.problems] == [TransactionAborted]
    assert f"{tx.id} was rolled back while this statement was writing one.default.t" in str(straggler.problems[0])
    assert bench.tables() == []
    assert bench.staged() == []


def test_what_a_statement_that_outlived_its_transaction_cannot_remove_is_reported_and_found(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    straggler = Straggler("core.begin", lambda: write(tx, bench.catalogs["one"], "t"))
    tx.abort()
    bench.catalogs["one"].faults.add("abort", "error")
    straggler.end()
    (problem,) = straggler.problems
    assert isinstance(problem, TransactionAborted)
    assert problem.left_behind == tuple(bench.staged()) != ()
    assert "twophase clean" in str(problem)


def test_a_statement_that_had_written_its_rows_is_published_before_its_thread_goes_on(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    participant = stage(tx, bench.catalogs["one"], "t")
    tx.begin_participant(participant)
    tx.write(participant, ROWS)
    tx.commit()
    tx.prepare_participant(participant)  # What its thread does next.
    assert bench.tables() == ["one.t"]


@pytest.mark.parametrize("done", ["staged", "begun", "failed to begin", "failed to write"])
def test_what_was_not_written_is_not_published(bench: Bench, done: str) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["two"], "u")
    participant = stage(tx, bench.catalogs["one"], "t")
    if done == "failed to begin":
        failpoints.arm("core.begin", "error_after")
        with pytest.raises(FailpointError):
            tx.begin_participant(participant)
    elif done != "staged":
        tx.begin_participant(participant)
    if done == "failed to write":
        failpoints.arm("core.write", "error_after")
        with pytest.raises(FailpointError):
            tx.write(participant, ROWS)
    failpoints.disarm()
    why = "writing one.default.t had failed .FailpointError" if "failed" in done else "one.default.t had not ended"
    with pytest.raises(TransactionAborted, match=f"{tx.id} was rolled back, nothing was published.*{why}"):
        tx.commit()
    assert bench.tables() == []
    assert bench.staged() == []


def test_a_statement_without_rows_is_published_when_it_says_so(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    participant = stage(tx, bench.catalogs["one"], "t")
    tx.begin_participant(participant)
    tx.write_nothing(participant)
    tx.commit()
    assert ids(bench, "t") == []


# -- two statements on one table at once -------------------------------------------------------------------------------


@pytest.mark.promise("blocks", "of two concurrent statements of one transaction on one table the second is refused")
@pytest.mark.parametrize("step", ["core.begin", "core.write"])
def test_a_statement_on_a_table_that_another_one_still_writes_is_refused_and_both_go_on(
    bench: Bench, step: str
) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    straggler = Straggler(step, lambda: write(tx, bench.catalogs["one"], "t", Purpose.INSERT_INTO, MORE))
    with pytest.raises(WriteConflictError, match=rf"one\.default\.t is being written by .* {tx.id}\. Wait for the"):
        stage(tx, bench.catalogs["one"], "t", Purpose.INSERT_INTO)
    write(tx, bench.catalogs["two"], "u")
    straggler.end()
    assert straggler.problems == []
    write(tx, bench.catalogs["one"], "t", Purpose.INSERT_INTO, pa.table({"id": [4]}))
    tx.commit()
    assert ids(bench, "t") == [1, 2, 3, 4]
    assert bench.tables() == ["one.t", "two.u"]
    assert bench.staged() == []


def test_a_statement_that_failed_does_not_block_a_later_one_on_its_table(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    failpoints.arm("core.write", "error_after")
    with pytest.raises(FailpointError):
        write(tx, bench.catalogs["one"], "t", Purpose.INSERT_INTO, MORE)
    failpoints.disarm()
    later = write(tx, bench.catalogs["one"], "t", Purpose.INSERT_INTO, pa.table({"id": [4]}))
    assert tx.participants == [later]
    tx.commit()
    assert ids(bench, "t") == [1, 2, 4]
    assert bench.staged() == []


def test_a_later_statement_builds_on_an_earlier_one_that_is_prepared(bench: Bench) -> None:
    """Another thread may have written it and not come further; a store may complete it only then."""
    tx = bench.coordinator().begin()
    first = stage(tx, bench.catalogs["one"], "t")
    tx.begin_participant(first)
    tx.write(first, ROWS)
    second = write(tx, bench.catalogs["one"], "t", Purpose.INSERT_INTO, MORE)
    assert second.document["base"]["prepared"]
    tx.prepare_participant(first)  # What its thread does next.
    tx.commit()
    assert ids(bench, "t") == [1, 2, 3]


# -- statements that come after the end --------------------------------------------------------------------------------


def test_a_statement_after_the_publish_is_not_told_that_all_was_rolled_back(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    tx.commit()
    with pytest.raises(
        TwoPhaseError, match=rf"{tx.id} has ended \(COMPLETED\): what it wrote before is published"
    ) as told:
        stage(tx, bench.catalogs["one"], "u")
    assert not isinstance(told.value, TransactionAborted)
    assert bench.tables() == ["one.t"]


def in_doubt(bench: Bench) -> Transaction:
    """A transaction that was not published, which its store does not tell."""
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    bench.catalogs["one"].faults.add("publish", "error", 1)
    bench.catalogs["one"].faults.add("outcome", "error")
    with pytest.raises(TransactionInDoubt):
        tx.commit()
    return tx


def test_a_statement_in_a_transaction_in_doubt_is_told_that_it_is_in_doubt(bench: Bench) -> None:
    tx = in_doubt(bench)
    with pytest.raises(TransactionInDoubt, match=f"twophase recover {tx.id}"):
        stage(tx, bench.catalogs["two"], "u")


def test_nothing_of_a_transaction_in_doubt_is_discarded(bench: Bench) -> None:
    tx = in_doubt(bench)
    staged = bench.staged()
    (participant,) = tx.participants
    tx.discard(participant)
    assert bench.staged() == staged != []
    assert tx.participants == [participant]
    record = bench.coordinator().timeline.transaction(tx.id)
    assert record is not None
    assert [found.state.takes_part for found in record.participants] == [True]


def test_an_abort_after_a_commit_that_was_cut_off_leaves_the_outcome_to_recovery(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tx._ending, "_conclude", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    tx.abort()
    assert tx.state is not TransactionState.ROLLED_BACK
    assert bench.tables() == ["one.t"]
    assert bench.coordinator().recover() == []  # The publish was recorded; nothing is left to do.
    record = bench.coordinator().timeline.transaction(tx.id)
    assert record is not None
    assert record.state is TransactionState.COMPLETED

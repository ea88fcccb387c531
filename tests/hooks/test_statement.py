"""A statement through its hooks, over the catalog that fails on demand: whatever a hook raises, it has one end."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.bench import DEFINITION, ROWS, Bench, path, write
from tests.recorder import Recorder
from twophase import failpoints
from twophase.errors import TransactionInDoubt
from twophase.hooks import JobState, JobStatus, JobStatusHook, Statement
from twophase.hooks.events import EventFeed, JobEnded, JobStarted
from twophase.hooks.interrupts import carried_through
from twophase.hooks.statement import live_statements, statements_begun
from twophase.model import Purpose
from twophase.protocol.states import TransactionState
from twophase.transactions.transaction import Transaction


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(f"sqlite:///{tmp_path / 'timeline.db'}", tmp_path)
    yield bench
    bench.close()


def raising(event: str, error: BaseException) -> JobStatusHook:
    """A hook that raises in one event."""

    def throw(*_: Any) -> None:
        raise error

    return type("Raising", (JobStatusHook,), {event: throw})()


def prepared(
    tx: Transaction, bench: Bench, *hooks: JobStatusHook, autocommit: bool = True, replaces: bool = False
) -> Statement:
    """A statement that has not begun."""
    purpose = Purpose.CREATE_OR_REPLACE_TABLE_AS if replaces else Purpose.CREATE_TABLE_AS
    participant = tx.stage(bench.catalogs["one"], path("t"), DEFINITION, purpose=purpose, autocommit=autocommit)
    assert participant is not None
    return Statement(tx, participant, hooks=hooks, autocommit=autocommit)


def run(statement: Statement) -> None:
    statement.start()
    statement.write(ROWS)
    statement.finish()


ENDS = [SystemExit, KeyboardInterrupt, asyncio.CancelledError]


@pytest.mark.parametrize("kind", ENDS)
def test_a_hook_that_wants_an_end_in_on_created_fails_the_statement_with_it(
    bench: Bench, kind: type[BaseException]
) -> None:
    tx, recorder, end = bench.coordinator().begin(), Recorder(), kind()
    with pytest.raises(kind) as caught:
        run(prepared(tx, bench, raising("on_created", end), recorder))

    assert caught.value is end
    assert recorder.events[0] == "created"
    assert recorder.events[1] in ("failed", "canceled")
    assert (tx.state, bench.tables(), bench.staged()) == (TransactionState.ROLLED_BACK, [], [])
    record = bench.coordinators[0].timeline.transaction(tx.id)
    assert record is not None
    assert record.state is TransactionState.ROLLED_BACK
    assert live_statements() == []


def test_a_table_is_kept_when_a_hook_ends_its_replacement_in_a_block_and_that_is_caught(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    tx.commit()
    before = bench.catalogs["one"].rows(path("t"))

    block = bench.coordinators[0].begin()
    with pytest.raises(SystemExit):
        run(prepared(block, bench, raising("on_created", SystemExit(3)), autocommit=False, replaces=True))
    block.commit()

    assert bench.catalogs["one"].rows(path("t")) == before


@pytest.mark.parametrize("kind", ENDS)
def test_an_end_in_on_finished_comes_after_all_were_told_and_says_that_the_table_is_there(
    bench: Bench, kind: type[BaseException]
) -> None:
    tx, recorder, end = bench.coordinator().begin(), Recorder(), kind()
    statement = prepared(tx, bench, raising("on_finished", end), recorder)
    with pytest.raises(kind) as caught:
        run(statement)

    assert caught.value is end
    assert caught.value.__notes__[-1] == f"one.default.t had been published before this, in transaction {tx.id}."
    assert recorder.events == ["created", "finished"]
    assert (tx.state, bench.tables()) == (TransactionState.COMPLETED, ["one.t"])
    assert statement.done.is_set()
    assert live_statements() == []


def test_an_end_in_on_finished_of_a_statement_in_a_block_leaves_it_to_the_block(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    with pytest.raises(SystemExit) as caught:
        run(prepared(tx, bench, raising("on_finished", SystemExit(3)), autocommit=False))

    assert caught.value.__notes__ == [f"one.default.t was written before this; it is part of transaction {tx.id}."]
    tx.commit()
    assert bench.tables() == ["one.t"]


@pytest.mark.promise("failed-statement", "an exception in a hook never replaces the job's own error")
@pytest.mark.parametrize(
    ("event", "error"), [("on_failed", ValueError("the user's own")), ("on_canceled", KeyboardInterrupt())]
)
def test_an_end_in_a_hook_never_takes_the_place_of_the_users_own_error(
    bench: Bench, event: str, error: BaseException
) -> None:
    tx, recorder = bench.coordinator().begin(), Recorder()
    statement = prepared(tx, bench, raising(event, SystemExit("from a hook")), recorder)
    statement.start()

    statement.fail(error)

    assert recorder.events[1:] == [event.removeprefix("on_")]
    assert error.__notes__ == ["A hook that was called for this raised SystemExit('from a hook')."]
    assert [type(e) for e in statement.job.hook_errors] == [SystemExit]
    assert tx.state is TransactionState.ROLLED_BACK
    assert live_statements() == []


def test_a_clean_up_error_is_attached_to_the_error_of_a_cancelled_statement(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    statement = prepared(tx, bench)
    statement.start()
    bench.catalogs["one"].faults.add("abort", "error")
    error = RuntimeError("[SPARK_JOB_CANCELLED] Job 2 cancelled part of cancelled job group g")

    statement.fail(error)

    assert statement.job.state is JobState.CANCELED
    assert error.__notes__[0].startswith(f"While ending transaction {tx.id}")
    record = bench.coordinators[0].timeline.transaction(tx.id)
    assert record is not None
    assert "SPARK_JOB_CANCELLED" in str(record.error)


def test_ctrl_c_while_a_statement_is_rolled_back_comes_after_its_end(bench: Bench) -> None:
    recorder, tx = Recorder(), bench.coordinator().begin()
    statement = prepared(tx, bench, recorder)
    statement.start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    failpoints.arm("core.abort", lambda _: signal.raise_signal(signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            statement.fail(ValueError("the user's own"))
    finally:
        failpoints.disarm()
        signal.signal(signal.SIGINT, before)

    assert recorder.events == ["created", "failed"]
    assert (tx.state, bench.staged()) == (TransactionState.ROLLED_BACK, [])
    assert live_statements() == []


# -- events of Spark ---------------------------------------------------------------------------------------------------

GIVEN_UP = "[SPARK_JOB_CANCELLED] Job 2 cancelled The corresponding SQL query has failed."


def test_a_job_that_spark_gave_up_beside_one_that_failed_makes_no_cancellation(bench: Bench) -> None:
    tx, recorder, feed = bench.coordinator().begin(), Recorder(), EventFeed()
    statement = prepared(tx, bench, recorder)
    statement.start()
    feed.watch(statement)
    try:
        feed.handle(JobStarted(2, (statement.job.tag,), ((1, 4),)))
        feed.handle(JobEnded(2, GIVEN_UP))
        statement.fail(ValueError("the user's own"))
    finally:
        feed.close()

    assert recorder.events[-1] == "failed"
    record = bench.coordinators[0].timeline.transaction(tx.id)
    assert record is not None
    assert "the user's own" in str(record.error)


def test_the_event_thread_outlives_a_hook_that_wants_an_end(bench: Bench) -> None:
    told = threading.Event()

    class Second(JobStatusHook):
        def on_progress(self, job: JobStatus) -> None:
            if len(job.job_ids) == 2:
                told.set()

    feed = EventFeed()
    statement = prepared(bench.coordinator().begin(), bench, raising("on_progress", SystemExit(1)), Second())
    statement.start()
    feed.watch(statement)
    try:
        for job_id in (1, 2):
            feed.queue.put(JobStarted(job_id, (statement.job.tag,), ((job_id, 1),)))
        assert told.wait(60)
        assert feed._thread is not None
        assert feed._thread.is_alive()
    finally:
        feed.close()
    statement.fail(RuntimeError("enough"))
    assert SystemExit in [type(e) for e in statement.job.hook_errors]


def test_no_hook_sees_progress_after_the_end_though_one_before_it_is_slow(bench: Bench) -> None:
    inside, ended = threading.Event(), threading.Event()

    class Slow(JobStatusHook):
        def on_progress(self, job: JobStatus) -> None:
            inside.set()
            assert ended.wait(60)

    recorder = Recorder()
    statement = prepared(bench.coordinator().begin(), bench, Slow(), recorder)
    statement.start()
    statement.write(ROWS)
    teller = threading.Thread(target=statement.tell_progress)
    teller.start()
    assert inside.wait(60)
    statement.finish()
    ended.set()
    teller.join()

    assert (recorder.events, recorder.progress) == (["created", "finished"], 0)
    assert statement.job.hook_errors == []


def test_the_statements_that_begin_meanwhile_are_collected(bench: Bench) -> None:
    with statements_begun() as outer:
        with statements_begun() as inner:
            statement = prepared(bench.coordinator().begin(), bench)
            run(statement)
        prepared(bench.coordinators[0].begin(), bench, replaces=True).start()

    assert inner == [statement]
    assert len(outer) == 2
    outer[1].fail(RuntimeError("enough"))


# -- what becomes of the transaction -----------------------------------------------------------------------------------


def other(tx: Transaction, bench: Bench, *hooks: JobStatusHook) -> Statement:
    """Another statement of a block."""
    participant = tx.stage(bench.catalogs["two"], path("u"), DEFINITION, purpose=Purpose.CREATE_TABLE_AS)
    assert participant is not None
    return Statement(tx, participant, hooks=hooks, autocommit=False)


def test_a_statement_of_its_own_is_committed_when_it_has_finished(bench: Bench) -> None:
    recorder = Recorder()
    run(prepared(bench.coordinator().begin(), bench, recorder))

    assert (recorder.events, recorder.fates) == (["created", "finished"], [("committed", "one.default.t")])
    assert (recorder.jobs[0].in_transaction, recorder.jobs[0].published) == (False, True)


def test_statements_of_a_block_have_finished_before_it_and_are_committed_with_it(bench: Bench) -> None:
    tx, recorder = bench.coordinator().begin(), Recorder()
    run(prepared(tx, bench, recorder, autocommit=False))
    run(other(tx, bench, recorder))

    assert (recorder.events, recorder.fates) == (["created", "finished"] * 2, [])
    assert [(job.in_transaction, job.published) for job in recorder.jobs] == [(True, None)] * 2
    tx.commit()
    tx.commit()
    assert recorder.fates == [("committed", "one.default.t"), ("committed", "two.default.u")]
    assert [job.published for job in recorder.jobs] == [True, True]


@pytest.mark.parametrize("how", ["abort", "refused"])
def test_what_has_finished_in_a_block_that_is_rolled_back_is_reported_as_rolled_back(bench: Bench, how: str) -> None:
    tx, recorder = bench.coordinator().begin(), Recorder()
    run(prepared(tx, bench, recorder, autocommit=False))
    if how == "abort":
        tx.abort(ValueError("the user's own"))
    else:
        write(bench.coordinators[0].begin(), bench.catalogs["one"], "t").catalog.create_table(path("t"), DEFINITION)
        with pytest.raises(Exception, match="t"):
            tx.commit()

    assert (recorder.events, recorder.fates) == (["created", "finished"], [("rolled_back", "one.default.t")])
    assert recorder.jobs[0].published is False


def test_a_statement_that_fails_in_a_block_is_rolled_back_and_the_others_are_committed(bench: Bench) -> None:
    tx, recorder = bench.coordinator().begin(), Recorder()
    failing = prepared(tx, bench, recorder, autocommit=False)
    failing.start()
    failing.fail(ValueError("the user's own"))
    run(other(tx, bench, recorder))
    assert recorder.fates == [("rolled_back", "one.default.t")]
    tx.commit()

    assert recorder.fates == [("rolled_back", "one.default.t"), ("committed", "two.default.u")]


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_publish_of_which_nothing_is_known_is_reported_as_unknown(
    bench: Bench, autocommit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    tx, recorder = bench.coordinator().begin(), Recorder()
    statement = prepared(tx, bench, recorder, autocommit=autocommit)
    statement.start()
    statement.write(ROWS)
    faults = bench.catalogs["one"].faults
    faults.add("publish", "lost_reply")
    faults.add("outcome", "error")
    with pytest.raises(TransactionInDoubt):
        statement.finish()
        tx.commit()

    assert recorder.fates == [("in_doubt", "one.default.t")]
    assert recorder.jobs[0].published is None


def test_a_commit_by_another_thread_is_reported_after_the_statements_own_end(bench: Bench) -> None:
    tx, recorder = bench.coordinator().begin(), Recorder()

    class Slow(JobStatusHook):
        def on_finished(self, job: JobStatus) -> None:
            committer = threading.Thread(target=tx.commit)
            committer.start()
            committer.join()
            assert (recorder.events, recorder.fates) == (["created"], [])

    statement = prepared(tx, bench, Slow(), recorder, autocommit=False)
    run(statement)

    assert statement.job.hook_errors == []
    assert (recorder.events, recorder.fates) == (["created", "finished"], [("committed", "one.default.t")])


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_hook_that_is_told_the_end_of_a_block_can_be_interrupted(bench: Bench, end: str) -> None:
    """It may hang: signals wait for the end itself, not for those who are told of it."""
    tx, recorder, error = bench.coordinator().begin(), Recorder(), ValueError("the user's own")

    class Hangs(JobStatusHook):
        def on_committed(self, job: JobStatus) -> None:
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("It was not interrupted.")

        on_rolled_back = on_committed

    statement = prepared(tx, bench, Hangs(), recorder, autocommit=False)
    run(statement)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if end == "commit":
            with pytest.raises(KeyboardInterrupt) as caught, carried_through(tx):
                tx.commit()
            assert caught.value.__notes__ == [f"one.default.t had been published before this, in transaction {tx.id}."]
        else:
            with carried_through(tx, error):
                tx.abort(error)
            assert error.__notes__ == ["A hook that was called for this raised KeyboardInterrupt()."]
    finally:
        signal.signal(signal.SIGINT, before)

    assert [type(raised) for raised in statement.job.hook_errors] == [KeyboardInterrupt]
    assert recorder.fates == [("committed" if end == "commit" else "rolled_back", "one.default.t")]


@pytest.mark.parametrize("fate", ["committed", "in_doubt", "rolled_back"])
def test_a_statement_that_fails_after_its_block_has_ended_is_told_what_became_of_its_rows(
    bench: Bench, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    tx, recorder, error = bench.coordinator().begin(), Recorder(), ValueError("after the rows")
    statement = prepared(tx, bench, recorder, autocommit=False)
    statement.start()
    statement.write(ROWS)
    if fate == "in_doubt":
        bench.catalogs["one"].faults.add("publish", "lost_reply")
        bench.catalogs["one"].faults.add("outcome", "error")
        with pytest.raises(TransactionInDoubt):
            tx.commit()
    elif fate == "committed":
        tx.commit()
    else:
        tx.abort()
    statement.fail(error)

    assert (recorder.events, recorder.fates) == (["created", "failed"], [(fate, "one.default.t")])
    assert statement.job.published is {"committed": True, "rolled_back": False}.get(fate)


def test_an_end_in_on_committed_of_a_block_comes_after_all_were_told(bench: Bench) -> None:
    tx, recorder, end = bench.coordinator().begin(), Recorder(), SystemExit(3)
    run(prepared(tx, bench, raising("on_committed", end), recorder, autocommit=False))
    with pytest.raises(SystemExit) as caught:
        tx.commit()

    assert caught.value is end
    assert recorder.fates == [("committed", "one.default.t")]
    assert (tx.state, bench.tables()) == (TransactionState.COMPLETED, ["one.t"])

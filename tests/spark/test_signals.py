"""Signals and cancellations that come at a bad moment: while something is published, rolled back, or not running."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.recorder import Recorder
from tests.spark.conftest import Start
from tests.spark.test_cancellation import cancel_all, cancel_by_group, cancel_by_tag, cancel_by_users_tag
from twophase import TransactionState, failpoints
from twophase.hooks import JobStatus, JobStatusHook
from twophase.model import Purpose
from twophase.spark.execution import cancellation
from twophase.spark.execution.cancellation import Terminator

SLOW_QUERY = "SELECT id + CAST(java_method('java.lang.Thread', 'sleep', 50L) IS NULL AS BIGINT) AS id FROM range(400)"


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def session(start: Start, recorder: Recorder) -> SparkSession:
    session = start()
    twophase.attach(session, hooks=[recorder])
    return session


@pytest.fixture
def spark(session: SparkSession, recorder: Recorder) -> Iterator[SparkSession]:
    """With two tables of one row; Ctrl-C is Python's own."""
    for name in ("kept", "more"):
        session.sql(f"CREATE OR REPLACE TABLE {name} AS SELECT 1L AS id")
    recorder.clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield session
    signal.signal(signal.SIGINT, before)
    failpoints.disarm()
    session.sql("DROP TABLE IF EXISTS fresh")


def ids(spark: SparkSession, name: str = "kept") -> list[int]:
    return sorted(row.id for row in spark.table(name).collect())


# -- Spark's own cancellations -----------------------------------------------------------------------------------------


WAYS = [cancel_by_group, cancel_by_tag, cancel_by_users_tag, cancel_all]


@pytest.fixture
def cancelled_at(spark: SparkSession, recorder: Recorder) -> Iterator[Callable[[str, Any], list[str]]]:
    """Cancels at a step, and holds that until Spark has done what it was asked for."""
    context = spark.sparkContext
    context.setJobGroup("users-group", "a user's own group")
    context.addJobTag("users-tag")
    reached: list[str] = []

    def arm(step: str, cancel: Callable[[SparkSession, Recorder], None]) -> list[str]:
        def hold(name: str) -> None:
            cancel(spark, recorder)
            # Spark's scheduler does one thing after the other: when this job has run, the cancelling is done.
            later = threading.Thread(target=lambda: spark.range(1).count())
            later.start()
            later.join()
            reached.append(name)

        failpoints.arm(step, hold)
        return reached

    yield arm
    context.removeJobTag("users-tag")
    context.setLocalProperty("spark.jobGroup.id", None)


@pytest.mark.parametrize("cancel", WAYS)
@pytest.mark.parametrize(
    ("statement", "table", "rows"),
    [
        ("CREATE TABLE fresh AS SELECT 7L AS id", "fresh", [7]),
        ("CREATE OR REPLACE TABLE kept AS SELECT 7L AS id", "kept", [7]),
        ("INSERT INTO kept SELECT 7L", "kept", [1, 7]),
    ],
)
def test_a_cancellation_during_the_publish_comes_too_late_and_the_statement_has_one_end(
    spark: SparkSession,
    recorder: Recorder,
    cancelled_at: Callable[..., list[str]],
    cancel: Callable[[SparkSession, Recorder], None],
    statement: str,
    table: str,
    rows: list[int],
) -> None:
    reached = cancelled_at("core.publish", cancel)

    spark.sql(statement)

    assert reached == ["core.publish"]
    assert recorder.events == ["created", "finished"]
    assert ids(spark, table) == rows
    assert state_of(spark, recorder) is TransactionState.COMPLETED


@pytest.mark.parametrize("cancel", WAYS)
def test_a_cancellation_during_the_roll_back_changes_nothing(
    spark: SparkSession,
    recorder: Recorder,
    cancelled_at: Callable[..., list[str]],
    cancel: Callable[[SparkSession, Recorder], None],
) -> None:
    reached = cancelled_at("core.abort", cancel)

    with pytest.raises(Exception, match="boom"):
        spark.sql("CREATE OR REPLACE TABLE kept AS SELECT CAST(raise_error('boom') AS BIGINT) AS id")

    assert reached == ["core.abort"]
    assert recorder.events == ["created", "failed"]
    assert ids(spark) == [1]
    assert state_of(spark, recorder) is TransactionState.ROLLED_BACK


def state_of(spark: SparkSession, recorder: Recorder) -> TransactionState:
    record = twophase.attach(spark).timeline.transaction(recorder.jobs[-1].transaction_id)
    assert record is not None
    return record.state


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


def press_ctrl_c(_: str = "") -> None:
    """Send a real SIGINT; comes back when the main thread has taken notice."""
    os.kill(os.getpid(), signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        deadline = time.monotonic() + 60
        while not any(thread.name == "twophase-cancel" for thread in threading.enumerate()):
            assert time.monotonic() < deadline, "nobody takes notice of Ctrl-C"


def by_sql(spark: SparkSession) -> None:
    spark.sql("INSERT INTO kept SELECT 7L")


def without_sql(spark: SparkSession) -> None:
    twophase.create_table_as(spark.range(7, 8), "hive", "default.kept", purpose=Purpose.INSERT_INTO)


def of_two_tables(spark: SparkSession) -> None:
    spark.sql("FROM range(7, 8) INSERT INTO kept SELECT id INSERT INTO more SELECT id")


@pytest.mark.parametrize(
    ("run", "tables"),
    [
        (by_sql, "hive.default.kept"),
        (without_sql, "hive.default.kept"),
        (of_two_tables, "hive.default.kept, hive.default.more"),
    ],
)
def test_ctrl_c_during_a_publish_says_that_the_table_is_published(
    spark: SparkSession, recorder: Recorder, run: Callable[[SparkSession], None], tables: str
) -> None:
    failpoints.arm("core.publish", press_ctrl_c, nth=1)

    with pytest.raises(KeyboardInterrupt) as caught:
        run(spark)

    job = recorder.jobs[-1]
    assert f"{tables} had been published before this, in transaction {job.transaction_id}." in caught.value.__notes__
    assert ids(spark) == [1, 7]
    assert state_of(spark, recorder) is TransactionState.COMPLETED


def test_ctrl_c_that_the_application_ignores_cancels_nothing(spark: SparkSession, recorder: Recorder) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handlers: list[Any] = []

    def interrupt(_: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        handlers.append(signal.getsignal(signal.SIGINT))

    failpoints.arm("core.write", interrupt)

    spark.sql("INSERT INTO kept SELECT 7L")

    assert handlers == [signal.SIG_IGN]
    assert recorder.events == ["created", "finished"]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert ids(spark) == [1, 7]


@pytest.fixture
def interrupted_in_java(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """What a step does: it waits inside Java, is interrupted there, and goes on when the signal has arrived."""
    ours, pythons = socket.socketpair()
    pythons.setblocking(False)
    ours.settimeout(60)
    barrier = spark._jvm.java.util.concurrent.CyclicBarrier(2)

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while barrier.getNumberWaiting() == 0:
            assert time.monotonic() < deadline, "nobody waits in Java"
        os.kill(os.getpid(), signal.SIGINT)
        ours.recv(1)  # Python's own handler writes here as soon as the signal is there
        getattr(barrier, "await")()

    thread = threading.Thread(target=interrupt)

    def wait_in_java(_: str) -> None:
        thread.start()
        getattr(barrier, "await")()

    before = signal.set_wakeup_fd(pythons.fileno())
    yield wait_in_java
    barrier.reset()
    thread.join()
    signal.set_wakeup_fd(before)
    ours.close()
    pythons.close()


@pytest.mark.promise("cancellation", "a Ctrl-C during a publish waits for it, and reports that it is done")
def test_ctrl_c_at_the_end_of_a_block_waits_for_the_publish_and_says_that_it_is_done(
    spark: SparkSession, recorder: Recorder, interrupted_in_java: Callable[[str], None]
) -> None:
    spark.table("kept").cache().count()
    failpoints.arm("core.publish", interrupted_in_java, nth=1)

    with pytest.raises(KeyboardInterrupt) as caught, twophase.transaction(spark) as tx:
        spark.sql("CREATE OR REPLACE TABLE kept AS SELECT 7L AS id")

    assert caught.value.__notes__ == [f"hive.default.kept had been published before this, in transaction {tx.id}."]
    assert tx.state is TransactionState.COMPLETED
    assert state_of(spark, recorder) is TransactionState.COMPLETED
    assert ids(spark) == [7]


def test_ctrl_c_while_a_block_is_rolled_back_waits_for_that(
    spark: SparkSession, recorder: Recorder, interrupted_in_java: Callable[[str], None]
) -> None:
    failpoints.arm("core.abort", interrupted_in_java, nth=1)

    with pytest.raises(KeyboardInterrupt) as caught, twophase.transaction(spark) as tx:
        spark.sql("CREATE OR REPLACE TABLE kept AS SELECT 7L AS id")
        1 / 0  # noqa: B018

    assert isinstance(caught.value.__context__, ZeroDivisionError)
    assert caught.value.__notes__ == [f"Transaction {tx.id} had been rolled back before this."]
    record = twophase.attach(spark).timeline.transaction(tx.id)
    assert record is not None
    assert (record.state, record.left_behind) == (TransactionState.ROLLED_BACK, ())
    assert ids(spark) == [1]


# -- SIGTERM -----------------------------------------------------------------------------------------------------------


def test_a_sigterm_that_the_application_survives_is_handled_alike_each_time(
    spark: SparkSession, recorder: Recorder
) -> None:
    """It stalls nobody: the application's own handler runs before the cancelled statement fails."""
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    terminator = Terminator(twophase.attach(spark).session.tracker)
    terminator.install()
    installed = signal.getsignal(signal.SIGTERM)
    try:
        for round_ in (1, 2):
            os.kill(os.getpid(), signal.SIGTERM)  # between two statements
            assert len(received) == 2 * round_ - 1
            recorder.running.clear()
            sender = threading.Thread(target=lambda: recorder.running.wait(60) and os.kill(os.getpid(), signal.SIGTERM))
            sender.start()
            begun = time.monotonic()
            with pytest.raises(Exception, match=r"(?i)cancel"):
                spark.sql("CREATE OR REPLACE TABLE kept AS " + SLOW_QUERY)
            assert len(received) == 2 * round_
            assert time.monotonic() - begun < cancellation.GRACE_SECONDS
            sender.join()
            assert signal.getsignal(signal.SIGTERM) == installed
    finally:
        terminator.uninstall()
        signal.signal(signal.SIGTERM, before)
    assert recorder.events == ["created", "canceled"] * 2
    assert ids(spark) == [1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_forked_child_ends_that_and_cancels_no_statement_of_its_parent(
    spark: SparkSession, number: signal.Signals
) -> None:
    """As a worker of multiprocessing is ended, which inherits the handlers and the statements that run."""
    ends: list[int] = []

    class Forks(JobStatusHook):
        def on_created(self, job: JobStatus) -> None:
            if not (child := os.fork()):
                signal.raise_signal(number)
                os._exit(1)
            ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    before = signal.signal(number, signal.SIG_DFL)
    terminator = Terminator(twophase.attach(spark).session.tracker)
    terminator.install()
    try:
        with twophase.transaction(spark, hooks=[Forks()]):
            spark.sql("CREATE OR REPLACE TABLE kept AS SELECT 2L AS id")
    finally:
        terminator.uninstall()
        signal.signal(number, before)
    assert ends == [-number]
    assert ids(spark) == [2]

"""Conflict policies, locks, and blocks that run again, with Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.spark.blocks import elsewhere
from tests.spark.isolation.stores import OLD, Store
from twophase import (
    ConflictPolicy,
    Contender,
    Isolation,
    Resolution,
    TransactionState,
)
from twophase.errors import (
    ConfigurationError,
    TransactionAborted,
    WoundedError,
    WriteConflictError,
)

#: Many short sleeps: a cancelled task ends at its next row.
SLOW = "SELECT id AS value, java_method('java.lang.Thread', 'sleep', 50L) AS id FROM range(0, 4000, 1, 2)"


@pytest.mark.promise("conflicts", "under wound_wait an older block rolls a younger one back, whose job is cancelled")
@pytest.mark.parametrize("kind", ["session", "lakehouse"])
def test_a_block_is_wounded_during_its_job_and_told_by_whom(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    raised: list[BaseException] = []
    with twophase.transaction(spark, conflict="wound_wait", isolation="read_committed") as old:
        store.write(spark, "b", [(9, 90)])  # It is recorded, and so it is older.
        running = threading.Event()

        def quick() -> None:
            try:
                with twophase.transaction(other, conflict="wound_wait"):
                    running.set()
                    other.sql(f"INSERT OVERWRITE {store.of('a')} SELECT value, length(id) AS id FROM ({SLOW})")
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=quick)
        thread.start()
        assert running.wait(60)
        jobs = spark.sparkContext.statusTracker()
        gate = threading.Event()
        while not jobs.getActiveJobsIds():
            gate.wait(0.02)
        store.write(spark, "a", [(8, 80)])
        thread.join(60)
        assert not thread.is_alive()

    (error,) = raised
    assert isinstance(error, WoundedError)
    assert old.id in str(error)
    assert (store.rows(spark, "a"), store.rows(spark, "b")) == ([(8, 80)], [(9, 90)])


@pytest.mark.parametrize("kind", ["session"])
def test_a_table_is_locked_by_its_name(spark: SparkSession, other: SparkSession, store: Store) -> None:
    with twophase.transaction(spark) as tx:
        tx.lock("a")
        with pytest.raises(ConfigurationError, match=r"nowhere\.c\.d"):
            tx.lock("nowhere.c.d")

        def refused() -> None:
            with pytest.raises(WriteConflictError, match=tx.id), twophase.transaction(other, conflict="fail"):
                store.write(other, "a", [(9, 90)])

        elsewhere(refused)
        store.write(spark, "a", [(8, 80)])
    assert store.rows(spark, "a") == [(8, 80)]


def during_pauses(monkeypatch: pytest.MonkeyPatch, pause: Callable[[float], object]) -> list[tuple[float, float]]:
    """Do something instead of each pause, which is as long as it may be; the result has the bounds of the pauses."""
    bounds: list[tuple[float, float]] = []

    def longest(low: float, high: float) -> float:
        bounds.append((low, high))
        return high

    monkeypatch.setattr("tenacity.wait.random", SimpleNamespace(uniform=longest))
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=pause))
    return bounds


@pytest.mark.promise("conflicts", "the pauses of twophase.run are random, and grow up to a limit")
@pytest.mark.parametrize("kind", ["session"])
def test_run_pauses_for_random_times_that_grow_up_to_a_limit(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    open_blocks: list[object] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        open_blocks.append(twophase.attach(spark).current_transaction())

    def refused() -> None:
        with pytest.raises(WriteConflictError, match=holder.id):
            twophase.run(spark, lambda tx: tx.lock("a", wait=0), attempts=10)

    bounds = during_pauses(monkeypatch, pause)
    with twophase.transaction(spark) as holder:
        holder.lock("a")
        elsewhere(refused)
    shortest, longest = pauses[0], pauses[-1]
    assert pauses == [min(shortest * 2**number, longest) for number in range(9)]
    assert bounds[:9] == [(0, pause) for pause in pauses]
    assert open_blocks == [None] * 9
    assert 0 < shortest < 1 < longest <= 10


@pytest.mark.promise("conflicts", "a block that twophase.run repeats is as old as its first attempt")
@pytest.mark.parametrize("policy", ["wait_die", "wound_wait"])
@pytest.mark.parametrize("kind", ["session"])
def test_run_keeps_its_age_and_comes_before_a_block_that_has_begun_since(
    spark: SparkSession, other: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Refused once, because of an older block, it meets one that has begun during its pause."""
    timeline = twophase.attach(spark).timeline
    locked, paused, over = threading.Event(), threading.Event(), threading.Event()
    attempts: list[str] = []
    raised: list[BaseException] = []

    def others() -> None:
        """One that is older than all attempts; then one that is younger than the first, until somebody waits."""
        try:
            with twophase.transaction(other, conflict=policy) as tx:
                tx.lock("a")
                locked.set()
                assert paused.wait(60)
            with twophase.transaction(other, conflict=policy) as tx:
                tx.lock("a")
                locked.set()
                while not over.wait(0.02) and all(lock.since is None for lock in timeline.locks()):
                    pass
        except BaseException as error:
            raised.append(error)

    def pause(_: float) -> None:
        locked.clear()
        paused.set()
        assert locked.wait(60)

    def block(tx: twophase.Transaction) -> None:
        attempts.append(tx.id)
        tx.lock("a", wait=60 if paused.is_set() and policy == "wait_die" else 0)
        store.write(spark, "a", [(8, 80)])

    during_pauses(monkeypatch, pause)
    thread = threading.Thread(target=others)
    thread.start()
    assert locked.wait(60)
    try:
        twophase.run(spark, block, conflict=policy, attempts=2)
    finally:
        over.set()
        paused.set()
        thread.join(60)
    assert not thread.is_alive()
    assert [type(error) for error in raised] == ([WoundedError] if policy == "wound_wait" else [])
    assert all(attempts[1] in str(error) for error in raised)
    assert (len(attempts), store.rows(spark, "a")) == (2, [(8, 80)])


@pytest.mark.parametrize("kind", ["lakehouse"])
def test_run_gives_up_after_its_attempts(spark: SparkSession, other: SparkSession, store: Store) -> None:
    tries: list[str] = []

    def block(tx: twophase.Transaction) -> None:
        tries.append(tx.id)
        elsewhere(lambda: store.append(other, "a", (len(tries) + 2, 30)))
        store.write(spark, "a", [(9, 90)])

    with pytest.raises(WriteConflictError) as refused:
        twophase.run(spark, block, attempts=2)
    assert (len(tries), refused.value.transaction_id) == (2, tries[-1])
    assert store.rows(spark, "a") == [*OLD, (3, 30), (4, 30)]

    def failing() -> None:
        tries.append("another error")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        twophase.run(spark, failing)
    assert tries[2:] == ["another error"]
    with pytest.raises(ConfigurationError, match="at least once"):
        twophase.run(spark, failing, attempts=0)


@pytest.mark.parametrize("kind", ["lakehouse"])
def test_run_repeats_nothing_that_it_has_published(spark: SparkSession, store: Store) -> None:
    tries: list[str] = []

    def block(tx: twophase.Transaction) -> None:
        tries.append(tx.id)
        store.write(spark, "a", [(9, 90)])
        tx.commit()
        raise WriteConflictError("of another session")

    with pytest.raises(WriteConflictError, match="of another session"):
        twophase.run(spark, block, attempts=3)
    assert (len(tries), store.rows(spark, "a")) == (1, [(9, 90)])


@pytest.mark.parametrize("kind", ["session"])
def test_run_refuses_what_would_run_its_statements_after_it(spark: SparkSession, store: Store) -> None:
    """It has the name of a plain function, and only its result shows that nothing has run."""

    async def append() -> None:
        store.append(spark, "a", (3, 30))

    def appends() -> Iterator[None]:
        yield store.append(spark, "a", (3, 30))

    later: list[Callable[[], object]] = [append, appends]
    for function in later:
        with pytest.raises(ConfigurationError, match="after the transaction has ended"):
            twophase.run(spark, lambda function=function: function())
    assert list(twophase.run(spark, lambda: (row for row in store.rows(spark, "a")))) == OLD


class Refusing(ConflictPolicy):
    """Lets appends wait."""

    def on_conflict(self, requester: Contender, holder: Contender, mode: str) -> Resolution:
        return Resolution.WAIT if mode == "append" else Resolution.DIE


def configured(spark: SparkSession, **options: str) -> SparkSession:
    """A session with options of its own."""
    session = spark.newSession()
    for key, value in options.items():
        session.conf.set(f"spark.twophase.{key}", value)
    twophase.attach(session)
    return session


@pytest.mark.parametrize("kind", ["session"])
def test_the_options_of_a_session_are_those_of_its_blocks(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    strict = configured(spark, isolation="serializable", conflict=f"{__name__}:Refusing", wait="0.2s")
    with pytest.raises(WriteConflictError, match="reads table"), twophase.transaction(strict):
        assert store.rows(strict, "a") == OLD
        elsewhere(lambda: store.append(other, "a", (3, 30)))
        store.append(strict, "b", (3, 30))
    with twophase.transaction(spark) as holder:
        holder.lock("b")

        def refused() -> None:
            with twophase.transaction(strict):
                with pytest.raises(WriteConflictError, match=rf"{holder.id}\."):
                    store.write(strict, "b", [(9, 90)])
                with pytest.raises(WriteConflictError, match=rf"{holder.id} after 0\.2 s of waiting"):
                    store.append(strict, "b", (9, 90))

        elsewhere(refused)
    short = configured(spark, **{"transaction.timeout": "0.3s", "isolation": "read_committed"})
    ended = threading.Event()
    with pytest.raises(TransactionAborted, match="longer than its timeout"), twophase.transaction(short) as tx:
        assert tx.isolation is Isolation.READ_COMMITTED
        tx.at_end(ended.set)  # type: ignore[arg-type]
        store.write(short, "b", [(9, 90)])
        assert ended.wait(60)
        short.sql("SELECT 1").collect()
    assert store.rows(spark, "b") == OLD


@pytest.mark.promise("conflicts", "a block that lasts longer than its timeout is rolled back, and its job is cancelled")
@pytest.mark.parametrize("kind", ["session"])
def test_a_block_that_lasts_too_long_is_rolled_back_during_its_job(spark: SparkSession, store: Store) -> None:
    with (
        pytest.raises(TransactionAborted, match="longer than its timeout"),
        twophase.transaction(spark, timeout="2s") as tx,
    ):
        spark.sql(f"INSERT OVERWRITE {store.of('a')} SELECT value, length(id) AS id FROM ({SLOW})")
    assert tx.state is TransactionState.ROLLED_BACK
    assert store.rows(spark, "a") == OLD


@pytest.mark.parametrize("terms", [{"conflict": "wound"}, {"wait": "soon"}, {"timeout": "1 parsec"}])
def test_terms_that_do_not_exist_are_refused(spark: SparkSession, terms: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError), twophase.transaction(spark, **terms):  # type: ignore[arg-type]
        pass

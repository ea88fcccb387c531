"""The sessions that come of an attached one, by ``newSession()`` and in ``foreachBatch``, are attached with it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import SparkRuntimeException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import twophase
from tests.recorder import Recorder
from tests.spark.conftest import Start
from tests.spark.routed import drop_all, rows, stock_session
from twophase.errors import TransactionAborted
from twophase.spark.attach import Handle, handle_of

spark40_first_cases = True

Function = Callable[[DataFrame, int], Any]

#: A frame of the rows 0 to 3 without the last: this one fails when it is written.
BROKEN = "IF(id = 3, CAST(raise_error('broken') AS BIGINT), id) AS id"


@pytest.fixture(scope="module")
def started(start: Start) -> SparkSession:
    return start({"spark.sql.scripting.enabled": "true"})


@pytest.fixture
def spark(started: SparkSession) -> Iterator[SparkSession]:
    """The module's session, attached; a table ``t`` of one row, and ``u`` like it."""
    twophase.attach(started)
    for name in ("t", "u"):
        started.sql(f"CREATE TABLE {name} AS SELECT 100L AS id")
    yield started
    drop_all(started)
    if handle := handle_of(started):
        handle.detach()


@pytest.fixture
def handle(spark: SparkSession) -> Handle:
    return twophase.attach(spark)


def states(handle: Handle) -> list[str]:
    """How the transactions ended, the first one first."""
    return [record.state.name for record in reversed(handle.timeline.transactions())]


def since(handle: Handle, run: Callable[[], object]) -> list[str]:
    """How those ended that a call has made."""
    before = len(states(handle))
    run()
    return states(handle)[before:]


def child_of(spark: SparkSession) -> Handle:
    found = handle_of(spark)
    assert found is not None
    return found


# -- newSession() ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("session", "a statement of a new session (`newSession()`) is one transaction")
def test_a_statement_of_a_new_session_is_one_transaction(spark: SparkSession, handle: Handle) -> None:
    child = spark.newSession()
    assert since(handle, lambda: child.sql("INSERT INTO t SELECT id FROM range(2)")) == ["COMPLETED"]
    assert since(handle, lambda: child.range(1).write.insertInto("t")) == ["COMPLETED"]
    assert since(handle, lambda: child.sql("CREATE TABLE lake.default.made AS SELECT 1 AS id")) == ["COMPLETED"]
    assert rows(spark, "SELECT id FROM t") == rows(child, "SELECT id FROM t") == [(0,), (0,), (1,), (100,)]
    child.sql("DROP TABLE lake.default.made")


@pytest.mark.promise("session", "an overwrite that fails in a new session leaves the old rows")
def test_an_overwrite_that_fails_in_a_new_session_leaves_the_old_rows(spark: SparkSession, handle: Handle) -> None:
    child = spark.newSession()

    def overwritten() -> None:
        with pytest.raises(SparkRuntimeException, match="broken"):
            child.sql(f"INSERT OVERWRITE t SELECT {BROKEN} FROM range(4)")

    assert since(handle, overwritten) == ["ROLLED_BACK"]
    assert rows(child, "SELECT id FROM t") == [(100,)]


def test_a_new_session_has_a_database_and_settings_of_its_own(spark: SparkSession) -> None:
    child = spark.newSession()
    child.sql("CREATE DATABASE away")
    try:
        child.sql("USE away")
        child.sql("CREATE TABLE t AS SELECT 1L AS id")
        assert rows(child, "SELECT id FROM t") == [(1,)]
        assert rows(spark, "SELECT id FROM t") == [(100,)]
        child.sql("USE default")
    finally:
        child.sql("DROP DATABASE away CASCADE")


def test_the_parents_hooks_are_called_for_it(spark: SparkSession) -> None:
    child = spark.newSession()
    recorder = Recorder()
    twophase.attach(spark, hooks=[recorder])
    child.sql("INSERT INTO t VALUES (1)")
    assert recorder.events == ["created", "finished"]


def test_a_session_of_the_second_level_stays_where_the_one_between_has_gone(
    spark: SparkSession, handle: Handle
) -> None:
    between = spark.newSession()
    gone, grandchild = child_of(between), between.newSession()
    del between
    gc.collect()
    spark.newSession()  # With this one, those that nobody has any more go.

    assert not gone.is_attached
    assert since(handle, lambda: grandchild.sql("INSERT INTO t VALUES (1)")) == ["COMPLETED"]
    with pytest.raises(SparkRuntimeException, match="broken"), twophase.transaction(grandchild):
        grandchild.sql("INSERT INTO t VALUES (2)")
        grandchild.sql(f"INSERT OVERWRITE u SELECT {BROKEN} FROM range(4)")
    assert (rows(spark, "SELECT id FROM t"), rows(spark, "SELECT id FROM u")) == ([(1,), (100,)], [(100,)])


@pytest.mark.promise("session", "detaching the parent restores its children")
def test_detaching_the_parent_puts_its_children_back(spark: SparkSession, handle: Handle) -> None:
    child = spark.newSession()
    grandchild = child.newSession()
    with twophase.transaction(child), pytest.raises(twophase.errors.AtomicityNotSupportedError, match="has not ended"):
        handle.detach()

    handle.detach()

    for session in (child, grandchild, child.newSession()):
        assert handle_of(session) is None
        session.sql("INSERT INTO t VALUES (1)")
    assert set(states(twophase.attach(spark))[-2:]) == {"COMPLETED"}
    assert len(rows(spark, "SELECT id FROM t")) == 4


def test_one_that_is_attached_by_its_user_has_its_own_settings_and_stays(spark: SparkSession, handle: Handle) -> None:
    alike, other = spark.newSession(), spark.newSession()
    other.conf.set("spark.twophase.atomicity", "preferred")
    own, others = twophase.attach(alike), twophase.attach(other)
    assert (own.policy, others.policy) == ("required", "preferred")

    handle.detach()

    for session, attached in ((alike, own), (other, others)):
        assert handle_of(session) is attached is twophase.attach(session)
        assert since(attached, lambda session=session: session.sql("INSERT INTO t VALUES (1)")) == ["COMPLETED"]
        attached.detach()


@pytest.mark.promise("contexts", "another session reads what is published, and its writes in the block are refused")
def test_in_a_block_another_session_reads_what_is_published_and_writes_nothing(spark: SparkSession) -> None:
    child = spark.newSession()
    spark.sql(
        "CREATE OR REPLACE TABLE parts USING parquet PARTITIONED BY (part) AS SELECT id, id AS part FROM range(2)"
    )
    statements = (
        *("INSERT INTO u VALUES (1)", "TRUNCATE TABLE u", "DROP TABLE u", "ALTER TABLE u SET TBLPROPERTIES (a = 'b')"),
        *(f"ALTER TABLE parts {change} PARTITION (part = {part})" for change, part in (("DROP", 1), ("ADD", 2))),
        *("MSCK REPAIR TABLE parts", "CREATE DATABASE made", "CREATE FUNCTION made AS 'java.lang.Math'"),
    )
    with twophase.transaction(spark):
        spark.sql("INSERT INTO t VALUES (1)")
        assert rows(child, "SELECT id FROM t") == [(100,)]
        for write in (
            *(lambda statement=statement: child.sql(statement) for statement in statements),
            lambda: twophase.create_table_as(child.range(1), "lake", "default.made"),
        ):
            with pytest.raises(TransactionAborted, match="belongs to another Spark session"):
                write()
    assert rows(child, "SELECT id FROM t") == [(1,), (100,)]
    assert rows(child, "SELECT id FROM u") == [(100,)]
    assert rows(child, "SHOW PARTITIONS parts") == [("part=0",), ("part=1",)]


# -- foreachBatch ------------------------------------------------------------------------------------------------------


class Stream:
    """A stream of the ids 0 to 3, some in each batch."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self._directory = directory
        self._runs = 0
        for number in range(2):
            spark.range(2 * number, 2 * number + 2, 1, 1).write.mode("append").parquet(str(directory / "ids"))

    def start(self, function: Function, *, batches: int = 1) -> StreamingQuery:
        self._runs += 1
        read = self.spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 2 // batches)
        write = read.parquet(str(self._directory / "ids")).writeStream.foreachBatch(function)
        checkpoint = str(self._directory / f"checkpoint{self._runs}")
        return write.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    def run(self, function: Function, *, batches: int = 1) -> None:
        self.start(function, batches=batches).awaitTermination()


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def by_sql(batch: DataFrame, _: int) -> None:
    batch.createOrReplaceTempView("batch")
    batch.sparkSession.sql("INSERT INTO t SELECT id FROM batch")


def by_insert_into(batch: DataFrame, _: int) -> None:
    batch.write.insertInto("t")


def by_save_as_table(batch: DataFrame, _: int) -> None:
    batch.write.mode("append").saveAsTable("t")


def by_write_to(batch: DataFrame, _: int) -> None:
    batch.writeTo("t").append()


def in_a_block(batch: DataFrame, number: int) -> None:
    with twophase.transaction(batch.sparkSession):
        by_insert_into(batch, number)


@pytest.mark.promise("streams", "what a statement in `foreachBatch` writes is one transaction")
@pytest.mark.parametrize("write", [by_sql, by_insert_into, by_save_as_table, by_write_to, in_a_block])
def test_what_a_batch_writes_is_one_transaction(stream: Stream, handle: Handle, write: Function) -> None:
    assert since(handle, lambda: stream.run(write, batches=2)) == ["COMPLETED", "COMPLETED"]
    assert rows(stream.spark, "SELECT id FROM t") == [(0,), (1,), (2,), (3,), (100,)]


def overwritten(batch: DataFrame, _: int) -> None:
    batch.selectExpr(BROKEN).write.insertInto("t", overwrite=True)


def both_or_none(batch: DataFrame, number: int) -> None:
    with twophase.transaction(batch.sparkSession):
        batch.write.insertInto("u")
        overwritten(batch, number)


@pytest.mark.promise("streams", "a batch that fails leaves nothing")
@pytest.mark.parametrize("write", [overwritten, both_or_none])
def test_a_batch_that_fails_leaves_nothing(stream: Stream, handle: Handle, write: Function) -> None:
    def failing() -> None:
        with pytest.raises(StreamingQueryException, match="broken"):
            stream.run(write)

    assert since(handle, failing) == ["ROLLED_BACK"]
    assert rows(stream.spark, "SELECT id FROM t") == rows(stream.spark, "SELECT id FROM u") == [(100,)]


@pytest.mark.promise("streams", "an error of the user's `foreachBatch` function is raised as it is")
def test_an_error_of_the_users_function_passes_as_it_is(stream: Stream) -> None:
    def fail(batch: DataFrame, _: int) -> None:
        assert handle_of(batch.sparkSession) is not None
        raise ValueError("mine")

    with pytest.raises(StreamingQueryException, match="ValueError: mine"):
        stream.run(fail)


def test_the_session_of_a_query_is_attached_once_and_until_it_has_ended(stream: Stream) -> None:
    seen: list[Handle | None] = []
    for _ in range(2):
        stream.run(lambda batch, _: seen.append(handle_of(batch.sparkSession)), batches=2)
    first, second = seen[0], seen[2]
    assert seen == [first, first, second, second]
    assert first is not None and not first.is_attached  # since the second one came
    assert second is not None and second.is_attached


def test_a_query_that_was_started_in_a_block_stands_outside_of_it(stream: Stream) -> None:
    with pytest.raises(ZeroDivisionError), twophase.transaction(stream.spark):
        stream.run(by_insert_into)
        1 / 0  # noqa: B018
    assert rows(stream.spark, "SELECT id FROM t") == [(0,), (1,), (2,), (3,), (100,)]


def test_a_query_that_is_older_than_attach_is_attached_with_its_next_batch(stream: Stream, handle: Handle) -> None:
    handle.detach()
    begun, attached = threading.Event(), threading.Event()
    seen: list[bool] = []

    def write(batch: DataFrame, number: int) -> None:
        seen.append(handle_of(batch.sparkSession) is not None)
        begun.set()
        assert number or attached.wait(60)

    query = stream.start(write, batches=2)
    assert begun.wait(60)
    twophase.attach(stream.spark)
    attached.set()
    query.awaitTermination()
    assert seen == [False, True]


def test_a_batch_that_runs_while_its_parent_is_detached_ends_as_it_began(stream: Stream, handle: Handle) -> None:
    begun, detached = threading.Event(), threading.Event()
    seen: list[bool] = []

    def write(batch: DataFrame, number: int) -> None:
        child = handle_of(batch.sparkSession)
        seen.append(child is not None)
        if number == 0:
            with twophase.transaction(batch.sparkSession):
                batch.write.insertInto("t")
                begun.set()
                assert detached.wait(60)
                batch.write.insertInto("u")

    query = stream.start(write, batches=2)
    assert begun.wait(60)
    handle.detach()
    assert handle_of(stream.spark) is None
    detached.set()
    query.awaitTermination()

    assert seen == [True, False]
    assert rows(stream.spark, "SELECT id FROM t") == rows(stream.spark, "SELECT id FROM u") == [(0,), (1,), (100,)]
    assert not handle.session.tracker.feed.statements()


def test_the_batches_of_a_stock_session_are_stock(spark: SparkSession, handle: Handle, tmp_path: Path) -> None:
    stream = Stream(stock_session(spark), tmp_path)
    assert since(handle, lambda: stream.run(by_insert_into)) == []

"""Statements in one block are published together, or none of them is."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import SparkSession

import twophase
from tests.spark.conftest import Start
from tests.spark.routed import stock_session
from twophase import TransactionState, failpoints
from twophase.errors import (
    AtomicityNotSupportedError,
    ConfigurationError,
    TransactionAborted,
    TwoPhaseError,
    WriteConflictError,
)
from twophase.hooks import JobStatus, JobStatusHook
from twophase.model import Level, ObjectPath
from twophase.spark import active, blocks
from twophase.testing import ChaosCatalog

spark40_first_cases = True


@pytest.fixture(scope="module")
def spark(start: Start) -> SparkSession:
    session = start({"spark.twophase.session.catalog": "none"})
    twophase.attach(session).catalog("lake").create_database("db")
    return session


@pytest.fixture(autouse=True)
def lake(spark: SparkSession) -> Iterator[ChaosCatalog]:
    """The catalog, without what other tests left."""
    catalog = twophase.attach(spark).catalog("lake")
    assert isinstance(catalog, ChaosCatalog)
    for name in catalog.list_tables("db"):
        catalog.drop_table(ObjectPath.of("db", name))
    for leftover in catalog.leftovers():
        catalog.remove_leftover(leftover)
    yield catalog
    catalog.faults.clear()
    failpoints.disarm()


def test_all_statements_are_published_at_the_end_of_the_block(spark: SparkSession, lake: ChaosCatalog) -> None:
    with twophase.transaction(spark) as tx:
        spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")
        spark.range(2).writeTo("lake.db.b").create()
        assert lake.list_tables("db") == []

    assert tx.state is TransactionState.COMPLETED
    assert tx.level in (Level.REVERSIBLE, Level.ATOMIC)
    assert lake.list_tables("db") == ["a", "b"]


@pytest.mark.promise("blocks", "a statement reads what earlier ones of the block staged, and no other session does")
def test_a_statement_reads_what_earlier_ones_staged_and_others_do_not(spark: SparkSession, lake: ChaosCatalog) -> None:
    spark.sql("CREATE TABLE lake.db.t AS SELECT 1 AS id")
    other: list[int] = []

    with twophase.transaction(spark):
        spark.sql("INSERT INTO lake.db.t VALUES (2)")
        spark.sql("CREATE TABLE lake.db.copy AS SELECT id + 10 AS id FROM lake.db.t")
        spark.sql("INSERT INTO lake.db.copy SELECT max(id) FROM lake.db.t")
        assert sorted(r.id for r in spark.table("lake.db.copy").collect()) == [2, 11, 12]
        reader = threading.Thread(target=lambda: other.append(spark.table("lake.db.t").count()))
        reader.start()
        reader.join()

    assert other == [1]
    assert spark.table("lake.db.t").count() == 2
    assert spark.table("lake.db.copy").count() == 3


@pytest.mark.promise("contexts", "a cache shows staged rows to no other thread, and none after a rollback")
@pytest.mark.parametrize("is_cached_in_the_block", [False, True])
def test_a_cache_shows_the_rows_of_a_block_to_nobody_else_and_not_after_a_rollback(
    spark: SparkSession, lake: ChaosCatalog, is_cached_in_the_block: bool
) -> None:
    spark.sql("CREATE TABLE lake.db.t AS SELECT 1 AS id")
    if not is_cached_in_the_block:
        spark.sql("CACHE TABLE lake.db.t")
    other: list[int] = []

    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        spark.sql("INSERT INTO lake.db.t VALUES (2)")
        if is_cached_in_the_block:
            spark.sql("CACHE TABLE lake.db.t")
        else:
            reader = threading.Thread(target=lambda: other.append(spark.table("lake.db.t").count()))
            reader.start()
            reader.join()
            assert other == [1]
        assert spark.table("lake.db.t").count() == 2
        1 / 0  # noqa: B018

    assert spark.table("lake.db.t").count() == 1
    assert spark.table("lake.db.t").storageLevel.useMemory or is_cached_in_the_block
    spark.catalog.clearCache()


@pytest.mark.promise("blocks", "an exception in the block rolls back all, and is the one that is raised")
def test_an_exception_in_the_block_undoes_all_and_is_the_one_that_is_raised(
    spark: SparkSession, lake: ChaosCatalog
) -> None:
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark) as tx:
        spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")
        1 / 0  # noqa: B018

    assert tx.state is TransactionState.ROLLED_BACK
    assert lake.list_tables("db") == []
    assert lake.leftovers() == []


@pytest.mark.promise("contexts", "a forked child that leaves the block has no effect on it")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("way", "told"), [("exit", "SystemExit: 7"), ("end", "TwoPhaseError"), ("raise", "ValueError")]
)
def test_a_forked_child_that_leaves_the_block_does_nothing_to_it(
    spark: SparkSession, lake: ChaosCatalog, tmp_path: Path, way: str, told: str
) -> None:
    file = tmp_path / "told"
    child = None
    try:
        with twophase.transaction(spark) as tx:
            spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")
            child = os.fork()
            if child:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            elif way == "exit":
                sys.exit(7)
            elif way == "raise":
                raise ValueError("the child's own")
            spark.sql("CREATE TABLE lake.db.b AS SELECT 2 AS id") if child else None
    except BaseException as error:
        if child != 0:
            raise
        file.write_text(f"{type(error).__name__}: {error}")
    finally:
        if child == 0:
            os._exit(0)

    assert file.read_text().startswith(told)
    assert tx.state is TransactionState.COMPLETED
    assert lake.list_tables("db") == ["a", "b"]
    assert twophase.attach(spark).current_transaction() is None


def test_a_failed_statement_that_is_caught_leaves_the_rest(spark: SparkSession, lake: ChaosCatalog) -> None:
    with twophase.transaction(spark):
        spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")
        with pytest.raises(SparkRuntimeException):
            spark.sql("INSERT INTO lake.db.a SELECT CAST(raise_error('x') AS INT)")
        with pytest.raises(SparkRuntimeException):
            spark.sql("CREATE TABLE lake.db.b AS SELECT raise_error('x') AS id")

    assert lake.list_tables("db") == ["a"]
    assert spark.table("lake.db.a").count() == 1


def test_a_clean_up_error_is_attached_to_the_users_error(spark: SparkSession, lake: ChaosCatalog) -> None:
    lake.faults.add("abort", "error")
    with pytest.raises(ZeroDivisionError) as caught, twophase.transaction(spark):
        spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")
        1 / 0  # noqa: B018

    assert caught.value.__notes__[0].startswith("While ending transaction")


def test_a_clean_up_error_of_a_statement_is_in_the_log_with_what_to_do(
    spark: SparkSession, lake: ChaosCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    """The error itself goes through Spark, which makes another one of it."""
    lake.faults.add("abort", "error")
    with pytest.raises(SparkRuntimeException, match="USER_RAISED_EXCEPTION"):
        spark.sql("CREATE TABLE lake.db.a AS SELECT raise_error('x') AS id")

    assert "While ending transaction" in caplog.text
    assert "Remove it with: twophase clean" in caplog.text


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE lake.db.t ADD COLUMN x INT",
        "ALTER TABLE lake.db.t RENAME TO db.u",
        "CREATE DATABASE lake.more",
        "DROP DATABASE lake.db CASCADE",
    ],
)
def test_what_takes_effect_at_once_is_refused_in_a_block(
    spark: SparkSession, lake: ChaosCatalog, statement: str
) -> None:
    spark.sql("CREATE TABLE lake.db.t AS SELECT 1 AS id")

    with twophase.transaction(spark), pytest.raises(AtomicityNotSupportedError, match="takes effect immediately"):
        spark.sql(statement)

    assert lake.list_tables("db") == ["t"]


def test_blocks_do_not_nest_and_the_outer_one_goes_on(spark: SparkSession, lake: ChaosCatalog) -> None:
    with twophase.transaction(spark) as tx:
        with pytest.raises(TransactionAborted, match="do not nest"), twophase.transaction(spark):
            pytest.fail("a nested block was entered")
        spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")

    assert tx.state is TransactionState.COMPLETED


def test_blocks_of_two_threads_are_two_transactions(spark: SparkSession, lake: ChaosCatalog) -> None:
    from pyspark import InheritableThread

    barrier = threading.Barrier(2)
    problems: list[BaseException] = []

    def write(name: str) -> None:
        try:
            with twophase.transaction(spark):
                barrier.wait(60)
                spark.sql(f"CREATE TABLE lake.db.{name} AS SELECT 1 AS id")
                barrier.wait(60)
                if name == "lost":
                    raise KeyError(name)
        except BaseException as error:
            problems.append(error)

    threads = [InheritableThread(target=write, args=(name,)) for name in ("kept", "lost")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [type(p) for p in problems] == [KeyError]
    assert lake.list_tables("db") == ["kept"]


Turn = Callable[[asyncio.Event, asyncio.Event], Coroutine[Any, Any, None]]


async def _in_turns(one: Turn, other: Turn) -> list[BaseException | None]:
    """Run two tasks on one thread; each has an event of its own, and that of the other to wait for."""
    mine, theirs = asyncio.Event(), asyncio.Event()

    async def ending(turn: Turn, own: asyncio.Event, others: asyncio.Event) -> None:
        try:
            await turn(own, others)
        finally:
            own.set()

    return await asyncio.gather(ending(one, mine, theirs), ending(other, theirs, mine), return_exceptions=True)


def ids(spark: SparkSession, table: str) -> list[int]:
    return sorted(row.id for row in spark.table(f"lake.db.{table}").collect())


@pytest.mark.promise("contexts", "an asyncio task that is not in the block is not in its transaction")
@pytest.mark.parametrize("ends_well", [True, False])
def test_a_task_that_is_not_in_the_block_is_not_in_the_transaction(
    spark: SparkSession, lake: ChaosCatalog, ends_well: bool
) -> None:
    for name in ("x", "y"):
        spark.sql(f"CREATE TABLE lake.db.{name} (id INT)")
    seen: list[list[int]] = []

    async def inside(mine: asyncio.Event, other: asyncio.Event) -> None:
        with twophase.transaction(spark):
            spark.sql("INSERT INTO lake.db.x VALUES (1)")
            mine.set()
            await other.wait()
            seen.append(ids(spark, "x"))
            spark.sql("INSERT INTO lake.db.x VALUES (2)")
            if not ends_well:
                raise KeyError

    async def outside(mine: asyncio.Event, other: asyncio.Event) -> None:
        await other.wait()
        spark.sql("INSERT INTO lake.db.y VALUES (3)")
        spark.range(4, 5).selectExpr("INT(id) AS id").writeTo("lake.db.y").append()
        twophase.create_table_as(spark.range(1), "lake", "db.z")
        seen.append(ids(spark, "x"))
        # No door of ours sees this name.
        seen.append([row.n for row in spark.range(1).selectExpr("(SELECT count(*) FROM lake.db.x) AS n").collect()])
        spark.sql("DROP TABLE lake.db.z")  # refused inside of a block
        mine.set()

    problems = asyncio.run(_in_turns(inside, outside))

    assert [type(problem) for problem in problems if problem] == ([] if ends_well else [KeyError])
    assert seen == [[], [0], [1]]
    assert ids(spark, "x") == ([1, 2] if ends_well else [])
    assert ids(spark, "y") == [3, 4]


@pytest.mark.promise("contexts", "blocks of two tasks on one thread are two transactions")
def test_blocks_of_two_tasks_on_one_thread_are_two_transactions(spark: SparkSession, lake: ChaosCatalog) -> None:
    async def write(name: str, mine: asyncio.Event, other: asyncio.Event) -> None:
        with twophase.transaction(spark):
            spark.sql(f"CREATE TABLE lake.db.{name} AS SELECT 1 AS id")
            mine.set()
            await other.wait()
            assert not spark.catalog.tableExists(f"lake.db.{'lost' if name == 'kept' else 'kept'}")
            spark.sql(f"INSERT INTO lake.db.{name} VALUES (2)")
            if name == "lost":
                raise KeyError(name)

    problems = asyncio.run(_in_turns(lambda *events: write("kept", *events), lambda *events: write("lost", *events)))

    assert [type(problem) for problem in problems if problem] == [KeyError]
    assert lake.list_tables("db") == ["kept"]
    assert ids(spark, "kept") == [1, 2]


@pytest.mark.promise(
    "contexts",
    "what a block starts belongs to it where it inherits the context, and is refused where that is unknown",
)
def test_what_a_block_starts_belongs_to_it_where_it_takes_the_context_along(
    spark: SparkSession, lake: ChaosCatalog
) -> None:
    from pyspark import InheritableThread, inheritable_thread_target

    refused: list[BaseException] = []

    def insert(value: int) -> None:
        spark.sql(f"INSERT INTO lake.db.{'t' if value < 5 else 'aside'} VALUES ({value})")

    async def inserting(value: int) -> None:
        insert(value)

    def unsure() -> None:
        try:
            insert(8)
        except BaseException as error:
            refused.append(error)

    def run(thread: threading.Thread) -> None:
        thread.start()
        thread.join()

    async def block(mine: asyncio.Event, other: asyncio.Event) -> None:
        with twophase.transaction(spark):
            await asyncio.to_thread(insert, 1)
            await asyncio.create_task(inserting(2))
            contextvars.copy_context().run(insert, 3)
            run(InheritableThread(target=insert, args=(4,)))
            run(threading.Thread(target=insert, args=(5,)))
            run(threading.Thread(target=inheritable_thread_target(spark)(unsure)))
            mine.set()
            await other.wait()
            raise KeyError

    async def beside(mine: asyncio.Event, other: asyncio.Event) -> None:
        await other.wait()
        run(InheritableThread(target=insert, args=(6,)))
        await asyncio.to_thread(insert, 7)
        mine.set()

    for name in ("t", "aside"):
        spark.sql(f"CREATE TABLE lake.db.{name} (id INT)")
    problems = asyncio.run(_in_turns(block, beside))

    assert [type(problem) for problem in problems if problem] == [KeyError]
    assert ids(spark, "aside") == [5, 6, 7]
    assert ids(spark, "t") == []
    # It may as well have been made by another task.
    assert [type(error) for error in refused] == [TwoPhaseError]
    assert "InheritableThread" in str(refused[0])


def test_a_block_that_a_generator_holds_open_ends_with_it(spark: SparkSession, lake: ChaosCatalog) -> None:
    def block() -> Iterator[str]:
        with twophase.transaction(spark) as tx:
            spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")
            yield tx.id

    held = block()
    next(held)
    spark.sql("INSERT INTO lake.db.a VALUES (2)")  # of the same context, as in a context manager of one's own
    held.close()
    assert lake.list_tables("db") == []
    spark.sql("CREATE TABLE lake.db.b AS SELECT 1 AS id")
    assert lake.list_tables("db") == ["b"]


def test_a_task_that_outlives_the_block_is_told_so(spark: SparkSession, lake: ChaosCatalog) -> None:
    async def late(gate: asyncio.Event) -> None:
        await gate.wait()
        spark.sql("CREATE TABLE lake.db.late AS SELECT 1 AS id")

    async def main() -> None:
        gate = asyncio.Event()
        with twophase.transaction(spark):
            task = asyncio.create_task(late(gate))
        gate.set()
        with pytest.raises(TwoPhaseError, match="nothing of this one was started"):
            await task

    asyncio.run(main())
    assert lake.list_tables("db") == []


def test_a_thread_that_outlives_the_block_is_told_so(spark: SparkSession, lake: ChaosCatalog) -> None:
    from pyspark import InheritableThread

    gate = threading.Event()
    problems: list[BaseException] = []

    def late() -> None:
        gate.wait(60)
        try:
            spark.sql("CREATE TABLE lake.db.late AS SELECT 1 AS id")
        except BaseException as error:
            problems.append(error)

    with twophase.transaction(spark):
        thread = InheritableThread(target=late)
        thread.start()
    gate.set()
    thread.join()

    (problem,) = problems
    assert isinstance(problem, TwoPhaseError)
    assert not isinstance(problem, TransactionAborted)  # The block may be published: nobody may run it again for this.
    assert "nothing of this one was started" in str(problem)
    assert lake.list_tables("db") == []


class Aside:
    """A statement in a thread of the block, which stands still while it writes until it is let go."""

    def __init__(self, spark: SparkSession, statement: str) -> None:
        from pyspark import InheritableThread

        self.problems: list[BaseException] = []
        self._spark, self._statement = spark, statement
        self._writing, self._go = threading.Event(), threading.Event()
        failpoints.arm("chaos.write", self._stand)
        self._thread = InheritableThread(target=self._run)
        self._thread.start()
        assert self._writing.wait(60)
        failpoints.disarm()

    def end(self) -> None:
        self._go.set()
        self._thread.join(60)

    def _stand(self, _: str) -> None:
        self._writing.set()
        assert self._go.wait(60)

    def _run(self) -> None:
        try:
            self._spark.sql(self._statement)
        except BaseException as error:
            self.problems.append(error)


@pytest.mark.promise("blocks", "a block that ends while a statement of it still writes publishes nothing")
@pytest.mark.parametrize(
    "statement", ["CREATE OR REPLACE TABLE lake.db.t AS", "INSERT INTO lake.db.t", "CREATE TABLE lake.db.u AS"]
)
def test_a_block_that_ends_while_a_statement_of_it_still_writes_publishes_nothing(
    spark: SparkSession, lake: ChaosCatalog, statement: str
) -> None:
    spark.sql("CREATE TABLE lake.db.t AS SELECT 1 AS id")
    with pytest.raises(TransactionAborted, match=r"lake\.db\.[tu] had not ended.*Wait for the thread"):  # noqa: SIM117
        with twophase.transaction(spark) as tx:
            spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")
            aside = Aside(spark, f"{statement} SELECT 2 AS id")

    assert tx.state is TransactionState.ROLLED_BACK
    assert [r.id for r in spark.table("lake.db.t").collect()] == [1]
    aside.end()
    assert [type(problem) for problem in aside.problems] == [TransactionAborted]
    assert "was rolled back while this statement was writing" in str(aside.problems[0])
    assert lake.list_tables("db") == ["t"]
    assert lake.leftovers() == []


def test_statements_of_several_threads_on_one_table_are_refused_while_one_writes(
    spark: SparkSession, lake: ChaosCatalog
) -> None:
    spark.sql("CREATE TABLE lake.db.t AS SELECT 1 AS id")
    with twophase.transaction(spark):
        aside = Aside(spark, "INSERT INTO lake.db.t SELECT 2")
        for statement in (
            "INSERT INTO lake.db.t SELECT 3",
            "CREATE OR REPLACE TABLE lake.db.t AS SELECT 3 AS id",
            "CREATE TABLE lake.db.copy AS SELECT * FROM lake.db.t",
        ):
            with pytest.raises(WriteConflictError, match=r"lake\.db\.t is being written by another statement"):
                spark.sql(statement)
        aside.end()
        spark.sql("INSERT INTO lake.db.t SELECT 4")

    assert aside.problems == []
    assert sorted(r.id for r in spark.table("lake.db.t").collect()) == [1, 2, 4]
    assert lake.list_tables("db") == ["t"]


def test_a_replace_without_a_query_makes_an_empty_table(spark: SparkSession, lake: ChaosCatalog) -> None:
    spark.sql("CREATE OR REPLACE TABLE lake.db.t AS SELECT 1 AS id")
    spark.sql("REPLACE TABLE lake.db.t (other STRING)")
    assert (spark.table("lake.db.t").columns, spark.table("lake.db.t").count()) == (["other"], 0)

    with twophase.transaction(spark):
        spark.sql("CREATE OR REPLACE TABLE lake.db.t (id INT)")
        spark.sql("INSERT INTO lake.db.t SELECT 2")
        spark.sql("CREATE OR REPLACE TABLE lake.db.u (id INT)")

    assert [r.id for r in spark.table("lake.db.t").collect()] == [2]
    assert spark.table("lake.db.u").collect() == []


def test_a_statement_after_a_commit_in_the_block_is_told_what_is_published(
    spark: SparkSession, lake: ChaosCatalog
) -> None:
    with pytest.raises(TwoPhaseError, match="what it wrote before is published") as caught:  # noqa: SIM117
        with twophase.transaction(spark) as tx:
            spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")
            tx.commit()
            spark.sql("CREATE TABLE lake.db.b AS SELECT 1 AS id")

    assert not isinstance(caught.value, TransactionAborted)
    assert lake.list_tables("db") == ["a"]


@pytest.mark.parametrize(
    ("module", "moment"),
    [(active, "register"), (active, "unregister"), (blocks, "commit")],
    ids=["register", "unregister", "commit"],
)
def test_ctrl_c_between_two_lines_at_the_ends_of_a_block_leaves_nothing_open(
    spark: SparkSession, lake: ChaosCatalog, monkeypatch: pytest.MonkeyPatch, module: ModuleType, moment: str
) -> None:
    function = getattr(module, moment)

    def interrupted(*arguments: object) -> None:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        function(*arguments)

    monkeypatch.setattr(module, moment, interrupted)
    with pytest.raises(KeyboardInterrupt), twophase.transaction(spark):
        spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")

    assert not active.any_open()
    assert twophase.attach(spark).timeline.transactions(open_only=True) == []
    assert lake.list_tables("db") == []
    assert lake.leftovers() == []
    spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")  # The thread stands in no transaction any more.


def test_an_empty_block_leaves_no_record(spark: SparkSession) -> None:
    handle = twophase.attach(spark)
    before = len(handle.timeline.transactions())

    with twophase.transaction(spark):
        spark.sql("SELECT 1").collect()

    assert len(handle.timeline.transactions()) == before


def test_a_session_that_is_not_attached_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match=r"twophase\.attach"), twophase.transaction(stock_session(spark)):
        pytest.fail("the block was entered")


@pytest.mark.promise("blocks", "a refused publish rolls back the whole block")
def test_a_refused_publish_undoes_the_whole_block(spark: SparkSession, lake: ChaosCatalog) -> None:
    lake.faults.add("publish", "error")
    lake.faults.add("publish_group", "error")

    with pytest.raises(TransactionAborted), twophase.transaction(spark):
        spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")
        spark.sql("CREATE TABLE lake.db.b AS SELECT 1 AS id")

    lake.faults.clear()
    assert lake.list_tables("db") == []


def test_a_table_that_another_writer_made_meanwhile_is_a_write_conflict(
    spark: SparkSession, lake: ChaosCatalog
) -> None:
    with pytest.raises(WriteConflictError), twophase.transaction(spark):
        spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")
        lake.create_table(ObjectPath.of("db", "a"), lake_definition(spark))

    assert lake.list_tables("db") == ["a"]
    assert spark.table("lake.db.a").count() == 0


def lake_definition(spark: SparkSession) -> twophase.TableDefinition:
    from twophase.spark.types import to_arrow_schema

    return twophase.TableDefinition(to_arrow_schema(spark.range(0).schema))


def test_hooks_of_the_block_are_called_for_its_statements(spark: SparkSession, lake: ChaosCatalog) -> None:
    finished: list[str] = []

    class Hook(JobStatusHook):
        def on_finished(self, job: JobStatus) -> None:
            finished.append(job.path)

    with twophase.transaction(spark, hooks=[Hook()]):
        spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")
    spark.sql("CREATE TABLE lake.db.b AS SELECT 1 AS id")

    assert finished == ["lake.db.a"]


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_table_whose_replacement_a_hook_ended_keeps_its_rows_and_the_block_goes_on(
    spark: SparkSession, lake: ChaosCatalog, end: type[BaseException]
) -> None:
    class Ending(JobStatusHook):
        def on_created(self, job: JobStatus) -> None:
            if job.path == "lake.db.a":
                raise end

    spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")
    with twophase.transaction(spark, hooks=[Ending()]):
        with pytest.raises(end):
            spark.sql("CREATE OR REPLACE TABLE lake.db.a AS SELECT id FROM range(9)")
        spark.sql("CREATE TABLE lake.db.b AS SELECT 1 AS id")

    assert [row.id for row in spark.table("lake.db.a").collect()] == [1]
    assert lake.list_tables("db") == ["a", "b"]


def test_a_publish_after_which_a_hook_wants_an_end_is_seen_by_the_session(
    spark: SparkSession, lake: ChaosCatalog
) -> None:
    class Ending(JobStatusHook):
        def on_finished(self, job: JobStatus) -> None:
            raise SystemExit(2)

    spark.sql("CREATE TABLE lake.db.a AS SELECT 1 AS id")
    spark.table("lake.db.a").cache().count()
    hooked = Ending()
    handle = twophase.attach(spark, hooks=[hooked])
    try:
        with pytest.raises(SystemExit) as caught:
            spark.sql("CREATE OR REPLACE TABLE lake.db.a AS SELECT 2 AS id")
    finally:
        handle.hooks = tuple(hook for hook in handle.hooks if hook is not hooked)

    assert "lake.db.a had been published before this" in caught.value.__notes__[-1]
    assert [row.id for row in spark.table("lake.db.a").collect()] == [2]

"""Transactions in plain SQL: BEGIN, COMMIT, ROLLBACK, SAVEPOINT and the like, through ``spark.sql``."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import ParseException
from pyspark.sql import SparkSession

import twophase
from tests.spark import databricks
from tests.spark.conftest import Start
from tests.spark.routed import drop_all, rows, stock_session
from twophase import Isolation, TransactionState
from twophase.errors import (
    ConfigurationError,
    TransactionAborted,
    TransactionStatementError,
    TwoPhaseError,
    WriteConflictError,
)
from twophase.spark import active, blocks
from twophase.spark.attach import handle_of

FAILS = "INSERT INTO a SELECT CAST(raise_error('made to fail') AS INT)"
BEGIN, COMMIT, ROLLBACK = "BEGIN TRANSACTION", "COMMIT", "ROLLBACK"


@pytest.fixture(scope="module")
def spark(start: Start, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    session = start(
        {
            "spark.twophase.wait": "5s",
            "spark.sql.scripting.enabled": "true",  # Spark 4.0 asks for it
            "spark.sql.catalog.lite": "twophase.jdbc",
            "spark.sql.catalog.lite.url": f"sqlite:///{tmp_path_factory.mktemp('lite') / 'lite.db'}",
        }
    )
    twophase.attach(session)
    return session


@pytest.fixture(autouse=True)
def nothing_open(spark: SparkSession) -> Iterator[None]:
    """Each test begins without tables, and leaves no transaction open."""
    drop_all(spark)
    yield
    handle = twophase.attach(spark)
    left = handle.current_transaction()
    if left is not None:
        spark.sql(ROLLBACK)
    assert left is None
    assert handle.timeline.transactions(open_only=True) == []


def refused(spark: SparkSession, text: str, words: str, kind: type[TwoPhaseError] = TransactionStatementError) -> None:
    with pytest.raises(kind, match=words):
        spark.sql(text)


def last(spark: SparkSession) -> Any:
    (record,) = twophase.attach(spark).timeline.transactions(limit=1)
    return record


@pytest.mark.spark40
@pytest.mark.promise("sql", "between BEGIN TRANSACTION and COMMIT all statements are one transaction")
def test_statements_between_begin_and_commit_are_published_together(spark: SparkSession) -> None:
    (begun,) = spark.sql("BEGIN TRANSACTION; -- load").collect()
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    spark.sql("INSERT INTO a VALUES (2)")
    spark.range(3, 4).write.mode("append").saveAsTable("a")
    spark.sql("CREATE TABLE b AS SELECT max(id) AS id FROM a")
    assert rows(spark, "SELECT * FROM b") == [(3,)]
    assert not spark.newSession().catalog.tableExists("default.a")
    assert spark.sql("COMMIT").collect() == []

    assert last(spark).id == begun.transaction_id
    assert {p.path.name for p in last(spark).participants} == {"a", "b"}
    assert rows(spark.newSession(), "SELECT * FROM a") == [(1,), (2,), (3,)]
    spark.sql("INSERT INTO a VALUES (4)")  # A transaction of its own again.
    assert last(spark).id != begun.transaction_id


@pytest.mark.spark40
@pytest.mark.promise("sql", "ROLLBACK removes all that the transaction has done")
def test_rollback_removes_all(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    spark.sql("START TRANSACTION")
    spark.sql("INSERT OVERWRITE a SELECT 2")
    spark.sql("CREATE TABLE b AS SELECT 1 AS id")
    spark.sql("ROLLBACK WORK")
    assert rows(spark, "SELECT * FROM a") == [(1,)]
    assert not spark.catalog.tableExists("b")
    assert last(spark).state is TransactionState.ROLLED_BACK


@pytest.mark.spark40
@pytest.mark.promise("sql", "an error of a statement does not end the transaction, and loses only that statement")
def test_an_error_loses_only_its_statement(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    spark.sql(BEGIN)
    spark.sql("INSERT INTO a VALUES (2)")
    with pytest.raises(Exception, match="made to fail"):
        spark.sql(FAILS)
    refused(spark, "COMMIT FOO", "by FOO where WORK, TRANSACTION or the end")
    spark.sql("INSERT INTO a VALUES (3)")
    spark.sql(COMMIT)
    assert rows(spark, "SELECT * FROM a") == [(1,), (2,), (3,)]


@pytest.mark.promise(
    "sql", "a COMMIT that fails ends the transaction with the error of a block, and nothing is published"
)
def test_a_commit_that_fails_ends_the_transaction(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    spark.sql(BEGIN)
    spark.sql("INSERT OVERWRITE a SELECT id + 1 FROM a")
    other = threading.Thread(target=lambda: spark.sql("INSERT OVERWRITE a SELECT 7"))
    other.start()
    other.join()
    refused(spark, COMMIT, "a was not|has changed", WriteConflictError)
    refused(spark, COMMIT, "none is open")
    assert rows(spark, "SELECT * FROM a") == [(7,)]


@pytest.mark.spark40
@pytest.mark.promise("sql", "a statement about transactions that is not possible is refused, and changes nothing")
def test_what_is_not_possible_is_refused_and_the_transaction_goes_on(spark: SparkSession) -> None:
    for statement in (COMMIT, ROLLBACK, "SAVEPOINT s", "ROLLBACK TO s", "RELEASE s", "LOCK TABLE a"):
        refused(spark, statement, "none is open here")
    refused(spark, "SET TRANSACTION READ ONLY", "none is open here")
    spark.sql(BEGIN)
    spark.sql("SAVEPOINT first")
    refused(spark, "SET TRANSACTION READ ONLY", "has a savepoint")
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    spark.sql("RELEASE SAVEPOINT first")
    refused(spark, BEGIN, "do not nest", TransactionAborted)
    refused(spark, "START TRANSACTION READ ONLY", "do not nest", TransactionAborted)
    refused(spark, "BEGIN ATOMIC SELECT 1; END", "do not nest", TransactionAborted)
    with pytest.raises(TransactionAborted, match="do not nest"), twophase.transaction(spark):
        pass
    with pytest.raises(TransactionAborted, match="do not nest"):
        twophase.begin(spark)
    refused(spark, "BEGIN TRANSACTION WAIT banana SECONDS", "banana where a number of seconds")
    refused(spark, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "has read, locked or written something")
    for statement in ("ROLLBACK TO never", "RELEASE SAVEPOINT never"):
        refused(spark, statement, "no savepoint never; nothing was changed", ConfigurationError)
    with pytest.raises(TransactionStatementError, match="takes no parameters"):
        spark.sql("COMMIT", [1])
    with pytest.raises(TransactionStatementError, match="takes no parameters"):
        spark.sql("SAVEPOINT :name", {"name": "s"})
    refused(spark, "LOCK TABLE a, global_temp.v", "not the name of a table", ConfigurationError)
    assert rows(spark, "SELECT * FROM a") == [(1,)]
    spark.sql(COMMIT)
    assert rows(spark, "SELECT * FROM a") == [(1,)]


@pytest.mark.promise("sql", "COMMIT and ROLLBACK are refused in a block that ends by itself")
def test_a_with_block_ends_by_itself(spark: SparkSession) -> None:
    with twophase.transaction(spark):
        spark.sql("CREATE TABLE a AS SELECT 1 AS id")
        for statement in (COMMIT, ROLLBACK, "SET TRANSACTION READ ONLY"):
            refused(spark, statement, "inside a block that ends by itself")
        refused(spark, BEGIN, "do not nest", TransactionAborted)
        spark.sql("LOCK TABLE a IN WRITE MODE NOWAIT")
    assert rows(spark, "SELECT * FROM a") == [(1,)]


@pytest.mark.spark40
@pytest.mark.promise("sql", "statements about transactions are refused in scripts and EXECUTE IMMEDIATE", detail=True)
def test_statements_about_transactions_are_refused_in_scripts_and_execute_immediate(spark: SparkSession) -> None:
    for script, words in {
        "BEGIN INSERT INTO a VALUES (2); COMMIT; END": r"COMMIT \(line 1, position 32\) inside a script",
        "BEGIN SELECT 1; SAVEPOINT s; END": "SAVEPOINT .* inside a script",
        "BEGIN SELECT 1; SET TRANSACTION READ ONLY; END": "SET TRANSACTION .* inside a script",
        "BEGIN BEGIN ATOMIC SELECT 1; END; END": "BEGIN ATOMIC .* inside a script",
        "BEGIN ATOMIC INSERT INTO a VALUES (2); ROLLBACK; END": "ROLLBACK .* inside a script",
        "BEGIN SHOW LOCKS; END": "SHOW LOCKS .* inside a script",
        "EXECUTE IMMEDIATE 'COMMIT'": "COMMIT in EXECUTE IMMEDIATE",
        "EXECUTE IMMEDIATE 'ROLLBACK TO s'": "ROLLBACK TO in EXECUTE IMMEDIATE",
        "EXECUTE IMMEDIATE 'SAVEPOINT s'": "SAVEPOINT S in EXECUTE IMMEDIATE",
        "EXECUTE IMMEDIATE 'START TRANSACTION'": "START TRANSACTION in EXECUTE IMMEDIATE",
        "EXECUTE IMMEDIATE 'LOCK TABLE a'": "LOCK TABLE in EXECUTE IMMEDIATE",
    }.items():
        spark.sql("CREATE OR REPLACE TABLE a AS SELECT 1 AS id")
        refused(spark, script, words)
        spark.sql(BEGIN)
        spark.sql("INSERT INTO a VALUES (3)")
        refused(spark, script, words if "ATOMIC INSERT" not in script else "do not nest", TwoPhaseError)
        spark.sql(COMMIT)
        assert rows(spark, "SELECT * FROM a") == [(1,), (3,)], script
    spark.sql("DECLARE OR REPLACE VARIABLE statement STRING DEFAULT 'COMMIT'")
    refused(spark, "EXECUTE IMMEDIATE statement", "COMMIT in EXECUTE IMMEDIATE")
    spark.sql("SET VARIABLE statement = 'SAVEPOINT s'")
    refused(spark, "EXECUTE IMMEDIATE statement", "SAVEPOINT S? ?in EXECUTE IMMEDIATE")
    refused(spark, "BEGIN", "BEGIN alone")
    spark.sql("DROP TEMPORARY VARIABLE statement")


@pytest.mark.spark40
@pytest.mark.promise("sql", "BEGIN ATOMIC ... END is a script in one transaction")
def test_begin_atomic_is_a_script_in_one_transaction(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    script = """
        BEGIN ATOMIC
          DECLARE n INT DEFAULT 0;
          WHILE n < 2 DO
            SET n = n + 1;
            INSERT INTO a SELECT 10 + n;
          END WHILE;
          {}
          SELECT max(id) AS id FROM a;
        END;
    """
    before = last(spark).id
    assert [tuple(row) for row in spark.sql(script.format("")).collect()] == [(12,)]
    made = list(takewhile(lambda r: r.id != before, twophase.attach(spark).timeline.transactions(limit=5)))
    assert [record.state for record in made] == [TransactionState.COMPLETED]
    with pytest.raises(Exception, match="made to fail"):
        spark.sql(script.format(FAILS + ";"))
    assert rows(spark, "SELECT * FROM a") == [(1,), (11,), (12,)]
    with pytest.raises(ParseException):
        spark.sql("BEGIN ATOMIC SELEC 1; END")
    # Without the word it is Spark's script: each statement is a transaction of its own.
    with pytest.raises(Exception, match="made to fail"):
        spark.sql(script.format(FAILS + ";").replace("ATOMIC", ""))
    assert rows(spark, "SELECT count(*) FROM a") == [(5,)]


@pytest.mark.parametrize(
    ("module", "moment"),
    [(active, "register"), (active, "unregister"), (blocks, "commit")],
    ids=["register", "unregister", "commit"],
)
def test_ctrl_c_in_begin_or_commit_leaves_nothing_open(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, module: ModuleType, moment: str
) -> None:
    function = getattr(module, moment)

    def interrupted(*arguments: object) -> None:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        function(*arguments)

    def transaction() -> None:
        monkeypatch.setattr(module, moment, interrupted)
        spark.sql(BEGIN)
        spark.sql("CREATE TABLE a AS SELECT 1 AS id")
        spark.sql(COMMIT)

    with pytest.raises(KeyboardInterrupt):
        transaction()
    assert not active.any_open()
    assert active.open_blocks(twophase.attach(spark).session) == []
    refused(spark, COMMIT, "none is open")
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")


@pytest.mark.promise("sql", "a script runs within the transaction that is open")
def test_a_script_runs_within_the_transaction_that_is_open(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    spark.sql(BEGIN)
    spark.sql("BEGIN INSERT INTO a VALUES (2); INSERT INTO a SELECT max(id) + 1 FROM a; END")
    spark.sql("EXECUTE IMMEDIATE 'INSERT INTO a VALUES (9)'")
    assert rows(spark, "SELECT * FROM a") == [(1,), (2,), (3,), (9,)]
    spark.sql(ROLLBACK)
    assert rows(spark, "SELECT * FROM a") == [(1,)]


@pytest.mark.spark40
def test_the_characteristics_of_a_transaction_are_what_begin_and_set_transaction_say(spark: SparkSession) -> None:
    handle = twophase.attach(spark)
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    spark.sql("BEGIN TRANSACTION ISOLATION LEVEL SERIALIZABLE ON CONFLICT FAIL WAIT 1 SECONDS")
    assert handle.current_transaction().isolation is Isolation.SERIALIZABLE  # type: ignore[union-attr]
    spark.sql("LOCK TABLE a")
    assert [(r.table, r.mode, r.waits_for) for r in spark.sql("SHOW LOCKS").collect()] == [
        ("hive.default.a", "write", [])
    ]
    own = handle.current_transaction().id  # type: ignore[union-attr]
    told: list[str | None] = []

    def contend() -> None:
        """What a transaction with these words is told of a table that another one has locked."""
        for words, statement in (
            (BEGIN, "LOCK TABLE a IN APPEND MODE NOWAIT"),
            (f"{BEGIN} WAIT 1 SECONDS", "LOCK TABLE a"),  # The session's is five.
            (BEGIN, "INSERT INTO a VALUES (2)"),
            (f"{BEGIN} ON CONFLICT FAIL", "INSERT INTO a VALUES (2)"),
        ):
            spark.sql(words)
            try:
                spark.sql(statement)
                told.append(None)
            except WriteConflictError as error:
                told.append(error.message)
            spark.sql(ROLLBACK)

    thread = threading.Thread(target=contend)
    thread.start()
    thread.join()
    held = f"Table hive.default.a is being written by transaction {own}"
    assert told == [f"{held}.", f"{held} after 1 s of waiting.", None, f"{held}."]
    (mine,) = [r for r in spark.sql("SHOW TRANSACTIONS").collect() if r.state == "INFLIGHT"]
    assert (mine.transaction_id, mine.isolation) == (handle.current_transaction().id, "serializable")  # type: ignore[union-attr]
    spark.sql(ROLLBACK)

    spark.sql("BEGIN TRANSACTION READ ONLY")
    assert rows(spark, "SELECT * FROM a") == [(1,)]
    refused(spark, "INSERT INTO a VALUES (2)", "only reads", TwoPhaseError)
    spark.sql(COMMIT)

    spark.sql(BEGIN)
    spark.sql("SET TRANSACTION READ ONLY")
    spark.sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    assert handle.current_transaction().isolation is Isolation.READ_COMMITTED  # type: ignore[union-attr]
    refused(spark, "INSERT INTO a VALUES (2)", "only reads", TwoPhaseError)
    assert rows(spark, "SELECT * FROM a") == [(1,)]
    refused(spark, "SET TRANSACTION READ WRITE", "has read, locked or written something")
    spark.sql(COMMIT)
    assert spark.sql("SHOW LOCKS").collect() == []


def test_a_transaction_that_cannot_begin_anew_is_told_to_have_ended(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    (begun,) = spark.sql(BEGIN).first()
    with monkeypatch.context() as broken:
        broken.setattr(blocks, "begin", lambda *_, **__: {}["the timeline"])
        with pytest.raises(KeyError) as caught:
            spark.sql("SET TRANSACTION READ ONLY")
    assert caught.value.__notes__ == [f"Transaction {begun}, which had done nothing, has ended: none is open now."]
    refused(spark, COMMIT, "none is open here")


@pytest.mark.spark40
@pytest.mark.promise("sql", "twophase.begin is BEGIN TRANSACTION in Python")
def test_begin_in_python_is_joined_until_its_commit(spark: SparkSession) -> None:
    tx = twophase.begin(spark, isolation="serializable", conflict="wait_die", wait="3s", timeout="1h")
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    spark.range(3).write.saveAsTable("b")
    twophase.create_table_as(spark.range(2), "hive", "default.c", transaction=tx)
    tx.lock("a")
    assert (tx.isolation, tx.state) == (Isolation.SERIALIZABLE, TransactionState.INFLIGHT)
    assert not spark.newSession().catalog.tableExists("default.a")
    tx.commit()
    tx.commit()
    assert tx.state is TransactionState.COMPLETED
    assert [spark.table(name).count() for name in "abc"] == [1, 3, 2]
    refused(spark, COMMIT, "none is open")

    tx = twophase.begin(spark)
    spark.sql("INSERT INTO a VALUES (2)")
    tx.rollback()
    tx.rollback()
    with pytest.raises(TransactionAborted, match="ROLLED_BACK"):
        tx.commit()
    assert rows(spark, "SELECT * FROM a") == [(1,)]

    tx = twophase.begin(spark)
    spark.sql("INSERT INTO a VALUES (2)")
    mark = tx.savepoint()
    spark.sql("INSERT INTO a VALUES (3)")
    spark.sql("CREATE TABLE d AS SELECT 1 AS id")
    tx.rollback_to(mark)
    assert rows(spark, "SELECT * FROM a") == [(1,), (2,)]
    assert not spark.catalog.tableExists("d")
    tx.savepoint("s")
    tx.release("s")
    with pytest.raises(ConfigurationError, match="no savepoint s"):
        tx.rollback_to("s")
    spark.sql(COMMIT)
    assert tx.state is TransactionState.COMPLETED
    assert rows(spark, "SELECT * FROM a") == [(1,), (2,)]

    tx = twophase.begin(spark, read_only=True)
    refused(spark, "INSERT INTO a VALUES (3)", "only reads", TwoPhaseError)
    tx.rollback()


@pytest.mark.promise("sql", "a transaction belongs to the thread or task that has begun it")
def test_only_the_thread_or_task_that_has_begun_a_transaction_is_in_it(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    tx = twophase.begin(spark)
    spark.sql("INSERT INTO a VALUES (2)")
    seen: list[Any] = []
    child = contextvars.copy_context()

    def elsewhere() -> None:
        seen.append(rows(spark, "SELECT * FROM a"))
        seen.append(child.run(rows, spark, "SELECT * FROM a"))
        try:
            child.run(spark.sql, COMMIT)
        except TransactionStatementError as error:
            seen.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen[:2] == [[(1,)], [(1,), (2,)]]
    assert "on another thread" in seen[2]
    tx.commit()

    async def one(number: int, others: asyncio.Barrier) -> None:
        spark.sql(BEGIN)
        await others.wait()
        spark.sql(f"INSERT INTO a VALUES ({number})")
        await others.wait()
        assert (number,) in rows(spark, "SELECT * FROM a")
        assert (13 - number,) not in rows(spark, "SELECT * FROM a")
        await others.wait()
        spark.sql(COMMIT if number == 6 else ROLLBACK)

    async def both() -> None:
        others = asyncio.Barrier(2)
        await asyncio.gather(one(6, others), one(7, others))

    asyncio.run(both())
    assert rows(spark, "SELECT * FROM a") == [(1,), (2,), (6,)]


def rolled_back(spark: SparkSession, transaction_id: str) -> None:
    """Wait for a rollback on another thread."""
    handle, deadline = twophase.attach(spark), time.monotonic() + 60
    while transaction_id in active.open_blocks(handle.session):
        assert time.monotonic() < deadline, "it is still open"
        time.sleep(0.01)
    record = handle.timeline.transaction(transaction_id)
    assert record is not None
    assert record.state is TransactionState.ROLLED_BACK


@pytest.mark.spark40
@pytest.mark.promise("sql", "what ends without a COMMIT is rolled back: a thread, a task, a session, the interpreter")
@pytest.mark.parametrize("way", ["thread", "task", "to_thread"])
def test_a_thread_or_task_that_ends_rolls_its_transaction_back(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    ids: list[str] = []

    def left_open() -> None:
        ids.append(twophase.begin(spark).id)
        spark.sql("INSERT INTO a VALUES (2)")

    async def task() -> None:
        left_open()

    async def to_thread() -> None:
        await asyncio.to_thread(left_open)
        gc.collect()
        rolled_back(spark, ids[0])
        # The same thread of the pool is outside of it.
        await asyncio.to_thread(spark.sql, "INSERT INTO a VALUES (3)")

    with caplog.at_level(logging.WARNING, "twophase.spark"):
        if way == "thread":
            thread = threading.Thread(target=left_open)
            thread.start()
            thread.join()
        else:
            asyncio.run(task() if way == "task" else to_thread())
        gc.collect()
        rolled_back(spark, ids[0])
    assert "the thread or task that had begun it has ended without a COMMIT or ROLLBACK" in caplog.text
    assert rows(spark, "SELECT * FROM a") == [(1,)] + [(3,)] * (way == "to_thread")


@pytest.mark.promise("sql", "in a notebook a transaction goes on from cell to cell", detail=True)
def test_in_a_notebook_a_transaction_goes_on_from_cell_to_cell(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel runs each cell as a task in a context of its own, which ends with the cell."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    seen: list[Any] = []

    async def cells() -> None:
        for cell in (
            lambda: seen.append(twophase.begin(spark)),
            lambda: spark.sql("INSERT INTO a VALUES (2)"),
            lambda: spark.sql("INSERT INTO nosuch VALUES (2)"),
            lambda: seen.append((rows(spark, "SELECT * FROM a"), rows(spark.newSession(), "SELECT * FROM a"))),
            lambda: seen[0].commit(),
            lambda: spark.sql(BEGIN),
            lambda: spark.sql("INSERT INTO a VALUES (3)"),
            lambda: spark.sql(ROLLBACK),
        ):
            (outcome,) = await asyncio.gather(_cell(cell), return_exceptions=True)
            assert outcome is None or "nosuch" in str(outcome)
            gc.collect()

    asyncio.run(cells())
    assert seen[1] == ([(1,), (2,)], [(1,)])
    assert rows(spark.newSession(), "SELECT * FROM a") == [(1,), (2,)]


async def _cell(run: Callable[[], Any]) -> None:
    run()


@pytest.mark.promise("sql", "what ends without a COMMIT is rolled back: a thread, a task, a session, the interpreter")
def test_detaching_rolls_back(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    child = spark.newSession()
    tx = twophase.begin(child)
    child.sql("CREATE TABLE a AS SELECT 1 AS id")
    handle = handle_of(child)
    assert handle is not None
    with caplog.at_level(logging.WARNING, "twophase.spark"):
        handle.detach()
    assert tx.state is TransactionState.ROLLED_BACK
    assert f"Transaction {tx.id} was rolled back: its session was detached without a COMMIT" in caplog.text
    assert not spark.catalog.tableExists("default.a")
    with pytest.raises(ParseException):
        child.sql(COMMIT)


ENDS = """
import logging, sys
import twophase
from pyspark.sql import SparkSession

logging.basicConfig(level="WARNING", format="%(message)s")
spark = (
    SparkSession.builder.master("local[1]").appName("ends").config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF").config("spark.sql.warehouse.dir", sys.argv[1]).getOrCreate()
)
handle = twophase.attach(spark)
spark.sql("BEGIN TRANSACTION")
spark.sql("CREATE TABLE a AS SELECT 1 AS id")
if sys.argv[2] == "stop":
    spark.stop()
"""


@pytest.mark.promise("sql", "what ends without a COMMIT is rolled back: a thread, a task, a session, the interpreter")
@pytest.mark.parametrize(("way", "why"), [("stop", "Spark was stopped"), ("exit", "the interpreter has ended")])
def test_the_end_of_spark_or_of_the_interpreter_rolls_back(tmp_path: Path, way: str, why: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path), way], capture_output=True, text=True, check=True, timeout=120
    )
    assert f"was rolled back: {why} without a COMMIT or ROLLBACK." in run.stderr
    from twophase.timeline.timeline import Timeline

    (record,) = Timeline(f"sqlite:///{tmp_path}/.twophase/timeline.db", create=False).transactions()
    assert record.state is TransactionState.ROLLED_BACK
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] in ([], ["a"])
    assert not list(tmp_path.rglob("*.parquet"))


def test_without_attach_the_words_are_sparks_own_parse_errors(spark: SparkSession) -> None:
    stock = stock_session(spark)
    for statement in (BEGIN, COMMIT, "SAVEPOINT s", "SHOW LOCKS", "BEGIN COMMIT; END", "EXECUTE IMMEDIATE 'COMMIT'"):
        with pytest.raises(ParseException):
            stock.sql(statement)


def test_what_spark_knows_itself_is_left_to_it(spark: SparkSession) -> None:
    try:
        assert spark.sql("SET transaction = 1").collect()[0].value == "1"
        assert spark.sql("SET transaction").collect()[0].value == "1"
    finally:
        spark.conf.unset("transaction")
    assert spark.sql("BEGIN transaction: BEGIN SELECT 5; END; END").collect()[0][0] == 5
    assert spark.sql("BEGIN DECLARE commit INT DEFAULT 2; SELECT commit; END").collect()[0][0] == 2
    with pytest.raises(ParseException):
        spark.sql("(COMMIT)")


LOADS: dict[str, Callable[[SparkSession], Any]] = {
    "a": lambda spark: spark.sql("INSERT INTO a SELECT 10 AS id"),
    "b": lambda spark: spark.sql("INSERT OVERWRITE b SELECT max(id) FROM a"),
    "a again": lambda spark: spark.sql("INSERT INTO a SELECT max(id) + 1 FROM b"),
    "c": lambda spark: spark.sql("CREATE OR REPLACE TABLE c AS SELECT count(*) AS n FROM a"),
}


@pytest.mark.promise("sql", "RFC-73: load A, load B, load A again, in SQL: all of it or nothing")
def test_rfc_73_load_a_load_b_load_a_again(spark: SparkSession) -> None:
    def state() -> list[Any]:
        return [rows(spark.newSession(), f"SELECT * FROM {name}") for name in "abc"]

    for name in "abc":
        spark.sql(f"CREATE TABLE {name} AS SELECT 1 AS id")
    before = state()
    spark.sql("BEGIN TRANSACTION")
    for load in LOADS.values():
        load(spark)
        assert state() == before  # No other session sees a part of it.
    with pytest.raises(Exception, match="made to fail"):
        spark.sql(FAILS)  # One fails: the user's job gives up.
    spark.sql("ROLLBACK")
    assert state() == before
    spark.sql("BEGIN TRANSACTION")
    for load in LOADS.values():
        load(spark)
    spark.sql("COMMIT")
    assert state() == [[(1,), (10,), (11,)], [(10,)], [(3,)]]


@pytest.mark.promise("sql", "each row of the table beside Databricks is true of twophase")
@pytest.mark.parametrize("row", databricks.ROWS, ids=lambda row: row.name)
def test_beside_databricks(spark: SparkSession, tmp_path: Path, row: databricks.Row) -> None:
    spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    row.check(spark, tmp_path)

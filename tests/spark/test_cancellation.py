"""Cancelled statements: whoever cancels, the hook is told *cancelled*, the table is as it was, nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import twophase
from tests.recorder import Recorder
from twophase.hooks import JobStatus, JobStatusHook
from twophase.transactions.clean import clean

# Many short sleeps: a cancelled task ends at its next row.
SLOW_QUERY = "SELECT id, java_method('java.lang.Thread', 'sleep', 50L) AS s FROM range(0, 400, 1, 2)"


STATEMENTS = ["CREATE TABLE fresh AS ", "CREATE OR REPLACE TABLE kept AS ", "INSERT INTO kept "]


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, recorder: Recorder) -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers of a user's function
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    twophase.attach(session, hooks=[recorder])
    session.sql("CREATE TABLE kept AS SELECT 1 AS id, 'old' AS s")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def fresh(recorder: Recorder) -> None:
    recorder.clear()


def cancel_by_group(spark: SparkSession, recorder: Recorder) -> None:
    spark.sparkContext.cancelJobGroup("users-group")


def cancel_by_tag(spark: SparkSession, recorder: Recorder) -> None:
    spark.sparkContext.cancelJobsWithTag(recorder.jobs[-1].tag)


def cancel_by_users_tag(spark: SparkSession, recorder: Recorder) -> None:
    spark.sparkContext.cancelJobsWithTag("users-tag")


def cancel_all(spark: SparkSession, recorder: Recorder) -> None:
    spark.sparkContext.cancelAllJobs()


def cancel_from_ui(spark: SparkSession, recorder: Recorder) -> None:
    """Press the page's own *kill*, as a browser does: its form carries a token and a cookie on newer versions."""
    port = urllib.parse.urlsplit(str(spark.sparkContext.uiWebUrl)).port
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    form, tries = None, 0
    while form is None and tries < 100:  # the page is fed by a queue of its own
        page = browser.open(f"http://127.0.0.1:{port}/jobs/").read().decode()
        form = re.search(r"<form[^>]*action=[\"'][^\"']*/kill/?[\"'].*?</form>", page, re.DOTALL)
        tries += 1
    assert form is not None, "no job can be killed on the page"
    inputs = [dict(re.findall(r"(\w+)=[\"']([^\"']*)[\"']", tag)) for tag in re.findall(r"<input[^>]*>", form[0])]
    fields = {field["name"]: field["value"] for field in inputs if "name" in field}
    browser.open(f"http://127.0.0.1:{port}/jobs/job/kill/", data=urllib.parse.urlencode(fields).encode()).read()


OTHER_WAYS = (cancel_by_tag, cancel_by_users_tag, cancel_all, cancel_from_ui)


@pytest.mark.promise("cancellation", "a cancelled statement leaves the table as it was, and nothing else")
@pytest.mark.parametrize("cancel", [cancel_by_group, *(pytest.param(way) for way in OTHER_WAYS)])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_cancelled_statement_ends_in_on_canceled_and_leaves_the_table_as_it_was(
    spark: SparkSession, recorder: Recorder, cancel: Callable[[SparkSession, Recorder], None], statement: str
) -> None:
    spark.sparkContext.setJobGroup("users-group", "a user's own group")
    spark.sparkContext.addJobTag("users-tag")

    def run() -> None:
        assert recorder.running.wait(60)
        cancel(spark, recorder)

    canceller = threading.Thread(target=run)
    canceller.start()
    with pytest.raises(Exception, match=r"(?i)cancel"):
        spark.sql(statement + SLOW_QUERY)
    canceller.join()
    assert recorder.events == ["created", "canceled"]
    assert "cancel" in str(recorder.jobs[-1].error).lower()
    record = twophase.attach(spark).timeline.transaction(recorder.jobs[-1].transaction_id)
    assert record is not None
    assert "cancel" in str(record.error).lower()
    assert not spark.catalog.tableExists("fresh")
    assert [tuple(row) for row in spark.table("kept").collect()] == [(1, "old")]
    assert_nothing_is_left(spark)


def assert_nothing_is_left(spark: SparkSession) -> None:
    handle = twophase.attach(spark)
    assert handle.timeline.transactions(open_only=True) == []
    warehouse = Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:"))
    assert list(warehouse.glob(".twophase/fresh/*")) == []
    assert len(list(warehouse.glob(".twophase/kept/*"))) == 1


#: One task fails; the other one is busy then, too busy to be interrupted, and opens its file with its first row.
LATE = """
    INSERT INTO lines SELECT id, IF(
        id = 0,
        raise_error(java_method('java.lang.Thread', 'sleep', 200L)),
        CAST(aggregate(sequence(id, 5000000), 0L, (sum, x) -> sum + x) AS STRING)
    ) FROM range(0, 2, 1, 2)
"""


@pytest.mark.promise("failed-statement", "a task that runs on after its statement failed is waited for")
def test_a_task_that_ends_after_its_statement_failed_leaves_no_file(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twophase.spark.execution.listener._TASKS_TIMEOUT", 60.0)
    assert _left_by_a_late_task(spark) == 0
    assert clean_up(spark) == []


@pytest.mark.promise("failed-statement", "what a task leaves after its statement failed is found by `twophase clean`")
def test_what_a_task_leaves_that_is_not_waited_for_is_found_by_clean(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twophase.spark.execution.listener._TASKS_TIMEOUT", 0.0)
    left = False
    # Whether the task makes a directory before it sees that it was interrupted is Hadoop's and the machine's matter.
    for _ in range(20):
        left = bool(_left_by_a_late_task(spark))
        # A directory that the rollback has seen is on the timeline, and its participant removes it: it is not listed.
        assert clean_up(spark) in ([], [True])
        assert len(versions(spark)) == 1
        if left:
            break
    assert left
    assert [tuple(row) for row in spark.table("lines").collect()] == [(1, "old")]


def clean_up(spark: SparkSession) -> list[bool]:
    """What ``twophase clean`` finds, and whether it removed that."""
    handle = twophase.attach(spark)
    return [one.removed for one in clean(handle.coordinator, [handle.catalog("hive")])]


def versions(spark: SparkSession) -> list[Path]:
    warehouse = Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:"))
    return list(warehouse.glob(".twophase/lines/*"))


def _left_by_a_late_task(spark: SparkSession) -> int:
    """How many directories are left when all tasks of a failed statement have ended."""
    spark.sql("DROP TABLE IF EXISTS lines")
    spark.sql("CREATE TABLE lines USING csv AS SELECT 1L AS id, 'old' AS s")
    # A compiled query looks for an interrupt between rows only.
    compiled = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {key: spark.conf.get(key) for key in compiled}
    for key, value in compiled.items():
        spark.conf.set(key, value)
    try:
        with pytest.raises(Exception, match="USER_RAISED_EXCEPTION"):
            spark.sql(LATE)
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)
    deadline = time.monotonic() + 60
    while spark.sparkContext.statusTracker().getActiveStageIds() or _tasks_run(spark):
        assert time.monotonic() < deadline, "the task does not end"
    return len(versions(spark)) - 1


def _tasks_run(spark: SparkSession) -> bool:
    """Whether an executor is busy, also with tasks of a job that has ended."""
    executors = spark.sparkContext.statusTracker().getExecutorInfos()
    return any(executor.numRunningTasks for executor in executors)


def test_lost_events_change_no_outcome(
    spark: SparkSession, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = twophase.attach(spark)
    monkeypatch.setattr(handle.session.tracker.feed, "handle", lambda event: None)
    spark.sql("CREATE TABLE quiet AS SELECT 7 AS id")
    assert [row.id for row in spark.table("quiet").collect()] == [7]
    with pytest.raises(Exception, match="boom"):
        spark.sql("CREATE OR REPLACE TABLE quiet AS SELECT raise_error('boom') AS id")
    assert [row.id for row in spark.table("quiet").collect()] == [7]
    assert recorder.events[:3] == ["created", "finished", "created"]
    assert recorder.events[3] == "failed"


def test_a_join_whose_one_side_fails_is_reported_as_failed_though_spark_cancels_the_other_side(
    spark: SparkSession, recorder: Recorder, tmp_path: Path
) -> None:
    started = tmp_path / "started"

    def failing(number: int) -> int:
        while not started.exists():  # the other side's job runs
            time.sleep(0.01)
        raise ValueError("the user's own")

    def slow(number: int) -> int:
        started.touch()
        time.sleep(0.05)
        return number

    one = spark.range(0, 4, 1, 1).select(udf(lambda number: failing(number), "bigint")("id").alias("k"))
    other = spark.range(0, 1000, 1, 1).select(udf(lambda number: slow(number), "bigint")("id").alias("k"))
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        with pytest.raises(PythonException, match="the user's own"):
            one.join(other, "k").write.saveAsTable("joined")
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")

    assert recorder.events[0] == "created"
    assert recorder.events[1] == "failed"
    assert "the user's own" in str(recorder.errors[0])
    record = twophase.attach(spark).timeline.transaction(recorder.jobs[-1].transaction_id)
    assert record is not None
    assert "PythonException" in str(record.error) or "the user's own" in str(record.error)


def test_a_cancel_without_events_rolls_back_too(
    spark: SparkSession, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = twophase.attach(spark)
    monkeypatch.setattr(handle.session.tracker.feed, "handle", lambda event: None)
    tracker, deadline = spark.sparkContext.statusTracker(), time.monotonic() + 60

    def run() -> None:
        while not tracker.getActiveJobsIds() and time.monotonic() < deadline:
            pass
        spark.sparkContext.cancelAllJobs()

    canceller = threading.Thread(target=run)
    canceller.start()
    with pytest.raises(Exception, match=r"(?i)cancel"):
        spark.sql("CREATE OR REPLACE TABLE kept AS " + SLOW_QUERY)
    canceller.join()
    assert recorder.events[0] == "created"
    assert recorder.events[1] in ("canceled", "failed")
    assert [(row.id, row.s) for row in spark.table("kept").collect()] == [(1, "old")]
    assert not [t for t in handle.timeline.transactions() if t.is_open]


def test_a_hook_that_throws_stops_neither_the_others_nor_the_statement(
    spark: SparkSession, recorder: Recorder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(JobStatusHook):
        def on_created(self, job: JobStatus) -> None:
            raise ValueError("a user's mistake")

    handle = twophase.attach(spark)
    monkeypatch.setattr(handle, "hooks", (Broken(), *handle.hooks))
    spark.sql("CREATE TABLE hooked AS SELECT 1 AS id")
    assert recorder.events == ["created", "finished"]
    assert [str(e) for e in recorder.jobs[-1].hook_errors] == ["a user's mistake"]
    assert "Broken failed in on_created" in caplog.text


CHILD = """
    import sys, threading
    from pyspark.sql import SparkSession
    import twophase
    from twophase.hooks import JobStatusHook

    class Tell(JobStatusHook):
        def on_progress(self, job):
            if job.job_ids and not self.told:
                self.told = True
                print("RUNNING", flush=True)
        def on_canceled(self, job): print("CANCELED", flush=True)
        def on_failed(self, job, error): print("FAILED", error, flush=True)
        def on_finished(self, job): print("FINISHED", flush=True)
        told = False

    spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g").config("spark.sql.warehouse.dir", sys.argv[1]).getOrCreate())
    twophase.attach(spark, hooks=[Tell()])
    try:
        {statement}
    except KeyboardInterrupt:
        print("INTERRUPTED", spark.range(3).count(), flush=True)
"""

SQL = f"""spark.sql("CREATE TABLE t AS {SLOW_QUERY}")"""
NAMED_SQL = f"""spark.sql("CREATE TABLE hive.default.t AS {SLOW_QUERY}")"""
WITHOUT_SQL = f"""twophase.create_table_as(spark.sql("{SLOW_QUERY}"), "hive", "default.t", provider="parquet")"""


@pytest.mark.promise("cancellation", "a signal rolls the running statement back before it takes effect")
@pytest.mark.parametrize(
    "statement", [SQL, NAMED_SQL, WITHOUT_SQL], ids=["spark.sql", "name with catalog", "create_table_as"]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_rolls_the_statement_back_before_it_takes_effect(
    tmp_path: Path, number: signal.Signals, statement: str
) -> None:
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(CHILD).format(statement=statement))
    warehouse = tmp_path / "warehouse"
    child = subprocess.Popen(
        [sys.executable, str(script), str(warehouse)], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=os.environ
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "RUNNING\n"
    child.send_signal(number)
    output, _ = child.communicate(timeout=60)
    assert output.startswith("CANCELED\n")
    if number == signal.SIGINT:
        assert output == "CANCELED\nINTERRUPTED 3\n"
        assert child.returncode == 0
    else:
        assert child.returncode == -signal.SIGTERM
    assert list(warehouse.glob("**/*.parquet")) == []

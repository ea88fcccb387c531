"""The job status: one state machine fed by the driver thread and by Spark's events."""

from __future__ import annotations

import itertools

import pytest

from twophase.hooks.status import JobState, JobStatus, cancellation_reason, is_asked_for, is_cancellation_message

# Seen on Spark 4.0 and 4.3, each after a real cancellation.
CANCELLED = [
    "[SPARK_JOB_CANCELLED] Job 2 cancelled part of cancelled job tags twophase-abc-0 SQLSTATE: XXKDA",
    "[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job group g SQLSTATE: XXKDA",
    "[SPARK_JOB_CANCELLED] Job 4 cancelled as part of cancellation of all jobs SQLSTATE: XXKDA",
    "[SPARK_JOB_CANCELLED] Job 6 cancelled because Stage 7 was cancelled SQLSTATE: XXKDA",
    "An error occurred while calling o90.parquet.\n: org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 2 "
    "cancelled part of cancelled job group g SQLSTATE: XXKDA\n\tat org.apache.spark.errors",
    "Job 5 cancelled killed via the Web UI",
]
ASKED_FOR = [CANCELLED[0], CANCELLED[1], CANCELLED[2], CANCELLED[4], CANCELLED[5]]
#: What Spark cancels when another part of the query failed.
BY_ITSELF = [
    "[SPARK_JOB_CANCELLED] Job 3 cancelled The corresponding SQL query has failed. SQLSTATE: XXKDA",
    "[SPARK_JOB_CANCELLED] Job 3 cancelled The corresponding broadcast query has failed. SQLSTATE: XXKDA",
    "[SPARK_JOB_CANCELLED] Job 3 cancelled  SQLSTATE: XXKDA",
]
FAILED = [
    "[USER_RAISED_EXCEPTION] Job 3 cancelled SQLSTATE: P0001",
    "An error occurred while calling o1.sql.\n: org.apache.spark.SparkException: Job aborted due to stage failure: "
    "Task 0 in stage 1.0 failed",
    "[DIVIDE_BY_ZERO] Division by zero.",
    "",
]


def status() -> JobStatus:
    return JobStatus("app-1", "hive.db.t", "create_table_as", "twophase-app-1-0")


@pytest.mark.parametrize("message", CANCELLED)
def test_a_cancelled_job_is_told_by_what_spark_says_first(message: str) -> None:
    assert is_cancellation_message(message)
    job = status()
    job.failed(RuntimeError(message))
    assert job.state is JobState.CANCELED
    assert job.cancel_reason and "cancelled" in job.cancel_reason


@pytest.mark.parametrize("message", FAILED)
def test_a_failure_that_only_mentions_cancelling_is_a_failure(message: str) -> None:
    job = status()
    job.failed(RuntimeError(message))
    assert job.state is JobState.FAILED
    assert job.cancel_reason is None


def test_the_cause_of_an_error_is_looked_at_too() -> None:
    try:
        try:
            raise RuntimeError(CANCELLED[0])
        except RuntimeError as cause:
            raise ValueError("writing failed") from cause
    except ValueError as error:
        assert cancellation_reason(error) == CANCELLED[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_ctrl_c_and_exit_are_cancellations(error: BaseException) -> None:
    assert cancellation_reason(error)


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(["finished", "failed", "cancelled"], 2)))
def test_the_first_terminal_signal_wins(first: str, second: str) -> None:
    signals = {
        "finished": lambda job: job.finished(),
        "failed": lambda job: job.failed(RuntimeError("x")),
        "cancelled": lambda job: job.failed(KeyboardInterrupt()),
    }
    job = status()
    assert signals[first](job)
    state = job.state
    assert not signals[second](job)
    assert job.state is state


def test_a_cancel_event_alone_does_not_cancel_a_query_that_succeeds() -> None:
    job = status()
    job.started()
    job.job_cancelled("AQE cancelled a stage")
    assert job.finished()
    assert job.state is JobState.FINISHED


@pytest.mark.parametrize("message", ASKED_FOR)
def test_a_job_that_a_user_cancelled_is_distinguished_from_one_that_spark_gave_up(message: str) -> None:
    assert is_asked_for(message)


@pytest.mark.parametrize("message", BY_ITSELF)
def test_a_job_that_spark_gave_up_is_distinguished_from_one_that_a_user_cancelled(message: str) -> None:
    assert not is_asked_for(message)
    assert is_cancellation_message(message)


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_what_ended_a_statement_is_in_its_status_also_when_it_was_cancelled(error: BaseException) -> None:
    job = status()
    job.failed(error)
    job.failed(ValueError("late"))
    assert job.error is error


def test_a_cancel_that_was_asked_for_turns_a_failure_into_a_cancellation() -> None:
    job = status()
    job.started()
    job.job_cancelled("killed via the Web UI")
    job.failed(RuntimeError("Writing job aborted"))
    assert job.state is JobState.CANCELED
    assert job.cancel_reason == "killed via the Web UI"


def test_late_events_change_nothing_after_the_end() -> None:
    job = status()
    job.finished()
    job.job_started(7, 10)
    job.job_cancelled("late")
    assert (job.job_ids, job.tasks_total, job.cancel_reason) == ((), 0, None)


def test_the_same_job_reported_twice_counts_once() -> None:
    job = status()
    job.job_started(7, 10)
    job.job_started(7, 10)
    assert (job.job_ids, job.tasks_total) == ((7,), 10)


@pytest.mark.parametrize("message", [*CANCELLED[:4], CANCELLED[4], f"org.apache.spark.SparkException: {CANCELLED[0]}"])
def test_the_reason_of_a_cancellation_is_in_sparks_words_without_a_java_class(message: str) -> None:
    job, told = status(), status()
    job.failed(RuntimeError(message))
    told.job_cancelled(message)
    for reason in (job.cancel_reason, told.cancel_reason):
        assert reason is not None
        assert reason.startswith("[SPARK_JOB_CANCELLED] Job ")

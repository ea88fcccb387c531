"""The status of one statement's job: a state machine with input from the driver thread and from Spark's events.

Only the driver thread, which ran the action, decides *finished* or *failed*; events add job ids, progress and the
reason for a cancellation. The first terminal signal wins and later ones are ignored, so that lost, late or repeated
events do not change the outcome.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from enum import Enum

#: The start of Spark's message for a cancelled job: there is no better indication (a job's end event distinguishes
#: only succeeded and failed).
_CANCELLED = re.compile(
    r"^\s*(?:An error occurred while calling [^\n]*\n: )?(?:org\.apache\.spark\.SparkException: )?"
    r"(?:\[(?:SPARK_)?JOB_CANCELLED\]|\[OPERATION_CANCELED\]|Job \d+ cancelled\b|Job aborted due to stage failure: "
    r"(?:Stage|Job) \d+ (?:was )?cancelled\b|Stage \d+ was cancelled\b)",
    re.IGNORECASE,
)
_JAVA_CLASS = re.compile(r"^(?:[a-z_]\w*\.)+[A-Z]\w*: ")
#: Spark's message for a job that was cancelled on request: by group, by tag, in the web UI, or all jobs. Spark also
#: cancels jobs by itself: if another part of the query fails, the rest is cancelled, and that failure is the error.
_ASKED_FOR = re.compile(r"part of (?:cancelled job|cancellation of all jobs)|killed via the Web UI", re.IGNORECASE)


class JobState(Enum):
    """The states of a statement's job, according to FLIP-305's four events."""

    CREATED = "created"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended, with any result."""
        return self in (JobState.FINISHED, JobState.FAILED, JobState.CANCELED)


@dataclass
class JobStatus:
    """The status of a statement's job, as passed to hooks.

    Attributes
    ----------
    transaction_id : str
        The statement's transaction, as on the timeline.
    path : str
        The target, with its catalog's name.
    purpose : str
        :class:`twophase.model.Purpose` value.
    tag : str
        The Spark job tag of all jobs of the statement: ``spark.cancelJobsWithTag``.
    job_ids : tuple of int
        Spark's job ids, as far as events have reported them.
    tasks_total, tasks_done : int
        Tasks of those jobs; the total grows while stages are submitted.
    in_transaction : bool
        Whether it is part of a larger transaction. FINISHED then means prepared: whether it is published is reported at
        the end of that transaction.
    published : bool or None
        Whether its rows are published; None while that is undecided or in doubt.
    state : JobState
        The current state; a terminal state is final.
    cancel_reason : str, optional
        Why it was cancelled, in Spark's words.
    error : BaseException, optional
        The error with which it failed or was cancelled.
    hook_errors : list of BaseException
        Errors of hooks; they do not prevent other hooks from being called.
    """

    transaction_id: str
    path: str
    purpose: str
    tag: str
    job_ids: tuple[int, ...] = ()
    tasks_total: int = 0
    tasks_done: int = 0
    in_transaction: bool = False
    published: bool | None = None
    state: JobState = JobState.CREATED
    cancel_reason: str | None = None
    error: BaseException | None = None
    hook_errors: list[BaseException] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def started(self) -> bool:
        """Record that rows are being written; False after a terminal signal."""
        return self._move(JobState.RUNNING)

    def finished(self) -> bool:
        """Record that the query finished, according to the driver; False if another terminal signal came first."""
        return self._move(JobState.FINISHED)

    def failed(self, error: BaseException) -> bool:
        """Record that the query failed, according to the driver: as *canceled* if the error or an event indicates it.

        Parameters
        ----------
        error : BaseException
            The error that the action raised.

        Returns
        -------
        bool
            False if another terminal signal came first.
        """
        said = cancellation_reason(error)
        with self._lock:
            if self.state.is_terminal:
                return False
            self.error = error
            self.cancel_reason = said or self.cancel_reason
            self.state = JobState.CANCELED if self.cancel_reason else JobState.FAILED
            return True

    def job_started(self, job_id: int, tasks: int) -> None:
        """Handle the event that a Spark job with the statement's tag started.

        Parameters
        ----------
        job_id : int
            Spark's job id; a repeated one is ignored.
        tasks : int
            The number of tasks of all its stages.
        """
        with self._lock:
            if not self.state.is_terminal and job_id not in self.job_ids:
                self.job_ids = (*self.job_ids, job_id)
                self.tasks_total += tasks

    def task_ended(self) -> None:
        """Handle the event that a task of one of the statement's jobs succeeded."""
        with self._lock:
            self.tasks_done += 1

    def job_cancelled(self, reason: str) -> None:
        """Record a request to cancel a job of the statement. Only a hint: the query may have finished before that.

        Parameters
        ----------
        reason : str
            In Spark's words, if an event contained it; the first one is kept.
        """
        with self._lock:
            if not self.state.is_terminal:
                self.cancel_reason = self.cancel_reason or _spark_line(reason)

    def _move(self, state: JobState) -> bool:
        with self._lock:
            if self.state.is_terminal:
                return False
            self.state = state
            return True


def cancellation_reason(error: BaseException) -> str | None:
    """Return why an error means *cancelled* rather than *failed*; None if it does not.

    Parameters
    ----------
    error : BaseException
        The error that the action raised; its causes are examined too.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return "interrupted (Ctrl-C)"
        if isinstance(seen, SystemExit):
            return "the process was asked to end"
        if is_cancellation_message(str(seen)):
            return _spark_line(str(seen))
        seen = seen.__cause__
    return None


def is_asked_for(text: str) -> bool:
    """Return whether Spark's message for a cancelled job says that the cancellation was requested."""
    return is_cancellation_message(text) and bool(_ASKED_FOR.search(text))


def _spark_line(text: str) -> str:
    """Spark's own message, without the line that Py4J may have added before it, and without the JVM error's class."""
    lines = text.strip().splitlines()
    line = lines[1].removeprefix(": ") if lines[0].startswith("An error occurred") and len(lines) > 1 else lines[0]
    return _JAVA_CLASS.sub("", line)


def is_cancellation_message(text: str) -> bool:
    """Return whether Spark's message for a failed job says that it was cancelled."""
    return bool(_CANCELLED.match(text))

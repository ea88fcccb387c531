"""The status of one statement's job: a state machine that the driver thread and Spark's events both feed.

The driver thread, which ran the action, alone decides *finished* or *failed*; events add job ids, progress and who
cancelled it. The first terminal signal wins and later ones are ignored, so that lost, late or repeated events
change no outcome.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from enum import Enum

#: What Spark says of a cancelled job, at the start of its message: there is no better sign (a job's end event
#: knows only succeeded or failed).
_CANCELLED = re.compile(
    r"^\s*(?:An error occurred while calling [^\n]*\n: )?(?:org\.apache\.spark\.SparkException: )?"
    r"(?:\[(?:SPARK_)?JOB_CANCELLED\]|\[OPERATION_CANCELED\]|Job \d+ cancelled\b|Job aborted due to stage failure: "
    r"(?:Stage|Job) \d+ (?:was )?cancelled\b|Stage \d+ was cancelled\b)",
    re.IGNORECASE,
)
#: What Spark says of a job that somebody asked it to cancel: by group, by tag, by the page of jobs, all at once. It
#: cancels jobs by itself, too: those that run beside a part of the query that failed, and that error is the query's.
_ASKED_FOR = re.compile(r"part of (?:cancelled job|cancellation of all jobs)|killed via the Web UI", re.IGNORECASE)


class JobState(Enum):
    """States of a statement's job, as FLIP-305's four events see it."""

    CREATED = "created"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended, in whatever way."""

        return self in (JobState.FINISHED, JobState.FAILED, JobState.CANCELED)


@dataclass
class JobStatus:
    """What is known of a statement's job; hooks receive it.

    Attributes
    ----------
    transaction_id : str
        The statement's transaction, as on the timeline.
    path : str
        The target, with its catalog's name.
    purpose : str
        :class:`twophase.model.Purpose` value.
    tag : str
        The Spark job tag that all jobs of the statement carry: ``spark.cancelJobsWithTag``.
    job_ids : tuple of int
        Spark's job ids, as far as events told.
    tasks_total, tasks_done : int
        Tasks of those jobs; the total grows while stages are submitted.
    state : JobState
        Where it is; a terminal state is final.
    cancel_reason : str, optional
        Why it was cancelled, in Spark's words.
    error : BaseException, optional
        What ended it, when it failed or was cancelled.
    hook_errors : list of BaseException
        Errors of hooks; they keep no other hook from being told.
    """

    transaction_id: str
    path: str
    purpose: str
    tag: str
    job_ids: tuple[int, ...] = ()
    tasks_total: int = 0
    tasks_done: int = 0
    state: JobState = JobState.CREATED
    cancel_reason: str | None = None
    error: BaseException | None = None
    hook_errors: list[BaseException] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def started(self) -> bool:
        """Note that rows are being written; False after a terminal signal."""
        return self._move(JobState.RUNNING)

    def finished(self) -> bool:
        """Note the driver's word that the query finished; False when another terminal signal came first."""
        return self._move(JobState.FINISHED)

    def failed(self, error: BaseException) -> bool:
        """Note the driver's word that the query failed: *canceled* where the error says so, or who cancelled it.

        Parameters
        ----------
        error : BaseException
            What the action raised.

        Returns
        -------
        bool
            False when another terminal signal came first.
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
        """An event: a Spark job with our tag began.

        Parameters
        ----------
        job_id : int
            Spark's; a repeated one is ignored.
        tasks : int
            Tasks of all its stages.
        """
        with self._lock:
            if not self.state.is_terminal and job_id not in self.job_ids:
                self.job_ids = (*self.job_ids, job_id)
                self.tasks_total += tasks

    def task_ended(self) -> None:
        """An event: a task of one of our jobs succeeded."""
        with self._lock:
            self.tasks_done += 1

    def job_cancelled(self, reason: str) -> None:
        """Somebody asked for a job of ours to be cancelled. Only a hint: the query may have finished before that.

        Parameters
        ----------
        reason : str
            In Spark's words, where an event told it; the first one stays.
        """
        with self._lock:
            if not self.state.is_terminal:
                self.cancel_reason = self.cancel_reason or reason

    def _move(self, state: JobState) -> bool:
        with self._lock:
            if self.state.is_terminal:
                return False
            self.state = state
            return True


def cancellation_reason(error: BaseException) -> str | None:
    """Why the error means *cancelled* and not *failed*, or None.

    Parameters
    ----------
    error : BaseException
        What the action raised; its causes are looked at too.
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
    """Whether Spark's message of a cancelled job says that somebody wanted that."""
    return is_cancellation_message(text) and bool(_ASKED_FOR.search(text))


def _spark_line(text: str) -> str:
    """Spark's own line of a message that Py4J may have put a line in front of."""
    lines = text.strip().splitlines()
    return lines[1].removeprefix(": ") if lines[0].startswith("An error occurred") and len(lines) > 1 else lines[0]


def is_cancellation_message(text: str) -> bool:
    """Whether Spark's message of a failed job says that it was cancelled."""
    return bool(_CANCELLED.match(text))

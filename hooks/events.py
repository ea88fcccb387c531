"""Dispatch of Spark's events to the status of a statement, independent of Spark: a queue, a thread, and two maps.

On the listener bus, the Spark layer puts plain tuples into :attr:`EventFeed.queue` and returns immediately; a separate
thread looks up the statement of a job or a stage and notifies it. Nothing in here decides an outcome.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twophase.hooks.status import is_asked_for
from twophase.redaction import logger

if TYPE_CHECKING:
    from twophase.hooks.statement import Statement

log = logger("twophase.hooks")


@dataclass(frozen=True)
class JobStarted:
    """``SparkListenerJobStart``.

    Parameters
    ----------
    job_id : int
    tags : tuple of str
        The job tags in its properties.
    stages : tuple of (int, int)
        Stage id and number of tasks of each stage.
    """

    job_id: int
    tags: tuple[str, ...]
    stages: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class JobEnded:
    """``SparkListenerJobEnd``.

    Parameters
    ----------
    job_id : int
    error : str or None
        The message of a failed job.
    """

    job_id: int
    error: str | None


@dataclass(frozen=True)
class TaskEnded:
    """``SparkListenerTaskEnd`` of a successful task."""

    stage_id: int


Event = JobStarted | JobEnded | TaskEnded


class EventFeed:
    """A dispatcher of events to the statements that watch them.

    Attributes
    ----------
    queue : queue.SimpleQueue
        The queue that the listener fills; None ends the thread.
    """

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._statements: dict[str, Statement] = {}
        self._jobs: dict[int, Statement] = {}
        self._stages: dict[int, Statement] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def is_watching(self) -> bool:
        """Whether any statement watches events; otherwise the listener can ignore them."""
        return bool(self._statements)

    def statements(self) -> list[Statement]:
        """The statements that are currently writing."""
        with self._lock:
            return list(self._statements.values())

    def watch(self, statement: Statement) -> None:
        """Dispatch to a statement the events of all jobs with its tag.

        Parameters
        ----------
        statement : Statement
            Notified until :meth:`unwatch`.
        """
        with self._lock:
            self._statements[statement.job.tag] = statement
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="twophase-events", daemon=True)
                self._thread.start()

    def unwatch(self, statement: Statement) -> None:
        """Stop dispatching to a statement; late events are dropped.

        Parameters
        ----------
        statement : Statement
            It need not be watched.
        """
        with self._lock:
            self._statements.pop(statement.job.tag, None)
            for mapping in (self._jobs, self._stages):
                for key in [key for key, owner in mapping.items() if owner is statement]:
                    del mapping[key]

    def close(self) -> None:
        """End the thread."""
        self.queue.put(None)

    def _run(self) -> None:
        while (event := self.queue.get()) is not None:
            try:
                self.handle(event)
            except BaseException:  # this thread also serves all later statements
                log.warning("A Spark event could not be handled: %r", event, exc_info=True)

    def handle(self, event: Event) -> None:
        """Handle one event; called on the feed's thread, and by tests.

        Parameters
        ----------
        event : JobStarted, JobEnded or TaskEnded
            In the order of the listener bus.
        """
        if isinstance(event, JobStarted):
            self._job_started(event)
        elif isinstance(event, JobEnded):
            self._job_ended(event)
        else:
            self._task_ended(event)

    def _job_started(self, event: JobStarted) -> None:
        with self._lock:
            statement = next((self._statements[tag] for tag in event.tags if tag in self._statements), None)
            if statement is None:
                return
            self._jobs[event.job_id] = statement
            for stage_id, _ in event.stages:
                self._stages[stage_id] = statement
        statement.job.job_started(event.job_id, sum(tasks for _, tasks in event.stages))
        statement.tell_progress()

    def _job_ended(self, event: JobEnded) -> None:
        with self._lock:
            statement = self._jobs.pop(event.job_id, None)
        if statement is not None and event.error and is_asked_for(event.error):
            statement.job.job_cancelled(event.error.splitlines()[0])

    def _task_ended(self, event: TaskEnded) -> None:
        with self._lock:
            statement = self._stages.get(event.stage_id)
        if statement is not None:
            statement.job.task_ended()
            statement.tell_progress()

"""Spark's listener bus, read on a queue of its own.

Rules (each learned the hard way): a listener copies a few primitive fields and returns; it makes no JVM call that
can block, holds no lock that a statement holds, runs no action and raises no exception. Java copies them
(``java/JobEvents.java``): an event of twophase's own jobs crosses Py4J once, and no other does.
"""

from __future__ import annotations

import atexit
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from twophase.hooks.events import Event, EventFeed, JobEnded, JobStarted, TaskEnded
from twophase.hooks.statement import Statement
from twophase.redaction import logger
from twophase.spark.afterwards import afterwards
from twophase.spark.jvm.callbacks import JavaCallable
from twophase.spark.jvm.gateway import Jvm, private_name
from twophase.spark.jvm.java_sources import java_object

log = logger("twophase.spark")

_QUEUE = "twophase"
_REMOVE_TIMEOUT = 5.0
#: Seconds between two requests to cancel the jobs of a statement.
CANCEL_INTERVAL = 0.2
#: Seconds that a failed statement waits for its tasks; most end at their next row.
_TASKS_TIMEOUT = 3.0
_TASKS_POLL = 0.01


class JobListener(JavaCallable):
    """The Python side of ``java/JobEvents.java``: it receives the events of twophase's own jobs, each as JSON."""

    class Java:
        implements: ClassVar[list[str]] = ["java.util.function.Consumer"]

    def __init__(self, feed: EventFeed) -> None:
        self._feed = feed

    def accept(self, event: str) -> None:
        if not self._feed.is_watching:
            return
        try:
            self._feed.queue.put(_event(json.loads(event)))
        except Exception:
            log.debug("A Spark event was not understood", exc_info=True)


def _event(facts: Mapping[str, Any]) -> Event:
    if "stage" in facts:
        return TaskEnded(facts["stage"])
    if "stages" in facts:
        stages = tuple((stage, tasks) for stage, tasks in facts["stages"])
        return JobStarted(facts["job"], tuple(facts["tags"]), stages)
    return JobEnded(facts["job"], facts.get("error"))


class JobTracker:
    """Tags the jobs of statements and follows them through Spark's events.

    Parameters
    ----------
    jvm : Jvm
        JVM of any session of a context: one tracker serves all attached ones.
    """

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._sc = jvm.spark.sparkContext
        self.feed = EventFeed()
        self._listener = java_object(jvm, "JobEvents")
        self._listener.tell(JobListener(self.feed))
        self._bus = self._sc._jsc.sc().listenerBus()
        self._over = threading.Event()
        # Started now: at exit Python 3.12 and later start no thread. A forked child has none, and removes nothing.
        self._remover = threading.Thread(target=self._remove, name="twophase-listener-removal", daemon=True)
        self._remover.start()
        self._bus.addToQueue(self._listener, _QUEUE)
        # Spark outlives a job that does not stop it, and would log an error for each event without a receiver.
        atexit.register(self.close)

    @contextmanager
    def scope(self, statement: Statement) -> Iterator[None]:
        """Run a statement's write: its jobs carry the statement's tag, and its status follows their events."""
        tag = statement.job.tag
        self.feed.watch(statement)
        try:
            with afterwards(lambda: self._sc.removeJobTag(tag)):
                self._sc.addJobTag(tag)
                try:
                    yield
                except BaseException:
                    self._await_tasks(tag, _TASKS_TIMEOUT)
                    raise
        finally:
            self.feed.unwatch(statement)

    def cancel(self, statement: Statement) -> None:
        """Ask Spark to cancel the statement's jobs; harmless if it has none."""
        self._sc.cancelJobsWithTag(statement.job.tag)

    def cancel_all(self, statements: Iterable[Statement], reason: str) -> None:
        """Ask Spark to cancel the jobs of some statements.

        Parameters
        ----------
        statements : iterable of Statement
        reason : str
            The reason shown to hooks as ``job.cancel_reason``.
        """
        for statement in statements:
            statement.job.job_cancelled(reason)
            try:
                self.cancel(statement)
            except Exception:
                log.debug("Cancelling %s failed", statement.job.tag, exc_info=True)

    def cancel_transaction(self, transaction_id: str, reason: str) -> None:
        """Cancel the jobs of a transaction's statements until they have ended: one may be before its first job."""
        while running := [s for s in self.feed.statements() if s.transaction.id == transaction_id]:
            self.cancel_all(running, reason)
            if self._over.wait(CANCEL_INTERVAL):
                return

    def _await_tasks(self, tag: str, seconds: float) -> None:
        """Wait, bounded, until the tasks of failed jobs have ended.

        Spark does not wait for them: a task that opens its file after the staging path was removed recreates it.
        """
        deadline = time.monotonic() + seconds
        try:
            while self._has_tasks(tag) and time.monotonic() < deadline:
                time.sleep(_TASKS_POLL)
        except Exception:
            log.debug("Whether tasks still run cannot be determined; the context is probably stopped", exc_info=True)

    def _has_tasks(self, tag: str) -> bool:
        status = self._sc.statusTracker()
        with private_name("SparkStatusTracker.getJobIdsForTag", self._jvm.spark):
            jobs = [status.getJobInfo(job) for job in self._sc._jsc.sc().statusTracker().getJobIdsForTag(tag)]
        stages = [status.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return any(stage.numActiveTasks for stage in stages if stage)

    def close(self) -> None:
        """Remove the listener, from a helper thread and with a timeout: ``spark.stop()`` must never wait for us."""
        atexit.unregister(self.close)
        self.feed.close()
        self._over.set()
        self._remover.join(_REMOVE_TIMEOUT)

    def _remove(self) -> None:
        self._over.wait()
        try:
            self._bus.removeListener(self._listener)
        except Exception:
            log.debug("The listener could not be removed; the context is probably stopped", exc_info=True)

"""Spark's listener bus, read on a queue of its own.

Rules (each was learned the hard way): a listener copies a few primitive fields and returns; it makes no JVM call that
can wait, holds no lock that a statement holds, runs no action and lets no exception out. Each crossing of Py4J makes a
new Java proxy, so what is registered is one Java object before it, which can be removed again.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from twophase.hooks.events import EventFeed, JobEnded, JobStarted, TaskEnded
from twophase.hooks.statement import Statement
from twophase.redaction import logger
from twophase.spark.afterwards import afterwards
from twophase.spark.jvm.bridge import Jvm, private_name
from twophase.spark.jvm.callbacks import JavaCallable
from twophase.spark.jvm.remembering import NEVER_ASKED, remembering

log = logger("twophase.spark")

_QUEUE = "twophase"
#: Events that we do not want; those of later versions fall through ``__getattr__``.
_UNWANTED = dict.fromkeys(
    (
        *("onApplicationEnd", "onApplicationStart", "onBlockManagerAdded", "onBlockManagerRemoved", "onBlockUpdated"),
        *("onEnvironmentUpdate", "onExecutorAdded", "onExecutorMetricsUpdate", "onExecutorRemoved", "onOtherEvent"),
        *("onSpeculativeTaskSubmitted", "onStageCompleted", "onStageExecutorMetrics", "onStageSubmitted"),
        *("onTaskGettingResult", "onTaskStart", "onUnpersistRDD"),
    ),
    NEVER_ASKED,
)
_REMOVE_TIMEOUT = 5.0
#: Seconds that a statement that failed waits for its tasks; most end at their next row.
_TASKS_TIMEOUT = 3.0
_TASKS_POLL = 0.01


class _Listener(JavaCallable):
    """The Python side of a ``SparkListenerInterface``."""

    class Java:
        implements = ["org.apache.spark.scheduler.SparkListenerInterface"]

    def __init__(self, feed: EventFeed) -> None:
        self._feed = feed

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on"):
            raise AttributeError(name)
        return _ignore

    def onJobStart(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        self._copy(self._job_start, event)

    def onJobEnd(self, event: Any) -> None:  # noqa: N802
        self._copy(self._job_end, event)

    def onTaskEnd(self, event: Any) -> None:  # noqa: N802
        self._copy(self._task_end, event)

    def equals(self, other: Any) -> bool:
        return self is other

    def hashCode(self) -> int:  # noqa: N802
        return id(self) & 0x7FFFFFFF

    def toString(self) -> str:  # noqa: N802
        return "twophase listener"

    def _copy(self, copier: Callable[[Any], None], event: Any) -> None:
        if not self._feed.is_watching:
            return
        try:
            copier(event)
        except Exception:
            log.debug("A Spark event was not understood", exc_info=True)

    def _job_start(self, event: Any) -> None:
        tags = _tags(event.properties())
        if not any(tag.startswith("twophase-") for tag in tags):
            return
        infos = event.stageInfos()
        stages = tuple((infos.apply(i).stageId(), infos.apply(i).numTasks()) for i in range(infos.size()))
        self._feed.queue.put(JobStarted(event.jobId(), tags, stages))

    def _job_end(self, event: Any) -> None:
        result = event.jobResult()
        failed = result.getClass().getSimpleName() == "JobFailed"
        self._feed.queue.put(JobEnded(event.jobId(), str(result.exception().getMessage()) if failed else None))

    def _task_end(self, event: Any) -> None:
        if event.taskInfo().successful():
            self._feed.queue.put(TaskEnded(event.stageId()))


def _ignore(*_: Any) -> None:
    return None


def _tags(properties: Any) -> tuple[str, ...]:
    text = properties.getProperty("spark.job.tags") if properties is not None else None
    return tuple(text.split(",")) if text else ()


class JobTracker:
    """Tags the jobs of statements and follows them through Spark's events.

    Parameters
    ----------
    jvm : Jvm
        Of any session of a context: one tracker serves all attached ones.
    """

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._sc = jvm.spark.sparkContext
        self.feed = EventFeed()
        self._listener = remembering(jvm, _Listener(self.feed), _UNWANTED)
        self._bus = self._sc._jsc.sc().listenerBus()
        self._over = threading.Event()
        # Started now: at exit Python 3.12 and later start no thread. A forked child has none, and removes nothing.
        self._remover = threading.Thread(target=self._remove, name="twophase-listener-removal", daemon=True)
        self._remover.start()
        self._bus.addToQueue(self._listener, _QUEUE)
        # Spark outlives a job that does not stop it, and would log an error for each event that nobody hears.
        atexit.register(self.close)

    @contextmanager
    def scope(self, statement: Statement) -> Iterator[None]:
        """Around a statement's write: its jobs carry the statement's tag, and its status follows their events."""
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
        """Ask Spark to cancel the statement's jobs; harmless when it has none."""
        self._sc.cancelJobsWithTag(statement.job.tag)

    def _await_tasks(self, tag: str, seconds: float) -> None:
        """Wait, bounded, until the tasks of jobs that failed have ended.

        Spark does not wait for them: one that opens its file after the staging area was removed makes it anew.
        """
        deadline = time.monotonic() + seconds
        try:
            while self._has_tasks(tag) and time.monotonic() < deadline:
                time.sleep(_TASKS_POLL)
        except Exception:
            log.debug("Whether tasks still run cannot be told; the context is probably stopped", exc_info=True)

    def _has_tasks(self, tag: str) -> bool:
        status = self._sc.statusTracker()
        with private_name("SparkStatusTracker.getJobIdsForTag", self._jvm.spark):
            jobs = [status.getJobInfo(job) for job in self._sc._jsc.sc().statusTracker().getJobIdsForTag(tag)]
        stages = [status.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return any(stage.numActiveTasks for stage in stages if stage)

    def settle(self, seconds: float) -> bool:
        """Wait, bounded, until past events have arrived: for tidy reports and tests only.

        Parameters
        ----------
        seconds : float
            The longest wait.
        """
        try:
            self._bus.waitUntilEmpty(int(seconds * 1000))
        except Exception:  # a TimeoutException of the JVM
            return False
        return True

    def close(self) -> None:
        """Remove the listener, from a helper thread and with a limit: ``spark.stop()`` must never wait for us."""
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

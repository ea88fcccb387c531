"""Where the time of one statement goes: crossings of Py4J, calls of the metastore, commits of the timeline, by part."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from py4j.clientserver import ClientServerConnection
from sqlalchemy.engine.default import DefaultDialect

from twophase.catalogs import fsync
from twophase.spark.execution.listener import JobListener

#: Part -> the methods in which it spends its time, less that of other parts which they call.
PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "JVM": ((ClientServerConnection, "send_command"),),
    "callbacks": ((ClientServerConnection, "_call_proxy"),),
    "timeline": tuple((DefaultDialect, f"do_{name}") for name in ("begin", "execute", "commit", "rollback")),
    "fsync": ((fsync, "sync"),),
}


@dataclass
class Counts:
    """What one statement did.

    Attributes
    ----------
    calls : collections.Counter
        By method: ``send_command`` is a crossing to the JVM, ``_call_proxy`` one back.
    seconds : collections.Counter
        By part; ``Python`` is the rest.
    total : float
        Seconds.
    metastore : int
        What the embedded metastore wrote into its audit log: a line for each call.
    """

    calls: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    total: float = 0.0
    metastore: int = 0

    def told(self) -> dict[str, Any]:
        """For the table and for JSON."""
        by_part = {part: round(self.seconds[part] * 1000, 1) for part in ("Python", *PARTS)}
        return {
            "to the JVM": self.calls["send_command"],
            "to Python": self.calls["_call_proxy"],
            "metastore": self.metastore,
            "commits": self.calls["do_commit"],
            "fsyncs": self.calls["fsync"],
            "waits": self.calls["sync"],
            "ms": round(self.total * 1000, 1),
            **{f"{part}, ms": taken for part, taken in by_part.items()},
        }


def counted(spark: Any, run: Callable[[], object]) -> Counts:
    """Run a statement, and count on the thread that runs it: the wrappers make it a little slower."""
    counts = Counts()
    heard = _metastore_calls(spark)
    before, begun = heard.getCount(), time.perf_counter()
    with _watching(counts):
        run()
    counts.total = time.perf_counter() - begun
    counts.metastore = heard.getCount() - before
    counts.seconds["Python"] = counts.total - sum(counts.seconds.values())
    return counts


def _metastore_calls(spark: Any) -> Any:
    """What counts them."""
    log4j = spark._jvm.org.apache.logging.log4j
    logger = log4j.LogManager.getContext(False).getLogger("org.apache.hadoop.hive.metastore.HiveMetaStore.audit")
    counting = logger.getAppenders().get("counting")
    if counting is None:
        counting = log4j.core.appender.CountingNoOpAppender.createAppender("counting")
        counting.start()
        logger.addAppender(counting)
        logger.setAdditive(False)
        log4j.core.config.Configurator.setLevel(logger.getName(), log4j.Level.INFO)
    return counting


@contextmanager
def _watching(counts: Counts) -> Iterator[None]:
    watch = _Watch(counts)
    with ExitStack() as patches:
        for part, methods in PARTS.items():
            for owner, name in methods:
                patches.enter_context(patch.object(owner, name, watch.over(getattr(owner, name), part)))
        # Several files are synced at the same time, on other threads.
        synced = patches.enter_context(patch.object(os, "fsync", side_effect=os.fsync))
        yield
        counts.calls["fsync"] = synced.call_count


class _Watch:
    """Follows one statement: from its thread into callbacks, which run on others while it waits."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._threads = [threading.get_ident()]
        #: Of each call that is running, how long others in it have taken.
        self._inner: list[float] = []

    def over(self, method: Any, part: str) -> Any:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            is_callback = part == "callbacks" and not _is_event(*args)
            if not is_callback and thread not in self._threads:
                return method(*args, **kwargs)
            self._threads.append(thread)
            self._inner.append(0.0)
            begun = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                taken = time.perf_counter() - begun
                self._threads.pop()
                # What Python lets go of is told at any time.
                is_release = method.__name__ == "send_command" and args[1].startswith("m\n")
                self._counts.calls["release" if is_release else method.__name__] += 1
                self._counts.seconds[part] += taken - self._inner.pop()
                if self._inner:
                    self._inner[-1] += taken

        return call


def _is_event(connection: Any, target: str, *_: Any) -> bool:
    """Whether Spark's listener bus calls, on a thread of its own."""
    return isinstance(object.__getattribute__(connection.pool[target], "_target"), JobListener)

"""Spark's local properties, which carry the context of a statement on its thread in the JVM.

That thread waits while a callback of it runs, and so does Spark's own code on it: what the callback has read stays true
until the callback itself changes it. There each property is fetched once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: The id of the surrounding transaction.
TRANSACTION = "twophase.transaction"
#: The hints for the write of a statement.
WRITE_HINTS = "twophase.hints"
#: The token of a running statement of ``spark.sql``.
STATEMENT = "twophase.statement"


class _Callbacks(threading.local):
    def __init__(self) -> None:
        #: What each of the thread's callbacks has read; that of a callback inside another one is the last.
        self.read: list[dict[str, str | None]] = []


_callbacks = _Callbacks()


@contextmanager
def read_once() -> Iterator[None]:
    """Run a callback; Spark may have changed the properties since a callback around it."""
    _callbacks.read.append({})
    try:
        yield
    finally:
        _callbacks.read.pop()


def get(context: Any, name: str) -> str | None:
    """A local property of this thread's statement; in a callback that is the thread of the user's call.

    Parameters
    ----------
    context : pyspark.SparkContext
    name : str
    """
    known = _callbacks.read[-1] if _callbacks.read else {}
    if name not in known:
        value = context.getLocalProperty(name)
        known[name] = None if value is None else str(value)
    return known[name]


def put(context: Any, name: str, value: str | None) -> None:
    """Set a local property of this thread's statement, or remove it."""
    for known in _callbacks.read:
        known.pop(name, None)
    context.setLocalProperty(name, value)

"""Attachment of the sessions that are created from an attached one.

A session of ``newSession()`` stays attached for as long as the job holds it. Each run of a streaming query clones a
session, in which it calls the function given to ``foreachBatch``: it is attached with the first call, until the query
has ended.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Parent(Protocol):
    """An attached session from which others are created."""

    def adopt(self, spark: Any, is_over: Callable[[], bool], /) -> object:
        """Attach a session created from this one."""

    def batch(self, spark: Any, is_over: Callable[[], bool], /) -> AbstractContextManager[None]:
        """Run a call of ``foreachBatch``'s function in a session of its own."""


ParentOf = Callable[[Any], Parent | None]

#: Methods that Spark calls by itself, on a thread of its own.
CALLED_BY_SPARK = frozenset({"call"})

#: The local property in which the thread of a streaming query carries the id of its run.
_RUN_PROPERTY = "spark.jobGroup.id"


def patches(parent_of: ParentOf) -> dict[tuple[Any, str], Callable[..., Any]]:
    """The methods that create sessions from others, with their replacements.

    Parameters
    ----------
    parent_of : callable
        Attaches the children of a session; returns None for one that is not attached.
    """
    from pyspark.sql.session import SparkSession
    from pyspark.sql.utils import ForeachBatchFunction

    return {
        (SparkSession, "newSession"): functools.partial(_new_session, parent_of),
        (ForeachBatchFunction, "call"): functools.partial(_call, parent_of),
    }


def _new_session(parent_of: ParentOf, original: Callable[..., Any], spark: Any) -> Any:
    child = original(spark)
    parent = parent_of(spark)
    if parent is not None:
        is_held = weakref.ref(child)
        parent.adopt(copy.copy(child), lambda: is_held() is None)
    return child


def _call(parent_of: ParentOf, original: Callable[..., Any], function: Any, frame: Any, batch: int) -> Any:
    """Run ``ForeachBatchFunction.call``, also of a query that was started before ``attach``."""
    parent = parent_of(function.session)
    if parent is None:
        return original(function, frame, batch)
    from pyspark.sql.session import SparkSession

    context = function.session.sparkContext
    session = SparkSession(context, frame.sparkSession())
    run, queries = context.getLocalProperty(_RUN_PROPERTY), function.session.streams
    with parent.batch(session, lambda: run not in [str(query.runId) for query in queries.active]):
        return original(function, frame, batch)

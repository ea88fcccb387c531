"""Which Python runs the tasks: Spark takes the first ``python3`` of the PATH where none is named."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()


@contextmanager
def own_python(spark: Any) -> Iterator[None]:
    """Around the making of a task of ours: on the local machine it runs in the driver's Python, where none is named.

    Functions of the user run where Spark lets them run.
    """
    context = getattr(spark, "_sc", None)  # none over Spark Connect
    if context is None or not is_own(context):
        yield
        return
    with _lock:
        before, context.pythonExec = context.pythonExec, sys.executable
        try:
            yield
        finally:
            context.pythonExec = before


def is_own(context: Any) -> bool:
    """Whether tasks of ours may run in the driver's Python: on its machine, and where the user named no other."""
    named = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    return is_local(context) and not named


def is_local(context: Any) -> bool:
    """Whether the executors run on the driver's machine."""
    return str(context.master).startswith("local")

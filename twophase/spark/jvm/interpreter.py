"""The Python that runs the tasks: Spark uses the first ``python3`` of the PATH unless one is configured."""

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
    """Create tasks of twophase with the driver's Python, on the local machine if none is configured.

    Functions of the user run in the Python that Spark chooses.
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
    """Return whether twophase tasks may use the driver's Python: on its machine, if the user configured no other."""
    # SparkContext.getConf copies all settings, each by calls of its own, and Py4J logs them.
    named = os.environ.get("PYSPARK_PYTHON") or context._conf.get("spark.pyspark.python")
    return is_local(context) and not named


def is_local(context: Any) -> bool:
    """Return whether the executors run on the driver's machine."""
    return str(context.master).startswith("local")

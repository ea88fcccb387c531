"""Tasks that end with their executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def deadly() -> Any:
    """A function whose first attempt at one partition kills its executor, after other tasks have written theirs.

    It is made in here because an executor cannot import the tests.
    """

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import signal

        import psutil
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from batches
        if context.partitionId() == 3 and context.attemptNumber() == 0:
            executor = next(p for p in psutil.Process().parents() if "java" in p.name())
            os.kill(executor.pid, signal.SIGKILL)

    return rows

"""Executors in processes of their own, and tasks that end with their executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tests.servers import java_of_short_runs

#: Two executors, which start as fast as the other JVMs of the tests; a task runs twice as soon as it can.
CONF = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": " ".join(java_of_short_runs()),
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.task.maxFailures": "10",
}


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

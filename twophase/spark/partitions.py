"""Runs a function over each partition of a DataFrame, on the executors, in Arrow batches.

It is what a catalog writes with whose store Spark's own writers do not know. It needs nothing but the DataFrame, and so
works over Spark Connect, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Gets the partition's number, the same for each attempt of its task, and its batches; returns a number of rows.
Work = Callable[[int, Iterable[pa.RecordBatch]], int]


class SparkPartitions:
    """What an environment lends as ``partition_runner``."""

    def run(self, df: DataFrame, work: Work) -> int:
        """Run ``work`` for each partition, and add its answers up; only those come to the driver.

        A task may run twice, or beside its speculative twin, and may be late: ``work`` must bear that.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
        work : callable
            It is pickled to the executors.

        Returns
        -------
        int
            Sum of the answers.

        Raises
        ------
        PySparkException
            The user's own error, or that of ``work``.
        """
        answers = df.mapInArrow(_Task(work), "rows BIGINT").collect()
        return sum(row[0] for row in answers)


class _Task:
    """The function that Spark calls for a partition."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "a task runs outside an executor"
        rows = self._work(context.partitionId(), batches)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})


def pickled_part(part: Callable[[], Iterator[pa.RecordBatch]]) -> bytes:
    """A part of a read as it travels to an executor."""
    from pyspark.serializers import CloudPickleSerializer

    pickled: bytes = CloudPickleSerializer().dumps(part)
    return pickled


def read_parts(pickled: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What an executor runs to read its parts: they arrive pickled, one a batch."""
    from pyspark.serializers import CloudPickleSerializer

    for batch in pickled:
        for part in batch.column(0).to_pylist():
            yield from CloudPickleSerializer().loads(bytes(part))()

"""Runs a function over each partition of a DataFrame, on the executors, in Arrow batches.

It is used by catalogs whose store Spark's own writers do not support. It needs only the DataFrame, so that it works
over Spark Connect, too.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twophase.spark.execution.executors import require_python
from twophase.spark.jvm.interpreter import own_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Receives the partition's number, the same for each attempt of its task, and its batches; returns a number of rows.
Work = Callable[[int, Iterable[pa.RecordBatch]], int]


class SparkPartitions:
    """The environment's ``partition_runner``."""

    def collect(self, df: DataFrame, work: Callable[[int, Iterable[pa.RecordBatch]], Any]) -> list[Any]:
        """Run ``work`` for each partition, and return its results; only those are sent to the driver.

        If a task runs several times, the result of one attempt is returned, without the output of the others.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
        work : callable
            Receives the partition's number and its batches. It is pickled to the executors, and its results are pickled
            back.

        Raises
        ------
        PySparkException
            The user's own error, or that of ``work``.
        """
        require_python(df.sparkSession)
        df, work = _plainly_named(df, work)
        with own_python(df.sparkSession):
            answers = df.mapInArrow(_Answering(work), "answer BINARY")
        return [pickle.loads(bytes(row[0])) for row in answers.collect()]

    def map(self, df: DataFrame, items: Sequence[str], work: Callable[[Sequence[str]], list[Any]]) -> list[Any]:
        """Run ``work`` over texts on the executors, some at a time.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            Any DataFrame of the session whose executors run it.
        items : sequence of str
        work : callable
            Receives some of the texts, and returns a list.

        Raises
        ------
        PySparkException
            The error of ``work``.
        """
        rows = df.sparkSession.createDataFrame(pa.table({"item": pa.array(items, pa.string())}).to_pandas())
        spread = rows.repartition(max(1, min(len(items) // 25, 200)))
        answers = self.collect(spread, _Each(work))
        return [found for answer in answers for found in answer]

    def run(self, df: DataFrame, work: Work) -> int:
        """Run ``work`` for each partition, and add up its results; only those are sent to the driver.

        A task may run twice, or concurrently with its speculative copy, and may be late: ``work`` must tolerate that.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
        work : callable
            It is pickled to the executors.

        Returns
        -------
        int
            Sum of the results.

        Raises
        ------
        PySparkException
            The user's own error, or that of ``work``.
        """
        return sum(self.collect(df, work))


def _plainly_named(df: DataFrame, work: Callable[[int, Iterable[pa.RecordBatch]], Any]) -> tuple[DataFrame, Any]:
    """Rename columns with special characters: PySpark looks each column up by its unquoted name, and would fail."""
    names = df.columns
    if not any("." in name or "`" in name for name in names):
        return df, work
    return df.toDF(*(f"_{number}" for number in range(len(names)))), _Renamed(work, names)


class _Renamed:
    """Restores the original column names."""

    def __init__(self, work: Callable[[int, Iterable[pa.RecordBatch]], Any], names: Sequence[str]) -> None:
        self._work = work
        self._names = list(names)

    def __call__(self, part: int, batches: Iterable[pa.RecordBatch]) -> Any:
        return self._work(part, (batch.rename_columns(self._names) for batch in batches))


class _Each:
    """Passes the texts of a partition on."""

    def __init__(self, work: Callable[[Sequence[str]], list[Any]]) -> None:
        self._work = work

    def __call__(self, _: int, batches: Iterable[pa.RecordBatch]) -> list[Any]:
        return self._work([item for batch in batches for item in batch.column(0).to_pylist()])


class _Answering:
    """The function that Spark calls for a partition."""

    def __init__(self, work: Callable[[int, Iterable[pa.RecordBatch]], Any]) -> None:
        self._work = work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "a task runs outside an executor"
        answer = pickle.dumps(self._work(context.partitionId(), batches))
        yield pa.RecordBatch.from_pydict({"answer": pa.array([answer], pa.binary())})


def pickled_part(part: Callable[[], Iterator[pa.RecordBatch]]) -> bytes:
    """A part of a read, pickled for an executor."""
    from pyspark.serializers import CloudPickleSerializer

    return CloudPickleSerializer().dumps(part)


def read_parts(pickled: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the parts of an executor: they arrive pickled, one per batch."""
    from pyspark.serializers import CloudPickleSerializer

    for batch in pickled:
        for part in batch.column(0).to_pylist():
            yield from CloudPickleSerializer().loads(bytes(part))()

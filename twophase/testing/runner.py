"""A runner for the tasks of a write without Spark, with all the failures and repetitions that Spark allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

__all__ = ["LocalRunner"]

Work = Callable[[int, Iterable[pa.RecordBatch]], Any]


class TaskFailed(RuntimeError):
    """The error of a task attempt that was made to fail."""


class LocalRunner:
    """A test's ``environment.partition_runner`` for a catalog, with Arrow tables in place of DataFrames.

    A table is split into partitions, and each task is run as Spark may run it: one attempt fails in the middle, two run
    to completion, one of which counts, and another one runs after everything else, with :meth:`run_stragglers`.

    Parameters
    ----------
    partitions : int
        The number of partitions of a table; fewer if it has fewer rows.
    """

    def __init__(self, partitions: int = 2) -> None:
        self._partitions = partitions
        self._late: list[Callable[[], Any]] = []

    def collect(self, df: pa.Table, work: Work) -> list[Any]:
        """Run ``work`` for each partition; return the results of the attempts that count.

        Parameters
        ----------
        df : pyarrow.Table
        work : callable
            Called with the partition's number and its batches; pickled, as if sent to an executor.
        """
        pickled = cloudpickle.dumps(work)
        parts = self._parts(df)
        answers = [self._attempts(pickled, number, part) for number, part in enumerate(parts)]
        self._late += [_attempt(pickled, number, part) for number, part in enumerate(parts)]
        return answers

    def run(self, df: pa.Table, work: Work) -> int:
        """Run ``work`` for each partition; return the sum of the results of the attempts that count.

        Parameters
        ----------
        df : pyarrow.Table
        work : callable
            As for :meth:`collect`; returns a number.
        """
        return sum(self.collect(df, work))

    def map(self, df: Any, items: Sequence[str], work: Callable[[Sequence[str]], list[Any]]) -> list[Any]:
        """Run ``work`` over batches of strings.

        Parameters
        ----------
        df : Any
            Not used.
        items : sequence of str
        work : callable
            Called with some of the strings; returns a list.
        """
        return [answer for item in items for answer in work([item])]

    def run_stragglers(self) -> int:
        """Run the late attempts of all writes so far, ignoring their errors; return their number."""
        late, self._late = self._late, []
        for attempt in late:
            with suppress(Exception):  # The staging path may be gone, and no driver waits for the result any more.
                attempt()
        return len(late)

    def _parts(self, table: pa.Table) -> list[pa.Table]:
        size = max(1, -(-table.num_rows // self._partitions))
        return [table.slice(start, size) for start in range(0, max(1, table.num_rows), size)]

    def _attempts(self, pickled: bytes, number: int, part: pa.Table) -> Any:
        with suppress(TaskFailed):
            _attempt(pickled, number, part, fails=True)()
        _speculative, counts = (_attempt(pickled, number, part)() for _ in range(2))
        return counts


def _attempt(pickled: bytes, number: int, part: pa.Table, *, fails: bool = False) -> Callable[[], Any]:
    return lambda: cloudpickle.loads(pickled)(number, _batches(part, fails))


def _batches(part: pa.Table, fails: bool) -> Iterator[pa.RecordBatch]:
    yield from part.to_batches()
    if fails:
        raise TaskFailed("An executor was lost.")

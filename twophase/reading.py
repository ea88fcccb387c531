"""How the rows of a table are read: by one of Spark's own sources, or in batches that the catalog yields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from twophase.model import ObjectPath, TableDefinition

__all__ = ["BatchReader", "Filter", "ReadSource"]


@dataclass(frozen=True)
class Filter:
    """A condition that a reader may use to leave rows out; Spark looks at the rows again in any case.

    Attributes
    ----------
    operator : str
        ``=``, ``<``, ``<=``, ``>``, ``>=``, ``in``, ``is_null``, ``is_not_null``; or ``and``, ``or`` over ``parts``.
    column : str
        Name of a top-level column; empty for ``and`` and ``or``.
    values : tuple
        What the column is compared with, as Python values (dates, aware datetimes and decimals among them).
    parts : tuple of Filter
    """

    operator: str
    column: str = ""
    values: tuple[Any, ...] = ()
    parts: tuple[Filter, ...] = ()


class BatchReader(ABC):
    """Reads a table of a store that none of Spark's own sources reads; the rows come in Arrow batches."""

    @abstractmethod
    def accepts(self, condition: Filter) -> bool:
        """Whether the store can leave rows out by this condition, and never one that fulfils it."""

    @abstractmethod
    def plan(
        self, columns: Sequence[str], conditions: Sequence[Filter]
    ) -> Sequence[Callable[[], Iterator[pa.RecordBatch]]]:
        """The parts of one read.

        Each is pickled to an executor and called there; it yields batches with these columns, in the types of the
        table's definition.
        """


@dataclass(frozen=True)
class ReadSource:
    """How Spark reads a table of this catalog.

    Attributes
    ----------
    kind : str
        ``session_table``: Spark's own session catalog reads the table ``name``;
        ``files``: files of format ``provider`` under ``location``, partition values in the directory names;
        ``batches``: ``reader`` reads it, on the executors.
    name : ObjectPath, optional
        For ``session_table``.
    provider, location : str, optional
        For ``files``.
    definition : TableDefinition, optional
        For ``files`` and ``batches``: schema, partitioning and options to read with.
    reader : BatchReader, optional
        For ``batches``.
    """

    kind: str
    name: ObjectPath | None = None
    provider: str | None = None
    location: str | None = None
    definition: TableDefinition | None = None
    reader: BatchReader | None = None

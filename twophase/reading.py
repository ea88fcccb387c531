"""How the rows of a table are read: by one of Spark's own sources, or in batches that the catalog yields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from twophase.model import ObjectPath, TableDefinition

__all__ = ["BatchReader", "Deletion", "FileReader", "Filter", "ParquetScan", "ReadSource"]


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
class ParquetScan:
    """What one read opens.

    Attributes
    ----------
    locations : sequence of str
        Of Parquet files whose every field has an id.
    schema : pyarrow.Schema
        All columns of the table, each field with its id in ``PARQUET:field_id``: files are read by these, whatever
        names they have.
    by_name : frozenset of str
        Top-level columns that have their present name and type in each of the files, and whose name no other column of
        any of the files has: only conditions on these may be told to the Parquet reader, which goes by names there.
    reuses_names : bool
        Whether a field, at any level, has the name that another one has in some file. Spark's reader finds values by
        ids, but looks for their types by names, too.
    has_gaps : bool
        Whether some file may lack all present fields of a struct: Spark before 4.3 reads such a struct as NULL.
    """

    locations: Sequence[str]
    schema: pa.Schema
    by_name: frozenset[str] = frozenset()
    reuses_names: bool = False
    has_gaps: bool = False


class FileReader(ABC):
    """Tells which Parquet files hold the rows of a read; Spark's own reader reads them, by field ids."""

    @property
    @abstractmethod
    def version(self) -> str:
        """What tells this state of the table from all others."""

    @abstractmethod
    def accepts(self, condition: Filter) -> bool:
        """Whether files can be left out by this condition, and never one with a row that fulfils it."""

    @abstractmethod
    def plan(self, conditions: Sequence[Filter]) -> ParquetScan:
        """The files of one read, those left out in which no row can fulfil all conditions."""

    @abstractmethod
    def only(self, files: Collection[str]) -> FileReader:
        """The same state of the table, of which nothing but some files is read."""


@dataclass(frozen=True)
class ReadSource:
    """How Spark reads a table of this catalog.

    Attributes
    ----------
    kind : str
        ``session_table``: Spark's own session catalog reads the table ``name``;
        ``files``: files of format ``provider`` under ``location``, partition values in the directory names;
        ``batches``: ``reader`` reads it, on the executors;
        ``parquet``: Spark's own Parquet reader reads the files that ``files`` tells, by field ids.
    name : ObjectPath, optional
        For ``session_table``.
    provider, location : str, optional
        For ``files``.
    definition : TableDefinition, optional
        For ``files``, ``batches`` and ``parquet``: schema, partitioning and options to read with.
    reader : BatchReader, optional
        For ``batches``.
    files : FileReader, optional
        For ``parquet``.
    version : str, optional
        The state of the table that is read, as :meth:`twophase.Catalog.table_version` tells it, where what is read
        stays that whenever it is read. An overwrite of the table by such rows rests on it.
    """

    kind: str
    name: ObjectPath | None = None
    provider: str | None = None
    location: str | None = None
    definition: TableDefinition | None = None
    reader: BatchReader | None = None
    files: FileReader | None = None
    version: str | None = None


@dataclass(frozen=True)
class Deletion:
    """What a ``DELETE FROM ... WHERE`` replaces.

    Attributes
    ----------
    files : tuple of str
        All files that hold rows to be deleted.
    version : str
        The state of the table that they were told of.
    rewritten : ReadSource or None
        The rows of those files that may hold other rows too; None where none does.
    """

    files: tuple[str, ...]
    version: str
    rewritten: ReadSource | None = None

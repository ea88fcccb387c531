"""Sources of a read: one of Spark's own data sources, or batches that the catalog yields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from twophase.model import ObjectPath, TableDefinition

__all__ = ["BatchReader", "Deletion", "FileList", "FileReader", "Filter", "ParquetScan", "ReadSource"]


@dataclass(frozen=True)
class Filter:
    """A condition by which a reader may skip rows; Spark filters the rows again in any case.

    Attributes
    ----------
    operator : str
        ``=``, ``<``, ``<=``, ``>``, ``>=``, ``in``, ``is_null``, ``is_not_null``; or ``and``, ``or`` over ``parts``.
    column : str
        Name of a top-level column; empty for ``and`` and ``or``.
    values : tuple
        The values that the column is compared with, as Python objects (including dates, aware datetimes and decimals).
    parts : tuple of Filter
    """

    operator: str
    column: str = ""
    values: tuple[Any, ...] = ()
    parts: tuple[Filter, ...] = ()


class BatchReader(ABC):
    """A reader, in Arrow batches, for the tables of a store that none of Spark's own data sources can read."""

    @property
    def version(self) -> str | None:
        """Return an identifier of the state of the table that it reads; None if that is the one of each read's time."""
        return None

    @abstractmethod
    def accepts(self, condition: Filter) -> bool:
        """Return whether the store can skip rows by this condition, without ever skipping a row that matches it.

        Parameters
        ----------
        condition : Filter
        """

    @abstractmethod
    def plan(
        self, columns: Sequence[str], conditions: Sequence[Filter]
    ) -> Sequence[Callable[[], Iterator[pa.RecordBatch]]]:
        """Split a read into partitions.

        Parameters
        ----------
        columns : sequence of str
            The columns to read, in this order; at least one: to count rows, it is the first column of the table.
        conditions : sequence of Filter
            The accepted conditions; a row is needed only if it matches all of them.

        Returns
        -------
        sequence of callable
            Each is pickled and called on an executor; it yields batches with exactly these columns, in the types of the
            table's definition.
        """


@dataclass(frozen=True)
class ParquetScan:
    """The files of one read.

    Attributes
    ----------
    locations : sequence of str
        Locations of Parquet files in which every field has an id.
    schema : pyarrow.Schema
        All columns of the table, each field with its id in ``PARQUET:field_id``: columns are matched by these ids,
        whatever their names in the files.
    by_name : frozenset of str
        Top-level columns that have their present name and type in every file, and whose name no other column has in any
        file: only conditions on these may be pushed down to the Parquet reader, which matches them by name.
    reuses_names : bool
        Whether a field, at any level, has the same name as a different field in some file. Spark's reader matches
        values by id, but also looks up their types by name.
    has_gaps : bool
        Whether some file may lack all present fields of a struct: Spark before 4.3 reads such a struct as NULL.
    """

    locations: Sequence[str]
    schema: pa.Schema
    by_name: frozenset[str] = frozenset()
    reuses_names: bool = False
    has_gaps: bool = False


class FileReader(ABC):
    """A planner of the Parquet files to read; Spark's own reader reads them, by field ids."""

    @property
    @abstractmethod
    def version(self) -> str:
        """Return an identifier of this state of the table."""

    @abstractmethod
    def accepts(self, condition: Filter) -> bool:
        """Return whether files can be skipped by this condition, without ever skipping a file with a matching row.

        Parameters
        ----------
        condition : Filter
        """

    @abstractmethod
    def plan(self, conditions: Sequence[Filter]) -> ParquetScan:
        """Return the files of one read, without those in which no row can match all conditions.

        Parameters
        ----------
        conditions : sequence of Filter
            Those that :meth:`accepts` has accepted.
        """

    @abstractmethod
    def only(self, files: Collection[str]) -> FileReader:
        """Return a reader of the same state of the table, limited to some files.

        Parameters
        ----------
        files : collection of str
            Their locations.
        """


@dataclass(frozen=True)
class FileList:
    """Files that a catalog has listed: they are read as they are, and no directory is listed again.

    Attributes
    ----------
    files : tuple of (str, int, int)
        Location, bytes, and modification time in milliseconds of each file.
    partition_columns : tuple of str
        As named in the schema; empty if the table has no partitions.
    partitions : tuple of (tuple of str, str)
        The values, as a metastore stores them, and the directory of each partition: its files are directly in it.
    """

    files: tuple[tuple[str, int, int], ...]
    partition_columns: tuple[str, ...] = ()
    partitions: tuple[tuple[tuple[str, ...], str], ...] = ()


@dataclass(frozen=True)
class ReadSource:
    """The source from which Spark reads a table of this catalog.

    Attributes
    ----------
    kind : str
        ``session_table``: Spark's own session catalog reads the table ``name``;
        ``files``: files of format ``provider`` under ``location``, partition values in the directory names; or
        those that are ``listed``;
        ``batches``: ``reader`` reads the table, on the executors;
        ``parquet``: Spark's own Parquet reader reads the files that ``files`` plans, by field ids.
    name : ObjectPath, optional
        For ``session_table``.
    provider, location : str, optional
        For ``files``; for ``session_table`` the format of the files, if Spark's own file readers read them.
    definition : TableDefinition, optional
        For ``files``, ``batches`` and ``parquet``: schema, partitioning and options to read with.
    reader : BatchReader, optional
        For ``batches``.
    files : FileReader, optional
        For ``parquet``.
    listed : FileList, optional
        For ``files``: exactly these files are read.
    version : str, optional
        The table version that is read, as returned by :meth:`twophase.Catalog.table_version`, if later reads of this
        source always see the same version. An overwrite of the table with rows read from it is validated against it.
    """

    kind: str
    name: ObjectPath | None = None
    provider: str | None = None
    location: str | None = None
    definition: TableDefinition | None = None
    reader: BatchReader | None = None
    files: FileReader | None = None
    listed: FileList | None = None
    version: str | None = None


@dataclass(frozen=True)
class Deletion:
    """The files that a ``DELETE FROM ... WHERE`` replaces.

    Attributes
    ----------
    files : tuple of str
        All files that contain rows to delete.
    version : str
        The table version that they belong to.
    rewritten : ReadSource or None
        The rows of those files that may also contain other rows; None if there are no such files.
    """

    files: tuple[str, ...]
    version: str
    rewritten: ReadSource | None = None

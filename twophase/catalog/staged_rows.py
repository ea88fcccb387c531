"""Rows that Spark's executors stage as Parquet files and read back, for :class:`TransactionalCatalog`.

A task may run twice, concurrently with a speculative attempt, or long after its statement has ended. So each attempt
writes its own file, and only the files reported by the successful attempts are part of the rows.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from twophase.catalog.reading import BatchReader, Filter
from twophase.errors import CatalogError
from twophase.model import ObjectPath

#: Makes a callable that reads some columns of a table's rows on an executor.
Scan = Callable[[pa.Schema], Callable[[], Iterator[pa.RecordBatch]]]


@dataclass(frozen=True)
class StagedRows:
    """The staged rows of one statement, to be loaded into the store.

    Attributes
    ----------
    files : tuple of str
        Absolute paths of Parquet files with exactly these rows; empty if there are no rows.
    schema : pyarrow.Schema
        The columns, in the order of the table.
    """

    files: tuple[str, ...]
    schema: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in batches."""
        return read_files(self.files, self.schema)


class RowsReader(BatchReader):
    """A reader of rows from several sources; each source is one partition of the read.

    Parameters
    ----------
    schema : pyarrow.Schema
        All columns of the table.
    scans : sequence of callable
        For each source, a function that makes a partition for the requested columns.
    """

    def __init__(self, schema: pa.Schema, scans: Sequence[Scan]) -> None:
        self._schema = schema
        self._scans = tuple(scans)

    def accepts(self, condition: Filter) -> bool:
        return False

    def plan(
        self, columns: Sequence[str], conditions: Sequence[Filter]
    ) -> Sequence[Callable[[], Iterator[pa.RecordBatch]]]:
        schema = pa.schema([self._schema.field(name) for name in columns])
        return [scan(schema) for scan in self._scans]


def write_file(directory: str, schema: pa.Schema, number: int, batches: Iterable[pa.RecordBatch]) -> str | None:
    """Write the rows of one task attempt to a file, and return its name; None if there are no rows.

    Parameters
    ----------
    directory : str
    schema : pyarrow.Schema
        The columns of the table; those of the batches are matched by position.
    number : int
        The number of the partition.
    batches : iterable of pyarrow.RecordBatch
    """
    import pyarrow.parquet as pq

    filled = (batch for batch in batches if batch.num_rows)
    if (first := next(filled, None)) is None:
        return None
    name = f"{number:05}-{uuid.uuid4().hex}.parquet"
    with pq.ParquetWriter(os.path.join(directory, name), schema) as writer:
        writer.write_batch(_fitted(first, schema))
        for batch in filled:
            writer.write_batch(_fitted(batch, schema))
    return name


def scan_files(files: tuple[str, ...], schema: pa.Schema) -> Callable[[], Iterator[pa.RecordBatch]]:
    """Make a partition of a read, over staged files, to be run by an executor."""
    return partial(read_files, files, schema)


def read_files(files: Iterable[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of staged files, limited to the columns of ``schema``."""
    import pyarrow.parquet as pq

    for name in files:
        with pq.ParquetFile(name) as file:
            positions = [file.schema_arrow.get_field_index(column) for column in schema.names]
            for batch in file.iter_batches():
                yield _fitted(batch.select(positions), schema)


def require_parquet(path: ObjectPath, schema: pa.Schema) -> None:
    """Refuse columns that cannot be staged.

    Raises
    ------
    CatalogError
        Parquet does not support a column's type.
    """
    import pyarrow.parquet as pq

    for field in schema:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except pa.ArrowException as error:
            raise CatalogError(
                f"Column {field.name} of {path} has the type {field.type}, which cannot be staged.", path=path
            ) from error


def sync(*names: str) -> None:
    """Sync files and directories, so that they survive a power failure."""
    for name in names:
        number = os.open(name, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows in the types and names of the table; Spark's may differ in the maximum size of a string."""
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)

"""Reading through PyIceberg, on the executors: tables with deleted rows, files without ids, rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.table.metadata import TableMetadata

from twophase.catalog.reading import BatchReader, Filter
from twophase.catalogs.lakehouse import definitions, manifests
from twophase.catalogs.lakehouse.errors import reading_metadata
from twophase.catalogs.lakehouse.reading import check_formats, expression_of, version_of
from twophase.catalogs.lakehouse.reading_file import FORMATS, rows_of
from twophase.errors import CatalogError
from twophase.model import ObjectPath


@dataclass(frozen=True)
class IcebergReader(BatchReader):
    """A reader of one snapshot of a table.

    Attributes
    ----------
    io : pyiceberg.io.FileIO
    path : ObjectPath
    metadata : pyiceberg.table.metadata.TableMetadata
    snapshot_id : int
    schema : pyiceberg.schema.Schema
        Schema of the rows.
    """

    io: FileIO
    path: ObjectPath
    metadata: TableMetadata
    snapshot_id: int
    schema: IcebergSchema

    @property
    def version(self) -> str:
        return version_of(self.metadata, self.snapshot_id, self.schema)

    def accepts(self, condition: Filter) -> bool:
        return expression_of(condition, self.schema) is not None

    def plan(
        self, columns: Sequence[str], conditions: Sequence[Filter]
    ) -> Sequence[Callable[[], Iterator[pa.RecordBatch]]]:
        wanted: Any = AlwaysTrue()
        for condition in conditions:
            found = expression_of(condition, self.schema)
            wanted = wanted if found is None else And(wanted, found)
        projected = self.schema.select(*columns)
        with reading_metadata(self.path, self.metadata.location):
            manifests.check_lengths(self.io, manifests.manifests_of(self.io, self.metadata, self.snapshot_id))
        # PyIceberg looks for the columns of conditions in the current schema, where other ones may have their names.
        metadata = self.metadata.model_copy(
            update={"schemas": [self.schema], "current_schema_id": self.schema.schema_id}
        )
        scan = DataScan(metadata, self.io, row_filter=wanted, snapshot_id=self.snapshot_id)
        try:
            tasks = list(scan.plan_files())
        except ValueError as error:
            raise CatalogError(
                f"{self.path} cannot be read: {error}.",
                path=self.path,
                hint="Let the engine that deleted its rows rewrite its files (Iceberg's rewrite_data_files).",
            ) from error
        check_formats(self.path, (file for task in tasks for file in (task.file, *task.delete_files)), FORMATS)
        arrow = definitions.arrow_of(self.schema, self.metadata.last_column_id)
        target = definitions.plain(pa.schema([arrow.field(name) for name in columns]))
        return [IcebergPart(self.io, self.metadata, projected, task, target) for task in tasks]


@dataclass(frozen=True)
class IcebergPart:
    """One file with the deletes that apply to it. It is sent to an executor."""

    io: FileIO
    metadata: TableMetadata
    schema: IcebergSchema
    task: FileScanTask
    target: pa.Schema

    def __call__(self) -> Iterator[pa.RecordBatch]:
        for batch in rows_of(self.task, self.metadata, self.schema, self.io):
            rows = pa.Table.from_batches([batch]).select(self.target.names)
            yield from rows.cast(_nullable(self.target)).to_batches()


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


@dataclass(frozen=True)
class Rows(BatchReader):
    """A reader of rows in memory, such as PyIceberg's metadata tables."""

    table: pa.Table

    def accepts(self, condition: Filter) -> bool:
        return False

    def plan(
        self, columns: Sequence[str], conditions: Sequence[Filter]
    ) -> Sequence[Callable[[], Iterator[pa.RecordBatch]]]:
        chosen = self.table.select(list(columns))
        return [lambda: iter(chosen.to_batches())] if len(chosen) else []

"""Reading of one data file, without rows that were deleted by position, projected to a table's schema.

PyIceberg's projection matches columns by field id and fills in missing ones. Its own file scan cannot be used: it turns
a NULL list of structs into an empty one (apache/iceberg-python#3833), likewise a NULL map to structs, and matches a
struct in a list in a list or map by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowAccessor, ArrowProjectionVisitor, pyarrow_to_schema
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema, prune_columns, visit_with_partner
from pyiceberg.table import FileScanTask, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import ListType, MapType

from twophase.errors import CatalogError

#: The file formats that can be read.
FORMATS = {FileFormat.PARQUET: ds.ParquetFileFormat, FileFormat.ORC: ds.OrcFileFormat}


def rows_of(task: FileScanTask, metadata: TableMetadata, schema: Schema, io: FileIO) -> Iterator[pa.RecordBatch]:
    """The rows of a file that are not deleted.

    Parameters
    ----------
    task : pyiceberg.table.FileScanTask
        The file, with the position delete files that apply to it.
    metadata : pyiceberg.table.metadata.TableMetadata
        Metadata of its table, in format version 1 or 2.
    schema : pyiceberg.schema.Schema
        Schema of the returned rows.
    io : pyiceberg.io.FileIO

    Raises
    ------
    CatalogError
        The columns of the file cannot be determined.
    """
    deleted = _deleted(task, io)
    with io.new_input(task.file.file_path).open() as stream:
        fragment = _format_of(task.file).make_fragment(stream)
        written = _schema_of(task.file, fragment.physical_schema, metadata)
        kept = prune_columns(written, _leaves(schema), select_full_types=False)
        visitor = _projection(kept, _by_partition(task.file, metadata, written))
        columns = [column.name for column in kept.columns]
        scanner = ds.Scanner.from_fragment(fragment, schema=fragment.physical_schema, columns=columns)
        for batch in _without(deleted, scanner.to_batches()):
            shown = visit_with_partner(schema, batch, visitor, ArrowAccessor(kept))
            yield pa.RecordBatch.from_struct_array(shown)


def _projection(kept: Schema, missing: dict[int, Any]) -> _Projection:
    return _Projection(
        kept,
        downcast_ns_timestamp_to_us=True,
        projected_missing_fields=missing,
        allow_timestamp_tz_mismatch=True,
    )


def _schema_of(file: DataFile, physical: pa.Schema, metadata: TableMetadata) -> Schema:
    try:
        return pyarrow_to_schema(
            physical,
            metadata.name_mapping(),
            downcast_ns_timestamp_to_us=True,
            format_version=metadata.format_version,
        )
    except ValueError as error:
        raise CatalogError(
            f"{file.file_path} cannot be read: its columns have no field ids, and its table names none.",
            hint=f"Set the table's property {TableProperties.DEFAULT_NAME_MAPPING}, or let the engine that wrote the "
            "file rewrite it.",
        ) from error


def _format_of(file: DataFile) -> Any:
    return FORMATS[file.file_format]()


def _leaves(schema: Schema) -> set[int]:
    """Ids of the fields to read: all that are not lists or maps themselves."""
    return {number for number in schema.field_ids if not isinstance(schema.find_type(number), (ListType, MapType))}


def _by_partition(file: DataFile, metadata: TableMetadata, written: Schema) -> dict[int, Any]:
    """Values of columns that are missing in a file, taken from its partition."""
    fields = metadata.specs()[file.spec_id].fields
    values = {
        field.source_id: file.partition[place]
        for place, field in enumerate(fields)
        if isinstance(field.transform, IdentityTransform) and field.source_id not in written.field_ids
    }
    return {number: value for number, value in values.items() if value is not None}


def _deleted(task: FileScanTask, io: FileIO) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The deleted positions in the file, counted from 0, in ascending order."""
    found: list[pa.Array] = [pa.array([], pa.int64())]
    for file in task.delete_files:
        with io.new_input(file.file_path).open() as stream:
            fragment = _format_of(file).make_fragment(stream)
            of_this = pc.field("file_path") == task.file.file_path
            found += ds.Scanner.from_fragment(fragment, columns=["pos"], filter=of_this).to_table()["pos"].chunks
    return np.unique(pa.concat_arrays(found).to_numpy())


def _without(
    deleted: np.ndarray[Any, np.dtype[np.int64]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    start = 0
    for batch in batches:
        kept = np.ones(len(batch), np.bool_)
        first, last = np.searchsorted(deleted, (start, start + len(batch)))
        kept[deleted[first:last] - start] = False
        start += len(batch)
        left = batch if first == last else batch.filter(pa.array(kept))
        if len(left):
            yield left


class _Projection(ArrowProjectionVisitor):
    """PyIceberg's projection with two fixes: it loses NULLs, and projects structs only directly in a list or map."""

    def list(self, list_type: ListType, list_array: Any, value_array: Any) -> Any:
        if list_array is None or value_array is None:
            return None
        values = self._cast_if_needed(list_type.element_field, value_array)
        element = self._construct_field(list_type.element_field, values.type)
        return pa.LargeListArray.from_arrays(_offsets(list_array, pa.int64()), values, pa.large_list(element))

    def map(self, map_type: MapType, map_array: Any, key_result: Any, value_result: Any) -> Any:
        if map_array is None or key_result is None or value_result is None:
            return None
        keys = self._cast_if_needed(map_type.key_field, key_result)
        values = self._cast_if_needed(map_type.value_field, value_result)
        kind = pa.map_(
            self._construct_field(map_type.key_field, keys.type),
            self._construct_field(map_type.value_field, values.type),
        )
        return pa.MapArray.from_arrays(_offsets(map_array, pa.int32()), keys, values, kind)


def _offsets(read: Any, kind: pa.DataType) -> pa.Array:
    """Offsets of lists or maps in the array of their values; NULL for one that is NULL."""
    if isinstance(read, pa.FixedSizeListArray):
        places = pa.array((np.arange(len(read) + 1) + read.offset) * read.type.list_size)
    else:
        places = read.offsets
    valid = pa.concat_arrays([read.is_valid(), pa.array([True])])
    return pc.if_else(valid, places.cast(kind), pa.scalar(None, kind))

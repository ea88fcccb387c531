"""What other engines do to a table that PyIceberg itself cannot: rows deleted without rewriting their files."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import TOTAL_DATA_FILES, Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record

_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
)


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_positions(table: Table, positions: list[int]) -> None:
    """Delete rows of the first data file by their positions, as Flink and Spark do in merge-on-read tables."""
    (task, *_) = table.scan().plan_files()
    rows = pa.table({"file_path": [task.file.file_path] * len(positions), "pos": positions}, schema=_POSITIONS)
    _commit(table, _written(table, rows, DataFileContent.POSITION_DELETES, task.file.partition))


def delete_equal(table: Table, column: str, values: list[Any]) -> None:
    """Delete rows by the values of a column, as Flink does with upserts."""
    field = table.schema().find_field(column)
    rows = pa.table({column: values}, schema=pa.schema([table.schema().as_arrow().field(column)]))
    _commit(table, _written(table, rows, DataFileContent.EQUALITY_DELETES, Record(), [field.field_id]))


def append_file(
    table: Table,
    rows: pa.Table,
    partition: Record | None = None,
    row_group_size: int | None = None,
    file_format: FileFormat = FileFormat.PARQUET,
    bounds: Mapping[int, bytes] | None = None,
) -> None:
    """Append a file as it is, as an engine does that leaves out the columns that a partition has one value of.

    With ``bounds``, which are both the lower and the upper ones, it has no other statistics.
    """
    wanted = partition or Record()
    facts: dict[str, Any] = {"row_group_size": row_group_size, "file_format": file_format, "bounds": bounds}
    file = _written(table, rows, DataFileContent.DATA, wanted, **facts)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)


def _written(
    table: Table,
    rows: pa.Table,
    content: DataFileContent,
    partition: Record,
    equality_ids: list[int] | None = None,
    row_group_size: int | None = None,
    file_format: FileFormat = FileFormat.PARQUET,
    bounds: Mapping[int, bytes] | None = None,
) -> DataFile:
    location = f"{table.location()}/data/{uuid.uuid4()}-foreign.{file_format.value.lower()}"
    output = table.io.new_output(location)
    if file_format == FileFormat.AVRO:
        with AvroOutputFile[Record](output, table.schema(), "rows") as blocks:
            blocks.write_block([Record(*row.values()) for row in rows.to_pylist()])
    else:
        with output.create() as stream:
            if file_format == FileFormat.ORC:
                orc.write_table(rows, stream)
            else:
                pq.write_table(rows, stream, row_group_size)
    return DataFile.from_args(
        content=content,
        file_path=location,
        file_format=file_format,
        partition=partition,
        record_count=len(rows),
        file_size_in_bytes=len(table.io.new_input(location)),
        spec_id=0,
        equality_ids=equality_ids,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds=dict(bounds or {}),
        upper_bounds=dict(bounds or {}),
        key_metadata=None,
        split_offsets=None,
        sort_order_id=None,
    )


def _commit(table: Table, file: DataFile) -> None:
    metadata, parent = table.metadata, table.current_snapshot()
    assert parent is not None
    number = metadata.new_snapshot_id()
    output = table.io.new_output(f"{table.location()}/metadata/{uuid.uuid4()}-m0.avro")
    with _DeletesWriter(table.spec(), table.schema(), output, number, "gzip") as writer:
        writer.add(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=number,
                sequence_number=None,
                file_sequence_number=None,
                data_file=file,
            )
        )
    listed = f"{table.location()}/metadata/snap-{number}.avro"
    sequence = metadata.next_sequence_number()
    with write_manifest_list(2, table.io.new_output(listed), number, parent.snapshot_id, sequence, "gzip") as lists:
        lists.add_manifests([writer.to_manifest_file(), *parent.manifests(table.io)])
    snapshot = Snapshot(
        snapshot_id=number,
        parent_snapshot_id=parent.snapshot_id,
        sequence_number=sequence,
        manifest_list=listed,
        summary=Summary(Operation.DELETE, **{TOTAL_DATA_FILES: str(len(list(table.scan().plan_files())))}),
        schema_id=metadata.current_schema_id,
    )
    updates = (
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=number),
    )
    table.catalog.commit_table(table, (), updates)

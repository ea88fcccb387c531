"""The changes that undo a publish through a REST catalog, applied as PyIceberg applies them: without a server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from twophase.catalogs.lakehouse.store_rest import restoring

pytestmark = pytest.mark.quick

ID = NestedField(1, "id", LongType(), required=False)
NAME = NestedField(2, "name", StringType(), required=False)

SCHEMA = (AddSchemaUpdate(schema=Schema(ID, NAME, schema_id=1)), SetCurrentSchemaUpdate(schema_id=-1))
SPEC = (
    AddPartitionSpecUpdate(spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"), spec_id=1)),
    SetDefaultSpecUpdate(spec_id=-1),
)
ORDER = (
    AddSortOrderUpdate(sort_order=SortOrder(SortField(1, IdentityTransform()), order_id=1)),
    SetDefaultSortOrderUpdate(sort_order_id=-1),
)
PROPERTIES = (
    SetPropertiesUpdate(updates={"changed": "now", "added": "now"}),
    RemovePropertiesUpdate(removals=["removed"]),
)


def snapshot(number: int, parent: int | None = None) -> tuple[TableUpdate, ...]:
    """A snapshot, and main set to it."""
    added = Snapshot(
        snapshot_id=number,
        parent_snapshot_id=parent,
        sequence_number=number,
        timestamp_ms=1_800_000_000_000 + number,
        manifest_list=f"file:/lake/t/{number}.avro",
        summary=Summary(Operation.APPEND),
        schema_id=0,
    )
    return AddSnapshotUpdate(snapshot=added), SetSnapshotRefUpdate(
        ref_name=MAIN_BRANCH, type="branch", snapshot_id=number
    )


APPEND = (*snapshot(2, 1), *snapshot(3, 2))
#: A replaced table's snapshots begin anew.
REPLACE = (RemoveSnapshotRefUpdate(ref_name=MAIN_BRANCH), *snapshot(2))


def table(*changes: TableUpdate) -> TableMetadata:
    """A table that was changed since it was made."""
    properties = {"kept": "before", "changed": "before", "removed": "before"}
    made = new_table_metadata(Schema(ID), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:/lake/t", properties)
    return update_table_metadata(made, changes)


def read(metadata: TableMetadata) -> tuple[object, ...]:
    """All of it that a publish changes and readers see."""
    return (
        metadata.current_schema_id,
        metadata.default_spec_id,
        metadata.default_sort_order_id,
        metadata.properties,
        metadata.refs,
        metadata.current_snapshot_id,
        metadata.snapshots,
    )


@pytest.mark.parametrize(
    "changes",
    [SCHEMA, SPEC, ORDER, PROPERTIES, APPEND, REPLACE, (*SCHEMA, *SPEC, *ORDER, *PROPERTIES, *REPLACE)],
    ids=["schema", "spec", "sort order", "properties", "append", "replace", "all"],
)
def test_what_a_publish_has_changed_is_restored(changes: Sequence[TableUpdate]) -> None:
    before = table(*snapshot(1))
    now = update_table_metadata(before, tuple(changes))
    assert read(now) != read(before)
    assert read(update_table_metadata(now, restoring(now, before))) == read(before)


def test_a_table_that_was_empty_is_restored_without_a_snapshot() -> None:
    before = table()
    now = update_table_metadata(before, snapshot(1))
    assert read(update_table_metadata(now, restoring(now, before))) == read(before)
    assert before.current_snapshot_id is None

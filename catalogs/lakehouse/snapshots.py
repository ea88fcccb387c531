"""Snapshots of a table: the one with which a statement begins, and the stamps that mark those of twophase."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import SortOrder

from twophase.catalogs.lakehouse.store import Loaded, Store
from twophase.model import ObjectPath
from twophase.schema import Schema, from_iceberg

CREATE, REPLACE, APPEND, OVERWRITE, DROP = "create", "replace", "append", "overwrite", "drop"
#: A table gets its name, as it is.
RENAME = "rename"
TRANSACTION_ID = "twophase.transaction-id"
PARTICIPANT = "twophase.participant"
#: Other participants of the same transaction whose files were published with it, comma-separated.
CARRIED = "twophase.carried-participants"


@dataclass(frozen=True)
class Seen:
    """A table when a statement began."""

    document: Mapping[str, Any]

    @classmethod
    def document_of(cls, loaded: Loaded) -> dict[str, Any]:
        """The facts that a statement records of its target."""
        metadata = loaded.metadata
        return {
            "uuid": str(metadata.table_uuid),
            "metadata_location": loaded.location,
            "snapshot_id": current_id(metadata),
            "schema": iceberg_document(metadata.schema()),
            "last_column_id": metadata.last_column_id,
        }

    @property
    def snapshot_id(self) -> int | None:
        return self.document["snapshot_id"]

    def loaded(self, store: Store, path: ObjectPath) -> Loaded:
        """The table as it was then; its path is for errors."""
        location = str(self.document["metadata_location"])
        return Loaded(location, store.metadata(path, location))

    @cached_property
    def schema(self) -> Schema:
        return from_iceberg(
            IcebergSchema.model_validate(self.document["schema"]), highest_field_id=self.document["last_column_id"]
        )


def iceberg_document(schema: IcebergSchema | PartitionSpec | SortOrder) -> dict[str, Any]:
    """A schema, a spec or a sort order as plain JSON."""
    return json.loads(schema.model_dump_json(by_alias=True))


def current_id(metadata: TableMetadata) -> int | None:
    snapshot = metadata.current_snapshot()
    return None if snapshot is None else snapshot.snapshot_id


def new_metadata(
    location: str,
    schema: IcebergSchema,
    spec: PartitionSpec,
    properties: Mapping[str, str],
    table_uuid: str,
    sort_order: SortOrder,
) -> TableMetadata:
    """The metadata of a new empty table; the ids of its fields are not reassigned."""
    return TableMetadataV2(
        location=location,
        table_uuid=uuid.UUID(table_uuid),
        schemas=[schema],
        current_schema_id=schema.schema_id,
        last_column_id=schema.highest_field_id,
        partition_specs=[spec],
        default_spec_id=spec.spec_id,
        last_partition_id=max([field.field_id for field in spec.fields], default=999),
        sort_orders=[sort_order],
        default_sort_order_id=sort_order.order_id,
        properties=dict(properties),
    )


def line_of(metadata: TableMetadata, snapshot_id: int | None) -> Iterator[Snapshot]:
    """A snapshot and its ancestors, newest first."""
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    while snapshot_id is not None and (snapshot := known.pop(snapshot_id, None)) is not None:
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def is_ancestor(metadata: TableMetadata, snapshot_id: int | None) -> bool:
    """Return True if a table descends from a snapshot, that is, was neither replaced nor rolled back since."""
    if snapshot_id is None:
        return True
    return any(snapshot.snapshot_id == snapshot_id for snapshot in line_of(metadata, current_id(metadata)))


def of_transaction(metadata: TableMetadata, transaction_id: str) -> int | None:
    """The last snapshot that a transaction has made, of those from which a table descends; None if there is none."""
    line = line_of(metadata, current_id(metadata))
    found = (s.snapshot_id for s in line if s.summary is not None and s.summary.get(TRANSACTION_ID) == transaction_id)
    return next(found, None)


def find_published(metadata: TableMetadata, participant: str) -> Snapshot | None:
    """The snapshot by which a participant was published, if the table still has it."""
    return next((s for s in reversed(metadata.snapshots) if participant in _stamped(s)), None)


def _stamped(snapshot: Snapshot) -> list[str]:
    summary = snapshot.summary
    return [] if summary is None else [summary.get(PARTICIPANT) or "", *(summary.get(CARRIED) or "").split(",")]

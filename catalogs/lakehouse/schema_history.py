"""The versions of a table's schema, from its metadata: that of now, and the earlier files that still exist."""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from twophase.catalog.schema_versions import SchemaVersion
from twophase.catalogs.lakehouse.snapshots import TRANSACTION_ID
from twophase.schema import from_iceberg


def versions(metadata: TableMetadata, history: Iterable[TableMetadata]) -> list[SchemaVersion]:
    """All versions, the oldest first.

    Parameters
    ----------
    metadata : TableMetadata
        That of now.
    history : iterable of TableMetadata
        It, and those before it without a gap, newest first.
    """
    since = _since(history)
    written = _written(metadata)
    found = []
    for schema in sorted(metadata.schemas, key=lambda schema: schema.schema_id):
        snapshot = written.get(schema.schema_id)
        found.append(
            SchemaVersion(
                from_iceberg(schema),
                since.get(schema.schema_id),
                None if snapshot is None else str(snapshot.snapshot_id),
                None if snapshot is None or snapshot.summary is None else snapshot.summary.get(TRANSACTION_ID),
                schema.schema_id == metadata.current_schema_id,
            )
        )
    return found


def id_as_of(metadata: TableMetadata, commit: str) -> int | None:
    """The id of the schema that a snapshot was written with; None if it is not kept.

    Parameters
    ----------
    metadata : TableMetadata
    commit : str
        The snapshot's id, or the transaction's that made it.
    """
    for snapshot in metadata.snapshots:
        made_by = None if snapshot.summary is None else snapshot.summary.get(TRANSACTION_ID)
        if commit in (str(snapshot.snapshot_id), made_by):
            return snapshot.schema_id
    return None


def _since(history: Iterable[TableMetadata]) -> dict[int, float]:
    """When each schema became the table's; not for those that may have been so before the history."""
    since: dict[int, float] = {}
    oldest: TableMetadata | None = None
    for oldest in history:
        since[oldest.current_schema_id] = oldest.last_updated_ms / 1000
    if oldest is not None and oldest.metadata_log:
        for schema in oldest.schemas:
            since.pop(schema.schema_id, None)
    return since


def _written(metadata: TableMetadata) -> dict[int, Snapshot]:
    """The first snapshot of those that are kept, by the schema with which it was written."""
    found: dict[int, Snapshot] = {}
    for snapshot in sorted(metadata.snapshots, key=lambda s: (s.sequence_number or 0, s.timestamp_ms)):
        if snapshot.schema_id is not None:
            found.setdefault(snapshot.schema_id, snapshot)
    return found

"""Read sources for a snapshot of a table, and the snapshot that was current at a time."""

from __future__ import annotations

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from twophase.catalog.reading import ReadSource
from twophase.catalogs.lakehouse import definitions, manifests
from twophase.catalogs.lakehouse.reading import ManifestReader, State
from twophase.catalogs.lakehouse.reading_arrow import IcebergReader
from twophase.errors import CatalogError
from twophase.model import ObjectPath


def source_of(
    io: FileIO, path: ObjectPath, metadata: TableMetadata, snapshot_id: int | None, schema_id: int
) -> ReadSource:
    """Return the source for reading a snapshot of a table with one of its schemas."""
    if metadata.format_version > 2:
        raise CatalogError(
            f"{path} is an Iceberg table of format version {metadata.format_version}, which cannot be read yet.",
            path=path,
            hint="Versions 1 and 2 can be read.",
        )
    schema = metadata.schema_by_id(schema_id)
    assert schema is not None
    definition = definitions.to_definition(metadata, schema)
    found = manifests.manifests_of(io, metadata, snapshot_id)
    if snapshot_id is not None and (manifests.has_deletes(found) or definitions.NAME_MAPPING in metadata.properties):
        reader = IcebergReader(io, path, metadata, snapshot_id, schema)
        return ReadSource("batches", definition=definition, reader=reader)
    return ReadSource(
        "parquet", definition=definition, files=ManifestReader(State.of(io, path, metadata, snapshot_id, schema))
    )


def snapshot_at(path: ObjectPath, metadata: TableMetadata, timestamp: int) -> int:
    """The snapshot that was current at a time, in microseconds since the epoch.

    Raises
    ------
    CatalogError
        There was none, or it has expired.
    """
    snapshot_id = next(
        (log.snapshot_id for log in reversed(metadata.snapshot_log) if log.timestamp_ms * 1000 <= timestamp), None
    )
    if snapshot_id is None or metadata.snapshot_by_id(snapshot_id) is None:
        raise CatalogError(
            f"{path} has no state of that time: it is older than the table, or its retention has ended.", path=path
        )
    return snapshot_id

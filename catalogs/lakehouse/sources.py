"""Read sources for a snapshot of a table, and the snapshot of a version or a time."""

from __future__ import annotations

from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType

from twophase.catalog.reading import ReadSource
from twophase.catalogs.lakehouse import definitions, manifests, snapshots
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.reading import ManifestReader, State
from twophase.catalogs.lakehouse.reading_arrow import IcebergReader
from twophase.errors import CatalogError, VersionNotExistError
from twophase.model import ObjectPath

_KEYS = "identifier-field-ids"


def source_of(
    io: FileIO, path: ObjectPath, metadata: TableMetadata, snapshot_id: int | None, schema_id: int
) -> ReadSource:
    """Return the source for reading a snapshot of a table with one of its schemas, that of all of its rows."""
    schema = metadata.schema_by_id(schema_id)
    assert schema is not None
    return _source(io, path, metadata, snapshot_id, schema)


def _of_any_snapshot(
    io: FileIO, path: ObjectPath, metadata: TableMetadata, snapshot_id: int, schema_id: int
) -> ReadSource:
    """Return the source for reading any snapshot of a table with one of its schemas.

    A column becomes NOT NULL if the current snapshot has no NULL in it; others, and branches, may have some.
    """
    schema = metadata.schema_by_id(schema_id)
    assert schema is not None
    if snapshot_id != snapshots.current_id(metadata):
        shown = _with_nulls(snapshots.iceberg_document(schema), nullable_in_any(metadata))
        schema = IcebergSchema.model_validate(shown)
    return _source(io, path, metadata, snapshot_id, schema)


def nullable_in_any(metadata: TableMetadata) -> set[int]:
    """Return the ids of the fields that are nullable in any schema of a table."""
    return {n for schema in metadata.schemas for n in schema.field_ids if schema.find_field(n).optional}


def _with_nulls(found: Any, nullable: set[int]) -> Any:
    """A part of the document of a schema, with some fields nullable."""
    if isinstance(found, list):
        return [_with_nulls(part, nullable) for part in found]
    if not isinstance(found, dict):
        return found
    shown = {name: _with_nulls(part, nullable) for name, part in found.items()}
    if found.get("id") in nullable:
        shown["required"] = False
    if _KEYS in found:
        shown[_KEYS] = [number for number in found[_KEYS] if number not in nullable]
    return shown


def _source(
    io: FileIO, path: ObjectPath, metadata: TableMetadata, snapshot_id: int | None, schema: IcebergSchema
) -> ReadSource:
    if metadata.format_version > 2:
        raise CatalogError(
            f"{path} is an Iceberg table of format version {metadata.format_version}, which cannot be read yet.",
            path=path,
            hint="Versions 1 and 2 can be read.",
        )
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


def source_as_of(lakehouse: Lakehouse, path: ObjectPath, version: str | None, timestamp: int | None) -> ReadSource:
    """Return the source for reading a table ``VERSION AS OF`` or ``TIMESTAMP AS OF``, of which one is given.

    Parameters
    ----------
    lakehouse : Lakehouse
    path : ObjectPath
    version : str or None
        A snapshot's id, a branch, a tag or a transaction.
    timestamp : int or None
        In microseconds since the epoch.

    Raises
    ------
    TableNotExistError, VersionNotExistError
    CatalogError
        There was no state of that time, or it has expired.
    """
    metadata = lakehouse.require(path).metadata
    io = lakehouse.store.io(metadata.location)
    if version is not None:
        return _of_any_snapshot(io, path, metadata, *_version(lakehouse, path, metadata, version))
    assert timestamp is not None
    snapshot_id = snapshot_at(path, metadata, timestamp)
    return _of_any_snapshot(io, path, metadata, snapshot_id, _schema_of(metadata, snapshot_id))


def _version(lakehouse: Lakehouse, path: ObjectPath, metadata: TableMetadata, version: str) -> tuple[int, int]:
    """Ids of the snapshot and of the schema with which it is read."""
    ref = metadata.refs.get(version)
    if ref is not None:
        # A branch is read with the table's current schema, as in Iceberg.
        is_branch = ref.snapshot_ref_type == SnapshotRefType.BRANCH
        schema = metadata.current_schema_id if is_branch else _schema_of(metadata, ref.snapshot_id)
        return ref.snapshot_id, schema
    number = int(version) if version.lstrip("-").isdigit() else snapshots.of_transaction(metadata, version)
    if number is None or metadata.snapshot_by_id(number) is None:
        raise VersionNotExistError(
            f"{path} has no snapshot, branch or tag {version!r}.",
            path=path,
            hint=f"SELECT snapshot_id FROM {lakehouse.name}.{path}.snapshots shows those that there are.",
        )
    return number, _schema_of(metadata, number)


def _schema_of(metadata: TableMetadata, snapshot_id: int) -> int:
    snapshot = metadata.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return metadata.current_schema_id if snapshot.schema_id is None else snapshot.schema_id

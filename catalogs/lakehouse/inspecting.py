"""Metadata tables: PyIceberg's inspection of a table, in types that Spark supports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField, UnknownType

from twophase.catalogs.lakehouse.manifests import last_seen

#: Names of metadata tables, which follow the table's name.
INSPECTIONS = ("history", "snapshots", "files", "manifests", "partitions", "refs", "metadata_log_entries")


def inspect(table: Table, name: str) -> pa.Table:
    """Return one of the metadata tables."""
    known = _with_partitioned_columns(table)
    own = _OWN.get(name)
    return _shown(own(known) if own else getattr(known.inspect, name)())


def _with_partitioned_columns(table: Table) -> Table:
    """The table with a schema of just the columns by which it is or was partitioned.

    PyIceberg looks for them in the current schema, which may have lost those of an older partitioning. The other
    columns are only needed for ``readable_metrics``, which is not shown.
    """
    metadata = table.metadata
    specs = list(_named_apart(metadata))
    sources = {field.source_id for spec in specs for field in spec.fields}
    schema = IcebergSchema(*(_column(metadata, source) for source in sorted(sources)), schema_id=-1)
    update = {
        "schemas": [*metadata.schemas, schema],
        "current_schema_id": schema.schema_id,
        "partition_specs": specs,
    }
    return _over(table, metadata.model_copy(update=update))


def _over(table: Table, metadata: TableMetadata) -> Table:
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def _column(metadata: TableMetadata, source: int) -> NestedField:
    """A column or nested field, as it was last defined, as a top-level column named by its id."""
    schemas = sorted(metadata.schemas, key=lambda schema: schema.schema_id)
    known = last_seen([*schemas, metadata.schema()], source)
    return known or NestedField(source, f"_{source}", UnknownType(), required=False)


def _named_apart(metadata: TableMetadata) -> Iterator[PartitionSpec]:
    """The partition specs; if two use one name for different fields, the older one's name gets its id as a suffix."""
    names: dict[str, int] = {}
    ordered = sorted(
        metadata.partition_specs, key=lambda spec: (spec.spec_id != metadata.default_spec_id, -spec.spec_id)
    )
    for spec in ordered:
        yield PartitionSpec(*(_renamed(field, names) for field in spec.fields), spec_id=spec.spec_id)


def _renamed(field: PartitionField, names: dict[str, int]) -> PartitionField:
    name = field.name
    while names.setdefault(name, field.field_id) != field.field_id:
        name = f"{name}_{field.field_id}"
    return field.model_copy(update={"name": name})


class _NoRows(Snapshot):
    """An empty snapshot, for a table that has none."""

    def manifests(self, io: Any) -> list[ManifestFile]:
        return []


def _files(table: Table) -> pa.Table:
    snapshot = table.current_snapshot()
    # PyIceberg returns an empty result with columns only if there is no snapshot.
    return table.inspect.files() if snapshot and snapshot.manifests(table.io) else _no_files(table)


def _no_files(table: Table) -> pa.Table:
    return _over(table, table.metadata.model_copy(update={"current_snapshot_id": None})).inspect.files()


def _partitions(table: Table) -> pa.Table:
    metadata = table.metadata
    if metadata.current_snapshot() is None:
        nothing = _NoRows.model_validate({"snapshot-id": -1, "timestamp-ms": 0, "manifest-list": ""})
        table = _over(table, metadata.model_copy(update={"snapshots": [nothing], "current_snapshot_id": -1}))
    found = table.inspect.partitions()
    if len(found) or not metadata.spec().fields:
        return found
    # Without files PyIceberg omits the partition columns.
    partition = _no_files(table).schema.field("partition")
    missing = [field for field in (partition, pa.field("spec_id", pa.int32())) if field.name not in found.schema.names]
    return pa.Table.from_pylist([], pa.schema([*missing, *found.schema]))


_OWN = {"files": _files, "partitions": _partitions}


def _shown(found: pa.Table) -> pa.Table:
    schema = pa.schema(_fields(field for field in found.schema if field.name != "readable_metrics"))
    return found.select(schema.names).cast(schema)


def _fields(fields: Iterable[pa.Field]) -> list[pa.Field]:
    return [pa.field(field.name, _type(field.type), True) for field in fields]


def _type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_timestamp(kind):
        # Iceberg's instants are in UTC, whatever type PyIceberg returns.
        return pa.timestamp("us", tz="UTC")
    return kind

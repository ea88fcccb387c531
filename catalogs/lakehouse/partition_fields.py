"""Partition evolution: ``ADD``, ``DROP`` and ``REPLACE PARTITION FIELD``.

A table's new files are partitioned by the new spec; the others keep theirs, by which they are read and left out. The
names and numbers of new fields are those that Iceberg's own Spark extension gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddPartitionSpecUpdate, SetDefaultSpecUpdate, TableUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform

from twophase.catalog import TableChange
from twophase.catalog.column_changes import OF_PARTITIONING
from twophase.catalogs.lakehouse import definitions
from twophase.errors import CatalogError
from twophase.model import ObjectPath, Transform
from twophase.schema import Schema, to_iceberg


def updates(path: ObjectPath, metadata: TableMetadata, changes: Iterable[TableChange]) -> list[TableUpdate]:
    """The changes of a table's metadata; none if its partitioning stays.

    Raises
    ------
    CatalogError
        A field is there already, or is not there, or cannot be one.
    """
    evolution = _Evolution(path, metadata)
    for change in (change for change in changes if change.kind in OF_PARTITIONING):
        if "old" in change.arguments:
            evolution.drop(change.arguments["old"])
        if "new" in change.arguments:
            evolution.add(change.arguments["new"], change.arguments["name"])
    return evolution.updates()


class _Evolution:
    def __init__(self, path: ObjectPath, metadata: TableMetadata) -> None:
        self._path = path
        self._metadata = metadata
        self._schema: Schema = definitions.schema_of(metadata)
        self._fields = list(metadata.spec().fields)
        self._highest = max(metadata.last_partition_id or 0, definitions.FIRST_SPEC_FIELD - 1)

    def add(self, transform: Transform, name: str | None) -> None:
        made, default = self._field(transform)
        present = next((field for field in self._fields if _is(field, made)), None)
        if present is not None:
            raise self._refused(f"it is partitioned by {present.name} already")
        earlier = (field for spec in self._metadata.partition_specs for field in spec.fields)
        # A field that a table has had before comes back as it was: readers find its values in old files.
        field = next((one for one in earlier if _is(one, made) and name in (None, one.name)), None)
        if field is None:
            self._highest += 1
            field = PartitionField(made.source_id, self._highest, made.transform, name or default)
        self._fields.append(field)

    def drop(self, transform: Transform) -> None:
        found = self._find(transform)
        if found is None:
            names = ", ".join(field.name for field in self._fields) or "nothing"
            shown = ".".join(transform.columns) if transform.name == "identity" else _text(transform)
            raise self._refused(f"it has no partition field {shown}", hint=f"It is partitioned by {names}.")
        self._fields.remove(found)

    def _find(self, transform: Transform) -> PartitionField | None:
        if transform.name == "identity":
            named = ".".join(transform.columns).lower()
            column = next((field.id for field in self._schema if field.name.lower() == named), None)
            by_column = (
                f for f in self._fields if f.source_id == column and isinstance(f.transform, IdentityTransform)
            )
            by_name = (field for field in self._fields if field.name.lower() == named)
            return next(by_column, None) or next(by_name, None)
        made, _ = self._field(transform)
        return next((field for field in self._fields if _is(field, made)), None)

    def _field(self, transform: Transform) -> tuple[PartitionField, str]:
        """A field without its number, and the name that it has if none is given."""
        source = definitions.partition_source(self._path, self._schema, transform)
        made, name = definitions.partition_transform(self._path, transform, source)
        if not made.can_transform(to_iceberg(self._schema).find_type(source.id)):
            raise self._refused(f"there is no {transform.name} of {source.name}, which is {source.type_name}")
        if isinstance(made, BucketTransform):
            name = f"{source.name}_bucket_{made.num_buckets}"
        elif isinstance(made, TruncateTransform):
            name = f"{source.name}_trunc_{made.width}"
        return PartitionField(source.id, 0, made, name), name

    def updates(self) -> list[TableUpdate]:
        metadata = self._metadata
        if self._fields == list(metadata.spec().fields):
            return []
        definitions.check_spec(self._path, self._schema, self._fields)
        same = next((spec for spec in metadata.partition_specs if list(spec.fields) == self._fields), None)
        if same is not None:
            return [SetDefaultSpecUpdate(spec_id=same.spec_id)]
        number = max(spec.spec_id for spec in metadata.partition_specs) + 1
        return [
            AddPartitionSpecUpdate(spec=PartitionSpec(*self._fields, spec_id=number)),
            SetDefaultSpecUpdate(spec_id=number),
        ]

    def _refused(self, why: str, *, hint: str | None = None) -> CatalogError:
        return CatalogError(f"The partitioning of {self._path} was not changed: {why}.", path=self._path, hint=hint)


def _is(one: PartitionField, other: PartitionField) -> bool:
    return (one.source_id, one.transform) == (other.source_id, other.transform)


def _text(transform: Transform) -> str:
    found: Sequence[object] = (*transform.arguments, *transform.columns)
    return f"{transform.name}({', '.join(map(str, found))})"

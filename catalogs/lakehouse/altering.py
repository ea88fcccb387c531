"""``ALTER TABLE``: all of its changes in one new metadata file, or none; by the rules of :mod:`twophase.schema`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSchemaUpdate,
    RemovePropertiesUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableUpdate,
    update_table_metadata,
)

from twophase.catalog import TableChange
from twophase.catalogs.lakehouse import definitions, manifests, publishing
from twophase.catalogs.lakehouse.layout import Place, version_of
from twophase.catalogs.lakehouse.offers import check_writable
from twophase.catalogs.lakehouse.store import Loaded
from twophase.errors import CatalogError
from twophase.model import ObjectPath
from twophase.schema import (
    AddField,
    Change,
    ChangeComment,
    ChangeNullability,
    ChangeType,
    DropField,
    MoveField,
    Position,
    RenameField,
    Schema,
    after,
    apply_changes,
    first,
    to_iceberg,
)
from twophase.schema.errors import UnknownFieldError

if TYPE_CHECKING:
    from twophase.catalogs.lakehouse.catalog import LakehouseCatalog

_OF_THE_TABLE = ("set_property", "remove_property", "set_comment")
_SPARK_FIELD = b"SPARK:field"


def alter(catalog: LakehouseCatalog, path: ObjectPath, changes: Sequence[TableChange]) -> None:
    """Apply changes to a table, all or none; tried again on what another writer made of it meanwhile.

    Raises
    ------
    CatalogError, SchemaError
        A change that is not possible; none was made.
    """
    key = catalog.own_key()

    def changed(loaded: Loaded) -> tuple[str, TableMetadata] | None:
        metadata = loaded.metadata
        check_writable(path, metadata)
        updates = [*_properties(path, metadata, changes), *_schema(path, metadata, changes)]
        if not updates:
            return None
        found = update_table_metadata(metadata, tuple(updates), metadata_location=loaded.location)
        return Place(metadata.location, key).metadata_file(version_of(loaded.location) + 1), found

    publishing.change(catalog.store, catalog.files, path, changed)


# -- properties --------------------------------------------------------------------------------------------------------


def _properties(path: ObjectPath, metadata: TableMetadata, changes: Iterable[TableChange]) -> list[TableUpdate]:
    known = dict(metadata.properties)
    for change in changes:
        key = "comment" if change.kind == "set_comment" else change.arguments.get("key", "")
        value = change.arguments.get("comment") if change.kind == "set_comment" else change.arguments.get("value")
        if change.kind not in _OF_THE_TABLE:
            continue
        if key == "format-version":
            raise CatalogError(f"{path} stays in its format version; nothing was changed.", path=path)
        if change.kind == "remove_property" or value is None:
            known.pop(key, None)
        else:
            known[key] = value
    set_ = {key: value for key, value in known.items() if metadata.properties.get(key) != value}
    gone = [key for key in metadata.properties if key not in known]
    updates: list[TableUpdate] = [SetPropertiesUpdate(updates=set_)] if set_ else []
    return [*updates, RemovePropertiesUpdate(removals=gone)] if gone else updates


# -- columns -----------------------------------------------------------------------------------------------------------


def _schema(path: ObjectPath, metadata: TableMetadata, changes: Iterable[TableChange]) -> list[TableUpdate]:
    wanted = [change for change in changes if change.kind not in _OF_THE_TABLE]
    if not wanted:
        return []
    keys = tuple(dict.fromkeys(field.source_id for field in metadata.spec().fields))
    plain = definitions.schema_of(metadata)
    before = replace(plain, partition_keys=tuple(key for key in keys if key in plain))
    after_ = apply_changes(before, [found for change in wanted for found in _change(path, metadata, before, change)])
    if after_.same_as(before):
        return []
    schema = to_iceberg(replace(after_, partition_keys=()))
    number = max(old.schema_id for old in metadata.schemas) + 1
    return [
        AddSchemaUpdate(schema_=schema.model_copy(update={"schema_id": number})),
        SetCurrentSchemaUpdate(schema_id=number),
    ]


def _change(path: ObjectPath, metadata: TableMetadata, schema: Schema, change: TableChange) -> list[Change]:
    """One change of Spark's, as ours; none where there is nothing to do."""
    make: Mapping[str, Callable[[TableChange], Change | None]] = {
        "add_column": lambda c: _add(path, c),
        "drop_column": lambda c: _drop(schema, c),
        "rename_column": lambda c: RenameField(c.path, c.arguments["name"]),
        "update_column_type": lambda c: ChangeType(c.path, _field(path, c).type),
        "update_column_comment": lambda c: ChangeComment(c.path, c.arguments["comment"]),
        "update_column_nullability": lambda c: _nullability(metadata, schema, c),
        "move_column": lambda c: MoveField(c.path, _position(c) or first()),
    }
    if change.kind not in make:
        raise CatalogError(
            f"{path} cannot be altered: there is no change {change.kind}; nothing was changed.", path=path
        )
    if change.kind in ("add_column", "rename_column"):
        _check_name(path, change.arguments.get("name") or change.path[-1])
    found = make[change.kind](change)
    return [] if found is None else [found]


def _check_name(path: ObjectPath, name: str) -> None:
    if "." in name:
        raise CatalogError(
            f"{path}: the column {name!r} has a dot, which separates the levels of a path; nothing was changed.",
            path=path,
        )


def _field(path: ObjectPath, change: TableChange) -> pa.Field:
    schema: pa.Schema = change.arguments["field"]
    definitions.check_types(path, schema)
    field: pa.Field = definitions.plain(schema).field(0)
    return field


def _add(path: ObjectPath, change: TableChange) -> AddField:
    field = _field(path, change)
    described = (change.arguments["field"].field(0).metadata or {}).get(_SPARK_FIELD)
    if described and "CURRENT_DEFAULT" in json.loads(described).get("metadata", {}):
        raise CatalogError(
            f"{path}: a table of Iceberg's format version 2 has no DEFAULT; nothing was changed.", path=path
        )
    comment = (field.metadata or {}).get(b"comment")
    return AddField(
        change.path,
        field.type,
        nullable=field.nullable,
        comment=None if comment is None else comment.decode(),
        position=_position(change),
    )


def _drop(schema: Schema, change: TableChange) -> DropField | None:
    if change.arguments.get("if_exists"):
        try:
            schema.find(change.path)
        except UnknownFieldError:
            return None
    return DropField(change.path)


def _position(change: TableChange) -> Position | None:
    place = change.arguments.get("position")
    if not place:
        return None
    return first() if place == "first" else after(place.removeprefix("after:"))


def _nullability(metadata: TableMetadata, schema: Schema, change: TableChange) -> ChangeNullability:
    nullable = bool(change.arguments["nullable"])
    return ChangeNullability(change.path, nullable, checked=not nullable and _holds_no_null(metadata, schema, change))


def _holds_no_null(metadata: TableMetadata, schema: Schema, change: TableChange) -> bool:
    """Whether the statistics of all files tell that no row holds NULL there."""
    number = schema.find(change.path).id
    snapshot = metadata.current_snapshot()
    found: list[Any] = [] if snapshot is None else manifests.manifests_of(metadata, snapshot.snapshot_id)
    data = [m for m in found if manifests.is_data(m)]
    files = (entry.data_file for entry in manifests.all_entries(data))
    return all((file.null_value_counts or {}).get(number) == 0 for file in files)

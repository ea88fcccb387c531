"""``ALTER TABLE``: all of its changes in one new metadata file, or none; by the rules of :mod:`twophase.schema`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import (
    AddSchemaUpdate,
    RemovePropertiesUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableUpdate,
    update_table_metadata,
)

from twophase.catalog import TableChange
from twophase.catalogs.lakehouse import definitions, manifests, publishing, sorting
from twophase.catalogs.lakehouse.evolving import keyed
from twophase.catalogs.lakehouse.layout import Place, version_of
from twophase.catalogs.lakehouse.offers import check_writable
from twophase.catalogs.lakehouse.store import Loaded
from twophase.errors import CatalogError, WriteConflictError
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
    SchemaConflictResolutionStrategy,
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
    columns = _Columns(catalog.store.settings.strategy, path, changes)

    def changed(loaded: Loaded) -> tuple[str, TableMetadata] | None:
        metadata = loaded.metadata
        check_writable(path, metadata)
        updates = [*_properties(path, metadata, changes), *columns.updates(metadata)]
        if not updates:
            return None
        found = update_table_metadata(metadata, tuple(updates), metadata_location=loaded.location)
        return Place(metadata.location, key).metadata_file(version_of(loaded.location) + 1), found

    publishing.change(catalog.store, catalog.files, path, changed)


# -- properties --------------------------------------------------------------------------------------------------------


def _properties(path: ObjectPath, metadata: TableMetadata, changes: Iterable[TableChange]) -> list[TableUpdate]:
    known = dict(metadata.properties)
    order: SortOrder | None = None
    for change in changes:
        key = "comment" if change.kind == "set_comment" else change.arguments.get("key", "")
        value = change.arguments.get("comment") if change.kind == "set_comment" else change.arguments.get("value")
        if change.kind not in _OF_THE_TABLE:
            continue
        if key == "format-version":
            raise CatalogError(f"{path} stays in its format version; nothing was changed.", path=path)
        if key == sorting.SORT_ORDER:
            order = UNSORTED_SORT_ORDER if value is None else sorting.parse(path, metadata.schema(), value)
        elif change.kind == "remove_property" or value is None:
            known.pop(key, None)
        else:
            known[key] = value
    set_ = {key: value for key, value in known.items() if metadata.properties.get(key) != value}
    gone = [key for key in metadata.properties if key not in known]
    updates: list[TableUpdate] = [SetPropertiesUpdate(updates=set_)] if set_ else []
    updates += [] if order is None else sorting.updates(metadata, metadata.schema(), order)
    return [*updates, RemovePropertiesUpdate(removals=gone)] if gone else updates


# -- columns -----------------------------------------------------------------------------------------------------------


class _Columns:
    """The changes of columns: what they make of the schema that was there first, and RFC-82 if that changes."""

    def __init__(self, strategy: SchemaConflictResolutionStrategy, path: ObjectPath, changes: Iterable[TableChange]):
        self._strategy = strategy
        self._path = path
        self._changes = [change for change in changes if change.kind not in _OF_THE_TABLE]
        self._start: Schema | None = None
        self._wanted: Schema | None = None

    def updates(self, metadata: TableMetadata) -> list[TableUpdate]:
        """What has to be done to a table as it is now."""
        if not self._changes:
            return []
        now = keyed(definitions.schema_of(metadata), metadata.spec())
        is_first = self._wanted is None
        if self._start is None or self._wanted is None:
            found = [c for change in self._changes for c in _change(self._path, metadata, now, change)]
            self._start, self._wanted = now, apply_changes(now, found)
        if self._wanted.same_as(self._start):
            return []
        schema = self._strategy.resolve(self._start, now, self._wanted, table=str(self._path)).schema
        if not is_first:
            self._look_again(metadata, schema)
        self._keep_sorted(metadata, schema)
        return [] if schema.same_as(now) else _new_schema(metadata, replace(schema, partition_keys=()))

    def _keep_sorted(self, metadata: TableMetadata, schema: Schema) -> None:
        """A column that the sort order names cannot go."""
        gone = [field.source_id for field in metadata.sort_order().fields if field.source_id not in schema]
        if gone:
            raise CatalogError(
                f"{self._path}: its files are sorted by {metadata.schema().find_column_name(gone[0])}; nothing was "
                "changed.",
                path=self._path,
                hint=f"ALTER TABLE ... UNSET TBLPROPERTIES ('{sorting.SORT_ORDER}') first.",
            )

    def _look_again(self, metadata: TableMetadata, schema: Schema) -> None:
        """What became NOT NULL after a look at the rows that there were then."""
        for node in schema:
            before = self._start.get(node.id) if self._start else None
            if not node.nullable and before is not None and before.nullable and not holds_no_null(metadata, node.id):
                raise WriteConflictError(
                    f"{self._path} was not changed: another writer wrote NULL into {node.name} meanwhile.",
                    path=self._path,
                )


def _new_schema(metadata: TableMetadata, schema: Schema) -> list[TableUpdate]:
    number = max(old.schema_id for old in metadata.schemas) + 1
    return [
        AddSchemaUpdate(schema_=to_iceberg(schema).model_copy(update={"schema_id": number})),
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
    checked = not nullable and holds_no_null(metadata, schema.find(change.path).id)
    return ChangeNullability(change.path, nullable, checked=checked)


def holds_no_null(metadata: TableMetadata, number: int) -> bool:
    """Whether the statistics of all files tell that no row holds NULL in a field."""
    snapshot = metadata.current_snapshot()
    found: list[Any] = [] if snapshot is None else manifests.manifests_of(metadata, snapshot.snapshot_id)
    data = [m for m in found if manifests.is_data(m)]
    files = (entry.data_file for entry in manifests.all_entries(data))
    return all((file.null_value_counts or {}).get(number) == 0 for file in files)

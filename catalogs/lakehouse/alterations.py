"""The changes of an ``ALTER TABLE``, of properties and of columns, whatever they are applied to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate, TableUpdate

from twophase.catalog import TableChange
from twophase.catalog.column_changes import OF_PARTITIONING, OF_THE_TABLE, ColumnChanges, gives_default
from twophase.catalogs.lakehouse import definitions, manifests, sorting
from twophase.errors import CatalogError
from twophase.model import ObjectPath
from twophase.schema import Change, Schema, promotion_policy

#: Whether no row has NULL in the field of a number.
HoldsNoNull = Callable[[int], bool]
#: The changes of type that other Iceberg readers follow: there is no other policy to choose.
ONLY_EXACT = promotion_policy("exact", choices=())


# -- properties --------------------------------------------------------------------------------------------------------


def of_properties(path: ObjectPath, changes: Iterable[TableChange]) -> dict[str, str | None]:
    """The properties that are set, or with None removed; without the sort order, which is none in Iceberg.

    Raises
    ------
    CatalogError
        One of them cannot be changed.
    """
    found: dict[str, str | None] = {}
    for change in changes:
        if change.kind not in OF_THE_TABLE or _key(change) == sorting.SORT_ORDER:
            continue
        if _key(change) == "format-version":
            raise CatalogError(f"{path} stays in its format version; nothing was changed.", path=path)
        definitions.check_policy(path, "altered", _key(change), change.arguments.get("value"))
        found[_key(change)] = change.arguments.get("comment" if change.kind == "set_comment" else "value")
    return found


def of_sort_order(changes: Iterable[TableChange]) -> list[TableChange]:
    """The changes that set or remove the sort order."""
    return [c for c in changes if c.kind in OF_THE_TABLE and _key(c) == sorting.SORT_ORDER]


def _key(change: TableChange) -> str:
    return "comment" if change.kind == "set_comment" else str(change.arguments["key"])


def property_updates(metadata: TableMetadata, changes: Mapping[str, str | None]) -> list[TableUpdate]:
    """The changes of a table that set and remove properties; none for what it has already."""
    known = metadata.properties
    wanted = {key: value for key, value in changes.items() if value is not None and known.get(key) != value}
    gone = [key for key, value in changes.items() if value is None and key in known]
    updates: list[TableUpdate] = [SetPropertiesUpdate(updates=wanted)] if wanted else []
    return [*updates, RemovePropertiesUpdate(removals=gone)] if gone else updates


# -- columns -----------------------------------------------------------------------------------------------------------


def of_columns(changes: Iterable[TableChange]) -> list[TableChange]:
    """The changes that are neither of properties nor of the partitioning."""
    return [change for change in changes if change.kind not in (*OF_THE_TABLE, *OF_PARTITIONING)]


def converted(
    path: ObjectPath, schema: Schema, changes: Sequence[TableChange], holds_no_null: HoldsNoNull
) -> list[Change]:
    """The changes of columns in the words of :mod:`twophase.schema`.

    Raises
    ------
    CatalogError
        There is no such change, or Iceberg has no such column.
    """
    for change in changes:
        if change.kind in ("add_column", "rename_column"):
            _check_name(path, change.arguments.get("name") or change.path[-1])
        if gives_default(change):
            raise CatalogError(
                f"{path}: a table of Iceberg's format version 2 has no DEFAULT; nothing was changed.", path=path
            )
    convert = ColumnChanges(path, lambda change: _field(path, change), lambda node: holds_no_null(node.id))
    return convert.convert(schema, changes)


def _check_name(path: ObjectPath, name: str) -> None:
    if "." in name:
        raise CatalogError(
            f"{path}: the column {name!r} has a dot, which separates the levels of a path; nothing was changed.",
            path=path,
        )


def _field(path: ObjectPath, change: TableChange) -> pa.Field:
    schema: pa.Schema = change.arguments["field"]
    definitions.check_types(path, schema)
    return definitions.plain(schema).field(0)


def keep_sorted(path: ObjectPath, before: IcebergSchema, order: SortOrder, schema: Schema) -> None:
    """Refuse to drop a column of the sort order.

    Raises
    ------
    CatalogError
    """
    if (lost := lost_key(before, order, schema)) is not None:
        raise CatalogError(
            f"{path}: its files are sorted by {lost}; nothing was changed.",
            path=path,
            hint=f"ALTER TABLE ... UNSET TBLPROPERTIES ('{sorting.SORT_ORDER}') first.",
        )


def lost_key(before: IcebergSchema, order: SortOrder, schema: Schema) -> str | None:
    """The column of a sort order that a new schema does not have; None if it has all."""
    gone = [field.source_id for field in order.fields if field.source_id not in schema]
    return before.find_column_name(gone[0]) if gone else None


def holds_no_null(io: FileIO, metadata: TableMetadata, number: int) -> bool:
    """Return True if the statistics of all files show that a field is never NULL."""
    snapshot = metadata.current_snapshot()
    found = [] if snapshot is None else manifests.manifests_of(io, metadata, snapshot.snapshot_id)
    data = [m for m in found if manifests.is_data(m)]
    files = (entry.data_file for entry in manifests.all_entries(io, data))
    return all((file.null_value_counts or {}).get(number) == 0 for file in files)

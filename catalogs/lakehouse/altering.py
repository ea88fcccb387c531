"""``ALTER TABLE``: all changes in one new metadata file, by the rules of :mod:`twophase.schema`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, TableUpdate

from twophase.catalog import TableChange
from twophase.catalogs.lakehouse import alterations, definitions, partition_fields, publishing, sorting
from twophase.catalogs.lakehouse.alterations import holds_no_null
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.planning import check_writable
from twophase.catalogs.lakehouse.schema_on_write import keyed
from twophase.catalogs.lakehouse.store import Loaded, Store
from twophase.errors import WriteConflictError
from twophase.model import ObjectPath
from twophase.schema import Schema, apply_changes, to_iceberg


def alter(lakehouse: Lakehouse, path: ObjectPath, changes: Sequence[TableChange]) -> None:
    """Apply changes to a table atomically; retried if another writer has changed it meanwhile.

    Raises
    ------
    CatalogError, SchemaError
        A change is not possible; nothing was changed.
    """
    columns = _Columns(lakehouse.store, path, changes)

    def updates(loaded: Loaded) -> list[TableUpdate]:
        check_writable(path, loaded.metadata)
        return [
            *_properties(path, loaded.metadata, changes),
            *columns.updates(loaded.metadata),
            *partition_fields.updates(path, loaded.metadata, changes),
        ]

    publishing.change(lakehouse, path, updates)


# -- properties --------------------------------------------------------------------------------------------------------


def _properties(path: ObjectPath, metadata: TableMetadata, changes: Sequence[TableChange]) -> list[TableUpdate]:
    updates = alterations.property_updates(metadata, alterations.of_properties(path, changes))
    order: SortOrder | None = None
    for change in alterations.of_sort_order(changes):
        value = change.arguments.get("value")
        order = UNSORTED_SORT_ORDER if value is None else sorting.parse(path, metadata.schema(), value)
    return [*updates, *([] if order is None else sorting.updates(metadata, metadata.schema(), order))]


# -- columns -----------------------------------------------------------------------------------------------------------


class _Columns:
    """The changes of columns: applied to the schema at the start, then resolved by RFC-82 if the table has changed."""

    def __init__(self, store: Store, path: ObjectPath, changes: Iterable[TableChange]) -> None:
        self._store = store
        self._strategy = store.settings.strategy
        self._path = path
        self._changes = alterations.of_columns(changes)
        self._start: Schema | None = None
        self._wanted: Schema | None = None

    def updates(self, metadata: TableMetadata) -> list[TableUpdate]:
        """The updates for the current table."""
        if not self._changes:
            return []
        now = keyed(definitions.schema_of(metadata), metadata.spec())
        is_first = self._wanted is None
        if self._start is None or self._wanted is None:
            has_no_null = partial(self._holds_no_null, metadata)
            found = alterations.converted(self._path, now, self._changes, has_no_null)
            self._start, self._wanted = now, apply_changes(now, found, promotion=alterations.ONLY_EXACT)
        if self._wanted.same_as(self._start):
            return []
        schema = self._strategy.resolve(self._start, now, self._wanted, table=str(self._path)).schema
        if not is_first:
            self._look_again(metadata, schema)
        alterations.keep_sorted(self._path, metadata.schema(), metadata.sort_order(), schema)
        return [] if schema.same_as(now) else _new_schema(metadata, replace(schema, partition_keys=()))

    def _look_again(self, metadata: TableMetadata, schema: Schema) -> None:
        """Repeat the check for NULL of fields that became NOT NULL, as rows may have been added since."""
        for node in schema.walk():
            before = self._start.get(node.id) if self._start else None
            is_new = not node.nullable and before is not None and before.nullable
            if is_new and not self._holds_no_null(metadata, node.id):
                raise WriteConflictError(
                    f"{self._path} was not changed: another writer wrote NULL into {node.name} meanwhile.",
                    path=self._path,
                )

    def _holds_no_null(self, metadata: TableMetadata, number: int) -> bool:
        return holds_no_null(self._store.io(metadata.location), metadata, number)


def _new_schema(metadata: TableMetadata, schema: Schema) -> list[TableUpdate]:
    number = max(old.schema_id for old in metadata.schemas) + 1
    return [
        AddSchemaUpdate(schema_=to_iceberg(schema).model_copy(update={"schema_id": number})),
        SetCurrentSchemaUpdate(schema_id=number),
    ]

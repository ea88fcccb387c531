"""Changes of a table's columns by a write, for the history of its schema."""

from __future__ import annotations

from dataclasses import replace

from twophase.catalog.schema_versions import SchemaChange, TableSchema
from twophase.catalogs.hive.definitions import to_table
from twophase.catalogs.hive.metastore import Metastore
from twophase.catalogs.hive.schema.bringing import plain
from twophase.catalogs.hive.state import CREATE, INSERT, RENAME, WriteState
from twophase.catalogs.hive.tables import MANAGED
from twophase.errors import CatalogError
from twophase.model import ObjectPath, TableDefinition, quote
from twophase.schema import assign_ids
from twophase.schema.errors import SchemaError


def table_schema(metastore: Metastore, path: ObjectPath, definition: TableDefinition) -> TableSchema | None:
    """Return the columns of a table; None if the rules of schema evolution do not know them."""
    table = to_table(path, definition, kind=MANAGED, location="")
    try:
        columns = metastore.columns_of(table)
        if columns is not None:
            return TableSchema(columns.schema, columns.has_ids)
        keys = map(quote, table.partition_columns)
        return TableSchema(assign_ids([plain(field) for field in definition.schema], partition_keys=keys))
    except (CatalogError, SchemaError):
        return None


def schema_change(metastore: Metastore, state: WriteState) -> SchemaChange | None:
    """Return the change of a write; None if it changes rows only, or if its columns are not known."""
    if state.purpose.drops:
        return SchemaChange(None)
    if state.effect == INSERT and not state.brings:
        return None
    after = table_schema(metastore, state.path, state.definition)
    if after is None:
        return None
    if state.before is None or state.effect in (CREATE, RENAME):
        return SchemaChange(after, creates=True)
    before = table_schema(metastore, state.path, state.before.definition)
    is_foreign = state.before.stamp is None
    return SchemaChange(after, None if before is None else replace(before, is_foreign=is_foreign))

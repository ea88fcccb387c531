"""ALTER TABLE for the chaos catalog, on a table document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from twophase.catalog import TableChange
from twophase.errors import CatalogError
from twophase.model import ObjectPath, TableDefinition
from twophase.testing import _rows
from twophase.testing._store import Document

Table = tuple[TableDefinition, pa.Table]


def apply(table: Document, changes: list[TableChange], path: ObjectPath) -> None:
    """Apply all changes to the document, in place; on an error the caller discards the document."""
    state = TableDefinition.from_document(table["definition"]), _rows.decode(table["rows"])
    for change in changes:
        if change.kind not in _KINDS:
            raise CatalogError(f"The chaos catalog cannot {change.kind.replace('_', ' ')}.", path=path)
        try:
            state = _KINDS[change.kind](state, change)
        except (KeyError, IndexError, ValueError, pa.ArrowException) as error:
            raise CatalogError(f"{change.kind} does not fit the table: {error}", path=path) from error
    definition, rows = state
    if len(set(rows.schema.names)) != len(rows.schema.names) or not rows.schema.names:
        raise CatalogError("Column names must be there and differ.", path=path)
    definition = replace(definition, schema=rows.schema)
    table.update(definition=definition.to_document(), rows=_rows.encode(rows), version=f"{table['version']}+")


def _set_property(state: Table, change: TableChange) -> Table:
    definition, rows = state
    key, value = change.arguments["key"], change.arguments["value"]
    return replace(definition, properties={**definition.properties, key: value}), rows


def _remove_property(state: Table, change: TableChange) -> Table:
    definition, rows = state
    kept = {k: v for k, v in definition.properties.items() if k != change.arguments["key"]}
    return replace(definition, properties=kept), rows


def _set_comment(state: Table, change: TableChange) -> Table:
    definition, rows = state
    return replace(definition, comment=change.arguments["comment"]), rows


def _add_column(state: Table, change: TableChange) -> Table:
    definition, rows = state
    field = change.arguments["field"].field(0)
    return definition, rows.append_column(field, pa.nulls(rows.num_rows, field.type))


def _drop_column(state: Table, change: TableChange) -> Table:
    definition, rows = state
    _refuse_partition_column(definition, change)
    return definition, rows.drop_columns([change.path[0]])


def _rename_column(state: Table, change: TableChange) -> Table:
    definition, rows = state
    _refuse_partition_column(definition, change)
    rows.schema.field(change.path[0])  # Raises if it does not exist.
    return definition, rows.rename_columns({change.path[0]: change.arguments["name"]})


def _refuse_partition_column(definition: TableDefinition, change: TableChange) -> None:
    if change.path[0] in definition.partition_columns:
        raise ValueError(f"{change.path[0]} is a partition column")


_KINDS: dict[str, Callable[[Table, TableChange], Any]] = {
    "set_property": _set_property,
    "remove_property": _remove_property,
    "set_comment": _set_comment,
    "add_column": _add_column,
    "drop_column": _drop_column,
    "rename_column": _rename_column,
}

"""ALTER TABLE of a Hive table: the changes that take one metastore call and touch no files.

All other changes need Spark's own ``ALTER TABLE``, on the table's name in the session catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from twophase.catalog import TableChange
from twophase.catalog.column_changes import OF_PARTITIONING
from twophase.catalogs.hive.schema import evolution
from twophase.catalogs.hive.stamps import STAMP, StampChangedError
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import HiveTable
from twophase.errors import CatalogError, WriteConflictError
from twophase.model import ObjectPath


def apply(store: HiveStore, load: Callable[[], HiveTable], changes: Sequence[TableChange], path: ObjectPath) -> None:
    """Apply all changes atomically, in one call.

    Parameters
    ----------
    store : HiveStore
    load : callable
        Loads the table: once more if another writer has changed it before the call.
    changes : sequence of TableChange
    path : ObjectPath

    Raises
    ------
    CatalogError
        A change is not supported, or the changes would take two calls.
    WriteConflictError
        Other writers changed the table each time before the call; nothing was changed.
    """
    try:
        _apply(store, load(), changes, path)
    except StampChangedError:
        _apply_again(store, load(), changes, path)
    store.metastore.changed(path.database, path.name)


def _apply_again(store: HiveStore, table: HiveTable, changes: Sequence[TableChange], path: ObjectPath) -> None:
    try:
        _apply(store, table, changes, path)
    except StampChangedError as error:
        raise WriteConflictError(
            f"{path} was not altered: other writers changed it meanwhile, twice.",
            path=path,
            hint="Run the statement again.",
        ) from error


def _apply(store: HiveStore, table: HiveTable, changes: Sequence[TableChange], path: ObjectPath) -> None:
    wanted = altered(store, table, changes, path)
    if wanted is not table:
        store.metastore.alter_definition(wanted)


def altered(store: HiveStore, table: HiveTable, changes: Sequence[TableChange], path: ObjectPath) -> HiveTable:
    """Return a table after all changes; the same object if there are none.

    Raises
    ------
    CatalogError
        A change is not supported, or the changes would take two calls.
    """
    if changes and all(change.kind in evolution.KINDS for change in changes):
        evolved = evolution.evolved(store, table, changes, path)
        if evolved is not None:
            return evolved
    result = table
    for change in changes:
        result = _with(result, change, path)
    columns = not result.schema.equals(table.schema, check_metadata=True)
    facts = (result.properties, result.comment) != (table.properties, table.comment)
    if columns and facts:
        raise _refused(path, "Columns and properties cannot change in one step")
    return result if columns or facts else table


def _with(table: HiveTable, change: TableChange, path: ObjectPath) -> HiveTable:
    if change.kind in OF_PARTITIONING:
        raise CatalogError(
            f"{path} was not altered: its files are in the directories of its partition columns, where they would "
            "have to move.",
            path=path,
            hint=f"To write them anew, in one step: CREATE OR REPLACE TABLE {path} USING {table.provider} "
            f"PARTITIONED BY (...) AS SELECT * FROM {path}.",
        )
    if change.kind not in _KINDS:
        raise _refused(path, f"A Hive catalog cannot {change.kind.replace('_', ' ')}")
    return _KINDS[change.kind](table, change, path)


def _refused(path: ObjectPath, why: str) -> CatalogError:
    return CatalogError(
        f"{path} was not altered: {why}.",
        path=path,
        hint=f"For a table of the session's own metastore, Spark's statement is: ALTER TABLE spark_catalog.{path} ...",
    )


def _key(change: TableChange, path: ObjectPath) -> str:
    key = str(change.arguments["key"])
    if key == STAMP:
        raise _refused(path, f"{STAMP} is how twophase knows its tables")
    return key


def _set_property(table: HiveTable, change: TableChange, path: ObjectPath) -> HiveTable:
    return replace(table, properties={**table.properties, _key(change, path): str(change.arguments["value"])})


def _remove_property(table: HiveTable, change: TableChange, path: ObjectPath) -> HiveTable:
    gone = _key(change, path)
    return replace(table, properties={key: value for key, value in table.properties.items() if key != gone})


def _set_comment(table: HiveTable, change: TableChange, path: ObjectPath) -> HiveTable:
    return replace(table, comment=change.arguments["comment"])


def _add_column(table: HiveTable, change: TableChange, path: ObjectPath) -> HiveTable:
    if len(change.path) > 1 or change.arguments.get("position"):
        raise _refused(path, "A Hive table takes new columns only behind its last one")
    field = change.arguments["field"].field(0)
    if field.name.lower() in {name.lower() for name in table.schema.names}:
        raise _refused(path, f"It has a column {field.name} already")
    if not field.nullable or any(b"CURRENT_DEFAULT" in fact for fact in (field.metadata or {}).values()):
        raise _refused(path, f"Old files have no values for {field.name}, which must be nullable and without a default")
    width = len(table.schema) - len(table.partition_columns)
    return replace(table, schema=table.schema.insert(width, field))


def _update_comment(table: HiveTable, change: TableChange, path: ObjectPath) -> HiveTable:
    if len(change.path) > 1 or change.path[0] not in table.schema.names:
        raise _refused(path, f"There is no column {'.'.join(change.path)} at the top of it")
    index = table.schema.names.index(change.path[0])
    field = table.schema.field(index)
    comment: Any = change.arguments["comment"]
    metadata: dict[bytes, bytes] = {**(field.metadata or {}), b"comment": str(comment or "").encode()}
    return replace(table, schema=table.schema.set(index, field.with_metadata(metadata)))


_KINDS: dict[str, Callable[[HiveTable, TableChange, ObjectPath], HiveTable]] = {
    "set_property": _set_property,
    "remove_property": _remove_property,
    "set_comment": _set_comment,
    "add_column": _add_column,
    "update_column_comment": _update_comment,
}

__all__ = ["altered", "apply"]

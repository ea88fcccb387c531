"""Inserts that bring columns and wider types to their table (``mergeSchema``): matched by name, at every level."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from twophase.catalog.spark_columns import collated_types, has_collation, spark_field
from twophase.catalogs.hive import ddl
from twophase.catalogs.hive.schema import policies
from twophase.catalogs.hive.schema.columns import DEFAULTS, Columns, is_plain
from twophase.catalogs.hive.schema.evolution import ALTER, Evolution
from twophase.catalogs.hive.schema.readers import has_default, reads, unread
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import HiveTable
from twophase.errors import CatalogError
from twophase.model import ObjectPath, TableDefinition, quote
from twophase.schema import AddField, Change, ChangeType, ReconcilePolicy, assign_ids, reconcile
from twophase.schema.errors import SchemaError
from twophase.schema.names import fold

_DEFAULT = DEFAULTS[0]
#: In Spark's JSON of a column.
_HAS_LENGTH = re.compile(r"\b(var)?char\(\d+\)")


@dataclass(frozen=True)
class Brought:
    """The change of a table by an insert whose rows are matched by name.

    Parameters
    ----------
    schema : pyarrow.Schema
        All columns after the publish.
    fits : tuple of str
        The columns, as SQL over the rows.
    is_new : bool
        Whether these are other columns than before.
    """

    schema: pa.Schema
    fits: tuple[str, ...]
    is_new: bool


def plan(store: HiveStore, table: HiveTable, path: ObjectPath, rows: TableDefinition) -> Brought:
    """Fit the rows of an insert to a table, and the table to the rows.

    Parameters
    ----------
    store : HiveStore
    table : HiveTable
    path : ObjectPath
    rows : TableDefinition
        The columns of the rows.

    Raises
    ------
    CatalogError
        The table cannot have these columns, or not natively.
    """
    columns = store.metastore.columns_of(table)
    schema = assign_ids([plain(field) for field in table.schema]) if columns is None else columns.schema
    try:
        # As for ALTER TABLE: what Spark's reader widens, if the user allows it.
        policy = ReconcilePolicy(promotion=policies.native(store, table, path))
        found = reconcile(schema, _incoming(path, rows.schema, table.schema), policy)
        evolved = table.schema
        if found.changes:
            evolved = _evolved(store, table, path, columns, found.changes)
    except SchemaError as error:
        raise CatalogError(f"{path} was not written: {error}", path=path) from error
    by_name = dict(zip((fold(node.name) for node in found.schema), found.plan.spark_expressions(), strict=True))
    given = {fold(name) for name in rows.schema.names}
    fits = (by_name[fold(field.name)] if fold(field.name) in given else _missing(field) for field in evolved)
    return Brought(evolved, tuple(fits), bool(found.changes))


def _evolved(
    store: HiveStore, table: HiveTable, path: ObjectPath, columns: Columns | None, changes: tuple[Change, ...]
) -> pa.Schema:
    if columns is None:
        raise CatalogError(
            f"{path} was not written: its rows have other columns, which only a Parquet or ORC table of the "
            "session's metastore gets in one step with them.",
            path=path,
            hint=f"Add them before: ALTER TABLE {path} ADD COLUMNS (...)",
        )
    return store.metastore.with_columns(table, _Bringing(table, path, columns, store).bring(changes)).schema


class _Bringing(Evolution):
    """The changes of one write: what ``ALTER TABLE`` could make without touching a file."""

    def refused(self, why: str, *, hint: str | None = None) -> CatalogError:
        return CatalogError(f"{self._path} was not written: {why}.", path=self._path, hint=hint)

    def _rewrite(self, why: str) -> None:
        hint = (
            f"Rewrite the table before: ALTER TABLE {self._path} SET TBLPROPERTIES ('{ALTER}' = 'rewrite'), and then "
            f"ALTER TABLE {self._path} ... for this column."
        )
        raise self.refused(why, hint=hint)

    def bring(self, changes: Sequence[Change]) -> Columns:
        """Apply the changes of a reconciliation, and return the columns after them."""
        for change in changes:
            if isinstance(change, AddField):
                self._bring_new(change)
            else:
                assert isinstance(change, ChangeType)  # The policy of a write changes nothing else.
                self._widen(change)
        return Columns(self._schema, self._has_ids, tuple(self._used))

    def _bring_new(self, change: AddField) -> None:
        assert not isinstance(change.path, (str, int))
        above = () if change.parent is None else self._schema.path_of(change.parent)
        path = (*above, *map(str, change.path))
        self._check_name(path, None)
        anchor = None if change.position is None else change.position.anchor
        beside = self._schema.by_id(anchor).name if isinstance(anchor, int) else str(anchor or "")
        is_last = beside.lower() in self._partition or (
            self._provider == "parquet" and any(map(has_default, self._schema))
        )
        self._do(replace(change, position=self._last()) if len(path) == 1 and is_last else change)

    def _widen(self, change: ChangeType) -> None:
        node = self._schema.find(change.path)
        path = self._schema.path_of(node.id)
        if path[0].lower() in self._layout:
            raise self.refused(f"its files are laid out by {path[0]}, which stays as it is")
        if node.leaf is not None and not reads(self._provider, node.leaf, change.type):
            self._rewrite(unread(node.leaf, change.type, ".".join(path)))
        self._do(change)


# -- the rows ----------------------------------------------------------------------------------------------------------


def _incoming(path: ObjectPath, rows: pa.Schema, table: pa.Schema) -> pa.Schema:
    """The columns of the rows for the rules; a type that those do not know is the table's own, or refused."""
    known = {fold(field.name): field for field in table}
    return pa.schema([_checked(path, field, known.get(fold(field.name))) for field in rows])


def _checked(path: ObjectPath, field: pa.Field, column: pa.Field | None) -> pa.Field:
    if column is None:
        return _new(path, field)
    # A void is NULL, which a column of any known type takes.
    known = _is_known(column) and _is_known(field, "void")
    if _HAS_LENGTH.search(json.dumps(spark_field(column))):
        raise CatalogError(
            f"{path} was not written: {column.name} has the type {ddl.sql_type(column)}, whose length is checked only "
            "where the rows have the columns of the table.",
            path=path,
            hint=f"Add the new columns before: ALTER TABLE {path} ADD COLUMNS (...), and insert without mergeSchema.",
        )
    if not known:
        if spark_field(field).get("type") != spark_field(column).get("type"):
            raise CatalogError(
                f"{path} was not written: {field.name} is {ddl.sql_type(field)} in its rows, and "
                f"{ddl.sql_type(column)} in the table.",
                path=path,
                hint="Cast it to the type of the table.",
            )
        return plain(field)
    return pa.field(field.name, field.type, field.nullable)


def _new(path: ObjectPath, field: pa.Field) -> pa.Field:
    if not _is_known(field) or has_collation(field):
        collated = collated_types(spark_field(field)) if pa.types.is_string(field.type) else []
        kind = next(iter(collated), None) or ddl.sql_type(field)
        raise CatalogError(
            f"{path} was not written: the rules of schema evolution do not know the type of its new column "
            f"{field.name}.",
            path=path,
            hint=f"Add it before: ALTER TABLE {path} ADD COLUMN {quote(field.name)} {kind}",
        )
    comment = (field.metadata or {}).get(b"comment")
    return pa.field(field.name, field.type, field.nullable, None if comment is None else {b"comment": comment})


def _is_known(field: pa.Field, *also: str) -> bool:
    described = spark_field(field).get("type")
    return described is None or is_plain(described, *also)


def plain(field: pa.Field) -> pa.Field:
    """A column with a type that the rules know, as :class:`Columns` has it."""
    return pa.field(field.name, field.type if _is_known(field) else pa.binary())


def _missing(field: pa.Field) -> str:
    """A column that the rows do not have: its default, or NULL."""
    default = spark_field(field).get("metadata", {}).get(_DEFAULT, "NULL")
    return f"CAST(({default}) AS {ddl.sql_type(field)}) AS {quote(field.name)}"

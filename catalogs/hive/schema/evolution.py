"""Schema evolution of tables that Spark reads: by the rules of :mod:`twophase.schema`, without touching a file.

Spark binds the columns of a file by their names or, in a Parquet table whose schema has field ids, by those. Its reader
applies filters to a file by *name* in both cases, and loses ids where it prunes nested columns. So a change is native
only if every file is read right under it, with filters and pruning (:mod:`.readers`); every other
one needs a rewrite, and is refused unless the user has chosen that (:mod:`.rewriting`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from twophase.catalog import TableChange
from twophase.catalog.column_changes import default_sql, position_of, refuse_nested_default
from twophase.catalog.spark_columns import CHAR_VARCHAR, spark_field
from twophase.catalogs.files import is_hidden
from twophase.catalogs.hive.definitions import FIELD_IDS
from twophase.catalogs.hive.schema import policies
from twophase.catalogs.hive.schema.columns import DEFAULTS, HELD, OPAQUE, Columns, is_plain
from twophase.catalogs.hive.schema.orc_files import nameless
from twophase.catalogs.hive.schema.readers import NATIVE, keeps_positions, orc_misreads, parquet_misreads, reads, unread
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import HiveTable, Located
from twophase.errors import CatalogError
from twophase.model import ObjectPath
from twophase.schema import (
    AddField,
    Change,
    ChangeComment,
    ChangeNullability,
    ChangeType,
    DropField,
    Field,
    Kind,
    MoveField,
    Position,
    PromotionPolicy,
    RenameField,
    Schema,
    after,
    apply_changes,
    first,
)
from twophase.schema.errors import SchemaError, UnknownFieldError
from twophase.schema.leaf import SPARK_TYPE

_BELOW = (Kind.LIST, Kind.MAP)
#: Table property: overrides the catalog's ``alter`` option.
ALTER = "twophase.alter"


def evolved(store: HiveStore, table: HiveTable, changes: Sequence[TableChange], path: ObjectPath) -> HiveTable | None:
    """Return a table after changes of its columns, for one metastore call; None if Spark does not read it by name.

    Raises
    ------
    CatalogError
        A change is not native, or breaks a rule; nothing was changed.
    """
    metastore = store.metastore
    before = metastore.columns_of(table)
    if before is None:
        return None
    started = with_ids(store, table, before, changes)
    native = policies.native(store, table, path)
    after_them = Evolution(table, path, started, store, native=native).apply(changes)
    if after_them == before:
        return table
    if after_them.has_ids and not before.has_ids:
        table = replace(table, properties={**table.properties, FIELD_IDS: "true"})
    return metastore.with_columns(table, after_them)


def with_ids(store: HiveStore, table: HiveTable, before: Columns, changes: Sequence[TableChange]) -> Columns:
    """Give ids to a table without files, if a change needs them: from now on its files have them."""
    if table.provider != "parquet" or before.has_ids or all(change.kind != "rename_column" for change in changes):
        return before
    return Columns(before.schema, has_ids=True) if is_empty(store, table) else before


def is_empty(store: HiveStore, table: HiveTable) -> bool:
    """Return whether a table certainly has no files, by the top level of its directory."""
    if not table.location or (table.partitioned and store.metastore.has_partitions(table)):
        return False
    return all(is_hidden(entry.name) for entry in store.files.list(table.location, recursive=False))


def choose_rewrite(path: ObjectPath) -> str:
    """The words by which a user lets ``ALTER TABLE`` rewrite a table."""
    return (
        f"To replace the table by its own rows in one step: ALTER TABLE {path} SET TBLPROPERTIES ('{ALTER}' = "
        "'rewrite'), or the catalog's option alter = rewrite. Then run the statement again."
    )


class Evolution:
    """The changes of one statement, applied one after the other.

    Parameters
    ----------
    table : HiveTable
    path : ObjectPath
    columns : Columns
        Those before the statement.
    store : HiveStore
        It knows how its session reads files.
    native : PromotionPolicy, optional
        The changes of type that may be made without a rewrite, where the reader follows.
    policy : PromotionPolicy, optional
        Of a table that may be rewritten; without it a change that needs a rewrite is refused.

    Attributes
    ----------
    needs_rewrite : bool
        Whether a change that was applied needs one.
    """

    def __init__(
        self,
        table: HiveTable,
        path: ObjectPath,
        columns: Columns,
        store: HiveStore,
        *,
        native: PromotionPolicy = NATIVE,
        policy: PromotionPolicy | None = None,
    ) -> None:
        self.needs_rewrite = False
        self._path = path
        self._native, self._policy = native, policy
        self._provider = table.provider
        self._reads_by_ids = table.provider != "parquet" or store.metastore.reads_by_ids
        self._by_position = store.metastore.reads_by_position(table) if table.provider == "orc" else None
        self._files, self._location = store.files, table.location
        self._is_empty: Callable[[], bool] = lambda: is_empty(store, table)
        self._partition_places: Callable[[], list[str]] = lambda: store.metastore.partition_locations(Located.of(table))
        self._has_ids = columns.has_ids
        self._schema = columns.schema
        self._used = list(columns.used)
        bucketing = table.bucketing
        buckets = () if bucketing is None else (*bucketing.columns, *bucketing.sort_columns)
        self._partition = {name.lower() for name in table.partition_columns}
        self._layout = {*self._partition, *(name.lower() for name in buckets)}

    def apply(self, changes: Sequence[TableChange]) -> Columns:
        """Apply the changes, and return the columns after them.

        Raises
        ------
        CatalogError
            A change breaks a rule, or needs a rewrite that the user has not chosen.
        """
        try:
            for change in changes:
                refuse_nested_default(self._path, change)
                self._check_layout(change)
                _STEPS[change.kind](self, change)
        except SchemaError as error:
            raise CatalogError(f"{self._path} was not altered: {error}", path=self._path) from error
        return Columns(self._schema, self._has_ids, tuple(self._used))

    def _do(self, change: Change, policy: str | PromotionPolicy = NATIVE) -> None:
        before = self._schema
        self._schema = apply_changes(before, change, promotion=policy)
        if (why := self._misread(before)) is not None:
            self._rewrite(why)

    def _misread(self, before: Schema) -> str | None:
        if self._provider == "parquet":
            why = parquet_misreads(before, self._schema, self._partition)
            return None if why is None or self._is_empty() else why
        if self._by_position is not None and _shape(before) != _shape(self._schema):
            return f"this session does not read ORC files by the names of their columns ({self._by_position})"
        why = orc_misreads(before, self._schema, has_former=bool(self._used))
        if why is None and self._location and not keeps_positions(before, self._schema):
            file = nameless(self._files, self._location, self._partition_places())
            if file is not None:
                why = f"Spark reads ORC files by position whose columns have no names, as those of {file}"
        return why

    def refused(self, why: str, *, hint: str | None = None) -> CatalogError:
        """The error of a change that is not made."""
        return CatalogError(f"{self._path} was not altered: {why}.", path=self._path, hint=hint)

    def _rewrite(self, why: str) -> None:
        """Note that the reader cannot follow a change; refuse it if the table may not be rewritten."""
        if self._policy is None:
            raise self.refused(why, hint=choose_rewrite(self._path))
        self.needs_rewrite = True

    def _check_layout(self, change: TableChange) -> None:
        name, layout = change.path[0], self._layout
        if change.kind in ("update_column_comment", "update_column_default"):
            layout = self._partition  # A metastore has the partition columns apart from the others.
        if name.lower() in layout and not (change.kind == "add_column" and len(change.path) == 1):
            raise self.refused(f"its files are laid out by {name}, which stays as it is")
        anchor = str(change.arguments.get("position") or "").removeprefix("after:")
        if len(change.path) == 1 and anchor.lower() in self._partition:
            raise self.refused(f"{anchor} is a partition column, which comes behind all others")

    # -- the changes ---------------------------------------------------------------------------------------------

    def add(self, change: TableChange) -> None:
        field = change.arguments["field"].field(0)
        described = spark_field(field)
        self._check_name(change.path, None)
        facts = described.get("metadata", {})
        default = default_sql(change)
        if not field.nullable and default is None:
            raise self.refused(f"old files have no values for {field.name}, which must be nullable or have a default")
        data_type, metadata = _spelled(field.type, described.get("type"))
        kept = {HELD + key: facts[key] for key in DEFAULTS if key in facts and len(change.path) == 1}
        self._do(
            AddField(
                change.path,
                data_type,
                comment=facts.get("comment"),
                position=position_of(change) or self._behind(change.path),
                metadata=tuple(sorted({**metadata, **kept}.items())),
            )
        )

    def _behind(self, path: tuple[str, ...]) -> Position | None:
        return self._last() if len(path) == 1 and self._partition else None

    def _last(self) -> Position:
        """Behind the last data column, and before the partition columns."""
        return after([field.name for field in self._schema if field.name.lower() not in self._partition][-1])

    def drop(self, change: TableChange) -> None:
        try:
            node = self._schema.find(change.path)
        except UnknownFieldError:
            if change.arguments.get("if_exists"):
                return
            raise
        data = [field for field in self._schema if field.name.lower() not in self._partition]
        if data == [node]:
            raise self.refused(f"{node.name} is its last column")
        self._supersede(node)
        self._do(DropField(change.path))

    def rename(self, change: TableChange) -> None:
        node, name = self._schema.find(change.path), str(change.arguments["name"])
        if name == node.name:
            return
        shown = ".".join(change.path)
        if not self._reads_by_ids:
            raise self.refused(
                "this session reads Parquet files by the names of their columns "
                f"(spark.sql.parquet.fieldId.read.enabled is false), and would find no {shown} by another name"
            )
        if not self._has_ids:
            self._rewrite(f"its files have no field ids, so that they are read by the name {shown}")
        elif any(above.kind in _BELOW for above in self._schema.ancestors(node.id)):
            self._rewrite(f"{shown} is below a list or map, where Spark reads fields by their names")
        elif _holds_struct(node):
            self._rewrite(f"{shown} holds a struct, which Spark reads by its name where it needs a part of it")
        self._check_name((*change.path[:-1], name), node.id)
        self._supersede(node)
        self._do(RenameField(change.path, name))

    def _supersede(self, node: Field) -> None:
        entry = (self._key(self._schema.path_of(node.id)), node.id if self._has_ids else None)
        if entry not in self._used:
            self._used.append(entry)

    def _check_name(self, path: Sequence[str], number: int | None) -> None:
        """Refuse a name that files have for another field: Spark applies filters to them by name."""
        key = self._key(path)
        for used, owner in self._used:
            if used == key and (number is None or owner != number):
                if self._is_empty():  # As one that was created LIKE another: no file has another column of any name.
                    self._used.clear()
                    return
                self._rewrite(
                    f"files of it have another column {'.'.join(path)}, dropped or renamed since, and Spark filters "
                    "their rows by name"
                )

    @staticmethod
    def _key(path: Sequence[str]) -> tuple[str, ...]:
        return tuple(name.lower() for name in path)

    def change_type(self, change: TableChange) -> None:
        node = self._schema.find(change.path)
        field = change.arguments["field"].field(0)
        data_type, metadata = _spelled(field.type, spark_field(field).get("type"))
        shown = ".".join(change.path)
        if OPAQUE in metadata or OPAQUE in dict(node.metadata):
            raise self.refused(f"no value of {shown} can be cast from or to a type that only Spark has")
        if SPARK_TYPE in metadata and node.leaf != data_type:
            raise self.refused(f"the values of {shown} are not checked for the length of a {metadata[SPARK_TYPE]}")
        kept = dict(node.metadata)
        if kept.get(SPARK_TYPE, "").startswith("char(") and HELD + DEFAULTS[1] in kept:
            raise self.refused(f"old rows of {shown} have its DEFAULT, to which only a CHAR adds spaces")
        policy, leaf = self._native, node.leaf
        # What a narrower policy than the reader's does not allow, it refuses by itself.
        follows = leaf is None or reads(self._provider, leaf, data_type)
        if not follows and (policy == NATIVE or policy.allows(leaf, data_type)):
            self._rewrite(unread(leaf, data_type, shown))
            policy = self._policy or NATIVE
        self._do(ChangeType(change.path, data_type), policy)
        rest = {key: value for key, value in kept.items() if key not in (SPARK_TYPE, CHAR_VARCHAR)}
        self._schema = _with_metadata(self._schema, node.id, {**rest, **metadata})

    def comment(self, change: TableChange) -> None:
        self._do(ChangeComment(change.path, change.arguments["comment"]))

    def default(self, change: TableChange) -> None:
        """Set or drop the default of new rows; old rows keep what they read."""
        node, sql = self._schema.find(change.path), change.arguments["default"]
        kept = {key: value for key, value in node.metadata if key != HELD + DEFAULTS[0]}
        found = kept if sql is None else {**kept, HELD + DEFAULTS[0]: str(sql)}
        self._schema = _with_metadata(self._schema, node.id, found)

    def nullability(self, change: TableChange) -> None:
        if not change.arguments["nullable"]:
            raise self.refused(
                f"Spark checks no NOT NULL of a session table, so that {'.'.join(change.path)} stays nullable",
                hint="Leave NULL out where the rows are made (WHERE ... IS NOT NULL), or refuse it there "
                "(assert_true(... IS NOT NULL)).",
            )
        self._do(ChangeNullability(change.path, True))

    def move(self, change: TableChange) -> None:
        self._do(MoveField(change.path, position_of(change) or first()))


_STEPS: Mapping[str, Callable[[Evolution, TableChange], None]] = {
    "add_column": Evolution.add,
    "drop_column": Evolution.drop,
    "rename_column": Evolution.rename,
    "update_column_type": Evolution.change_type,
    "update_column_comment": Evolution.comment,
    "update_column_default": Evolution.default,
    "update_column_nullability": Evolution.nullability,
    "move_column": Evolution.move,
}
#: The changes of columns.
KINDS = frozenset(_STEPS)


def _holds_struct(node: Field) -> bool:
    return node.kind is Kind.STRUCT or any(_holds_struct(child) for child in node.children)


def _shape(schema: Schema) -> list[tuple[str, Any]]:
    """Names, types and positions."""
    return [(node.name, node.leaf or node.kind) for node in schema.walk()]


def _spelled(data_type: pa.DataType, described: Any) -> tuple[pa.DataType, dict[str, str]]:
    """A new field's type for the rules, and the metadata that restores Spark's own."""
    if isinstance(described, str) and described.startswith(("char(", "varchar(")):
        return pa.string(), {SPARK_TYPE: described}
    if described is None or is_plain(described):
        return data_type, {}
    return pa.binary(), {OPAQUE: json.dumps(described)}


def _with_metadata(schema: Schema, number: int, metadata: Mapping[str, str]) -> Schema:
    def changed(fields: Sequence[Field]) -> tuple[Field, ...]:
        return tuple(
            replace(
                node,
                metadata=tuple(sorted(metadata.items())) if node.id == number else node.metadata,
                children=changed(node.children),
            )
            for node in fields
        )

    return replace(schema, fields=changed(schema.fields))

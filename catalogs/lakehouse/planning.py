"""Planning of a write: create, replace, append or overwrite; invalid input is refused before any work."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from twophase.catalog.schema_changes import MERGE_SCHEMA
from twophase.catalogs.files import refuse_untried
from twophase.catalogs.lakehouse import definitions, layout, schema_on_write, sorting, writing
from twophase.catalogs.lakehouse.changes import Changes
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.snapshots import (
    APPEND,
    CREATE,
    DROP,
    OVERWRITE,
    REPLACE,
    Seen,
    current_id,
    iceberg_document,
    line_of,
)
from twophase.catalogs.lakehouse.store import Loaded
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    TableAlreadyExistsError,
)
from twophase.model import Level, ObjectPath, OverwriteScope, Purpose, TableDefinition, WriteContext
from twophase.redaction import is_secret
from twophase.schema import Schema, from_iceberg, to_iceberg
from twophase.transactions import failures

_NEW = (CREATE, REPLACE)
#: What an ALTER TABLE of the transaction adds to the documents of the statements after it.
ALTERED = ("earlier_schemas", "property_changes")
Document = dict[str, Any]


def plan_write(
    lakehouse: Lakehouse,
    path: ObjectPath,
    definition: TableDefinition,
    purpose: Purpose,
    context: WriteContext,
    since: float,
) -> Document:
    """Return the document of a participant that has not staged anything yet.

    Raises
    ------
    TableAlreadyExistsError, TableNotExistError, DatabaseNotExistError
        The target does not match the purpose.
    CatalogError
        A name, column, type, option or target that an Iceberg table cannot have.
    """
    return plan_rows(lakehouse, path, lakehouse.load_to_write(path), definition, purpose, context, since)


def plan_rows(
    lakehouse: Lakehouse,
    path: ObjectPath,
    loaded: Loaded | None,
    definition: TableDefinition,
    purpose: Purpose,
    context: WriteContext,
    since: float,
) -> Document:
    """:func:`plan_write` on a table that is known, whatever name it has before the publish.

    Raises
    ------
    CatalogError
    """
    dropped = context.base is not None and context.base["effect"] == DROP
    anew = dropped or (context.base is not None and context.base.get("anew", False))
    if dropped:
        _check_dropped(path, context, loaded)
        context = replace(context, base=None)  # It replaces what the drop has seen, which is there still.
    base = context.base
    if not dropped:
        _check_target(lakehouse, path, purpose, loaded, base)
    _check_version(path, context, loaded)
    effect = _effect(purpose, loaded, base)
    key = layout.key_of(path, context.transaction_id, context.ordinal)
    if not purpose.redefines:
        if loaded is not None:
            context.require_columns(path, [field.name for field in loaded.metadata.schema().fields])
        facts = _insert(path, definition, loaded, base)
    else:
        facts = _new_table(lakehouse, path, definition, loaded if effect == REPLACE else None, key)
        if effect == REPLACE and base is not None and not anew:
            facts |= _altered_before(facts["properties"], base)
    writing.target_size(path, facts["properties"])
    refuse_untried(path, facts["location"], environment=lakehouse.environment)
    scope = _scope(context, facts) if purpose is Purpose.INSERT_OVERWRITE else None
    return {
        **context.document(path, purpose),
        "since": since,
        "effect": effect,
        "key": key,
        "overwrite": None if scope is None else scope.to_document(),
        "level": Level.ATOMIC.value,
        "null_columns": [],
        "counts": {},
        "added": [],
        "kept": None,
        "by_name": False,
        "seen_size": _size(loaded),
        "anew": anew,
        **facts,
        **_prior(purpose, scope, base, loaded),
        **_as_read(path, context, scope, base, loaded),
    }


def _altered_before(properties: Mapping[str, str], base: Mapping[str, Any]) -> Document:
    """Changes by an ALTER of the same transaction of the properties that a replace keeps."""
    kept = {key: value for key, value in base.get("property_changes", {}).items() if key not in properties}
    return {
        "properties": {**{key: value for key, value in kept.items() if value is not None}, **properties},
        "property_changes": kept,
    }


def _size(loaded: Loaded | None) -> list[int] | None:
    """Bytes and rows of a table according to its snapshot summary."""
    snapshot = None if loaded is None else loaded.metadata.current_snapshot()
    summary = None if snapshot is None else snapshot.summary
    if summary is None:
        return None
    return [int(summary.get(name) or 0) for name in ("total-files-size", "total-records")]


def _scope(context: WriteContext, facts: Mapping[str, Any]) -> OverwriteScope:
    """The scope of an overwrite; for an unpartitioned table a dynamic overwrite replaces the whole table."""
    scope = context.overwrite or OverwriteScope()
    if scope.files is not None:
        return scope
    return scope if facts["spec"]["fields"] or not scope.dynamic else replace(scope, dynamic=False)


def is_whole(scope: OverwriteScope) -> bool:
    """Return True if the overwrite replaces the whole table."""
    return not scope.static_partition and not scope.dynamic and scope.files is None


def _check_target(
    lakehouse: Lakehouse,
    path: ObjectPath,
    purpose: Purpose,
    loaded: Loaded | None,
    base: Mapping[str, Any] | None,
) -> None:
    there = loaded is not None or base is not None
    if there and purpose in (Purpose.CREATE_TABLE_AS, Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS):
        raise TableAlreadyExistsError.of(path, lakehouse.name)
    if not there and not purpose.creates:
        raise lakehouse.no_table(path)
    if loaded is not None:
        check_writable(path, loaded.metadata)


def _check_dropped(path: ObjectPath, context: WriteContext, loaded: Loaded | None) -> None:
    """Check that a table which its transaction creates anew is still as its DROP has seen it."""
    assert context.base is not None
    seen = context.base["seen"]
    if (loaded and loaded.location) != (seen and seen["metadata_location"]):
        raise failures.changed_meanwhile(path, context.transaction_id, "another writer committed to it meanwhile")
    if loaded is None:
        return
    check_writable(path, loaded.metadata)
    if context.base["purge"]:
        raise AtomicityNotSupportedError(
            f"{path} cannot be created in the transaction that drops it with PURGE; nothing was started.",
            path=path,
            transaction_id=context.transaction_id,
            hint="Drop it without PURGE, or create it after the transaction.",
        )


def _check_version(path: ObjectPath, context: WriteContext, loaded: Loaded | None) -> None:
    """Check that the table is still in the state on which a DELETE was planned."""
    if context.overwrite is None or context.overwrite.files is None:
        return
    if context.base is not None:
        raise AtomicityNotSupportedError(
            f"{path}: rows that this transaction itself has written cannot be deleted in it.",
            path=path,
            transaction_id=context.transaction_id,
            hint="Leave them out of what is written, or delete them after the transaction.",
        )
    if loaded is None or state_version(loaded.metadata) != context.overwrite.version:
        raise failures.changed_meanwhile(path, context.transaction_id, "another writer committed to it meanwhile")


def _as_read(
    path: ObjectPath,
    context: WriteContext,
    scope: OverwriteScope | None,
    base: Mapping[str, Any] | None,
    loaded: Loaded | None,
) -> Document:
    """The state on which an overwrite is based that reads from its own target: the one that its rows were read from.

    Raises
    ------
    WriteConflictError
        The table has changed since, and rows that the statement has not seen would be lost.
    """
    if scope is None or scope.files is not None or scope.version is None or loaded is None:
        return {}
    seen = Seen.document_of(loaded) if base is None else base["seen"]
    table, _, rest = scope.version.partition("/")
    number = rest.partition("/")[0]
    if seen is not None and (table, number) == (seen["uuid"], str(seen["snapshot_id"])):
        return {}
    line = {str(snapshot.snapshot_id) for snapshot in line_of(loaded.metadata, current_id(loaded.metadata))}
    if base is not None or is_whole(scope) or table != seen["uuid"] or number not in (line | {"None"}):
        raise failures.changed_since_read(str(path), context.transaction_id)
    # Changes to other partitions do not matter; changes to the replaced ones are detected at the publish.
    return {"seen": {**seen, "snapshot_id": None if number == "None" else int(number)}}


def state_version(metadata: TableMetadata) -> str:
    """Return an identifier of the current state of a table."""
    return f"{metadata.table_uuid}/{current_id(metadata)}/{metadata.current_schema_id}"


def check_writable(path: ObjectPath, metadata: TableMetadata) -> None:
    """Refuse a table whose format version is not 2, the only one that is written.

    Raises
    ------
    CatalogError
    """
    if metadata.format_version != 2:
        raise CatalogError(
            f"{path} is an Iceberg table of format version {metadata.format_version}: only version 2 can be written.",
            path=path,
            hint="Write it with the engine that made it, or copy its rows into a new table.",
        )


def _effect(purpose: Purpose, loaded: Loaded | None, base: Mapping[str, Any] | None) -> str:
    before = None if base is None else str(base["effect"])
    if purpose is Purpose.INSERT_INTO or purpose.alters:
        return before or APPEND
    if purpose is Purpose.INSERT_OVERWRITE:
        return before if before in _NEW else OVERWRITE
    if base is not None:
        return CREATE if before == CREATE else REPLACE
    return CREATE if loaded is None else REPLACE


def _prior(
    purpose: Purpose, scope: OverwriteScope | None, base: Mapping[str, Any] | None, loaded: Loaded | None
) -> Document:
    """The base of the statement: an earlier statement of its transaction, or the table as it is now."""
    if base is None:
        seen = None if loaded is None else Seen.document_of(loaded)
        nothing: Document = {"prior": None, "base_kept": None, "base_counts": {}, "carries": []}
        nothing["base_changes"] = Changes().to_document()
        metadata = None if loaded is None else loaded.metadata
        number = getattr(metadata, "last_sequence_number", 0)
        return {"seen": seen, "snapshot_id": _snapshot_id(metadata), "last_sequence_number": number, **nothing}
    facts = {name: base[name] for name in ("seen", "snapshot_id", "last_sequence_number")}
    if purpose.redefines:
        return {**facts, "prior": None, "base_kept": [], "base_counts": {}, "base_changes": None, "carries": []}
    removed = {k: v for k, v in base["counts"].items() if k.startswith(("deleted-", "removed-"))}
    kept = base["kept"] if base["effect"] != APPEND else None
    facts |= {"base_kept": kept, "base_counts": removed, "base_changes": _changes(base)}
    if scope is not None and is_whole(scope):
        if base["effect"] not in _NEW:
            # Nothing of the earlier statements stays, their manifests of kept files neither: it begins with the table.
            facts |= {"base_kept": None, "base_counts": {}}
        return {**facts, "prior": None, "carries": []}
    return {
        **facts,
        "prior": base["added"],
        "null_columns": base["null_columns"],
        "carries": [f"{base['transaction_id']}/{base['ordinal']}", *base["carries"]],
    }


def _changes(base: Mapping[str, Any]) -> Document:
    """The changes that the statements of a transaction have made to partitions so far."""
    earlier = Changes.from_document(base.get("base_changes"))
    return earlier.joined(Changes.from_document(base.get("changes"))).to_document()


def _snapshot_id(metadata: TableMetadata | None) -> int:
    """A random id that no snapshot of the table has."""
    taken = set() if metadata is None else {snapshot.snapshot_id for snapshot in metadata.snapshots}
    while True:
        found = uuid.uuid4().int & (2**63 - 1)
        if found not in taken:
            return found


def _new_table(
    lakehouse: Lakehouse, path: ObjectPath, definition: TableDefinition, replaced: Loaded | None, key: str
) -> Document:
    definitions.check(path, definition)
    base = None if replaced is None else replaced.metadata
    schema = definitions.to_schema(path, definition, base)
    spec = definitions.to_spec(path, schema, definition.partitioning, base)
    properties = definitions.to_properties(definition)
    order = _new_order(definitions.to_sort_order(path, to_iceberg(schema), definition.properties), schema, base)
    location = base.location if base else layout.table_location(lakehouse.store.settings.warehouse, path, key)
    return {
        "schema": iceberg_document(to_iceberg(schema)),
        "highest_field_id": schema.highest_field_id,
        "spec": iceberg_document(spec),
        "sort_order": iceberg_document(order),
        "properties": properties,
        "location": location,
        "uuid": str(base.table_uuid) if base else str(uuid.uuid4()),
    }


def _new_order(said: SortOrder | None, schema: Schema, base: TableMetadata | None) -> SortOrder:
    """The sort order of a table that is created or replaced, with its id."""
    if base is None:
        return UNSORTED_SORT_ORDER if said is None else said
    return sorting.chosen(base, to_iceberg(schema), said)


def _of_published(metadata: TableMetadata) -> Document:
    definitions.arrow_of(metadata.schema(), metadata.last_column_id)  # Refuses what Spark does not have.
    return {
        "schema": iceberg_document(metadata.schema()),
        "highest_field_id": metadata.last_column_id,
        "spec": iceberg_document(metadata.spec()),
        "sort_order": iceberg_document(metadata.sort_order()),
        "properties": _recorded(metadata.properties),
        "location": metadata.location,
        "uuid": str(metadata.table_uuid),
    }


def _insert(path: ObjectPath, rows: TableDefinition, loaded: Loaded | None, base: Mapping[str, Any] | None) -> Document:
    if base is not None:
        names = ("schema", "highest_field_id", "spec", "sort_order", "properties", "location", "uuid")
        facts = {name: base[name] for name in names}
        facts |= {name: base[name] for name in ALTERED if name in base}
    else:
        assert loaded is not None
        facts = _of_published(loaded.metadata)
    follows = schema_on_write.follows_rows(facts["properties"]) or MERGE_SCHEMA in rows.options
    by_name = follows and len(rows.schema) > 0
    width = len(facts["schema"]["fields"])
    if by_name:
        facts |= _following(path, rows, facts)
    elif len(rows.schema) not in (0, width):
        raise CatalogError(f"The rows have {len(rows.schema)} columns, {path} has {width}.", path=path)
    for name in rows.options:
        if name not in (*definitions.TABLE_OPTIONS, MERGE_SCHEMA):
            raise CatalogError(f"There is no option {name} for a write to {path}.", path=path)
    codec = rows.options.get("compression")  # Of this statement's files only.
    return {**facts, "by_name": by_name, **({} if codec is None else {"codec": codec})}


def _recorded(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a table that rows are added to, without secrets: the timeline holds the document meanwhile.

    No write needs them, and none publishes them. Settings of Iceberg's writers may name a column like a secret.
    """
    return {key: value for key, value in properties.items() if key.startswith("write.") or not is_secret(key, value)}


def _following(path: ObjectPath, rows: TableDefinition, facts: Mapping[str, Any]) -> Document:
    """The schema of the table after an insert that may add columns."""
    before = from_iceberg(IcebergSchema.model_validate(facts["schema"]), highest_field_id=facts["highest_field_id"])
    known = {column.name for column in before.fields}
    # A text goes into a column that is there, whatever its collation.
    definitions.check_types(
        path, pa.schema([c for c in rows.schema if c.name not in known or not pa.types.is_string(c.type)])
    )
    schema = schema_on_write.evolved(before, PartitionSpec.model_validate(facts["spec"]), rows.schema)
    definitions.check_dots(path, (node.name for node in schema if node.id not in before))
    number = facts["schema"]["schema-id"]
    return {
        "schema": {**iceberg_document(to_iceberg(schema)), "schema-id": number},
        "highest_field_id": schema.highest_field_id,
    }

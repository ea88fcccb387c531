"""What a statement becomes: create, replace, append or overwrite; bad input is told before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalogs.jdbc import defaults, definitions, keeping
from twophase.catalogs.jdbc.database import Table
from twophase.errors import AtomicityNotSupportedError, CatalogError, TableAlreadyExistsError, TableNotExistError
from twophase.model import Level, ObjectPath, Purpose, TableDefinition, WriteContext

if TYPE_CHECKING:
    from twophase.catalogs.jdbc.catalog import JdbcCatalog

CREATE, REPLACE, APPEND, OVERWRITE = "create", "replace", "append", "overwrite"
_SWAPS = (CREATE, REPLACE)
Document = dict[str, Any]


def offer(
    catalog: JdbcCatalog,
    path: ObjectPath,
    definition: TableDefinition,
    purpose: Purpose,
    context: WriteContext,
    since: float,
) -> Document:
    """The document of a participant that has staged nothing yet.

    Raises
    ------
    TableAlreadyExistsError, TableNotExistError, DatabaseNotExistError
        The target is not as the purpose needs it.
    CatalogError
        A name, column, type, option or target that this database cannot take.
    """
    catalog.check_path(path)
    catalog.store.learn(path.database, path)
    with catalog.store.begin(path.database, path=path, read_only=True) as connection:
        seen = catalog.seen(connection, path)
        _check_target(catalog, connection, path, purpose, seen, context.base)
        effect = _effect(purpose, seen, context.base)
        if purpose.inserts:
            facts = _insert(catalog, connection, path, definition, context.base)
        else:
            definitions.check(path, definition, catalog.store.database)
            facts = _new_table(catalog, path, definition)
            if effect == REPLACE:
                facts |= _replaced(catalog, connection, path, definition, facts)
                effect = facts.pop("effect")
        if effect == OVERWRITE:
            _check_overwritten(catalog, connection, path)
        before = _watched(catalog, connection, path, effect, context.base["seen"] if context.base else seen)
    swaps, database = effect in _SWAPS, catalog.store.database
    if reason := database.refusal(swaps):
        raise AtomicityNotSupportedError(f"{path} cannot be written all or nothing: {reason}.", path=path)
    below = database.level_reason(swaps)
    return {
        "path": path.to_document(),
        "purpose": purpose.value,
        "transaction_id": context.transaction_id,
        "ordinal": context.ordinal,
        "since": since,
        "effect": effect,
        "seen": before,
        "autocommit": context.autocommit,
        "takes_over": context.base["ordinal"] if context.base and purpose is Purpose.INSERT_INTO else None,
        "level": (Level.UNDONE if below else Level.ATOMIC).value,
        "level_reason": below,
        **facts,
    }


def _check_target(
    catalog: JdbcCatalog,
    connection: sa.Connection,
    path: ObjectPath,
    purpose: Purpose,
    seen: Mapping[str, Any] | None,
    base: Mapping[str, Any] | None,
) -> None:
    there = seen is not None or base is not None
    if there and purpose in (Purpose.CREATE_TABLE_AS, Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS):
        raise TableAlreadyExistsError(f"Table {path} exists already in catalog {catalog.name}.", path=path)
    if not there and not purpose.creates:
        raise TableNotExistError(f"Table {path} does not exist in catalog {catalog.name}.", path=path)
    if seen is None:
        return
    database, table = catalog.store.database, Table(path.database, path.name)
    if database.table_kind(connection, table) == "view":
        raise CatalogError(f"{path} is a view, not a table: it cannot be written.", path=path)
    reason = database.writable_reason(connection, table) if purpose.inserts else None
    if reason:
        raise CatalogError(f"{path} cannot be written all or nothing: {reason}.", path=path)


def _watched(
    catalog: JdbcCatalog, connection: sa.Connection, path: ObjectPath, effect: str, seen: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """With what tells whether another program changes rows that are to go; an earlier statement may have looked."""
    watched = effect in (OVERWRITE, REPLACE) and catalog.store.settings.external_writes == "conflict"
    if seen is None or not watched or "content" in seen:
        return seen
    return {**seen, "content": catalog.store.database.content(connection, Table(path.database, path.name))}


def _check_overwritten(catalog: JdbcCatalog, connection: sa.Connection, path: ObjectPath) -> None:
    if reason := catalog.store.database.overwrite_reason(connection, Table(path.database, path.name)):
        raise CatalogError(
            f"The rows of {path} cannot be replaced: {reason}.",
            path=path,
            hint="Write as the table's owner, or as a role with BYPASSRLS.",
        )


def _effect(purpose: Purpose, seen: Mapping[str, Any] | None, base: Mapping[str, Any] | None) -> str:
    before = None if base is None else str(base["effect"])
    if purpose is Purpose.INSERT_INTO:
        return before or APPEND
    if purpose is Purpose.INSERT_OVERWRITE:
        return before if before in _SWAPS else OVERWRITE
    if base is not None:
        return CREATE if before == CREATE else REPLACE
    return CREATE if seen is None else REPLACE


def _new_table(catalog: JdbcCatalog, path: ObjectPath, definition: TableDefinition) -> Document:
    return {
        "definition": replace(definition, options={}).to_document(),
        "clauses": definitions.column_clauses(path, definition, catalog.store.database),
        "columns": definition.schema.names,
    }


def _replaced(
    catalog: JdbcCatalog, connection: sa.Connection, path: ObjectPath, definition: TableDefinition, facts: Document
) -> Document:
    """What a replace takes over from the old table; and whether the old table itself must stay."""
    database, table = catalog.store.database, Table(path.database, path.name)
    types = {column.name: column.type for column in database.columns(connection, table)}
    new = dict(definitions.columns_of(path, definition, database))
    old = catalog.definition(connection, path)
    kept = replace(_with_comments(definition, old), options={})
    same = sorted(name for name, kind in new.items() if types.get(name, "").lower() == kind.lower())
    work = keeping.keeper(connection, database, table, table, frozenset(same))
    dependents = work.dependents()
    unchanged = list(new) == list(types) and len(same) == len(types)
    if not dependents and not (unchanged and database.keeps_tables):
        return {"effect": REPLACE, "definition": kept.to_document(), "same": same}
    if not unchanged:
        raise CatalogError(
            f"{path} cannot be replaced with other columns: {', '.join(dependents)} would be lost.",
            path=path,
            hint="Drop that first, or keep the columns as they are: then the old table stays, with all of it, and gets "
            "the new rows.",
        )
    # The old table stays, with all that depends on it, and gets the new rows.
    note = definitions.note_of(kept, database).write()
    return {"effect": OVERWRITE, "definition": kept.to_document(), "note": note, "clauses": []}


def _with_comments(new: TableDefinition, old: TableDefinition) -> TableDefinition:
    """Comments of the old table, where the new one has none of its own."""
    known = {field.name: field.metadata or {} for field in old.schema}
    fields = []
    for field in new.schema:
        said = known.get(field.name, {}).get(b"comment")
        if said is not None and definitions.column_comment(field) is None:
            field = field.with_metadata({**(field.metadata or {}), b"comment": said})
        fields.append(field)
    return replace(new, schema=pa.schema(fields), comment=new.comment or old.comment)


def _insert(
    catalog: JdbcCatalog,
    connection: sa.Connection,
    path: ObjectPath,
    rows: TableDefinition,
    base: Mapping[str, Any] | None,
) -> Document:
    if base is not None:
        facts = {key: base[key] for key in ("definition", "clauses", "columns", "placeholders") if key in base}
    else:
        table = catalog.definition(connection, path)
        columns = catalog.store.database.columns(connection, Table(path.database, path.name))
        facts = {
            "definition": table.to_document(),
            "clauses": [],
            "columns": table.schema.names,
            "placeholders": defaults.placeholders(catalog.canonical(path), columns),
        }
    if len(rows.schema) not in (0, len(facts["columns"])):
        raise CatalogError(f"The rows have {len(rows.schema)} columns, {path} has {len(facts['columns'])}.", path=path)
    return facts

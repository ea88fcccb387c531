"""Write planning: a statement becomes a create, replace, append or overwrite; bad input is refused before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalog.schema_changes import MERGE_SCHEMA
from twophase.catalogs.jdbc import bringing, defaults, definitions, options
from twophase.catalogs.jdbc.member import (
    ALTER,
    ALTER_COPY,
    APPEND,
    CREATE,
    DROP,
    LEAVE,
    OF_THE_RENAMED,
    OVERWRITE,
    RENAME,
    REPLACE,
    document_of,
)
from twophase.catalogs.jdbc.mysql import MySQL
from twophase.catalogs.jdbc.preserving import preserver
from twophase.catalogs.jdbc.store import Store
from twophase.config.settings import nearest
from twophase.errors import AtomicityNotSupportedError, CatalogError, TableAlreadyExistsError, TableNotExistError
from twophase.model import Level, ObjectPath, Purpose, TableDefinition, WriteContext

_SWAPS = (CREATE, REPLACE)
#: The facts of a participant that a later INSERT of its transaction takes over.
_OF_THE_TABLE = ("definition", "clauses", "columns", "computed", "same", "anew", "note", "emptied", *OF_THE_RENAMED)
Document = dict[str, Any]


def plan_write(
    store: Store,
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
        The target is not in the state that the purpose requires.
    CatalogError
        A name, column, type, option or target that this database does not support.
    """
    store.learn(path.database, path)
    base = context.base
    is_renamed, is_left = base is not None and base["effect"] == RENAME, _is_left(base)
    with store.begin(path.database, path=path, read_only=True) as connection:
        there = ObjectPath.from_document(base["from"]) if base is not None and is_renamed else path
        seen = store.seen(connection, there)
        _check_target(store, connection, there, purpose, seen, base)
        effect = _effect(purpose, seen, base)
        if purpose.inserts:
            facts = _insert(store, connection, path, definition, context)
        else:
            definitions.check(path, definition, store.database)
            facts = _new_table(store, path, definition)
            if effect == REPLACE and _is_anew(context.base):
                facts["anew"] = True
            elif effect == REPLACE:
                facts |= _replaced(store, connection, path, definition)
                effect = facts.pop("effect")
        empties = is_renamed and purpose is Purpose.INSERT_OVERWRITE
        if effect == OVERWRITE or empties:
            _check_overwritten(store, connection, there)
        if empties:
            facts["emptied"] = _emptied(store, connection, base)
        before = watched(store, connection, path, effect, base["seen"] if base else seen)
    swaps, database = effect in _SWAPS, store.database
    if reason := database.refusal(swaps):
        raise AtomicityNotSupportedError(f"{path} cannot be written atomically: {reason}.", path=path)
    below = database.level_reason(swaps)
    return {
        **context.document(path, purpose),
        "since": since,
        "effect": effect,
        "seen": before,
        "autocommit": context.autocommit,
        "pins_reads": context.pins_reads and effect in (APPEND, RENAME),
        "takes_over": base["ordinal"] if base and purpose is Purpose.INSERT_INTO and _has_rows(base) else None,
        "level": (Level.REVERSIBLE if below else Level.ATOMIC).value,
        "level_reason": below,
        **facts,
        **({"left": True} if is_left else {}),
        **({"rows": True} if is_renamed else {}),
    }


def _refuse_view(store: Store, connection: sa.Connection, path: ObjectPath) -> None:
    if store.database.table_kind(connection, path) == "view":
        raise CatalogError(f"{path} is a view, not a table.", path=path, hint="Drop it in the database itself.")


def plan_drop(store: Store, path: ObjectPath, context: WriteContext, since: float) -> Document | None:
    """Return the document of a participant that drops a table; None where that is no single step that is rolled back.

    Raises
    ------
    TableNotExistError
        The table does not exist, and the transaction has not written it.
    CatalogError
        It is a view.
    """
    store.learn(path.database, path)
    if not (store.database.ddl_in_transaction or isinstance(store.database, MySQL)):
        return None
    with store.begin(path.database, path=path, read_only=True) as connection:
        seen = store.seen(connection, path)
        if seen is None and context.base is None:
            raise TableNotExistError.of(path, store.settings.catalog)
        _refuse_view(store, connection, path)
        if context.base is not None and context.base["effect"] == RENAME:
            return _drop_of_renamed(store, connection, path, context, since)
        if _is_left(context.base):  # What the transaction made is gone, and the other table keeps its new name.
            assert context.base is not None
            return {**document_of(path, Purpose.DROP_TABLE, LEAVE, context, since), "seen": context.base["seen"]}
        before = watched(store, connection, path, DROP, context.base["seen"] if context.base else seen)
    return {**document_of(path, Purpose.DROP_TABLE, DROP, context, since), "seen": before}


def _drop_of_renamed(
    store: Store, connection: sa.Connection, path: ObjectPath, context: WriteContext, since: float
) -> Document:
    """The document of a participant that drops a table by a name that only its transaction gives to it."""
    base = context.base
    assert base is not None
    return {
        **document_of(path, Purpose.DROP_TABLE, DROP, context, since),
        **{key: base[key] for key in ("seen", "from", "left") if key in base},
        "emptied": _emptied(store, connection, base),
    }


def _check_target(
    store: Store,
    connection: sa.Connection,
    path: ObjectPath,
    purpose: Purpose,
    seen: Mapping[str, Any] | None,
    base: Mapping[str, Any] | None,
) -> None:
    there = seen is not None if base is None else base["effect"] not in (DROP, LEAVE)
    if there and purpose in (Purpose.CREATE_TABLE_AS, Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS):
        raise TableAlreadyExistsError.of(path, store.settings.catalog)
    if not there and not purpose.creates:
        raise TableNotExistError.of(path, store.settings.catalog)
    if seen is None:
        return
    if store.database.table_kind(connection, path) == "view":
        raise CatalogError(f"{path} is a view, not a table: it cannot be written.", path=path)
    reason = store.database.writable_reason(connection, path) if purpose.inserts else None
    if reason:
        raise CatalogError(f"{path} cannot be written atomically: {reason}.", path=path)


def watched(
    store: Store, connection: sa.Connection, path: ObjectPath, effect: str, seen: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Add a checksum of rows to be deleted, to detect external writes, unless an earlier statement has added it.

    Parameters
    ----------
    store : Store
    connection : sqlalchemy.Connection
    path : ObjectPath
    effect : str
    seen : mapping or None
        The state of the table, from :meth:`.Store.seen`.
    """
    is_watched = effect in (OVERWRITE, REPLACE, DROP) and store.settings.external_writes == "conflict"
    if seen is None or not is_watched or "content" in seen:
        return seen
    return {**seen, "content": store.database.content(connection, path)}


def _emptied(store: Store, connection: sa.Connection, base: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The content of a renamed table whose rows go, as the first such statement has seen it; it is watched."""
    assert base is not None
    former = ObjectPath.from_document(base["from"])
    return watched(store, connection, former, DROP, base.get("emptied") or {}) or {}


def _check_overwritten(store: Store, connection: sa.Connection, path: ObjectPath) -> None:
    if reason := store.database.overwrite_reason(connection, path):
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
        return before if before in (*_SWAPS, RENAME) else OVERWRITE
    if base is not None:
        return CREATE if base["seen"] is None or _is_left(base) else REPLACE
    return CREATE if seen is None else REPLACE


def _is_anew(base: Mapping[str, Any] | None) -> bool:
    """Whether the transaction has dropped the table that a statement replaces: then nothing is carried over from it."""
    return base is not None and (base["effect"] == DROP or bool(base.get("anew")))


def _is_left(base: Mapping[str, Any] | None) -> bool:
    """Whether the transaction gives the table that had the name another one."""
    return base is not None and (base["effect"] == LEAVE or bool(base.get("left")))


def _has_rows(base: Mapping[str, Any]) -> bool:
    return base["effect"] != RENAME or bool(base.get("rows"))


def _new_table(store: Store, path: ObjectPath, definition: TableDefinition) -> Document:
    return {
        "definition": replace(definition, options={}).to_document(),
        "clauses": definitions.column_clauses(path, definition, store.database),
        "columns": definition.schema.names,
    }


def _replaced(store: Store, connection: sa.Connection, path: ObjectPath, definition: TableDefinition) -> Document:
    """Return what a replace takes over from the old table, and whether the old table itself must be kept."""
    database = store.database
    types = {column.name: column.type for column in database.columns(connection, path)}
    new = dict(definitions.columns_of(path, definition, database))
    old = store.definition(connection, path)
    kept = replace(_with_comments(definition, old), options={})
    same = sorted(name for name, kind in new.items() if types.get(name, "").lower() == kind.lower())
    work = preserver(connection, database, path, path, frozenset(same))
    lost = work.dependents()
    unchanged = list(new) == list(types) and len(same) == len(types) and not defaults.redefaulted(definition)
    if not lost and not (unchanged and database.keeps_tables):
        return {"effect": REPLACE, "definition": kept.to_document(), "same": same}
    if not unchanged:
        raise CatalogError(
            f"{path} cannot be replaced with other columns, or defaults: {', '.join(lost)} would be lost.",
            path=path,
            hint="Drop that first, or keep the columns as they are: then the old table stays, with all of it, and gets "
            "the new rows.",
        )
    # The old table is kept, with its dependent objects, and gets the new rows.
    note = definitions.note_of(kept, database).write()
    return {"effect": OVERWRITE, "definition": kept.to_document(), "note": note, "clauses": []}


def _with_comments(new: TableDefinition, old: TableDefinition) -> TableDefinition:
    """Copy comments of the old table to the new one, unless the new one has its own."""
    known = {field.name: field.metadata or {} for field in old.schema}
    fields = []
    for field in new.schema:
        said = known.get(field.name, {}).get(b"comment")
        if said is not None and definitions.column_comment(field) is None:
            field = field.with_metadata({**(field.metadata or {}), b"comment": said})
        fields.append(field)
    return replace(new, schema=pa.schema(fields), comment=new.comment or old.comment)


def _insert(
    store: Store,
    connection: sa.Connection,
    path: ObjectPath,
    rows: TableDefinition,
    context: WriteContext,
) -> Document:
    base = context.base
    _check_options(path, rows)
    _refuse_altered(path, base)
    if MERGE_SCHEMA in rows.options and rows.schema.names:
        old = TableDefinition.from_document(base["definition"]) if base else store.definition(connection, path)
        return bringing.plan(store, path, old, rows, is_first=base is None)
    if base is not None and "brings" in base:
        raise AtomicityNotSupportedError(
            f"{path} cannot be written again in this transaction, which has brought columns to it.",
            path=path,
            hint="Add the columns with ALTER TABLE before.",
        )
    if base is not None:
        facts = {key: base[key] for key in _OF_THE_TABLE if key in base}
    else:
        facts = _of_published(store, connection, path)
        context.require_columns(path, facts["columns"])
    if len(rows.schema) not in (0, len(facts["columns"])):
        raise CatalogError(f"The rows have {len(rows.schema)} columns, {path} has {len(facts['columns'])}.", path=path)
    return facts


def _check_options(path: ObjectPath, rows: TableDefinition) -> None:
    known = (*options.TABLE_OPTIONS, *options.IDLE_WRITE_OPTIONS, MERGE_SCHEMA)
    for name in rows.options:
        if name not in known and name.lower() not in known:
            raise CatalogError(
                f"There is no option {name} for a write to {path}.", path=path, hint=nearest(name, known)
            )


def _refuse_altered(path: ObjectPath, base: Mapping[str, Any] | None) -> None:
    if base is not None and base["effect"] in (ALTER, ALTER_COPY):
        raise AtomicityNotSupportedError(
            f"{path} was altered in transaction {base['transaction_id']}, and no rows can be written to it there. This "
            "statement wrote nothing.",
            path=path,
            transaction_id=base["transaction_id"],
            hint="Commit the ALTER TABLE before, and write the rows after it.",
        )


def _of_published(store: Store, connection: sa.Connection, path: ObjectPath) -> Document:
    table = store.definition(connection, path)
    columns = store.database.columns(connection, path)
    return {
        "definition": table.to_document(),
        "clauses": [],
        "columns": table.schema.names,
        "computed": defaults.computed(columns),
    }

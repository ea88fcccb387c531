"""The versions of a table's schema, and what the timeline records of an ``ALTER TABLE`` that no transaction makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from twophase.catalog import Catalog, SchemaChange, SupportsFieldIds, SupportsSchemaHistory, TableChange, TableSchema
from twophase.catalog.column_changes import OF_THE_TABLE, renames_of
from twophase.catalog.schema_versions import SchemaVersion, bound, is_same
from twophase.errors import TwoPhaseError
from twophase.model import ObjectPath, quote
from twophase.redaction import logger
from twophase.schema import assign_ids
from twophase.schema.errors import SchemaError
from twophase.spark.attached import AttachedSession
from twophase.timeline.schema_versions import RecordedSchema, is_another_table

_log = logger("twophase")


def table_schema(catalog: Catalog, path: ObjectPath) -> TableSchema | None:
    """Return the columns of a table; None if the rules of schema evolution do not know them.

    Parameters
    ----------
    catalog : Catalog
    path : ObjectPath

    Raises
    ------
    TableNotExistError
        It does not exist.
    """
    if isinstance(catalog, SupportsFieldIds):
        return catalog.table_schema(path)
    definition = catalog.load_table(path)
    try:
        return TableSchema(assign_ids(definition.schema, partition_keys=map(quote, definition.partition_columns)))
    except SchemaError:
        return None


@contextmanager
def recorded(
    session: AttachedSession, catalog: Catalog, path: ObjectPath, changes: Sequence[TableChange]
) -> Iterator[None]:
    """Record the changes that are made within: after them, as a change that is not recorded is found later.

    Parameters
    ----------
    session : AttachedSession
    catalog : Catalog
    path : ObjectPath
    changes : sequence of TableChange
    """
    if isinstance(catalog, SupportsSchemaHistory) or all(change.kind in OF_THE_TABLE for change in changes):
        yield
        return
    before = table_schema(catalog, path)
    yield
    try:
        after = table_schema(catalog, path)
        if after is not None:
            _record(session, catalog, path, SchemaChange(after, before, renames=renames_of(changes)))
    except TwoPhaseError as error:
        _log.warning("%s was altered, and the timeline has no record of its new columns: %s", path, error)


def record_drop(session: AttachedSession, catalog: Catalog, path: ObjectPath) -> None:
    """Record that a table was dropped: another one of its name has a history of its own.

    Parameters
    ----------
    session : AttachedSession
    catalog : Catalog
    path : ObjectPath
    """
    if isinstance(catalog, SupportsSchemaHistory):
        return
    try:
        _record(session, catalog, path, SchemaChange(None))
    except TwoPhaseError as error:
        _log.warning("%s was dropped, and the timeline still has the history of its columns: %s", path, error)


def _record(session: AttachedSession, catalog: Catalog, path: ObjectPath, change: SchemaChange) -> None:
    session.coordinator.timeline.record_schema(catalog.name, catalog.canonical(path), change)


# -- all versions ------------------------------------------------------------------------------------------------------


def versions_of(session: AttachedSession, catalog: Catalog, path: ObjectPath) -> list[SchemaVersion]:
    """Return the versions of a table's schema, the oldest first.

    Parameters
    ----------
    session : AttachedSession
    catalog : Catalog
    path : ObjectPath

    Raises
    ------
    TableNotExistError
        There is no such table.
    """
    if isinstance(catalog, SupportsSchemaHistory):
        return catalog.schema_versions(path)
    found = _recorded(session, catalog, path)
    last = len(found) - 1
    return [
        SchemaVersion(
            one.schema.with_id(index),
            one.since,
            None if one.number is None else str(one.number),
            one.transaction_id,
            index == last,
        )
        for index, one in enumerate(found)
    ]


def _recorded(session: AttachedSession, catalog: Catalog, path: ObjectPath) -> list[RecordedSchema]:
    """The versions on the timeline, those that the files show of the time before, and the present one."""
    now = table_schema(catalog, path)
    if now is None:
        definition = catalog.load_table(path)
        now = TableSchema(assign_ids(definition.schema, partition_keys=map(quote, definition.partition_columns)))
    found = session.coordinator.timeline.schema_versions(catalog.name, catalog.canonical(path))
    if is_another_table(now, found):
        found = []
    schema = bound(now, found[-1].schema if found else None)
    if not found or not is_same(now, schema, found[-1].schema):
        found.append(RecordedSchema(schema))
    if found[0].since is None and isinstance(catalog, SupportsFieldIds):
        return [*_before(catalog, path, found), *found]
    return found


def _before(catalog: SupportsFieldIds, path: ObjectPath, found: list[RecordedSchema]) -> list[RecordedSchema]:
    """Versions before the first recorded one, from the files; that one gets its time if it is among them."""
    until = next((one.since for one in found if one.since is not None), None)
    result: list[RecordedSchema] = []
    first = found[0]
    written = [one for one in catalog.written_schemas(path) if until is None or one[0] < until]
    for since, table in reversed(written):
        following = result[0] if result else first
        schema = bound(table, following.schema)
        if not is_same(table, schema, following.schema, nulls=False):
            result.insert(0, RecordedSchema(schema, since))
        elif result:
            result[0] = RecordedSchema(following.schema, since)
        else:
            found[0] = RecordedSchema(first.schema, since)
    return result

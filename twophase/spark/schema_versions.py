"""The versions of a table's schema, and what the timeline records of an ``ALTER TABLE`` that no transaction makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from twophase.catalog import Catalog, SchemaChange, SupportsFieldIds, SupportsSchemaHistory, TableChange, TableSchema
from twophase.catalog.column_changes import OF_THE_TABLE, renames_of
from twophase.catalog.schema_versions import SchemaVersion, bound, is_same
from twophase.model import ObjectPath, Purpose, quote
from twophase.schema import assign_ids
from twophase.schema.errors import SchemaError
from twophase.spark.attached import AttachedSession
from twophase.timeline.schema_versions import RecordedSchema, is_another_table
from twophase.transactions import immediate
from twophase.transactions.immediate import changing


def table_schema(catalog: Catalog, path: ObjectPath) -> TableSchema | None:
    """Return the columns of a table; None if the rules of schema evolution do not know them.

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
def altering(
    session: AttachedSession, catalog: Catalog, path: ObjectPath, changes: Sequence[TableChange]
) -> Iterator[None]:
    """Alter a table outside any transaction: the change gets a commit number, and its columns are recorded.

    Changes that are not of its columns or its layout are not in the order of commits.
    """
    if all(change.kind in OF_THE_TABLE for change in changes):
        yield
        return
    with changing(session.coordinator, alteration(catalog, path, changes)):
        yield


def alteration(catalog: Catalog, path: ObjectPath, changes: Sequence[TableChange] = ()) -> immediate.TableChange:
    """The change of a table whose columns are about to be altered; without changes by Spark itself: it renames none."""
    if isinstance(catalog, SupportsSchemaHistory):
        return immediate.TableChange(catalog, path, Purpose.ALTER_TABLE)
    before = table_schema(catalog, path)

    def schema() -> SchemaChange | None:
        after = table_schema(catalog, path)
        return None if after is None else SchemaChange(after, before, renames=renames_of(changes))

    return immediate.TableChange(catalog, path, Purpose.ALTER_TABLE, schema)


def dropping(catalog: Catalog, path: ObjectPath) -> immediate.TableChange:
    """The change of a table that is dropped outside any transaction: another one of its name has its own history."""
    return immediate.TableChange(catalog, path, Purpose.DROP_TABLE, _ends_history(catalog))


def dropping_all(catalog: Catalog, database: str) -> list[immediate.TableChange]:
    """The changes of the tables of a database that is dropped with them outside any transaction.

    Raises
    ------
    DatabaseNotExistError
    """
    # They are there: to ask for each one would take as long as to drop some.
    there = immediate.Before(exists=True)
    paths = (ObjectPath.of(*database.split("."), name) for name in catalog.list_tables(database))
    return [replace(dropping(catalog, path), known=there) for path in paths]


def creating(catalog: Catalog, path: ObjectPath) -> immediate.TableChange:
    """The change of a table that is created, or gets its name, outside any transaction."""
    return immediate.TableChange(catalog, path, Purpose.CREATE_TABLE_AS, _ends_history(catalog))


def _ends_history(catalog: Catalog) -> Callable[[], SchemaChange | None]:
    return lambda: None if isinstance(catalog, SupportsSchemaHistory) else SchemaChange(None)


# -- all versions ------------------------------------------------------------------------------------------------------


def versions_of(session: AttachedSession, catalog: Catalog, path: ObjectPath) -> list[SchemaVersion]:
    """Return the versions of a table's schema, the oldest first.

    Raises
    ------
    TableNotExistError
        There is no such table.
    """
    if isinstance(catalog, SupportsSchemaHistory):
        return catalog.schema_versions(path)
    versions = _recorded(session, catalog, path)
    last = len(versions) - 1
    return [
        SchemaVersion(
            one.schema.with_id(index),
            one.since,
            None if one.number is None else str(one.number),
            one.transaction_id,
            index == last,
        )
        for index, one in enumerate(versions)
    ]


def _recorded(session: AttachedSession, catalog: Catalog, path: ObjectPath) -> list[RecordedSchema]:
    """The versions on the timeline, those that the files show of the time before, and the present one."""
    now = table_schema(catalog, path)
    if now is None:
        definition = catalog.load_table(path)
        now = TableSchema(assign_ids(definition.schema, partition_keys=map(quote, definition.partition_columns)))
    versions = session.coordinator.timeline.schema_versions(catalog.name, catalog.canonical(path))
    if is_another_table(now, versions):
        versions = []
    schema = bound(now, versions[-1].schema if versions else None)
    if not versions or not is_same(now, schema, versions[-1].schema):
        versions.append(RecordedSchema(schema))
    if versions[0].since is None and isinstance(catalog, SupportsFieldIds):
        return [*_before(catalog, path, versions), *versions]
    return versions


def _before(catalog: SupportsFieldIds, path: ObjectPath, versions: list[RecordedSchema]) -> list[RecordedSchema]:
    """Versions before the first recorded one, from the files; that one gets its time if it is among them."""
    until = next((one.since for one in versions if one.since is not None), None)
    result: list[RecordedSchema] = []
    first = versions[0]
    written = [one for one in catalog.written_schemas(path) if until is None or one[0] < until]
    for since, table in reversed(written):
        following = result[0] if result else first
        schema = bound(table, following.schema)
        if not is_same(table, schema, following.schema, nulls=False):
            result.insert(0, RecordedSchema(schema, since))
        elif result:
            result[0] = RecordedSchema(following.schema, since)
        else:
            versions[0] = RecordedSchema(first.schema, since)
    return result

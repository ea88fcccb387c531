"""ALTER TABLE as a statement of a transaction: of the table as it is now, or as its transaction has altered it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from twophase.catalog import TableChange
from twophase.catalogs.files import refuse_untried
from twophase.catalogs.hive import layout, names
from twophase.catalogs.hive.definitions import REDACTED, redacted, to_definition
from twophase.catalogs.hive.dropping import before_of
from twophase.catalogs.hive.publish.alter import property_changes, with_properties
from twophase.catalogs.hive.schema import alter, rewriting
from twophase.catalogs.hive.snapshots import read_format
from twophase.catalogs.hive.state import ALTER, INSERT, OwnState, PublisherName, WriteState
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import VIEW, HiveTable
from twophase.errors import CatalogError, TableNotExistError
from twophase.model import ObjectPath, Purpose, TableDefinition, WriteContext
from twophase.transactions import failures


class AlterPlan(NamedTuple):
    """A planned ALTER TABLE, ready to begin."""

    state: WriteState
    #: Definition of the table after the publish, including secrets.
    definition: TableDefinition


def plan_alter(
    store: HiveStore, path: ObjectPath, changes: Sequence[TableChange], context: WriteContext
) -> AlterPlan | None:
    """Plan an ALTER TABLE; None if the transaction makes the table itself, or if nothing would show what is staged.

    None as well for changes that rewrite the table.

    Parameters
    ----------
    store : HiveStore
    path : ObjectPath
        As the metastore stores it.
    changes : sequence of TableChange
    context : WriteContext

    Raises
    ------
    TableNotExistError
        The table does not exist, and the transaction has not written it.
    AtomicityNotSupportedError
        The transaction has written rows to the table before.
    CatalogError
        A change is not supported, or it is a view.
    """
    names.check_path(path, store.metastore.longest_name)
    base = None if context.base is None else WriteState.from_document(context.base)
    if base is not None and base.effect != ALTER:
        if base.effect == INSERT:
            raise failures.rows_before(path, context.transaction_id)
        return None
    table = store.find(path)
    if table is None:
        raise TableNotExistError.of(path, store.name)
    if table.kind == VIEW:
        raise CatalogError(f"{path} is a view, not a table.", path=path, hint="Write ALTER VIEW.")
    if table.location is None or read_format(to_definition(table), store.conf) is None:
        return None
    now = _as_altered(table, base)
    if rewriting.plan(store, now, changes, path) is not None:
        return None
    definition = to_definition(alter.altered(store, now, changes, path))
    state = _state(store, table, definition, context, base)
    _refuse_properties(state)
    return AlterPlan(state, definition)


def _as_altered(table: HiveTable, base: WriteState | None) -> HiveTable:
    """The table as an earlier ALTER TABLE of the transaction has it."""
    if base is None:
        return table
    properties = with_properties(table.properties, property_changes(base))
    return replace(table, schema=base.definition.schema, properties=properties, comment=base.definition.comment)


def _state(
    store: HiveStore, table: HiveTable, definition: TableDefinition, context: WriteContext, base: WriteState | None
) -> WriteState:
    path = ObjectPath.of(table.database, table.name)
    default_location = store.default_location(path)
    version = layout.version_of(default_location, context.transaction_id, context.ordinal)
    refuse_untried(path, version, table.location, environment=store.environment)
    return WriteState(
        catalog=store.name,
        store=store.metastore.identity,
        path=path,
        purpose=Purpose.ALTER_TABLE,
        transaction_id=context.transaction_id,
        ordinal=context.ordinal,
        publisher=PublisherName.ALTER_TABLE,
        definition=redacted(definition, store.conf),
        default_location=default_location,
        version=version,
        before=before_of(store, table) if base is None else base.before,
        effect=ALTER,
        replaces=False,
        own=OwnState(),
        base_version=None if base is None else base.version,
        first_version=None if base is None else base.first_version or base.version,
        autocommit=context.autocommit,
    )


def _refuse_properties(state: WriteState) -> None:
    """Refuse properties that the publish could not set: a metastore keeps Spark's own, and no secret is recorded."""
    before = state.old.definition.properties
    own = [key for key in property_changes(state) if key == "EXTERNAL" or key.startswith("spark.sql.")]
    if own:
        raise CatalogError(f"{state.path} was not altered: the property {own[0]} is Spark's own.", path=state.path)
    secret = [key for key, value in property_changes(state).items() if REDACTED in (value, before.get(key))]
    if secret:
        raise failures.secret_property(state.path, secret[0], state.transaction_id)

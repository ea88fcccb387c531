"""Inserts that bring columns to their table (``mergeSchema``): found by name, added in the transaction of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalogs.jdbc import definitions
from twophase.catalogs.jdbc.database import Database
from twophase.catalogs.jdbc.store import Store
from twophase.errors import AtomicityNotSupportedError
from twophase.model import ObjectPath, TableDefinition
from twophase.schema import AddField, ReconcilePolicy, Reconciliation, assign_ids, promotion_policy, reconcile
from twophase.schema.errors import IncompatibleWriteError
from twophase.schema.names import fold

#: Wider types are for ALTER TABLE, as a database may rewrite the whole table for one.
_POLICY = ReconcilePolicy(promotion=promotion_policy("exact", choices=()), widen=False)


def plan(store: Store, path: ObjectPath, table: TableDefinition, rows: TableDefinition, *, is_first: bool) -> Any:
    """The facts of an insert whose rows may bring columns.

    Parameters
    ----------
    store : Store
    path : ObjectPath
    table : TableDefinition
        As it is.
    rows : TableDefinition
    is_first : bool
        Whether the transaction has not written the table before.

    Raises
    ------
    AtomicityNotSupportedError
        The columns could not be added in one step with the rows.
    CatalogError, SchemaError
        A name or type that the table cannot get.
    """
    database = store.database
    if not database.ddl_in_transaction or not is_first:
        why = "where the transaction has written it before" if not is_first else "of this database"
        raise AtomicityNotSupportedError(
            f"{path} cannot get columns in one step with their rows: not {why}.",
            path=path,
            hint="Add the columns with ALTER TABLE before.",
        )
    rows = definitions.as_read(TableDefinition(rows.schema))
    try:
        found = _fit(table, rows)
    except IncompatibleWriteError as error:
        ways = [way for way in error.allowed if way != "widen=True"]
        error.allowed = (*ways, f"another type of the column, by ALTER TABLE {path} ALTER COLUMN ... TYPE")
        raise
    new = pa.schema([_new_field(path, database, change) for change in found.changes])
    types(database, path, new)  # Raises if there is none.
    given = {fold(name) for name in rows.schema.names}
    return {
        "definition": table.to_document(),
        "clauses": [],
        "columns": [node.name for node in found.schema if fold(node.name) in given and node.name not in new.names]
        + new.names,
        "computed": [],
        "brings": TableDefinition(new).to_document(),
        "rows": rows.to_document(),
    }


def _new_field(path: ObjectPath, database: Database, change: Any) -> pa.Field:
    # The policy changes nothing else, and a table of a database has one level.
    assert isinstance(change, AddField) and not isinstance(change.path, (str, int))
    name = str(change.path[-1])
    database.check_name(name, "column", path)
    return pa.field(name, change.type)


def _fit(table: TableDefinition, rows: TableDefinition) -> Reconciliation:
    present = [pa.field(field.name, field.type, field.nullable) for field in table.schema]
    return reconcile(assign_ids(present), pa.schema([pa.field(f.name, f.type) for f in rows.schema]), _POLICY)


def fitted(document: Mapping[str, Any], df: Any) -> Any:
    """The rows with the written columns of the table, cast to their types."""
    found = _fit(TableDefinition.from_document(document["definition"]), TableDefinition.from_document(document["rows"]))
    names = [str(name) for name in document["columns"]]
    if isinstance(df, pa.Table):
        return found.plan.project(df).select(names)
    by_name = dict(zip((node.name for node in found.schema), found.plan.spark_expressions(), strict=True))
    return df.selectExpr(*(by_name[name] for name in names))


def brought(document: Mapping[str, Any]) -> pa.Schema:
    """The columns that an insert brings; none for any other statement."""
    found = document.get("brings")
    return pa.schema([]) if found is None else TableDefinition.from_document(found).schema


def types(database: Database, path: ObjectPath, new: pa.Schema) -> list[tuple[str, str]]:
    """Names and types of the new columns in the database's SQL."""
    return definitions.columns_of(path, TableDefinition(new), database)


def add(database: Database, connection: sa.Connection, path: ObjectPath, new: pa.Schema, there: Sequence[str]) -> None:
    """Add the columns that no other writer has added, inside the transaction of the publish."""
    known = {fold(name) for name in there}
    for name, kind in types(database, path, new):
        if fold(name) not in known:
            table = database.name(path)
            database.run(connection, f"ALTER TABLE {table} ADD COLUMN {database.quote(name)} {kind} NULL")

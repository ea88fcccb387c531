"""ALTER TABLE and RENAME of a table that the surrounding transaction itself creates or replaces.

No other transaction has seen such a table: it is staged anew, with its rows in the new columns or under the new name.
So this works in every store, and a savepoint takes it back. It costs a copy of the rows that the transaction has
staged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from twophase.catalog import Catalog, SupportsColumnDefaults, SupportsStagedDrop, SupportsStagedRename, TableChange
from twophase.catalog.column_changes import OF_THE_TABLE, gives_default
from twophase.errors import AtomicityNotSupportedError, CatalogError
from twophase.model import ObjectPath, Purpose, TableDefinition, quote
from twophase.spark.attached import AttachedSession
from twophase.spark.ddl import created_columns
from twophase.spark.staged import table_definition
from twophase.spark.statement import StatementContext, discarding, drop_in_block, open_statement, run_statement
from twophase.transactions.transaction import Transaction


def is_made(transaction: Transaction | None, catalog: Catalog, path: ObjectPath) -> bool:
    """Return whether a transaction creates or replaces a table, and does not drop it, nor only give it its name."""
    participant = transaction.find(catalog.name, path) if transaction else None
    if transaction is None or participant is None or participant.purpose.drops:
        return False
    if isinstance(catalog, SupportsStagedRename) and catalog.is_renamed(participant):
        return False
    return transaction.member(participant).redefines


def alter(context: StatementContext, catalog: Catalog, path: ObjectPath, changes: Sequence[TableChange]) -> None:
    """Alter a table that the joined transaction makes.

    Raises
    ------
    CatalogError, SchemaError
        A change is not possible; the table stays as it was staged.
    """
    session = context.session
    assert session is not None
    _refuse_defaults(catalog, path, changes)
    before = table_definition(context.joined, catalog, path)
    if not catalog.capabilities.column_defaults:
        changes = [_with_null(change) for change in changes]
    after, expressions = altered(path, before, changes)
    rows = rows_of(session, catalog, path).selectExpr(*expressions)
    statement = open_statement(context, catalog, path, after, Purpose.CREATE_OR_REPLACE_TABLE_AS)
    run_statement(session, statement, rows, lambda: after)


def rename(context: StatementContext, catalog: Catalog, path: ObjectPath, new_path: ObjectPath) -> None:
    """Rename a table that the joined transaction makes: it is created under the new name, and dropped.

    Raises
    ------
    TableAlreadyExistsError
        There is a table of the new name.
    AtomicityNotSupportedError
        The catalog cannot drop tables in a transaction, or the table has a place of its own.
    """
    session, transaction = context.session, context.joined
    assert session is not None and transaction is not None
    definition = table_definition(transaction, catalog, path)
    if definition.external or not isinstance(catalog, SupportsStagedDrop):
        raise _cannot_rename(catalog, path)
    definition = replace(definition, location=None)
    rows = rows_of(session, catalog, path)
    statement = open_statement(context, catalog, new_path, definition, Purpose.CREATE_TABLE_AS)
    run_statement(session, statement, rows, lambda: definition)
    with discarding(transaction) as done:
        done.append(statement)
        if drop_in_block(context, catalog, path) is None:
            raise _cannot_rename(catalog, path)


def _cannot_rename(catalog: Catalog, path: ObjectPath) -> AtomicityNotSupportedError:
    return AtomicityNotSupportedError(
        f"{catalog.name}.{path} cannot be renamed in the transaction that makes it; nothing was renamed.",
        path=path,
        hint="Make it under its new name, or rename it after the transaction.",
    )


def rows_of(session: AttachedSession, catalog: Catalog, path: ObjectPath) -> Any:
    """The rows of a table as the statement's transaction sees it; Spark decides now how to read them.

    Returns
    -------
    pyspark.sql.DataFrame
    """
    parts = (session.catalogs.name_of(catalog), *path.to_document())
    return session.spark.table(".".join(map(quote, parts)))


def altered(
    path: ObjectPath, definition: TableDefinition, changes: Sequence[TableChange]
) -> tuple[TableDefinition, list[str]]:
    """Apply changes to a definition.

    Parameters
    ----------
    path : ObjectPath
        The table, for errors.
    definition : TableDefinition
    changes : sequence of TableChange

    Returns
    -------
    tuple of TableDefinition and list of str
        The new definition, and Spark's expressions of its columns over the old ones.

    Raises
    ------
    CatalogError, SchemaError
        A change is not possible.
    """
    schema, expressions = created_columns.altered(path, definition, changes)
    result = replace(definition, schema=schema)
    for change in changes:
        result = _of_the_table(result, change) if change.kind in OF_THE_TABLE else result
    return result, expressions


def _with_null(change: TableChange) -> TableChange:
    """A DROP DEFAULT as a default of NULL: otherwise a replaced table would give its column the one that it had."""
    if change.kind != "update_column_default" or change.arguments["default"] is not None:
        return change
    return replace(change, arguments={**change.arguments, "default": "NULL"})


def _refuse_defaults(catalog: Catalog, path: ObjectPath, changes: Sequence[TableChange]) -> None:
    """Refuse a DEFAULT where the table that is published would not have it."""
    has_defaults = catalog.capabilities.column_defaults or isinstance(catalog, SupportsColumnDefaults)
    if not has_defaults and any(map(gives_default, changes)):
        raise CatalogError(
            f"{path} was not altered: columns of catalog {catalog.name} have no DEFAULT; nothing was changed.",
            path=path,
        )


def _of_the_table(definition: TableDefinition, change: TableChange) -> TableDefinition:
    if change.kind == "set_comment":
        return replace(definition, comment=change.arguments["comment"])
    kept = {key: value for key, value in definition.properties.items() if key != change.arguments["key"]}
    if change.kind == "set_property":
        kept[change.arguments["key"]] = change.arguments["value"]
    return replace(definition, properties=kept)

"""Restores of named savepoints and undoes of transactions: replaces, creates and drops in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from twophase.catalog import Catalog, SupportsSavepoints, SupportsStagedDrop
from twophase.catalog.reading import ReadSource
from twophase.errors import AtomicityNotSupportedError
from twophase.model import ObjectPath, Purpose
from twophase.spark.statement import StatementContext, drop_in_block, failing, finish_statement, open_statement
from twophase.timeline.savepoints import KeptTable
from twophase.transactions.driver import concerning
from twophase.transactions.named_savepoints import Restore, require_still_kept
from twophase.transactions.undoing import Undo

#: Reads a kept table as a DataFrame.
Rows: TypeAlias = Callable[[Catalog, ObjectPath, ReadSource], Any]


def restore(context: StatementContext, plan: Restore, rows: Rows, *, keep_new: bool = False) -> None:
    """Stage a restore in a transaction, which the caller commits.

    Parameters
    ----------
    context : StatementContext
        Its transaction is the one that it joins.
    plan : Restore
    rows : callable
        Reads a kept table where its store cannot stage what it keeps.
    keep_new : bool
        Leave tables alone that were made since, instead of dropping them.

    Raises
    ------
    AtomicityNotSupportedError
        A table that was made since cannot be dropped in a transaction; nothing was staged.
    CatalogError
        What the savepoint kept is no longer there, or the savepoint was dropped meanwhile.
    """
    new = () if keep_new else plan.new
    for catalog, path in new:
        if not isinstance(catalog, SupportsStagedDrop):
            raise _cannot_drop(plan, catalog.name, path)
    for catalog, table in plan.tables:
        _restore_one(context, catalog, table, rows)
    require_still_kept(context.coordinator.timeline, plan.record)
    for catalog, path in new:
        assert isinstance(catalog, SupportsStagedDrop)
        _drop_one(context, _cannot_drop(plan, catalog.name, path), catalog, path)


def _restore_one(context: StatementContext, catalog: SupportsSavepoints, table: KeptTable, rows: Rows) -> None:
    with concerning(table.path):
        definition = catalog.kept_definition(table.document)
    purpose = Purpose.CREATE_OR_REPLACE_TABLE_AS
    statement = open_statement(context, catalog, table.path, definition, purpose, restores=True)
    with failing(statement):
        if not statement.write_kept(catalog, table.document):
            with concerning(table.path):
                source = catalog.read_kept(table.document)
            statement.write(rows(catalog, table.path, source))
        finish_statement(context.session, statement, lambda: definition)


def _restore_former(
    context: StatementContext, catalog: Catalog, path: ObjectPath, source: ReadSource, rows: Rows, *, is_gone: bool
) -> None:
    assert source.definition is not None
    definition = source.definition if source.definition.external else replace(source.definition, location=None)
    purpose = Purpose.CREATE_TABLE_AS if is_gone else Purpose.CREATE_OR_REPLACE_TABLE_AS
    statement = open_statement(context, catalog, path, definition, purpose)
    with failing(statement):
        statement.write(rows(catalog, path, source))
        finish_statement(context.session, statement, lambda: definition)


def undo(context: StatementContext, plan: Undo, rows: Rows) -> None:
    """Stage an undo in a transaction, which the caller commits.

    Parameters
    ----------
    context : StatementContext
        Its transaction is the one that it joins.
    plan : Undo
    rows : callable
        Reads the former state of a table.

    Raises
    ------
    AtomicityNotSupportedError
        A table that the transaction has created cannot be dropped in one.
    """
    for catalog, path, source in plan.former:
        _restore_former(context, catalog, path, source, rows, is_gone=(catalog.name, path) in plan.dropped)
    for catalog, path in plan.created:
        refused = AtomicityNotSupportedError(
            f"Transaction {plan.transaction_id} has created table {catalog.name}.{path}, which its catalog cannot drop "
            "as a part of a transaction: nothing was undone.",
            path=path,
            hint="Drop it yourself.",
        )
        if not isinstance(catalog, SupportsStagedDrop):
            raise refused
        _drop_one(context, refused, catalog, path)


def _drop_one(context: StatementContext, refused: Exception, catalog: SupportsStagedDrop, path: ObjectPath) -> None:
    if drop_in_block(context, catalog, path) is None:
        raise refused


def _cannot_drop(plan: Restore, catalog: str, path: ObjectPath) -> AtomicityNotSupportedError:
    return AtomicityNotSupportedError(
        f"Table {catalog}.{path} was made after savepoint {plan.record.name}, and its catalog cannot drop it as a part "
        "of a transaction: nothing was restored.",
        path=path,
        hint="Drop it yourself before, or keep such tables: RESTORE ... KEEP NEW TABLES, "
        "or twophase.restore(..., keep_new=True).",
    )

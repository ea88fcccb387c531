"""``ALTER TABLE`` by a rewrite: one statement that replaces a table by its own rows."""

from __future__ import annotations

from collections.abc import Sequence

from twophase.catalog import Rewrite, SupportsRewrite, TableChange
from twophase.errors import AtomicityNotSupportedError, WriteConflictError
from twophase.hooks.statement import Statement
from twophase.model import ObjectPath, Purpose
from twophase.spark.attached import AttachedSession
from twophase.spark.ddl.created_tables import rows_of
from twophase.spark.statement import StatementContext, failing, finish_statement, open_statement, write_rows
from twophase.transactions import failures
from twophase.transactions.transaction import Transaction


def rewrite(
    session: AttachedSession, catalog: SupportsRewrite, path: ObjectPath, changes: Sequence[TableChange]
) -> bool:
    """Make changes by a rewrite; return False if they need none, or if the user has not chosen it.

    Raises
    ------
    CatalogError
        A change is not possible; nothing was started.
    AtomicityNotSupportedError
        The transaction around the statement has changed the table before, or lets its user merge conflicts.
    WriteConflictError
        Another writer changed the table meanwhile; it is as that one left it.
    """
    plan = catalog.plan_rewrite(path, changes)
    if plan is None:
        return False
    context = StatementContext.of(session)
    if context.joined is not None:
        _require_published(context.joined, catalog, path)
    rows = rows_of(session, catalog, path).selectExpr(*plan.expressions)
    statement = open_statement(context, catalog, path, plan.definition, Purpose.REPLACE_TABLE_AS, alters=True)
    with failing(statement):
        _require_as_planned(catalog, path, changes, plan, statement)
        write_rows(session, statement, rows)
        finish_statement(session, statement, lambda: plan.definition)
    return True


def _require_published(joined: Transaction, catalog: SupportsRewrite, path: ObjectPath) -> None:
    """Refuse a rewrite in a block that does not see the table as it is published: the plan rests on that."""
    name = f"{catalog.name}.{path}"
    if joined.find(catalog.name, path) is not None or joined.merging is not None:
        why = "lets its user merge conflicts" if joined.merging is not None else "has changed it before"
        raise AtomicityNotSupportedError(
            f"{name} was not altered: ALTER TABLE would rewrite it in transaction {joined.id}, which {why}. Nothing "
            "was started.",
            path=path,
            transaction_id=joined.id,
            hint="Run it before the transaction, or after it.",
        )
    version = catalog.table_version(path)
    if version is not None and joined.has_moved(catalog, path, version):
        raise failures.changed_since_read(name, joined.id)


def _require_as_planned(
    catalog: SupportsRewrite, path: ObjectPath, changes: Sequence[TableChange], plan: Rewrite, statement: Statement
) -> None:
    """Refuse a definition that rests on one that another writer has changed since it was planned.

    What changes after the statement was staged, the publish itself finds.
    """
    now = catalog.plan_rewrite(path, changes)
    if now is None or now.replaced != plan.replaced:
        transaction_id = statement.transaction.id
        raise WriteConflictError(
            f"{catalog.name}.{path} was not altered: another writer altered it while transaction {transaction_id}, "
            "which rewrites it, ran. It is as that writer left it.",
            path=path,
            transaction_id=transaction_id,
            hint="Run the statement again.",
        )

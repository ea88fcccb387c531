"""``ALTER TABLE`` by a rewrite: one statement that replaces a table by its own rows, in a transaction of its own."""

from __future__ import annotations

from collections.abc import Sequence

from twophase.catalog import Rewrite, SupportsRewrite, TableChange
from twophase.errors import AtomicityNotSupportedError, WriteConflictError
from twophase.hooks.statement import Statement
from twophase.model import ObjectPath, Purpose
from twophase.spark.attached import AttachedSession
from twophase.spark.made_tables import rows_of
from twophase.spark.statement import StatementContext, finish_statement, open_statement, write_rows


def rewrite(
    session: AttachedSession, catalog: SupportsRewrite, path: ObjectPath, changes: Sequence[TableChange]
) -> bool:
    """Make changes by a rewrite; return False if they need none, or if the user has not chosen it.

    Parameters
    ----------
    session : AttachedSession
    catalog : SupportsRewrite
    path : ObjectPath
    changes : sequence of TableChange

    Raises
    ------
    CatalogError
        A change is not possible; nothing was started.
    AtomicityNotSupportedError
        There is a transaction around the statement; nothing was started.
    WriteConflictError
        Another writer changed the table meanwhile; it is as that one left it.
    """
    plan = catalog.plan_rewrite(path, changes)
    if plan is None:
        return False
    context = StatementContext.of(session)
    if context.joined is not None:
        raise _refused(catalog, path, context.joined.id)
    rows = rows_of(session, catalog, path).selectExpr(*plan.expressions)
    statement = open_statement(context, catalog, path, plan.definition, Purpose.REPLACE_TABLE_AS)
    try:
        _require_as_planned(catalog, path, changes, plan, statement)
        write_rows(session, statement, rows)
        _require_as_planned(catalog, path, changes, plan, statement)
        finish_statement(session, statement, lambda: plan.definition)
    except BaseException as error:
        statement.fail(error)  # does nothing if it has ended
        raise
    return True


def _refused(catalog: SupportsRewrite, path: ObjectPath, transaction_id: str) -> AtomicityNotSupportedError:
    return AtomicityNotSupportedError(
        f"ALTER TABLE {catalog.name}.{path} rewrites the table, which cannot be part of transaction {transaction_id}; "
        "nothing was started.",
        path=path,
        transaction_id=transaction_id,
        hint="Run it before or after the transaction.",
    )


def _require_as_planned(
    catalog: SupportsRewrite, path: ObjectPath, changes: Sequence[TableChange], plan: Rewrite, statement: Statement
) -> None:
    """Refuse a definition that rests on one that another writer has changed since.

    The publish itself finds rows and columns that change after the last look, not properties and comments.
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

"""CREATE DATABASE and DROP DATABASE as statements of the surrounding transaction."""

from __future__ import annotations

from collections.abc import Mapping

from twophase.catalog import Catalog, SupportsStagedDatabases, SupportsStagedDrop
from twophase.catalog.staged_databases import not_empty
from twophase.errors import AtomicityNotSupportedError
from twophase.hooks.statement import Statement
from twophase.model import ObjectPath
from twophase.spark import active
from twophase.spark.attached import AttachedSession
from twophase.spark.statement import StatementContext, discarding, drop_in_block, run_in_block
from twophase.transactions.transaction import Transaction


def is_staged_by(catalog: Catalog, database: str) -> bool:
    """Return whether a catalog creates and drops a database in a transaction."""
    return isinstance(catalog, SupportsStagedDatabases) and catalog.unstaged_database_reason(database) is None


def refuse(session: AttachedSession, catalog: Catalog, statement: str, database: str) -> None:
    """Refuse to create or drop a database in a transaction that would do it immediately, and say why.

    Raises
    ------
    AtomicityNotSupportedError
    """
    why = catalog.unstaged_database_reason(database) if isinstance(catalog, SupportsStagedDatabases) else None
    active.refuse_in_transaction(session, f"{statement} {database}", database, why)


def create(
    context: StatementContext, catalog: SupportsStagedDatabases, database: str, properties: Mapping[str, str]
) -> None:
    """Create a database; it is there for the statements that follow.

    Raises
    ------
    DatabaseAlreadyExistsError
        It exists.
    AtomicityNotSupportedError, CatalogError
        It could not be undone.
    """
    run_in_block(context, catalog, None, lambda joined: joined.stage_create_database(catalog, database, properties))


def drop(context: StatementContext, catalog: SupportsStagedDatabases, database: str, *, cascade: bool) -> None:
    """Drop a database; with CASCADE what is in it before. If something cannot be dropped, nothing is.

    Raises
    ------
    CatalogError
        It is not empty, and without CASCADE; or something in it is not a table.
    AtomicityNotSupportedError
        A table in it cannot be dropped in a transaction.
    """
    transaction = context.joined
    assert transaction is not None
    names = _tables(transaction, catalog, database)
    if names and not cascade:
        raise not_empty(database, names)
    with discarding(transaction) as done:
        for name in names:
            done.append(_drop_table(context, catalog, ObjectPath((database,), name)))
        run_in_block(context, catalog, None, lambda joined: joined.stage_drop_database(catalog, database))


def _tables(transaction: Transaction, catalog: Catalog, database: str) -> list[str]:
    """The tables and views of a database, as the transaction sees it."""
    dropped, written = transaction.tables_in(catalog, database)
    return sorted({*written, *catalog.list_tables(database)} - set(dropped))


def _drop_table(context: StatementContext, catalog: Catalog, path: ObjectPath) -> Statement:
    statement = None
    if isinstance(catalog, SupportsStagedDrop) and _is_ours(context, catalog, path):
        statement = drop_in_block(context, catalog, path)
    if statement is None:
        raise AtomicityNotSupportedError(
            f"Database {path.database} was not dropped: catalog {catalog.name} cannot drop {path} in a transaction.",
            path=path,
            hint="Drop it before the transaction.",
        )
    return statement


def _is_ours(context: StatementContext, catalog: Catalog, path: ObjectPath) -> bool:
    """Whether a table has a format that the catalog writes; Spark itself drops the others of its session catalog."""
    session, transaction = context.session, context.joined
    assert session is not None and transaction is not None
    if catalog is not session.catalogs.of_session or transaction.find(catalog.name, path) is not None:
        return True
    return catalog.load_table(path).provider in catalog.capabilities.providers

"""Dropping a database: without CASCADE only if it contains nothing but twophase's expired bookkeeping."""

from __future__ import annotations

from twophase.catalog import Environment
from twophase.catalogs.jdbc import housekeeping
from twophase.catalogs.jdbc.store import Store
from twophase.errors import CatalogError


def drop_all(store: Store, database: str) -> None:
    """Drop a database with everything in it."""
    store.forget(database)
    with store.begin("main", path=database) as connection:
        store.database.drop_database(connection, database)


def drop_empty(store: Store, environment: Environment, database: str, *, but: str | None = None) -> None:
    """Drop a database that is empty.

    Parameters
    ----------
    store : Store
    environment : Environment
    database : str
    but : str, optional
        A transaction that drops it itself, or takes back that it has created it: what it has staged there goes with it.

    Raises
    ------
    CatalogError
        Something is in it, or depends on its content; or an open transaction has rows there.
    """
    if tables := store.relations(database):
        raise store.database.not_empty(database, tables)
    _remove_ended(store, environment, database, but)
    _refuse_open(store, environment, database, but)
    store.forget(database)
    with store.begin("main", path=database) as connection:
        store.database.drop_empty_database(connection, database)


def _remove_ended(store: Store, environment: Environment, database: str, but: str | None) -> None:
    """Remove rows staged there by ended transactions; refuse if another transaction has staged some."""
    for leftover in housekeeping.staged(store, database):
        if leftover.transaction_id != but and environment.has_ended(leftover.transaction_id) is not True:
            raise CatalogError(
                f"Database {database} is not empty: {leftover.location} holds what transaction "
                f"{leftover.transaction_id} has staged, and it is not known to have ended.",
                path=database,
                transaction_id=leftover.transaction_id,
                hint="Wait for its end; a dead one is ended by `twophase recover`, and `twophase clean` removes what "
                "it left.",
            )
        housekeeping.remove(store, leftover)


def _refuse_open(store: Store, environment: Environment, database: str, but: str | None) -> None:
    """Refuse to drop the rows that record what an open transaction has published."""
    published = store.published(database)
    with store.begin(database, path=database, read_only=True) as connection:
        if store.database.table_kind(connection, published) is None:
            return
        rows = store.published_before(connection, database, None)
    for transaction_id in sorted({key.rpartition("/")[0] for key, _ in rows} - {but}):
        if environment.has_ended(transaction_id) is False:
            raise CatalogError(
                f"Database {database} was not dropped: transaction {transaction_id}, which has not ended, has "
                "published there.",
                path=database,
                transaction_id=transaction_id,
                hint="Wait for its end; a dead one is ended by `twophase recover`.",
            )

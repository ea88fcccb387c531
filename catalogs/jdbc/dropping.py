"""Dropping a database: without CASCADE only where nothing is in it but what twophase itself needs no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twophase.catalogs.jdbc import housekeeping
from twophase.errors import CatalogError

if TYPE_CHECKING:
    from twophase.catalogs.jdbc.catalog import JdbcCatalog


def drop_all(catalog: JdbcCatalog, database: str) -> None:
    """Drop a database with whatever is in it."""
    store = catalog.store
    store.forget(database)
    with store.begin("main", path=database) as connection:
        store.database.drop_database(connection, database)


def drop_empty(catalog: JdbcCatalog, database: str) -> None:
    """Drop a database that holds nothing.

    Raises
    ------
    CatalogError
        Something is in it, or depends on what is in it; or an open transaction has rows there.
    """
    store = catalog.store
    if tables := catalog.relations(database):
        raise store.database.not_empty(database, tables)
    _remove_ended(catalog, database)
    _refuse_open(catalog, database)
    store.forget(database)
    with store.begin("main", path=database) as connection:
        store.database.drop_empty_database(connection, database)


def _remove_ended(catalog: JdbcCatalog, database: str) -> None:
    """Remove what ended transactions staged there; nobody else's."""
    for residue in housekeeping.staged(catalog, database):
        if catalog.environment.has_ended(residue.transaction_id) is not True:
            raise CatalogError(
                f"Database {database} is not empty: {residue.location} holds what transaction "
                f"{residue.transaction_id} has staged, and it is not known to have ended.",
                path=database,
                transaction_id=residue.transaction_id,
                hint="Wait for its end; a dead one is ended by `twophase recover`, and `twophase clean` removes what "
                "it left.",
            )
        housekeeping.remove(catalog, residue)


def _refuse_open(catalog: JdbcCatalog, database: str) -> None:
    """Keep the rows by which an open transaction knows what of it was published."""
    store, published = catalog.store, catalog.store.published(database)
    with store.begin(database, path=database, read_only=True) as connection:
        if store.database.table_kind(connection, published) is None:
            return
        rows = store.published_before(connection, database, None)
    for transaction_id in sorted({key.rpartition("/")[0] for key, _ in rows}):
        if catalog.environment.has_ended(transaction_id) is False:
            raise CatalogError(
                f"Database {database} was not dropped: transaction {transaction_id}, which has not ended, has "
                "published there.",
                path=database,
                transaction_id=transaction_id,
                hint="Wait for its end; a dead one is ended by `twophase recover`.",
            )

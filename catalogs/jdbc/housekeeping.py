"""What dead transactions left in a database, and the rows that say what was published long ago."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import sqlalchemy as sa

from twophase.catalog import Residue
from twophase.catalogs.jdbc import publishing
from twophase.catalogs.jdbc.database import Table
from twophase.errors import CatalogError
from twophase.model import ObjectPath

if TYPE_CHECKING:
    from twophase.catalogs.jdbc.catalog import JdbcCatalog

STAGING, METADATA = "staging", "metadata"
#: Between a table of ours and the participant that a row in it is about.
_ROW = "#"
_LOOKS = 3


def residues(catalog: JdbcCatalog, live: frozenset[str]) -> list[Residue]:
    """Ledgers (each stands for its staging table, too), and rows about what was published before the retention."""
    found = [residue for home in catalog.list_databases() for residue in _of_one_at_rest(catalog, home)]
    return [residue for residue in found if residue.transaction_id not in live]


def _of_one_at_rest(catalog: JdbcCatalog, home: str) -> list[Residue]:
    """Others create and drop meanwhile: what has gone since it was listed is no error, but looked at again."""
    for _ in range(_LOOKS):
        try:
            return list(_of_one(catalog, home))
        except CatalogError:
            if not catalog.database_exists(home):
                return []
    return list(_of_one(catalog, home))


def _of_one(catalog: JdbcCatalog, home: str) -> Iterator[Residue]:
    store = catalog.store
    with store.begin(home, path=home, read_only=True) as connection:
        there = store.database.list_relations(connection, home)
        for name in sorted(there):
            if name.startswith((f"{store.prefix}l_", f"{store.prefix}d_")):
                stamp = store.stamp(connection, Table(home, name))
                if stamp is not None and stamp.get("catalog") == catalog.name:
                    yield Residue(STAGING, f"{home}.{name}", -1, stamp["transaction_id"], float(stamp["since"]))
        if store.published(home).name in there:
            yield from _old_rows(catalog, connection, home)


def _old_rows(catalog: JdbcCatalog, connection: sa.Connection, home: str) -> Iterator[Residue]:
    table = catalog.store.published_table(home)
    before = time.time() - catalog.environment.retention
    name = f"{home}.{catalog.store.published(home).name}"
    for key, since in connection.execute(sa.select(table.c.participant, table.c.since).where(table.c.since < before)):
        yield Residue(METADATA, f"{name}{_ROW}{key}", -1, key.rpartition("/")[0], since)


def remove(catalog: JdbcCatalog, residue: Residue) -> None:
    """Remove one residue, after its stamp was read again. Idempotent."""
    home, _, rest = residue.location.partition(".")
    if residue.kind == METADATA:
        _remove_row(catalog, home, rest.partition(_ROW)[2], residue.transaction_id)
        return
    store = catalog.store
    table = Table(home, rest)
    if not store.database_exists(home):
        return
    with store.begin(home, path=residue.location, read_only=True) as connection:
        if rest not in store.database.list_relations(connection, home):
            return
        stamp = store.stamp(connection, table)
    if stamp is None or stamp["transaction_id"] != residue.transaction_id:
        raise CatalogError(f"{residue.location} is not what transaction {residue.transaction_id} made: it was kept.")
    place = store.place_of(home, rest.rpartition("_")[2])
    key = f"{residue.transaction_id}/{stamp['ordinal']}"
    publishing.remove_staged(store, place, residue.transaction_id, key)
    publishing.tidy_published(store, place, key, ObjectPath.from_document(stamp["path"]))


def _remove_row(catalog: JdbcCatalog, home: str, key: str, transaction_id: str) -> None:
    table = catalog.store.published_table(home)
    if key.rpartition("/")[0] != transaction_id:
        raise CatalogError(f"{key} is not of transaction {transaction_id}: it was kept.")
    with catalog.store.begin(home, path=home) as connection:
        connection.execute(sa.delete(table).where(table.c.participant == key))


def problems(catalog: JdbcCatalog) -> list[str]:
    """What ``twophase doctor`` tells: whether the database answers."""
    try:
        catalog.list_databases()
    except CatalogError as error:
        return [f"Catalog {catalog.name}: {error}"]
    return []

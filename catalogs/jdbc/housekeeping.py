"""What dead transactions left in a database, and the rows that say what was published long ago."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from twophase.catalog import Residue
from twophase.catalogs.jdbc import publishing
from twophase.catalogs.jdbc.database import Table
from twophase.errors import CatalogError
from twophase.model import ObjectPath

if TYPE_CHECKING:
    from twophase.catalogs.jdbc.catalog import JdbcCatalog

T = TypeVar("T")
STAGING, METADATA = "staging", "metadata"
#: Looks at what comes and goes, before its error is believed.
_LOOKS = 3
#: Rows that one publish removes.
_AT_ONCE = 5
#: Between a table of ours and the participant that a row in it is about.
_ROW = "#"


def residues(catalog: JdbcCatalog, live: frozenset[str]) -> list[Residue]:
    """Ledgers (each stands for its staging table, too), and rows about what was published before the retention."""
    found = [residue for home in catalog.list_databases() for residue in _of_one(catalog, home)]
    return [residue for residue in found if residue.transaction_id not in live]


def _of_one(catalog: JdbcCatalog, home: str) -> Iterator[Residue]:
    yield from staged(catalog, home, of=catalog.name)
    yield from _old_rows(catalog, home)


def staged(catalog: JdbcCatalog, home: str, of: str | None = None) -> Iterator[Residue]:
    """What any transactions, dead or alive, have staged in a database.

    Parameters
    ----------
    catalog : JdbcCatalog
    home : str
    of : str, optional
        The catalog's name in the stamp, where only that one's are wanted.
    """
    store = catalog.store
    for name in _hidden(catalog, home):
        if not name.startswith((f"{store.prefix}l_", f"{store.prefix}d_")):
            continue
        stamp = _stamp(catalog, Table(home, name))
        if stamp is not None and of in (None, stamp.get("catalog")):
            yield Residue(STAGING, f"{home}.{name}", -1, stamp["transaction_id"], float(stamp["since"]))


def _hidden(catalog: JdbcCatalog, home: str) -> list[str]:
    """The tables of ours in a database; none where it was dropped since it was listed (MySQL answers an error)."""

    def read() -> list[str]:
        with catalog.store.begin(home, path=home, read_only=True) as connection:
            return sorted(filter(catalog.store.is_hidden, catalog.store.database.list_relations(connection, home)))

    return _if_there(read, lambda: catalog.store.database_exists(home)) or []


def _stamp(catalog: JdbcCatalog, table: Table) -> dict[str, Any] | None:
    """The stamp of a ledger; None too for one that was dropped since it was listed.

    Each is read in a transaction of its own: one that looked at several would keep a publish of several waiting for
    ever, while it waits for that publish.
    """

    def read() -> dict[str, Any] | None:
        with catalog.store.begin(table.database, path=table.name, read_only=True) as connection:
            return catalog.store.stamp(connection, table)

    return _if_there(read, lambda: table.name in _hidden(catalog, table.database))


def _if_there(read: Callable[[], T], there: Callable[[], bool]) -> T | None:
    """What a thing holds; None where it was dropped since it was listed, even if it is there again later."""
    for _ in range(_LOOKS):
        try:
            return read()
        except CatalogError as error:
            if not there():
                return None
            refused = error
    raise refused


def _old_rows(catalog: JdbcCatalog, home: str) -> list[Residue]:
    store, published = catalog.store, catalog.store.published(home).name
    before = time.time() - catalog.environment.retention

    def read() -> Sequence[tuple[str, float]]:
        if published not in _hidden(catalog, home):
            return []
        with store.begin(home, path=published, read_only=True) as connection:
            return store.published_before(connection, home, before)

    found = _if_there(read, lambda: published in _hidden(catalog, home)) or ()
    return [Residue(METADATA, f"{home}.{published}{_ROW}{k}", -1, k.rpartition("/")[0], since) for k, since in found]


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
        if store.database.table_kind(connection, table) is None:
            return
        stamp = store.stamp(connection, table)
    if stamp is None or stamp["transaction_id"] != residue.transaction_id:
        raise CatalogError(f"{residue.location} is not what transaction {residue.transaction_id} made: it was kept.")
    place = store.place_of(home, rest.rpartition("_")[2])
    key = f"{residue.transaction_id}/{stamp['ordinal']}"
    publishing.remove_staged(store, place, residue.transaction_id, key)
    publishing.tidy_published(store, place, key, ObjectPath.from_document(stamp["path"]))


def _remove_row(catalog: JdbcCatalog, home: str, key: str, transaction_id: str) -> None:
    if key.rpartition("/")[0] != transaction_id:
        raise CatalogError(f"{key} is not of transaction {transaction_id}: it was kept.")
    with catalog.store.begin(home, path=home) as connection:
        catalog.store.forget_published(connection, home, key)


def prune(catalog: JdbcCatalog, path: ObjectPath) -> None:
    """Remove rows about what was published into a table before the retention, by transactions that have ended.

    A few at each publish: so there are never many, whether or not ``twophase clean`` runs.
    """
    store, home = catalog.store, catalog.store.home(path.database)
    before = time.time() - catalog.environment.retention
    with store.begin(home, path=path, read_only=True) as connection:
        old = store.published_before(connection, home, before, path, limit=_AT_ONCE)
    ended = [key for key, _ in old if catalog.environment.has_ended(key.rpartition("/")[0])]
    if not ended:
        return
    with store.begin(home, path=path) as connection:
        for key in ended:
            store.forget_published(connection, home, key)


def problems(catalog: JdbcCatalog) -> list[str]:
    """What ``twophase doctor`` tells: whether the database answers, and whether tasks can write to it."""
    driver = catalog.store.settings.parsed.get_dialect().import_dbapi().__name__
    needed = catalog.environment.executor_problems((catalog.store.__class__.__module__, driver))
    found = [f"Catalog {catalog.name}: {problem}" for problem in needed]
    try:
        with catalog.store.begin("main", read_only=True) as connection:
            problem = catalog.store.database.durability_problem(connection)
    except CatalogError as error:
        problem = str(error)
    if problem is not None:
        found.append(f"Catalog {catalog.name}: {problem}")
    return found

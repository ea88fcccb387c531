"""Leftovers of crashed transactions in a database, and expired rows about publishes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from twophase.catalog import Environment, Leftover
from twophase.catalogs.jdbc import publishing
from twophase.catalogs.jdbc.store import Store
from twophase.errors import CatalogError
from twophase.model import ObjectPath

T = TypeVar("T")
STAGING, METADATA = "staging", "metadata"
#: Attempts to read a table that may be dropped concurrently, before the error is raised.
_LOOKS = 3
#: Maximum number of expired rows that one publish removes.
_AT_ONCE = 5
#: Separates, in a location, the published table from the participant of one of its rows.
_ROW = "#"


def leftovers(store: Store, environment: Environment, live: frozenset[str]) -> list[Leftover]:
    """Return ledgers (each for its staging table, too), and rows about publishes older than the retention."""
    found = [leftover for home in store.list_databases() for leftover in _of_one(store, environment, home)]
    return [leftover for leftover in found if leftover.transaction_id not in live]


def _of_one(store: Store, environment: Environment, home: str) -> Iterator[Leftover]:
    yield from staged(store, home, of=store.settings.catalog)
    yield from _old_rows(store, environment, home)


def staged(store: Store, home: str, of: str | None = None) -> Iterator[Leftover]:
    """Return the staged tables of all transactions in a database, live or crashed.

    Parameters
    ----------
    store : Store
    home : str
    of : str, optional
        Return only those whose stamp has this catalog name.
    """
    for name in _hidden(store, home):
        if not name.startswith((f"{store.prefix}l_", f"{store.prefix}d_")):
            continue
        stamp = _stamp(store, ObjectPath.of(home, name))
        if stamp is not None and of in (None, stamp.get("catalog")):
            yield Leftover(STAGING, f"{home}.{name}", -1, stamp["transaction_id"], float(stamp["since"]))


def _hidden(store: Store, home: str) -> list[str]:
    """Return twophase's tables in a database; none if it was dropped after it was listed (MySQL returns an error)."""

    def read() -> list[str]:
        with store.begin(home, path=home, read_only=True) as connection:
            return sorted(filter(store.is_hidden, store.database.list_relations(connection, home)))

    return _if_there(read, lambda: store.database_exists(home)) or []


def _stamp(store: Store, table: ObjectPath) -> dict[str, Any] | None:
    """The stamp of a ledger; None also for one that was dropped after it was listed.

    Each is read in its own transaction: one transaction that reads several would deadlock with a publish of several
    tables, each waiting for the other.
    """

    def read() -> dict[str, Any] | None:
        with store.begin(table.database, path=table.name, read_only=True) as connection:
            return store.stamp(connection, table)

    return _if_there(read, lambda: table.name in _hidden(store, table.database))


def _if_there(read: Callable[[], T], there: Callable[[], bool]) -> T | None:
    """Return what is read; None if it was dropped after it was listed, even if it is created again later."""
    for _ in range(_LOOKS):
        try:
            return read()
        except CatalogError as error:
            if not there():
                return None
            refused = error
    raise refused


def _old_rows(store: Store, environment: Environment, home: str) -> list[Leftover]:
    published = store.published(home).name
    before = time.time() - environment.retention

    def read() -> Sequence[tuple[str, float]]:
        if published not in _hidden(store, home):
            return []
        with store.begin(home, path=published, read_only=True) as connection:
            return store.published_before(connection, home, before)

    found = _if_there(read, lambda: published in _hidden(store, home)) or ()
    return [Leftover(METADATA, f"{home}.{published}{_ROW}{k}", -1, k.rpartition("/")[0], since) for k, since in found]


def remove(store: Store, leftover: Leftover) -> None:
    """Remove one leftover, after its stamp has been checked again. Idempotent."""
    home, _, rest = leftover.location.partition(".")
    if leftover.kind == METADATA:
        _remove_row(store, home, rest.partition(_ROW)[2], leftover.transaction_id)
        return
    table = ObjectPath.of(home, rest)
    if not store.database_exists(home):
        return
    with store.begin(home, path=leftover.location, read_only=True) as connection:
        if store.database.table_kind(connection, table) is None:
            return
        stamp = store.stamp(connection, table)
    if stamp is None or stamp["transaction_id"] != leftover.transaction_id:
        raise CatalogError(f"{leftover.location} is not what transaction {leftover.transaction_id} made: it was kept.")
    place = store.place_of(home, rest.rpartition("_")[2])
    key = f"{leftover.transaction_id}/{stamp['ordinal']}"
    publishing.remove_staged(store, place, leftover.transaction_id, key)
    publishing.clean_up_published(store, place, key, ObjectPath.from_document(stamp["path"]))


def _remove_row(store: Store, home: str, key: str, transaction_id: str) -> None:
    if key.rpartition("/")[0] != transaction_id:
        raise CatalogError(f"{key} is not of transaction {transaction_id}: it was kept.")
    with store.begin(home, path=home) as connection:
        store.forget_published(connection, home, key)


def prune(store: Store, environment: Environment, path: ObjectPath) -> None:
    """Remove rows about publishes into a table that are older than the retention, of transactions that have ended.

    Each publish removes a few, so that there are never many, whether or not ``twophase clean`` runs.
    """
    home = store.home(path.database)
    before = time.time() - environment.retention
    with store.begin(home, path=path, read_only=True) as connection:
        old = store.published_before(connection, home, before, path, limit=_AT_ONCE)
    ended = [key for key, _ in old if environment.has_ended(key.rpartition("/")[0])]
    if not ended:
        return
    with store.begin(home, path=path) as connection:
        for key in ended:
            store.forget_published(connection, home, key)


def problems(store: Store, environment: Environment) -> list[str]:
    """Return the problems for ``twophase doctor``: the database is unreachable, or tasks cannot write to it."""
    driver = store.settings.parsed.get_dialect().import_dbapi().__name__
    needed = environment.executor_problems((store.__class__.__module__, driver))
    found = [f"Catalog {store.settings.catalog}: {problem}" for problem in needed]
    try:
        with store.begin("main", read_only=True) as connection:
            problem = store.database.durability_problem(connection)
    except CatalogError as error:
        problem = str(error)
    if problem is not None:
        found.append(f"Catalog {store.settings.catalog}: {problem}")
    return found

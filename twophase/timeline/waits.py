"""Waits for reservations: who waits for whom, and whether the waits would form a circle."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from twophase.model import ObjectPath
from twophase.timeline import statements as sql
from twophase.timeline.reservations import Reservation
from twophase.timeline.rows import reservation_columns, reservation_of
from twophase.timeline.tables import lock_for_all, path_text, target_key

Age = tuple[float, str]


@dataclass(frozen=True)
class Lock:
    """A reservation that a transaction holds or waits for.

    Attributes
    ----------
    transaction_id, catalog : str
    path : ObjectPath
    reservation : Reservation
    age : tuple of float and str
        When the first attempt of the transaction began, and its id; the smallest is the oldest.
    since : float or None
        Since when it waits, in seconds since the epoch; None if it holds the reservation.
    waits_for : tuple of str
        The transactions for which it waits.
    """

    transaction_id: str
    catalog: str
    path: ObjectPath
    reservation: Reservation
    age: Age
    since: float | None = None
    waits_for: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Catalog and table, as a user writes them."""
        return f"{self.catalog}.{self.path}"

    @property
    def words(self) -> str:
        """The reserved part of the table, in words."""
        scope = self.reservation.scope
        return self.reservation.mode.value + ("" if scope is None else f" {len(scope)} partitions")

    def to_document(self) -> dict[str, Any]:
        """Convert it to a document for JSON output."""
        scope = self.reservation.scope
        return {
            "transaction_id": self.transaction_id,
            "catalog": self.catalog,
            "path": self.path.to_document(),
            "mode": self.reservation.mode.value,
            "partitions": None if scope is None else sorted(scope),
            "waiting_since": self.since,
            "waits_for": list(self.waits_for),
        }


@dataclass(frozen=True)
class Wound:
    """Why a live transaction is rolled back by another one.

    Attributes
    ----------
    by : str
        The other transaction.
    why : str
        A sentence.
    """

    by: str
    why: str


def older_waiter(
    connection: sa.Connection, target: str, transaction_id: str, wanted: Reservation, own: Reservation | None
) -> str | None:
    """Return an older transaction that waits for a reservation which a new one would exclude, if there is any.

    Otherwise younger transactions could follow each other for as long as it waits. One that waits for what this
    transaction holds already (``own``) does not count.
    """
    waiting = connection.execute(sql.SELECT_WAITERS, {"of_target": target}).all()
    if all(row.transaction_id == transaction_id for row in waiting):
        return None
    mine = (connection.scalar(sql.SELECT_AGE, {"of_id": transaction_id}), transaction_id)
    older = (row for row in waiting if (row.age, row.transaction_id) < mine)
    wishes = ((row.transaction_id, reservation_of(row.mode, row.scope)) for row in older)
    return next((i for i, wish in wishes if wish.excludes(wanted) and not (own and own.excludes(wish))), None)


def wait(
    connection: sa.Connection, transaction_id: str, catalog: str, path: ObjectPath, wanted: Reservation, now: float
) -> list[str]:
    """Record that a transaction waits for a reservation, unless it would wait for itself.

    Returns
    -------
    list of str
        The circle of transactions, each of which would wait for the next one; the first one is this transaction. Empty
        if there is none.
    """
    # Of two that would close a circle together, the second one must see the first one's wait.
    lock_for_all(connection)
    stop_waiting(connection, transaction_id)
    row = {"transaction_id": transaction_id, "target": target_key(catalog, path), "catalog": catalog, "since": now}
    connection.execute(sql.INSERT_WAIT, {**row, "path": path_text(path), **reservation_columns(wanted)})
    graph = {lock.transaction_id: lock.waits_for for lock in locks(connection) if lock.since is not None}
    circle = _circle(graph, transaction_id)
    if circle:
        stop_waiting(connection, transaction_id)
    return circle


def stop_waiting(connection: sa.Connection, transaction_id: str) -> None:
    """Delete the record of a wait. Idempotent."""
    connection.execute(sql.DELETE_WAIT, {"of_id": transaction_id})


def locks(connection: sa.Connection) -> list[Lock]:
    """Load all reservations of open transactions, and all for which they wait; those that are held come first."""
    held = [_lock(dict(row)) for row in connection.execute(sql.SELECT_RESERVED).mappings()]
    waiting = [_lock(dict(row), row["since"]) for row in connection.execute(sql.SELECT_WAITING).mappings()]
    return [*held, *(_with_edges(lock, held, waiting) for lock in waiting)]


def _with_edges(lock: Lock, held: Iterable[Lock], waiting: Iterable[Lock]) -> Lock:
    others = [other for other in held if _is_in_the_way(other, lock)]
    # It is not held up by an older one that waits for a reservation of its own.
    own = [mine for mine in held if mine.transaction_id == lock.transaction_id and mine.name == lock.name]
    queued = [other for other in waiting if _is_in_the_way(other, lock) and other.age < lock.age]
    queued = [other for other in queued if not any(mine.reservation.excludes(other.reservation) for mine in own)]
    ids = dict.fromkeys(other.transaction_id for other in (*others, *queued))
    return Lock(lock.transaction_id, lock.catalog, lock.path, lock.reservation, lock.age, lock.since, tuple(ids))


def _is_in_the_way(other: Lock, lock: Lock) -> bool:
    is_another = other.transaction_id != lock.transaction_id and other.name == lock.name
    return is_another and other.reservation.excludes(lock.reservation)


def _lock(row: Mapping[str, Any], since: float | None = None) -> Lock:
    path = ObjectPath.from_document(json.loads(row["path"]))
    age = (row["age"], row["transaction_id"])
    return Lock(row["transaction_id"], row["catalog"], path, reservation_of(row["mode"], row["scope"]), age, since)


def _circle(graph: Mapping[str, Iterable[str]], start: str) -> list[str]:
    """Return the shortest way from a transaction to itself, without the end."""
    ways = deque([[start]])
    seen = {start}
    while ways:
        way = ways.popleft()
        for following in graph.get(way[-1], ()):
            if following == start:
                return way
            if following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return []

"""Pruning of transactions that ended long ago: the timeline keeps only their ids and how they ended.

A stamp in a store may outlive its transaction's row by years (a version that is superseded late, a snapshot). It must
still be known that the transaction was one of this timeline and has ended: leftovers of an unknown transaction are
kept, because it may be alive on another timeline. So the ids are kept, packed into eight bytes each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import sqlalchemy as sa

from twophase.protocol.states import TransactionState
from twophase.timeline import schema_versions
from twophase.timeline.commit_order import oldest_snapshot
from twophase.timeline.ids import Parts, parts_of
from twophase.timeline.tables import (
    LEFT_BEHIND,
    changes,
    ended,
    lock_for_all,
    participants,
    reservations,
    transactions,
    waits,
)

_SIZE = 8
_CODES = {TransactionState.COMPLETED: b"c", TransactionState.ROLLED_BACK: b"r"}
_STATES = {code: state for state, code in _CODES.items()}
#: Batch size, limited by the number of parameters that a database allows in a statement.
_AT_ONCE = 500


def prune(connection: sa.Connection, now: float, seconds: float, limit: int) -> int:
    """Prune transactions without leftovers that ended so many seconds ago, the oldest first; return their number."""
    lock_for_all(connection)
    c = transactions.c
    ids_of_ours = c.id.like("%-________t______-________")
    final = c.state.in_([state.value for state in _CODES])
    # A snapshot finds out by its changes that a table is no longer in its state.
    oldest = oldest_snapshot(connection, now)
    unneeded = sa.true() if oldest is None else c.number.is_(None) | (c.number <= oldest)
    old = sa.select(c.id, c.state).where(c.finished < now - seconds, ~LEFT_BEHIND, final, ids_of_ours, unneeded)
    rows = connection.execute(old.order_by(c.finished).limit(limit).with_for_update()).all()
    found = {parts: TransactionState(state) for key, state in rows if (parts := parts_of(key))}
    _remember(connection, found)
    ids = [parts.id for parts in found]
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        schema_versions.keep(connection, some)
        for table in (reservations, waits, changes, participants):
            connection.execute(table.delete().where(table.c.transaction_id.in_(some)))
        connection.execute(transactions.delete().where(c.id.in_(some)))
    if ids:
        schema_versions.forget_dropped(connection)
    return len(ids)


def how_ended(connection: sa.Connection, transaction_id: str) -> TransactionState | None:
    """Return how a pruned transaction ended; None if it is not known to have been on this timeline."""
    parts = parts_of(transaction_id)
    packed = parts and _packed(connection, parts.coordinator, parts.day)
    if not parts or not packed:
        return None
    key = parts.packed()
    for start in range(0, len(packed), _SIZE):
        if packed[start : start + _SIZE - 1] == key:
            return _STATES.get(packed[start + _SIZE - 1 : start + _SIZE])
    return None


def _remember(connection: sa.Connection, found: Mapping[Parts, TransactionState]) -> None:
    days: dict[tuple[str, str], list[bytes]] = defaultdict(list)
    for parts, state in found.items():
        days[parts.coordinator, parts.day].append(parts.packed() + _CODES[state])
    for (coordinator, day), keys in days.items():
        before, more = _packed(connection, coordinator, day), b"".join(keys)
        if before is None:
            connection.execute(ended.insert().values(coordinator=coordinator, day=day, ids=more))
        else:
            connection.execute(ended.update().where(_is(coordinator, day)).values(ids=before + more))


def _packed(connection: sa.Connection, coordinator: str, day: str) -> bytes | None:
    found = connection.scalar(sa.select(ended.c.ids).where(_is(coordinator, day)))
    return None if found is None else bytes(found)


def _is(coordinator: str, day: str) -> sa.ColumnElement[bool]:
    return (ended.c.coordinator == coordinator) & (ended.c.day == day)

"""The order of commits: which transaction changed which table, and what a snapshot contains.

A transaction that has published gets the next commit number when it is recorded as completed. The snapshot of a
transaction is the last commit number at its beginning: it contains all transactions up to it, and none that has decided
but not yet completed. Modelled on the database timeline of Hudi's RFC-73.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from twophase.catalog.schema_versions import SchemaChange
from twophase.catalog.snapshots import Change
from twophase.errors import WriteConflictError
from twophase.model import ObjectPath
from twophase.protocol.states import TransactionState
from twophase.timeline import schema_versions
from twophase.timeline import statements as sql
from twophase.timeline.reservations import Mode, Reservation
from twophase.timeline.rows import load, reservation_columns, reservation_of
from twophase.timeline.tables import lock_for_all, lock_order, target_key, transactions


@dataclass(frozen=True)
class Decided:
    """A change that a transaction has decided to publish.

    Attributes
    ----------
    catalog : str
    path : ObjectPath
        The canonical name of the table.
    reservation : Reservation
        What it changes.
    before : Any
        What the catalog needs to read the state before it.
    schema : SchemaChange or None
        What it changes of the columns; None for a change of rows only.
    """

    catalog: str
    path: ObjectPath
    reservation: Reservation
    before: Any = None
    schema: SchemaChange | None = None


@dataclass(frozen=True)
class Check:
    """The condition that a table has not changed since a snapshot.

    Attributes
    ----------
    catalog : str
    path : ObjectPath
        The canonical name of the table.
    snapshot : int
        The last commit number that the transaction has seen of it.
    reservation : Reservation or None
        Only changes that exclude this one count, and none of the definition alone, which the store judges; None if the
        table was read: then all do.
    only_drops : bool
        Whether nothing counts but that the table was dropped: what has its name now is another one.
    """

    catalog: str
    path: ObjectPath
    snapshot: int
    reservation: Reservation | None = None
    only_drops: bool = False


def last_number(connection: sa.Connection) -> int:
    """Return the last commit number."""
    return int(connection.scalar(sql.SELECT_LAST) or 0)


def knows_all_since(connection: sa.Connection, number: int) -> bool:
    """Return whether all transactions with a later commit number are still on the timeline."""
    last, c = last_number(connection), transactions.c
    known = sa.select(sa.func.count()).select_from(transactions).where(c.number > number, c.number <= last)
    return int(connection.scalar(known) or 0) == last - number


def changes_since(
    connection: sa.Connection, catalog: str, path: ObjectPath, snapshot: int, transaction_id: str
) -> list[Change]:
    """Load the changes of a table by other transactions that are not in a snapshot; last those without a number."""
    of_it = {"of_target": target_key(catalog, path), "of_snapshot": snapshot, "of_id": transaction_id}
    found = [
        Change(
            row.transaction_id,
            row.number,
            row.mode == Mode.APPEND.value,
            reservation_of(row.mode, row.scope).scope,
            None if row.before is None else json.loads(row.before),
            row.mode == Mode.ALTER.value,
            row.mode == Mode.DROP.value,
        )
        for row in connection.execute(sql.SELECT_CHANGES, of_it)
    ]
    return sorted(found, key=lambda change: (change.number is None, change.number or 0, change.transaction_id))


def oldest_snapshot(connection: sa.Connection, now: float) -> int | None:
    """Return the oldest snapshot that an open transaction may still read; None if there is none.

    One whose process is certainly gone reads nothing any more, also if it cannot be recovered from here.
    """
    c = transactions.c
    reading = c.state.in_([state.value for state in TransactionState if state.is_undecided])
    opened = load(connection, c.finished.is_(None) & reading & c.snapshot.is_not(None))
    return min((r.snapshot for r in opened if r.snapshot is not None and not r.is_certainly_dead(now)), default=None)


def needed_since(connection: sa.Connection, now: float) -> float | None:
    """Return when the first change that some open snapshot does not contain was decided; None if there is none."""
    c = transactions.c
    snapshot = oldest_snapshot(connection, now)
    if snapshot is None:
        return None
    # A completed transaction without a number has changed nothing.
    decided = c.state.in_([TransactionState.COMMITTING.value, TransactionState.IN_DOUBT.value])
    pending = c.finished.is_(None) & decided
    # Apart: a database uses an index for each, and hardly for both together.
    first_of = [sa.select(sa.func.min(c.decided)).where(which) for which in (pending, c.number > snapshot)]
    found = [connection.scalar(query) for query in first_of]
    return min((float(decided_at) for decided_at in found if decided_at is not None), default=None)


def decide(
    connection: sa.Connection,
    transaction_id: str,
    changes: Iterable[Decided],
    checks: Iterable[Check],
    now: float,
) -> None:
    """Validate a transaction, and insert its changes, in the database transaction that records its decision.

    Raises
    ------
    WriteConflictError
        Another transaction has changed what it has read or writes.
    """
    wanted = list(checks)
    if any(check.reservation is None for check in wanted):
        # Of two that have each read what the other one writes, the second must see the changes of the first.
        lock_for_all(connection)
    for check in wanted:
        _require_unchanged(connection, transaction_id, check)
    connection.execute(sql.DELETE_CHANGES, {"of_id": transaction_id})  # Of an attempt whose reply was lost.
    for change in sorted(changes, key=lambda change: lock_order(change.catalog, change.path)):
        row = {
            "target": target_key(change.catalog, change.path),
            "transaction_id": transaction_id,
            "before": None if change.before is None else json.dumps(change.before, ensure_ascii=False),
            **reservation_columns(change.reservation),
        }
        connection.execute(sql.INSERT_CHANGE, row)
        if change.schema is not None:
            schema_versions.record(connection, row["target"], change.schema, now, transaction_id)


def _require_unchanged(connection: sa.Connection, transaction_id: str, check: Check) -> None:
    changes = changes_since(connection, check.catalog, check.path, check.snapshot, transaction_id)
    if (conflict := conflict_of(transaction_id, check, changes)) is not None:
        raise conflict


def conflict_of(transaction_id: str, check: Check, changes: Iterable[Change]) -> WriteConflictError | None:
    """Return the error for the first change that does not go with a transaction; None if all do."""
    return next((_conflict(transaction_id, check, change) for change in changes if _counts(check, change)), None)


def _counts(check: Check, change: Change) -> bool:
    if check.only_drops:
        return change.drops
    theirs = Reservation(Mode.APPEND if change.appends else Mode.WRITE, change.scope)
    return check.reservation is None or (not change.alters and check.reservation.excludes(theirs))


def _conflict(transaction_id: str, check: Check, change: Change) -> WriteConflictError:
    name = f"{check.catalog}.{check.path}"
    verb = "reads" if check.reservation is None else "writes"
    return WriteConflictError(
        f"Transaction {transaction_id} {verb} table {name}, which transaction {change.transaction_id} has changed "
        "since it began; nothing was published.",
        path=name,
        transaction_id=transaction_id,
        hint="Run the transaction again: it will see the new state. twophase.run does so by itself.",
    )


def number_changes(connection: sa.Connection, transaction_id: str) -> None:
    """Give a completed transaction its commit number, if it has changed anything. Idempotent."""
    mine = {"of_id": transaction_id}
    if connection.execute(sql.NEXT_NUMBER, mine).rowcount:
        connection.execute(sql.NUMBER_CHANGES, mine)
        connection.execute(sql.NUMBER_TRANSACTION, mine)

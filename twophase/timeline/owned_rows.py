"""The rows of one transaction, written by its owner inside a database transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from twophase.errors import LeaseLostError
from twophase.model import ObjectPath
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.timeline import engines, waits
from twophase.timeline import statements as sql
from twophase.timeline.owners import Lease, Owner
from twophase.timeline.records import ParticipantRecord, TransactionRecord, describe_error
from twophase.timeline.reservations import Reservation
from twophase.timeline.rows import holders_of, owner_columns, reservation_columns
from twophase.timeline.tables import lock_target, path_text, target_key, transactions
from twophase.timeline.waits import Wound

#: The end state of a participant that was to be published.
PARTICIPANT_END = {
    TransactionState.COMPLETED: ParticipantState.PUBLISHED,
    TransactionState.ROLLED_BACK: ParticipantState.ABORTED,
}


def own(connection: sa.Connection, lease: Lease, **values: Any) -> None:
    """Write to our row and renew the lease, if the transaction is still ours; a finished one has no owner."""
    values = {**lease_columns(connection, engines.now(connection), lease.seconds), **values}
    if values.get("state") == TransactionState.IN_DOUBT.value:
        values["lease_until"] = 0.0  # No process works on it until the lease is renewed.
    state = values.get("state")
    final = frozenset(end.value for end in PARTICIPANT_END if end.value != state) if state else frozenset()
    of_us = {"of_id": lease.transaction_id, "of_fencing": lease.fencing}
    if connection.execute(sql.update_own(final), {**values, **of_us}).rowcount != 1:
        raise LeaseLostError(
            f"Transaction {lease.transaction_id} was taken over by another process.",
            transaction_id=lease.transaction_id,
            hint=f"See what became of it: twophase show {lease.transaction_id}",
        )


def insert_transaction(
    connection: sa.Connection, lease: Lease, owner: Owner, now: float, columns: Mapping[str, Any]
) -> None:
    """Insert a new transaction, replacing the row of an earlier attempt whose reply was lost."""
    connection.execute(sql.DELETE_TRANSACTION, {"of_id": lease.transaction_id})
    row = {
        **columns,
        "id": lease.transaction_id,
        "user": columns["user"][:255],
        "application": columns["application"][:255],
        "fencing": lease.fencing,
        "created": now,
        **lease_columns(connection, now, lease.seconds),
        **owner_columns(owner),
    }
    connection.execute(sql.INSERT_TRANSACTION, row)


def insert_participant(connection: sa.Connection, lease: Lease, record: ParticipantRecord) -> None:
    """Insert a participant, replacing the row of an earlier attempt whose reply was lost."""
    connection.execute(sql.DELETE_PARTICIPANT, {"of_id": lease.transaction_id, "of_ordinal": record.ordinal})
    row = {
        "transaction_id": lease.transaction_id,
        "ordinal": record.ordinal,
        "catalog": record.catalog,
        "path": path_text(record.path),
        "purpose": record.purpose.value,
        "document": json_of(record.document),
        "state": record.state.value,
    }
    connection.execute(sql.INSERT_PARTICIPANT, row)


def set_participant(connection: sa.Connection, lease: Lease, ordinal: int, **values: Any) -> None:
    of_it = {"of_id": lease.transaction_id, "of_ordinal": ordinal}
    connection.execute(sql.UPDATE_PARTICIPANT, {**values, **of_it})


def end_participants(connection: sa.Connection, lease: Lease, end: ParticipantState) -> None:
    connection.execute(sql.END_PARTICIPANTS, {"of_id": lease.transaction_id, "state": end.value})


def take_over(
    connection: sa.Connection, record: TransactionRecord, owner: Owner, seconds: float, wound: Wound | None
) -> bool:
    """Give the row of a transaction another owner, if it is as it was read; return whether it was."""
    now = engines.now(connection)
    c = transactions.c
    if not (record.state.is_undecided and record.is_open if wound else record.is_dead(now)):
        return False
    unchanged = (c.id == record.id) & (c.fencing == record.fencing) & (c.state == record.state.value)
    if wound is None and (record.lease_until == 0 or not record.is_abandoned()):
        unchanged &= c.lease_until == record.lease_until  # Neither renewed nor resumed since it was read.
    values: dict[str, Any] = {"fencing": record.fencing + 1, "finished": None}
    values |= lease_columns(connection, now, seconds) | owner_columns(owner)
    if not record.is_abandoned():
        values["silent_since"] = now
    if wound is not None:
        unchanged &= c.finished.is_(None)
        values |= {"wounded_by": wound.by, "error": describe_error(wound.why)}
    return connection.execute(transactions.update().where(unchanged).values(values)).rowcount == 1


def lease_columns(connection: sa.Connection, now: float, seconds: float) -> dict[str, Any]:
    steady = engines.steady_now(connection)
    return {
        "lease_until": now + seconds,
        "lease_steady": None if steady is None else steady + seconds,
        "lease_seconds": seconds,
    }


def json_of(document: Mapping[str, Any] | None) -> str | None:
    return None if document is None else json.dumps(document, ensure_ascii=False, sort_keys=True)


def reserve(
    connection: sa.Connection, transaction_id: str, catalog: str, path: ObjectPath, wanted: Reservation
) -> str | None:
    """Reserve one table, unless another transaction keeps it; then return that one. Idempotent."""
    key = target_key(catalog, path)
    lock_target(connection, key)
    holders = holders_of(connection, key)
    own = holders.pop(transaction_id, None)
    if excluding := next((holder for holder, held in holders.items() if held.excludes(wanted)), None):
        return excluding
    if waiting := waits.older_waiter(connection, key, transaction_id, wanted, own):
        return waiting
    waits.stop_waiting(connection, transaction_id)
    if own is not None:
        connection.execute(sql.DELETE_RESERVATION, {"of_target": key, "of_id": transaction_id})
    row = {"target": key, "transaction_id": transaction_id, "catalog": catalog, "path": path_text(path)}
    connection.execute(sql.INSERT_RESERVATION, {**row, **reservation_columns(wanted)})
    return None

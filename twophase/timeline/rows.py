"""Conversion between the timeline's rows and records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from twophase.model import Level, ObjectPath, Purpose
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.timeline import statements as sql
from twophase.timeline.owners import Owner
from twophase.timeline.records import ParticipantRecord, TransactionRecord
from twophase.timeline.reservations import Mode, Reservation
from twophase.timeline.tables import participants, transactions


def owner_columns(owner: Owner) -> dict[str, Any]:
    """Return the columns in which a process is stored."""
    columns = ("host", "boot_id", "pid", "pid_started", "token")
    return {name: getattr(owner, name) for name in columns}


def holders_of(connection: sa.Connection, key: str) -> dict[str, Reservation]:
    """Load the open transactions that have reserved a target, with their reservations."""
    rows = connection.execute(sql.SELECT_HOLDERS, {"of_target": key})
    return {row.transaction_id: reservation_of(row.mode, row.scope) for row in rows}


def reservation_of(mode: str, scope: str | None) -> Reservation:
    """Return the reservation that is stored in two columns."""
    return Reservation(Mode(mode), None if scope is None else frozenset(json.loads(scope)))


def reservation_columns(reservation: Reservation) -> dict[str, Any]:
    """Return the columns in which a reservation is stored."""
    scope = None if reservation.scope is None else json.dumps(sorted(reservation.scope), ensure_ascii=False)
    return {"mode": reservation.mode.value, "scope": scope}


def load(
    connection: sa.Connection, condition: sa.ColumnElement[bool], limit: int | None = None
) -> list[TransactionRecord]:
    """Load transactions with their participants, the newest first."""
    newest = sa.select(transactions).where(condition).order_by(transactions.c.created.desc(), transactions.c.id.desc())
    rows = connection.execute(newest.limit(limit)).mappings().all()
    ids = [row["id"] for row in rows]
    found: dict[str, list[ParticipantRecord]] = {transaction_id: [] for transaction_id in ids}
    for start in range(0, len(ids), 500):
        some = participants.c.transaction_id.in_(ids[start : start + 500])
        for row in connection.execute(sa.select(participants).where(some).order_by(participants.c.ordinal)).mappings():
            found[row["transaction_id"]].append(_participant_record(dict(row)))
    return [_transaction_record(dict(row), tuple(found[row["id"]])) for row in rows]


def _participant_record(row: Mapping[str, Any]) -> ParticipantRecord:
    return ParticipantRecord(
        ordinal=row["ordinal"],
        catalog=row["catalog"],
        path=ObjectPath.from_document(json.loads(row["path"])),
        purpose=Purpose(row["purpose"]),
        state=ParticipantState(row["state"]),
        level=None if row["level"] is None else Level(row["level"]),
        document=None if row["document"] is None else json.loads(row["document"]),
    )


def _transaction_record(row: Mapping[str, Any], found: tuple[ParticipantRecord, ...]) -> TransactionRecord:
    return TransactionRecord(
        id=row["id"],
        coordinator=row["coordinator"],
        user=row["user"],
        application=row["application"],
        owner=Owner(row["host"], row["boot_id"], row["pid"], row["pid_started"], row["token"] or ""),
        state=TransactionState(row["state"]),
        fencing=row["fencing"],
        lease_until=row["lease_until"],
        lease_steady=row["lease_steady"],
        lease_seconds=row["lease_seconds"],
        silent_since=row["silent_since"],
        created=row["created"],
        decided=row["decided"],
        finished=row["finished"],
        level=None if row["level"] is None else Level(row["level"]),
        error=row["error"],
        left_behind=tuple(json.loads(row["left_behind"] or "[]")),
        participants=found,
        isolation=row["isolation"],
        snapshot=row["snapshot"],
        number=row["number"],
        first_begun=row["first_begun"],
        wounded_by=row["wounded_by"],
        undoes=row["undoes"],
    )

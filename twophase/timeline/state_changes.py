"""The change of a transaction's state, with all that becomes durable together with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from twophase.model import Level
from twophase.protocol.states import TransactionState
from twophase.timeline import commit_order, engines, owned_rows
from twophase.timeline.commit_order import Check, Decided
from twophase.timeline.owners import Lease
from twophase.timeline.records import ParticipantRecord, describe_error


@dataclass(frozen=True)
class StateChange:
    """A new state; the attributes are the parameters of :meth:`twophase.timeline.timeline.Timeline.record`."""

    state: TransactionState
    level: Level | None = None
    error: BaseException | str | None = None
    left_behind: tuple[str, ...] = ()
    prepared: tuple[ParticipantRecord, ...] = ()
    changes: tuple[Decided, ...] = ()
    checks: tuple[Check, ...] = ()

    def write(self, connection: sa.Connection, lease: Lease) -> None:
        """Write it, if the transaction is still the lease's.

        Raises
        ------
        LeaseLostError
            Another process has taken the transaction over, or its outcome is already recorded.
        WriteConflictError
            One of the checks has failed.
        """
        now = engines.now(connection)
        owned_rows.own(connection, lease, **self._columns(now))
        for record in self.prepared:
            level = None if record.level is None else int(record.level)
            known = {"document": owned_rows.json_of(record.document), "state": record.state.value, "level": level}
            owned_rows.set_participant(connection, lease, record.ordinal, **known)
        self._order(connection, lease.transaction_id, now)
        if self.state in owned_rows.PARTICIPANT_END:
            owned_rows.end_participants(connection, lease, owned_rows.PARTICIPANT_END[self.state])

    def _columns(self, now: float) -> dict[str, Any]:
        values: dict[str, Any] = {"state": self.state.value, "left_behind": json.dumps(self.left_behind)}
        if self.state in (TransactionState.COMMITTING, TransactionState.ROLLED_BACK):
            values["decided"] = now
        if self.level is not None:
            values["level"] = int(self.level)
        if self.error is not None:
            values["error"] = describe_error(self.error)
        return values

    def _order(self, connection: sa.Connection, transaction_id: str, now: float) -> None:
        """Write the changes of tables, which get their number with the end."""
        if self.state is TransactionState.COMMITTING:
            commit_order.decide(connection, transaction_id, self.changes, self.checks, now)
        elif self.state is TransactionState.ROLLED_BACK and not self.prepared:
            return  # They are withdrawn once it has ended: until then readers may see a part of them.
        elif self.state.is_final:  # Also if an operator has ended it as rolled back although a part is published.
            commit_order.number_changes(connection, transaction_id)

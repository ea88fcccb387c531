"""The timeline: the durable record of transactions, on SQLAlchemy.

SQLite is the default, safe for many processes on one machine; PostgreSQL is for drivers on several machines. Each write
of an owner contains its fencing number and has no effect once another process has taken the transaction over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from twophase.catalog.schema_versions import SchemaChange
from twophase.errors import LeaseLostError
from twophase.failpoints import Failpoint, step
from twophase.model import Isolation, Level, ObjectPath
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.timeline import engines, immediate, owned_rows, pruning, savepoints, waits
from twophase.timeline import statements as sql
from twophase.timeline.commit_order import Check, Decided
from twophase.timeline.immediate import Immediate
from twophase.timeline.owners import Lease, Owner, clock, inherited
from twophase.timeline.reader import TimelineReader
from twophase.timeline.records import ParticipantRecord, TransactionRecord
from twophase.timeline.reservations import Mode, Reservation
from twophase.timeline.savepoints import SavepointRecord
from twophase.timeline.state_changes import StateChange
from twophase.timeline.tables import target_key, transactions
from twophase.timeline.waits import Wound

__all__ = ["Timeline"]

_T = TypeVar("_T")

RECORD_INFLIGHT = Failpoint("core.record_inflight")
RECORD_SNAPSHOT = Failpoint("core.record_snapshot")
SAVE_PARTICIPANT = Failpoint("core.save_participant")
RESERVE = Failpoint("core.reserve")
RECORD_COMMITTING = Failpoint("core.record_committing")
RECORD_COMPLETED = Failpoint("core.record_completed")
RECORD_ROLLED_BACK = Failpoint("core.record_rolled_back")
RECORD_IN_DOUBT = Failpoint("core.record_in_doubt")
RECORD_FINISHED = Failpoint("core.record_finished")
SUSPEND = Failpoint("core.suspend")
RECORD_SAVEPOINT = Failpoint("core.record_savepoint")
RECORD_IMMEDIATE = Failpoint("core.record_immediate")
RECORD_IMMEDIATE_END = Failpoint("core.record_immediate_end")
HEARTBEAT = Failpoint("core.heartbeat")
TAKE_OVER = Failpoint("core.take_over")

_RECORD_STEPS = {
    TransactionState.COMMITTING: RECORD_COMMITTING,
    TransactionState.COMPLETED: RECORD_COMPLETED,
    TransactionState.ROLLED_BACK: RECORD_ROLLED_BACK,
    TransactionState.IN_DOUBT: RECORD_IN_DOUBT,
}

#: Steps that need not wait for the disk: if a power failure loses them, recovery does the same without them. A later
#: step that waits includes them: ``INFLIGHT`` before anything is staged, ``COMMITTING`` before anything is published.
_NOT_WAITING = frozenset({RECORD_SNAPSHOT, SAVE_PARTICIPANT, RESERVE, RECORD_FINISHED, RECORD_IMMEDIATE_END, HEARTBEAT})


class Timeline(TimelineReader):
    """The record of transactions in one database.

    Parameters
    ----------
    url : str
        Any SQLAlchemy URL of a durable database; the parent directory of an SQLite file is created.
    create : bool
        Create the tables if they do not exist.
    password : str, optional
        The password of the database, if it is not part of the URL.

    Raises
    ------
    TimelineError
        It cannot be reached or read, is not a timeline, or was written by a newer or too old twophase.

    Notes
    -----
    Modelled on the database timeline of Hudi's RFC-73.
    """

    # -- the owner's writes -------------------------------------------------------------------------------------------

    def begin(
        self,
        transaction_id: str,
        first: ParticipantRecord | None,
        *,
        coordinator: str,
        owner: Owner,
        user: str,
        application: str,
        seconds: float,
        isolation: Isolation = Isolation.READ_COMMITTED,
        snapshot: int | None = None,
        begun_ago: float = 0.0,
    ) -> Lease:
        """Record a new transaction with its first participant, immediately as ``INFLIGHT``, and return its lease.

        Parameters
        ----------
        first : ParticipantRecord or None
            None for a transaction that has only read so far: its snapshot must be kept.
        snapshot : int, optional
            The last commit number that it sees.
        begun_ago : float
            How many seconds ago its first attempt began.
        """
        lease = Lease(transaction_id, 1, seconds)

        def insert(connection: sa.Connection) -> None:
            now = engines.now(connection)
            row = {
                "coordinator": coordinator,
                "user": user,
                "application": application,
                "state": TransactionState.INFLIGHT.value,
                "isolation": isolation.value,
                "snapshot": snapshot,
                "first_begun": now - begun_ago,
            }
            owned_rows.insert_transaction(connection, lease, owner, now, row)
            if first is not None:
                owned_rows.insert_participant(connection, lease, first)

        self._write(RECORD_INFLIGHT if first is not None else RECORD_SNAPSHOT, insert)
        return lease

    def forget(self, lease: Lease) -> None:
        """Forget a transaction that has only read."""

        def delete(connection: sa.Connection) -> None:
            owned_rows.own(connection, lease)
            for statement in (sql.DELETE_RESERVATIONS, sql.DELETE_WAIT, sql.DELETE_TRANSACTION):
                connection.execute(statement, {"of_id": lease.transaction_id})

        self._owned_write(RECORD_FINISHED, lease, delete)

    def enlist(self, lease: Lease, record: ParticipantRecord, *, supersedes: int | None = None) -> None:
        """Record another participant with its document."""

        def insert(connection: sa.Connection) -> None:
            owned_rows.own(connection, lease)
            owned_rows.insert_participant(connection, lease, record)
            if supersedes is not None:
                owned_rows.set_participant(connection, lease, supersedes, state=ParticipantState.SUPERSEDED.value)

        self._owned_write(RECORD_INFLIGHT, lease, insert)

    def save_participant(
        self,
        lease: Lease,
        ordinal: int,
        *,
        document: Mapping[str, Any] | None = None,
        state: ParticipantState | None = None,
    ) -> None:
        """Record the changes of a participant."""
        values: dict[str, Any] = {}
        if document is not None:
            values["document"] = owned_rows.json_of(document)
        if state is not None:
            values["state"] = state.value

        def update(connection: sa.Connection) -> None:
            owned_rows.own(connection, lease)
            owned_rows.set_participant(connection, lease, ordinal, **values)

        self._owned_write(SAVE_PARTICIPANT, lease, update)

    def discard(
        self,
        lease: Lease,
        states: Mapping[int, ParticipantState],
        *,
        released: Iterable[tuple[str, ObjectPath]] = (),
    ) -> None:
        """Record the end of some participants while their transaction continues, in one step.

        Parameters
        ----------
        lease : Lease
        states : mapping of int to ParticipantState
            Their new states, by ordinal, and those of the earlier ones that they had superseded.
        released : iterable of (str, ObjectPath)
            Catalog and table of the reservations that are given back.
        """
        keys = [target_key(catalog, path) for catalog, path in released]

        def update(connection: sa.Connection) -> None:
            owned_rows.own(connection, lease)
            for ordinal, state in states.items():
                owned_rows.set_participant(connection, lease, ordinal, state=state.value)
            for key in keys:
                connection.execute(sql.DELETE_RESERVATION, {"of_target": key, "of_id": lease.transaction_id})

        self._owned_write(SAVE_PARTICIPANT, lease, update)

    def record(
        self,
        lease: Lease,
        state: TransactionState,
        *,
        level: Level | None = None,
        error: BaseException | str | None = None,
        left_behind: tuple[str, ...] = (),
        prepared: Iterable[ParticipantRecord] = (),
        changes: Iterable[Decided] = (),
        checks: Iterable[Check] = (),
    ) -> None:
        """Make a state durable.

        Parameters
        ----------
        lease : Lease
        state : TransactionState
        level : Level, optional
            The level of the transaction.
        error : BaseException or str, optional
            Why it is rolled back or in doubt.
        left_behind : tuple of str
        prepared : iterable of ParticipantRecord
            With the decision: all participants after their ``prepare()``, so that their documents, which recovery
            needs, become durable together with it.
        changes : iterable of Decided
            With the decision: the tables that will be published.
        checks : iterable of Check
            With the decision: what must not have changed.

        Raises
        ------
        WriteConflictError
            One of the checks has failed.
        LeaseLostError
            Another process has taken the transaction over, or its outcome is already recorded.
        TimelineError
            It is unknown whether the state is durable.
        """
        change = StateChange(state, level, error, left_behind, tuple(prepared), tuple(changes), tuple(checks))
        self._owned_write(_RECORD_STEPS[state], lease, lambda connection: change.write(connection, lease))

    def completing(self, lease: Lease) -> Callable[[sa.Connection], None]:
        """Return a function that records ``COMPLETED`` in another transaction of the same database.

        It raises :class:`~twophase.errors.LeaseLostError` if another process has taken the transaction over.
        """
        change = StateChange(TransactionState.COMPLETED)
        return lambda connection: change.write(connection, lease)

    def finish(self, lease: Lease, left_behind: tuple[str, ...] = ()) -> None:
        """Record that nothing is left to do, release the reservations, and drop unneeded documents.

        What a transaction that was rolled back would have changed is withdrawn.
        """

        def update(connection: sa.Connection) -> None:
            owned_rows.own(connection, lease, finished=engines.now(connection), left_behind=json.dumps(left_behind))
            mine = {"of_id": lease.transaction_id}
            connection.execute(sql.DELETE_RESERVATIONS, mine)
            connection.execute(sql.DELETE_WAIT, mine)
            connection.execute(sql.WITHDRAW_CHANGES, mine)
            if not left_behind:
                connection.execute(sql.UPDATE_PARTICIPANTS, {**mine, "document": None})

        self._owned_write(RECORD_FINISHED, lease, update)

    def suspend(self, lease: Lease, unfinished: Iterable[tuple[str, ObjectPath]]) -> None:
        """Release the lease of a transaction whose outcome is recorded, but not what readers see: it stays open.

        Its other tables are released. Of one that is rolled back, what it would have changed of them is withdrawn.

        Parameters
        ----------
        lease : Lease
        unfinished : iterable of (str, ObjectPath)
            Catalog and table of what is left to remove. They are shared with no other append until then: readers may
            see some of its rows.
        """
        mine = {"of_id": lease.transaction_id, "of_targets": [target_key(*table) for table in unfinished]}

        def update(connection: sa.Connection) -> None:
            owned_rows.own(connection, lease, lease_until=0.0)
            connection.execute(sql.DELETE_OTHER_RESERVATIONS, mine)
            connection.execute(sql.WITHDRAW_OTHER_CHANGES, mine)
            connection.execute(sql.EXCLUDE_APPENDS, {"of_id": lease.transaction_id, "mode": Mode.WRITE.value})

        self._owned_write(SUSPEND, lease, update)

    def reserve_all(
        self, lease: Lease, wanted: Sequence[tuple[str, ObjectPath, Reservation]]
    ) -> tuple[int, str | None]:
        """Reserve tables for the transaction, one after the other, up to the first that another one keeps. Idempotent.

        All in one step. A reservation replaces the earlier one of its table.

        Parameters
        ----------
        lease : Lease
        wanted : sequence of (str, ObjectPath, Reservation)
            Catalog, table and reservation, in the order in which all transactions reserve: there are no deadlocks then.

        Returns
        -------
        tuple of int and str or None
            How many are reserved, and the transaction with a reservation that conflicts with the next one, or an older
            one that waits for that table.
        """

        def insert(connection: sa.Connection) -> tuple[int, str | None]:
            owned_rows.own(connection, lease)
            for number, (catalog, path, reservation) in enumerate(wanted):
                if holder := owned_rows.reserve(connection, lease.transaction_id, catalog, path, reservation):
                    return number, holder
            return len(wanted), None

        return self._owned_write(RESERVE, lease, insert)

    def wait_for(self, lease: Lease, catalog: str, path: ObjectPath, wanted: Reservation) -> list[str]:
        """Record that a transaction waits for a reservation, until it has it, unless it would wait for itself.

        Returns
        -------
        list of str
            The circle of transactions that it would close, the first one being itself; empty if there is none.
        """

        def insert(connection: sa.Connection) -> list[str]:
            owned_rows.own(connection, lease)
            return waits.wait(connection, lease.transaction_id, catalog, path, wanted, engines.now(connection))

        return self._owned_write(RESERVE, lease, insert)

    def stop_waiting(self, lease: Lease) -> None:
        """Record that a transaction no longer waits. Idempotent."""

        def delete(connection: sa.Connection) -> None:
            owned_rows.own(connection, lease)
            waits.stop_waiting(connection, lease.transaction_id)

        self._owned_write(RESERVE, lease, delete)

    # -- named savepoints ---------------------------------------------------------------------------------------------

    def add_savepoint(self, record: SavepointRecord) -> SavepointRecord:
        """Record a savepoint that is being created, before anything is kept, and return it with its times.

        Raises
        ------
        ConfigurationError
            There is one of this name.
        """
        return self._write(
            RECORD_SAVEPOINT,
            lambda connection: savepoints.add(connection, record, engines.now(connection)),
            retry=False,
        )

    def complete_savepoint(self, savepoint_id: str, documents: Iterable[Mapping[str, Any]], number: int) -> None:
        """Record that all tables of a savepoint are kept.

        Parameters
        ----------
        savepoint_id : str
        documents : iterable of mapping
            The document of each table, in order.
        number : int
            The last commit number in it.

        Raises
        ------
        TransactionAborted
            It has been removed meanwhile.
        """
        found = list(documents)
        self._write(RECORD_SAVEPOINT, lambda connection: savepoints.complete(connection, savepoint_id, found, number))

    def drop_savepoint(self, savepoint_id: str) -> None:
        """Record that a savepoint is being removed: nothing can be read of it any more. Idempotent."""
        self._write(RECORD_SAVEPOINT, lambda connection: savepoints.drop(connection, savepoint_id))

    def forget_savepoint(self, savepoint_id: str) -> None:
        """Delete a savepoint whose tables are no longer kept. Idempotent."""
        self._write(RECORD_SAVEPOINT, lambda connection: savepoints.forget(connection, savepoint_id))

    # -- changes that take effect immediately -------------------------------------------------------------------------

    def announce(
        self,
        transaction_id: str,
        changes: Sequence[Immediate],
        *,
        since: int,
        coordinator: str,
        owner: Owner,
        user: str,
        application: str,
        seconds: float,
    ) -> Lease:
        """Record changes of tables that a statement is about to make immediately, and return their lease.

        Parameters
        ----------
        transaction_id, coordinator, owner, user, application, seconds
            As in :meth:`begin`.
        changes : sequence of Immediate
        since : int
            The last commit number before the states of the tables were loaded.
        """
        lease = Lease(transaction_id, 1, seconds)

        def insert(connection: sa.Connection) -> None:
            now = engines.now(connection)
            row = {
                "coordinator": coordinator,
                "user": user,
                "application": application,
                "state": TransactionState.COMMITTING.value,
                "isolation": Isolation.READ_COMMITTED.value,
                "snapshot": None,
                "first_begun": now,
                "decided": now,
            }
            owned_rows.insert_transaction(connection, lease, owner, now, row)
            immediate.announce(connection, lease, changes, since)

        self._write(RECORD_IMMEDIATE, insert)
        return lease

    def settle(self, lease: Lease, schemas: Iterable[tuple[str, ObjectPath, SchemaChange]] = ()) -> None:
        """Record that changes which were announced are made.

        If that is lost, recovery does it, and their columns are found without knowing since when they have been so.

        Parameters
        ----------
        lease : Lease
        schemas : iterable of (str, ObjectPath, SchemaChange)
            Catalog, table, and what was changed of its columns.
        """
        found = tuple(schemas)
        self._owned_write(RECORD_IMMEDIATE_END, lease, lambda connection: immediate.settle(connection, lease, found))

    def revoke(self, lease: Lease) -> None:
        """Forget changes which were announced, and were not made."""
        self._owned_write(RECORD_IMMEDIATE_END, lease, lambda connection: immediate.revoke(connection, lease))

    # -- leases -------------------------------------------------------------------------------------------------------

    def renew(self, lease: Lease, **values: Any) -> None:
        """Renew a lease, and make sure that it is still ours.

        Parameters
        ----------
        lease : Lease
        **values
            New values of the transaction's columns.

        Raises
        ------
        LeaseLostError
            Another process has taken the transaction over.
        """
        self._owned_write(HEARTBEAT, lease, lambda connection: owned_rows.own(connection, lease, **values))

    def give_up(self, lease: Lease) -> None:
        """Release the lease, so that others can take the transaction over immediately."""
        self._owned_write(HEARTBEAT, lease, lambda connection: owned_rows.own(connection, lease, lease_until=0.0))

    def take_over(
        self, record: TransactionRecord, owner: Owner, seconds: float, wound: Wound | None = None
    ) -> Lease | None:
        """Take a transaction over from a dead owner, by compare-and-swap on its fencing number.

        A finished one is reopened, to remove its leftovers.

        Parameters
        ----------
        record : TransactionRecord
        owner : Owner
            The process that takes it over.
        seconds : float
            The duration of the lease.
        wound : Wound, optional
            Take it over from a live owner, as long as it is undecided, to roll it back.

        Returns
        -------
        Lease or None
            None if another process was faster, or if the owner has just renewed its lease.
        """

        def swap(connection: sa.Connection) -> bool:
            return owned_rows.take_over(connection, record, owner, seconds, wound)

        lease = Lease(record.id, record.fencing + 1, seconds)
        # Not retried: after a lost reply it would look as if another process had taken it over.
        return lease if self._write(TAKE_OVER, swap, retry=False) else None

    def shorten_lease(self, record: TransactionRecord) -> None:
        """Shorten a lease that lasts too long because the clock was set back, as if it started now.

        Its owner, if alive, renews it before it expires.
        """

        def update(connection: sa.Connection) -> None:
            c, until = transactions.c, engines.now(connection) + record.longest_lease
            same = (c.id == record.id) & (c.fencing == record.fencing) & (c.lease_until == record.lease_until)
            connection.execute(transactions.update().where(same & (c.lease_until > until)).values(lease_until=until))

        self._write(HEARTBEAT, update)

    # -- pruning -------------------------------------------------------------------------------------------------------

    def prune(self, seconds: float, *, limit: int) -> int:
        """Prune transactions without leftovers that ended this many seconds ago, except for how they ended.

        Parameters
        ----------
        seconds : float
        limit : int
            The maximum number; the oldest are pruned first.

        Returns
        -------
        int
            The number of pruned transactions.
        """

        def delete(connection: sa.Connection) -> int:
            return pruning.prune(connection, engines.now(connection), seconds, limit)

        with self._translated("write"):  # Not a step of a transaction; if a power failure loses it, it is repeated.
            return self._retrying(lambda: self._transact(delete, durable=False))

    # -- running ------------------------------------------------------------------------------------------------------

    def _owned_write(self, point: Failpoint, lease: Lease, operation: Callable[[sa.Connection], _T]) -> _T:
        if lease.pid != os.getpid():
            raise inherited(lease.transaction_id, lease.pid)
        asked_at = clock()
        try:
            result = self._write(point, operation)
        except LeaseLostError:
            lease.lost = True
            raise
        lease.renewed(asked_at)
        return result

    def _write(self, point: Failpoint, operation: Callable[[sa.Connection], _T], *, retry: bool = True) -> _T:
        durable = point not in _NOT_WAITING
        with self._translated("write"), step(point):
            if retry:
                return self._retrying(lambda: self._transact(operation, durable=durable))
            return self._transact(operation, durable=durable)

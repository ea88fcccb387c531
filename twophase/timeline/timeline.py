"""The timeline: the durable record of transactions, on SQLAlchemy.

SQLite is the default, safe for many processes on one machine; PostgreSQL is for drivers on several machines. Each write
of an owner contains its fencing number and has no effect once another process has taken the transaction over.
"""

from __future__ import annotations

import json
import os
import shlex
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from twophase.catalog.snapshots import Change
from twophase.errors import LeaseLostError, TimelineError, TwoPhaseError
from twophase.failpoints import Failpoint, step
from twophase.model import Isolation, Level, ObjectPath
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.timeline import commit_order, engines, pruning, savepoints, waits
from twophase.timeline import statements as sql
from twophase.timeline.commit_order import Check, Decided
from twophase.timeline.owners import Lease, Owner, clock, inherited
from twophase.timeline.records import ParticipantRecord, TransactionRecord, describe_error
from twophase.timeline.reservations import WHOLE_TABLE, Reservation
from twophase.timeline.rows import holders_of, load, owner_columns, reservation_columns
from twophase.timeline.savepoints import SavepointRecord
from twophase.timeline.tables import LEFT_BEHIND, ensure_tables, lock_target, path_text, target_key, transactions
from twophase.timeline.waits import Lock, Wound

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
RECORD_SAVEPOINT = Failpoint("core.record_savepoint")
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
_NOT_WAITING = frozenset({RECORD_SNAPSHOT, SAVE_PARTICIPANT, RESERVE, RECORD_FINISHED, HEARTBEAT})

#: The end state of a participant that was to be published.
_PARTICIPANT_END = {
    TransactionState.COMPLETED: ParticipantState.PUBLISHED,
    TransactionState.ROLLED_BACK: ParticipantState.ABORTED,
}


class Timeline:
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

    def __init__(self, url: str, *, create: bool = True, password: str | None = None) -> None:
        self._engine = engines.create(url, create=create, password=password)
        #: The URL with hidden secrets, for messages.
        self.display_url: str = engines.shown(engines.parsed(url))
        #: The option by which a suggested command finds this timeline; empty if the URL contains a secret.
        is_open = not engines.holds_secret(url)
        self.option: str = f" --timeline {shlex.quote(self.display_url)}" if is_open else ""
        self._pid = os.getpid()
        self._finalizer = self._release_at_the_end()
        try:
            with self._translated("open"):
                self._retrying(lambda: self._transact(lambda connection: ensure_tables(connection, create=create)))
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Timeline {self.display_url}>"

    def _release_at_the_end(self) -> weakref.finalize[..., Timeline]:
        """Release the connections at the end: Python 3.13 warns about unclosed connections."""
        return weakref.finalize(self, engines.release, self._engine, self._pid)

    def close(self) -> None:
        """Release the connections. Idempotent."""
        engines.release(self._engine, self._pid)

    @property
    def is_remote(self) -> bool:
        """Whether it is stored on a server, which may become unreachable."""
        return self._engine.dialect.name != "sqlite"

    def drop_connections(self) -> None:
        """Make the next requests open new connections; connections in use are not touched."""
        self._engine.dispose()

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
            connection.execute(sql.DELETE_TRANSACTION, {"of_id": transaction_id})
            row = {
                "id": transaction_id,
                "coordinator": coordinator,
                "user": user[:255],
                "application": application[:255],
                "state": TransactionState.INFLIGHT.value,
                "fencing": lease.fencing,
                "created": now,
                "isolation": isolation.value,
                "snapshot": snapshot,
                "first_begun": now - begun_ago,
                **_lease_columns(connection, now, seconds),
                **owner_columns(owner),
            }
            connection.execute(sql.INSERT_TRANSACTION, row)
            if first is not None:
                self._insert_participant(connection, lease, first)

        self._write(RECORD_INFLIGHT if first is not None else RECORD_SNAPSHOT, insert)
        return lease

    def forget(self, lease: Lease) -> None:
        """Forget a transaction that has only read."""

        def delete(connection: sa.Connection) -> None:
            self._own(connection, lease)
            for statement in (sql.DELETE_RESERVATIONS, sql.DELETE_WAIT, sql.DELETE_TRANSACTION):
                connection.execute(statement, {"of_id": lease.transaction_id})

        self._owned_write(RECORD_FINISHED, lease, delete)

    def enlist(self, lease: Lease, record: ParticipantRecord, *, supersedes: int | None = None) -> None:
        """Record another participant with its document."""

        def insert(connection: sa.Connection) -> None:
            self._own(connection, lease)
            self._insert_participant(connection, lease, record)
            if supersedes is not None:
                self._set_participant(connection, lease, supersedes, state=ParticipantState.SUPERSEDED.value)

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
            values["document"] = _json(document)
        if state is not None:
            values["state"] = state.value

        def update(connection: sa.Connection) -> None:
            self._own(connection, lease)
            self._set_participant(connection, lease, ordinal, **values)

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
            self._own(connection, lease)
            for ordinal, state in states.items():
                self._set_participant(connection, lease, ordinal, state=state.value)
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
        update = self._recording(
            lease,
            state,
            level=level,
            error=error,
            left_behind=left_behind,
            prepared=prepared,
            changes=changes,
            checks=checks,
        )
        self._owned_write(_RECORD_STEPS[state], lease, update)

    def is_in(self, database: sa.URL | None) -> bool:
        """Return whether the timeline is in a given database, so that one database transaction can write both."""
        return database is not None and engines.same_database(self._engine.url, database)

    def completing(self, lease: Lease) -> Callable[[sa.Connection], None]:
        """Return a function that records ``COMPLETED`` in another transaction of the same database.

        It raises :class:`~twophase.errors.LeaseLostError` if another process has taken the transaction over.
        """
        return self._recording(lease, TransactionState.COMPLETED)

    def _recording(
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
    ) -> Callable[[sa.Connection], None]:
        ready, decided, conditions = list(prepared), list(changes), list(checks)

        def update(connection: sa.Connection) -> None:
            now = engines.now(connection)
            values: dict[str, Any] = {"state": state.value}
            if state in (TransactionState.COMMITTING, TransactionState.ROLLED_BACK):
                values["decided"] = now
            if level is not None:
                values["level"] = int(level)
            if error is not None:
                values["error"] = describe_error(error)
            values["left_behind"] = json.dumps(left_behind)
            self._own(connection, lease, **values)
            for record in ready:
                level_of_it = None if record.level is None else int(record.level)
                known = {"document": _json(record.document), "state": record.state.value, "level": level_of_it}
                self._set_participant(connection, lease, record.ordinal, **known)
            if state is TransactionState.COMMITTING:
                commit_order.decide(connection, lease.transaction_id, decided, conditions)
            elif state is TransactionState.ROLLED_BACK and not ready:
                commit_order.withdraw_changes(connection, lease.transaction_id)
            elif state.is_final:  # Also if an operator has ended it as rolled back although a part is published.
                commit_order.number_changes(connection, lease.transaction_id)
            if state in _PARTICIPANT_END:
                self._end_participants(connection, lease, _PARTICIPANT_END[state])

        return update

    def finish(self, lease: Lease, left_behind: tuple[str, ...] = ()) -> None:
        """Record that nothing is left to do, release the reservations, and drop unneeded documents."""

        def update(connection: sa.Connection) -> None:
            self._own(connection, lease, finished=engines.now(connection), left_behind=json.dumps(left_behind))
            mine = {"of_id": lease.transaction_id}
            connection.execute(sql.DELETE_RESERVATIONS, mine)
            connection.execute(sql.DELETE_WAIT, mine)
            if not left_behind:
                connection.execute(sql.UPDATE_PARTICIPANTS, {**mine, "document": None})

        self._owned_write(RECORD_FINISHED, lease, update)

    def reserve(self, lease: Lease, catalog: str, path: ObjectPath, wanted: Reservation = WHOLE_TABLE) -> str | None:
        """Reserve a table for the transaction; replaces its earlier reservation of the table. Idempotent.

        Returns
        -------
        str or None
            None if it is reserved; else the id of a transaction that holds a conflicting reservation, or of an older
            one that waits for one.
        """
        return self.reserve_all(lease, [(catalog, path, wanted)])[1]

    def reserve_all(
        self, lease: Lease, wanted: Sequence[tuple[str, ObjectPath, Reservation]]
    ) -> tuple[int, str | None]:
        """Reserve tables for the transaction, one after the other, up to the first that another one keeps.

        All in one step, with the result of :meth:`reserve` for each of them.

        Parameters
        ----------
        lease : Lease
        wanted : sequence of (str, ObjectPath, Reservation)
            Catalog, table and reservation, in the order in which all transactions reserve: there are no deadlocks then.

        Returns
        -------
        tuple of int and str or None
            How many are reserved, and the holder of the next one, or an older transaction that waits for it.
        """

        def insert(connection: sa.Connection) -> tuple[int, str | None]:
            self._own(connection, lease)
            for number, (catalog, path, reservation) in enumerate(wanted):
                if holder := _reserve(connection, lease.transaction_id, catalog, path, reservation):
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
            self._own(connection, lease)
            return waits.wait(connection, lease.transaction_id, catalog, path, wanted, engines.now(connection))

        return self._owned_write(RESERVE, lease, insert)

    def stop_waiting(self, lease: Lease) -> None:
        """Record that a transaction no longer waits. Idempotent."""

        def delete(connection: sa.Connection) -> None:
            self._own(connection, lease)
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

    def savepoints(self) -> list[SavepointRecord]:
        """Load all savepoints with their tables, the newest first."""
        return self._read(savepoints.load)

    def savepoint(self, name: str) -> SavepointRecord | None:
        """Load a savepoint by its name; None if there is none."""
        found = self._read(lambda connection: savepoints.load(connection, name))
        return found[0] if found else None

    def drop_savepoint(self, savepoint_id: str) -> None:
        """Record that a savepoint is being removed: nothing can be read of it any more. Idempotent."""
        self._write(RECORD_SAVEPOINT, lambda connection: savepoints.drop(connection, savepoint_id))

    def forget_savepoint(self, savepoint_id: str) -> None:
        """Delete a savepoint whose tables are no longer kept. Idempotent."""
        self._write(RECORD_SAVEPOINT, lambda connection: savepoints.forget(connection, savepoint_id))

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
        self._owned_write(HEARTBEAT, lease, lambda connection: self._own(connection, lease, **values))

    def give_up(self, lease: Lease) -> None:
        """Release the lease, so that others can take the transaction over immediately."""
        self._owned_write(HEARTBEAT, lease, lambda connection: self._own(connection, lease, lease_until=0.0))

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
            now = engines.now(connection)
            c = transactions.c
            if not (record.state.is_undecided and record.is_open if wound else record.is_dead(now)):
                return False
            unchanged = (c.id == record.id) & (c.fencing == record.fencing) & (c.state == record.state.value)
            if wound is None and (record.lease_until == 0 or not record.is_abandoned()):
                unchanged &= c.lease_until == record.lease_until  # Neither renewed nor resumed since it was read.
            values: dict[str, Any] = {"fencing": record.fencing + 1, "finished": None}
            values |= _lease_columns(connection, now, seconds) | owner_columns(owner)
            if not record.is_abandoned():
                values["silent_since"] = now
            if wound is not None:
                unchanged &= c.finished.is_(None)
                values |= {"wounded_by": wound.by, "error": describe_error(wound.why)}
            return connection.execute(transactions.update().where(unchanged).values(values)).rowcount == 1

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

    # -- readers ------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time of the clock used for leases on this timeline, in seconds since the epoch."""
        return self._read(engines.now)

    def transaction(self, transaction_id: str) -> TransactionRecord | None:
        """Load a transaction with its participants; None if it is unknown to the timeline."""
        found = self._read(lambda connection: load(connection, transactions.c.id == transaction_id))
        return found[0] if found else None

    def transactions(
        self,
        *,
        open_only: bool = False,
        left_behind: bool = False,
        coordinator: str | None = None,
        limit: int | None = None,
    ) -> list[TransactionRecord]:
        """Load transactions with their participants, the newest first.

        Parameters
        ----------
        open_only : bool
            Only those with something left to do.
        left_behind : bool
            Only those with leftovers.
        coordinator : str, optional
            Only those of one coordinator.
        limit : int, optional
            The maximum number.
        """
        condition: sa.ColumnElement[bool] = sa.true()
        if open_only:
            condition &= transactions.c.finished.is_(None)
        if left_behind:
            condition &= LEFT_BEHIND
        if coordinator is not None:
            # Open ones are few, all of a coordinator may be millions: prevent the use of the index on the coordinator.
            name = transactions.c.coordinator.concat("") if open_only else transactions.c.coordinator
            condition &= name == coordinator
        return self._read(lambda connection: load(connection, condition, limit))

    def last_number(self) -> int:
        """Return the last commit number: a snapshot of all transactions that are completed now."""
        return self._read(commit_order.last_number)

    def changes_since(self, catalog: str, path: ObjectPath, snapshot: int, transaction_id: str) -> list[Change]:
        """Return the changes of a table by other transactions that a snapshot does not contain, in their order.

        Ask after a state of the table has been read: whatever is in it and not in the snapshot is then among them.

        Parameters
        ----------
        catalog : str
        path : ObjectPath
            The canonical name of the table.
        snapshot : int
            From :meth:`last_number`.
        transaction_id : str
            The transaction that asks.

        Returns
        -------
        list of Change
            Last those that may not have been published yet.
        """
        return self._read(
            lambda connection: commit_order.changes_since(connection, catalog, path, snapshot, transaction_id)
        )

    def needed_since(self) -> float | None:
        """Return since when superseded states must be kept for open snapshots, in seconds since the epoch.

        Returns
        -------
        float or None
            When the first change was decided that some open snapshot does not contain; None if nothing must be kept.
        """
        return self._read(lambda connection: commit_order.needed_since(connection, engines.now(connection)))

    def locks(self) -> list[Lock]:
        """Return all reservations of open transactions, and then all for which they wait."""
        return self._read(waits.locks)

    def holders(self, catalog: str, path: ObjectPath) -> dict[str, Reservation]:
        """Return the transactions that have reserved a table, the oldest first, with their reservations."""
        return self._read(lambda connection: holders_of(connection, target_key(catalog, path)))

    def how_ended(self, transaction_id: str) -> TransactionState | None:
        """Return how a pruned transaction ended; None if it is not known to have been on this timeline."""
        return self._read(lambda connection: pruning.how_ended(connection, transaction_id))

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
            return self._retrying(lambda: self._transact(delete, twophase_durable=False))

    # -- inside a database transaction --------------------------------------------------------------------------------

    @staticmethod
    def _own(connection: sa.Connection, lease: Lease, **values: Any) -> None:
        """Write to our row and renew the lease, if the transaction is still ours; a finished one has no owner."""
        values = {**_lease_columns(connection, engines.now(connection), lease.seconds), **values}
        if values.get("state") == TransactionState.IN_DOUBT.value:
            values["lease_until"] = 0.0  # No process works on it until the lease is renewed.
        state = values.get("state")
        final = frozenset(end.value for end in _PARTICIPANT_END if end.value != state) if state else frozenset()
        of_us = {"of_id": lease.transaction_id, "of_fencing": lease.fencing}
        if connection.execute(sql.update_own(final), {**values, **of_us}).rowcount != 1:
            raise LeaseLostError(
                f"Transaction {lease.transaction_id} was taken over by another process.",
                transaction_id=lease.transaction_id,
                hint=f"See what became of it: twophase show {lease.transaction_id}",
            )

    @staticmethod
    def _insert_participant(connection: sa.Connection, lease: Lease, record: ParticipantRecord) -> None:
        """Insert a participant, replacing the row of an earlier attempt whose reply was lost."""
        connection.execute(sql.DELETE_PARTICIPANT, {"of_id": lease.transaction_id, "of_ordinal": record.ordinal})
        row = {
            "transaction_id": lease.transaction_id,
            "ordinal": record.ordinal,
            "catalog": record.catalog,
            "path": path_text(record.path),
            "purpose": record.purpose.value,
            "document": _json(record.document),
            "state": record.state.value,
        }
        connection.execute(sql.INSERT_PARTICIPANT, row)

    @staticmethod
    def _set_participant(connection: sa.Connection, lease: Lease, ordinal: int, **values: Any) -> None:
        of_it = {"of_id": lease.transaction_id, "of_ordinal": ordinal}
        connection.execute(sql.UPDATE_PARTICIPANT, {**values, **of_it})

    @staticmethod
    def _end_participants(connection: sa.Connection, lease: Lease, end: ParticipantState) -> None:
        connection.execute(sql.END_PARTICIPANTS, {"of_id": lease.transaction_id, "state": end.value})

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
        options = {"twophase_durable": point not in _NOT_WAITING}
        with self._translated("write"), step(point):
            if retry:
                return self._retrying(lambda: self._transact(operation, **options))
            return self._transact(operation, **options)

    def _read(self, operation: Callable[[sa.Connection], _T]) -> _T:
        with self._translated("read"):
            return self._retrying(lambda: self._transact(operation, twophase_read_only=True))

    def _transact(self, operation: Callable[[sa.Connection], _T], **options: bool) -> _T:
        if self._pid != os.getpid():
            # Connections do not survive a fork; they belong to the parent.
            self._engine.dispose(close=False)
            self._pid = os.getpid()
            self._finalizer.detach()
            self._finalizer = self._release_at_the_end()
        with self._engine.connect().execution_options(**options) as connection, connection.begin():
            return operation(connection)

    @staticmethod
    def _retrying(operation: Callable[[], _T]) -> _T:
        """Retry an operation; all writes except a take-over may be repeated: they are conditional, or replace rows."""
        retrying = Retrying(
            retry=retry_if_exception(engines.is_transient),
            stop=stop_after_attempt(4),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            reraise=True,
        )
        return retrying(operation)

    @contextmanager
    def _translated(self, verb: str) -> Iterator[None]:
        try:
            yield
        except TimelineError as error:
            raise TimelineError(f"Cannot {verb} the timeline {self.display_url}: {error.message}.") from None
        except TwoPhaseError:
            raise
        except Exception as error:
            raise TimelineError(
                f"Cannot {verb} the timeline {self.display_url}: {engines.reason(error)}.",
                hint="Check spark.twophase.timeline, and that its place can be written.",
            ) from error


def _reserve(
    connection: sa.Connection, transaction_id: str, catalog: str, path: ObjectPath, wanted: Reservation
) -> str | None:
    """Reserve one table, unless another transaction keeps it; then return that one."""
    key = target_key(catalog, path)
    lock_target(connection, key)
    holders = holders_of(connection, key)
    own = holders.pop(transaction_id, None)
    if excluding := next((holder for holder, held in holders.items() if held.excludes(wanted)), None):
        return excluding
    if waiting := waits.older_waiter(connection, key, transaction_id, wanted, own):
        return waiting
    waits.stop_waiting(connection, transaction_id)
    connection.execute(sql.DELETE_RESERVATION, {"of_target": key, "of_id": transaction_id})
    row = {"target": key, "transaction_id": transaction_id, "catalog": catalog, "path": path_text(path)}
    connection.execute(sql.INSERT_RESERVATION, {**row, **reservation_columns(wanted)})
    return None


def _lease_columns(connection: sa.Connection, now: float, seconds: float) -> dict[str, Any]:
    steady = engines.steady_now(connection)
    return {
        "lease_until": now + seconds,
        "lease_steady": None if steady is None else steady + seconds,
        "lease_seconds": seconds,
    }


def _json(document: Mapping[str, Any] | None) -> str | None:
    return None if document is None else json.dumps(document, ensure_ascii=False, sort_keys=True)

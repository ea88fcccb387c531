"""The timeline: the durable record of transactions, on SQLAlchemy.

SQLite is the default, safe for many processes on one machine; PostgreSQL where drivers run on many. Each write of an
owner bears its fencing number and has no effect once another process has taken the transaction over.
"""

from __future__ import annotations

import json
import os
import shlex
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from twophase import engines, pruning
from twophase import timeline_sql as sql
from twophase.errors import LeaseLostError, TimelineError, TwoPhaseError
from twophase.failpoints import declare, step
from twophase.liveness import Lease, Owner, clock, inherited
from twophase.model import Level, ObjectPath
from twophase.records import ParticipantRecord, TransactionRecord, describe_error
from twophase.reservations import WHOLE_TABLE, Published, Reservation
from twophase.rows import holders_of, load, owner_columns, reservation_columns
from twophase.states import ParticipantState, TransactionState
from twophase.tables import LEFT_BEHIND, ensure_tables, lock_target, path_text, target_key, transactions

__all__ = ["Timeline"]

_T = TypeVar("_T")

declare(
    "core.record_inflight",
    "core.save_participant",
    "core.reserve",
    "core.record_committing",
    "core.record_completed",
    "core.record_rolled_back",
    "core.record_in_doubt",
    "core.record_finished",
    "core.heartbeat",
    "core.take_over",
)

_RECORD_STEPS = {
    TransactionState.COMMITTING: "core.record_committing",
    TransactionState.COMPLETED: "core.record_completed",
    TransactionState.ROLLED_BACK: "core.record_rolled_back",
    TransactionState.IN_DOUBT: "core.record_in_doubt",
}

#: Steps that need not wait for the disk: when a power failure takes them, recovery does the same without them. What
#: follows waits for them, too: ``INFLIGHT`` before anything is staged, ``COMMITTING`` before anything is published.
_NOT_WAITING = frozenset({"core.save_participant", "core.reserve", "core.record_finished", "core.heartbeat"})

#: What a participant that was to be published has become.
_PARTICIPANT_END = {
    TransactionState.COMPLETED: ParticipantState.PUBLISHED,
    TransactionState.ROLLED_BACK: ParticipantState.ABORTED,
}


class Timeline:
    """The record of transactions in one database.

    Parameters
    ----------
    url : str
        Any SQLAlchemy URL of a durable database; the parent directory of an SQLite file is made.
    create : bool
        Make the tables where there are none.
    password : str, optional
        Of the database, where the URL has none.

    Raises
    ------
    TimelineError
        It cannot be reached or read, is not a timeline, or was written by a newer or too old twophase.

    Notes
    -----
    Source of the idea: the database timeline of Hudi's RFC-73.
    """

    def __init__(self, url: str, *, create: bool = True, password: str | None = None) -> None:
        self._engine = engines.create(url, create=create, password=password)
        #: The URL with its secrets hidden: for messages.
        self.display_url: str = engines.shown(engines.parsed(url))
        #: What a command that we suggest needs to find it again; empty where the URL holds a secret.
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
        """Python 3.13 warns of connections that nobody closed."""
        return weakref.finalize(self, engines.release, self._engine, self._pid)

    def close(self) -> None:
        """Release the connections. Idempotent."""
        engines.release(self._engine, self._pid)

    @property
    def is_remote(self) -> bool:
        """Whether it is kept by a server, which may fall silent."""
        return self._engine.dialect.name != "sqlite"

    def drop_connections(self) -> None:
        """Let the next requests open connections of their own; those that are at work are not touched."""
        self._engine.dispose()

    # -- the owner's writes -------------------------------------------------------------------------------------------

    def begin(
        self,
        transaction_id: str,
        first: ParticipantRecord,
        *,
        coordinator: str,
        owner: Owner,
        user: str,
        application: str,
        seconds: float,
    ) -> Lease:
        """Record a new transaction with its first participant, ``INFLIGHT`` at once, and get its lease."""
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
                **_lease_columns(connection, now, seconds),
                **owner_columns(owner),
            }
            connection.execute(sql.INSERT_TRANSACTION, row)
            self._insert_participant(connection, lease, first)

        self._write("core.record_inflight", insert)
        return lease

    def enlist(self, lease: Lease, record: ParticipantRecord, *, supersedes: int | None = None) -> None:
        """Record one more participant with its document."""

        def insert(connection: sa.Connection) -> None:
            self._own(connection, lease)
            self._insert_participant(connection, lease, record)
            if supersedes is not None:
                self._set_participant(connection, lease, supersedes, state=ParticipantState.SUPERSEDED.value)

        self._owned_write("core.record_inflight", lease, insert)

    def save_participant(
        self,
        lease: Lease,
        ordinal: int,
        *,
        document: Mapping[str, Any] | None = None,
        state: ParticipantState | None = None,
    ) -> None:
        """Record what changed of a participant."""
        values: dict[str, Any] = {}
        if document is not None:
            values["document"] = _json(document)
        if state is not None:
            values["state"] = state.value

        def update(connection: sa.Connection) -> None:
            self._own(connection, lease)
            self._set_participant(connection, lease, ordinal, **values)

        self._owned_write("core.save_participant", lease, update)

    def discard_participant(
        self, lease: Lease, record: ParticipantRecord, *, restores: tuple[int, ParticipantState] | None
    ) -> None:
        """Record a participant's end inside a transaction that goes on.

        Parameters
        ----------
        restores : tuple, optional
            Ordinal and state of the earlier participant of the same table that it had superseded.
        """

        def update(connection: sa.Connection) -> None:
            self._own(connection, lease)
            self._set_participant(connection, lease, record.ordinal, state=record.state.value)
            if restores is not None:
                ordinal, state = restores
                self._set_participant(connection, lease, ordinal, state=state.value)

        self._owned_write("core.save_participant", lease, update)

    def record(
        self,
        lease: Lease,
        state: TransactionState,
        *,
        level: Level | None = None,
        error: BaseException | str | None = None,
        left_behind: tuple[str, ...] = (),
        prepared: Iterable[ParticipantRecord] = (),
    ) -> None:
        """Make a state durable.

        Parameters
        ----------
        lease : Lease
        state : TransactionState
        level : Level, optional
            What the transaction guarantees.
        error : BaseException or str, optional
            Why it is rolled back or in doubt.
        left_behind : tuple of str
        prepared : iterable of ParticipantRecord
            With the decision: all participants as their ``prepare()`` has left them, so that what a recovery needs to
            know of them is durable together with it.

        Raises
        ------
        LeaseLostError
            Another process has taken the transaction over, or its outcome is recorded already.
        TimelineError
            It is not known whether the state is durable.
        """

        update = self._recording(lease, state, level=level, error=error, left_behind=left_behind, prepared=prepared)
        self._owned_write(_RECORD_STEPS[state], lease, update)

    def is_in(self, database: sa.URL | None) -> bool:
        """Whether the timeline is kept in a database, so that one of its transactions can write both."""
        return database is not None and engines.same_database(self._engine.url, database)

    def completing(self, lease: Lease) -> Callable[[sa.Connection], None]:
        """What records ``COMPLETED`` inside somebody else's transaction of the same database.

        It throws :class:`~twophase.errors.LeaseLostError` where another process has taken the transaction over.
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
    ) -> Callable[[sa.Connection], None]:
        ready = list(prepared)

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
                self._tell_publisher(connection, lease, ready, now)
            if state in _PARTICIPANT_END:
                self._end_participants(connection, lease, _PARTICIPANT_END[state])

        return update

    @staticmethod
    def _tell_publisher(connection: sa.Connection, lease: Lease, ready: list[ParticipantRecord], now: float) -> None:
        """Before anything is published; in one order, as several may decide at once."""
        for target in sorted({target_key(r.catalog, r.path) for r in ready if r.state.takes_part}):
            told = {"transaction_id": lease.transaction_id, "decided": now}
            if connection.execute(sql.UPDATE_PUBLISHER, {**told, "of_target": target}).rowcount == 0:
                connection.execute(sql.INSERT_PUBLISHER, {**told, "target": target})

    def finish(self, lease: Lease, left_behind: tuple[str, ...] = ()) -> None:
        """Record that nothing is left to do, give the reservations back, and drop documents that nobody needs."""

        def update(connection: sa.Connection) -> None:
            self._own(connection, lease, finished=engines.now(connection), left_behind=json.dumps(left_behind))
            mine = {"of_id": lease.transaction_id}
            connection.execute(sql.DELETE_RESERVATIONS, mine)
            if not left_behind:
                connection.execute(sql.UPDATE_PARTICIPANTS, {**mine, "document": None})

        self._owned_write("core.record_finished", lease, update)

    def reserve(self, lease: Lease, catalog: str, path: ObjectPath, wanted: Reservation = WHOLE_TABLE) -> str | None:
        """Reserve a table for the transaction; what it had reserved of it before is exchanged. Idempotent.

        Returns
        -------
        str or None
            None when it is reserved; else the id of a transaction that holds what excludes it.
        """
        mine, key = lease.transaction_id, target_key(catalog, path)

        def insert(connection: sa.Connection) -> str | None:
            self._own(connection, lease)
            lock_target(connection, key)
            for holder, held in holders_of(connection, key).items():
                if holder != mine and held.excludes(wanted):
                    return holder
            connection.execute(sql.DELETE_RESERVATION, {"of_target": key, "of_id": mine})
            row = {"target": key, "transaction_id": mine, "catalog": catalog, "path": path_text(path)}
            connection.execute(sql.INSERT_RESERVATION, {**row, **reservation_columns(wanted)})
            return None

        return self._owned_write("core.reserve", lease, insert)

    # -- leases -------------------------------------------------------------------------------------------------------

    def renew(self, lease: Lease) -> None:
        """Prolong a lease, and make sure that it is still ours.

        Raises
        ------
        LeaseLostError
            Another process has taken the transaction over.
        """
        self._owned_write("core.heartbeat", lease, lambda connection: self._own(connection, lease))

    def give_up(self, lease: Lease) -> None:
        """Let others take the transaction over at once."""
        self._owned_write("core.heartbeat", lease, lambda connection: self._own(connection, lease, lease_until=0.0))

    def take_over(self, record: TransactionRecord, owner: Owner, seconds: float) -> Lease | None:
        """Take a transaction over from a dead owner, by compare-and-swap on its fencing number.

        A finished one is opened again: something that it left behind shall be removed.

        Returns
        -------
        Lease or None
            None when another process was faster, or the owner has just shown that it lives.
        """

        def swap(connection: sa.Connection) -> bool:
            now = engines.now(connection)
            c = transactions.c
            if not record.is_dead(now):
                return False
            unchanged = (c.id == record.id) & (c.fencing == record.fencing) & (c.state == record.state.value)
            if not record.is_abandoned():
                unchanged &= c.lease_until == record.lease_until  # Not renewed since it was read.
            values: dict[str, Any] = {"fencing": record.fencing + 1, "finished": None}
            values |= _lease_columns(connection, now, seconds) | owner_columns(owner)
            if not record.is_abandoned():
                values["silent_since"] = now
            return connection.execute(transactions.update().where(unchanged).values(values)).rowcount == 1

        lease = Lease(record.id, record.fencing + 1, seconds)
        # Not retried: after a lost reply it would look as if somebody else had taken it.
        return lease if self._write("core.take_over", swap, retry=False) else None

    def shorten_lease(self, record: TransactionRecord) -> None:
        """Let a lease that ends beyond all measure, as the clock was set back, end as one that begins now.

        Its owner renews it before that, if it lives.
        """

        def update(connection: sa.Connection) -> None:
            c, until = transactions.c, engines.now(connection) + record.longest_lease
            same = (c.id == record.id) & (c.fencing == record.fencing) & (c.lease_until == record.lease_until)
            connection.execute(transactions.update().where(same & (c.lease_until > until)).values(lease_until=until))

        self._write("core.heartbeat", update)

    # -- readers ------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """The clock that leases on this timeline go by, in seconds since the epoch."""
        return self._read(engines.now)

    def transaction(self, transaction_id: str) -> TransactionRecord | None:
        """One transaction with its participants; None when the timeline does not know it."""
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
        """Transactions with their participants, the newest first.

        Parameters
        ----------
        open_only : bool
            Only those with something left to do.
        left_behind : bool
            Only those that left something behind.
        coordinator : str, optional
            Only those of one coordinator.
        limit : int, optional
            At most so many.
        """
        condition: sa.ColumnElement[bool] = sa.true()
        if open_only:
            condition &= transactions.c.finished.is_(None)
        if left_behind:
            condition &= LEFT_BEHIND
        if coordinator is not None:
            # Open ones are few, all of a coordinator may be millions: the index of these is not to be taken for those.
            name = transactions.c.coordinator.concat("") if open_only else transactions.c.coordinator
            condition &= name == coordinator
        return self._read(lambda connection: load(connection, condition, limit))

    def published(self, catalog: str, path: ObjectPath) -> Published:
        """Who publishes to a table: to be compared later with what it is then."""
        of_it = {"of_target": target_key(catalog, path)}

        def ask(connection: sa.Connection) -> Published:
            # In this order: who decides in between is seen twice, and never not at all.
            last = connection.scalar(sql.SELECT_PUBLISHER, of_it)
            return Published(last, connection.scalar(sql.SELECT_PUBLISHING, of_it) is not None)

        return self._read(ask)

    def holders(self, catalog: str, path: ObjectPath) -> dict[str, Reservation]:
        """The transactions that have reserved a table, the oldest first, and what of it."""
        return self._read(lambda connection: holders_of(connection, target_key(catalog, path)))

    def how_ended(self, transaction_id: str) -> TransactionState | None:
        """How a transaction ended whose row is pruned; None where it is not known to have been on this timeline."""
        return self._read(lambda connection: pruning.how_ended(connection, transaction_id))

    def prune(self, seconds: float, *, limit: int) -> int:
        """Forget transactions that ended so many seconds ago and left nothing behind, but for how they ended.

        Parameters
        ----------
        seconds : float
        limit : int
            At most so many, the oldest first.

        Returns
        -------
        int
            How many it was.
        """

        def delete(connection: sa.Connection) -> int:
            return pruning.prune(connection, engines.now(connection) - seconds, limit)

        with self._translated("write"):  # No step of any transaction, and lost to a power failure it is done again.
            return self._retrying(lambda: self._transact(delete, twophase_durable=False))

    # -- inside a database transaction --------------------------------------------------------------------------------

    @staticmethod
    def _own(connection: sa.Connection, lease: Lease, **values: Any) -> None:
        """Write to our row and prolong the lease, if the transaction is still ours; a finished one is nobody's."""
        values = {**_lease_columns(connection, engines.now(connection), lease.seconds), **values}
        if values.get("state") == TransactionState.IN_DOUBT.value:
            values["lease_until"] = 0.0  # Nobody works on it until somebody asks again.
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
        """Replaces what an attempt whose reply was lost has written."""
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

    def _owned_write(self, name: str, lease: Lease, operation: Callable[[sa.Connection], _T]) -> _T:
        if lease.pid != os.getpid():
            raise inherited(lease.transaction_id, lease.pid)
        asked_at = clock()
        try:
            result = self._write(name, operation)
        except LeaseLostError:
            lease.lost = True
            raise
        lease.renewed(asked_at)
        return result

    def _write(self, name: str, operation: Callable[[sa.Connection], _T], *, retry: bool = True) -> _T:
        options = {"twophase_durable": name not in _NOT_WAITING}
        with self._translated("write"), step(name):
            if retry:
                return self._retrying(lambda: self._transact(operation, **options))
            return self._transact(operation, **options)

    def _read(self, operation: Callable[[sa.Connection], _T]) -> _T:
        with self._translated("read"):
            return self._retrying(lambda: self._transact(operation, twophase_read_only=True))

    def _transact(self, operation: Callable[[sa.Connection], _T], **options: bool) -> _T:
        if self._pid != os.getpid():
            # Connections do not survive a fork; they stay the parent's.
            self._engine.dispose(close=False)
            self._pid = os.getpid()
            self._finalizer.detach()
            self._finalizer = self._release_at_the_end()
        with self._engine.connect().execution_options(**options) as connection, connection.begin():
            return operation(connection)

    @staticmethod
    def _retrying(operation: Callable[[], _T]) -> _T:
        """Every write but a take-over may be repeated: it is conditional, or replaces what it wrote."""
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


def _lease_columns(connection: sa.Connection, now: float, seconds: float) -> dict[str, Any]:
    steady = engines.steady_now(connection)
    return {
        "lease_until": now + seconds,
        "lease_steady": None if steady is None else steady + seconds,
        "lease_seconds": seconds,
    }


def _json(document: Mapping[str, Any] | None) -> str | None:
    return None if document is None else json.dumps(document, ensure_ascii=False, sort_keys=True)

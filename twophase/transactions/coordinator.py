"""The coordinator: begins transactions, keeps them alive, and recovers dead ones."""

from __future__ import annotations

import getpass
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from twophase.catalog import Catalog, OpenSnapshot, SupportsOpenSnapshots
from twophase.errors import ConfigurationError, TransactionAborted
from twophase.model import Isolation
from twophase.protocol.states import TransactionState
from twophase.redaction import logger
from twophase.timeline import owners
from twophase.timeline.heartbeat import Heartbeat
from twophase.timeline.ids import coordinator_name, new_transaction_id
from twophase.timeline.immediate import Immediate
from twophase.timeline.owners import Lease, clock, this_process
from twophase.timeline.records import ParticipantRecord, TransactionRecord
from twophase.timeline.timeline import Timeline
from twophase.timeline.waits import Wound
from twophase.transactions.conflict_policy import ConflictPolicy, FirstCommitterWins
from twophase.transactions.conflicts import Contention, Holder
from twophase.transactions.observer import Observer, Observers
from twophase.transactions.recovery import Recovered, Recovery
from twophase.transactions.transaction import Transaction

__all__ = ["Coordinator", "Recovered"]

_log = logger("twophase")

#: Maximum number of transactions pruned in one step, which takes some milliseconds.
_PRUNED_AT_ONCE = 500


class Coordinator:
    """The coordinator of transactions over catalogs, with one timeline.

    Parameters
    ----------
    timeline : Timeline
    resolve : callable
        Maps a catalog's name to the live :class:`~twophase.Catalog`; raises if the session has no catalog of that name.
    name : str
        The owner of the transactions: part of every transaction id. Automatic recovery only touches transactions of
        this name.
    lease_seconds : float
        After this many seconds without a renewal, another process may take a transaction over.
    wait_seconds : float
        How long a write waits for another transaction that has reserved its table; 0: not at all.
    conflict : ConflictPolicy, optional
        What becomes of a transaction that needs a table which another one has reserved; by default the first one to
        commit wins.
    retention_seconds : float
        How long the timeline keeps the rows of transactions that have ended without leftovers.
    user, application : str, optional
        The user and the application, to be recorded on the timeline.
    observers : iterable of Observer
        Notified of what becomes of the transactions.
    """

    def __init__(
        self,
        timeline: Timeline,
        resolve: Callable[[str], Catalog],
        *,
        name: str,
        lease_seconds: float = 60.0,
        wait_seconds: float = 30.0,
        conflict: ConflictPolicy | None = None,
        retention_seconds: float = 30 * 86_400.0,
        user: str | None = None,
        application: str = "",
        observers: Iterable[Observer] = (),
    ) -> None:
        self.timeline = timeline
        self.observer: Observer = Observers(observers)
        self.name = coordinator_name(name)
        self.wait_seconds = wait_seconds
        self.conflict = conflict or FirstCommitterWins()
        self._lease_seconds = lease_seconds
        self._retention_seconds = retention_seconds
        self.user = _user() if user is None else user
        self._application = application
        self._heartbeat = Heartbeat(timeline, lease_seconds / 4, self._on_lost, self._on_timeout)
        self._recovery = Recovery(timeline, resolve, self._heartbeat, lease_seconds, self.observer)
        self._live: weakref.WeakValueDictionary[str, Transaction] = weakref.WeakValueDictionary()
        self.observer.opened(timeline)

    def __repr__(self) -> str:
        return f"<Coordinator {self.name} on {self.timeline!r}>"

    def begin(
        self,
        isolation: Isolation = Isolation.READ_COMMITTED,
        *,
        read_only: bool = False,
        catalogs: Iterable[Catalog] = (),
        conflict: ConflictPolicy | None = None,
        wait_seconds: float | None = None,
        timeout_seconds: float | None = None,
        first_begun: float | None = None,
    ) -> Transaction:
        """Begin a new transaction. Nothing is recorded before its first read or participant.

        Parameters
        ----------
        isolation : Isolation
            ``READ_COMMITTED``, the default, is for a transaction of one statement.
        read_only : bool
            Whether nothing can be written in it.
        catalogs : iterable of Catalog
            Those among them whose stores can keep a snapshot open one, unless it is ``READ_COMMITTED``.
        conflict : ConflictPolicy, optional
            Instead of the coordinator's.
        wait_seconds : float, optional
            Instead of the coordinator's.
        timeout_seconds : float, optional
            After so long it is rolled back, unless it has decided to commit.
        first_begun : float, optional
            When its first attempt began, by :func:`twophase.timeline.owners.clock`; now when None.

        Raises
        ------
        TimelineError
            The timeline cannot be read.
        """
        now = clock()
        snapshot = self.timeline.last_number() if isolation.pins_reads else None
        transaction_id = new_transaction_id(self.name)
        contention = Contention(
            transaction_id,
            conflict or self.conflict,
            self.wait_seconds if wait_seconds is None else wait_seconds,
            first_begun=now if first_begun is None else first_begun,
            ends_at=None if timeout_seconds is None else now + timeout_seconds,
        )
        opened = _opened(catalogs) if isolation.pins_reads else {}
        transaction = Transaction(
            self, transaction_id, isolation, snapshot, contention, read_only=read_only, opened=opened
        )
        self._live[transaction.id] = transaction
        return transaction

    def find(self, transaction_id: str) -> Transaction | None:
        """Find a transaction that was begun here and is still referenced."""
        return self._live.get(transaction_id)

    def recover(
        self, *, own_only: bool = True, transaction_id: str | None = None, assume: TransactionState | None = None
    ) -> list[Recovered]:
        """Recover dead transactions. Live ones are never touched; two concurrent recoveries are safe.

        Parameters
        ----------
        own_only : bool
            Leave transactions of other coordinators alone.
        transaction_id : str, optional
            Only this one, even if it belongs to another coordinator.
        assume : TransactionState, optional
            An operator's decision for that one, if the stores cannot be queried: ``COMPLETED`` or ``ROLLED_BACK``.

        Returns
        -------
        list of Recovered
            The result for each dead transaction; errors are reported in it, not raised.

        Raises
        ------
        ConfigurationError
            The transaction does not exist, or its outcome need not be assumed.
        TimelineError
            The timeline cannot be read.
        """
        if transaction_id is not None:
            return [self._recovery.one(transaction_id, assume)]
        if assume is not None:
            raise ConfigurationError("Assuming an outcome needs the id of one transaction.")
        return self._recovery.all_dead(self.name if own_only else None)

    def carry_on(self) -> list[Recovered]:
        """Complete the decided transactions of other coordinators' dead processes, if this session has their catalogs.

        They may be partially published, and their own application may never restart. Undecided transactions do no harm
        until the same table is written.

        Returns
        -------
        list of Recovered
            The transactions that have ended by this.
        """
        return [recovered for recovered in self._recovery.decided_elsewhere(self.name) if recovered.is_resolved]

    def prune(self, limit: int | None = None) -> int:
        """Prune transactions without leftovers that ended longer ago than the timeline's retention.

        Parameters
        ----------
        limit : int, optional
            The approximate maximum number; None for all, in steps between which other processes can write.

        Returns
        -------
        int
            The number of pruned transactions.
        """
        pruned = 0
        while limit is None or pruned < limit:
            step = self.timeline.prune(self._retention_seconds, limit=_PRUNED_AT_ONCE)
            pruned += step
            if step < _PRUNED_AT_ONCE:
                break
        return pruned

    def close(self) -> None:
        """Abort live transactions, stop the heartbeat and release the timeline. Idempotent."""
        for transaction in list(self._live.values()):
            transaction.abort(TransactionAborted("Its coordinator was closed.", transaction_id=transaction.id))
        self._heartbeat.stop()
        self.observer.closed(self.timeline)
        self.timeline.close()

    # -- for transactions ---------------------------------------------------------------------------------------------

    def record(
        self,
        transaction_id: str,
        first: ParticipantRecord | None,
        isolation: Isolation,
        snapshot: int | None,
        contention: Contention,
    ) -> Lease:
        """Record a transaction, with its first participant or before its first read, and keep its lease alive."""
        with self._beginning(transaction_id):
            lease = self.timeline.begin(
                transaction_id,
                first,
                **self._owner(),
                isolation=isolation,
                snapshot=snapshot,
                begun_ago=clock() - contention.first_begun,
            )
            self._heartbeat.add(lease, contention.ends_at)
        return lease

    def announce(self, changes: Sequence[Immediate], since: int) -> Lease:
        """Record changes of tables that are about to be made immediately, and keep their lease alive.

        The states before them were loaded after the commit number ``since``.
        """
        transaction_id = new_transaction_id(self.name)
        with self._beginning(transaction_id):
            lease = self.timeline.announce(transaction_id, changes, since=since, **self._owner())
            self._heartbeat.add(lease)
        return lease

    def _owner(self) -> dict[str, Any]:
        return {
            "coordinator": self.name,
            "owner": this_process(),
            "user": self.user,
            "application": self._application,
            "seconds": self._lease_seconds,
        }

    @contextmanager
    def _beginning(self, transaction_id: str) -> Iterator[None]:
        owners.hold(transaction_id)
        try:
            yield
        except BaseException:
            self.ended(transaction_id)
            raise

    def ended(self, transaction_id: str) -> None:
        """Release a transaction on which no more work is done. Idempotent."""
        self._heartbeat.remove(transaction_id)
        owners.release(transaction_id)

    def contested(self, transaction_id: str) -> None:
        """Look more often from now on whether another transaction has rolled this one back. Idempotent."""
        self._heartbeat.contest(transaction_id)

    def wound(self, record: TransactionRecord, by: str, name: str) -> bool:
        """Roll back a live transaction because another one needs one of its tables.

        Returns
        -------
        bool
            False if it has decided to commit or has ended, or if this session does not have its catalogs.
        """
        why = f"transaction {by} needed table {name}, which this one had reserved"
        if not self._recovery.wound(record, Wound(by, why)):
            return False
        self._on_lost(record.id)  # If it is one of ours: its heartbeat no longer asks.
        return True

    def _on_lost(self, transaction_id: str) -> None:
        if (live := self._live.get(transaction_id)) is not None:
            live.on_lost()

    def _on_timeout(self, transaction_id: str) -> None:
        if (live := self._live.get(transaction_id)) is not None:
            live.on_timeout()

    def clear(self, holder: str) -> Holder:
        """End a dead transaction that holds a reservation, of any coordinator, if this session has its catalogs.

        A transaction of another coordinator whose lease has merely expired is left alone: its owner may come back.
        """
        record = self.timeline.transaction(holder)
        if record is None or not record.is_open:
            return Holder(ended=True)
        if not self._may_end(record):
            return Holder(record=record)
        try:
            recovered = self._recovery.one(holder)
        except ConfigurationError:
            return Holder(ended=True)  # It had only read or locked, and was forgotten meanwhile.
        _log.info("Recovered transaction %s: %s", holder, recovered.state.name)
        after = self.timeline.transaction(holder)
        if after is None or not after.is_open:
            return Holder(ended=True)
        if not self._may_end(after):
            return Holder(record=after)  # Another process is currently recovering it.
        return Holder(stuck=recovered.note or f"it is {recovered.state.name}")

    def _may_end(self, record: TransactionRecord) -> bool:
        if record.coordinator == self.name:
            return self._recovery.is_dead(record)
        return record.is_certainly_dead(self.timeline.now())


def _opened(catalogs: Iterable[Catalog]) -> dict[str, OpenSnapshot]:
    with ExitStack() as undo:
        found = {}
        for catalog in catalogs:
            if isinstance(catalog, SupportsOpenSnapshots) and (opened := catalog.open_snapshot()) is not None:
                undo.callback(opened.close)
                found[catalog.name] = opened
        undo.pop_all()
        return found


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # A container's user id without a name.

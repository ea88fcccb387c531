"""The coordinator: begins transactions, keeps them alive, and recovers dead ones."""

from __future__ import annotations

import getpass
import weakref
from collections.abc import Callable

from twophase import liveness
from twophase.catalog import Catalog
from twophase.errors import ConfigurationError, TransactionAborted
from twophase.heartbeat import Heartbeat
from twophase.identifiers import coordinator_name, new_transaction_id
from twophase.liveness import Lease, this_process
from twophase.records import ParticipantRecord, TransactionRecord
from twophase.recovery import Recovered, Recovery
from twophase.redaction import logger
from twophase.reservations import Holder, Patience
from twophase.states import TransactionState
from twophase.timeline import Timeline
from twophase.transactions import Transaction

__all__ = ["Coordinator", "Recovered"]

_log = logger("twophase")

#: A step of pruning, which takes some milliseconds.
_PRUNED_AT_ONCE = 500


class Coordinator:
    """Runs transactions over catalogs, with one timeline.

    Parameters
    ----------
    timeline : Timeline
    resolve : callable
        From a catalog's name to the live :class:`~twophase.Catalog`; raises where the session has none of that name.
    name : str
        Whose transactions these are: part of every transaction id. Recovery without being asked touches only
        transactions of this name.
    lease_seconds : float
        After so many seconds of silence others may take a transaction over.
    wait_seconds : float
        How long a write waits for another transaction that is publishing to the same table; 0: not at all.
    retention_seconds : float
        How long the timeline keeps the rows of transactions that have ended and left nothing behind.
    user, application : str, optional
        For the timeline: who ran it, and what.
    """

    def __init__(
        self,
        timeline: Timeline,
        resolve: Callable[[str], Catalog],
        *,
        name: str,
        lease_seconds: float = 60.0,
        wait_seconds: float = 30.0,
        retention_seconds: float = 30 * 86_400.0,
        user: str | None = None,
        application: str = "",
    ) -> None:
        self.timeline = timeline
        self.name = coordinator_name(name)
        self.wait_seconds = wait_seconds
        self._lease_seconds = lease_seconds
        self._retention_seconds = retention_seconds
        self._user = _user() if user is None else user
        self._application = application
        self._heartbeat = Heartbeat(timeline, lease_seconds / 4)
        self._recovery = Recovery(timeline, resolve, self._heartbeat, lease_seconds)
        self._live: weakref.WeakValueDictionary[str, Transaction] = weakref.WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<Coordinator {self.name} on {self.timeline!r}>"

    def begin(self) -> Transaction:
        """A new transaction. Nothing is recorded before its first participant is staged."""
        transaction = Transaction(self, new_transaction_id(self.name))
        self._live[transaction.id] = transaction
        return transaction

    def find(self, transaction_id: str) -> Transaction | None:
        """A transaction that was begun here and is still referred to."""
        return self._live.get(transaction_id)

    def recover(
        self, *, own_only: bool = True, transaction_id: str | None = None, assume: TransactionState | None = None
    ) -> list[Recovered]:
        """Carry dead transactions to their end. Live ones are never touched; two recoveries at once are safe.

        Parameters
        ----------
        own_only : bool
            Leave transactions of other coordinators alone.
        transaction_id : str, optional
            Only this one, whosever it is.
        assume : TransactionState, optional
            An operator's decision for that one, where the stores cannot answer: ``COMPLETED`` or ``ROLLED_BACK``.

        Returns
        -------
        list of Recovered
            What became of each dead transaction; errors stand in it and are not raised.

        Raises
        ------
        ConfigurationError
            The transaction does not exist, or there is nothing to assume.
        TimelineError
            The timeline cannot be read.
        """
        if transaction_id is not None:
            return [self._recovery.one(transaction_id, assume)]
        if assume is not None:
            raise ConfigurationError("Assuming an outcome needs the id of one transaction.")
        return self._recovery.all_dead(self.name if own_only else None)

    def carry_on(self) -> list[Recovered]:
        """Carry what dead processes of other coordinators had decided to its end, where this session's catalogs can.

        Half of it may be published, and their own application may never come back. What they had not decided harms
        nobody before somebody writes the same table.

        Returns
        -------
        list of Recovered
            What has ended by that.
        """
        return [recovered for recovered in self._recovery.decided_elsewhere(self.name) if recovered.is_resolved]

    def prune(self, limit: int | None = None) -> int:
        """Forget what ended longer ago than the timeline's retention, and left nothing behind.

        Parameters
        ----------
        limit : int, optional
            At most about so many; all when None, in steps between which others can write.

        Returns
        -------
        int
            How many it was.
        """
        pruned = 0
        while limit is None or pruned < limit:
            step = self.timeline.prune(self._retention_seconds, limit=_PRUNED_AT_ONCE)
            pruned += step
            if step < _PRUNED_AT_ONCE:
                break
        return pruned

    def close(self) -> None:
        """Abort what is still live, stop the heartbeat and release the timeline. Idempotent."""
        for transaction in list(self._live.values()):
            transaction.abort(TransactionAborted("Its coordinator was closed.", transaction_id=transaction.id))
        self._heartbeat.stop()
        self.timeline.close()

    # -- for transactions ---------------------------------------------------------------------------------------------

    def record(self, transaction_id: str, first: ParticipantRecord) -> Lease:
        """Record a transaction with its first participant, and keep its lease alive."""
        liveness.hold(transaction_id)
        try:
            lease = self.timeline.begin(
                transaction_id,
                first,
                coordinator=self.name,
                owner=this_process(),
                user=self._user,
                application=self._application,
                seconds=self._lease_seconds,
            )
            self._heartbeat.add(lease)
        except BaseException:
            self.ended(transaction_id)
            raise
        return lease

    def ended(self, transaction_id: str) -> None:
        """Nobody works on a transaction any more. Idempotent."""
        self._heartbeat.remove(transaction_id)
        liveness.release(transaction_id)

    def patience(self) -> Patience:
        """Waits for others that publish, and ends the dead among them."""
        return Patience(self.clear, self.wait_seconds)

    def clear(self, holder: str) -> Holder:
        """End a dead transaction that holds a reservation, whosever it is, where this session's catalogs can.

        One of another coordinator that is only silent is left alone: its owner may come back.
        """
        record = self.timeline.transaction(holder)
        if record is None or not record.is_open:
            return Holder(ended=True)
        if not self._may_end(record):
            return Holder()
        recovered = self._recovery.one(holder)
        _log.info("Recovered transaction %s: %s", holder, recovered.state.name)
        after = self.timeline.transaction(holder)
        if after is None or not after.is_open:
            return Holder(ended=True)
        if not self._may_end(after):
            return Holder()  # Another process is just recovering it.
        return Holder(stuck=recovered.note or f"it is {recovered.state.name}")

    def _may_end(self, record: TransactionRecord) -> bool:
        if record.coordinator == self.name:
            return self._recovery.is_dead(record)
        return record.is_certainly_dead(self.timeline.now())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # A container's number without a name.

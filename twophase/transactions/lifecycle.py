"""The life of one transaction: its state, its record on the timeline, and whether its statements may go on."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from twophase.catalog import Catalog, OpenSnapshot, TwoPhaseCatalogTable
from twophase.errors import (
    LeaseLostError,
    TransactionAborted,
    TransactionInDoubt,
    TwoPhaseError,
    WoundedError,
    WriteConflictError,
)
from twophase.model import Isolation, ObjectPath, Purpose
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.redaction import logger
from twophase.timeline.owners import Lease, clock, inherited
from twophase.timeline.records import Account, ParticipantRecord, name_error
from twophase.timeline.reservations import Mode
from twophase.transactions import failures
from twophase.transactions.conflicts import Claim, ConflictServices, Contention, timed_out
from twophase.transactions.driver import Driver, Enlisted
from twophase.transactions.members import Members
from twophase.transactions.observer import Cause, Ended, TableRead, title_of
from twophase.transactions.reads import Reads

_log = logger("twophase")


class TransactionServices(ConflictServices, Protocol):
    """The services of its coordinator that a transaction needs."""

    def record(
        self,
        transaction_id: str,
        first: ParticipantRecord | None,
        isolation: Isolation,
        snapshot: int | None,
        contention: Contention,
    ) -> Lease:
        """Record a transaction, with its first participant or before its first read, and keep its lease alive."""

    def ended(self, transaction_id: str) -> None:
        """Release a transaction on which no more work is done. Idempotent."""

    def contested(self, transaction_id: str) -> None:
        """Look more often from now on whether another transaction has rolled this one back. Idempotent."""


class Lifecycle:
    """The state of one transaction, shared by all that work on it; see :class:`twophase.Transaction`.

    Attributes
    ----------
    lock : threading.RLock
        Held by whoever changes the transaction.
    lease : Lease or None
        None until it is recorded.
    broken : BaseException or None
        Why it can only be aborted: the timeline may say more than is staged.
    cause : Cause or None
        Why it was rolled back, or is in doubt.
    inputs : list of TableRead
        What its statements read, beside the reads of a block; for the observers.
    """

    def __init__(
        self,
        coordinator: TransactionServices,
        transaction_id: str,
        isolation: Isolation,
        snapshot: int | None,
        contention: Contention,
        opened: Mapping[str, OpenSnapshot],
    ) -> None:
        self.coordinator = coordinator
        self.id = transaction_id
        self._pid = os.getpid()
        self.lock = threading.RLock()
        self.state = TransactionState.REQUESTED
        self.isolation = isolation
        self.snapshot = snapshot
        self.contention = contention
        self.members = Members(transaction_id)
        hold = weakref.WeakMethod(self.hold_snapshot)
        self.reads = Reads(coordinator.timeline, transaction_id, isolation, snapshot, hold, opened)
        self.lease: Lease | None = None
        self.broken: BaseException | None = None
        self.left_behind: tuple[str, ...] = ()
        self.doubt: TransactionInDoubt | None = None
        self.has_timed_out = False
        self.cause: Cause | None = None
        self._begun = clock()
        self._conflict: weakref.ref[BaseException] | None = None
        self._is_wounded = False
        self._title: str | None = None
        self.inputs: list[TableRead] = []

    # -- whether it goes on -------------------------------------------------------------------------------------------

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that runs the transaction."""
        return self._pid != os.getpid()

    @property
    def is_open(self) -> bool:
        """Whether the transaction is undecided: statements can join it, and it can be aborted."""
        return self.state.is_undecided

    @property
    def has_ended(self) -> bool:
        """Whether the outcome is known, or in doubt."""
        with self.lock:  # Another thread may be about to end it.
            return self.state in (TransactionState.COMPLETED, TransactionState.ROLLED_BACK, TransactionState.IN_DOUBT)

    def require_own(self) -> None:
        """Refuse to work on the parent's transaction in a forked child."""
        if self.is_inherited:
            raise inherited(self.id, self._pid)

    def require_open(self) -> None:
        """Refuse to go on with a transaction that has ended."""
        if self.is_open:
            self.require_live()
            return
        if self.state is TransactionState.ROLLED_BACK:
            raise timed_out(self.id) if self.has_timed_out else failures.rolled_back(self.id)
        if self.state is TransactionState.COMPLETED:
            raise failures.completed(self.id)
        raise self.doubt or self.in_doubt(Account(), None)

    def require_live(self) -> None:
        """Refuse to go on with a transaction that others have rolled back, or whose time is over."""
        if self.lease is not None and self.lease.lost and (lost := self._lost()) is not None:
            self.note_conflict(lost)
            raise lost
        if self.contention.is_over:
            raise timed_out(self.id)

    @contextmanager
    def fenced(self) -> Iterator[None]:
        """Raise :class:`LeaseLostError` for an error whose cause is that another process removed the staged files."""
        try:
            yield
        except Exception as error:
            lost = self._lost(error)
            self.note_conflict(lost or error)
            if lost is None or lost is error:
                raise
            raise lost from error

    def _lost(self, error: Exception | None = None) -> TransactionAborted | None:
        if isinstance(error, WoundedError) or self.lease is None:
            return None
        if not isinstance(error, LeaseLostError):
            # What is reserved can be taken although the lease is held.
            if self.lease.surely_held() and not self.contention.holds_any:
                return None
            try:
                self.coordinator.timeline.renew(self.lease)
            except LeaseLostError as lost:
                error = lost
            except TwoPhaseError:
                return None  # Unknown; the original error is more informative.
            else:
                return None
        return failures.lost(self.coordinator.timeline, self.id, error)

    # -- its record ----------------------------------------------------------------------------------------------------

    def hold_snapshot(self) -> None:
        """Record the transaction before its first read, so that nothing of what it sees is removed."""
        with self.lock:
            if self.lease is None and self.is_open:
                self._record(None)

    def _record(self, first: Enlisted | None) -> None:
        record = None if first is None else first.to_record()
        self.lease = self.coordinator.record(self.id, record, self.isolation, self.snapshot, self.contention)
        # A transaction that is no longer referenced is not kept alive: recovery may take it over.
        weakref.finalize(self, self.coordinator.ended, self.id).atexit = False
        self.state = TransactionState.INFLIGHT

    def enlist(
        self,
        catalog: Catalog,
        participant: TwoPhaseCatalogTable,
        earlier: Enlisted | None,
        *,
        replaces_rows: bool = False,
    ) -> None:
        """Record the participant of a new statement, which supersedes an earlier one of the same table or none."""
        member = Enlisted(len(self.members), catalog, participant, supersedes=earlier, replaces_rows=replaces_rows)
        member.changed()
        try:
            if self.lease is None:
                self._record(member)
                self.members.add(member)
            else:
                self.members.add(member)
                self._record_one_more(self.lease, member)
        except BaseException as error:
            if self.lease is not None:
                self.broken = error  # It may be on the timeline without having been staged: abort is the only option.
            member.failure = name_error(error)
            raise
        if earlier is not None:
            earlier.was, earlier.state = earlier.state, ParticipantState.SUPERSEDED
        if self._title is None:
            self._title = title_of(participant.purpose, member.name)
            self.coordinator.observer.began(self.id, self._title)

    def _record_one_more(self, lease: Lease, member: Enlisted) -> None:
        superseded = member.supersedes.ordinal if member.supersedes else None
        self.coordinator.timeline.enlist(lease, member.to_record(), supersedes=superseded)

    def forget(self) -> bool:
        """Forget a transaction that has only read, and return whether it was one."""
        if self.lease is None or self.members or self.broken is not None:
            return False
        try:
            self.coordinator.timeline.forget(self.lease)
        except LeaseLostError as error:
            lost = failures.lost(self.coordinator.timeline, self.id, error)
            if isinstance(lost, WoundedError) and self.is_open:  # It no longer held what it had locked.
                self.state, self.cause = TransactionState.ROLLED_BACK, Cause.of(lost)
                self.note_conflict(lost)
                self.release()
                raise lost from error
        except TwoPhaseError as error:  # Recovery will find that there is nothing to do.
            _log.warning("Could not end transaction %s, which has only read: %s", self.id, error)
        self.release()
        return True

    def release(self) -> None:
        """Let the coordinator forget it: no more work is done on it. Idempotent."""
        self.coordinator.ended(self.id)

    # -- its reservations ----------------------------------------------------------------------------------------------

    def contend(self, catalog: Catalog, path: ObjectPath, purpose: Purpose) -> bool:
        """Reserve the table of a statement, or wait for those that are publishing to it, before its job starts.

        Returns
        -------
        bool
            Whether there were any.
        """
        claim = Claim.of_table(catalog, path, Mode.APPEND if purpose is Purpose.INSERT_INTO else Mode.WRITE)
        if self.contention.reserves_early:
            return self.reserve([claim])
        if purpose is Purpose.INSERT_INTO:
            return False
        return self.contention.await_publishers(self.coordinator, self.lease, claim)

    def reserve(self, claims: Sequence[Claim], seconds: float | None = None) -> bool:
        """Reserve tables in one step, in the order of their keys, while the transaction continues.

        If nothing has been read or written, it sees the state of now: it may have waited for what is in it.

        Returns
        -------
        bool
            Whether other transactions had reserved any of them.
        """
        if self.lease is None:
            self._record(None)
        assert self.lease is not None
        with self.fenced():
            turn = self.contention.turn(seconds)
            self.contention.reserve(self.coordinator, self.lease, turn, claims)
        self.coordinator.contested(self.id)
        if not self.members and (snapshot := self.reads.refreshed()) != self.snapshot:
            self.snapshot = snapshot
            self.coordinator.timeline.renew(self.lease, snapshot=snapshot)
        return turn.has_met

    # -- its end -------------------------------------------------------------------------------------------------------

    def driver(self) -> Driver:
        """Return the driver of a recorded transaction."""
        assert self.lease is not None
        coordinator = self.coordinator
        return Driver(
            coordinator.timeline,
            self.lease,
            self.members,
            reserve=functools.partial(self.contention.reserve, coordinator, self.lease, self.contention.turn()),
            checks=lambda: self.reads.checks(self.members.taking_part()),
        )

    # -- what is observed of it ----------------------------------------------------------------------------------------

    def note_conflict(self, error: BaseException | None) -> None:
        """Report a conflict with another transaction or writer, once, however many steps its error passes through."""
        if isinstance(error, WoundedError):
            known, self._is_wounded = self._is_wounded, True
        elif isinstance(error, WriteConflictError):
            known = self._conflict is not None and self._conflict() is error
            self._conflict = weakref.ref(error)
        else:
            return
        if not known:
            self.coordinator.observer.conflicted(error)

    def report_end(self) -> BaseException | None:
        """Report to the observers how it has ended; return an interrupt that came meanwhile."""
        try:
            self.coordinator.observer.ended(self._end())
        except BaseException as interrupt:
            return interrupt
        return None

    def _end(self) -> Ended:
        written = tuple((member.catalog, member.participant) for member in self.members.taking_part())
        return Ended(
            transaction_id=self.id,
            state=self.state,
            seconds=clock() - self._begun,
            timeline=self.coordinator.timeline,
            title=self._title,
            written=written,
            read=(*self.reads.tables(), *self.inputs),
            cause=self.cause,
        )

    def in_doubt(self, account: Account, error: BaseException | None) -> TransactionInDoubt:
        """Return the error for an unknown outcome; if the account is empty, of all participants."""
        return failures.in_doubt(self.members.taking_part(), self.id, account, error, self.coordinator.timeline)

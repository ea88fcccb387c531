"""The reservations of a transaction, and its conflicts with the others that hold them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from twophase.catalog import Catalog
from twophase.errors import ConfigurationError, TransactionAborted, TwoPhaseError, WriteConflictError
from twophase.model import ObjectPath
from twophase.timeline.owners import Lease, clock
from twophase.timeline.records import TransactionRecord, first_line
from twophase.timeline.reservations import Mode, Reservation, interrupted
from twophase.timeline.tables import lock_order
from twophase.timeline.timeline import Timeline
from twophase.transactions.conflict_policy import ConflictPolicy, Contender, Resolution
from twophase.transactions.observer import Observer

#: Polling interval in seconds.
_PAUSE = 0.05


@dataclass(frozen=True)
class Holder:
    """The status of a transaction that holds a reservation.

    Attributes
    ----------
    ended : bool
        It no longer holds any.
    stuck : str or None
        Why it is useless to wait for it: no process works on it, and it cannot be ended from here.
    record : TransactionRecord or None
        Its record, if it has not ended.
    """

    ended: bool = False
    stuck: str | None = None
    record: TransactionRecord | None = None


@dataclass(frozen=True)
class Claim:
    """A reservation that a transaction needs.

    Attributes
    ----------
    catalog : str
    target : ObjectPath
        The canonical name of the table.
    name : str
        The table, for messages.
    wanted : Reservation
    """

    catalog: str
    target: ObjectPath
    name: str
    wanted: Reservation

    @classmethod
    def of_table(cls, catalog: Catalog, path: ObjectPath, mode: Mode) -> Claim:
        """Return the claim to a whole table."""
        return cls(catalog.name, catalog.canonical(path), f"{catalog.name}.{path}", Reservation(mode))

    @property
    def key(self) -> tuple[str, ObjectPath]:
        """The table."""
        return self.catalog, self.target

    @staticmethod
    def order(key: tuple[str, ObjectPath]) -> tuple[str, list[str]]:
        """The order of keys in which all transactions reserve, so that none wait for each other in a circle."""
        return lock_order(*key)


class ConflictServices(Protocol):
    """The services of the coordinator for transactions in conflict."""

    timeline: Timeline
    observer: Observer

    def clear(self, holder: str) -> Holder:
        """End a dead transaction, if that is possible from here, and return its status."""

    def wound(self, record: TransactionRecord, by: str, name: str) -> bool:
        """Roll back a live, undecided transaction because another one needs one of its tables."""


@dataclass
class _Turn:
    """One attempt to get a reservation: since and until when it waits, and whether that is on the timeline."""

    seconds: float
    since: float | None = None
    deadline: float | None = None
    is_recorded: bool = False
    #: Whether another transaction was met, which it has waited for, or ended.
    has_met: bool = False
    me: Contender | None = None


class Contention:
    """The reservations of one transaction, and its conflict policy.

    Parameters
    ----------
    transaction_id : str
    policy : ConflictPolicy
    seconds : float
        How long one statement, or the commit, waits for others; 0: not at all.
    first_begun : float
        When the first attempt of the transaction began, by :func:`~twophase.timeline.owners.clock`.
    ends_at : float, optional
        When its time is over, by the same clock.
    """

    def __init__(
        self,
        transaction_id: str,
        policy: ConflictPolicy,
        seconds: float,
        *,
        first_begun: float,
        ends_at: float | None = None,
    ) -> None:
        self._id = transaction_id
        self._policy = policy
        self._seconds = seconds
        self.first_begun = first_begun
        self.ends_at = ends_at
        self._held: dict[tuple[str, ObjectPath], Reservation] = {}

    @property
    def reserves_early(self) -> bool:
        """Whether tables are reserved before the first statement that writes them."""
        return self._policy.reserves_early

    @property
    def holds_any(self) -> bool:
        """Whether anything is reserved, so that others may roll this transaction back."""
        return bool(self._held)

    def held(self) -> dict[tuple[str, ObjectPath], Reservation]:
        """Return what is reserved now, by catalog and table."""
        return dict(self._held)

    def give_back(self, tables: Iterable[tuple[str, ObjectPath]]) -> None:
        """Forget reservations that were deleted from the timeline."""
        for table in tables:
            self._held.pop(table, None)

    @property
    def is_over(self) -> bool:
        """Whether the transaction's time is over."""
        return self.ends_at is not None and clock() >= self.ends_at

    def turn(self, seconds: float | None = None) -> _Turn:
        """Begin to wait, for one statement or for the commit."""
        return _Turn(self._seconds if seconds is None else seconds)

    def reserve(self, services: ConflictServices, lease: Lease, turn: _Turn, claims: Sequence[Claim]) -> None:
        """Reserve tables, in this order, in addition to what is reserved of them already.

        Raises
        ------
        WriteConflictError
            Another transaction holds one, and by the policy this one is refused, or has waited for too long.
        LeaseLostError
            This transaction has been rolled back.
        TransactionAborted
            Its time is over, or a signal has requested termination.
        """
        left = self._missing(claims)
        while left:
            wanted = [(claim.catalog, claim.target, claim.wanted) for claim in left]
            with _waiting(services, lease, turn):
                while True:
                    number, holder = services.timeline.reserve_all(lease, wanted)
                    if holder is None or number:
                        break
                    self._meet(services, lease, left[0], holder, turn)
                turn.is_recorded = False  # It was deleted with the reservation.
            self._held |= {claim.key: claim.wanted for claim in left[:number]}
            left = left[number:]

    def _missing(self, claims: Iterable[Claim]) -> list[Claim]:
        """Return the claims that are not reserved yet, each with what is reserved of its table already."""
        missing = []
        for claim in claims:
            held = self._held.get(claim.key)
            if held is None:
                missing.append(claim)
            elif not held.covers(claim.wanted):
                missing.append(replace(claim, wanted=held.joined(claim.wanted)))
        return missing

    def await_publishers(self, services: ConflictServices, lease: Lease | None, claim: Claim) -> bool:
        """Wait for transactions that are publishing to a table; if one never ends, report it before the job starts.

        Transactions that start in the meantime are detected at the end. It does not wait for those that change some
        partitions only, because they may be different ones.

        Returns
        -------
        bool
            Whether there were any to wait for.

        Raises
        ------
        WriteConflictError
            One of them has not ended in time.
        """
        if claim.key in self._held:
            return False
        holders, turn = services.timeline.holders, self.turn()
        with _waiting(services, lease if self.holds_any else None, turn):
            for holder, held in holders(claim.catalog, claim.target).items():
                while held.scope is None and holder in holders(claim.catalog, claim.target):
                    self._meet(services, lease if self.holds_any else None, claim, holder, turn)
        return turn.has_met

    def _meet(self, services: ConflictServices, lease: Lease | None, claim: Claim, holder: str, turn: _Turn) -> None:
        """Do what the policy says about the holder of a reservation, and return when it is time to try again."""
        turn.has_met = True
        found = services.clear(holder)
        if found.ended:
            return
        if found.stuck is not None:
            raise _stuck(claim.name, holder, self._id, found.stuck)
        if found.record is not None and lease is not None:
            resolution = self._ask(services, found.record, claim, turn)
            if resolution is Resolution.DIE:
                raise _held(claim.name, holder, self._id)
            if resolution is Resolution.WOUND and services.wound(found.record, self._id, claim.name):
                return
        self._wait(services, lease, claim, holder, turn)

    def _ask(self, services: ConflictServices, holder: TransactionRecord, claim: Claim, turn: _Turn) -> Resolution:
        if turn.me is None:
            own = services.timeline.transaction(self._id)
            turn.me = Contender(self._id, 0.0) if own is None else _contender(own)
        # Who reserves what it has read keeps others from writing it, as a writer does.
        mode = Mode.APPEND if claim.wanted.mode is Mode.APPEND else Mode.WRITE
        resolution = self._policy.on_conflict(turn.me, _contender(holder), mode.value)
        if not isinstance(resolution, Resolution):
            raise ConfigurationError(
                f"{type(self._policy).__name__}.on_conflict returned {resolution!r}.",
                path=claim.name,
                transaction_id=self._id,
                hint="It returns twophase.Resolution.WAIT, DIE or WOUND.",
            )
        return resolution

    def _wait(self, services: ConflictServices, lease: Lease | None, claim: Claim, holder: str, turn: _Turn) -> None:
        now = clock()
        if self.is_over:
            raise timed_out(self._id)
        turn.deadline = now + turn.seconds if turn.deadline is None else turn.deadline
        turn.since = now if turn.since is None else turn.since
        if now >= turn.deadline:
            raise _held(claim.name, holder, self._id, turn.seconds)
        if interrupted():
            raise TransactionAborted(
                f"A signal came while this waited for transaction {holder}, which has reserved table {claim.name}.",
                path=claim.name,
                transaction_id=self._id,
            )
        if lease is not None and not turn.is_recorded:
            circle = services.timeline.wait_for(lease, claim.catalog, claim.target, claim.wanted)
            if circle:
                raise _deadlock(claim.name, circle)
            turn.is_recorded = True
        time.sleep(min(_PAUSE, turn.deadline - now))


@contextmanager
def _waiting(services: ConflictServices, lease: Lease | None, turn: _Turn) -> Iterator[None]:
    """Report a wait, and delete its record if it was in vain, or for no reservation."""
    turn.since = None  # The turn of a commit is of several tables.
    try:
        yield
    except BaseException as error:
        _report_wait(services, turn, error)
        raise
    else:
        _report_wait(services, turn, None)
    finally:
        if turn.is_recorded and lease is not None:
            turn.is_recorded = False
            with suppress(TwoPhaseError):
                services.timeline.stop_waiting(lease)


def _report_wait(services: ConflictServices, turn: _Turn, error: BaseException | None) -> None:
    if turn.since is not None:
        services.observer.waited(clock() - turn.since, error)


def _contender(record: TransactionRecord) -> Contender:
    begun = record.created if record.first_begun is None else record.first_begun
    return Contender(record.id, begun, record.user, record.application)


# -- errors -----------------------------------------------------------------------------------------------------------


def _stuck(name: str, holder: str, transaction_id: str, why: str) -> WriteConflictError:
    return WriteConflictError(
        f"Table {name} is held by transaction {holder}, which no process works on and which could not be ended "
        f"from here: {first_line(why).rstrip('.')}.",
        path=name,
        transaction_id=transaction_id,
        hint=f"End that one with: twophase recover {holder} . Then run the statement again.",
    )


def _held(name: str, holder: str, transaction_id: str, seconds: float = 0.0) -> WriteConflictError:
    waited = f" after {seconds:g} s of waiting" if seconds else ""
    return WriteConflictError(
        f"Table {name} is being written by transaction {holder}{waited}.",
        path=name,
        transaction_id=transaction_id,
        hint=f"Run the statement again when that one has ended; see it with: twophase show {holder} . "
        "spark.twophase.wait says for how long a write waits.",
    )


def _deadlock(name: str, circle: list[str]) -> WriteConflictError:
    mine, *others = circle
    way = ", which waits for ".join([*others, "this one"])
    return WriteConflictError(
        f"Transaction {mine} would wait for itself: table {name} is reserved by {way}.",
        path=name,
        transaction_id=mine,
        hint="Run the transaction again. Those that lock or write the same tables in the same order do not meet so.",
    )


def timed_out(transaction_id: str, left: Sequence[str] = ()) -> TransactionAborted:
    """The error for a transaction that has lasted too long."""
    return TransactionAborted(
        f"Transaction {transaction_id} lasted longer than its timeout; it is rolled back, nothing was published.",
        transaction_id=transaction_id,
        left_behind=left,
        hint="spark.twophase.transaction.timeout, or timeout= of the block, says how long it may last.",
    )

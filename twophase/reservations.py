"""Reservations: what a transaction may change of a table while it publishes, and how others wait for that.

They are made at the commit, all of a transaction in one order, so that nobody waits in a circle and no table is held
while the job thinks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from twophase.errors import TransactionAborted, WriteConflictError
from twophase.liveness import clock
from twophase.participant import TwoPhaseCatalogTable
from twophase.records import first_line

#: What names more parts than these counts as the whole table: a list that long costs more than the waiting.
MANY_PARTS = 1_000
#: Seconds between two looks.
_PAUSE = 0.05


class Mode(Enum):
    """How a table is reserved. Appends share it, for the publish brings them into an order; a write is alone."""

    APPEND = "append"
    WRITE = "write"


@dataclass(frozen=True)
class Reservation:
    """What is reserved of one table.

    Attributes
    ----------
    mode : Mode
    scope : frozenset of str or None
        Keys of the partitions that change; None for the whole table.
    """

    mode: Mode = Mode.WRITE
    scope: frozenset[str] | None = None

    @classmethod
    def of(cls, participant: TwoPhaseCatalogTable) -> Reservation:
        """What the publish of a participant needs."""
        scope = participant.reservation_scope()
        if scope is not None and len(scope) > MANY_PARTS:
            scope = None
        return cls(Mode.APPEND if participant.shares_appends else Mode.WRITE, scope)

    def joined(self, other: Reservation) -> Reservation:
        """What both need together."""
        mode = Mode.WRITE if Mode.WRITE in (self.mode, other.mode) else Mode.APPEND
        whole = self.scope is None or other.scope is None
        return Reservation(mode, None if whole else (self.scope or frozenset()) | (other.scope or frozenset()))

    def excludes(self, other: Reservation) -> bool:
        """Whether two transactions cannot hold both at once."""
        if self.mode is other.mode is Mode.APPEND:
            return False
        return self.scope is None or other.scope is None or not self.scope.isdisjoint(other.scope)


#: Everything, alone.
WHOLE_TABLE = Reservation()


@dataclass(frozen=True)
class Published:
    """What the timeline knows of the transactions that publish to a table.

    Attributes
    ----------
    last : str or None
        The one that decided last to do so; None: it is not known that any did.
    going_on : bool
        Whether one has decided, and it may not have happened yet.
    """

    last: str | None = None
    going_on: bool = False

    def since(self, seen: Published) -> bool:
        """Whether one may have published since the table was seen."""
        return seen.going_on or (self.last is not None and self.last != seen.last)


@dataclass(frozen=True)
class Holder:
    """What is known of a transaction that holds a reservation.

    Attributes
    ----------
    ended : bool
        It holds none any more.
    stuck : str or None
        Why waiting for it is of no use: nobody works on it, and it cannot be ended from here.
    """

    ended: bool = False
    stuck: str | None = None


class Patience:
    """Waits for those that hold what a transaction needs, for so long in all.

    Parameters
    ----------
    clear : callable
        Ends a dead holder, where that can be done from here, and tells what is known of it.
    seconds : float
        0: not at all.
    """

    def __init__(self, clear: Callable[[str], Holder], seconds: float) -> None:
        self._clear = clear
        self._seconds = seconds
        self._deadline: float | None = None

    def wait(self, name: str, holder: str, transaction_id: str) -> None:
        """Wait for a moment, unless the holder has ended.

        Parameters
        ----------
        name : str
            The table.
        holder : str
            The transaction that holds it.
        transaction_id : str
            The one that waits.

        Raises
        ------
        WriteConflictError
            It has waited for long enough, or waiting is of no use.
        TransactionAborted
            A signal came, and wants an end.
        """
        found = self._clear(holder)
        if found.ended:
            return
        now = clock()
        self._deadline = now + self._seconds if self._deadline is None else self._deadline
        if found.stuck is not None or now >= self._deadline:
            raise _conflict(name, holder, transaction_id, self._seconds, found.stuck)
        if _interrupted():
            raise TransactionAborted(
                f"A signal came while this waited for transaction {holder}, which is publishing table {name}.",
                path=name,
                transaction_id=transaction_id,
            )
        time.sleep(min(_PAUSE, self._deadline - now))


def _conflict(name: str, holder: str, transaction_id: str, seconds: float, stuck: str | None) -> WriteConflictError:
    if stuck is not None:
        return WriteConflictError(
            f"Table {name} is held by transaction {holder}, which nobody works on and which could not be ended from "
            f"here: {first_line(stuck).rstrip('.')}.",
            path=name,
            transaction_id=transaction_id,
            hint=f"End that one with: twophase recover {holder} . Then run the statement again.",
        )
    waited = f" after {seconds:g} s of waiting" if seconds else ""
    return WriteConflictError(
        f"Table {name} is being written by transaction {holder}{waited}.",
        path=name,
        transaction_id=transaction_id,
        hint=f"Run the statement again when that one has ended; see it with: twophase show {holder} . "
        "spark.twophase.wait says for how long a write waits.",
    )


# -- signals that are held back ---------------------------------------------------------------------------------------

_told = threading.local()


@contextmanager
def interrupted_by(pending: Callable[[], bool]) -> Iterator[None]:
    """Let what waits on this thread end when ``pending`` says that a signal was held back.

    Parameters
    ----------
    pending : callable
    """
    before = getattr(_told, "pending", None)
    _told.pending = pending
    try:
        yield
    finally:
        _told.pending = before


def _interrupted() -> bool:
    pending = getattr(_told, "pending", None)
    return pending is not None and bool(pending())

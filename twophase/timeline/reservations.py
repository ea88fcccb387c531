"""Reservations: what part of a table a transaction may change, and which reservations exclude each other.

By default they are made during the commit, always in the same order, so that there are no deadlocks, and no table is
reserved while jobs run. Other conflict policies make them before the first write of a table, and locks even earlier.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from twophase.catalog.base import TwoPhaseCatalogTable

#: A scope with more partitions than this counts as the whole table: a list that long costs more than waiting.
MANY_PARTS = 1_000


class Mode(Enum):
    """The mode of a reservation. Appends share a table, because the publish serializes them; a write is exclusive.

    Readers share it, too: under ``SERIALIZABLE`` no other one changes what was read until the commit has its number.

    An ``ALTER TABLE`` that takes effect immediately is exclusive while it is made. After that, rows that were staged
    before follow it or are refused by the store, which knows their columns.

    After a drop they are refused: what has the name of their table later is another one.
    """

    READ = "read"
    APPEND = "append"
    WRITE = "write"
    ALTER = "alter"
    DROP = "drop"

    @property
    def is_shared(self) -> bool:
        """Whether several transactions hold reservations of this mode."""
        return self in (Mode.READ, Mode.APPEND)


@dataclass(frozen=True)
class Reservation:
    """The reservation of a table, or of some of its partitions.

    Attributes
    ----------
    mode : Mode
    scope : frozenset of str or None
        The keys of the partitions that change; None for the whole table.
    """

    mode: Mode = Mode.WRITE
    scope: frozenset[str] | None = None

    @classmethod
    def of(cls, participant: TwoPhaseCatalogTable) -> Reservation:
        """Return the reservation that the publish of a participant needs."""
        scope = participant.reservation_scope()
        if scope is not None and len(scope) > MANY_PARTS:
            scope = None
        return cls(Mode.APPEND if participant.shares_appends else Mode.WRITE, scope)

    def joined(self, other: Reservation) -> Reservation:
        """Combine two reservations into one that covers both."""
        mode = self.mode if self.mode is other.mode else Mode.WRITE
        whole = self.scope is None or other.scope is None
        return Reservation(mode, None if whole else (self.scope or frozenset()) | (other.scope or frozenset()))

    def covers(self, other: Reservation) -> bool:
        """Return whether this reservation permits all that another one permits."""
        enough = self.mode in (Mode.WRITE, other.mode)
        return enough and (self.scope is None or (other.scope is not None and other.scope <= self.scope))

    def excludes(self, other: Reservation) -> bool:
        """Return whether two transactions cannot hold these reservations concurrently."""
        if self.mode is other.mode and self.mode.is_shared:
            return False
        return self.scope is None or other.scope is None or not self.scope.isdisjoint(other.scope)


#: The whole table, exclusively.
WHOLE_TABLE = Reservation()


# -- signals that are held back ---------------------------------------------------------------------------------------

_context = threading.local()


@contextmanager
def interrupted_by(pending: Callable[[], bool]) -> Iterator[None]:
    """Interrupt waits on this thread as soon as ``pending`` reports that a signal was held back."""
    before = getattr(_context, "pending", None)
    _context.pending = pending
    try:
        yield
    finally:
        _context.pending = before


def interrupted() -> bool:
    """Return whether a signal that was held back on this thread asks its waits to end."""
    pending = getattr(_context, "pending", None)
    return pending is not None and bool(pending())

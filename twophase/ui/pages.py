"""The contents of the pages, as plain values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from twophase.protocol.states import TransactionState
from twophase.timeline.listings import lock_rows
from twophase.timeline.records import TransactionRecord
from twophase.timeline.timeline import Timeline
from twophase.timeline.waits import Lock
from twophase.transactions.clean import Cleaned

#: The number of transactions that have ended on the first page.
_RECENT = 50
#: The number of transactions with leftovers that are listed.
_MOST_LEFT = 200


@dataclass(frozen=True)
class Row:
    """A transaction in a list.

    Attributes
    ----------
    record : TransactionRecord
    is_dead : bool
        Whether no process works on it any more.
    waits : bool
        Whether it waits for another one.
    commands : tuple of str
        What ends it, or removes its leftovers.
    age : float
        How long ago it began, or how long it has lasted.
    """

    record: TransactionRecord
    is_dead: bool
    waits: bool
    commands: tuple[str, ...]
    age: float

    @property
    def tables(self) -> list[str]:
        """The kind of write, and its table."""
        return [f"{p.purpose.name.replace('_', ' ')} {p.name}" for p in self.record.participants]


@dataclass(frozen=True)
class Found:
    """The result of a search for leftovers in the stores."""

    results: Sequence[Cleaned]
    at: datetime

    @property
    def removable(self) -> float:
        """The known bytes that ``twophase clean`` would remove now."""
        return sum(r.leftover.size for r in self.results if r.leftover.size > 0 and not r.reason)


@dataclass
class Pages:
    """The contents of the pages.

    Attributes
    ----------
    timeline : Timeline
    search : callable or None
        Searches the stores for leftovers and removes none; None if no session was wanted.
    """

    timeline: Timeline
    search: Callable[[], Sequence[Cleaned]] | None = None
    _searching: threading.Lock = field(default_factory=threading.Lock)

    def transactions(self) -> dict[str, Any]:
        """The transactions with something left to do, and the last ones that have ended."""
        opened = self._rows(self.timeline.transactions(open_only=True))
        recent = self._rows(self.timeline.transactions(limit=_RECENT))
        return {"live": opened, "ended": [row for row in recent if not row.record.is_open]}

    def transaction(self, transaction_id: str) -> dict[str, Any] | None:
        """One transaction; None if the timeline does not know it."""
        record = self.timeline.transaction(transaction_id)
        if record is None:
            ended = self.timeline.how_ended(transaction_id)
            return None if ended is None else {"forgotten": transaction_id, "state": ended.value}
        (row,) = self._rows([record])
        locks = [lock for lock in self.timeline.locks() if lock.transaction_id == record.id] if record.is_open else []
        return {
            "row": row,
            "locks": [lock for lock in locks if lock.since is None],
            "waits": [lock for lock in locks if lock.since is not None],
            "events": _events(record, locks),
        }

    def locks(self) -> dict[str, Any]:
        """The locked tables, and who waits for whom."""
        records = {record.id: record for record in self.timeline.transactions(open_only=True)}
        return {"locks": lock_rows(self.timeline.locks(), records)}

    def in_doubt(self) -> dict[str, Any]:
        """The transactions of which the outcome is unknown, and the dead ones."""
        rows = self._rows(self.timeline.transactions(open_only=True))
        return {
            "in_doubt": [row for row in rows if row.record.state is TransactionState.IN_DOUBT],
            "dead": [row for row in rows if row.is_dead and row.record.state is not TransactionState.IN_DOUBT],
        }

    def leftovers(self) -> dict[str, Any]:
        """Leftovers that ended transactions could not remove, and those in the stores if a session was wanted."""
        found = None
        if self.search is not None:
            with self._searching:  # It may take long: one at a time.
                found = Found(self.search(), datetime.now(UTC))
        left = self.timeline.transactions(left_behind=True, limit=_MOST_LEFT)
        return {"recorded": self._rows(left), "found": found, "clean": f"twophase clean{self.timeline.option}"}

    def _rows(self, records: Sequence[TransactionRecord]) -> list[Row]:
        now = self.timeline.now()
        waiting = {lock.transaction_id for lock in self.timeline.locks() if lock.since is not None}
        return [self._row(record, now, record.id in waiting) for record in records]

    def _row(self, record: TransactionRecord, now: float, waits: bool) -> Row:
        is_dead = record.is_open and record.is_dead(now)
        age = (record.finished or now) - record.created
        return Row(record, is_dead, waits, self._commands(record, is_dead), max(age, 0.0))

    def _commands(self, record: TransactionRecord, is_dead: bool) -> tuple[str, ...]:
        recover, option = f"twophase recover {record.id}", self.timeline.option
        if record.state is TransactionState.IN_DOUBT and record.is_open:
            return (
                f"{recover}{option}",
                f"{recover} --assume committed{option}",
                f"{recover} --assume rolled-back{option}",
            )
        if is_dead:
            return (f"{recover}{option}",)
        return (f"twophase clean{option}",) if record.left_behind else ()


def _events(record: TransactionRecord, locks: Sequence[Lock]) -> list[tuple[float, str]]:
    """The course of a transaction as the timeline knows it, in order."""
    decided = "rolled back" if record.state is TransactionState.ROLLED_BACK else "decided to publish"
    by = f", by {record.wounded_by}" if record.wounded_by else ""
    found = [
        (record.first_begun, "the first attempt began" if _differ(record.first_begun, record.created) else ""),
        (record.created, "began"),
        (record.silent_since, "was taken over: the lease of its process had expired"),
        (record.decided, decided + by),
        *((lock.since, f"waits for {', '.join(lock.waits_for)}: {lock.words} {lock.name}") for lock in locks),
        (record.finished, "ended: nothing is left to do"),
    ]
    return sorted((moment, text) for moment, text in found if moment is not None and text)


def _differ(first: float | None, second: float) -> bool:
    return first is not None and abs(first - second) > 1.0

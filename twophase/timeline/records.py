"""The records of the timeline, as plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from twophase.model import Level, ObjectPath, Purpose
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.redaction import redact
from twophase.timeline.owners import Owner, is_abandoned, steady_clock

_LONGEST_ERROR = 500
_LONGEST_READ = 4_000
#: The start of an error of a call into the JVM; the exception's own message and stack trace follow.
_CALL_OF_A_JVM = re.compile(r"\AAn error occurred while [^\n]*\n\s*:\s*")

#: Seconds after which an owner whose lease expired in the middle of its publish is considered dead.
LONGEST_SLEEP = 3600.0

#: Tolerance, in seconds, between two readings of a clock.
_SLACK = 1.0


def describe_error(error: BaseException | str | None) -> str | None:
    """Describe an error for the timeline: its class and first line, without anything that looks like a secret."""
    if error is None:
        return None
    return (first_line(error) if isinstance(error, str) else name_error(error))[:_LONGEST_ERROR]


def name_error(error: BaseException) -> str:
    """Describe an error within a sentence: its class and first line."""
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: BaseException | str) -> str:
    """Return the message of an error, without its stack trace and without anything that looks like a secret."""
    text = _CALL_OF_A_JVM.sub("", str(error).strip())
    # Truncate first: the rest is not shown, so it need not be searched for secrets.
    return redact(text.splitlines()[0][:_LONGEST_READ] if text else "")


@dataclass(frozen=True)
class Account:
    """The outcome of each table, for a transaction whose state does not apply to all of them.

    Attributes
    ----------
    published, undone, not_published, unknown : tuple of str
        The tables that are published, were undone, are not published, and whose outcome is unknown.
    in_part : tuple of str
        The tables whose publish failed and could not be undone: readers may see a part of it.
    unfinished : tuple of str
        The databases that are dropped by a published transaction, and that their store still refuses to drop.
    """

    published: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    not_published: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    in_part: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """Describe each group of tables that is not empty, in a few words."""
        kinds = {
            "in doubt": self.unknown,
            "perhaps published in part": self.in_part,
            "dropped, but still there": self.unfinished,
            "published": self.published,
            "undone": self.undone,
            "not published": self.not_published,
        }
        return [f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names]

    def __str__(self) -> str:
        """Describe all groups in one sentence, without a full stop."""
        text = "; ".join(self.words())
        return text[:1].upper() + text[1:]

    @property
    def is_divided(self) -> bool:
        """Whether all outcomes are known, and some tables are published and others are not."""
        return not self.unknown and bool(self.published) and bool(self.not_published or self.undone)

    def advice(self) -> list[str]:
        """Advise what to do if the transaction is partially published, and remains so."""
        if not self.is_divided:
            return []
        waiting = ", ".join((*self.not_published, *self.undone))
        return [f"a recovery publishes the rest, where its store can, once nothing is in the way of {waiting}"]


@dataclass(frozen=True)
class ParticipantRecord:
    """One participant of a transaction.

    Attributes
    ----------
    ordinal : int
    catalog : str
        The catalog's name; its options come from the session at recovery.
    path : ObjectPath
    purpose : Purpose
    state : ParticipantState
    level : Level or None
        Known once the transaction is decided.
    document : mapping or None
        The document for :meth:`twophase.Catalog.restore`; dropped when the transaction is finished without leftovers.
    """

    ordinal: int
    catalog: str
    path: ObjectPath
    purpose: Purpose
    state: ParticipantState
    level: Level | None = None
    document: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """Catalog and table, as a user writes them."""
        return f"{self.catalog}.{self.path}"

    def to_document(self) -> dict[str, Any]:
        """Convert it to a document for JSON output, without the participant's own document."""
        return {
            "ordinal": self.ordinal,
            "catalog": self.catalog,
            "path": self.path.to_document(),
            "purpose": self.purpose.value,
            "state": self.state.value,
            "level": None if self.level is None else self.level.name,
        }


@dataclass(frozen=True)
class TransactionRecord:
    """One transaction: its owner, contents, times and outcome.

    Attributes
    ----------
    id, coordinator, user, application : str
    owner : Owner
        The last process that worked on it.
    state : TransactionState
    fencing : int
        Incremented by every take-over; only the owner with the latest number may write.
    lease_until : float
        Seconds since the epoch; 0 if the owner has released the transaction.
    lease_steady : float or None
        Same as ``lease_until``, by :func:`~twophase.timeline.owners.steady_clock` of the owner's kernel, if all users
        of the timeline are on one machine.
    lease_seconds : float or None
        The duration of the lease from each renewal; None if recorded by an earlier version.
    created, decided, finished : float or None
        When it was begun, when its outcome was decided, when nothing was left to do.
    silent_since : float or None
        When it was taken over from an owner whose lease had expired, but who was not certainly gone.
    level : Level or None
    error : str or None
    left_behind : tuple of str
    participants : tuple of ParticipantRecord
    isolation : str or None
        The isolation level; None if recorded by an earlier version.
    snapshot : int or None
        The last commit number that it sees.
    number : int or None
        Its own commit number.
    first_begun : float or None
        When its first attempt began; None if recorded by an earlier version.
    wounded_by : str or None
        The transaction that has rolled it back because it needed one of its tables.
    undoes : str or None
        The transaction that it takes back.
    """

    id: str
    coordinator: str
    user: str
    application: str
    owner: Owner
    state: TransactionState
    fencing: int
    lease_until: float
    created: float
    lease_steady: float | None = None
    lease_seconds: float | None = None
    silent_since: float | None = None
    decided: float | None = None
    finished: float | None = None
    level: Level | None = None
    error: str | None = None
    left_behind: tuple[str, ...] = ()
    participants: tuple[ParticipantRecord, ...] = field(default=())
    isolation: str | None = None
    snapshot: int | None = None
    number: int | None = None
    first_begun: float | None = None
    wounded_by: str | None = None
    undoes: str | None = None

    @property
    def is_immediate(self) -> bool:
        """Whether it is a completed statement outside of any transaction: it has only its place in the order."""
        return self.number is not None and self.level is None

    @property
    def is_open(self) -> bool:
        """Whether something is left to do."""
        return self.finished is None

    def is_abandoned(self) -> bool:
        """Whether its last owner no longer works on it: it is finished, or that process is gone or has released it."""
        return not self.is_open or self.lease_until == 0 or is_abandoned(self.owner, self.id)

    def is_dead(self, now: float) -> bool:
        """Return whether it may be taken over: abandoned, or its lease has expired at ``now`` (the timeline's clock).

        On the owner's own machine the lease uses a clock that is never set: a step of the wall clock neither takes over
        a live transaction nor protects a dead one.
        """
        if self.is_abandoned():
            return True
        steady = self._steady_now()
        return self.lease_until < now if steady is None else (self.lease_steady or 0.0) < steady

    def outlasts_itself(self, now: float) -> bool:
        """Return whether its lease ends later than one that starts at ``now``: the clock has been set back since."""
        return self._steady_now() is None and self.lease_until > now + self.longest_lease + _SLACK

    @property
    def longest_lease(self) -> float:
        """The maximum number of seconds that its lease may still last, regardless of the recorded value."""
        return LONGEST_SLEEP if self.lease_seconds is None else self.lease_seconds

    def _steady_now(self) -> float | None:
        known = self.lease_steady is not None and self.owner.is_of_this_kernel()
        return steady_clock() if known else None

    def is_certainly_dead(self, now: float) -> bool:
        """Return whether no process can be working on it: neither its last owner nor an earlier one that was paused."""
        return self.is_abandoned() and (self.silent_since is None or now - self.silent_since > LONGEST_SLEEP)

    def to_document(self) -> dict[str, Any]:
        """Convert it to a document for JSON output."""
        return {
            "id": self.id,
            "state": self.state.value,
            "level": None if self.level is None else self.level.name,
            "coordinator": self.coordinator,
            "user": self.user,
            "application": self.application,
            "owner": asdict(self.owner),
            "created": self.created,
            "decided": self.decided,
            "finished": self.finished,
            "isolation": self.isolation,
            "snapshot": self.snapshot,
            "number": self.number,
            "wounded_by": self.wounded_by,
            "undoes": self.undoes,
            "error": self.error,
            "left_behind": list(self.left_behind),
            "participants": [participant.to_document() for participant in self.participants],
        }

"""What stands on the timeline, as plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from twophase.liveness import Owner, is_abandoned, steady_clock
from twophase.model import Level, ObjectPath, Purpose
from twophase.redaction import redact
from twophase.states import ParticipantState, TransactionState

_LONGEST_ERROR = 500
_LONGEST_READ = 4_000
#: How a call into a JVM begins to tell of an exception, whose own words and stack trace follow.
_CALL_OF_A_JVM = re.compile(r"\AAn error occurred while [^\n]*\n\s*:\s*")

#: Seconds after which an owner that fell silent in the middle of its publish is taken for dead.
LONGEST_SLEEP = 3600.0

#: What two looks at one clock may differ by.
_SLACK = 1.0


def describe_error(error: BaseException | str | None) -> str | None:
    """An error for the timeline: its kind and first line, with everything that looks like a secret left out."""
    if error is None:
        return None
    return (first_line(error) if isinstance(error, str) else name_error(error))[:_LONGEST_ERROR]


def name_error(error: BaseException) -> str:
    """An error inside a sentence: its kind and first line."""
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: BaseException | str) -> str:
    """What an error says, without a stack trace behind it, and without anything that looks like a secret."""
    text = _CALL_OF_A_JVM.sub("", str(error).strip())
    # Cut first: what nobody is shown needs no reading.
    return redact(text.splitlines()[0][:_LONGEST_READ] if text else "")


@dataclass(frozen=True)
class Account:
    """The tables of a transaction whose state does not say it of all of them.

    Attributes
    ----------
    published, undone, missing, doubtful : tuple of str
        What is published, what was undone, what is not published, and what is not known.
    """

    published: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """A few words for each kind of which there are any."""
        kinds = {
            "in doubt": self.doubtful,
            "published": self.published,
            "undone": self.undone,
            "not published": self.missing,
        }
        return [f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names]

    def __str__(self) -> str:
        """All in one sentence, without its full stop."""
        text = "; ".join(self.words())
        return text[:1].upper() + text[1:]

    @property
    def is_in_part(self) -> bool:
        """Whether it is known of all, and some are published and others not."""
        return not self.doubtful and bool(self.published) and bool(self.missing or self.undone)

    def advice(self) -> list[str]:
        """What to do where it is published in part, and stays so."""
        if not self.is_in_part:
            return []
        waiting = ", ".join((*self.missing, *self.undone))
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
        Known once it is decided.
    document : mapping or None
        What :meth:`twophase.Catalog.restore` needs; dropped when the transaction is finished and left nothing.
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
        """Catalog and table, as a user writes it."""
        return f"{self.catalog}.{self.path}"

    def to_document(self) -> dict[str, Any]:
        """For JSON output; without the participant's own document."""
        return {
            "ordinal": self.ordinal,
            "catalog": self.catalog,
            "path": self.path.to_document(),
            "purpose": self.purpose.value,
            "state": self.state.value,
            "level": None if self.level is None else int(self.level),
        }


@dataclass(frozen=True)
class TransactionRecord:
    """One transaction: who, what, when, and how it ended.

    Attributes
    ----------
    id, coordinator, user, application : str
    owner : Owner
        The process that worked on it last.
    state : TransactionState
    fencing : int
        Grows with every take-over; only the bearer of the latest number may write.
    lease_until : float
        Seconds since the epoch; 0 when the owner gave the transaction up.
    lease_steady : float or None
        The same by :func:`~twophase.liveness.steady_clock` of the owner's kernel, where all users of the timeline are
        on one machine.
    lease_seconds : float or None
        How long the lease runs from each renewal; None where an earlier version has recorded it.
    created, decided, finished : float or None
        When it was begun, when its outcome was decided, when nothing was left to do.
    silent_since : float or None
        When it was taken over from an owner that was silent, but not seen to be gone.
    level : Level or None
    error : str or None
    left_behind : tuple of str
    participants : tuple of ParticipantRecord
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

    @property
    def is_open(self) -> bool:
        """Whether something is left to do."""
        return self.finished is None

    def is_abandoned(self) -> bool:
        """Whether its last owner does not work on it: it is finished, that process is gone, or gave it up."""
        return not self.is_open or self.lease_until == 0 or is_abandoned(self.owner, self.id)

    def is_dead(self, now: float) -> bool:
        """Whether it may be taken over: abandoned, or its lease ran out at ``now`` (the timeline's clock).

        On the owner's own machine the lease goes by a clock that is never set: a step of the wall clock takes no live
        transaction away, and keeps no dead one.
        """
        if self.is_abandoned():
            return True
        steady = self._steady_now()
        return self.lease_until < now if steady is None else (self.lease_steady or 0.0) < steady

    def outlasts_itself(self, now: float) -> bool:
        """Whether its lease ends later than one that begins at ``now``: the clock was set back since."""
        return self._steady_now() is None and self.lease_until > now + self.longest_lease + _SLACK

    @property
    def longest_lease(self) -> float:
        """How many seconds it may run from now, whatever was recorded."""
        return LONGEST_SLEEP if self.lease_seconds is None else self.lease_seconds

    def _steady_now(self) -> float | None:
        known = self.lease_steady is not None and self.owner.is_of_this_kernel()
        return steady_clock() if known else None

    def is_certainly_dead(self, now: float) -> bool:
        """Whether nobody can be working on it: not its last owner, and none before that was only silent."""
        return self.is_abandoned() and (self.silent_since is None or now - self.silent_since > LONGEST_SLEEP)

    def to_document(self) -> dict[str, Any]:
        """For JSON output."""
        return {
            "id": self.id,
            "state": self.state.value,
            "level": None if self.level is None else int(self.level),
            "coordinator": self.coordinator,
            "user": self.user,
            "application": self.application,
            "owner": asdict(self.owner),
            "created": self.created,
            "decided": self.decided,
            "finished": self.finished,
            "error": self.error,
            "left_behind": list(self.left_behind),
            "participants": [participant.to_document() for participant in self.participants],
        }

"""The vocabulary of the protocol: what is to be published, what is to be done, what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twophase.states import ParticipantState, TransactionState

# -- what is to be published ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """What the protocol knows of a participant.

    Parameters
    ----------
    ordinal : int
    catalog : str
    path : tuple of str
    state : ParticipantState
    group : str, optional
        Members of one catalog with one group are published in one step.
    """

    ordinal: int
    catalog: str
    path: tuple[str, ...]
    state: ParticipantState
    group: str | None = None


@dataclass(frozen=True)
class Unit:
    """One publish: a participant, or several that their catalog publishes in one step."""

    ordinals: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """What a transaction publishes, in order, and what it only removes.

    Parameters
    ----------
    units : tuple of Unit
    spare : tuple of int
        Ordinals that are never published.
    refused : bool
        A store has refused one after others were published: only undoing is left.
    """

    units: tuple[Unit, ...]
    spare: tuple[int, ...] = ()
    refused: bool = False

    @property
    def ordinals(self) -> list[int]:
        """All participants, the last statement first: the order of undoing."""
        published = [ordinal for unit in self.units for ordinal in unit.ordinals]
        return sorted([*published, *self.spare], reverse=True)


def arrange(members: Iterable[Member]) -> Plan:
    """The fixed order of publishing: by catalog, path and ordinal; a group stands where its first member would."""
    ordered = sorted(members, key=lambda m: (m.catalog, m.path, m.ordinal))
    units: dict[tuple[object, ...], list[int]] = {}
    for member in ordered:
        if member.state.takes_part:
            key = (member.catalog, member.ordinal) if member.group is None else (member.catalog, "group", member.group)
            units.setdefault(key, []).append(member.ordinal)
    return Plan(
        units=tuple(Unit(tuple(ordinals)) for ordinals in units.values()),
        spare=tuple(m.ordinal for m in ordered if m.state is ParticipantState.SUPERSEDED),
        refused=any(m.state is ParticipantState.REFUSED for m in ordered),
    )


# -- actions and replies ----------------------------------------------------------------------------------------------


class Action:
    """Something to do outside."""


@dataclass(frozen=True)
class Record(Action):
    """Make a state durable, if the transaction is still ours."""

    state: TransactionState
    error: BaseException | None = None
    left_behind: tuple[str, ...] = ()


@dataclass(frozen=True)
class MarkRefused(Action):
    """Make durable that a store refused a unit after others were published."""

    unit: Unit


@dataclass(frozen=True)
class Close(Action):
    """Record that nothing is left to do: give the reservations back."""

    left_behind: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reserve(Action):
    """Reserve the participant's table on the timeline."""

    ordinal: int


@dataclass(frozen=True)
class Prepare(Action):
    """Prepare the participant; what its document has become is recorded with the decision."""

    ordinal: int


@dataclass(frozen=True)
class Fence(Action):
    """Make sure that the transaction is still ours."""


@dataclass(frozen=True)
class Publish(Action):
    """Publish a unit."""

    unit: Unit


@dataclass(frozen=True)
class AskOutcome(Action):
    """Ask the store whether a unit was published."""

    unit: Unit


@dataclass(frozen=True)
class Compensate(Action):
    """Undo a publish."""

    unit: Unit


@dataclass(frozen=True)
class Abort(Action):
    """Remove what a participant staged."""

    ordinal: int


@dataclass(frozen=True)
class Tidy(Action):
    """Tidy up after a publish."""

    ordinal: int


@dataclass(frozen=True)
class Wait(Action):
    """Wait a little before another attempt."""

    attempt: int


@dataclass(frozen=True)
class Reply:
    """The answer to an action whose error is part of the protocol.

    Parameters
    ----------
    error : BaseException, optional
    left_behind : tuple of str
        What the error left in the store.
    undone : bool
        Of ``Compensate``: the table is again as it was.
    """

    error: BaseException | None = None
    left_behind: tuple[str, ...] = ()
    undone: bool = False


@dataclass(frozen=True)
class Verdict:
    """How it ended.

    Parameters
    ----------
    state : TransactionState
        ``COMPLETED``, ``ROLLED_BACK`` or ``IN_DOUBT``.
    error : BaseException, optional
        Why it did not complete.
    left_behind : tuple of str
        What remains in the stores.
    doubtful : tuple of Unit
        Units whose outcome is not known, or that could not be undone.
    problems : tuple of BaseException
        What went wrong on the way without changing the outcome.
    """

    state: TransactionState
    error: BaseException | None = None
    left_behind: tuple[str, ...] = ()
    doubtful: tuple[Unit, ...] = ()
    problems: tuple[BaseException, ...] = ()

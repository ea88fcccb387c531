"""The vocabulary of the protocol: what is to be published, what is to be done, what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twophase.model import Level
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
    can_undo : bool
        Whether its publish can be undone while nobody changes the table.
    """

    ordinal: int
    catalog: str
    path: tuple[str, ...]
    state: ParticipantState
    group: str | None = None
    can_undo: bool = True


@dataclass(frozen=True)
class Unit:
    """One publish: a participant, or several that their catalog publishes in one step.

    Parameters
    ----------
    ordinals : tuple of int
    can_undo : bool
        Whether it can be undone, in one step too.
    """

    ordinals: tuple[int, ...]
    can_undo: bool = True


@dataclass(frozen=True)
class Plan:
    """What a transaction publishes, in order, and what it only removes.

    Parameters
    ----------
    units : tuple of Unit
    spare : tuple of int
        Ordinals that are never published.
    refused : tuple of Unit
        Those that a store has refused after others were published: what was published is to be undone.
    may_undo : bool
        Whether what the stores say of it is fresh enough to undo a publish for it.
    """

    units: tuple[Unit, ...]
    spare: tuple[int, ...] = ()
    refused: tuple[Unit, ...] = ()
    may_undo: bool = True

    @property
    def ordinals(self) -> list[int]:
        """All participants, the last statement first: the order of undoing."""
        published = [ordinal for unit in self.units for ordinal in unit.ordinals]
        return sorted([*published, *self.spare], reverse=True)

    @property
    def fixed(self) -> tuple[Unit, ...]:
        """Those that cannot be undone."""
        return tuple(unit for unit in self.units if not unit.can_undo)

    @property
    def level(self) -> Level:
        """What the publishes guarantee together: one that cannot be undone comes last, and then all are published."""
        if len(self.units) < 2:
            return Level.ATOMIC
        return Level.UNDONE if len(self.fixed) < 2 else Level.NONE


def arrange(members: Iterable[Member]) -> Plan:
    """The fixed order of publishing: what cannot be undone comes last, so that a refusal finds only what can be.

    Else it goes by catalog, path and ordinal; a group stands where its first member would.
    """
    ordered = sorted(members, key=lambda m: (m.catalog, m.path, m.ordinal))
    groups: dict[tuple[object, ...], list[Member]] = {}
    for member in ordered:
        if member.state.takes_part and member.state is not ParticipantState.ABORTED:
            key = (member.catalog, member.ordinal) if member.group is None else (member.catalog, "group", member.group)
            groups.setdefault(key, []).append(member)
    refused = [group for group in groups.values() if any(m.state is ParticipantState.REFUSED for m in group)]
    return Plan(
        units=tuple(sorted(map(_unit, groups.values()), key=lambda unit: not unit.can_undo)),
        spare=tuple(m.ordinal for m in ordered if m.state in (ParticipantState.SUPERSEDED, ParticipantState.ABORTED)),
        refused=tuple(map(_unit, refused)),
    )


def reservation_order(members: Iterable[Member]) -> list[int]:
    """The fixed order in which tables are reserved, the same for every transaction of one timeline."""
    return [member.ordinal for member in sorted(members, key=lambda m: (m.catalog, m.path, m.ordinal))]


def _unit(group: Sequence[Member]) -> Unit:
    return Unit(tuple(member.ordinal for member in group), all(member.can_undo for member in group))


# -- actions and replies ----------------------------------------------------------------------------------------------


class Action:
    """Something to do outside."""


@dataclass(frozen=True)
class Record(Action):
    """Make a state durable, if the transaction is still ours.

    Parameters
    ----------
    state : TransactionState
    error : BaseException, optional
    left_behind : tuple of str
    apart : tuple of Unit
        With an end that an operator has decided: those that ended the other way.
    """

    state: TransactionState
    error: BaseException | None = None
    left_behind: tuple[str, ...] = ()
    apart: tuple[Unit, ...] = ()


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
class Persist(Action):
    """Make what these participants have staged survive a power cut; an error is one of the store."""

    ordinals: tuple[int, ...]


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
    """Undo a publish, in one step like it."""

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
        Units whose outcome is not known.
    published, undone, missing : tuple of Unit
        Where the state does not say it of all: what is published, what was undone just now, what is not published.
    problems : tuple of BaseException
        What went wrong on the way without changing the outcome.
    """

    state: TransactionState
    error: BaseException | None = None
    left_behind: tuple[str, ...] = ()
    doubtful: tuple[Unit, ...] = ()
    published: tuple[Unit, ...] = ()
    undone: tuple[Unit, ...] = ()
    missing: tuple[Unit, ...] = ()
    problems: tuple[BaseException, ...] = ()

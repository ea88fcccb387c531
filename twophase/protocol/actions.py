"""The vocabulary of the protocol: the plan of a publish, the actions to perform, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from twophase.model import Level
from twophase.protocol.states import ParticipantState, TransactionState

# -- what is to be published ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """A participant, as seen by the protocol.

    Parameters
    ----------
    ordinal : int
    catalog : str
    path : tuple of str
    state : ParticipantState
    group : str, optional
        Members of one catalog with the same group are published in one step.
    can_undo : bool
        Whether its publish can be undone while no other writer changes the table.
    staging_is_seen, drop_is_seen : bool
        Whether readers see what it has staged, until it is aborted; what it drops, until it is cleaned up.
    """

    ordinal: int
    catalog: str
    path: tuple[str, ...]
    state: ParticipantState
    group: str | None = None
    can_undo: bool = True
    staging_is_seen: bool = False
    drop_is_seen: bool = False


@dataclass(frozen=True)
class Unit:
    """One publish: a participant, or several that are published in one step by their catalog.

    Parameters
    ----------
    ordinals : tuple of int
    can_undo : bool
        Whether it can be undone, also in one step.
    """

    ordinals: tuple[int, ...]
    can_undo: bool = True


@dataclass(frozen=True)
class Plan:
    """The plan of a transaction: what it publishes, in order, and what it only removes.

    Parameters
    ----------
    units : tuple of Unit
    superseded : tuple of int
        The ordinals that are never published.
    refused : tuple of Unit
        The units that a store refused after others had been published: those must be undone.
    may_undo : bool
        Whether the outcomes that the stores report are recent enough to undo a publish because of them.
    seen_staged, seen_dropped : frozenset of int
        The ordinals of those of which readers see what they have staged, and what they drop: until it is removed, the
        transaction stays open.
    """

    units: tuple[Unit, ...]
    superseded: tuple[int, ...] = ()
    refused: tuple[Unit, ...] = ()
    may_undo: bool = True
    seen_staged: frozenset[int] = frozenset()
    seen_dropped: frozenset[int] = frozenset()

    def ending_anyway(self) -> Plan:
        """The same plan, for a transaction that ends whatever its stores refuse to remove."""
        return replace(self, seen_staged=frozenset(), seen_dropped=frozenset())

    @property
    def ordinals(self) -> list[int]:
        """All participants, the last statement first: the order in which they are undone."""
        published = [ordinal for unit in self.units for ordinal in unit.ordinals]
        return sorted([*published, *self.superseded], reverse=True)

    @property
    def fixed(self) -> tuple[Unit, ...]:
        """The units that cannot be undone."""
        return tuple(unit for unit in self.units if not unit.can_undo)

    @property
    def level(self) -> Level:
        """The level of all publishes together; one that cannot be undone is published last, so it does no harm."""
        if len(self.units) < 2:
            return Level.ATOMIC
        return Level.REVERSIBLE if len(self.fixed) < 2 else Level.BEST_EFFORT


def arrange(members: Iterable[Member]) -> Plan:
    """Plan the fixed order of publishing: units that cannot be undone come last, so that a refusal precedes them.

    Otherwise they are ordered by catalog, path and ordinal; a group is ordered by its first member.
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
        superseded=tuple(
            m.ordinal for m in ordered if m.state in (ParticipantState.SUPERSEDED, ParticipantState.ABORTED)
        ),
        refused=tuple(map(_unit, refused)),
        seen_staged=frozenset(m.ordinal for m in ordered if m.staging_is_seen),
        # What was taken back is not dropped.
        seen_dropped=frozenset(m.ordinal for group in groups.values() for m in group if m.drop_is_seen),
    )


def reservation_order(members: Iterable[Member]) -> list[int]:
    """Return the fixed order in which tables are reserved, the same for all transactions of one timeline."""
    return [member.ordinal for member in sorted(members, key=lambda m: (m.catalog, m.path, m.ordinal))]


def _unit(group: Sequence[Member]) -> Unit:
    return Unit(tuple(member.ordinal for member in group), all(member.can_undo for member in group))


# -- actions and replies ----------------------------------------------------------------------------------------------


class Action:
    """An action to be performed outside the protocol."""


@dataclass(frozen=True)
class Record(Action):
    """Make a state durable, if the transaction is still ours.

    Parameters
    ----------
    state : TransactionState
    error : BaseException, optional
    left_behind : tuple of str
    exceptions : tuple of Unit
        With an end decided by an operator: the units that ended the other way.
    """

    state: TransactionState
    error: BaseException | None = None
    left_behind: tuple[str, ...] = ()
    exceptions: tuple[Unit, ...] = ()


@dataclass(frozen=True)
class MarkRefused(Action):
    """Durably record that a store refused a unit after others had been published."""

    unit: Unit


@dataclass(frozen=True)
class Suspend(Action):
    """Leave a transaction open whose outcome is recorded, but not what readers see: whoever meets it tries again.

    Until then no other append shares the tables of what is unfinished: it would be in the way of an undo. Its other
    tables are released.

    Parameters
    ----------
    unfinished : tuple of int
        The ordinals of what is left to remove.
    """

    unfinished: tuple[int, ...]


@dataclass(frozen=True)
class Finalize(Action):
    """Record that nothing is left to do, and release the reservations."""

    left_behind: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reserve(Action):
    """Reserve the participant's table on the timeline."""

    ordinal: int


@dataclass(frozen=True)
class Prepare(Action):
    """Prepare the participant; its changed document is recorded with the decision."""

    ordinal: int


@dataclass(frozen=True)
class Persist(Action):
    """Make the staged data of these participants survive a power failure; an error is an error of the store."""

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
    """Look up in the store whether a unit was published."""

    unit: Unit


@dataclass(frozen=True)
class Compensate(Action):
    """Undo a publish, in one step as well."""

    unit: Unit


@dataclass(frozen=True)
class Abort(Action):
    """Remove the staged data of a participant, and what a publish that failed has shown of it."""

    ordinal: int


@dataclass(frozen=True)
class Cleanup(Action):
    """Clean up after a publish."""

    ordinal: int


@dataclass(frozen=True)
class Wait(Action):
    """Wait briefly before another attempt."""

    attempt: int


@dataclass(frozen=True)
class Reply:
    """The reply to an action whose error is part of the protocol.

    Parameters
    ----------
    error : BaseException, optional
    left_behind : tuple of str
        Leftovers in the store after the error.
    undone : bool
        For ``Compensate``: the table is restored to its previous state.
    """

    error: BaseException | None = None
    left_behind: tuple[str, ...] = ()
    undone: bool = False


@dataclass(frozen=True)
class Verdict:
    """The result of a protocol.

    Parameters
    ----------
    state : TransactionState
        ``COMPLETED``, ``ROLLED_BACK`` or ``IN_DOUBT``.
    error : BaseException, optional
        Why it did not complete.
    left_behind : tuple of str
        Leftovers in the stores.
    unknown : tuple of Unit
        The units whose outcome is unknown.
    published, undone, not_published : tuple of Unit
        If the state does not apply to all units: those that are published, were just undone, are not published.
    in_part : tuple of Unit
        Those whose publish failed and could not be undone: readers may see a part of it.
    unfinished : tuple of Unit
        Those that are published, and whose store refuses to remove what readers still see.
    problems : tuple of BaseException
        Errors on the way that did not change the outcome.
    """

    state: TransactionState
    error: BaseException | None = None
    left_behind: tuple[str, ...] = ()
    unknown: tuple[Unit, ...] = ()
    published: tuple[Unit, ...] = ()
    undone: tuple[Unit, ...] = ()
    not_published: tuple[Unit, ...] = ()
    in_part: tuple[Unit, ...] = ()
    unfinished: tuple[Unit, ...] = ()
    problems: tuple[BaseException, ...] = ()

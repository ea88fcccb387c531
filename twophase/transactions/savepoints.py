"""Savepoints: marks in a transaction, to which it can be rolled back while it continues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from twophase.errors import ConfigurationError, TwoPhaseError
from twophase.model import ObjectPath
from twophase.protocol import actions
from twophase.protocol.states import ParticipantState
from twophase.redaction import logger
from twophase.timeline.reservations import Reservation
from twophase.transactions import failures
from twophase.transactions.driver import Enlisted
from twophase.transactions.lifecycle import Lifecycle

_log = logger("twophase")


@dataclass(frozen=True, eq=False)
class Savepoint:
    """A mark in a transaction, from :meth:`twophase.Transaction.savepoint`.

    Attributes
    ----------
    name : str
    transaction_id : str
    """

    name: str
    transaction_id: str
    #: How many statements had begun.
    statements: int = field(repr=False)
    #: What the transaction had reserved.
    held: Mapping[tuple[str, ObjectPath], Reservation] = field(repr=False)


class Savepoints:
    """The savepoints of one transaction. The caller holds its lock."""

    def __init__(self, life: Lifecycle) -> None:
        self._life = life
        self._known: list[Savepoint] = []
        self._count = 0

    @property
    def are_set(self) -> bool:
        """Whether there is one that was not released."""
        return bool(self._known)

    def set(self, name: str | None) -> Savepoint:
        """Set one; a name that exists already is hidden until this one is released. Costs no write."""
        self._count += 1
        life = self._life
        savepoint = Savepoint(
            f"savepoint_{self._count}" if name is None else name, life.id, len(life.members), life.contention.held()
        )
        self._known.append(savepoint)
        return savepoint

    def release(self, wanted: Savepoint | str) -> None:
        """Forget one, and those after it; what was written since is kept."""
        del self._known[self._place(wanted) :]

    def roll_back_to(self, wanted: Savepoint | str) -> list[Enlisted]:
        """Discard the statements since one, and return them. It stays; those after it are forgotten.

        Raises
        ------
        WriteConflictError
            One of them is still writing; nothing was changed.
        """
        place, life = self._place(wanted), self._life
        savepoint = self._known[place]
        if life.broken is not None:
            raise life.broken
        later = [
            member
            for member in life.members
            if member.ordinal >= savepoint.statements and member.state is not ParticipantState.DISCARDED
        ]
        for member in later:
            if member.state.takes_part and not member.written and member.failure is None:
                raise failures.still_writing(member, savepoint.name, life.id)
        released = [table for table in life.contention.held() if table not in savepoint.held]
        if later or released:
            discard(life, reversed(later), released)
        del self._known[place + 1 :]
        return later

    def _place(self, wanted: Savepoint | str) -> int:
        for place in reversed(range(len(self._known))):
            if self._known[place] is wanted or self._known[place].name == wanted:
                return place
        name = wanted if isinstance(wanted, str) else wanted.name
        known = ", ".join(dict.fromkeys(savepoint.name for savepoint in self._known))
        raise ConfigurationError(
            f"Transaction {self._life.id} has no savepoint {name}; nothing was changed.",
            transaction_id=self._life.id,
            hint=f"Its savepoints: {known}."
            if known
            else "It has none: they are set with SAVEPOINT, or tx.savepoint().",
        )


def discard(life: Lifecycle, members: Iterable[Enlisted], released: Iterable[tuple[str, ObjectPath]] = ()) -> None:
    """Remove what statements of a continuing transaction have staged, the last one first, and record it in one step.

    What cannot be removed now is removed at the end of the transaction; it is never published.

    Raises
    ------
    TwoPhaseError
        It cannot be recorded: the transaction can only be rolled back.
    """
    driver, lease, tables = life.driver(), life.lease, list(released)
    assert lease is not None
    states: dict[int, ParticipantState] = {}
    for member in members:
        reply = driver.perform(actions.Abort(member.ordinal))
        member.is_discarded = True
        member.state = ParticipantState.DISCARDED if reply.error is None else ParticipantState.SUPERSEDED
        states[member.ordinal] = member.state
        if (earlier := member.supersedes) is not None:
            earlier.state = states[earlier.ordinal] = earlier.was
        _warn_of_leftovers(life.id, member, reply.left_behind)
    try:
        life.coordinator.timeline.discard(lease, states, released=tables)
    except BaseException as error:
        life.broken = error  # The timeline says more than is staged: the only option left is to abort.
        raise
    life.contention.give_back(tables)
    if driver.interrupt is not None:
        raise driver.interrupt


def discard_quietly(life: Lifecycle, member: Enlisted) -> None:
    """Discard a failed statement, whose own error the caller raises."""
    try:
        discard(life, [member])
    except TwoPhaseError as error:
        _log.warning("While transaction %s discarded its write of %s: %s", life.id, member.name, error)


def _warn_of_leftovers(transaction_id: str, member: Enlisted, left_behind: Sequence[str]) -> None:
    if left_behind:
        _log.warning(
            "Transaction %s has discarded its write of %s; what is left is removed at its end, not published: %s",
            transaction_id, member.name, ", ".join(left_behind),
        )  # fmt: skip

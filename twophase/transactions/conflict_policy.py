"""Conflict policies: what becomes of a transaction that needs a table which another one has reserved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

from twophase.config.chosen import chosen
from twophase.errors import ConfigurationError


class Resolution(Enum):
    """The reaction of the transaction that needs the table."""

    #: It waits for the other one, up to its longest wait.
    WAIT = "wait"
    #: It is refused.
    DIE = "die"
    #: It rolls the other one back; it waits if the other one has decided to commit.
    WOUND = "wound"


@dataclass(frozen=True)
class Contender:
    """One of the two transactions in a conflict.

    Attributes
    ----------
    transaction_id : str
    begun : float
        When its first attempt began, in seconds since the epoch: :func:`twophase.run` keeps it over its attempts.
    user, application : str
    """

    transaction_id: str
    begun: float
    user: str = ""
    application: str = ""

    def is_older_than(self, other: Contender) -> bool:
        """Return whether its first attempt began before that of the other one; of all transactions one is oldest.

        Parameters
        ----------
        other : Contender
        """
        return (self.begun, self.transaction_id) < (other.begun, other.transaction_id)


class ConflictPolicy(ABC):
    """A conflict policy; ``spark.twophase.conflict = package.module:Class`` names one of your own.

    Attributes
    ----------
    reserves_early : bool
        Whether a table is reserved before the first statement that writes it, rather than at the commit.
    """

    reserves_early: bool = True

    @abstractmethod
    def on_conflict(self, requester: Contender, holder: Contender, mode: str) -> Resolution:
        """Decide what a transaction does whose table is reserved by another one.

        It is asked again and again while the transaction waits. Whatever it answers, no transaction waits for itself,
        and none that has decided to commit is rolled back.

        Parameters
        ----------
        requester : Contender
            The transaction that needs the table.
        holder : Contender
            The one that has reserved it, or an older one that waits for it.
        mode : str
            ``append`` or ``write``: what the requester needs the table for.
        """


class FirstCommitterWins(ConflictPolicy):
    """No table is reserved while jobs run; of two transactions that change a table the first one to commit wins."""

    reserves_early = False

    def on_conflict(self, requester: Contender, holder: Contender, mode: str) -> Resolution:
        return Resolution.WAIT


class WaitDie(ConflictPolicy):
    """An older transaction waits for a younger one, and a younger one is refused before its job."""

    def on_conflict(self, requester: Contender, holder: Contender, mode: str) -> Resolution:
        return Resolution.WAIT if requester.is_older_than(holder) else Resolution.DIE


class WoundWait(ConflictPolicy):
    """An older transaction rolls a younger one back, and a younger one waits for an older one."""

    def on_conflict(self, requester: Contender, holder: Contender, mode: str) -> Resolution:
        return Resolution.WOUND if requester.is_older_than(holder) else Resolution.WAIT


class Fail(ConflictPolicy):
    """Whoever comes second is refused before its job."""

    def on_conflict(self, requester: Contender, holder: Contender, mode: str) -> Resolution:
        return Resolution.DIE


DEFAULT_POLICY = "first_committer_wins"
POLICIES: dict[str, type[ConflictPolicy]] = {
    DEFAULT_POLICY: FirstCommitterWins,
    "wait_die": WaitDie,
    "wound_wait": WoundWait,
    "fail": Fail,
}


def conflict_policy(wanted: ConflictPolicy | type[ConflictPolicy] | str) -> ConflictPolicy:
    """Return the conflict policy that a name, a class or an object means.

    Raises
    ------
    ConfigurationError
        There is no such policy, or it cannot be made.
    """
    found = _named(wanted) if isinstance(wanted, str) else wanted
    if isinstance(found, ConflictPolicy):
        return found
    if not (isinstance(found, type) and issubclass(found, ConflictPolicy)):
        raise ConfigurationError(f"{wanted!r} is no conflict policy: it is no subclass of twophase.ConflictPolicy.")
    try:
        return found()
    except Exception as error:  # A class of the user's may raise anything.
        raise ConfigurationError(f"The conflict policy {wanted!r} cannot be made: {error!r}") from error


def _named(name: str) -> object:
    try:
        return chosen(name, POLICIES)
    except ValueError as error:
        reason, *hint = error.args
        raise ConfigurationError(f"The conflict policy {reason}", hint="".join(hint)) from error

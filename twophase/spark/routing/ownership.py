"""Whose a write is: the one answer that SQL, ``saveAsTable``, ``insertInto`` and ``writeTo`` share.

It looks at what a name means (:class:`twophase.spark.routing.targets.Targets`) and at the format, never at how the name
is written: prefixed, unprefixed, or after ``USE``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from twophase.spark.jvm.statements import TableFacts
from twophase.spark.routing.targets import Target, Targets


class Owner(Enum):
    """Who runs a write."""

    OURS = "a twophase catalog"
    SPARK = "Spark itself, with effect at once"
    NOBODY = "Spark will refuse it: there is nothing to write"


@dataclass(frozen=True, slots=True)
class Ruling:
    """Whose a write is.

    Attributes
    ----------
    owner : Owner
    target : Target or None
        What the name means; None where it is none of a twophase catalog's.
    facts : TableFacts or None
        What is known of a table that exists, where that was looked up.
    """

    owner: Owner
    target: Target | None = None
    facts: TableFacts | None = None

    @property
    def ours(self) -> Target | None:
        """The target, where it is ours to write."""
        return self.target if self.owner is Owner.OURS else None


class Ownership:
    """Rules for one attached session.

    Parameters
    ----------
    targets : Targets
    """

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    def of_new(self, parts: tuple[str, ...], provider: str | None) -> Ruling:
        """A table that is made or replaced, with its format."""
        target = self._targets.resolve(parts)
        if target is None:
            return Ruling(Owner.SPARK)
        # Where Spark asks the catalog anyway, it is the catalog that refuses a format.
        is_ours = not target.spliced or self._targets.can_create(target, provider)
        return Ruling(Owner.OURS if is_ours else Owner.SPARK, target)

    def of_existing(self, parts: tuple[str, ...], *, views: bool = True) -> Ruling:
        """A table that is written.

        Parameters
        ----------
        parts : tuple of str
        views : bool
            Whether a temporary view of that name goes first, as it does everywhere but in ``saveAsTable``.
        """
        target = self._targets.resolve(parts, views=views)
        if target is None:
            return Ruling(Owner.SPARK)
        facts = self._targets.existing(target)
        if not target.spliced:
            return Ruling(Owner.OURS, target, facts)
        if facts is None or facts.provider is None:
            return Ruling(Owner.NOBODY, target, facts)
        return Ruling(Owner.OURS if self._targets.can_write(target, facts) else Owner.SPARK, target, facts)

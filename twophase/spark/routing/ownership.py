"""The owner of a write, decided in one place for SQL, ``saveAsTable``, ``insertInto`` and ``writeTo``.

It depends on the table that a name means and on its format, never on how the name is written: prefixed, unprefixed, or
after ``USE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from twophase.model import OverwriteScope, Purpose
from twophase.spark.jvm.statements import TableFacts
from twophase.spark.routing.targets import Names, Target


class Owner(Enum):
    """The engine that runs a write."""

    OURS = "a twophase catalog"
    SPARK = "Spark itself, with immediate effect"
    NOT_FOUND = "Spark will refuse it: there is nothing to write"


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    """The owner of a write.

    Attributes
    ----------
    owner : Owner
    target : Target or None
        The table that the name means; None if it belongs to no twophase catalog.
    facts : TableFacts or None
        Facts about an existing table, if they were looked up.
    """

    owner: Owner
    target: Target | None = None
    facts: TableFacts | None = None

    @property
    def ours(self) -> Target | None:
        """The target, if twophase writes it."""
        return self.target if self.owner is Owner.OURS else None


class Resolver(Protocol):
    """The session's part of the decision."""

    def resolve(self, parts: tuple[str, ...], *, views: bool = False, names: Names | None = None) -> Target | None:
        """The table that a name means; None if it is outside twophase."""

    def existing(self, target: Target) -> TableFacts | None:
        """Facts about a table, staged in the surrounding transaction or published."""

    def is_staged(self, target: Target) -> bool:
        """Return whether the surrounding transaction has written a table."""

    def has_moved(self, target: Target) -> bool:
        """Return whether the surrounding transaction reads a table in another state than the published one."""

    def can_create(self, target: Target, provider: str | None) -> bool:
        """Return whether twophase creates new tables of this format."""

    def can_write(self, target: Target, facts: TableFacts | None) -> bool:
        """Return whether twophase writes an existing table."""

    def unsupported_reason(self, target: Target, purpose: Purpose | None) -> tuple[str, str] | None:
        """The reason why a write cannot be made atomic, and a hint."""

    def carried_scope(
        self, facts: TableFacts, static: Mapping[str, str | None], options: Mapping[str, str]
    ) -> OverwriteScope | None:
        """The scope of an overwrite that Spark itself cannot pass to a V1 write."""

    def partition_exists(self, target: Target, values: Mapping[str, str | None]) -> bool:
        """Return whether a partition exists, published or staged."""

    def hive_format(self) -> str:
        """The format of a SerDe table that is created without one."""


class Ownership:
    """Ownership rules of one attached session."""

    def __init__(self, targets: Resolver) -> None:
        self._targets = targets

    def of_new(self, parts: tuple[str, ...], provider: str | None, *, names: Names | None = None) -> RoutingDecision:
        """Decide a table that is created or replaced, with its format."""
        target = self._targets.resolve(parts, names=names)
        if target is None:
            return RoutingDecision(Owner.SPARK)
        # If Spark calls the catalog anyway, the catalog refuses the format.
        is_ours = not target.via_session_catalog or self._targets.can_create(target, provider)
        return RoutingDecision(Owner.OURS if is_ours else Owner.SPARK, target)

    def of_existing(self, parts: tuple[str, ...], *, views: bool = True, names: Names | None = None) -> RoutingDecision:
        """Decide a table that is written.

        Parameters
        ----------
        parts : tuple of str
        views : bool
            Whether a temporary view of that name takes precedence, as it does everywhere but in ``saveAsTable``.
        """
        target = self._targets.resolve(parts, views=views, names=names)
        if target is None:
            return RoutingDecision(Owner.SPARK)
        facts = self._targets.existing(target)
        if not target.via_session_catalog:
            return RoutingDecision(Owner.OURS, target, facts)
        if facts is None or facts.provider is None:
            return RoutingDecision(Owner.NOT_FOUND, target, facts)
        return RoutingDecision(Owner.OURS if self._targets.can_write(target, facts) else Owner.SPARK, target, facts)

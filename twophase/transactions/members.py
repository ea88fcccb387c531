"""The participants of one transaction."""

from __future__ import annotations

from collections.abc import Iterator

from twophase.catalog import TwoPhaseCatalogTable
from twophase.model import ObjectPath
from twophase.transactions.driver import Enlisted


class Members:
    """The participants of one transaction, in the order of their statements; other threads may add some meanwhile."""

    def __init__(self, transaction_id: str) -> None:
        self._id = transaction_id
        self._members: list[Enlisted] = []

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Enlisted]:
        return iter(tuple(self._members))

    def add(self, member: Enlisted) -> None:
        """Add the participant of a new statement."""
        self._members.append(member)

    def of(self, participant: TwoPhaseCatalogTable) -> Enlisted:
        """Return the state of a participant of this transaction."""
        for member in self:
            if member.participant is participant:
                return member
        raise ValueError(f"{participant!r} does not belong to transaction {self._id}")

    def find(self, catalog: str, path: ObjectPath) -> Enlisted | None:
        """Find the latest active participant of a table."""
        for member in reversed(tuple(self._members)):
            if member.catalog.name != catalog or not member.state.takes_part:
                continue
            if member.target == member.catalog.canonical(path):
                return member
        return None

    def taking_part(self) -> list[Enlisted]:
        """Return those that are or will be published."""
        return [member for member in self if member.state.takes_part]

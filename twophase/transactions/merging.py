"""Conflicts that the user resolves: what the commit would refuse, found while the transaction can still write."""

from __future__ import annotations

from dataclasses import dataclass

from twophase.catalog import Catalog, SupportsSnapshots, TwoPhaseCatalogTable
from twophase.catalog.reading import ReadSource
from twophase.errors import WriteConflictError
from twophase.model import ObjectPath
from twophase.protocol import machine
from twophase.timeline.reservations import Mode
from twophase.transactions import failures
from twophase.transactions.conflicts import Claim
from twophase.transactions.driver import Enlisted, concerning
from twophase.transactions.lifecycle import Lifecycle


@dataclass(frozen=True, eq=False)
class Conflict:
    """A table that a transaction writes, and that another writer has changed since the transaction's snapshot.

    Attributes
    ----------
    participant : TwoPhaseCatalogTable
        By which the transaction writes it.
    error : WriteConflictError
        With which the commit would refuse it.
    """

    participant: TwoPhaseCatalogTable
    error: WriteConflictError

    @property
    def catalog(self) -> Catalog:
        """The table's catalog."""
        return self.participant.catalog

    @property
    def path(self) -> ObjectPath:
        """The table."""
        return self.participant.path


class Merging:
    """Finds the conflicts of one transaction, which will resolve them by statements. The caller holds its lock.

    Parameters
    ----------
    life : Lifecycle
    """

    def __init__(self, life: Lifecycle) -> None:
        self._life = life

    def keep_rows(self, member: Enlisted) -> None:
        """Let the first read of a staged table be now, if it contains published rows that others may change."""
        if not member.rests_on_rows or member.only_appends or member.participant.purpose.drops:
            return
        member.participant.read_source()
        member.is_kept = not self._life.reads.has_changes(member.catalog, member.target)

    def conflicts(self) -> list[Conflict]:
        """Reserve what the commit will need, in its order, so that nothing changes any more, and look.

        Raises
        ------
        WriteConflictError
            Nothing can be merged: it cannot be reserved, or what was read has changed.
        """
        life, members = self._life, self._life.members.taking_part()
        if life.lease is None or not members:
            return []
        for member in members:
            if not member.written:
                raise failures.unwritten(member, life.id)
        life.driver().reserve([*life.reads.claims(), *(member.claim() for member in members)])
        life.coordinator.contested(life.id)
        life.reads.require_unread()
        found = ((member, self._conflict(member)) for member in members if not member.only_appends)
        return [Conflict(member.participant, error) for member, error in found if error is not None]

    def _conflict(self, member: Enlisted) -> WriteConflictError | None:
        if (known := self._life.reads.conflict(member)) is not None:
            return known
        try:
            self._life.driver().run(machine.look(member.ordinal))
        except WriteConflictError as error:  # By the store: of a writer outside twophase.
            return error
        return None

    def state_before(self, conflict: Conflict) -> ReadSource:
        """Return the source of a table as the transaction sees it without its own writes."""
        return self._life.reads.before(conflict.catalog, conflict.path)

    def rebase(self, conflict: Conflict) -> None:
        """Let a table be as it is now for the transaction, and reserve it until its end."""
        self._life.reserve([Claim.of_table(conflict.catalog, conflict.path, Mode.WRITE)])
        self._life.reads.rebase(conflict.catalog, conflict.path)

    def state_now(self, conflict: Conflict) -> ReadSource:
        """Return the source of a table as others have left it."""
        assert isinstance(conflict.catalog, SupportsSnapshots)  # Its former state was readable.
        with concerning(conflict.path, self._life.id):
            return conflict.catalog.read_source_before(conflict.path, ())

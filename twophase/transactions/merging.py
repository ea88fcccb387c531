"""Conflicts that the user resolves: what the commit would refuse, found while the transaction can still write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

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
    """Finds the conflicts of one transaction, and shows the states of their tables; statements then resolve them."""

    def __init__(self, life: Lifecycle) -> None:
        self._life = life

    @contextmanager
    def _resolving(self) -> Iterator[None]:
        self._life.require_own()
        with self._life.lock:
            self._life.require_open()
            with self._life.fenced():
                yield

    def sees(self, catalog: Catalog, path: ObjectPath, version: str) -> bool:
        """Return whether a version of a table is the transaction's own, or one of those that the user now merges."""
        return self._life.reads.sees(catalog, path, version)

    def keep_rows(self, participant: TwoPhaseCatalogTable) -> None:
        """Note, after a statement, the rows of its table: if others change it, they can no longer be determined."""
        with self._resolving():
            member = self._life.members.of(participant)
            if not member.rests_on_rows or member.only_appends or participant.purpose.drops:
                return
            participant.read_source()
            member.is_kept = not self._life.reads.has_changes(member.catalog, member.target)

    def conflicts(self) -> list[Conflict]:
        """Reserve what the commit will need, so that nothing changes any more, and return what it would refuse.

        Raises
        ------
        WriteConflictError
            Nothing can be merged: a table cannot be reserved, or what was read has changed.
        """
        life = self._life
        with self._resolving():
            members = life.members.taking_part()
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
            self._life.driver().run(machine.prepare_alone(member.ordinal))
        except WriteConflictError as error:  # By the store: of a writer outside twophase.
            return error
        return None

    def state_before(self, conflict: Conflict) -> ReadSource:
        """Return the source of a table as it was when the transaction began; before :meth:`rebase`.

        Raises
        ------
        SnapshotTooOldError
            That state cannot be read.
        TableNotExistError
            There was no such table.
        """
        with self._resolving():
            return self._life.reads.before(conflict.catalog, conflict.path)

    def rebase(self, conflict: Conflict) -> None:
        """See a table as it is now, and keep others from changing it until the end of the transaction.

        Raises
        ------
        WriteConflictError
            Another transaction writes a partition of it for too long.
        """
        with self._resolving():
            self._life.reserve([Claim.of_table(conflict.catalog, conflict.path, Mode.WRITE)])
            self._life.reads.rebase(conflict.catalog, conflict.path)

    def state_now(self, conflict: Conflict) -> ReadSource:
        """Return the source of a table as others have left it; after :meth:`rebase`.

        Raises
        ------
        TableNotExistError
            They have dropped it.
        """
        assert isinstance(conflict.catalog, SupportsSnapshots)  # Its former state was readable.
        with self._resolving(), concerning(conflict.path, self._life.id):
            return conflict.catalog.read_source_before(conflict.path, ())

    def refuse(self, conflict: Conflict, cause: BaseException | None = None) -> NoReturn:
        """Raise the error of a conflict that is not resolved."""
        with self._resolving():
            raise conflict.error from cause

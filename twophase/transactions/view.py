"""The view of a transaction: its snapshot, and the tables that it has written so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.catalog.reading import ReadSource
from twophase.model import Isolation, Level, ObjectPath, Purpose
from twophase.protocol.states import TransactionState
from twophase.transactions import failures
from twophase.transactions.driver import Enlisted
from twophase.transactions.lifecycle import Lifecycle


class TransactionView:
    """A transaction as its statements read it: what it is, which tables it has written, and which state it sees."""

    def __init__(self, life: Lifecycle) -> None:
        self._life = life

    def __repr__(self) -> str:
        return f"<Transaction {self.id} {self.state.name}>"

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The transaction's id: the owner stamp of everything that it creates."""
        return self._life.id

    @property
    def state(self) -> TransactionState:
        """The state of the transaction, as on the timeline."""
        return self._life.state

    @property
    def isolation(self) -> Isolation:
        """The isolation level of the transaction."""
        return self._life.isolation

    @property
    def snapshot(self) -> int | None:
        """The last commit number that the transaction sees; None under ``READ_COMMITTED``."""
        return self._life.snapshot

    @property
    def has_worked(self) -> bool:
        """Whether it has read, locked or written anything."""
        life = self._life
        return life.lease is not None or not life.reads.is_untouched or not life.is_open

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that runs the transaction, and can neither end nor change it."""
        return self._life.is_inherited

    @property
    def participants(self) -> list[TwoPhaseCatalogTable]:
        """The participants that are or will be published, in the order of their statements."""
        return [member.participant for member in self._life.members.taking_part()]

    @property
    def level(self) -> Level:
        """The atomicity level of the transaction; final once every participant is prepared."""
        return self._life.driver().level() if self._life.lease else Level.ATOMIC

    @property
    def level_reasons(self) -> list[str]:
        """The reasons why the level is below ``ATOMIC``, one sentence each."""
        return self._life.driver().level_reasons() if self._life.lease else []

    @property
    def left_behind(self) -> tuple[str, ...]:
        """The leftovers that could not be removed: paths and tables."""
        return self._life.left_behind

    # -- the tables that it writes ----------------------------------------------------------------------------------

    def find(self, catalog: str, path: ObjectPath) -> TwoPhaseCatalogTable | None:
        """Find the participant by which this transaction writes a table, so that a later statement can read it.

        Parameters
        ----------
        catalog : str
            The catalog's name in the session.
        path : ObjectPath
            The table, in any spelling that its catalog treats as equal.

        Returns
        -------
        TwoPhaseCatalogTable or None
            The latest active one; None if the transaction does not write the table.
        """
        member = self._life.members.find(catalog, path)
        return member.participant if member else None

    def drops_database(self, catalog: Catalog, database: str) -> bool:
        """Return whether this transaction drops a database.

        Parameters
        ----------
        catalog : Catalog
        database : str
            Its name, unquoted.
        """
        if not any(member.participant.purpose is Purpose.DROP_DATABASE for member in self._life.members):
            return False
        member = self._life.members.find(catalog.name, ObjectPath((), database))
        return member is not None and member.participant.purpose.drops

    def tables_in(self, catalog: Catalog, database: str) -> tuple[list[str], list[str]]:
        """Return the tables of a database that this transaction drops, and those that it writes.

        Parameters
        ----------
        catalog : Catalog
        database : str
            Its name, unquoted.
        """
        namespace = catalog.canonical(ObjectPath((database,), "any")).namespace
        found = [
            m for m in self._life.members.taking_part() if m.catalog is catalog and m.target.namespace == namespace
        ]
        dropped, written = (
            [m.target.name for m in found if m.participant.purpose.drops == drops] for drops in (True, False)
        )
        return dropped, written

    def member(self, participant: TwoPhaseCatalogTable) -> Enlisted:
        """Return the state of a participant in this transaction.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`find`, or from :meth:`stage`.
        """
        return self._life.members.of(participant)

    def require_written(self, participant: TwoPhaseCatalogTable) -> None:
        """Refuse to read rows that a statement in another thread has not finished writing.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`find`.

        Raises
        ------
        WriteConflictError
            It is still being written.
        """
        self._life.require_open()
        member = self.member(participant)
        if not member.written:
            raise failures.being_written(member, self._life.id)

    def require_base(self, participant: TwoPhaseCatalogTable) -> None:
        """Refuse to read staged rows together with what others have published since the transaction began.

        To be called after the first :meth:`~twophase.TwoPhaseCatalogTable.read_source`, which stays as it is.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`find`.

        Raises
        ------
        SnapshotTooOldError
        """
        member = self.member(participant)
        if not member.is_read and member.rests_on_rows:
            self._life.reads.require_base_unchanged(member.catalog, participant.path, is_kept=member.is_kept)
        member.is_read = True

    # -- the tables that it reads -----------------------------------------------------------------------------------

    def read_source(self, catalog: Catalog, path: ObjectPath) -> tuple[ReadSource, Callable[[], None]]:
        """Return the source of a table that this transaction does not write, in the state that it sees.

        Returns
        -------
        ReadSource
        callable
            To be called when rows, and not only columns, are requested: the transaction then depends on this state.

        Raises
        ------
        SnapshotTooOldError
            The table has changed since the transaction began, and its former state cannot be read.
        TimelineError
            The timeline cannot be queried for the changes of the table.
        """
        self._life.require_open()
        return self._life.reads.source(catalog, path)

    def has_moved(self, catalog: Catalog, path: ObjectPath, version: Any) -> bool:
        """Return whether the published state of a table is not the one that the transaction sees.

        Parameters
        ----------
        catalog : Catalog
        path : ObjectPath
        version : Any
            Of the published state, from :meth:`twophase.Catalog.table_version`.
        """
        return self._life.reads.has_moved(catalog, path, version)

    def is_reading(self, catalog: Catalog, path: ObjectPath, version: Any) -> None:
        """Record that this transaction is about to read a table of which :meth:`instead_of_listed` will be asked.

        Parameters
        ----------
        catalog : Catalog
        path : ObjectPath
        version : Any
            As for :meth:`note_read`. Other than there it may already be superseded.
        """
        self._life.require_open()
        self._life.reads.is_reading(catalog, path, version)

    def instead_of_listed(
        self,
        catalog: Catalog,
        path: ObjectPath,
        *,
        resolved: Callable[[Any], bool] | None = None,
        looked_up: bool = True,
    ) -> ReadSource | None:
        """Return the source to read instead of the files of a table that the host has listed.

        Parameters
        ----------
        catalog : Catalog
        path : ObjectPath
        resolved : callable, optional
            Whether a version is the one that the host has resolved the table's name to.
        looked_up : bool
            Whether the host has looked the table or its partitions up again, and not only listed files.

        Returns
        -------
        ReadSource or None
            None if they are of the state that the transaction sees, or it was committed.

        Raises
        ------
        SnapshotTooOldError
            They are not, and that state can no longer be read, or not by the plan that the host has made.
        TransactionAborted
            The transaction was rolled back.
        TimelineError
            The timeline cannot be queried for the changes of the table.
        """
        if not self._life.is_open:
            if self._life.state is TransactionState.ROLLED_BACK:
                self._life.require_open()  # Inside its block: the present state beside the former one would be wrong.
            return None
        return self._life.reads.instead_of_listed(catalog, path, resolved=resolved, looked_up=looked_up)

    @property
    def wants_inputs(self) -> bool:
        """Whether an observer wants to know what statements read."""
        return self._life.coordinator.observer.wants_reads

    def note_inputs(self, read: Iterable[tuple[Catalog, ObjectPath, Any]]) -> None:
        """Note for the observers what a statement reads; the outcome does not depend on it.

        Parameters
        ----------
        read : iterable of (Catalog, ObjectPath, Any)
            Tables and their versions; None if a version is unknown.
        """
        self._life.inputs.extend(read)

    def note_undo(self, transaction_id: str) -> None:
        """Record that this transaction takes back another one, of which it has read the tables.

        Raises
        ------
        TimelineError
            It cannot be recorded.
        LeaseLostError
            Another process has rolled this transaction back in the meantime.
        """
        with self._life.lock:
            self._life.require_open()
            if self._life.lease is not None:  # Else there are no tables.
                self._life.coordinator.timeline.renew(self._life.lease, undoes=transaction_id)

    def note_read(self, catalog: Catalog, path: ObjectPath, version: Any) -> None:
        """Record that this transaction is about to read a table, and in which version; the first one recorded counts.

        Parameters
        ----------
        catalog : Catalog
        path : ObjectPath
        version : Any
            From :meth:`twophase.Catalog.table_version`, not newer than what is read; None if the catalog cannot provide
            one.

        Raises
        ------
        SnapshotTooOldError
            It is not the state that the transaction sees.
        TimelineError
            The timeline cannot be queried for the changes of the table.
        """
        self._life.require_open()
        self._life.reads.reading(catalog, path, version)()

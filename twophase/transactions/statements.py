"""The statements of a transaction: each stages one participant, and writes its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from twophase.catalog import (
    Catalog,
    SupportsSavepoints,
    SupportsStagedAlter,
    SupportsStagedDrop,
    TableChange,
    TwoPhaseCatalogTable,
)
from twophase.errors import DatabaseNotExistError
from twophase.failpoints import Failpoint, step
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition, WriteContext
from twophase.protocol import actions, machine
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.timeline.records import name_error
from twophase.transactions import failures
from twophase.transactions.conflicts import timed_out
from twophase.transactions.driver import Enlisted, concerning
from twophase.transactions.lifecycle import Lifecycle
from twophase.transactions.merging import Conflict, Merging
from twophase.transactions.plugin_checks import require_participant
from twophase.transactions.savepoints import discard_quietly
from twophase.transactions.view import TransactionView

BEGIN = Failpoint("core.begin")
WRITE = Failpoint("core.write")

#: Requests a participant from a catalog, given the ``context`` of its statement; None if the store cannot do it.
Plan = Callable[..., TwoPhaseCatalogTable | None]


class Statements(TransactionView):
    """The statements of a :class:`~twophase.transactions.transaction.Transaction`.

    Parameters
    ----------
    life : Lifecycle
    read_only : bool
        Whether nothing can be written in it.
    """

    def __init__(self, life: Lifecycle, *, read_only: bool) -> None:
        super().__init__(life)
        self._read_only = read_only
        #: None unless conflicts are resolved before the commit: :meth:`Transaction.will_merge`.
        self.merging: Merging | None = None

    def require_own(self) -> None:
        """Refuse to work on the parent's transaction in a forked child.

        Raises
        ------
        TwoPhaseError
            This process is a forked child of the one that runs the transaction.
        """
        self._life.require_own()

    def stage(
        self,
        catalog: Catalog,
        path: ObjectPath,
        definition: TableDefinition,
        *,
        purpose: Purpose,
        ignore_if_exists: bool = False,
        is_streaming_mode: bool = False,
        overwrite: OverwriteScope | None = None,
        autocommit: bool = False,
        resolves: Conflict | None = None,
        alters: bool = False,
        restores: bool = False,
        columns: Sequence[str] | None = None,
    ) -> TwoPhaseCatalogTable | None:
        """Request a participant from a catalog, and record it before anything is staged.

        Parameters
        ----------
        catalog : Catalog
        path, definition, purpose, ignore_if_exists, is_streaming_mode
            As in :meth:`twophase.Catalog.two_phase_create_table`.
        overwrite : OverwriteScope, optional
            For INSERT_OVERWRITE.
        autocommit : bool
            Whether this will be the transaction's only statement.
        resolves : Conflict, optional
            The conflict, after :meth:`.Merging.rebase`, that its rows resolve: it builds on the published table, and
            supersedes what the transaction has written before.
        alters, restores, columns
            As in :class:`~twophase.model.WriteContext`.

        Returns
        -------
        TwoPhaseCatalogTable or None
            None if the catalog does not support a two-phase write for this; then nothing was recorded.

        Raises
        ------
        WriteConflictError
            Another transaction reserves this table for too long, or has changed it since this one read it, or another
            statement of this one is still writing it; this transaction continues without the new statement.
        CatalogError
            The catalog refused it; nothing was recorded.
        TimelineError
            It cannot be recorded; nothing was staged.
        TransactionAborted
            This transaction was rolled back.
        TransactionInDoubt
            It is unknown whether this transaction was published.
        TwoPhaseError
            This transaction has been published: no statement can join it any more.
        """
        plan = partial(
            catalog.two_phase_create_table,
            path,
            definition,
            purpose=purpose,
            ignore_if_exists=ignore_if_exists,
            is_streaming_mode=is_streaming_mode,
        )
        return self._stage(
            catalog,
            path,
            purpose,
            plan,
            overwrite=overwrite,
            autocommit=autocommit,
            resolves=resolves,
            alters=alters,
            restores=restores,
            columns=columns,
        )

    def stage_drop(
        self, catalog: SupportsStagedDrop, path: ObjectPath, *, purge: bool = False
    ) -> TwoPhaseCatalogTable | None:
        """Request a participant that drops a table, and record it; :meth:`write_nothing` follows, and no :meth:`write`.

        A later statement of the transaction that creates the table replaces what the drop has seen.

        Parameters
        ----------
        catalog : SupportsStagedDrop
        path, purge
            As in :meth:`twophase.catalog.SupportsStagedDrop.two_phase_drop_table`.

        Returns
        -------
        TwoPhaseCatalogTable or None
            None if the store cannot drop a table in a transaction; then nothing was recorded.

        Raises
        ------
        TwoPhaseError
            As :meth:`stage`.
        """
        return self._stage(catalog, path, Purpose.DROP_TABLE, partial(catalog.two_phase_drop_table, path, purge=purge))

    def stage_alter(
        self, catalog: SupportsStagedAlter, path: ObjectPath, changes: Sequence[TableChange]
    ) -> TwoPhaseCatalogTable | None:
        """Request a participant that alters a table, and record it; :meth:`write_nothing` follows, no :meth:`write`.

        Parameters
        ----------
        catalog : SupportsStagedAlter
        path, changes
            As in :meth:`twophase.catalog.SupportsStagedAlter.two_phase_alter_table`.

        Returns
        -------
        TwoPhaseCatalogTable or None
            None if the store cannot alter the table in a transaction; then nothing was recorded.

        Raises
        ------
        TwoPhaseError
            As :meth:`stage`.
        """
        return self._stage(catalog, path, Purpose.ALTER_TABLE, partial(catalog.two_phase_alter_table, path, changes))

    def _stage(
        self,
        catalog: Catalog,
        path: ObjectPath,
        purpose: Purpose,
        plan: Plan,
        *,
        overwrite: OverwriteScope | None = None,
        autocommit: bool = False,
        alters: bool = False,
        restores: bool = False,
        columns: Sequence[str] | None = None,
        resolves: Conflict | None = None,
    ) -> TwoPhaseCatalogTable | None:
        self.require_own()
        is_whole = purpose is Purpose.INSERT_OVERWRITE and (overwrite is None or overwrite.is_whole_table)
        with self._life.lock:
            self._life.require_open()
            earlier = self._earlier(catalog, path, purpose)
            context = partial(
                WriteContext,
                transaction_id=self._life.id,
                ordinal=len(self._life.members),
                overwrite=overwrite,
                base=earlier.participant.document if earlier and resolves is None else None,
                autocommit=autocommit,
                pins_reads=self._life.isolation.pins_reads,
                alters=alters,
                restores=restores,
                columns=None if columns is None else tuple(columns),
            )
            try:
                with self._life.fenced():
                    waited = self._life.contend(catalog, path, purpose)
                    if self.merging is not None and not purpose.of_database:
                        self._life.reads.note_base(catalog, path)
                    with concerning(path):
                        participant = plan(context=context(waited=waited))
                    if participant is not None:
                        require_participant(participant, catalog, path, self._life.id)
                        self._require_unchanged(catalog, path, purpose, is_whole=is_whole, resolves=resolves)
                        self._life.enlist(catalog, participant, earlier, replaces_rows=is_whole)
                    return participant
            finally:
                if autocommit:
                    self._life.forget()  # Unless it has a participant now: it was recorded in vain.

    def _require_unchanged(
        self, catalog: Catalog, path: ObjectPath, purpose: Purpose, *, is_whole: bool, resolves: Conflict | None
    ) -> None:
        """Refuse a statement whose table others have changed, unless the commit, or the user, compares it later."""
        if resolves is not None:
            self._life.reads.require_base(catalog, path)
        is_merged = self.merging is not None and (is_whole or purpose.replaces)
        if purpose is Purpose.INSERT_INTO or is_merged:
            self._life.reads.require_same_columns(catalog, path)
        else:
            self._life.reads.require_unchanged(catalog, path)

    def _earlier(self, catalog: Catalog, path: ObjectPath, purpose: Purpose) -> Enlisted | None:
        """The earlier statement on the table; a statement that this transaction cannot have is refused."""
        if self._read_only:
            raise failures.read_only(f"{catalog.name}.{path}", self._life.id)
        if path.namespace:
            self._require_database(catalog, path.database)
        earlier = self._to_build_on(catalog, path)
        if earlier is not None and earlier.participant.purpose.drops and not purpose.creates:
            raise failures.dropped(catalog.name, path, self._life.id)
        return earlier

    def _require_database(self, catalog: Catalog, database: str) -> None:
        if self.drops_database(catalog, database):
            raise DatabaseNotExistError(
                f"Database {database} does not exist in catalog {catalog.name}: this transaction drops it.",
                path=database,
                transaction_id=self.id,
            )

    def begin_participant(self, participant: TwoPhaseCatalogTable) -> None:
        """Create the staging area of a participant.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`stage`.

        Raises
        ------
        CatalogError
            It cannot be created, or the target is not free.
        LeaseLostError
            Another process has rolled the transaction back in the meantime.
        TransactionAborted
            Another thread has rolled it back.
        """
        with self._working(participant) as member:
            # Without the transaction's id: it ends with this error, and nothing could be looked up by its id.
            with concerning(participant.path), step(BEGIN):
                participant.begin()
            self._note(member)

    def write(self, participant: TwoPhaseCatalogTable, df: Any) -> None:
        """Write the rows of ``df`` to the staging area; the user's own errors are raised unchanged.

        A participant is published only if this has returned.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`stage`, after :meth:`begin_participant`.
        df : pyspark.sql.DataFrame
            The query's rows, in the order of the definition's columns.

        Raises
        ------
        Exception
            The user's own Spark error.
        LeaseLostError
            Another process has rolled the transaction back in the meantime.
        TransactionAborted
            Another thread has rolled it back: the rows written here are removed.
        """
        with self._working(participant) as member:
            with concerning(participant.path, self._life.id), step(WRITE):
                participant.write(df)
            self._note(member, written=True)

    def write_kept(
        self, participant: TwoPhaseCatalogTable, catalog: SupportsSavepoints, document: Mapping[str, Any]
    ) -> bool:
        """Stage the rows that a savepoint keeps, instead of :meth:`write`.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`stage`, after :meth:`begin_participant`.
        catalog, document
            As in :meth:`twophase.catalog.SupportsSavepoints.write_kept`.

        Returns
        -------
        bool
            False if :meth:`write` must follow.

        Raises
        ------
        CatalogError
            What was kept is no longer there.
        LeaseLostError
            Another process has rolled the transaction back in the meantime.
        TransactionAborted
            Another thread has rolled it back.
        """
        with self._working(participant) as member:
            with concerning(participant.path, self._life.id), step(WRITE):
                is_staged = catalog.write_kept(participant, document)
            self._note(member, written=is_staged)
        return is_staged

    def write_nothing(self, participant: TwoPhaseCatalogTable) -> None:
        """Finish a statement that has no rows to write, instead of :meth:`write`: REPLACE TABLE without a query.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`stage`, after :meth:`begin_participant`.

        Raises
        ------
        TransactionAborted
            The transaction has been rolled back in the meantime.
        """
        with self._working(participant) as member:
            self._note(member, written=True)

    def prepare_participant(self, participant: TwoPhaseCatalogTable) -> None:
        """Prepare a participant while the transaction continues, so that later ones can build on it; idempotent.

        Nothing is reserved: :meth:`commit` prepares it again.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`stage`, written.

        Raises
        ------
        WriteConflictError
            Another transaction changed the table.
        CatalogError
            Any other reason for which the publish would fail.
        LeaseLostError
            Another process has rolled the transaction back in the meantime.
        TransactionAborted
            Another thread has rolled it back.
        """
        self.require_own()
        member = self._life.members.of(participant)
        with self._life.lock:  # The end of a block may prepare a participant that another thread has just written.
            if member.state is not ParticipantState.STAGED and self._life.state is not TransactionState.ROLLED_BACK:
                return
            self._life.require_open()
            with self._life.fenced():
                self._life.driver().run(machine.prepare_alone(member.ordinal))

    def discard(self, participant: TwoPhaseCatalogTable) -> None:
        """Discard one participant while the transaction continues, and remove what the failed statement staged.

        An earlier participant of the same table that it had superseded becomes active again. Idempotent, and without
        effect once the transaction has ended or is in doubt. It does not raise if something cannot be removed now: that
        is retried when the transaction ends.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`stage`.
        """
        if self.is_inherited:
            return
        with self._life.lock:
            member = self._life.members.of(participant)
            if member.state.takes_part and self._life.is_open and self._life.lease is not None:
                discard_quietly(self._life, member)

    @contextmanager
    def _working(self, participant: TwoPhaseCatalogTable) -> Iterator[Enlisted]:
        """Run a step of a statement on its own thread; other threads may end the transaction in the meantime."""
        self.require_own()
        member = self._life.members.of(participant)
        self._life.require_open()
        try:
            with self._life.fenced():
                yield member
        except BaseException as error:
            with self._life.lock:
                member.failure = name_error(error)
            self._give_up_late(member, error)
            raise
        self._give_up_late(member, None)

    def _note(self, member: Enlisted, *, written: bool = False) -> None:
        """Save the changes that a step has made to a participant, unless the transaction has ended."""
        with self._life.lock:
            if self._life.is_open:
                self._life.driver().save_if_changed(member)
                member.written |= written

    def _give_up_late(self, member: Enlisted, error: BaseException | None) -> None:
        """Fail a statement that outlived its transaction, and remove what it created after the rollback."""
        with self._life.lock:
            if self._life.state is not TransactionState.ROLLED_BACK:
                return
            reply = self._life.driver().perform(actions.Abort(member.ordinal))
        if self._life.has_timed_out:
            raise timed_out(self._life.id, reply.left_behind) from error
        raise failures.outlived(member, self._life.id, reply.left_behind) from error

    def _to_build_on(self, catalog: Catalog, path: ObjectPath) -> Enlisted | None:
        """Return the earlier, completely written participant of the same table, on which a new statement builds."""
        while (earlier := self._life.members.find(catalog.name, path)) is not None:
            if earlier.written:
                self.prepare_participant(earlier.participant)
                return earlier
            if earlier.failure is None:
                raise failures.being_written(earlier, self._life.id)
            self.discard(earlier.participant)  # Its own statement is about to do the same.
        return None

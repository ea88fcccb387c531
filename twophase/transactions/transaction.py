"""A live transaction: one or more participants with one outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, NoReturn

from twophase.catalog import (
    Catalog,
    OpenSnapshot,
    SupportsSavepoints,
    SupportsStagedAlter,
    SupportsStagedDrop,
    TableChange,
    TwoPhaseCatalogTable,
)
from twophase.catalog.reading import ReadSource
from twophase.config.settings import duration
from twophase.errors import ConfigurationError
from twophase.failpoints import Failpoint, step
from twophase.model import Isolation, ObjectPath, OverwriteScope, Purpose, TableDefinition, WriteContext
from twophase.protocol import actions, machine
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.redaction import logger
from twophase.timeline.records import name_error
from twophase.timeline.reservations import Mode
from twophase.transactions import failures
from twophase.transactions.cancellation import Cancellation
from twophase.transactions.conflicts import Claim, Contention, timed_out
from twophase.transactions.driver import Enlisted, concerning
from twophase.transactions.end_reports import EndReports
from twophase.transactions.ending import Ending
from twophase.transactions.lifecycle import Lifecycle, TransactionServices
from twophase.transactions.merging import Conflict, Merging
from twophase.transactions.plugin_checks import require_participant
from twophase.transactions.savepoints import Savepoint, Savepoints, discard_quietly
from twophase.transactions.view import TransactionView

__all__ = ["Transaction", "TransactionState"]

_log = logger("twophase")

BEGIN = Failpoint("core.begin")
WRITE = Failpoint("core.write")


class Transaction(TransactionView):
    """One or more participants with one outcome, from :meth:`twophase.transactions.coordinator.Coordinator.begin`.

    By default its tables are reserved on the timeline when it commits, always in the same order, and only while it
    publishes: other writers may publish to them while its jobs run. An INSERT INTO is then added to their changes, and
    any other write is refused: the first one to commit wins. If another transaction is publishing to the table of a
    statement, the statement waits for it before its job starts, and so does the commit: up to the maximum wait, then
    it is refused. With other conflict policies a table is reserved before the first job that writes it, and until the
    end of the transaction; so it is by :meth:`lock`.

    Parameters
    ----------
    coordinator : Coordinator
        Provides the timeline, leases and the recovery of dead holders of reservations.
    transaction_id : str
        Unique on the timeline.
    isolation : Isolation
    snapshot : int, optional
        The last commit number that it sees; required unless it is ``READ_COMMITTED``.
    contention : Contention
        How it gets its reservations.
    read_only : bool
        Whether nothing can be written in it.
    opened : mapping of str to OpenSnapshot, optional
        Snapshots that stores keep for it, by catalog; closed at its end.

    Notes
    -----
    ``commit`` and ``abort`` may be called from any thread; the first call decides. Only complete writes are published:
    a ``commit`` while a statement is still writing rolls everything back. Statements on different tables may run
    concurrently; each table has one writer at a time.
    """

    def __init__(
        self,
        coordinator: TransactionServices,
        transaction_id: str,
        isolation: Isolation,
        snapshot: int | None,
        contention: Contention,
        *,
        read_only: bool = False,
        opened: Mapping[str, OpenSnapshot] = MappingProxyType({}),
    ) -> None:
        super().__init__(Lifecycle(coordinator, transaction_id, isolation, snapshot, contention, opened))
        self._ending = Ending(self._life)
        self._read_only = read_only
        self._end_reports = EndReports()
        self._end_reports.add(self._life.reads.close)
        self._end_reports.add(self._life.report_end)
        self._cancellation = Cancellation(transaction_id)
        self._savepoints = Savepoints(self._life)
        self._reverts: list[Callable[[str, list[TwoPhaseCatalogTable]], None]] = []
        self._find_table: Callable[[str], tuple[Catalog, ObjectPath]] | None = None
        self._merging: Merging | None = None

    # -- one statement ------------------------------------------------------------------------------------------------

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
            The conflict, after :meth:`rebase`, that its rows resolve: it builds on the published table, and supersedes
            what the transaction has written before.

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

        def plan(context: WriteContext) -> TwoPhaseCatalogTable | None:
            return catalog.two_phase_create_table(
                path,
                definition,
                purpose=purpose,
                ignore_if_exists=ignore_if_exists,
                is_streaming_mode=is_streaming_mode,
                context=context,
            )

        return self._stage(catalog, path, purpose, plan, overwrite=overwrite, autocommit=autocommit, resolves=resolves)

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

        def plan(context: WriteContext) -> TwoPhaseCatalogTable | None:
            return catalog.two_phase_drop_table(path, purge=purge, context=context)

        return self._stage(catalog, path, Purpose.DROP_TABLE, plan)

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

        def plan(context: WriteContext) -> TwoPhaseCatalogTable | None:
            return catalog.two_phase_alter_table(path, changes, context=context)

        return self._stage(catalog, path, Purpose.ALTER_TABLE, plan)

    def _stage(
        self,
        catalog: Catalog,
        path: ObjectPath,
        purpose: Purpose,
        plan: Callable[[WriteContext], TwoPhaseCatalogTable | None],
        *,
        overwrite: OverwriteScope | None = None,
        autocommit: bool = False,
        resolves: Conflict | None = None,
    ) -> TwoPhaseCatalogTable | None:
        self.require_own()
        is_whole = purpose is Purpose.INSERT_OVERWRITE and (overwrite is None or overwrite.is_whole_table)
        with self._life.lock:
            self._life.require_open()
            if self._read_only:
                raise failures.read_only(f"{catalog.name}.{path}", self._life.id)
            earlier = self._to_build_on(catalog, path)
            if earlier is not None and earlier.participant.purpose.drops and not purpose.creates:
                raise failures.dropped(catalog.name, path, self._life.id)
            context = WriteContext(
                transaction_id=self._life.id,
                ordinal=len(self._life.members),
                overwrite=overwrite,
                base=earlier.participant.document if earlier and resolves is None else None,
                autocommit=autocommit,
                pins_reads=self._life.isolation.pins_reads,
            )
            try:
                with self._life.fenced():
                    self._life.contend(catalog, path, purpose)
                    if self._merging is not None:
                        self._life.reads.note_base(catalog, path)
                    with concerning(path):
                        participant = plan(context)
                    if participant is not None:
                        require_participant(participant, catalog, path, self._life.id)
                        if resolves is not None:
                            self._life.reads.require_base(catalog, path)
                        is_merged = self._merging is not None and (is_whole or purpose.replaces)
                        if purpose is not Purpose.INSERT_INTO and not is_merged:  # Else the commit tells of it.
                            self._life.reads.require_unchanged(catalog, path)
                        self._life.enlist(catalog, participant, earlier, replaces_rows=is_whole)
                    return participant
            finally:
                if autocommit:
                    self._life.forget()  # Unless it has a participant now: it was recorded in vain.

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
                self._life.driver().run(machine.look(member.ordinal))

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

    # -- savepoints ---------------------------------------------------------------------------------------------------

    def savepoint(self, name: str | None = None) -> Savepoint:
        """Set a mark, to which the transaction can be rolled back while it continues. It costs no write.

        Parameters
        ----------
        name : str, optional
            May be that of an earlier one, which is hidden until this one is released. A new one when None.

        Returns
        -------
        Savepoint

        Raises
        ------
        TransactionAborted
            The transaction was rolled back.
        TwoPhaseError
            It has ended, or belongs to the parent of this process.
        """
        with self._at_savepoint():
            return self._savepoints.set(name)

    def rollback_to(self, savepoint: Savepoint | str) -> None:
        """Discard what the statements since a savepoint have written; what was written before is as it was then.

        The savepoint stays, later ones are forgotten. What was reserved since is given back. What was read stays read:
        the transaction goes on seeing the state that it saw. If something cannot be removed now, a warning says so, and
        it is removed when the transaction ends; it is not published.

        Parameters
        ----------
        savepoint : Savepoint or str
            Or its name: then the last one of that name.

        Raises
        ------
        ConfigurationError
            There is no such savepoint; nothing was changed.
        WriteConflictError
            Another thread still runs a statement that began after it; nothing was changed.
        TimelineError
            It cannot be recorded. Nothing else can be done with the transaction than to roll it back.
        TransactionAborted
            The transaction was rolled back.
        """
        with self._at_savepoint(), self._life.fenced():
            discarded = self._savepoints.roll_back_to(savepoint)
        for call in self._reverts if discarded else ():
            call(self.id, [member.participant for member in discarded])

    def release(self, savepoint: Savepoint | str) -> None:
        """Forget a savepoint, and those after it; what was written since is kept.

        Parameters
        ----------
        savepoint : Savepoint or str
            Or its name: then the last one of that name.

        Raises
        ------
        ConfigurationError
            There is no such savepoint; nothing was changed.
        TransactionAborted
            The transaction was rolled back.
        """
        with self._at_savepoint():
            self._savepoints.release(savepoint)

    @contextmanager
    def _at_savepoint(self) -> Iterator[None]:
        self.require_own()
        with self._life.lock:
            self._life.require_open()
            yield

    def reverts_by(self, call: Callable[[str, list[TwoPhaseCatalogTable]], None]) -> None:
        """Register a callback for each rollback to a savepoint.

        Parameters
        ----------
        call : callable
            Called with the transaction's id and the participants that were discarded.
        """
        self._reverts.append(call)

    # -- others -------------------------------------------------------------------------------------------------------

    def lock(
        self, table: str | tuple[Catalog, ObjectPath], mode: str = "write", *, wait: float | str | None = None
    ) -> None:
        """Reserve a table until the end of this transaction, before a statement writes it.

        Parameters
        ----------
        table : str or tuple
            Its name, as in a statement; or a catalog and a path.
        mode : str
            ``write`` keeps all others from writing it; ``append`` permits them to add rows, too.
        wait : float or str, optional
            How long to wait for others that have reserved it, as ``"60s"`` or in seconds; 0: not at all. The
            transaction's own wait when None.

        Raises
        ------
        WriteConflictError
            Another transaction has reserved it, or has changed it since this one began; this one continues without it.
        WoundedError
            This transaction was rolled back, because an older one needed a table that it had reserved.
        ConfigurationError
            There is no such mode, or the name is not one of a table that twophase writes.
        """
        self.require_own()
        seconds = duration(wait, "wait")
        if mode not in (Mode.WRITE.value, Mode.APPEND.value):
            raise ConfigurationError(f"A table is locked for 'write' or for 'append', not for {mode!r}.")
        catalog, path = self._found(table) if isinstance(table, str) else table
        with self._life.lock:
            self._life.require_open()
            if self._read_only:
                raise failures.read_only(f"{catalog.name}.{path}", self._life.id)
            with self._life.fenced():
                self._life.reserve(Claim.of_table(catalog, path, Mode(mode)), seconds)
                if mode == Mode.WRITE.value:
                    self._life.reads.require_unchanged(catalog, path)

    def keep_writers_out(self, table: tuple[Catalog, ObjectPath]) -> None:
        """Let nobody publish to a table until the end of this transaction, which may read it but not write it.

        Parameters
        ----------
        table : tuple
            A catalog and a path.

        Raises
        ------
        WriteConflictError
            Another transaction has reserved it for too long.
        """
        self.require_own()
        with self._life.lock:
            self._life.require_open()
            self._life.reserve(Claim.of_table(*table, Mode.READ))

    def require_held(self) -> None:
        """Make sure that it still holds what it has reserved.

        Raises
        ------
        LeaseLostError
            Another process has rolled it back.
        """
        lease = self._life.lease
        assert lease is not None
        with self._life.fenced():
            self._life.coordinator.timeline.renew(lease)

    def _found(self, name: str) -> tuple[Catalog, ObjectPath]:
        if self._find_table is None:
            raise ConfigurationError(f"Table {name} cannot be found by its name outside of a session.")
        return self._find_table(name)

    def finds_tables_by(self, find: Callable[[str], tuple[Catalog, ObjectPath]]) -> None:
        """Let :meth:`lock` find tables by the names of a session.

        Parameters
        ----------
        find : callable
            Returns the catalog and the path of the table that a name means.
        """
        self._find_table = find

    def cancels_by(self, cancel: Callable[[str, str], None]) -> None:
        """Register a way to cancel running jobs if another process or a timeout rolls this transaction back.

        Parameters
        ----------
        cancel : callable
            Called with the transaction's id and the reason, on a thread of its own. Registered once.
        """
        self._cancellation.add(cancel)

    def on_lost(self) -> None:
        """Cancel the running jobs: another transaction, or a recovery, has rolled this one back."""
        if self._life.lease is None or not self._life.is_open:
            return
        self._life.lease.lost = True
        self._cancellation.request(f"transaction {self._life.id} was rolled back by another process")

    def on_timeout(self) -> None:
        """Roll it back, because its time is over, unless it has decided to commit."""
        if not self._life.is_open:
            return
        threading.Thread(target=self._time_out, name="twophase-timeout", daemon=True).start()

    def _time_out(self) -> None:
        error = timed_out(self._life.id)
        self._cancellation.request(error.message)
        with self._life.lock:
            self._life.has_timed_out = self._life.is_open
        try:
            self.abort(error)
        except BaseException as problem:  # Of a hook.
            _log.warning("While transaction %s was rolled back after its timeout: %s", self._life.id, problem)

    # -- conflicts that the user resolves ------------------------------------------------------------------------------

    def will_merge(self) -> None:
        """Announce that conflicts will be resolved before the commit: a statement that replaces a table is not refused.

        The transaction reads a snapshot.
        """
        self._merging = Merging(self._life)

    @property
    def merges(self) -> bool:
        """Whether :meth:`will_merge` was called."""
        return self._merging is not None

    def keep_rows(self, participant: TwoPhaseCatalogTable) -> None:
        """Note, after a statement, what its table then is: later it could no longer be told, if others change it.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`stage`, written.
        """
        with self._resolving() as merging:
            merging.keep_rows(self._life.members.of(participant))

    def conflicts(self) -> list[Conflict]:
        """Reserve what the commit will need, and return the tables of which it would refuse the rows.

        Returns
        -------
        list of Conflict

        Raises
        ------
        WriteConflictError
            The commit will be refused in any case: a table that the transaction has read has changed, or another one
            keeps a table for too long.
        """
        with self._resolving() as merging:
            return merging.conflicts()

    def state_before(self, conflict: Conflict) -> ReadSource:
        """Return the source of a table as it was when the transaction began; before :meth:`rebase`.

        Parameters
        ----------
        conflict : Conflict

        Raises
        ------
        SnapshotTooOldError
            That state cannot be read.
        TableNotExistError
            There was no such table.
        """
        with self._resolving() as merging:
            return merging.state_before(conflict)

    def rebase(self, conflict: Conflict) -> None:
        """See a table as it is now, and keep others from changing it until the end of the transaction.

        Parameters
        ----------
        conflict : Conflict
            Its answer is then staged by :meth:`stage`.

        Raises
        ------
        WriteConflictError
            Another transaction writes a partition of it for too long.
        """
        with self._resolving() as merging:
            merging.rebase(conflict)

    def state_now(self, conflict: Conflict) -> ReadSource:
        """Return the source of a table as others have left it; after :meth:`rebase`.

        Parameters
        ----------
        conflict : Conflict

        Raises
        ------
        TableNotExistError
            They have dropped it.
        """
        with self._resolving() as merging:
            return merging.state_now(conflict)

    def refuse(self, conflict: Conflict, cause: BaseException | None = None) -> NoReturn:
        """Raise the error of a conflict that is not resolved.

        Parameters
        ----------
        conflict : Conflict
        cause : BaseException, optional

        Raises
        ------
        WriteConflictError
        """
        with self._resolving():
            raise conflict.error from cause

    @contextmanager
    def _resolving(self) -> Iterator[Merging]:
        self.require_own()
        assert self._merging is not None
        with self._life.lock:
            self._life.require_open()
            with self._life.fenced():
                yield self._merging

    # -- the end ------------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Publish all participants atomically. Idempotent once completed.

        Raises
        ------
        TransactionAborted
            It was rolled back: nothing happened. If a store refused with an error of this kind
            (:class:`~twophase.errors.WriteConflictError`), that one is raised. Also if a statement has not finished
            writing.
        TransactionInDoubt
            The outcome is unknown; the message names the command that resolves it.
        TwoPhaseError
            This process is a fork of the one that runs the transaction.
        """
        self.require_own()
        with self.reporting():
            self._ending.commit()

    def abort(self, error: BaseException | None = None) -> None:
        """Remove everything that was staged. Idempotent; without effect once the outcome is known or in doubt.

        Also without effect in a forked child of the process that runs it: the transaction belongs to the parent.

        Parameters
        ----------
        error : BaseException, optional
            The cause, which the caller still raises. Failures in here are attached to it as notes.
        """
        if self.is_inherited:
            return
        with self.reporting(error):
            self._ending.abort(error)

    def at_end(self, call: Callable[[], BaseException | None]) -> None:
        """Register a callback for when this transaction has been published or rolled back, or is in doubt.

        Parameters
        ----------
        call : callable
            Called on the thread that ends the transaction, without holding locks; returns an exception to be raised
            after all callbacks have been called, or None.
        """
        self._end_reports.add(call)

    def reporting(self, cause: BaseException | None = None) -> AbstractContextManager[None]:
        """Call the callbacks of :meth:`at_end` after this block, and not within, if the transaction ends in it.

        Parameters
        ----------
        cause : BaseException, optional
            Why it is rolled back; the caller still raises it.

        Raises
        ------
        BaseException
            What a callback has returned; if there is a cause, or the block has raised, it is added to that as a note.
        """
        return self._end_reports.after(lambda: self._life.has_ended, cause)

    def require_own(self) -> None:
        """Refuse to work on the parent's transaction in a forked child.

        Raises
        ------
        TwoPhaseError
            This process is a forked child of the one that runs the transaction.
        """
        self._life.require_own()

    # -- inside -------------------------------------------------------------------------------------------------------

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

"""A live transaction: one or more participants with one outcome."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twophase import actions, protocol, refusals
from twophase.actions import Verdict
from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.driver import Driver, Enlisted, concerning
from twophase.errors import CatalogError, LeaseLostError, TransactionInDoubt, TwoPhaseError
from twophase.failpoints import declare, step
from twophase.liveness import Lease, inherited
from twophase.model import Level, ObjectPath, OverwriteScope, Purpose, TableDefinition, WriteContext
from twophase.records import Account, name_error
from twophase.redaction import logger
from twophase.reservations import Published
from twophase.states import ParticipantState, TransactionState

if TYPE_CHECKING:
    from twophase.coordinator import Coordinator

__all__ = ["Transaction", "TransactionState"]

_log = logger("twophase")

declare("core.begin", "core.write")


@dataclass(frozen=True)
class _Read:
    """A table as it was when it was first read: by its own catalog, and by the timeline."""

    version: Any
    published: Published


class Transaction:
    """One or more participants with one outcome. Made by :meth:`twophase.coordinator.Coordinator.begin`.

    Its tables are reserved on the timeline when it commits, all in one order, and no longer than it publishes: while
    the job thinks, others may publish to them. Then an INSERT INTO goes on top of what they did, and everything else
    is refused: the first that commits wins. A statement on a table that another transaction is just publishing waits
    for that before its job starts, and so does the commit: for as long as the coordinator says, then it is refused.

    Parameters
    ----------
    coordinator : Coordinator
        Lends it the timeline, leases and the clearing of dead holders.
    transaction_id : str
        Unique on the timeline.

    Notes
    -----
    ``commit`` and ``abort`` may be called from any thread; the first one decides. Only what is written is published: a
    ``commit`` while a statement still writes rolls everything back. Statements on different tables may run at once;
    each table has one writer at a time.
    """

    def __init__(self, coordinator: Coordinator, transaction_id: str) -> None:
        self._coordinator = coordinator
        self._id = transaction_id
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._state = TransactionState.REQUESTED
        self._enlisted: dict[int, Enlisted] = {}
        self._definitions: dict[int, TableDefinition] = {}
        self._reads: dict[tuple[str, ObjectPath], _Read] = {}
        self._lease: Lease | None = None
        self._broken: BaseException | None = None
        self._left_behind: tuple[str, ...] = ()
        self._doubt: TransactionInDoubt | None = None

    def __repr__(self) -> str:
        return f"<Transaction {self._id} {self._state.name}>"

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The transaction's id: the owner stamp of all that it makes."""
        return self._id

    @property
    def state(self) -> TransactionState:
        """Its state, as on the timeline."""
        return self._state

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that runs it: nothing that happens here ends or changes it."""
        return self._pid != os.getpid()

    @property
    def participants(self) -> list[TwoPhaseCatalogTable]:
        """The participants that are (to be) published, in the order of their statements."""
        return [member.participant for member in self._taking_part()]

    @property
    def level(self) -> Level:
        """What the transaction guarantees; final once every participant is prepared."""
        return self._driver().level() if self._lease else Level.ATOMIC

    @property
    def level_reasons(self) -> list[str]:
        """Why the level is below 3: a sentence for each cause."""
        return self._driver().level_reasons() if self._lease else []

    @property
    def left_behind(self) -> tuple[str, ...]:
        """What could not be removed: paths and tables."""
        return self._left_behind

    def find(self, catalog: str, path: ObjectPath) -> TwoPhaseCatalogTable | None:
        """The participant by which this transaction writes a table, so that a later statement can read it.

        Parameters
        ----------
        catalog : str
            The catalog's name in the session.
        path : ObjectPath
            The table, in any spelling that its catalog takes for the same.

        Returns
        -------
        TwoPhaseCatalogTable or None
            The latest one that takes part; None where the transaction does not write the table.
        """
        member = self._find(catalog, path)
        return member.participant if member else None

    def redefines(self, participant: TwoPhaseCatalogTable) -> bool:
        """Whether this transaction makes or replaces the table of a participant, and does not only write its rows.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`find`.
        """
        member: Enlisted | None = self._member(participant)
        while member is not None:
            if not member.participant.purpose.inserts:
                return True
            member = member.supersedes
        return False

    def require_written(self, participant: TwoPhaseCatalogTable) -> None:
        """Refuse to read what a statement in another thread has not written to its end.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`find`.

        Raises
        ------
        WriteConflictError
            It is still being written.
        """
        member = self._member(participant)
        if not member.written:
            raise refusals.being_written(member, self._id)

    def definition(self, participant: TwoPhaseCatalogTable) -> TableDefinition | None:
        """The definition that a table of this transaction has after the statement of one participant.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`find`.

        Returns
        -------
        TableDefinition or None
            None where nobody has told it with :meth:`defines`.
        """
        return self._definitions.get(self._member(participant).ordinal)

    def defines(self, participant: TwoPhaseCatalogTable, definition: TableDefinition) -> None:
        """Tell what a statement that has ended well made of its table, so that later ones need not ask the store.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`stage`, written.
        definition : TableDefinition
            Of the whole table: for an insert not that of its rows.
        """
        self._definitions[self._member(participant).ordinal] = definition

    def note_read(self, catalog: Catalog, path: ObjectPath, version: Any) -> None:
        """Tell that this transaction is about to read a table, and in which state; it rests on the first one told.

        Parameters
        ----------
        catalog : Catalog
        path : ObjectPath
        version : Any
            Of :meth:`twophase.Catalog.table_version`, no newer than what is read; None where the catalog cannot tell.

        Raises
        ------
        TimelineError
            It cannot be asked who publishes to the table.
        """
        key = (catalog.name, catalog.canonical(path))
        if key not in self._reads:
            published = self._coordinator.timeline.published(*key)
            self._reads.setdefault(key, _Read(version, published))

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
    ) -> TwoPhaseCatalogTable | None:
        """Ask a catalog for a participant, and record it before anything is staged.

        Parameters
        ----------
        catalog : Catalog
        path, definition, purpose, ignore_if_exists, is_streaming_mode
            As in :meth:`twophase.Catalog.two_phase_create_table`.
        overwrite : OverwriteScope, optional
            For INSERT_OVERWRITE.
        autocommit : bool
            Whether this will be the transaction's only statement.

        Returns
        -------
        TwoPhaseCatalogTable or None
            None where the catalog offers nothing for this; then nothing was recorded.

        Raises
        ------
        WriteConflictError
            Another transaction holds this table for too long, or has changed it since this one read it, or another
            statement of this one still writes it; this transaction goes on without the new statement.
        CatalogError
            What the catalog refuses; nothing was recorded.
        TimelineError
            It cannot be recorded; nothing was staged.
        TransactionAborted
            This transaction was rolled back.
        TransactionInDoubt
            It is not known whether this transaction was published.
        TwoPhaseError
            This transaction is published: nothing can join it any more.
        """
        self.require_own()
        with self._lock:
            self._require_open()
            earlier = self._to_build_on(catalog, path)
            self._await_publisher(catalog, path, purpose)
            context = WriteContext(
                transaction_id=self._id,
                ordinal=len(self._enlisted),
                overwrite=overwrite,
                base=earlier.participant.document if earlier else None,
                autocommit=autocommit,
            )
            with concerning(path):
                participant = catalog.two_phase_create_table(
                    path,
                    definition,
                    purpose=purpose,
                    ignore_if_exists=ignore_if_exists,
                    is_streaming_mode=is_streaming_mode,
                    context=context,
                )
            if participant is not None:
                _require_participant(participant, catalog, path)
                self._require_as_read(catalog, path, purpose)
                self._enlist(catalog, participant, earlier)
            return participant

    def begin_participant(self, participant: TwoPhaseCatalogTable) -> None:
        """Make the staging area of a participant.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`stage`.

        Raises
        ------
        CatalogError
            It cannot be made, or the target is not free.
        LeaseLostError
            Another process has rolled the transaction back meanwhile.
        TransactionAborted
            Another thread has.
        """
        with self._working(participant) as member:
            # Without the transaction: it ends with this error, and leaves nothing that could be asked for by its id.
            with concerning(participant.path), step("core.begin"):
                participant.begin()
            self._note(member)

    def write(self, participant: TwoPhaseCatalogTable, df: Any) -> None:
        """Write the rows of ``df`` to the staging area; the user's own error comes out unchanged.

        A participant is published only where this has returned.

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
            Another process has rolled the transaction back meanwhile.
        TransactionAborted
            Another thread has: what was written here is removed.
        """
        with self._working(participant) as member:
            with concerning(participant.path, self._id), step("core.write"):
                participant.write(df)
            self._note(member, written=True)

    def write_nothing(self, participant: TwoPhaseCatalogTable) -> None:
        """In place of :meth:`write`, for a statement that has no rows to write: REPLACE TABLE without a query.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`stage`, after :meth:`begin_participant`.

        Raises
        ------
        TransactionAborted
            The transaction has been rolled back meanwhile.
        """
        with self._working(participant) as member:
            self._note(member, written=True)

    def prepare_participant(self, participant: TwoPhaseCatalogTable) -> None:
        """Prepare a participant while the transaction goes on, so that others can build on it; idempotent.

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
            Anything else that would make the publish fail.
        LeaseLostError
            Another process has rolled the transaction back meanwhile.
        TransactionAborted
            Another thread has.
        """
        self.require_own()
        member = self._member(participant)
        with self._lock:  # The end of a block may prepare what a statement in another thread has just written.
            if member.state is not ParticipantState.STAGED and self._state is not TransactionState.ROLLED_BACK:
                return
            self._require_open()
            with self._fenced():
                self._driver().run(protocol.look(member.ordinal))

    def discard(self, participant: TwoPhaseCatalogTable) -> None:
        """Give one participant up while the transaction goes on: what one failed statement staged is removed.

        A participant of the same table that it had superseded counts again. Idempotent, and nothing once the
        transaction has ended or is in doubt; never raises for what cannot be removed now: that is tried again when the
        transaction ends.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            From :meth:`stage`.
        """
        if self.is_inherited:
            return
        with self._lock:
            member = self._member(participant)
            if not (member.state.takes_part and self._is_open) or self._lease is None:
                return
            reply = self._driver().perform(actions.Abort(member.ordinal))
            member.state = ParticipantState.DISCARDED if reply.error is None else ParticipantState.SUPERSEDED
            earlier = member.supersedes
            if earlier is not None:
                earlier.state = earlier.was
            restored = None if earlier is None else (earlier.ordinal, earlier.state)
            try:
                self._coordinator.timeline.discard_participant(self._lease, member.to_record(), restores=restored)
            except TwoPhaseError as error:
                self._broken = error  # A recovery would publish it: only aborting is left.

    # -- the end ------------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Publish all participants, or none. Idempotent once completed.

        Raises
        ------
        TransactionAborted
            It was rolled back: nothing happened. A refusing store's own error, where it is of this kind
            (:class:`~twophase.errors.WriteConflictError`). Also where a statement of it is not written to its end.
        TransactionInDoubt
            The outcome could not be learned; the message names the command that resolves it.
        TwoPhaseError
            This process is a fork of the one whose transaction it is.
        """
        self.require_own()
        with self._lock:
            if self._state is TransactionState.COMPLETED:
                return
            if self._doubt is not None:
                raise self._doubt
            self._require_open()
            if self._lease is None:
                self._state = TransactionState.COMPLETED
                return
            self._prepare_all()
            driver = self._driver()
            self._conclude(driver, self._run_commit(driver))

    def abort(self, error: BaseException | None = None) -> None:
        """Remove everything that was staged. Idempotent, and nothing once the outcome is known or in doubt.

        Nothing either in a forked child of the process that runs it: the transaction is the parent's.

        Parameters
        ----------
        error : BaseException, optional
            Why: it stays the one that is raised. What goes wrong in here is attached to it as a note.
        """
        if self.is_inherited:
            return
        with self._lock:
            if self._state is TransactionState.COMMITTING:
                self._end()  # Cut off between two steps: recovery asks the stores.
            if not self._is_open:
                return
            self._state = TransactionState.ROLLED_BACK
            if self._lease is None:
                return
            driver = self._driver()
            problems: tuple[BaseException, ...]
            try:
                verdict: Verdict = driver.run(protocol.rollback(driver.plan(), error))
                problems, self._left_behind = verdict.problems, verdict.left_behind
            except BaseException as interrupt:
                # Undecided on the timeline: recovery removes the rest.
                problems, driver.interrupt = (interrupt,), interrupt
            self._end()
            self._report(problems, error)
            if error is None and driver.interrupt is not None:
                raise driver.interrupt

    def require_own(self) -> None:
        """Refuse what a forked child would do to its parent's transaction.

        Raises
        ------
        TwoPhaseError
            This process is such a child.
        """
        if self.is_inherited:
            raise inherited(self._id, self._pid)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _driver(self) -> Driver:
        assert self._lease is not None
        coordinator = self._coordinator
        return Driver(
            coordinator.timeline,
            self._lease,
            self._enlisted.values(),
            patience=coordinator.patience(),
        )

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        """An error that comes of another process having removed what was staged is told as that."""
        try:
            yield
        except Exception as error:
            lost = self._lost()
            if lost is None or lost is error:
                raise
            raise lost from error

    def _lost(self) -> LeaseLostError | None:
        if self._lease is None or self._lease.surely_held():
            return None
        try:
            self._coordinator.timeline.renew(self._lease)
        except LeaseLostError as lost:
            return lost
        except TwoPhaseError:
            pass  # It cannot be known: the error itself says more.
        return None

    @property
    def _is_open(self) -> bool:
        """Whether nothing is decided: statements can join it, and it can be given up."""
        return self._state.is_undecided

    def _require_open(self) -> None:
        if self._is_open:
            return
        if self._state is TransactionState.ROLLED_BACK:
            raise refusals.rolled_back(self._id)
        if self._state is TransactionState.COMPLETED:
            raise refusals.completed(self._id)
        raise self._doubt or self._in_doubt(Account(), None)

    @contextmanager
    def _working(self, participant: TwoPhaseCatalogTable) -> Iterator[Enlisted]:
        """A step of a statement, on its own thread; others may end the transaction while it runs."""
        self.require_own()
        member = self._member(participant)
        self._require_open()
        try:
            with self._fenced():
                yield member
        except BaseException as error:
            with self._lock:
                member.failure = name_error(error)
            self._give_up_late(member, error)
            raise
        self._give_up_late(member, None)

    def _note(self, member: Enlisted, *, written: bool = False) -> None:
        """What a step has made of a participant, while that matters."""
        with self._lock:
            if self._is_open:
                self._driver().save_if_changed(member)
                member.written |= written

    def _give_up_late(self, member: Enlisted, error: BaseException | None) -> None:
        """A statement that outlived its transaction is told so, and removes what it made after the rollback had."""
        with self._lock:
            if self._state is not TransactionState.ROLLED_BACK:
                return
            reply = self._driver().perform(actions.Abort(member.ordinal))
        raise refusals.outlived(member, self._id, reply.left_behind) from error

    def _to_build_on(self, catalog: Catalog, path: ObjectPath) -> Enlisted | None:
        """The earlier participant of the same table, whole: what a new statement builds on."""
        while (earlier := self._find(catalog.name, path)) is not None:
            if earlier.written:
                self.prepare_participant(earlier.participant)
                return earlier
            if earlier.failure is None:
                raise refusals.being_written(earlier, self._id)
            self.discard(earlier.participant)  # As its own statement is about to do.
        return None

    def _find(self, catalog: str, path: ObjectPath) -> Enlisted | None:
        for member in reversed(tuple(self._enlisted.values())):  # Other threads may add some meanwhile.
            if member.catalog.name != catalog or not member.state.takes_part:
                continue
            if member.target == member.catalog.canonical(path):
                return member
        return None

    def _member(self, participant: TwoPhaseCatalogTable) -> Enlisted:
        for member in tuple(self._enlisted.values()):
            if member.participant is participant:
                return member
        raise ValueError(f"{participant!r} does not belong to transaction {self._id}")

    def _await_publisher(self, catalog: Catalog, path: ObjectPath, purpose: Purpose) -> None:
        """Begin with what others are just publishing, not without it; what is held for ever is told before the job.

        Not those who come meanwhile: they are seen at the end. Nor those who change a few partitions, perhaps others.
        """
        if purpose is Purpose.INSERT_INTO:
            return
        target, patience = catalog.canonical(path), self._coordinator.patience()
        holders = self._coordinator.timeline.holders
        for holder, held in holders(catalog.name, target).items():
            while held.scope is None and holder in holders(catalog.name, target):
                patience.wait(f"{catalog.name}.{path}", holder, self._id)

    def _require_as_read(self, catalog: Catalog, path: ObjectPath, purpose: Purpose) -> None:
        """Refuse to replace rows that this transaction has not read, where it has read the table.

        Asked after the offer: what that rests on lies between the read and this, and is all the same.
        """
        key = (catalog.name, catalog.canonical(path))
        seen = self._reads.get(key)
        if seen is None or purpose is Purpose.INSERT_INTO:
            return
        changed = self._coordinator.timeline.published(*key).since(seen.published)
        with concerning(path, self._id):
            if changed or (seen.version is not None and catalog.table_version(path) != seen.version):
                raise refusals.changed_since_read(f"{catalog.name}.{path}", self._id)

    def _enlist(self, catalog: Catalog, participant: TwoPhaseCatalogTable, earlier: Enlisted | None) -> None:
        member = Enlisted(
            ordinal=len(self._enlisted),
            catalog=catalog,
            participant=participant,
            supersedes=earlier,
        )
        member.changed()
        try:
            if self._lease is None:
                self._record(member)
                self._enlisted[member.ordinal] = member
            else:
                self._enlisted[member.ordinal] = member
                self._record_one_more(self._lease, member)
        except BaseException as error:
            if self._lease is not None:
                self._broken = error  # It may stand on the timeline without having been staged: only aborting is left.
            member.failure = name_error(error)
            raise
        if earlier is not None:
            earlier.was, earlier.state = earlier.state, ParticipantState.SUPERSEDED

    def _record(self, first: Enlisted) -> None:
        self._lease = self._coordinator.record(self._id, first.to_record())
        # A transaction that nobody holds any more is not kept alive: recovery may have it.
        weakref.finalize(self, self._coordinator.ended, self._id).atexit = False
        self._state = TransactionState.INFLIGHT

    def _record_one_more(self, lease: Lease, member: Enlisted) -> None:
        superseded = member.supersedes.ordinal if member.supersedes else None
        self._coordinator.timeline.enlist(lease, member.to_record(), supersedes=superseded)

    def _prepare_all(self) -> None:
        try:
            if self._broken is not None:
                raise self._broken
            members = self._taking_part()
            for member in members:
                if not member.written:
                    raise refusals.unwritten(member, self._id)
            with self._fenced():
                self._driver().run(protocol.prepare(member.to_member() for member in members))
        except BaseException as error:
            self.abort(error)
            raise

    def _run_commit(self, driver: Driver) -> Verdict:
        plan = driver.plan()
        try:
            self._state = TransactionState.COMMITTING
            return driver.run(protocol.commit(plan))
        except LeaseLostError as error:
            return self._fate(error)
        except BaseException as error:
            driver.interrupt = error
            return self._run_recovery(driver, error)

    def _run_recovery(self, driver: Driver, error: BaseException) -> Verdict:
        """Something came in between two steps (Ctrl-C): the timeline and the stores know how far we got."""
        try:
            record = self._coordinator.timeline.transaction(self._id)
            state = record.state if record else TransactionState.INFLIGHT
            verdict: Verdict = driver.run(protocol.recover(state, driver.plan(), certainly_dead=True))
            return verdict
        except LeaseLostError as lost:
            return self._fate(lost)
        except BaseException as second:
            return Verdict(TransactionState.IN_DOUBT, error, problems=(second,))

    def _fate(self, error: LeaseLostError) -> Verdict:
        """Another process took the transaction over; it may have carried it to an end."""
        try:
            record = self._coordinator.timeline.transaction(self._id)
        except TwoPhaseError as problem:
            return Verdict(TransactionState.IN_DOUBT, error, problems=(problem,))
        if record is not None and record.state.is_final:
            return Verdict(record.state, error, record.left_behind)
        return Verdict(TransactionState.IN_DOUBT, error)

    def _conclude(self, driver: Driver, verdict: Verdict) -> None:
        self._state, self._left_behind = verdict.state, verdict.left_behind
        self._end()
        error = verdict.error if verdict.state is not TransactionState.COMPLETED else driver.interrupt
        self._report(verdict.problems, error)
        if verdict.state is TransactionState.IN_DOUBT:
            self._doubt = self._in_doubt(driver.account(verdict), verdict.error)
            self._left_behind = tuple(self._doubt.left_behind)
            raise self._doubt from verdict.error
        if driver.interrupt is not None:
            driver.interrupt.add_note(f"Transaction {self._id} ended as {self._state.name}.")
            raise driver.interrupt
        if verdict.state is TransactionState.ROLLED_BACK:
            raise refusals.aborted(self._taking_part(), self._id, self._left_behind, verdict.error)

    def _in_doubt(self, account: Account, error: BaseException | None) -> TransactionInDoubt:
        return refusals.in_doubt(self._taking_part(), self._id, account, error, self._coordinator.timeline)

    def _taking_part(self) -> list[Enlisted]:
        return [member for member in tuple(self._enlisted.values()) if member.state.takes_part]

    def _report(self, problems: tuple[BaseException, ...], error: BaseException | None) -> None:
        """Tell what went wrong on the way, in the log and with the error that the user gets.

        An error that came from Spark goes back through it, and arrives as another one without what was added here.
        """
        told = [
            f"While ending transaction {self._id}: {name_error(problem)}"
            for problem in problems
            if problem is not error
        ]
        if error is not None and self._left_behind:
            places = ", ".join(self._left_behind)
            told.append(f"Left behind by transaction {self._id}: {places}. Remove it with: twophase clean")
        for text in told:
            _log.warning(text)
            if error is not None:
                error.add_note(text)

    def _end(self) -> None:
        self._coordinator.ended(self._id)


def _require_participant(found: object, catalog: Catalog, path: ObjectPath) -> None:
    """A plugin may answer anything."""
    if not isinstance(found, TwoPhaseCatalogTable):
        raise CatalogError(
            f"Catalog {catalog.name} answered {type(found).__name__} for {path}, which is no TwoPhaseCatalogTable; "
            "nothing was recorded.",
            path=path,
            hint="Fix two_phase_create_table of the plugin: it answers a participant, or None.",
        )

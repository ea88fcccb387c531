"""A live transaction: one or more participants with one outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType

from twophase.catalog import (
    Catalog,
    OpenSnapshot,
    TwoPhaseCatalogTable,
)
from twophase.config.settings import duration
from twophase.errors import ConfigurationError
from twophase.model import Isolation, ObjectPath
from twophase.protocol.states import TransactionState
from twophase.redaction import logger
from twophase.timeline.reservations import Mode
from twophase.transactions import failures
from twophase.transactions.conflicts import Claim, Contention, timed_out
from twophase.transactions.ddl_statements import DdlStatements
from twophase.transactions.end_reports import EndReports
from twophase.transactions.ending import Ending
from twophase.transactions.lifecycle import Lifecycle, TransactionServices
from twophase.transactions.merging import Merging
from twophase.transactions.savepoints import Savepoint, Savepoints

__all__ = ["Transaction", "TransactionState"]

_log = logger("twophase")


class Transaction(DdlStatements):
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
        life = Lifecycle(coordinator, transaction_id, isolation, snapshot, contention, opened)
        super().__init__(life, read_only=read_only)
        self._ending = Ending(self._life)
        self._end_reports = EndReports()
        self._end_reports.add(self._life.reads.close)
        self._end_reports.add(self._life.report_end)
        self._cancels: list[Callable[[str, str], None]] = []
        self._savepoints = Savepoints(self._life)
        self._reverts: list[Callable[[str, list[TwoPhaseCatalogTable]], None]] = []
        self._find_table: Callable[[str], tuple[Catalog, ObjectPath]] | None = None

    def hold_snapshot(self) -> None:
        """Keep all that it may read from now on: without this, from its first read on."""
        self._life.hold_snapshot()

    # -- savepoints ---------------------------------------------------------------------------------------------------

    @property
    def has_worked(self) -> bool:
        """Whether it has read, locked or written anything, or has a savepoint."""
        return super().has_worked or self._savepoints.are_set

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
                self._life.reserve([Claim.of_table(catalog, path, Mode(mode))], seconds)
                if mode == Mode.WRITE.value:
                    self._life.reads.require_unchanged(catalog, path)

    def keep_writers_out(self, tables: Iterable[tuple[Catalog, ObjectPath]]) -> None:
        """Keep others from publishing to tables until the end of this transaction, which may read them, not write them.

        Parameters
        ----------
        tables : iterable of tuple
            Catalogs and paths.

        Raises
        ------
        WriteConflictError
            Another transaction has reserved it for too long.
        """
        self.require_own()
        with self._life.lock:
            self._life.require_open()
            claims = [Claim.of_table(catalog, path, Mode.READ) for catalog, path in tables]
            self._life.reserve(sorted(claims, key=lambda claim: Claim.order(claim.key)))

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
        if cancel not in self._cancels:
            self._cancels.append(cancel)

    def on_lost(self) -> None:
        """Cancel the running jobs: another transaction, or a recovery, has rolled this one back."""
        if self._life.lease is None or not self._life.is_open:
            return
        self._life.lease.lost = True
        self._cancel_jobs(f"transaction {self._life.id} was rolled back by another process")

    def _cancel_jobs(self, reason: str) -> None:
        for cancel in self._cancels:
            threading.Thread(target=cancel, args=(self.id, reason), name="twophase-cancel", daemon=True).start()

    def on_timeout(self) -> None:
        """Roll it back, because its time is over, unless it has decided to commit."""
        if not self._life.is_open:
            return
        threading.Thread(target=self._time_out, name="twophase-timeout", daemon=True).start()

    def _time_out(self) -> None:
        error = timed_out(self._life.id)
        self._cancel_jobs(error.message)
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
        self.merging = Merging(self._life)

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

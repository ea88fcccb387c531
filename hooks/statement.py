"""The execution of one statement, from accepted to published or rolled back.

The code that executes the query (the native Spark catalog, or :func:`twophase.create_table_as`) calls ``start``,
``write`` and ``finish``, or ``fail``. The statement calls the hooks; :class:`CtasJobStatusHook` drives the participant.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from twophase.catalog import SupportsSavepoints, TwoPhaseCatalogTable
from twophase.hooks.ctas import CtasJobStatusHook
from twophase.hooks.hook import JobStatusHook
from twophase.hooks.interrupts import deferred_interrupts, note_outcome
from twophase.hooks.status import JobState, JobStatus
from twophase.redaction import logger
from twophase.transactions.transaction import Transaction, TransactionState

log = logger("twophase.hooks")

JobScope = Callable[["Statement"], AbstractContextManager[Any]]

_live: set[Statement] = set()
_followed: list[list[Statement]] = []
#: Reentrant, because a signal handler may look up the live statements while the same thread is changing them.
_live_lock = threading.RLock()


def _after_fork() -> None:
    """Reset the state in a forked child: the statements are its parent's, and a lock held at the fork stays held."""
    global _live_lock
    _live_lock = threading.RLock()
    _live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def live_statements() -> list[Statement]:
    """The statements of this process that have begun and not ended yet; SIGTERM must wait for them."""
    with _live_lock:
        return list(_live)


@contextmanager
def statements_begun() -> Iterator[list[Statement]]:
    """Collect the statements that begin in this process, on any thread, until the block ends."""
    begun: list[Statement] = []
    with _live_lock:
        _followed.append(begun)
    try:
        yield begun
    finally:
        with _live_lock:
            _followed[:] = [other for other in _followed if other is not begun]


class Statement:
    """One statement, which drives a participant and its hooks. Thread safe; the first terminal call wins.

    Parameters
    ----------
    transaction : Transaction
    participant : TwoPhaseCatalogTable
        From ``transaction.stage(...)``.
    hooks : iterable of JobStatusHook
        Called in order, after the participant.
    autocommit : bool
        True if the statement is a transaction of its own.
    job_scope : callable, optional
        Returns a context manager for the write, in which the Spark layer tags the jobs and watches their events.
    """

    def __init__(
        self,
        transaction: Transaction,
        participant: TwoPhaseCatalogTable,
        *,
        hooks: Iterable[JobStatusHook] = (),
        autocommit: bool = True,
        job_scope: JobScope | None = None,
    ) -> None:
        self.transaction = transaction
        self.participant = participant
        self.hooks = tuple(hooks)
        self.autocommit = autocommit
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.job = JobStatus(
            transaction_id=transaction.id,
            path=f"{participant.catalog.name}.{participant.path}",
            purpose=participant.purpose.value,
            tag=f"twophase-{transaction.id}-{participant.document.get('ordinal', 0)}",
            in_transaction=not autocommit,
        )
        self._end_is_notified = self._is_concluded = False
        self._driver = CtasJobStatusHook(transaction, participant, autocommit=autocommit)
        self._job_scope = job_scope or (lambda _: nullcontext())

    def start(self) -> None:
        """Create the staging area.

        Raises
        ------
        CatalogError
            It cannot be created; the statement is rolled back.
        BaseException
            A hook raised an exception that is not an ``Exception``. The statement is rolled back.
        """
        with _live_lock:
            _live.add(self)
            for begun in _followed:
                begun.append(self)
        if not self.autocommit:
            self.transaction.at_end(self._conclude)
        try:
            self._driver.on_created(self.job)
            if (end := self._notify("on_created")) is not None:
                raise end
        except BaseException as error:
            self.fail(error)
            raise

    def write(self, df: Any) -> None:
        """Write the query's rows to the staging area.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            The query's rows, in the order of the definition's columns.

        Raises
        ------
        Exception
            The user's own error; the caller must then call :meth:`fail`.
        """
        self.job.started()
        with self._job_scope(self):
            self.transaction.write(self.participant, df)

    def write_kept(self, catalog: SupportsSavepoints, document: Mapping[str, Any]) -> bool:
        """Stage the rows that a savepoint keeps, instead of :meth:`write`; False if they must be read and written.

        Parameters
        ----------
        catalog, document
            As in :meth:`twophase.catalog.SupportsSavepoints.write_kept`.

        Raises
        ------
        TwoPhaseError
            They cannot be staged; the caller must then call :meth:`fail`.
        """
        return self.transaction.write_kept(self.participant, catalog, document)

    def write_nothing(self) -> None:
        """Finish the write of a statement without a query, instead of :meth:`write`.

        Raises
        ------
        TransactionAborted
            The transaction was rolled back in the meantime; the caller must then call :meth:`fail`.
        """
        self.transaction.write_nothing(self.participant)

    def finish(self) -> None:
        """Prepare after the query has finished, and publish if the statement is a transaction of its own.

        Raises
        ------
        TransactionAborted
            It was rolled back.
        TransactionInDoubt
            It is unknown whether it was published.
        BaseException
            A hook raised an exception that is not an ``Exception``. The statement succeeded, and a note says so.
        """
        if self.done.is_set():
            return
        try:
            with deferred_interrupts():
                self._driver.on_finished(self.job)
        except BaseException as error:
            if self.transaction.state is TransactionState.COMPLETED:
                # A held-back Ctrl-C arrives after the publish: the user must be informed that the table is published.
                note_outcome(error, self.transaction)
                self._finished()
            else:
                self._refused(error)
            raise
        if (end := self._finished()) is not None:
            self._notify_finished(end)
            raise end

    def _finished(self) -> BaseException | None:
        return self._end("on_finished") if self.job.finished() else None

    def _notify_finished(self, end: BaseException) -> None:
        if self.autocommit:
            note_outcome(end, self.transaction)
        else:
            end.add_note(f"{self.job.path} was written before this; it is part of transaction {self.transaction.id}.")

    def fail(self, error: BaseException) -> None:
        """Roll back after the query failed or was cancelled. A cleanup error is attached to ``error``, not raised.

        Parameters
        ----------
        error : BaseException
            The user's own error, which the caller raises afterwards.

        Raises
        ------
        KeyboardInterrupt
            It arrived in the meantime, and was held back until the statement was rolled back.
        """
        if self.done.is_set() or not self.job.failed(error):
            return
        self.error = error
        try:
            with deferred_interrupts():
                self._undo(error)
        except Exception as problem:  # the user's own error must reach the user
            text = f"twophase could not clean up after this error: {problem}"
            log.warning("%s (%s, transaction %s)", text, self.job.path, self.job.transaction_id)
            error.add_note(text)
        finally:
            self._end_failed(error)

    def _undo(self, error: BaseException) -> None:
        if self.job.state is JobState.CANCELED:
            self._driver.on_canceled(self.job)
        else:
            self._driver.on_failed(self.job, error)

    def _refused(self, error: BaseException) -> None:
        """Handle a failed commit; for a single statement the coordinator has already cleaned up."""
        ended = (TransactionState.ROLLED_BACK, TransactionState.IN_DOUBT)
        if not self.autocommit or self.transaction.state not in ended:
            self.fail(error)
        elif self.job.failed(error):
            self.error = error
            self._end_failed(error)

    def _end_failed(self, error: BaseException) -> None:
        canceled = self.job.state is JobState.CANCELED
        end = self._end("on_canceled") if canceled else self._end("on_failed", error)
        if end is not None and end is not error:
            error.add_note(f"A hook that was called for this raised {end!r}.")

    def _end(self, event: str, *arguments: Any) -> BaseException | None:
        try:
            first, second = self._notify_end(event, *arguments), self._conclude()
            return first or second
        finally:
            with _live_lock:
                _live.discard(self)
            self.done.set()

    def _notify_end(self, event: str, *arguments: Any) -> BaseException | None:
        try:
            return self._notify(event, *arguments)
        finally:
            self._end_is_notified = True

    def _conclude(self) -> BaseException | None:
        """Notify all hooks of the outcome, once the statement and its transaction have ended."""
        with _live_lock:
            event = None if self._is_concluded else self._fate()
            if event is None:
                return None
            self._is_concluded = True
        self.job.published = {"on_committed": True, "on_rolled_back": False}.get(event)
        return self._notify(event)

    def _fate(self) -> str | None:
        if not self._end_is_notified:
            return None  # Another thread ends the block meanwhile: its outcome is reported after its own end.
        if self.job.state is not JobState.FINISHED and not (self._is_in_doubt or self._is_published_anyway):
            return "on_rolled_back"  # Also if its block continues without it.
        if not self.autocommit and self.transaction.member(self.participant).is_discarded:
            return "on_rolled_back"  # Its block was rolled back to a savepoint before it.
        fates = {
            TransactionState.COMPLETED: "on_committed",
            TransactionState.ROLLED_BACK: "on_rolled_back",
            TransactionState.IN_DOUBT: "on_in_doubt",
        }
        return fates.get(self.transaction.state)

    @property
    def _is_in_doubt(self) -> bool:
        """Whether its own publish has failed with an unknown outcome."""
        return self.autocommit and self.transaction.state is TransactionState.IN_DOUBT

    @property
    def _is_published_anyway(self) -> bool:
        """Whether its block publishes its rows although it has failed: another thread ended the block before that."""
        return not self.autocommit and any(found is self.participant for found in self.transaction.participants)

    def _notify(self, event: str, *arguments: Any) -> BaseException | None:
        """Call all hooks; return the first of their errors that is not an ``Exception``, such as an interrupt."""
        end: BaseException | None = None
        for hook in self.hooks:
            if event == "on_progress" and self.job.state.is_terminal:
                break  # the end came during a slow hook before this one
            try:
                getattr(hook, event)(self.job, *arguments)
            except BaseException as error:
                self.job.hook_errors.append(error)
                if not isinstance(error, Exception):
                    end = end or error
                log.warning(
                    "Hook %s failed in %s for %s in transaction %s%s",
                    type(hook).__name__, event, self.job.path, self.job.transaction_id,
                    "; the statement is not affected." if isinstance(error, Exception) else f": {error!r}",
                    exc_info=error,
                )  # fmt: skip
        return end

    def tell_progress(self) -> None:
        """Notify the hooks of progress (on the event thread), and suppress their errors."""
        self._notify("on_progress")

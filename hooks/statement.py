"""One statement's run, from accepted to published or rolled back.

Whoever executes the query (the native Spark catalog, or :func:`twophase.create_table_as`) calls ``start``, ``write``
and ``finish``, or ``fail``. The statement feeds the hooks; the participant is driven by :class:`CtasJobStatusHook`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from twophase.catalog import TwoPhaseCatalogTable
from twophase.hooks.ctas import CtasJobStatusHook
from twophase.hooks.hook import JobStatusHook
from twophase.hooks.interrupts import deferred_interrupts, tell_outcome
from twophase.hooks.status import JobState, JobStatus
from twophase.redaction import logger
from twophase.transactions import Transaction, TransactionState

log = logger("twophase.hooks")

JobScope = Callable[["Statement"], AbstractContextManager[Any]]

_live: set[Statement] = set()
_followed: list[list[Statement]] = []
#: Signal handlers ask what is live, perhaps in the middle of a change by the same thread.
_live_lock = threading.RLock()


def live_statements() -> list[Statement]:
    """The statements of this process that began and have not ended: what SIGTERM must wait for."""
    with _live_lock:
        return list(_live)


@contextmanager
def statements_begun() -> Iterator[list[Statement]]:
    """Collect the statements that begin in this process, on whatever thread, until the block ends."""
    begun: list[Statement] = []
    with _live_lock:
        _followed.append(begun)
    try:
        yield begun
    finally:
        with _live_lock:
            _followed[:] = [other for other in _followed if other is not begun]


class Statement:
    """Runs one participant through its hooks. Thread safe; the first terminal call wins.

    Parameters
    ----------
    transaction : Transaction
    participant : TwoPhaseCatalogTable
        From ``transaction.stage(...)``.
    hooks : iterable of JobStatusHook
        Told in order, after the participant itself was driven.
    autocommit : bool
        True when the statement is a transaction of its own.
    job_scope : callable, optional
        Gives a context manager around the write: the Spark layer tags the jobs and watches their events there.
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
        )
        self._driver = CtasJobStatusHook(transaction, participant, autocommit=autocommit)
        self._job_scope = job_scope or (lambda _: nullcontext())

    def start(self) -> None:
        """Make the staging area.

        Raises
        ------
        CatalogError
            It cannot be made; the statement is rolled back.
        BaseException
            A hook wants an end: what it raised is no ``Exception``. The statement is rolled back.
        """
        with _live_lock:
            _live.add(self)
            for begun in _followed:
                begun.append(self)
        try:
            self._driver.on_created(self.job)
            if (end := self._tell("on_created")) is not None:
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
            The user's own error; the caller then calls :meth:`fail`.
        """
        self.job.started()
        with self._job_scope(self):
            self.transaction.write(self.participant, df)

    def write_nothing(self) -> None:
        """In place of :meth:`write`, for a statement without a query.

        Raises
        ------
        TransactionAborted
            The transaction was rolled back meanwhile; the caller then calls :meth:`fail`.
        """
        self.transaction.write_nothing(self.participant)

    def finish(self) -> None:
        """The query finished: prepare, and publish when the statement is its own transaction.

        Raises
        ------
        TransactionAborted
            It was rolled back.
        TransactionInDoubt
            It could not be learned whether it was published.
        BaseException
            A hook wants an end: what it raised is no ``Exception``. The statement has ended well, and a note says so.
        """
        if self.done.is_set():
            return
        try:
            with deferred_interrupts():
                self._driver.on_finished(self.job)
        except BaseException as error:
            if self.transaction.state is TransactionState.COMPLETED:
                # A held-back Ctrl-C arrives after the publish: the table is there, and the user must know.
                tell_outcome(error, self.transaction)
                self._finished()
            else:
                self._refused(error)
            raise
        if (end := self._finished()) is not None:
            self._tell_finished(end)
            raise end

    def _finished(self) -> BaseException | None:
        return self._end("on_finished") if self.job.finished() else None

    def _tell_finished(self, end: BaseException) -> None:
        if self.autocommit:
            tell_outcome(end, self.transaction)
        else:
            end.add_note(f"{self.job.path} was written before this; it is part of transaction {self.transaction.id}.")

    def fail(self, error: BaseException) -> None:
        """The query failed or was cancelled: roll back. A clean-up error is attached to ``error``, and not raised.

        Parameters
        ----------
        error : BaseException
            The user's own, which the caller raises afterwards.

        Raises
        ------
        KeyboardInterrupt
            It came meanwhile, and waited until the statement was rolled back.
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
        """The commit itself ended badly; of a single statement the coordinator has already taken care."""
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
            error.add_note(f"A hook that was told of this raised {end!r}.")

    def _end(self, event: str, *arguments: Any) -> BaseException | None:
        try:
            return self._tell(event, *arguments)
        finally:
            with _live_lock:
                _live.discard(self)
            self.done.set()

    def _tell(self, event: str, *arguments: Any) -> BaseException | None:
        """Tell all hooks; the answer is the first of their errors that is no ``Exception``: what wants an end."""
        end: BaseException | None = None
        for hook in self.hooks:
            if event == "on_progress" and self.job.state.is_terminal:
                break  # a slow hook before this one
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
        """Pass progress on to the hooks (event thread); nothing that they raise comes out."""
        self._tell("on_progress")

"""Transactions between a ``BEGIN TRANSACTION`` and its ``COMMIT`` or ``ROLLBACK``.

Such a transaction belongs to the context that has begun it, as a ``with`` block does. Whatever ends without ending it
(the thread, the task, the session, the interpreter) rolls it back, and says so in the log.
"""

from __future__ import annotations

import atexit
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from twophase.errors import TransactionStatementError
from twophase.hooks.hook import JobStatusHook
from twophase.hooks.interrupts import carried_through
from twophase.model import Isolation
from twophase.redaction import logger
from twophase.spark import active, blocks
from twophase.spark.active_transaction import running_task
from twophase.spark.attached import AttachedSession
from twophase.spark.blocks import Terms
from twophase.transactions.transaction import Transaction, TransactionState

log = logger("twophase.spark")


class _Owner:
    """Lives as long as the context that has begun a transaction, and those copied from it."""


class OpenTransaction:
    """A transaction from :func:`twophase.begin`: a :class:`~twophase.Transaction` that statements join until it ends.

    Beside the attributes and methods of a transaction (``id``, ``state``, ``isolation``, ``snapshot``, ``level``,
    ``lock``, ``savepoint``, ``rollback_to``, ``release``) it has ``commit`` and ``rollback``, which end it as
    ``COMMIT`` and ``ROLLBACK`` do.

    Parameters
    ----------
    session : AttachedSession
    hooks : iterable of JobStatusHook
    isolation : Isolation, optional
        That of the session when None.
    read_only : bool
    terms : Terms
    """

    def __init__(
        self,
        session: AttachedSession,
        hooks: Iterable[JobStatusHook],
        isolation: Isolation | None,
        *,
        read_only: bool,
        terms: Terms,
    ) -> None:
        self.session = session
        self._hooks = tuple(hooks)
        self._isolation, self._read_only, self._terms = isolation, read_only, terms
        self._owner: _Owner | None = None
        self._begin()

    def __repr__(self) -> str:
        return repr(self.transaction)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.transaction, name)

    @property
    def transaction(self) -> Transaction:
        """The transaction itself."""
        return self._active.transaction

    def commit(self) -> None:
        """Publish all of its tables, or none. Like ``COMMIT``; without effect once it is published.

        Raises
        ------
        WriteConflictError
            Another transaction has changed what this one writes (``serializable``: or has read); everything was rolled
            back.
        TransactionAborted
            It was rolled back before, or now because of a refusal.
        TransactionInDoubt
            Its outcome could not be determined.
        TransactionStatementError
            It was begun on another thread or by another task.
        """
        if not self._is_open:
            self.transaction.commit()
            return
        self._require_own("COMMIT")
        with self._ending(), blocks.ending(self._active, self._before):
            active.leave(self._active, self._before)
            blocks.commit(self._active)

    def rollback(self) -> None:
        """Remove everything that it has staged. Like ``ROLLBACK``; without effect once it has ended.

        Raises
        ------
        TransactionStatementError
            It was begun on another thread or by another task.
        """
        if self._is_open:
            self._require_own("ROLLBACK")
            self._roll_back()

    def abort(self, error: BaseException | None = None) -> None:
        """Remove everything that it has staged, as :meth:`rollback` does.

        Parameters
        ----------
        error : BaseException, optional
            The cause, which the caller still raises.
        """
        if self._is_open:
            self._require_own("ROLLBACK")
            self._roll_back(error)

    def _require_unused(self) -> None:
        if self.transaction.has_worked:
            raise TransactionStatementError(
                f"Transaction {self.id} has read, locked or written something, or has a savepoint: its "
                "characteristics stay as they are.",
                transaction_id=self.id,
                hint="Say SET TRANSACTION right after BEGIN TRANSACTION, or say them there.",
            )

    def restart(self, isolation: Isolation | None, terms: Terms, *, read_only: bool | None) -> None:
        """Change its characteristics, before it has read or written anything: it begins again.

        Parameters
        ----------
        isolation : Isolation, optional
        terms : Terms
        read_only : bool, optional
            Each as it is when None.

        Raises
        ------
        TransactionStatementError
            It has read, locked or written something, or has a savepoint.
        """
        self._require_own("SET TRANSACTION")
        self._require_unused()
        isolation = self._isolation if isolation is None else isolation
        merged = replace(
            self._terms,
            conflict=terms.conflict or self._terms.conflict,
            wait=self._terms.wait if terms.wait is None else terms.wait,
        )
        self._roll_back()
        self._isolation, self._terms = isolation, merged
        self._read_only = self._read_only if read_only is None else read_only
        ended = self.id
        try:
            self._begin()
        except BaseException as error:
            error.add_note(f"Transaction {ended}, which had done nothing, has ended: none is open now.")
            raise

    # -- inside --------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        session = self.session
        before = active.surroundings(session)  # First: if it fails, nothing has begun.
        begun = blocks.begin(session, self._hooks, self._isolation, read_only=self._read_only, terms=self._terms)
        if begun.task is not None and _is_in_notebook():
            # Each cell is a task with a context of its own: the transaction is that of the kernel's thread.
            begun.task, begun.is_of_thread = None, True
        self._active, self._before = begun, before
        try:
            with blocks.ending(begun, self._before):
                active.open_block(session, self.id)
                active.enter(begun)
                self._watch()
        except BaseException:
            self._forget()
            raise

    def _watch(self) -> None:
        """Roll it back if its context ends before it does."""
        owner = _Owner()
        _abandoned.start()
        self._finalizer = weakref.finalize(owner, _abandoned.put, self.id)
        self._finalizer.atexit = False
        _open[self.id] = self
        if self._active.is_of_thread:
            self._owner = owner
        else:
            _owner.set(owner)

    @property
    def _is_open(self) -> bool:
        return self.id in _open

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Forget it when it has ended, in whichever way."""
        try:
            yield
        finally:
            self._forget()

    def _forget(self) -> None:
        if (begun := _open.pop(self.id, None)) is not None:
            begun._finalizer.detach()
        self._owner = None
        active.close_block(self.id)

    def _require_own(self, statement: str) -> None:
        begun = self._active
        is_same_task = begun.is_of_thread or begun.task == running_task()
        if begun.thread is threading.current_thread() and is_same_task:
            return
        raise TransactionStatementError(
            f"{statement} of transaction {self.id} on another thread, or by another task, than the one that has begun "
            "it: the statements of that one would no longer know where they are. Nothing was changed.",
            transaction_id=self.id,
            hint="Say it there.",
        )

    def _roll_back(self, error: BaseException | None = None) -> None:
        with self._ending(), carried_through(self.transaction, error):
            with suppress(Exception):  # Spark may have ended
                active.leave(self._active, self._before)
            self.transaction.abort(error)
            with suppress(Exception):
                self._active.restore_caches()

    def leave_open(self, why: str) -> None:
        """Roll it back because something has ended that it needs; errors are logged: no call of the user asked for it.

        Parameters
        ----------
        why : str
            What has ended, as a part of a sentence.
        """
        if self.transaction.is_inherited or not self._is_open:
            return
        try:
            active.abandon(self._active)
            self._roll_back()
            if self.state is TransactionState.ROLLED_BACK:  # It may have been committed just before.
                log.warning("Transaction %s was rolled back: %s without a COMMIT or ROLLBACK.", self.id, why)
        except Exception:
            log.warning("Transaction %s could not be rolled back when %s.", self.id, why, exc_info=True)


_open: dict[str, OpenTransaction] = {}
_owner: ContextVar[_Owner | None] = ContextVar("twophase.owner", default=None)


class _Abandoned:
    """Rolls transactions back whose contexts have ended, on a thread of its own.

    That a context has ended is noticed when it is removed from memory, on any thread and at any instruction: nothing
    else can be done there than to put something into this kind of queue.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread at the first transaction, and again in a forked child."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="twophase-abandoned", daemon=True)
                self._thread.start()
                atexit.unregister(_at_exit)
                atexit.register(_at_exit)

    def put(self, transaction_id: str) -> None:
        self._queue.put(transaction_id)

    def _run(self) -> None:
        while True:
            begun = _open.get(self._queue.get())
            if begun is not None:
                begun.leave_open("the thread or task that had begun it has ended")
            del begun  # It holds its session.


_abandoned = _Abandoned()


def _at_exit() -> None:
    leave_all_open(lambda _: True, "the interpreter has ended")


def leave_all_open(is_affected: Callable[[AttachedSession], bool], why: str) -> None:
    """Roll back the transactions that were begun in some sessions and have not ended.

    Parameters
    ----------
    is_affected : callable
        Whether a session is one of these.
    why : str
        What has ended, as a part of a sentence.
    """
    for begun in list(_open.values()):
        if is_affected(begun.session):
            begun.leave_open(why)


def begun_here(session: AttachedSession, statement: str) -> OpenTransaction:
    """The transaction that a statement of the running code ends or changes.

    Parameters
    ----------
    session : AttachedSession
    statement : str
        The statement's words, for the error.

    Raises
    ------
    TransactionStatementError
        There is none, or it is a ``with`` block.
    TransactionAborted
        It belongs to another session.
    """
    around = active.to_join(session)
    if around is None:
        raise TransactionStatementError(
            f"{statement} without a transaction: none is open here. Nothing was changed.",
            hint="Begin one with BEGIN TRANSACTION.",
        )
    begun = _open.get(around.transaction.id)
    if begun is None:
        raise TransactionStatementError(
            f"{statement} inside a block that ends by itself: transaction {around.transaction.id} is published at the "
            "end of its `with`, script or function, and rolled back by an exception. Nothing was changed.",
            transaction_id=around.transaction.id,
            hint="Say it in transactions that were begun with BEGIN TRANSACTION.",
        )
    return begun


def open_here(session: AttachedSession) -> OpenTransaction | None:
    """The transaction from BEGIN in which the running code is, if any."""
    around = active.current(session)
    return None if around is None else _open.get(around.transaction.id)


def _is_in_notebook() -> bool:
    """Whether this is IPython: its kernel runs each cell as a task."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return shell is not None and shell() is not None

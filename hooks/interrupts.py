"""Deferral of Ctrl-C and SIGTERM while something is being published or rolled back."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from twophase.protocol.states import TransactionState
from twophase.timeline.reservations import interrupted_by
from twophase.transactions.transaction import Transaction


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM until the block ends, then deliver them.

    A signal must not interrupt a publish: it arrives before the publish begins or after it has completed. Only Python's
    main thread receives signals; on other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: set[int] = set()
    on_interrupt, on_terminate = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        for number, handler in ((signal.SIGINT, on_interrupt), (signal.SIGTERM, on_terminate)):
            if handler is not signal.SIG_IGN:  # As Ctrl-C in a job that a shell has started in the background.
                signal.signal(number, of_this_process(lambda signum, _frame: held.add(signum), handler))
        with interrupted_by(lambda: bool(held)):  # While it waits for other transactions, nothing has begun.
            yield
    finally:
        # Also if the block failed: a swallowed SIGTERM would leave the process running. SIGTERM is delivered before
        # Ctrl-C, which raises, and which is redundant if the SIGTERM has raised.
        try:
            restore_handler(signal.SIGTERM, on_terminate)
            if signal.SIGTERM in held:
                signal.raise_signal(signal.SIGTERM)
        finally:
            restore_handler(signal.SIGINT, on_interrupt)
        if signal.SIGINT in held:
            signal.raise_signal(signal.SIGINT)


def of_this_process(
    handler: Callable[[int, FrameType | None], Any], previous: Any
) -> Callable[[int, FrameType | None], None]:
    """Return a signal handler with which a forked child, which inherits it, restores the previous one instead.

    Parameters
    ----------
    handler : callable
        What this process does with the signal.
    previous : Any
        From ``signal.getsignal``.
    """
    process = os.getpid()

    def handle(signum: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            handler(signum, frame)
        else:
            restore_handler(signum, previous)
            signal.raise_signal(signum)

    return handle


def restore_handler(number: int, handler: Any) -> None:
    """Restore the handler of a signal.

    Parameters
    ----------
    number : int
    handler : Any
        From ``signal.getsignal``. A handler that was not installed from Python (None) cannot be restored; the default
        handler is used instead.
    """
    signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def carried_through(transaction: Transaction, cause: BaseException | None = None) -> Iterator[None]:
    """Hold back signals while a transaction ends; an exception that one of them raises afterwards notes the outcome.

    Parameters
    ----------
    transaction : Transaction
        The transaction that the block publishes or rolls back.
    cause : BaseException, optional
        Why it is rolled back; the caller still raises it.
    """
    try:
        # Hooks are called afterwards: one that hangs can be interrupted.
        with transaction.reporting(cause), deferred_interrupts():
            yield
    except BaseException as error:
        if not isinstance(error, Exception):
            note_outcome(error, transaction)
        raise


def note_outcome(interrupt: BaseException, transaction: Transaction) -> None:
    """Add the outcome of a transaction to an interrupt, as a note; nothing if the transaction continues.

    Parameters
    ----------
    interrupt : BaseException
        The exception that the user gets.
    transaction : Transaction
    """
    tables = ", ".join(f"{p.catalog.name}.{p.path}" for p in transaction.participants)
    known = {
        TransactionState.COMPLETED: f"{tables} had been published before this, in transaction {transaction.id}.",
        TransactionState.ROLLED_BACK: f"Transaction {transaction.id} had been rolled back before this.",
        TransactionState.IN_DOUBT: f"It is not known whether transaction {transaction.id} was published.",
    }
    if tables and transaction.state in known:
        interrupt.add_note(known[transaction.state])

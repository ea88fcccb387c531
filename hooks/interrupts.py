"""Ctrl-C and SIGTERM wait while something is being published or rolled back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from twophase.reservations import interrupted_by
from twophase.states import TransactionState
from twophase.transactions import Transaction


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM until the block ends, then deliver them.

    A half-made publish is what this project exists to prevent, so that a signal must find it done or not begun. Only
    Python's main thread receives signals; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: set[int] = set()
    on_interrupt, on_terminate = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda signum, _frame: held.add(signum))
        with interrupted_by(lambda: bool(held)):  # Nothing is begun while it waits for others.
            yield
    finally:
        # Also when the block failed: a SIGTERM that is swallowed would leave the process running. It comes before a
        # Ctrl-C, which throws, and which has nothing to add where the SIGTERM has thrown.
        try:
            restore_handler(signal.SIGTERM, on_terminate)
            if signal.SIGTERM in held:
                signal.raise_signal(signal.SIGTERM)
        finally:
            restore_handler(signal.SIGINT, on_interrupt)
        if signal.SIGINT in held:
            signal.raise_signal(signal.SIGINT)


def restore_handler(number: int, handler: Any) -> None:
    """Put a signal's handler back.

    Parameters
    ----------
    number : int
    handler : Any
        From ``signal.getsignal``. One that was not installed from Python (None) cannot be put back; the default is the
        nearest.
    """
    signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def carried_through(transaction: Transaction) -> Iterator[None]:
    """Hold signals back while a transaction ends; what one of them raises afterwards tells how it ended.

    Parameters
    ----------
    transaction : Transaction
        That the block publishes or rolls back.
    """
    try:
        with deferred_interrupts():
            yield
    except BaseException as error:
        if not isinstance(error, Exception):
            tell_outcome(error, transaction)
        raise


def tell_outcome(interrupt: BaseException, transaction: Transaction) -> None:
    """Note with an interrupt what has become of a transaction; nothing of one that goes on.

    Parameters
    ----------
    interrupt : BaseException
        What the user gets.
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

"""Ctrl-C and SIGTERM cancel the jobs of a running statement, which is rolled back before the signal takes effect.

PySpark's own Ctrl-C handler calls the JVM from inside the interrupted call, on the same socket: the call fails with
``reentrant call``, the job keeps running, and its statement would commit after the user has cancelled it. So a signal
here only *requests* cancellation, from a thread of its own; the interrupted call ends with Spark's own cancellation
error, the statement aborts, and then the signal is delivered to its previous handler.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from twophase.hooks.interrupts import note_outcome, of_this_process, restore_handler
from twophase.hooks.statement import Statement, live_statements, statements_begun
from twophase.redaction import logger
from twophase.spark.execution.listener import CANCEL_INTERVAL, JobTracker

log = logger("twophase.spark")

#: Seconds that SIGTERM waits for statements to roll back; recovery completes the rest.
GRACE_SECONDS = 30.0
_GLANCE = 0.02

#: Set while a SIGTERM waits for the rollback.
_terminating = threading.Event()


def cancel_statements(
    tracker: JobTracker, reason: str, until: Callable[[], bool], *, limit: float | None = None
) -> None:
    """Cancel the jobs of all statements that are writing, repeatedly until ``until()`` or the limit.

    It is repeated because a statement may be between two of its jobs, or before its first.

    Parameters
    ----------
    tracker : JobTracker
    reason : str
        The reason shown to hooks as ``job.cancel_reason``.
    until : callable
        Returns whether to stop.
    limit : float, optional
        Seconds.
    """
    gate = threading.Event()
    rounds = int(limit / CANCEL_INTERVAL) if limit else None
    while not until() and rounds != 0:
        tracker.cancel_all(tracker.feed.statements(), reason)
        gate.wait(CANCEL_INTERVAL)
        rounds = None if rounds is None else rounds - 1


@contextmanager
def interruptible(tracker: JobTracker) -> Iterator[None]:
    """Run a call that executes a statement in the JVM: Ctrl-C cancels it and is delivered when it has ended.

    The raised error carries a note on the statement's outcome: one that is being published cannot be cancelled. A
    second Ctrl-C is delivered immediately. Only Python's main thread receives signals; in other threads this does
    nothing, nor if Ctrl-C is ignored, or handled outside Python.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous in (None, signal.SIG_IGN):
        yield
        return
    ended = threading.Event()
    asked = threading.Event()

    def ask(signum: int, frame: FrameType | None) -> None:
        if asked.is_set():
            restore_handler(signal.SIGINT, previous)
            signal.raise_signal(signum)
            return
        asked.set()
        threading.Thread(
            target=cancel_statements,
            args=(tracker, "interrupted (Ctrl-C)", ended.is_set),
            name="twophase-cancel",
            daemon=True,
        ).start()

    def end(error: BaseException | None, begun: list[Statement]) -> None:
        ended.set()
        restore_handler(signal.SIGINT, previous)
        _await_termination()
        if asked.is_set():
            _deliver(signal.SIGINT, error, begun)

    with statements_begun() as begun:
        signal.signal(signal.SIGINT, of_this_process(ask, previous))
        try:
            yield
        except BaseException as error:
            end(error, begun)
            raise
        end(None, begun)


def _await_termination() -> None:
    """Let a SIGTERM that waited for the statement arrive before the job continues, or fails because of it."""
    deadline = time.monotonic() + GRACE_SECONDS
    while _terminating.is_set() and time.monotonic() < deadline:
        time.sleep(_GLANCE)  # its handler runs here


def _deliver(signum: int, error: BaseException | None, begun: list[Statement]) -> None:
    """Deliver a held-back Ctrl-C, with the statement's own cancellation error as its cause."""
    try:
        signal.raise_signal(signum)
    except BaseException as interrupt:
        for transaction in dict.fromkeys(statement.transaction for statement in begun):
            note_outcome(interrupt, transaction)
        raise interrupt from error


class Terminator:
    """SIGTERM handler: cancel the running statements, wait for their rollback, then call the previous handler.

    If that returns, the process continues, and the next SIGTERM is handled alike.
    """

    def __init__(self, tracker: JobTracker) -> None:
        self._tracker = tracker
        self._previous: Any = None
        self._installed = False
        self._asked = False
        self._ready = False
        self._reported = False

    def install(self) -> None:
        """Install the SIGTERM handler. Outside the main thread, where Python forbids it, log that once. Idempotent."""
        if self._installed:
            return
        if threading.current_thread() is not threading.main_thread():
            self._report_once()
            return
        previous = signal.getsignal(signal.SIGTERM)
        if previous is None or previous is signal.SIG_IGN:
            return
        self._previous = previous
        signal.signal(signal.SIGTERM, self._handle)
        self._installed = True

    def _report_once(self) -> None:
        if not self._reported:
            self._reported = True
            log.warning(
                "twophase.attach() ran outside the main thread: a SIGTERM will end the process without rolling running "
                "statements back; that is left to recovery. Call it in the main thread, too, to have them rolled back."
            )

    def uninstall(self) -> None:
        """Restore the previous SIGTERM handler, unless ours was replaced since."""
        if (
            self._installed
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) == self._handle
        ):
            signal.signal(signal.SIGTERM, self._previous)
        self._installed = False
        _terminating.clear()  # A pending SIGTERM would never clear it.

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._ready or not live_statements():
            self._pass_on(signum, frame)
        elif not self._asked:
            self._asked = True
            _terminating.set()
            threading.Thread(target=self._end, args=(signum,), name="twophase-terminate", daemon=True).start()

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        try:
            if callable(self._previous):
                self._previous(signum, frame)
            else:
                restore_handler(signum, self._previous)
                signal.raise_signal(signum)
        finally:
            self._asked = self._ready = False
            _terminating.clear()

    def _end(self, signum: int) -> None:
        """Cancel from a thread of its own: the main thread may be inside a call to the JVM."""
        running = live_statements()
        log.warning("SIGTERM: cancelling %d statement(s) and rolling back before it takes effect.", len(running))
        reason = "the process was asked to end (SIGTERM)"
        cancel_statements(self._tracker, reason, lambda: _all_done(running), limit=GRACE_SECONDS)
        self._ready = True
        os.kill(os.getpid(), signum)


def _all_done(statements: list[Statement]) -> bool:
    return all(statement.done.is_set() for statement in statements)

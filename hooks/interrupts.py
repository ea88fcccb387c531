"""Ctrl-C and SIGTERM wait while something is being published or rolled back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM until the block ends, then deliver them.

    A half-made publish is what this project exists to prevent, so that a signal must find it done or not begun. Only
    Python's main thread receives signals; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    previous: dict[signal.Signals, Any] = {}
    for number in _SIGNALS:
        previous[number] = signal.signal(number, lambda signum, _frame: received.append(signum))
    try:
        yield
    finally:
        for number, handler in previous.items():
            # A handler that was not installed from Python (None) cannot be put back; the default is the nearest.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        # Also when the block failed: a SIGTERM that is swallowed would leave the process running.
        for received_number in received:
            signal.raise_signal(received_number)

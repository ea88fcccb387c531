"""The callbacks that are called with the end of a transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class EndReports:
    """The callbacks of one transaction; each is called once, on the thread that ends it, without holding locks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], BaseException | None]] = []
        self._threads: set[int] = set()

    def add(self, call: Callable[[], BaseException | None]) -> None:
        """Register a callback, which returns an exception to be raised after all have been called, or None."""
        with self._lock:
            self._waiting.append(call)

    @contextmanager
    def after(self, has_ended: Callable[[], bool], cause: BaseException | None) -> Iterator[None]:
        """Call the callbacks after this block, and not within, if the transaction has ended by then."""
        thread = threading.get_ident()
        if thread in self._threads:
            yield
            return
        self._threads.add(thread)
        try:
            yield
        except BaseException as error:
            self._threads.discard(thread)
            _note(error, self._report(has_ended))
            raise
        self._threads.discard(thread)
        end = self._report(has_ended)
        if cause is not None:
            _note(cause, end)
        elif end is not None:
            raise end

    def _report(self, has_ended: Callable[[], bool]) -> BaseException | None:
        """Call them if the transaction has ended, and return the first exception that they return."""
        if not has_ended():
            return None
        with self._lock:
            waiting, self._waiting = self._waiting, []
        wanted = [call() for call in waiting]
        return next((end for end in wanted if end is not None), None)


def _note(error: BaseException, end: BaseException | None) -> None:
    if end is not None and end is not error:
        error.add_note(f"A hook that was called for this raised {end!r}.")

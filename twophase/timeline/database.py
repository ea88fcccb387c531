"""The timeline's database: its connections, and how its operations are run, retried and reported."""

from __future__ import annotations

import os
import shlex
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import sqlalchemy as sa
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from twophase.errors import TimelineError, TwoPhaseError
from twophase.timeline import engines
from twophase.timeline.tables import ensure_tables

_T = TypeVar("_T")

_PLACE = "Check spark.twophase.timeline, and that its place can be written and is not full."
_LOCKED = {
    "sqlite": "End that process: `fuser -v FILE` shows those that have the file open. The URL's timeout says how many "
    "seconds to wait: sqlite:////directory/timeline.db?timeout=60",
    "postgresql": "End its session: SELECT pid, application_name, query FROM pg_stat_activity WHERE state <> 'idle' "
    "shows them, and pg_terminate_backend(pid) ends one.",
}


class TimelineDatabase:
    """The database in which a timeline is stored; see :class:`~twophase.timeline.timeline.Timeline`."""

    def __init__(self, url: str, *, create: bool = True, password: str | None = None) -> None:
        self._engine = engines.create(url, create=create, password=password)
        self._longest_wait = engines.longest_wait(self._engine.url)
        #: The URL with hidden secrets, for messages.
        self.display_url: str = engines.shown(engines.parsed(url))
        #: The option by which a suggested command finds this timeline; empty if the URL contains a secret.
        is_open = not engines.holds_secret(url)
        self.option: str = f" --timeline {shlex.quote(self.display_url)}" if is_open else ""
        self._pid = os.getpid()
        self._finalizer = self._release_at_the_end()
        try:
            with self._translated("open"):
                self._retrying(lambda: self._transact(lambda connection: ensure_tables(connection, create=create)))
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.display_url}>"

    def _release_at_the_end(self) -> weakref.finalize[..., TimelineDatabase]:
        """Release the connections at the end: Python 3.13 warns about unclosed connections."""
        return weakref.finalize(self, engines.release, self._engine, self._pid)

    def close(self) -> None:
        """Release the connections. Idempotent."""
        engines.release(self._engine, self._pid)

    @property
    def is_remote(self) -> bool:
        """Whether it is stored on a server, which may become unreachable."""
        return self._engine.dialect.name != "sqlite"

    def drop_connections(self) -> None:
        """Make the next requests open new connections; connections in use are not touched."""
        self._engine.dispose()

    def is_in(self, database: sa.URL | None) -> bool:
        """Return whether the timeline is in a given database, so that one database transaction can write both."""
        return database is not None and engines.same_database(self._engine.url, database)

    def is_same(self, other: TimelineDatabase) -> bool:
        """Return whether another one is in the same database."""
        return engines.same_database(self._engine.url, other._engine.url)

    def _read(self, operation: Callable[[sa.Connection], _T]) -> _T:
        with self._translated("read"):
            return self._retrying(lambda: self._transact(operation, read_only=True))

    def _transact(
        self, operation: Callable[[sa.Connection], _T], *, durable: bool = True, read_only: bool = False
    ) -> _T:
        if self._pid != os.getpid():
            # Connections do not survive a fork; they belong to the parent.
            self._engine.dispose(close=False)
            self._pid = os.getpid()
            self._finalizer.detach()
            self._finalizer = self._release_at_the_end()
        with self._engine.connect() as connection, connection.begin():
            engines.begin(connection, durable=durable, read_only=read_only)
            return operation(connection)

    def _retrying(self, operation: Callable[[], _T]) -> _T:
        """Retry an operation; all writes except a take-over may be repeated: they are conditional, or replace rows."""
        ends = time.monotonic() + self._longest_wait

        def may_succeed(error: BaseException) -> bool:
            return engines.is_transient(error) and time.monotonic() < ends

        try:
            return operation()
        except Exception as error:
            if not may_succeed(error):
                raise
        retrying = Retrying(
            retry=retry_if_exception(may_succeed),
            stop=stop_after_attempt(3),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            reraise=True,
        )
        return retrying(operation)

    @contextmanager
    def _translated(self, verb: str) -> Iterator[None]:
        try:
            yield
        except TimelineError as error:
            raise TimelineError(f"Cannot {verb} the timeline {self.display_url}: {error.message}.") from None
        except TwoPhaseError:
            raise
        except Exception as error:
            raise TimelineError(
                f"Cannot {verb} the timeline {self.display_url}: {engines.reason(error)}.",
                hint=_LOCKED.get(self._engine.dialect.name, _PLACE) if engines.is_locked(error) else _PLACE,
            ) from error

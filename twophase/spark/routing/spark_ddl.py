"""Spark's own statements that create, alter, drop and rename session tables, or change their rows.

They run unchanged, and get a commit number on each timeline of the application. After a DROP or a RENAME, which do not
know where twophase stores files, the table's catalog is notified, so that the files beside the table match again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from twophase.catalog import Catalog, SupportsExternalChanges
from twophase.errors import CatalogError, ConfigurationError, TimelineError
from twophase.model import ObjectPath, Purpose
from twophase.redaction import logger
from twophase.spark import schema_versions
from twophase.spark.attached import AttachedSession
from twophase.spark.jvm.table_events import CatalogCall
from twophase.spark.routing.targets import session_catalog
from twophase.timeline.timeline import Timeline
from twophase.transactions.immediate import Announced, Before, TableChange

log = logger("twophase.spark")

#: Seconds before the first look whether Spark is still making a change, and at most between two.
_FIRST_PAUSE, _PAUSE = 0.01, 0.2


def rows_change(session: AttachedSession, catalog: Catalog, path: ObjectPath) -> None:
    """Record that Spark itself is about to change the rows of a session table, of which no former state is kept.

    Recorded before it happens, also if it then fails: who reads an earlier snapshot is refused, and sees nothing of it.
    """
    change = TableChange(catalog, path, Purpose.INSERT_OVERWRITE, known=Before(exists=True))
    with _reporting(f"changes rows of {path}"):
        Announced(session.coordinator, [change]).settle()


class TableFollower:
    """Follows the session tables that are changed outside twophase, in any session.

    Called while Spark holds the lock of a session catalog: it takes no lock of ours that a thread holds while it calls
    Spark. Failures are logged, since the statement's own outcome counts.

    Parameters
    ----------
    sessions : sequence of AttachedSession
        The attached sessions of the application; the caller's own list, which it keeps up to date.
    """

    def __init__(self, sessions: Sequence[AttachedSession]) -> None:
        self._sessions = sessions
        #: What Spark is changing.
        self._announced: dict[CatalogCall, list[Announced]] = {}
        self._lock = threading.Lock()

    # -- before a change ---------------------------------------------------------------------------------------------

    def altering(self, call: CatalogCall, database: str, name: str) -> None:
        """Announce that the columns of a table change."""
        path = ObjectPath.of(database, name)

        def changes(catalog: Catalog) -> list[TableChange]:
            is_table = catalog.table_version(path) is not None
            return [schema_versions.alteration(catalog, path)] if is_table else []

        self._announce(call, f"alters {path}", changes)

    def creating(self, call: CatalogCall, database: str, name: str) -> None:
        """Announce that a table is created; one that exists stays as it is, by IF NOT EXISTS or an error."""
        path = ObjectPath.of(database, name)

        def changes(catalog: Catalog) -> list[TableChange]:
            change = schema_versions.creating(catalog, path)
            before = change.before()
            return [] if before.exists else [replace(change, known=before)]

        self._announce(call, f"creates {path}", changes)

    def dropping(self, call: CatalogCall, database: str, name: str) -> None:
        """Announce that a table is dropped."""
        path = ObjectPath.of(database, name)

        def changes(catalog: Catalog) -> list[TableChange]:
            return [_leaving(catalog, path)] if call.is_table(database, name) else []

        self._announce(call, f"drops {path}", changes)

    def renaming(self, call: CatalogCall, database: str, name: str, new_name: str) -> None:
        """Announce that a table is renamed: by neither name is it the one that was there before."""
        path, new_path = ObjectPath.of(database, name), ObjectPath.of(database, new_name)

        def changes(catalog: Catalog) -> list[TableChange]:
            if not call.is_table(database, name):
                return []
            return [_leaving(catalog, path), schema_versions.creating(catalog, new_path)]

        self._announce(call, f"renames {path}", changes)

    def dropping_database(self, call: CatalogCall, database: str) -> None:
        """Announce that all tables of a database are dropped: without CASCADE there are none, or it is an error."""

        def changes(catalog: Catalog) -> list[TableChange]:
            try:
                return schema_versions.dropping_all(catalog, database)
            except CatalogError:  # There is no such database.
                return []

        self._announce(call, f"drops all tables of {database}", changes)

    def _announce(self, call: CatalogCall, what: str, changes: Callable[[Catalog], list[TableChange]]) -> None:
        """Announce changes, and watch the call: Spark reports none that fails.

        Each event before a change comes here, also if nothing is to be announced: the event after it would end what a
        call of the same thread, which has failed, has announced.
        """
        self._end_failed(call, self._announced.get(call))
        announced: list[Announced] = []
        try:
            self._record(what, changes, announced)
        finally:
            if announced:
                with self._lock:
                    self._announced[call] = announced
                watch = threading.Thread(
                    target=self._watch, args=(call, announced), name="twophase-change-watch", daemon=True
                )
                watch.start()

    def _record(self, what: str, changes: Callable[[Catalog], list[TableChange]], announced: list[Announced]) -> None:
        """Record changes that are about to be made, once on each timeline."""
        timelines: list[Timeline] = []
        asked: list[tuple[AttachedSession, Catalog, Future[int]]] = []
        # All timelines are asked at the same time, so that Spark waits only once for those that do not answer.
        with ThreadPoolExecutor(thread_name_prefix="twophase-change") as pool:
            for session, catalog in self._owners():
                with _reporting(what):
                    timeline = session.coordinator.timeline
                    if not any(map(timeline.is_same, timelines)):
                        timelines.append(timeline)
                        asked.append((session, catalog, pool.submit(timeline.last_number)))
        for session, catalog, since in asked:
            with _reporting(what):
                number = since.result()
                if changed := changes(catalog):
                    announced.append(Announced(session.coordinator, changed, number))

    # -- after a change ----------------------------------------------------------------------------------------------

    def altered(self, call: CatalogCall, database: str, name: str) -> None:
        """Record that the columns of a table have changed, and show them to all sessions."""
        self._gone(database, name)
        self._settle(call)

    def created(self, call: CatalogCall, database: str, name: str) -> None:
        """Record that a table was created. A view is none, which Spark does not say before."""
        announced = self._announced.get(call)
        if announced is None or call.is_table(database, name):
            self._settle(call)
        elif self._take(call, announced):
            for one in announced:
                one.revoke()

    def dropped(self, call: CatalogCall, database: str, name: str) -> None:
        """Free the table's location for a plain CREATE TABLE, and record that it was dropped."""
        path = ObjectPath.of(database, name)
        self._gone(database, name)
        try:
            if isinstance(catalog := self._catalog(), SupportsExternalChanges):
                catalog.table_dropped(path)
        except Exception:  # the table is dropped; its leftovers are for `twophase clean`
            log.warning("What dropped table %s leaves could not be tidied up.", path, exc_info=True)
        self._settle(call)

    def renamed(self, call: CatalogCall, database: str, name: str, new_name: str) -> None:
        """Fix the table's location, as Spark assumes that a managed table's files are at the default one; record it."""
        path, new_path = ObjectPath.of(database, name), ObjectPath.of(database, new_name)
        self._gone(database, name)
        try:
            if isinstance(catalog := self._catalog(), SupportsExternalChanges):
                catalog.table_renamed(path, new_path)
        except Exception:  # `twophase doctor` reports it
            log.warning("Table %s, renamed to %s, could not be led back to its files.", path, new_name, exc_info=True)
        self._settle(call)

    def database_dropped(self, call: CatalogCall, _database: str) -> None:
        """Record that all tables of a database were dropped."""
        self._settle(call)

    def _settle(self, call: CatalogCall) -> None:
        announced = self._announced.get(call)
        if announced is not None and self._take(call, announced):
            for one in announced:
                one.settle()

    # -- a change that fails -----------------------------------------------------------------------------------------

    def _watch(self, call: CatalogCall, announced: list[Announced]) -> None:
        """Until the call has ended, so that the table of one that has failed is free for writers immediately."""
        pause = _FIRST_PAUSE
        time.sleep(pause)
        while self._announced.get(call) is announced:
            if not _goes_on(call):
                self._end_failed(call, announced)
                return
            pause = min(2 * pause, _PAUSE)
            time.sleep(pause)

    def _end_failed(self, call: CatalogCall, announced: list[Announced] | None) -> None:
        if announced is not None and self._take(call, announced):
            for one in announced:
                one.failed()

    def _take(self, call: CatalogCall, announced: list[Announced]) -> bool:
        """Whether it is for the caller to end a change."""
        with self._lock:
            is_ours = self._announced.get(call) is announced
            if is_ours:
                del self._announced[call]
            return is_ours

    # -- the sessions ------------------------------------------------------------------------------------------------

    def _gone(self, database: str, name: str) -> None:
        for session in list(self._sessions):
            session.caches.table_gone(database, name)

    def _catalog(self) -> Catalog | None:
        """All sessions share one metastore, so any session's catalog will do."""
        return next((catalog for _, catalog in self._owners()), None)

    def _owners(self) -> Iterator[tuple[AttachedSession, Catalog]]:
        """The sessions, each with its catalog of the session's tables."""
        for session in list(self._sessions):
            if (catalog := session_catalog(session)) is not None:
                yield session, catalog


@contextmanager
def _reporting(what: str) -> Iterator[None]:
    """Let Spark go on where a timeline cannot record its change."""
    try:
        yield
    except (TimelineError, ConfigurationError) as error:
        log.warning(
            "Spark %s, and the timeline cannot record it: blocks that have begun before may see the change, "
            "and rows of theirs may go into what it leaves. %s",
            what,
            error,
        )


def _goes_on(call: CatalogCall) -> bool:
    try:
        return call.goes_on()
    except Exception:  # The JVM is gone.
        log.debug("Whether a table is still being changed cannot be known", exc_info=True)
        return False


def _leaving(catalog: Catalog, path: ObjectPath) -> TableChange:
    """The change of a table, which is there, that loses its name."""
    return replace(schema_versions.dropping(catalog, path), known=Before(exists=True))

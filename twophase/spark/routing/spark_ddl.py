"""Spark's own statements that alter, drop and rename session tables.

They run unchanged. An ALTER of columns gets a commit number; after a DROP or a RENAME, which do not know where twophase
stores files, the table's catalog is notified, so that the files beside the table match again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from twophase.catalog import Catalog, SupportsExternalChanges
from twophase.errors import TimelineError
from twophase.model import ObjectPath
from twophase.redaction import logger
from twophase.spark import schema_versions
from twophase.spark.attached import AttachedSession
from twophase.spark.jvm.table_events import AlterCall
from twophase.spark.routing.targets import Targets
from twophase.transactions.immediate import Announced

log = logger("twophase.spark")

#: Seconds between two looks whether Spark is still altering a table.
_PAUSE = 0.2


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
        #: What Spark is altering.
        self._altered: dict[AlterCall, Announced] = {}
        self._lock = threading.Lock()

    # -- before and after a change -----------------------------------------------------------------------------------

    def altering(self, database: str, name: str, call: AlterCall) -> None:
        """Announce that the columns of a table change, and watch the call: Spark reports no change that fails."""
        path = ObjectPath.of(database, name)
        self._end_failed(call, self._altered.get(call))
        for session, catalog in self._owner():
            if catalog.table_version(path) is not None:
                change = schema_versions.altering_by_spark(catalog, path)
                try:
                    announced = Announced(session.coordinator, [change])
                except TimelineError as error:
                    log.warning(
                        "Spark alters %s, and the timeline cannot record it: blocks that have begun before may see the "
                        "new columns, and rows of theirs may go into them. %s",
                        path,
                        error,
                    )
                    return
                with self._lock:
                    self._altered[call] = announced
                threading.Thread(
                    target=self._watch, args=(call, announced), name="twophase-alter-watch", daemon=True
                ).start()

    def altered(self, database: str, name: str, call: AlterCall) -> None:
        """Record that the columns of a table have changed, and show them to all sessions."""
        self._gone(database, name)
        announced = self._altered.get(call)
        if announced is not None and self._take(call, announced):
            announced.settle()

    def _watch(self, call: AlterCall, announced: Announced) -> None:
        """Until the call has ended, so that the table of one that has failed is free for writers at once."""
        time.sleep(_PAUSE)
        while self._altered.get(call) is announced:
            if not _goes_on(call):
                self._end_failed(call, announced)
                return
            time.sleep(_PAUSE)

    def _end_failed(self, call: AlterCall, announced: Announced | None) -> None:
        if announced is not None and self._take(call, announced):
            announced.failed()

    def _take(self, call: AlterCall, announced: Announced) -> bool:
        """Whether it is for the caller to end a change."""
        with self._lock:
            is_ours = self._altered.get(call) is announced
            if is_ours:
                del self._altered[call]
            return is_ours

    def dropped(self, database: str, name: str) -> None:
        """Free the table's location for a plain CREATE TABLE."""
        path = ObjectPath.of(database, name)
        self._gone(database, name)
        try:
            if isinstance(catalog := self._catalog(), SupportsExternalChanges):
                catalog.table_dropped(path)
        except Exception:  # the table is dropped; its leftovers are for `twophase clean`
            log.warning("What dropped table %s leaves could not be tidied up.", path, exc_info=True)

    def renamed(self, database: str, name: str, new_name: str) -> None:
        """Fix the table's location: Spark's own rename assumes that a managed table's files are at the default one."""
        path, new_path = ObjectPath.of(database, name), ObjectPath.of(database, new_name)
        self._gone(database, name)
        try:
            if isinstance(catalog := self._catalog(), SupportsExternalChanges):
                catalog.table_renamed(path, new_path)
        except Exception:  # `twophase doctor` reports it
            log.warning("Table %s, renamed to %s, could not be led back to its files.", path, new_name, exc_info=True)

    def _gone(self, database: str, name: str) -> None:
        for session in list(self._sessions):
            session.caches.table_gone(database, name)

    def _catalog(self) -> Catalog | None:
        return next((catalog for _, catalog in self._owner()), None)

    def _owner(self) -> Iterator[tuple[AttachedSession, Catalog]]:
        """The catalog of the session's tables: all sessions share one metastore, so any session's catalog will do."""
        for session in list(self._sessions):
            if (catalog := Targets(session).session_catalog) is not None:
                yield session, catalog
                return


def _goes_on(call: AlterCall) -> bool:
    try:
        return call.goes_on()
    except Exception:  # The JVM is gone.
        log.debug("Whether a table is still being altered cannot be known", exc_info=True)
        return False

"""Resources shared by all attached sessions of a process: listeners, signal handling, Py4J's result function."""

from __future__ import annotations

from collections.abc import Callable

from twophase.redaction import logger
from twophase.spark import errors
from twophase.spark.attached import AttachedSession
from twophase.spark.execution.cancellation import Terminator
from twophase.spark.execution.listener import JobTracker
from twophase.spark.jvm import callbacks
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.table_events import KINDS, TableListener
from twophase.spark.routing.spark_ddl import TableFollower

log = logger("twophase.spark")


class _Application:
    """The shared resources of one Spark application."""

    def __init__(self, jvm: Jvm) -> None:
        self.context = jvm.spark.sparkContext
        self.sessions: list[AttachedSession] = []
        self.tracker = JobTracker(jvm)
        self.terminator = Terminator(self.tracker)
        self.terminator.install()
        self._tables: TableListener | None = None

    def join(self, session: AttachedSession) -> None:
        """Add a session. With the first catalog for session tables, Spark's changes of them are followed."""
        if self._tables is None and session.catalogs.session_name is not None:
            follower = TableFollower(self.sessions)
            self._tables = TableListener(session.jvm, {kind: getattr(follower, kind) for kind in KINDS})
        self.sessions.append(session)

    def close(self) -> None:
        if self._tables is not None:
            self._tables.close()
        self.terminator.uninstall()
        self.tracker.close()


_applications: list[_Application] = []


def join(jvm: Jvm, attached: Callable[[JobTracker], AttachedSession]) -> AttachedSession:
    """Let a session join the shared resources of its application, or create them.

    Parameters
    ----------
    jvm : Jvm
        JVM of the session.
    attached : callable
        Creates the attached session, with the tracker of the application's jobs.
    """
    jvm.start_callbacks()
    errors.install()
    application = next((a for a in _applications if a.context is jvm.spark.sparkContext), None)
    if application is None:
        application = _Application(jvm)
        _applications.append(application)
    session = attached(application.tracker)
    application.join(session)
    return session


def watch_signals(session: AttachedSession) -> None:
    """Install the SIGTERM handler if that was impossible before, because another thread attached. Idempotent."""
    for application in [a for a in _applications if session in a.sessions]:
        application.terminator.install()


def release(session: AttachedSession) -> None:
    """Remove a session; with the last one of an application its shared resources are closed. Idempotent."""
    for application in [a for a in _applications if session in a.sessions]:
        application.sessions.remove(session)
        if not application.sessions:
            _applications.remove(application)
            application.close()
    if not _applications:
        errors.uninstall()
        callbacks.restore_exceptions()

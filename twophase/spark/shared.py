"""What all attached sessions of a process share: listener, signal handling, Py4J's result function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twophase.redaction import logger
from twophase.spark import errors
from twophase.spark.cancellation import Terminator
from twophase.spark.jvm import callbacks
from twophase.spark.listener import JobTracker

if TYPE_CHECKING:
    from twophase.spark.session import Handle

log = logger("twophase.spark")


class _Application:
    """The shared things of one Spark application."""

    def __init__(self, handle: Handle) -> None:
        self.context = handle.spark.sparkContext
        self.sessions: list[Handle] = []
        self.tracker = JobTracker(handle.jvm)
        self.terminator = Terminator(self.tracker)
        self.terminator.install()

    def close(self) -> None:
        self.terminator.uninstall()
        self.tracker.close()


_applications: list[_Application] = []


def acquire(handle: Handle) -> JobTracker:
    """Join, or make, what the sessions of this application share."""
    handle.jvm.start_callbacks()
    errors.install()
    application = next((a for a in _applications if a.context is handle.spark.sparkContext), None)
    if application is None:
        application = _Application(handle)
        _applications.append(application)
    application.sessions.append(handle)
    return application.tracker


def watch_signals(handle: Handle) -> None:
    """Take SIGTERM over where that could not be done before, as another thread attached. Idempotent."""
    for application in [a for a in _applications if handle in a.sessions]:
        application.terminator.install()


def release(handle: Handle) -> None:
    """Leave; the last session of an application takes everything away. Idempotent."""
    for application in [a for a in _applications if handle in a.sessions]:
        application.sessions.remove(handle)
        if not application.sessions:
            _applications.remove(application)
            application.close()
    if not _applications:
        errors.uninstall()
        callbacks.restore_exceptions()

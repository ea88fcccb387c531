"""A hook that notes what it is told."""

from __future__ import annotations

import threading

from twophase.hooks import JobStatus, JobStatusHook


class Recorder(JobStatusHook):
    """Notes the events, and wakes whoever waits for a running job.

    Attributes
    ----------
    events : list of str
        ``created`` and how it ended, of each statement.
    fates : list of (str, str)
        ``committed``, ``rolled_back`` or ``in_doubt`` of each statement, and its table.
    jobs : list of JobStatus
        Of each statement.
    errors : list of BaseException
        Of those that failed.
    progress : int
        How often it was told of progress.
    running : threading.Event
        A Spark job of a statement runs.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fates: list[tuple[str, str]] = []
        self.jobs: list[JobStatus] = []
        self.errors: list[BaseException] = []
        self.progress = 0
        self.running = threading.Event()

    def clear(self) -> None:
        """Forget everything."""
        self.events.clear()
        self.fates.clear()
        self.jobs.clear()
        self.errors.clear()
        self.progress = 0
        self.running.clear()

    def on_created(self, job: JobStatus) -> None:
        self.events.append("created")
        self.jobs.append(job)

    def on_finished(self, job: JobStatus) -> None:
        self.events.append("finished")

    def on_failed(self, job: JobStatus, error: BaseException) -> None:
        self.events.append("failed")
        self.errors.append(error)

    def on_canceled(self, job: JobStatus) -> None:
        self.events.append("canceled")

    def on_committed(self, job: JobStatus) -> None:
        self.fates.append(("committed", job.path))

    def on_rolled_back(self, job: JobStatus) -> None:
        self.fates.append(("rolled_back", job.path))

    def on_in_doubt(self, job: JobStatus) -> None:
        self.fates.append(("in_doubt", job.path))

    def on_progress(self, job: JobStatus) -> None:
        self.progress += 1
        if job.job_ids:
            self.running.set()

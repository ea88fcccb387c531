"""The hook interface of FLIP-305, with Spark's progress added."""

from __future__ import annotations

from collections.abc import Iterable

from twophase.errors import ConfigurationError
from twophase.hooks.status import JobStatus


class JobStatusHook:
    """Told what happens to a statement's job. Subclass it and override what is wanted.

    The methods are called on the statement's thread, one after the other. An exception in one is logged and kept in
    ``job.hook_errors``, and stops neither other hooks nor the statement. What is more than an ``Exception``
    (``SystemExit``, ``KeyboardInterrupt``, ``asyncio.CancelledError``) is raised when all hooks have been told:
    in ``on_created`` it fails the statement, which is rolled back; after ``on_finished`` the table stays as it was
    published, and a note says so; after ``on_failed`` and ``on_canceled`` the statement's own error is raised and it is
    a note of that. A hook must not run Spark actions.

    Notes
    -----
    Source of the idea: ``JobStatusHook`` of Flink FLIP-305.
    """

    def on_created(self, job: JobStatus) -> None:
        """The statement was accepted, its staging area exists, and no row is written yet.

        Parameters
        ----------
        job : JobStatus
            What is known of the statement; the same object in each event.
        """

    def on_finished(self, job: JobStatus) -> None:
        """The statement ended well: published, or prepared when it is part of a larger transaction.

        Parameters
        ----------
        job : JobStatus
            Its ``state`` is FINISHED.
        """

    def on_failed(self, job: JobStatus, error: BaseException) -> None:
        """The statement failed and was rolled back (or is in doubt: see the type of ``error``).

        Parameters
        ----------
        job : JobStatus
            Its ``state`` is FAILED.
        error : BaseException
            What failed. The user gets this very object, or, where the statement ran inside Spark (``spark.sql``), the
            one that Spark makes of it.
        """

    def on_canceled(self, job: JobStatus) -> None:
        """The statement was cancelled and was rolled back.

        Parameters
        ----------
        job : JobStatus
            Its ``state`` is CANCELED; ``job.cancel_reason`` says why, and ``job.error`` is what was raised.
        """

    def on_progress(self, job: JobStatus) -> None:
        """Tasks ended. Called on the event thread, best effort; no call begins after the end, one may last beyond it.

        Parameters
        ----------
        job : JobStatus
            Its ``tasks_done`` and ``tasks_total`` moved.
        """


def checked(hooks: Iterable[JobStatusHook]) -> tuple[JobStatusHook, ...]:
    """The hooks, all of them hooks: of others each call would fail, and only the log would say so.

    Raises
    ------
    ConfigurationError
    """
    found = tuple(hooks) if isinstance(hooks, Iterable) else (hooks,)
    if wrong := [hook for hook in found if not isinstance(hook, JobStatusHook)]:
        raise ConfigurationError(
            f"{wrong[0]!r} is no JobStatusHook. Nothing was started.",
            hint="Pass objects of classes that extend twophase.hooks.JobStatusHook: hooks=[Log()].",
        )
    return found

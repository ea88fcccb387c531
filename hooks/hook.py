"""The hook interface of FLIP-305, extended by Spark's progress."""

from __future__ import annotations

from collections.abc import Iterable

from twophase.errors import ConfigurationError
from twophase.hooks.status import JobStatus


class JobStatusHook:
    """Callbacks for the events of a statement's job. Subclass it and override the methods that you need.

    A statement is first *created*; then its job is *finished*, *failed* or *canceled*; finally the statement is
    *committed*, *rolled back* or *in doubt*. If the statement is a transaction of its own, the last two events follow
    each other directly; in a block (``with twophase.transaction(spark)``) the last one follows at the end of the block.
    If the driver crashes, there are no further calls: recovery ends the transaction without hooks.

    The methods are called one after the other on the statement's thread, the last one on the thread that ends its
    transaction, if that is after the statement. An exception in a hook is logged and stored in ``job.hook_errors``, and
    stops neither other hooks nor the statement. A ``BaseException`` that is not an ``Exception`` (``SystemExit``,
    ``KeyboardInterrupt``, ``asyncio.CancelledError``) is raised after all hooks have been called: from ``on_created``
    it fails the statement, which is rolled back; from ``on_finished`` and ``on_committed`` the table remains published,
    and a note says so. If the statement or its block already has an error, that one is raised, with the hook's as a
    note. A hook must not run Spark actions.

    Notes
    -----
    Modelled on ``JobStatusHook`` of Flink FLIP-305, which has the first four methods.
    """

    def on_created(self, job: JobStatus) -> None:
        """Called when the statement was accepted and its staging area exists, before any row is written.

        Parameters
        ----------
        job : JobStatus
            The status of the statement; the same object for each event.
        """

    def on_finished(self, job: JobStatus) -> None:
        """Called when the job succeeded: the statement is published, or only prepared if ``job.in_transaction``.

        Parameters
        ----------
        job : JobStatus
            Its ``state`` is FINISHED.
        """

    def on_failed(self, job: JobStatus, error: BaseException) -> None:
        """Called when the statement failed and was rolled back (or is in doubt: see the type of ``error``).

        Parameters
        ----------
        job : JobStatus
            Its ``state`` is FAILED.
        error : BaseException
            The error. The user gets this same object or, if the statement ran inside Spark (``spark.sql``), the one
            that Spark converts it to.
        """

    def on_canceled(self, job: JobStatus) -> None:
        """Called when the statement was cancelled and rolled back.

        Parameters
        ----------
        job : JobStatus
            Its ``state`` is CANCELED; ``job.cancel_reason`` is the reason, and ``job.error`` the error that was raised.
        """

    def on_committed(self, job: JobStatus) -> None:
        """Called when the statement is published, with its entire transaction, and visible to all readers.

        Parameters
        ----------
        job : JobStatus
            Its ``published`` is True.
        """

    def on_rolled_back(self, job: JobStatus) -> None:
        """Called when nothing of the statement is published, whatever was reported before: it or its block failed.

        Parameters
        ----------
        job : JobStatus
            Its ``published`` is False; ``job.error`` is its own error, or None if the block failed later.
        """

    def on_in_doubt(self, job: JobStatus) -> None:
        """Called when it is unknown whether the statement is published: ``twophase recover`` ends its transaction.

        Parameters
        ----------
        job : JobStatus
            Its ``published`` is None.
        """

    def on_progress(self, job: JobStatus) -> None:
        """Called when tasks have ended, on the event thread, best effort.

        No call starts after the end of the statement, but one that is running may outlast it.

        Parameters
        ----------
        job : JobStatus
            Its ``tasks_done`` and ``tasks_total`` have changed.
        """


def checked(hooks: Iterable[JobStatusHook]) -> tuple[JobStatusHook, ...]:
    """Validate the hooks: each call of an invalid one would fail, and only the log would show it.

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

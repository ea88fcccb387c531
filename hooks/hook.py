"""The hook interface of FLIP-305, with Spark's progress added."""

from __future__ import annotations

from twophase.hooks.status import JobStatus


class JobStatusHook:
    """Told what happens to a statement's job. Subclass it and override what is wanted.

    The methods are called on the statement's thread, one after the other; an exception in one is logged and kept in
    ``job.hook_errors`` and stops neither other hooks nor the statement. A hook must not run Spark actions.

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
            The very error that the user gets.
        """

    def on_canceled(self, job: JobStatus) -> None:
        """The statement was cancelled and was rolled back.

        Parameters
        ----------
        job : JobStatus
            Its ``state`` is CANCELED; ``job.cancel_reason`` says why.
        """

    def on_progress(self, job: JobStatus) -> None:
        """Tasks ended. Called on the event thread, best effort, never after the end.

        Parameters
        ----------
        job : JobStatus
            Its ``tasks_done`` and ``tasks_total`` moved.
        """

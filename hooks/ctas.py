"""The hook that drives a participant: FLIP-305's ``CtasJobStatusHook``."""

from __future__ import annotations

from twophase.catalog import TwoPhaseCatalogTable
from twophase.hooks.hook import JobStatusHook
from twophase.hooks.status import JobStatus
from twophase.transactions import Transaction


class CtasJobStatusHook(JobStatusHook):
    """Turns the four events of a job into begin, commit and abort.

    ========================== =====================================================================
    event                      effect
    ========================== =====================================================================
    ``on_created``             ``participant.begin()``
    ``on_finished``            with ``autocommit`` the transaction commits; else ``participant.prepare()``
    ``on_failed``/``canceled`` ``participant.abort()``; with ``autocommit`` the transaction aborts
    ========================== =====================================================================

    Unlike a user's hook its errors are the statement's errors, and
    :class:`twophase.hooks.statement.Statement` lets them out.

    Parameters
    ----------
    transaction : Transaction
        The transaction that the participant was staged in.
    participant : TwoPhaseCatalogTable
        From ``transaction.stage(...)``.
    autocommit : bool
        True when the statement is a transaction of its own.

    Notes
    -----
    Source of the idea: ``CtasJobStatusHook`` of Flink FLIP-305.
    """

    def __init__(self, transaction: Transaction, participant: TwoPhaseCatalogTable, *, autocommit: bool = True) -> None:
        self.transaction = transaction
        self.participant = participant
        self.autocommit = autocommit

    def on_created(self, job: JobStatus) -> None:
        """Make the staging area.

        Parameters
        ----------
        job : JobStatus

        Raises
        ------
        CatalogError
            It cannot be made.
        """

        self.transaction.begin_participant(self.participant)

    def on_finished(self, job: JobStatus) -> None:
        """With ``autocommit`` commit the transaction; else prepare the participant, for what comes after it.

        Parameters
        ----------
        job : JobStatus

        Raises
        ------
        TransactionAborted
            It was rolled back.
        TransactionInDoubt
            It could not be learned whether it was published.
        """

        if self.autocommit:
            self.transaction.commit()
        else:
            self.transaction.prepare_participant(self.participant)

    def on_failed(self, job: JobStatus, error: BaseException) -> None:
        """Remove what was staged; with ``autocommit`` end the transaction.

        Parameters
        ----------
        job : JobStatus
        error : BaseException
            The user's; what goes wrong in here is attached to it.
        """

        self._undo(error)

    def on_canceled(self, job: JobStatus) -> None:
        """As :meth:`on_failed`, with ``job.error``: a cancelled statement has an error, too.

        Parameters
        ----------
        job : JobStatus
        """

        self._undo(job.error)

    def _undo(self, error: BaseException | None) -> None:
        if self.autocommit:
            self.transaction.abort(error)
        else:
            self.transaction.discard(self.participant)

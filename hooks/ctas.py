"""The hook that drives a participant: FLIP-305's ``CtasJobStatusHook``."""

from __future__ import annotations

from twophase.catalog import TwoPhaseCatalogTable
from twophase.hooks.hook import JobStatusHook
from twophase.hooks.status import JobStatus
from twophase.transactions.transaction import Transaction


class CtasJobStatusHook(JobStatusHook):
    """A hook that maps the four events of a job to begin, commit and abort.

    ========================== =====================================================================
    event                      effect
    ========================== =====================================================================
    ``on_created``             ``participant.begin()``
    ``on_finished``            with ``autocommit`` the transaction commits; else ``participant.prepare()``
    ``on_failed``/``canceled`` ``participant.abort()``; with ``autocommit`` the transaction aborts
    ========================== =====================================================================

    Unlike those of a user's hook, its errors are the errors of the statement, and
    :class:`twophase.hooks.statement.Statement` raises them.

    Parameters
    ----------
    transaction : Transaction
        The transaction of the participant.
    participant : TwoPhaseCatalogTable
        From ``transaction.stage(...)``.
    autocommit : bool
        True if the statement is a transaction of its own.

    Notes
    -----
    Modelled on ``CtasJobStatusHook`` of Flink FLIP-305.
    """

    def __init__(self, transaction: Transaction, participant: TwoPhaseCatalogTable, *, autocommit: bool = True) -> None:
        self.transaction = transaction
        self.participant = participant
        self.autocommit = autocommit

    def on_created(self, job: JobStatus) -> None:
        """Create the staging area.

        Parameters
        ----------
        job : JobStatus

        Raises
        ------
        CatalogError
            It cannot be created.
        """
        self.transaction.begin_participant(self.participant)

    def on_finished(self, job: JobStatus) -> None:
        """Commit the transaction with ``autocommit``; otherwise prepare the participant for later statements.

        Parameters
        ----------
        job : JobStatus

        Raises
        ------
        TransactionAborted
            It was rolled back.
        TransactionInDoubt
            It is unknown whether it was published.
        """
        if self.autocommit:
            self.transaction.commit()
        else:
            self.transaction.prepare_participant(self.participant)

    def on_failed(self, job: JobStatus, error: BaseException) -> None:
        """Remove the staged data; with ``autocommit``, end the transaction.

        Parameters
        ----------
        job : JobStatus
        error : BaseException
            The user's error; failures in here are attached to it.
        """
        self._undo(error)

    def on_canceled(self, job: JobStatus) -> None:
        """Same as :meth:`on_failed`, with ``job.error``: a cancelled statement also has an error.

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

"""The states of transactions and participants, as they are recorded on the timeline."""

from __future__ import annotations

from enum import Enum


class TransactionState(Enum):
    """The states of a transaction on the timeline."""

    #: It has no participant yet, and is not yet recorded.
    REQUESTED = "REQUESTED"
    INFLIGHT = "INFLIGHT"
    COMMITTING = "COMMITTING"
    COMPLETED = "COMPLETED"
    ROLLED_BACK = "ROLLED_BACK"
    IN_DOUBT = "IN_DOUBT"

    @property
    def is_undecided(self) -> bool:
        """Whether it is before the decision, so that recovery rolls back."""
        return self in (TransactionState.REQUESTED, TransactionState.INFLIGHT)

    @property
    def is_final(self) -> bool:
        """Whether the outcome is known and will not change."""
        return self in (TransactionState.COMPLETED, TransactionState.ROLLED_BACK)


class ParticipantState(Enum):
    """The states of a participant, as known to the coordinator."""

    STAGED = "staged"
    PREPARED = "prepared"
    #: Not to be published (superseded by a later statement, or failed); aborted when the transaction has ended.
    SUPERSEDED = "superseded"
    #: Aborted on its own, inside a larger transaction.
    DISCARDED = "discarded"
    #: Refused by the store after others had been published.
    REFUSED = "refused"
    PUBLISHED = "published"
    ABORTED = "aborted"

    @property
    def takes_part(self) -> bool:
        """Whether the transaction's end is also its own: it was not taken out by a later statement or on its own."""
        return self not in (ParticipantState.SUPERSEDED, ParticipantState.DISCARDED)

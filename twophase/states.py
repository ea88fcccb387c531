"""The states of transactions and participants, as they stand on the timeline."""

from __future__ import annotations

from enum import Enum


class TransactionState(Enum):
    """States on the timeline."""

    #: It has no participant yet, and does not stand there.
    REQUESTED = "REQUESTED"
    INFLIGHT = "INFLIGHT"
    COMMITTING = "COMMITTING"
    COMPLETED = "COMPLETED"
    ROLLED_BACK = "ROLLED_BACK"
    IN_DOUBT = "IN_DOUBT"

    @property
    def is_undecided(self) -> bool:
        """Before the decision: recovery rolls back."""
        return self in (TransactionState.REQUESTED, TransactionState.INFLIGHT)

    @property
    def is_final(self) -> bool:
        """The outcome is known and will not change."""
        return self in (TransactionState.COMPLETED, TransactionState.ROLLED_BACK)


class ParticipantState(Enum):
    """What the coordinator knows of one participant."""

    STAGED = "staged"
    PREPARED = "prepared"
    #: Not to be published (a later statement replaced it, or it failed); aborted when the transaction has ended.
    SUPERSEDED = "superseded"
    #: Aborted on its own, inside a bigger transaction.
    DISCARDED = "discarded"
    #: The store refused it after others had been published.
    REFUSED = "refused"
    PUBLISHED = "published"
    ABORTED = "aborted"

    @property
    def takes_part(self) -> bool:
        """Whether it is published when the transaction commits."""
        return self not in (ParticipantState.SUPERSEDED, ParticipantState.DISCARDED)

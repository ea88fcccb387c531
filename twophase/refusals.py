"""What a transaction says to those whom it refuses."""

from __future__ import annotations

from collections.abc import Sequence

from twophase.driver import Enlisted
from twophase.errors import TransactionAborted, TwoPhaseError, WriteConflictError


def rolled_back(transaction_id: str) -> TransactionAborted:
    """To a statement that comes after the rollback."""
    return TransactionAborted(
        f"Transaction {transaction_id} has ended (ROLLED_BACK): nothing was published.",
        transaction_id=transaction_id,
        hint="Begin a new one.",
    )


def completed(transaction_id: str) -> TwoPhaseError:
    """To a statement that comes after the publish: not aborted, for all before it has happened."""
    return TwoPhaseError(
        f"Transaction {transaction_id} has ended (COMPLETED): what it wrote before is published, and no more "
        "statements can join it.",
        transaction_id=transaction_id,
        hint="Run this one, of which nothing was started, outside of it or in a new one.",
    )


def being_written(member: Enlisted, transaction_id: str) -> WriteConflictError:
    """To a statement that writes or reads a table that another one of the same transaction is writing."""
    return WriteConflictError(
        f"Table {member.name} is being written by another statement of transaction {transaction_id}.",
        path=member.name,
        transaction_id=transaction_id,
        hint="Wait for the thread that runs it, then run this one, of which nothing was started; the transaction goes "
        "on without it.",
    )


def unwritten(member: Enlisted, transaction_id: str) -> TransactionAborted:
    """To a commit that would publish what is not written to its end."""
    if member.failure is not None:
        why, hint = f"writing {member.name} had failed ({member.failure})", ""
    else:
        why = f"a statement that writes {member.name} had not ended"
        hint = (
            "When it ends, it is told so, and what it has written is removed. "
            "Wait for the thread that runs it before the transaction ends. "
        )
    return TransactionAborted(
        f"Transaction {transaction_id} was rolled back, nothing was published: {why}.",
        path=member.name,
        transaction_id=transaction_id,
        hint=f"{hint}Run all its statements again.",
    )


def outlived(member: Enlisted, transaction_id: str, left_behind: Sequence[str]) -> TransactionAborted:
    """To a statement that was still writing when its transaction was rolled back."""
    clean = " Remove what is left behind with: twophase clean" if left_behind else ""
    return TransactionAborted(
        f"Transaction {transaction_id} was rolled back while this statement was writing {member.name}: nothing of "
        "it was published.",
        path=member.name,
        transaction_id=transaction_id,
        left_behind=left_behind,
        hint=f"Wait for the thread of the statement before the transaction ends.{clean}",
    )

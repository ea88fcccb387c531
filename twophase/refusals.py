"""What a transaction says to those whom it refuses, and to whom it cannot tell how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from twophase.driver import Enlisted, left_behind
from twophase.errors import TransactionAborted, TransactionInDoubt, TwoPhaseError, WriteConflictError
from twophase.records import Account, first_line, name_error

if TYPE_CHECKING:
    from twophase.timeline import Timeline


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


def changed_since_read(name: str, transaction_id: str) -> WriteConflictError:
    """To a statement that would replace what another writer has published since its transaction read the table."""
    return WriteConflictError(
        f"Table {name} was not written: transaction {transaction_id} has read it, and another writer has changed it "
        "since.",
        path=name,
        transaction_id=transaction_id,
        hint="Run the transaction again from its first read: it will see the new state.",
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


def outlived(member: Enlisted, transaction_id: str, left: Sequence[str]) -> TransactionAborted:
    """To a statement that was still writing when its transaction was rolled back."""
    clean = " Remove what is left behind with: twophase clean" if left else ""
    return TransactionAborted(
        f"Transaction {transaction_id} was rolled back while this statement was writing {member.name}: nothing of "
        "it was published.",
        path=member.name,
        transaction_id=transaction_id,
        left_behind=left,
        hint=f"Wait for the thread of the statement before the transaction ends.{clean}",
    )


def aborted(
    members: Sequence[Enlisted], transaction_id: str, left: Sequence[str], error: BaseException | None
) -> TransactionAborted:
    """To a commit that ended in a rollback: a store's own refusal where it is one, completed with what is known.

    Parameters
    ----------
    members : sequence of Enlisted
        Those that were to be published.
    transaction_id : str
    left : sequence of str
        What could not be removed.
    error : BaseException or None
        Why.
    """
    if isinstance(error, TransactionAborted):
        error.transaction_id = error.transaction_id or transaction_id
        error.left_behind = error.left_behind or tuple(left)
        return error
    why = "" if error is None else f": {first_line(error)}"
    told = TransactionAborted(
        f"Transaction {transaction_id} was rolled back, nothing was published{why}",
        path=", ".join(member.name for member in members),
        transaction_id=transaction_id,
        left_behind=left,
    )
    told.__cause__ = error
    return told


def in_doubt(
    members: Sequence[Enlisted], transaction_id: str, account: Account, error: BaseException | None, timeline: Timeline
) -> TransactionInDoubt:
    """To all who ask a transaction whose outcome is not known, or that is published in part.

    Parameters
    ----------
    members : sequence of Enlisted
        Those that were to be published.
    transaction_id : str
    account : Account
        What is known of each; where that is nothing, all of them are doubtful.
    error : BaseException or None
        Why.
    timeline : Timeline
        The commands that end it name it.
    """
    everything = tuple(member.name for member in members)
    known = account if account.words() else replace(account, doubtful=everything)
    why = f" ({name_error(error)})" if error else ""
    what = (
        f"Transaction {transaction_id} is published in part and cannot be undone{why}"
        if known.is_in_part
        else f"It is not known whether transaction {transaction_id} was published{why}"
    )
    return TransactionInDoubt(
        f"{what}; nothing was cleaned up. {known}.",
        path=", ".join(known.doubtful or known.missing or everything),
        transaction_id=transaction_id,
        left_behind=[place for member in members for place in left_behind(member)],
        hint=resolving_hint(transaction_id, timeline, known),
    )


def resolving_hint(transaction_id: str, timeline: Timeline, account: Account | None = None) -> str:
    """The commands that end a transaction in doubt; of one whose tables are known, those that carry it through."""
    command = f"twophase recover {transaction_id}"
    if account is not None and account.is_in_part:
        rest = ", ".join((*account.missing, *account.undone))
        return (
            f"Remove what is in the way of {rest}, and carry it through with: {command}{timeline.option} . "
            f"Or end it as it is: {command} --assume committed|rolled-back{timeline.option}"
        )
    return (
        f"Ask the stores again with: {command}{timeline.option} . Where they cannot answer, look yourself and decide: "
        f"{command} --assume committed|rolled-back{timeline.option}"
    )

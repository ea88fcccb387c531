"""The errors of a transaction: refusals, and unknown outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twophase.errors import (
    AtomicityNotSupportedError,
    ConcurrentSchemaEvolutionError,
    ConfigurationError,
    LeaseLostError,
    SnapshotTooOldError,
    TableNotExistError,
    TransactionAborted,
    TransactionInDoubt,
    TwoPhaseError,
    WoundedError,
    WriteConflictError,
)
from twophase.model import ObjectPath, WriteContext
from twophase.timeline.records import Account, TransactionRecord, first_line, name_error
from twophase.transactions.driver import Enlisted, left_behind

if TYPE_CHECKING:
    from twophase.catalog import Change, TwoPhaseCatalogTable
    from twophase.timeline.timeline import Timeline


def rolled_back(transaction_id: str) -> TransactionAborted:
    """The error for a statement after the rollback."""
    return TransactionAborted(
        f"Transaction {transaction_id} has ended (ROLLED_BACK): nothing was published.",
        transaction_id=transaction_id,
        hint="Begin a new one.",
    )


def lost(timeline: Timeline, transaction_id: str, error: LeaseLostError) -> TransactionAborted:
    """The error for a transaction that another process has taken over: if it was wounded, by whom."""
    try:
        record = timeline.transaction(transaction_id)
    except TwoPhaseError:
        return error
    return error if record is None or record.wounded_by is None else wounded(record)


def wounded(record: TransactionRecord) -> WoundedError:
    """The error for a transaction that an older one has rolled back."""
    return WoundedError(
        f"Transaction {record.id} was rolled back by another one: {record.error}.",
        transaction_id=record.id,
        hint=f"Run it again; twophase.run does so by itself. See the other one with: twophase show {record.wounded_by}",
    )


def completed(transaction_id: str) -> TwoPhaseError:
    """The error for a statement after the publish; not an abort, because all earlier statements are published."""
    return TwoPhaseError(
        f"Transaction {transaction_id} has ended (COMPLETED): what it wrote before is published, and no more "
        "statements can join it.",
        transaction_id=transaction_id,
        hint="Run this one, of which nothing was started, outside of it or in a new one.",
    )


def being_written(member: Enlisted, transaction_id: str) -> WriteConflictError:
    """The error for a statement on a table that another statement of the same transaction is writing."""
    return WriteConflictError(
        f"Table {member.name} is being written by another statement of transaction {transaction_id}.",
        path=member.name,
        transaction_id=transaction_id,
        hint="Wait for the thread that runs it, then run this one, of which nothing was started; the transaction goes "
        "on without it.",
    )


def dropped(catalog: str, path: ObjectPath, transaction_id: str) -> TableNotExistError:
    """The error for a statement whose table an earlier one of its transaction drops."""
    return TableNotExistError(
        f"Table {path} does not exist in catalog {catalog}: this transaction drops it.",
        path=path,
        transaction_id=transaction_id,
    )


def dropped_database(catalog: str, database: str, transaction_id: str) -> AtomicityNotSupportedError:
    """The error for a CREATE of a database that an earlier statement of its transaction drops."""
    return AtomicityNotSupportedError(
        f"Database {database} of catalog {catalog} cannot be created in transaction {transaction_id}, which drops it; "
        "nothing was created.",
        path=database,
        transaction_id=transaction_id,
        hint="Create it after the transaction, or drop its tables and keep it.",
    )


def not_renamed(path: ObjectPath, transaction_id: str) -> AtomicityNotSupportedError:
    """The error for a rename of a table that its transaction has written before, or to a name that it has written."""
    return AtomicityNotSupportedError(
        f"The table was not renamed: transaction {transaction_id} has written it before, as {path}. That stays staged.",
        path=path,
        transaction_id=transaction_id,
        hint="Rename the table before the transaction, or after it.",
    )


def not_created(path: ObjectPath, transaction_id: str) -> AtomicityNotSupportedError:
    """The error for a CREATE by a name that another table leaves, if the files would have to move."""
    return AtomicityNotSupportedError(
        f"{path} was not created: transaction {transaction_id} gives the table of this name another one, and "
        "files of a LOCATION, or of the recipe rename, are not published together with names.",
        path=path,
        transaction_id=transaction_id,
        hint="Leave out the LOCATION, or commit before, and create it then.",
    )


def refuse_renamed(
    path: ObjectPath, context: WriteContext | None, is_renamed: Callable[[Mapping[str, Any]], bool]
) -> None:
    """Refuse a statement on one of the two names of a table that its transaction has renamed.

    ``is_renamed`` answers for the document of the transaction's earlier statement on it.
    """
    if context is not None and context.base is not None and is_renamed(context.base):
        raise AtomicityNotSupportedError(
            f"Transaction {context.transaction_id} has renamed a table from or to {path}: this statement cannot be "
            "part of it, and changed nothing.",
            path=path,
            transaction_id=context.transaction_id,
            hint="Commit before, and run it then. To give its name to another table, drop it by that name, instead of "
            "renaming it.",
        )


def rows_before(path: ObjectPath, transaction_id: str) -> AtomicityNotSupportedError:
    """The error for an ALTER TABLE of a table to which its transaction has written rows before."""
    return AtomicityNotSupportedError(
        f"{path} was not altered: transaction {transaction_id} has written rows to it before, by its former "
        "definition. They stay staged.",
        path=path,
        transaction_id=transaction_id,
        hint="Alter the table before the rows are written, or commit them before.",
    )


def secret_property(path: ObjectPath, key: str, transaction_id: str) -> AtomicityNotSupportedError:
    """The error for an ALTER TABLE that sets a property that must not be recorded."""
    return AtomicityNotSupportedError(
        f"{path} was not altered: its property {key} looks like a secret, which no transaction writes down.",
        path=path,
        transaction_id=transaction_id,
        hint="Change it before the transaction.",
    )


def still_writing(member: Enlisted, savepoint: str, transaction_id: str) -> WriteConflictError:
    """The error for a rollback to a savepoint while another thread runs a statement that is younger."""
    return WriteConflictError(
        f"Transaction {transaction_id} was not rolled back to savepoint {savepoint}: a statement that began after it "
        f"is still writing table {member.name}. Nothing was changed.",
        path=member.name,
        transaction_id=transaction_id,
        hint="Wait for the thread that runs it, then roll back.",
    )


def read_only(name: str, transaction_id: str) -> TwoPhaseError:
    """The error for a write in ``twophase.snapshot``."""
    return TwoPhaseError(
        f"Transaction {transaction_id} only reads: {name} was not written.",
        path=name,
        transaction_id=transaction_id,
        hint="Write it in a block of twophase.transaction(spark), whose reads are of one snapshot, too.",
    )


def snapshot_too_old(name: str, why: str) -> SnapshotTooOldError:
    """The error for a read of a table whose state at the beginning of the transaction is no longer available."""
    return SnapshotTooOldError(
        f"Table {name} cannot be read as it was when the transaction began: {why}.",
        path=name,
        hint="Run the transaction again: it will see the new state. twophase.run does so by itself.",
    )


def changed_since_read(name: str, transaction_id: str, changes: Sequence[Change] = ()) -> WriteConflictError:
    """The error for a statement that would replace changes published since its transaction read the table, or began."""
    return WriteConflictError(
        f"Table {name} was not written: {_whose(changes)} has changed it since transaction {transaction_id} has read "
        "it, or began.",
        path=name,
        transaction_id=transaction_id,
        hint="Run the transaction again: it will see the new state. twophase.run does so by itself.",
    )


def rows_read_before(name: str, transaction_id: str | None = None) -> WriteConflictError:
    """The error for rows that were read of a state of their own table that it no longer has."""
    return WriteConflictError(
        f"Table {name} was not written: its new rows were read of a state that it had before another writer changed "
        "it.",
        path=name,
        transaction_id=transaction_id,
        hint="Make the DataFrame anew, and run the statement again: it will see the new state.",
    )


def columns_changed_since(name: str, transaction_id: str, changes: Sequence[Change]) -> WriteConflictError:
    """The error for rows that would go into other columns than those that their transaction sees."""
    return WriteConflictError(
        f"Table {name} was not written: {_whose(changes)} has changed its columns, or made it anew, since transaction "
        f"{transaction_id} began, which sees the former ones.",
        path=name,
        transaction_id=transaction_id,
        hint="Run the transaction again: it will see the new columns. twophase.run does so by itself.",
    )


def moved_since_begin(name: str, transaction_id: str, changes: Sequence[Change] = ()) -> SnapshotTooOldError:
    """The error for a read of a table that has changed since the transaction began, and has no former states."""
    error = snapshot_too_old(name, f"{_whose(changes)} has changed it since, and its former state cannot be read")
    error.transaction_id = transaction_id
    return error


def _whose(changes: Sequence[Change]) -> str:
    return f"transaction {changes[-1].transaction_id}" if changes else "another writer"


def changed_meanwhile(path: ObjectPath, transaction_id: str, why: str) -> WriteConflictError:
    """The error for a conflict with another writer of a table."""
    return WriteConflictError(
        f"{path} was not written: {why}.",
        path=path,
        transaction_id=transaction_id,
        hint="Run the statement again: it will see the new state.",
    )


def columns_changed(path: ObjectPath, transaction_id: str, why: str = "") -> ConcurrentSchemaEvolutionError:
    """The error for rows that were staged for other columns than their table has when they are published."""
    return ConcurrentSchemaEvolutionError(
        f"{path} was not written: its columns were changed meanwhile{why}.",
        path=path,
        transaction_id=transaction_id,
        hint="Look at the table, and run the statement again.",
    )


def staging_gone(path: ObjectPath, transaction_id: str) -> TransactionAborted:
    """The error for a statement whose staged rows an abort or ``clean`` has removed."""
    return TransactionAborted(
        f"What was staged for {path} is gone: the statement was rolled back meanwhile.",
        path=path,
        transaction_id=transaction_id,
    )


def of_another_store(
    participant: TwoPhaseCatalogTable, *, theirs: str, ours: str, where: str, options: str
) -> ConfigurationError:
    """The error for a recovery in a different store than the one in which a participant was staged.

    Parameters
    ----------
    participant : TwoPhaseCatalogTable
    theirs, ours : str
        The identities of the store in which it was staged, and of the one that is open.
    where : str
        The location of the open store, without secrets.
    options : str
        The options of the catalog that determine the store.
    """
    return ConfigurationError(
        f"Transaction {participant.transaction_id} wrote {participant.path} in another store ({theirs}) than that of "
        f"{where} ({ours}). Nothing was touched.",
        path=participant.path,
        transaction_id=participant.transaction_id,
        hint=f"Run it with the {options} that catalog {participant.catalog.name} had in the job.",
    )


def unwritten(member: Enlisted, transaction_id: str) -> TransactionAborted:
    """The error for a commit while a participant is not completely written."""
    if member.failure is not None:
        why, hint = f"writing {member.name} had failed ({member.failure})", ""
    else:
        why = f"a statement that writes {member.name} had not ended"
        hint = (
            "When it ends, an error is raised in it, and what it has written is removed. "
            "Wait for the thread that runs it before the transaction ends. "
        )
    return TransactionAborted(
        f"Transaction {transaction_id} was rolled back, nothing was published: {why}.",
        path=member.name,
        transaction_id=transaction_id,
        hint=f"{hint}Run all its statements again.",
    )


def outlived(member: Enlisted, transaction_id: str, left: Sequence[str]) -> TransactionAborted:
    """The error for a statement that was still writing when its transaction was rolled back."""
    clean = " Remove the leftovers with: twophase clean" if left else ""
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
    """The error for a commit that was rolled back: the store's own refusal, if there is one, with details added.

    Parameters
    ----------
    members : sequence of Enlisted
        The participants that were to be published.
    transaction_id : str
    left : sequence of str
        Leftovers that could not be removed.
    error : BaseException or None
        The cause.
    """
    if isinstance(error, TransactionAborted):
        error.transaction_id = error.transaction_id or transaction_id
        error.left_behind = error.left_behind or tuple(left)
        return error
    why = "" if error is None else f": {first_line(error)}"
    failure = TransactionAborted(
        f"Transaction {transaction_id} was rolled back, nothing was published{why}",
        path=", ".join(member.name for member in members),
        transaction_id=transaction_id,
        left_behind=left,
    )
    failure.__cause__ = error
    return failure


def in_doubt(
    members: Sequence[Enlisted], transaction_id: str, account: Account, error: BaseException | None, timeline: Timeline
) -> TransactionInDoubt:
    """The error for a transaction whose outcome is unknown, or that is partially published.

    Parameters
    ----------
    members : sequence of Enlisted
        The participants that were to be published.
    transaction_id : str
    account : Account
        The known outcomes; if it is empty, all participants are in doubt.
    error : BaseException or None
        The cause.
    timeline : Timeline
        The timeline to be named in the commands that end the transaction.
    """
    everything = tuple(member.name for member in members)
    known = account if account.words() else replace(account, unknown=everything)
    why = f" ({name_error(error)})" if error else ""
    return TransactionInDoubt(
        f"{_doubt(known, transaction_id, why)}. {known}.",
        path=", ".join(known.unfinished or known.in_part or known.unknown or known.not_published or everything),
        transaction_id=transaction_id,
        left_behind=[place for member in members for place in left_behind(member)],
        hint=resolving_hint(transaction_id, timeline, known),
    )


def _doubt(known: Account, transaction_id: str, why: str) -> str:
    if known.unfinished:
        return (
            f"Transaction {transaction_id} is published, but what it drops last could not be dropped{why}: readers see "
            "it, empty, until a recovery has dropped it"
        )
    if known.in_part:
        return (
            f"The publish of transaction {transaction_id} has failed{why}, and its store refuses to undo it: readers "
            "may see a part of it until a recovery has undone it"
        )
    if known.is_divided:
        return f"Transaction {transaction_id} is published in part and cannot be undone{why}; nothing was cleaned up"
    return f"It is not known whether transaction {transaction_id} was published{why}; nothing was cleaned up"


def resolving_hint(transaction_id: str, timeline: Timeline, account: Account | None = None) -> str:
    """The commands that end a transaction in doubt; if the outcomes are known, those that complete it."""
    command = f"twophase recover {transaction_id}"
    if account is not None and account.unfinished:
        return (
            f"Once the store answers again, end it with: {command}{timeline.option} ; do not run it again. "
            "The next twophase.attach of the application ends it by itself."
        )
    if account is not None and account.in_part:
        return (
            f"Once the store answers again, undo it with: {command}{timeline.option} ; run the statement only then. "
            "The next twophase.attach of the application undoes it by itself."
        )
    if account is not None and account.is_divided:
        rest = ", ".join((*account.not_published, *account.undone))
        return (
            f"Remove what is in the way of {rest}, and carry it through with: {command}{timeline.option} . "
            f"Or end it as it is: {command} --assume committed|rolled-back{timeline.option}"
        )
    return (
        f"Ask the stores again with: {command}{timeline.option} . Where they cannot answer, look yourself and decide: "
        f"{command} --assume committed|rolled-back{timeline.option}"
    )

"""The undo of one published transaction: which tables it has changed, and what they were before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twophase.catalog import Catalog, Change, SupportsSnapshots
from twophase.catalog.capabilities import required
from twophase.catalog.reading import ReadSource
from twophase.errors import CatalogError, ConfigurationError, SnapshotTooOldError, TableNotExistError
from twophase.model import ObjectPath, Purpose
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.timeline.records import TransactionRecord
from twophase.timeline.timeline import Timeline
from twophase.transactions.driver import concerning

#: What a statement outside of a transaction has recorded of a table, in words.
_STATEMENTS = {
    Purpose.ALTER_TABLE: "an ALTER TABLE",
    Purpose.CREATE_TABLE_AS: "a CREATE TABLE or RENAME",
    Purpose.DROP_TABLE: "a DROP or RENAME",
}


@dataclass(frozen=True)
class Undo:
    """The actions of an undo.

    Attributes
    ----------
    transaction_id : str
        The transaction that is taken back.
    former : tuple of (Catalog, ObjectPath, ReadSource)
        The tables that were there before it, with the source of their former states.
    dropped : frozenset of (str, ObjectPath)
        Those of them, by catalog, that are not there now.
    created : tuple of (Catalog, ObjectPath)
        The tables that it has created.
    """

    transaction_id: str
    former: tuple[tuple[Catalog, ObjectPath, ReadSource], ...]
    created: tuple[tuple[Catalog, ObjectPath], ...]
    dropped: frozenset[tuple[str, ObjectPath]] = frozenset()


def plan_undo(
    timeline: Timeline,
    resolve: Callable[[str], Catalog],
    transaction_id: str,
    note_read: Callable[[Catalog, ObjectPath, Any], None],
) -> Undo:
    """Find what an undo has to do; nothing is changed.

    Parameters
    ----------
    timeline : Timeline
    resolve : callable
        Returns the catalog of a name.
    transaction_id : str
    note_read : callable
        Notes in the undo's own transaction the version of each table on which it rests.

    Raises
    ------
    ConfigurationError
        There is no such transaction, it has published nothing, or others have changed its tables since.
    AtomicityNotSupportedError
        A catalog has no former states of its tables.
    CatalogError
        A former state is no longer there.
    """
    record = _published(timeline, transaction_id)
    _require_transaction(record)
    former: list[tuple[Catalog, ObjectPath, ReadSource]] = []
    created: list[tuple[Catalog, ObjectPath]] = []
    dropped: set[tuple[str, ObjectPath]] = set()
    for catalog, path, is_left in _tables(record, resolve):
        able = required(
            catalog, SupportsSnapshots, "has no former states of its tables, so nothing can be undone", path
        )
        with concerning(path):
            # First of all: whatever is committed from now on is a conflict.
            version = catalog.table_version(path)
            note_read(catalog, path, version)
            if version is None:
                dropped.add((catalog.name, path))
            changes, later, ends = _changes(timeline, record, catalog, path)
            if changes and not (
                _is_as_left(able, path, [changes[-1], *later], ends) if version is not None else not is_left
            ):
                raise _changed_since(record, catalog, path)
            source = _before(able, record, path, [*changes, *later])
            if source is None:
                created.append((catalog, path))
            else:
                former.append((catalog, path, source))
    return Undo(transaction_id, tuple(former), tuple(created), frozenset(dropped))


def _published(timeline: Timeline, transaction_id: str) -> TransactionRecord:
    record = timeline.transaction(transaction_id)
    if record is None:
        raise ConfigurationError(
            f"There is no transaction {transaction_id} on the timeline {timeline.display_url}; nothing was undone.",
            hint="List them with: twophase timeline",
        )
    if record.state is not TransactionState.COMPLETED or record.number is None:
        raise ConfigurationError(
            f"Transaction {transaction_id} is {record.state.name} and has published nothing that could be undone.",
            transaction_id=transaction_id,
        )
    return record


def _tables(record: TransactionRecord, resolve: Callable[[str], Catalog]) -> list[tuple[Catalog, ObjectPath, bool]]:
    """The tables that a transaction has changed, and whether it has left each of them there."""
    published = [p for p in record.participants if p.state is ParticipantState.PUBLISHED]
    for participant in published:
        if participant.purpose is Purpose.DROP_DATABASE:
            raise _has_dropped(record, f"{participant.catalog}.{participant.path}")
    published = [p for p in published if not p.purpose.of_database]  # A database that it has created stays.
    last: dict[tuple[str, ObjectPath], Purpose] = {}
    for participant in sorted(published, key=lambda p: p.ordinal):
        last[participant.catalog, resolve(participant.catalog).canonical(participant.path)] = participant.purpose
    return [(resolve(catalog), path, not purpose.drops) for (catalog, path), purpose in last.items()]


def _require_transaction(record: TransactionRecord) -> None:
    if record.is_immediate:
        what = ", ".join(f"{_STATEMENTS[p.purpose]} of {p.catalog}.{p.path}" for p in record.participants[:3])
        raise ConfigurationError(
            f"{record.id} cannot be undone: it is {what} outside of a transaction. Nothing was changed.",
            transaction_id=record.id,
            hint="Change the table back by the same kind of statement; or restore a savepoint that was made before it.",
        )


def _has_dropped(record: TransactionRecord, database: str) -> ConfigurationError:
    return ConfigurationError(
        f"Transaction {record.id} cannot be undone: it has dropped database {database}, with the former states of its "
        "tables. Nothing was changed.",
        path=database,
        transaction_id=record.id,
        hint="Create the database, and restore a savepoint that was made before.",
    )


def _changes(
    timeline: Timeline, record: TransactionRecord, catalog: Catalog, path: ObjectPath
) -> tuple[list[Change], list[Change], list[int]]:
    """The changes of a table by a transaction, and the later ones, all of which must have been undone.

    Last, after how many of those the table was as the transaction has left it.
    """
    assert record.number is not None
    later = timeline.changes_since(catalog.name, path, record.number, record.id)
    remaining, ends = _not_undone(timeline, later)
    if any(found.is_immediate for name in remaining if (found := timeline.transaction(name)) is not None):
        raise _changed_since(record, catalog, path)  # That is no transaction that could be undone first.
    if remaining:
        names = ", ".join(remaining[:3])
        raise ConfigurationError(
            f"Transaction {record.id} cannot be undone: transaction {names} has changed table {catalog.name}.{path} "
            "since. Nothing was changed.",
            path=path,
            transaction_id=record.id,
            hint="Undo that first, the last one first; or restore a savepoint that was made before it, or write the "
            "former rows yourself.",
        )
    every = timeline.changes_since(catalog.name, path, record.number - 1, "")
    return [change for change in every if change.transaction_id == record.id], later, ends


def _not_undone(timeline: Timeline, later: list[Change]) -> tuple[list[str], list[int]]:
    """The transactions of some changes, without those that later ones of them take back, and without these.

    And after how many of the changes there were none.
    """
    remaining: list[str] = []
    ends = [0]
    for number, change in enumerate(later, start=1):
        found = timeline.transaction(change.transaction_id)
        if found is not None and remaining and found.undoes == remaining[-1]:
            remaining.pop()
        else:
            remaining.append(change.transaction_id)
        if not remaining:
            ends.append(number)
    return remaining, ends


def _is_as_left(able: SupportsSnapshots, path: ObjectPath, changes: list[Change], ends: list[int]) -> bool:
    """Whether others have changed a table neither after a transaction, nor after any undo that has brought that back.

    What they have changed before a later transaction was undone is in the state that its undo has brought back.
    """
    return all(able.is_as_left(path, changes[end], changes[end + 1 :]) for end in ends)


def _changed_since(record: TransactionRecord, catalog: Catalog, path: ObjectPath) -> ConfigurationError:
    return ConfigurationError(
        f"Transaction {record.id} cannot be undone: table {catalog.name}.{path} is no longer as it has left it, or "
        "that cannot be known. Nothing was changed.",
        path=path,
        transaction_id=record.id,
        hint="If it was altered, renamed, dropped or written since outside a transaction, that would be lost; of some "
        "writes in place, as to an EXTERNAL table, it is not known. Write the former rows yourself.",
    )


def _before(
    able: SupportsSnapshots, record: TransactionRecord, path: ObjectPath, changes: list[Change]
) -> ReadSource | None:
    """The source of a table's state before the transaction; None if that has created the table."""
    try:
        if not changes:
            raise SnapshotTooOldError("the timeline no longer says what it replaced")
        return able.read_source_before(path, changes)
    except TableNotExistError:
        return None
    except SnapshotTooOldError as error:
        raise CatalogError(
            f"Transaction {record.id} cannot be undone: the former state of {able.name}.{path} can no longer be "
            f"read: {error.message} Nothing was changed.",
            path=path,
            transaction_id=record.id,
        ) from error

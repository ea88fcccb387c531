"""The states that tables had when a transaction had been published, as its timeline and their stores still tell."""

from __future__ import annotations

from itertools import takewhile

from twophase.catalog import Change, SupportsSnapshots
from twophase.catalog.reading import ReadSource
from twophase.errors import CatalogError, SnapshotTooOldError
from twophase.model import ObjectPath
from twophase.protocol.states import TransactionState
from twophase.timeline.records import TransactionRecord
from twophase.timeline.timeline import Timeline


def source_after(
    timeline: Timeline, catalog: SupportsSnapshots, path: ObjectPath, record: TransactionRecord
) -> ReadSource:
    """Return the source of a table as it was when a transaction had been published.

    Parameters
    ----------
    timeline : Timeline
    catalog : SupportsSnapshots
    path : ObjectPath
    record : TransactionRecord
        The transaction.

    Raises
    ------
    TableNotExistError
        There was no such table.
    CatalogError
        The transaction has published nothing, or the state of then can no longer be read.
    """
    if record.state is not TransactionState.COMPLETED or record.number is None:
        raise CatalogError(
            f"{path} cannot be read as of transaction {record.id}: {record.state.name}, it has published nothing.",
            path=path,
            transaction_id=record.id,
        )
    try:
        later = _later(timeline, catalog, path, record)
        while True:
            if not later:
                _require_as_left(timeline, catalog, path)
            source = catalog.read_source_before(path, later)
            # Again after the source, which may contain what has been published meanwhile.
            if (now := _later(timeline, catalog, path, record)) == later:
                return source
            later = now
    except SnapshotTooOldError as error:
        raise CatalogError(
            f"{path} can no longer be read as of transaction {record.id}: {error.message}",
            path=path,
            transaction_id=record.id,
            hint="Former states are kept for spark.twophase.retention; a savepoint keeps one for longer.",
        ) from error


def _later(timeline: Timeline, catalog: SupportsSnapshots, path: ObjectPath, record: TransactionRecord) -> list[Change]:
    """The changes of a table after a transaction."""
    assert record.number is not None
    found = timeline.changes_since(catalog.name, catalog.canonical(path), record.number, record.id)
    if not timeline.knows_all_since(record.number):
        raise SnapshotTooOldError("the timeline no longer records all that was published since.")
    return found


def _require_as_left(timeline: Timeline, catalog: SupportsSnapshots, path: ObjectPath) -> None:
    """Refuse a table that was changed outside twophase after its last change on the timeline."""
    changes = timeline.changes_since(catalog.name, catalog.canonical(path), 0, "")
    # A plain ALTER TABLE does not record what it has left: the rows are those of the change before it.
    alters = list(takewhile(lambda change: change.alters, reversed(changes)))[::-1]
    written = changes[: len(changes) - len(alters)]
    if written and not catalog.is_as_left(path, written[-1], alters):
        raise SnapshotTooOldError("it was changed since by a program outside twophase, or that cannot be known.")

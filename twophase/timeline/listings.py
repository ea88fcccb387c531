"""The rows of lists of transactions and of locks, for ``SHOW TRANSACTIONS``, ``SHOW LOCKS`` and the command line.

Each list has its columns in Spark's notation of a schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from twophase.timeline.records import TransactionRecord
from twophase.timeline.savepoints import LAST, SavepointRecord
from twophase.timeline.waits import Lock

Rows = list[tuple[Any, ...]]

TRANSACTIONS = (
    "transaction_id string, state string, level string, began timestamp, user string, application string, "
    "isolation string, tables array<string>, wounded_by string"
)
LOCKS = (
    "table string, mode string, transaction_id string, user string, application string, began timestamp, "
    "waits_since timestamp, waits_for array<string>"
)

SAVEPOINTS = (
    "name string, state string, created timestamp, expires timestamp, user string, commit_number bigint, "
    "databases array<string>, tables array<string>"
)


def savepoint_rows(records: Iterable[SavepointRecord]) -> Rows:
    """The rows of a list of savepoints."""
    return [
        (
            record.name,
            record.state.name,
            _time(record.created),
            _time(None if record.expires is None else min(record.expires, LAST)),
            record.user,
            record.number,
            [f"{catalog}.{database}" for catalog, database in record.databases],
            [table.name for table in record.tables],
        )
        for record in records
    ]


def transaction_rows(records: Iterable[TransactionRecord]) -> Rows:
    """The rows of a list of transactions."""
    return [
        (
            record.id,
            record.state.value,
            None if record.level is None else str(record.level),
            _time(record.created),
            record.user,
            record.application,
            record.isolation,
            [f"{p.purpose.name} {p.name}" for p in record.participants],
            record.wounded_by,
        )
        for record in records
    ]


def lock_rows(locks: Iterable[Lock], records: Mapping[str, TransactionRecord]) -> Rows:
    """The rows of a list of locks, by table, those that are held first.

    Parameters
    ----------
    locks : iterable of Lock
    records : mapping of str to TransactionRecord
        The transactions that are open, by their ids.
    """
    ordered = sorted(locks, key=lambda lock: (lock.name, lock.since or 0.0, lock.age))
    return [
        (
            lock.name,
            lock.words,
            lock.transaction_id,
            *_who(records.get(lock.transaction_id)),
            _time(lock.age[0]),
            _time(lock.since),
            list(lock.waits_for),
        )
        for lock in ordered
    ]


def size_text(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _who(record: TransactionRecord | None) -> tuple[str | None, str | None]:
    return (None, None) if record is None else (record.user, record.application)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

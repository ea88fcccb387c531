"""Changes of tables outside transactions: an ``ALTER TABLE`` that takes effect immediately has a commit number, too.

Such a statement is recorded like a transaction whose decision is already made: before it changes the store, so that no
reader of an earlier snapshot misses it, and once more when it has ended. If its process is killed in between, recovery
gives it its number, whether or not the store was changed: the state before it is the same in both cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from twophase.catalog.schema_versions import SchemaChange
from twophase.model import ObjectPath, Purpose
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.timeline import commit_order, engines, owned_rows, schema_versions
from twophase.timeline import statements as sql
from twophase.timeline.owners import Lease
from twophase.timeline.records import ParticipantRecord
from twophase.timeline.reservations import Mode, Reservation
from twophase.timeline.rows import reservation_columns
from twophase.timeline.tables import lock_order, target_key

_MODES = {Purpose.ALTER_TABLE: Mode.ALTER, Purpose.DROP_TABLE: Mode.DROP}


@dataclass(frozen=True)
class Immediate:
    """A change of a table that takes effect immediately.

    Attributes
    ----------
    catalog : str
    path : ObjectPath
        The canonical name of the table.
    purpose : Purpose
    before : Any
        What the catalog needs to read the state before it, as loaded after the commit number ``since``.
    """

    catalog: str
    path: ObjectPath
    purpose: Purpose
    before: Any = None


def announce(connection: sa.Connection, lease: Lease, changes: Sequence[Immediate], since: int) -> None:
    """Insert the changes of a recorded transaction, which are about to be made.

    A table is reserved if no other transaction has it: none publishes to it then, so that the state before is known.
    Otherwise it is not: the statement waits for none, and who reads an earlier snapshot is refused.
    """
    connection.execute(sql.DELETE_CHANGES, {"of_id": lease.transaction_id})  # Of an attempt whose reply was lost.
    # In one order, as all tables are reserved, so that two opposite renames do not wait for each other.
    ordered = sorted(changes, key=lambda change: lock_order(change.catalog, change.path))
    for ordinal, change in enumerate(ordered):
        record = ParticipantRecord(ordinal, change.catalog, change.path, change.purpose, ParticipantState.STAGED)
        owned_rows.insert_participant(connection, lease, record)
        mine = lease.transaction_id
        whole = Reservation(_MODES.get(change.purpose, Mode.WRITE))
        is_free = owned_rows.reserve(connection, mine, change.catalog, change.path, whole) is None
        is_known = is_free and not commit_order.changes_since(connection, change.catalog, change.path, since, mine)
        before = change.before if is_known else None
        row = {
            "target": target_key(change.catalog, change.path),
            "transaction_id": mine,
            "before": None if before is None else json.dumps(before, ensure_ascii=False),
            **reservation_columns(whole),
        }
        connection.execute(sql.INSERT_CHANGE, row)


def settle(connection: sa.Connection, lease: Lease, schemas: Iterable[tuple[str, ObjectPath, SchemaChange]]) -> None:
    """Record that the changes are made, with what they have changed of columns."""
    now = engines.now(connection)
    owned_rows.own(connection, lease, state=TransactionState.COMPLETED.value, finished=now, left_behind="[]")
    owned_rows.end_participants(connection, lease, ParticipantState.PUBLISHED)
    # The tables' locks in one order, and before the clock, as where a transaction is decided.
    for catalog, path, change in sorted(schemas, key=lambda found: lock_order(found[0], found[1])):
        schema_versions.record(connection, target_key(catalog, path), change, now, lease.transaction_id)
    commit_order.number_changes(connection, lease.transaction_id)
    connection.execute(sql.DELETE_RESERVATIONS, {"of_id": lease.transaction_id})


def revoke(connection: sa.Connection, lease: Lease) -> None:
    """Forget changes that were not made."""
    owned_rows.own(connection, lease)
    mine = {"of_id": lease.transaction_id}
    for statement in (sql.DELETE_CHANGES, sql.DELETE_RESERVATIONS, sql.DELETE_PARTICIPANTS, sql.DELETE_TRANSACTION):
        connection.execute(statement, mine)

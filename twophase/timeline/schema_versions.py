"""The versions of the tables' schemas: a row for each change, inserted with the decision that publishes it.

A schema that was found to differ from the last row has a row without a transaction. A row without a schema ends the
history of a table that was dropped. Whether a row counts is read from its transaction, so that nothing is written when
that ends; pruning copies it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from twophase.catalog.schema_versions import SchemaChange, TableSchema, bound, is_same
from twophase.schema import Schema, from_json, to_json
from twophase.timeline.tables import lock_target, schemas, transactions

_S, _T = schemas.c, transactions.c
_NUMBER = sa.func.coalesce(_S.number, _T.number)
_ROWS = (
    sa.select(_S.ordinal, _S.schema, _S.since, _S.transaction_id, _NUMBER.label("number"))
    .select_from(schemas.outerjoin(transactions, _T.id == _S.transaction_id))
    .where(_S.target == sa.bindparam("of_target"))
    .order_by(_S.ordinal)
)


@dataclass(frozen=True)
class RecordedSchema:
    """A recorded version of a table's schema.

    Attributes
    ----------
    schema : Schema
    since : float or None
        When it was decided; None for one that was found.
    transaction_id : str or None
    number : int or None
        The commit number of its transaction.
    """

    schema: Schema
    since: float | None = None
    transaction_id: str | None = None
    number: int | None = None


def load(connection: sa.Connection, target: str) -> list[RecordedSchema]:
    """Load the versions of a table since it was created, the oldest first, without those that are not published."""
    rows: list[Any] = []
    for row in connection.execute(_ROWS, {"of_target": target}):
        if row.transaction_id is not None and row.number is None:
            continue
        if row.schema is None:
            rows.clear()
        else:
            rows.append(row)
    return [RecordedSchema(from_json(row.schema), row.since, row.transaction_id, row.number) for row in rows]


def record(connection: sa.Connection, target: str, change: SchemaChange, now: float, transaction_id: str) -> None:
    """Record a change, and before it the schema that it was found to start from; nothing if there is no change."""
    lock_target(connection, target)
    # Of an attempt whose reply was lost.
    connection.execute(schemas.delete().where((_S.target == target) & (_S.transaction_id == transaction_id)))
    known = load(connection, target)
    last = known[-1].schema if known else None
    made = {"since": now, "transaction_id": transaction_id}
    found = {"since": None, "transaction_id": None}
    rows: list[Mapping[str, Any]] = []
    is_other = change.before is not None and is_another_table(change.before, known)
    if last is not None and (is_other or change.creates or change.after is None):
        rows.append({"schema": None, **(found if is_other else made)})
        last = None
    if change.before is not None:
        before = bound(change.before, last)
        if last is None or not is_same(change.before, before, last):
            rows.append({"schema": to_json(before), **found})
            last = before
    if change.after is not None:
        after = bound(change.after, last, change.renames)
        if last is None or not is_same(change.after, after, last):
            rows.append({"schema": to_json(after), **made})
    if rows:
        highest = sa.select(sa.func.max(_S.ordinal)).where(_S.target == target)
        first = (connection.scalar(highest) or 0) + 1
        numbered = [{"target": target, "ordinal": first + index, **row} for index, row in enumerate(rows)]
        connection.execute(schemas.insert(), numbered)


def changed_by(connection: sa.Connection, target: str, transaction_ids: Collection[str]) -> bool:
    """Return whether transactions that have decided have changed the columns of a table, other than by creating it."""
    there = False
    for row in connection.execute(_ROWS, {"of_target": target}):
        is_theirs = row.transaction_id in transaction_ids
        if row.transaction_id is not None and row.number is None and not is_theirs:
            continue
        if there and is_theirs and row.schema is not None:
            return True
        there = row.schema is not None
    return False


def keep(connection: sa.Connection, transaction_ids: Sequence[str]) -> None:
    """Keep the published versions of transactions that are about to be pruned, and delete all others of theirs."""
    number = sa.select(_T.number).where(_T.id == _S.transaction_id).scalar_subquery()
    ours = _S.transaction_id.in_(transaction_ids) & _S.number.is_(None)
    connection.execute(schemas.update().where(ours).values(number=number))
    connection.execute(schemas.delete().where(ours))


def forget_dropped(connection: sa.Connection) -> None:
    """Delete the versions of tables that were dropped, once that is all that is known of it."""
    is_known = _S.number.is_not(None) | _S.transaction_id.is_(None)
    ended = sa.select(_S.target, sa.func.max(_S.ordinal)).where(_S.schema.is_(None) & is_known).group_by(_S.target)
    for target, ordinal in connection.execute(ended).all():
        connection.execute(schemas.delete().where((_S.target == target) & (_S.ordinal <= ordinal)))


def is_another_table(table: TableSchema, known: Sequence[RecordedSchema]) -> bool:
    """Return whether a table is not the one of its name whose versions are known, as twophase had made that."""
    return bool(known) and table.is_foreign and known[0].transaction_id is not None

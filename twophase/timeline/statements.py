"""The timeline's statements, built once: SQLAlchemy takes longer to build one than to run it.

Parameters of a condition begin with ``of_``; the others are the columns that are set.
"""

from __future__ import annotations

from functools import cache

import sqlalchemy as sa

from twophase.protocol.states import ParticipantState
from twophase.timeline.reservations import Mode
from twophase.timeline.tables import changes, commit_clock, participants, reservations, transactions, waits

_T, _P, _R, _C, _W = transactions.c, participants.c, reservations.c, changes.c, waits.c
_TRANSACTION: sa.BindParameter[str] = sa.bindparam("of_id")
_TARGET: sa.BindParameter[str] = sa.bindparam("of_target")
_TARGETS: sa.BindParameter[list[str]] = sa.bindparam("of_targets", expanding=True)

INSERT_TRANSACTION = transactions.insert()
DELETE_TRANSACTION = transactions.delete().where(_T.id == _TRANSACTION)

_THE_PARTICIPANT = (_P.transaction_id == _TRANSACTION) & (_P.ordinal == sa.bindparam("of_ordinal"))
INSERT_PARTICIPANT = participants.insert()
UPDATE_PARTICIPANT = participants.update().where(_THE_PARTICIPANT)
DELETE_PARTICIPANT = participants.delete().where(_THE_PARTICIPANT)
DELETE_PARTICIPANTS = participants.delete().where(_P.transaction_id == _TRANSACTION)
#: All participants of a transaction that have not ended.
END_PARTICIPANTS = participants.update().where(
    _P.transaction_id == _TRANSACTION,
    _P.state.in_([s.value for s in (ParticipantState.STAGED, ParticipantState.PREPARED, ParticipantState.REFUSED)]),
)
#: All participants of a transaction.
UPDATE_PARTICIPANTS = participants.update().where(_P.transaction_id == _TRANSACTION)

#: The open transactions that have reserved a target, the oldest first.
SELECT_HOLDERS = (
    sa.select(_R.transaction_id, _R.mode, _R.scope)
    .select_from(reservations.join(transactions, _T.id == _R.transaction_id))
    .where(_R.target == _TARGET, _T.finished.is_(None))
    .order_by(_T.created, _T.id)
)
INSERT_RESERVATION = reservations.insert()

#: The age of a transaction, of which the smallest is the oldest.
_AGE = sa.func.coalesce(_T.first_begun, _T.created)
SELECT_AGE = sa.select(_AGE.label("age")).where(_T.id == _TRANSACTION)
#: The open transactions that wait for a target, the oldest first.
SELECT_WAITERS = (
    sa.select(_W.transaction_id, _W.mode, _W.scope, _AGE.label("age"))
    .select_from(waits.join(transactions, _T.id == _W.transaction_id))
    .where(_W.target == _TARGET, _T.finished.is_(None))
    .order_by(_AGE, _T.id)
)
#: All that open transactions have reserved, and all that they wait for.
SELECT_RESERVED = (
    sa.select(reservations, _AGE.label("age"))
    .select_from(reservations.join(transactions, _T.id == _R.transaction_id))
    .where(_T.finished.is_(None))
    .order_by(_AGE, _T.id)
)
SELECT_WAITING = (
    sa.select(waits, _AGE.label("age"))
    .select_from(waits.join(transactions, _T.id == _W.transaction_id))
    .where(_T.finished.is_(None))
    .order_by(_W.since, _T.id)
)
INSERT_WAIT = waits.insert()
DELETE_WAIT = waits.delete().where(_W.transaction_id == _TRANSACTION)

_A_CHANGE = sa.select(_C.transaction_id, _C.number, _C.mode, _C.scope, _C.before).where(
    _C.target == _TARGET, _C.transaction_id != _TRANSACTION
)
#: The changes of a table by other transactions since a snapshot. Two queries: with OR, SQLite reads all changes of the
#: table, and not just these.
SELECT_CHANGES = sa.union_all(
    _A_CHANGE.where(_C.number > sa.bindparam("of_snapshot")), _A_CHANGE.where(_C.number.is_(None))
)
INSERT_CHANGE = changes.insert()
DELETE_CHANGES = changes.delete().where(_C.transaction_id == _TRANSACTION)
WITHDRAW_CHANGES = changes.delete().where(_C.transaction_id == _TRANSACTION, _C.number.is_(None))
WITHDRAW_OTHER_CHANGES = WITHDRAW_CHANGES.where(_C.target.not_in(_TARGETS))
SELECT_LAST = sa.select(commit_clock.c.last)
_UNNUMBERED = (_C.transaction_id == _TRANSACTION) & _C.number.is_(None)
#: The next number, for a transaction that has changes without one; then all of them, and itself, get this number.
NEXT_NUMBER = commit_clock.update().where(sa.exists().where(_UNNUMBERED)).values(last=commit_clock.c.last + 1)
NUMBER_CHANGES = changes.update().where(_UNNUMBERED).values(number=SELECT_LAST.scalar_subquery())
NUMBER_TRANSACTION = transactions.update().where(_T.id == _TRANSACTION).values(number=SELECT_LAST.scalar_subquery())
DELETE_RESERVATION = reservations.delete().where(_R.target == _TARGET, _R.transaction_id == _TRANSACTION)
#: The tables that a transaction shares with other appends.
EXCLUDE_APPENDS = reservations.update().where(_R.transaction_id == _TRANSACTION, _R.mode == Mode.APPEND.value)
DELETE_RESERVATIONS = reservations.delete().where(_R.transaction_id == _TRANSACTION)
DELETE_OTHER_RESERVATIONS = DELETE_RESERVATIONS.where(_R.target.not_in(_TARGETS))


@cache
def update_own(but: frozenset[str] = frozenset()) -> sa.Update:
    """Update a transaction that is still its owner's (``of_id``, ``of_fencing``), open, and not in certain states."""
    ours = (_T.id == _TRANSACTION) & (_T.fencing == sa.bindparam("of_fencing")) & _T.finished.is_(None)
    if but:
        ours &= _T.state.not_in(sorted(but))
    return transactions.update().where(ours)

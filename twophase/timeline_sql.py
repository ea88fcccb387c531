"""The timeline's statements, built once: SQLAlchemy takes longer to build one than to run it.

Parameters of a condition begin with ``of_``; the others are the columns that are set.
"""

from __future__ import annotations

from functools import cache

import sqlalchemy as sa

from twophase.states import ParticipantState, TransactionState
from twophase.tables import participants, publishers, reservations, transactions

_T, _P, _R = transactions.c, participants.c, reservations.c
_TRANSACTION: sa.BindParameter[str] = sa.bindparam("of_id")
_TARGET: sa.BindParameter[str] = sa.bindparam("of_target")

INSERT_TRANSACTION = transactions.insert()
DELETE_TRANSACTION = transactions.delete().where(_T.id == _TRANSACTION)

_THE_PARTICIPANT = (_P.transaction_id == _TRANSACTION) & (_P.ordinal == sa.bindparam("of_ordinal"))
INSERT_PARTICIPANT = participants.insert()
UPDATE_PARTICIPANT = participants.update().where(_THE_PARTICIPANT)
DELETE_PARTICIPANT = participants.delete().where(_THE_PARTICIPANT)
#: All of a transaction that still go on.
END_PARTICIPANTS = participants.update().where(
    _P.transaction_id == _TRANSACTION,
    _P.state.in_([s.value for s in (ParticipantState.STAGED, ParticipantState.PREPARED, ParticipantState.REFUSED)]),
)
#: All of a transaction.
UPDATE_PARTICIPANTS = participants.update().where(_P.transaction_id == _TRANSACTION)

#: The open transactions that hold a target, the first ones first.
SELECT_HOLDERS = (
    sa.select(_R.transaction_id, _R.mode, _R.scope)
    .select_from(reservations.join(transactions, _T.id == _R.transaction_id))
    .where(_R.target == _TARGET, _T.finished.is_(None))
    .order_by(_T.created, _T.id)
)
INSERT_RESERVATION = reservations.insert()
#: Those of them who have decided to publish.
SELECT_PUBLISHING = (
    sa.select(_R.transaction_id)
    .select_from(reservations.join(transactions, _T.id == _R.transaction_id))
    .where(
        _R.target == _TARGET,
        _T.finished.is_(None),
        _T.state.in_([s.value for s in (TransactionState.COMMITTING, TransactionState.IN_DOUBT)]),
    )
)
SELECT_PUBLISHER = sa.select(publishers.c.transaction_id).where(publishers.c.target == _TARGET)
UPDATE_PUBLISHER = publishers.update().where(publishers.c.target == _TARGET)
INSERT_PUBLISHER = publishers.insert()
DELETE_RESERVATION = reservations.delete().where(_R.target == _TARGET, _R.transaction_id == _TRANSACTION)
DELETE_RESERVATIONS = reservations.delete().where(_R.transaction_id == _TRANSACTION)


@cache
def update_own(but: frozenset[str] = frozenset()) -> sa.Update:
    """The row of a transaction that is still its owner's (``of_id``, ``of_fencing``), open, and in none of some states.

    Parameters
    ----------
    but : frozenset of str
    """
    ours = (_T.id == _TRANSACTION) & (_T.fencing == sa.bindparam("of_fencing")) & _T.finished.is_(None)
    if but:
        ours &= _T.state.not_in(sorted(but))
    return transactions.update().where(ours)

"""Stamps: the table property that names the transaction that published a table, and the fence behind it.

A conditional call to the metastore expects a stamp as it is stored. A new fence makes the call of a dead driver fail,
and means nothing to readers.
"""

from __future__ import annotations

import secrets

#: Table property with the transaction that published the current state: the owner stamp in the metastore.
STAMP = "twophase.transaction"
#: Table property with the transaction that has added columns and is about to publish their rows.
BROUGHT = "twophase.brought"
#: Separates a stamp from its fence: a suffix that makes a dead driver's call, which expects the old stamp, fail.
_FENCE = "#"
#: Begins the name of a statement in a fence; no other fence begins with it.
_STATEMENT = "statement-"
#: Begins what is expected of a table without a stamp; no stamp begins with a fence.
_UNSTAMPED = f"{_FENCE}created-"


class StampChangedError(Exception):
    """A conditional call found an unexpected stamp: the table was published, fenced or made anew meanwhile."""


def no_stamp(created: int | None) -> str:
    """Return what a table without a stamp must still be when it is changed: the one that was created at this time."""
    return "" if created is None else f"{_UNSTAMPED}{created}"


def is_stamp(expected: str | None) -> bool:
    """Whether a call can name what is expected: a stamp, and not a result of :func:`no_stamp`."""
    return bool(expected) and not str(expected).startswith(_UNSTAMPED)


def unfenced(stored_stamp: str) -> str:
    """Return a stamp without its fence."""
    return stored_stamp.partition(_FENCE)[0]


def fenced(stored_stamp: str) -> str:
    """Add a new fence: the stamp stays the same to readers, but conditional calls that expect the old value fail.

    It names the statement that the old one names.
    """
    ordinal = _ordinal(stored_stamp)
    named = "" if ordinal is None else f"{_STATEMENT}{ordinal}-"
    return f"{unfenced(stored_stamp)}{_FENCE}{named}{secrets.token_hex(4)}"


def stamp_of_statement(transaction_id: str, ordinal: int) -> str:
    """Return the stamp of a transaction, whose fence names a statement: the files do not tell which was published."""
    return f"{transaction_id}{_FENCE}{_STATEMENT}{ordinal}"


def is_of_statement(stored_stamp: str, ordinal: int) -> bool:
    """Whether a stamp does not name another statement; a fence of another writer names none."""
    return _ordinal(stored_stamp) in (None, str(ordinal))


def names_statement(stored_stamp: str) -> bool:
    """Whether a stamp is from :func:`stamp_of_statement`: of a publish that has moved no files."""
    return _ordinal(stored_stamp) is not None


def _ordinal(stored_stamp: str) -> str | None:
    """The statement that the fence of a stamp names; None if it names none."""
    fence = stored_stamp.partition(_FENCE)[2]
    return fence.removeprefix(_STATEMENT).partition("-")[0] if fence.startswith(_STATEMENT) else None

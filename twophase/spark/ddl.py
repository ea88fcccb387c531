"""Statements that change the session catalog past us: what they change, told from their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from twophase.spark.tokens import Token, name_at, tokens

_VERBS = ("DROP", "ALTER", "TRUNCATE", "LOAD", "MSCK", "REPAIR")
_OBJECTS = ("TABLE", "DATABASE", "SCHEMA", "NAMESPACE")


@dataclass(frozen=True, slots=True)
class Change:
    """A DDL statement.

    Attributes
    ----------
    verb : str
        As the user knows it: ``DROP TABLE``.
    names : tuple of str or None
        The parts of the table's or database's name; None where they are not in plain text.
    """

    verb: str
    names: tuple[str, ...] | None


def changes(text: str, words: tuple[str, ...]) -> Change | None:
    """The change that a statement makes, given its first words; None for any other statement."""
    if not words or words[0] not in _VERBS:
        return None
    stream = list(tokens(text))
    index = next((i for i, token in enumerate(stream[:12]) if token.is_word(*_OBJECTS)), None)
    return _change(words[0], stream, index) if index is not None else None


def _change(verb: str, stream: Sequence[Token], index: int) -> Change:
    place = name_at(stream, index + 1)
    changed = "DATA" if verb == "LOAD" else stream[index].text.upper()
    return Change(f"{verb} {changed}", place.names if place else None)


def dropped_tables(text: str) -> list[tuple[str, ...]]:
    """Names of all tables that a statement, or the statements of a script, may drop."""
    stream = list(tokens(text))
    found = [
        name_at(stream, index + 2)
        for index, (first, second) in enumerate(pairwise(stream))
        if first.is_word("DROP") and second.is_word("TABLE")
    ]
    return [place.names for place in found if place and place.names]


def renamed_table(text: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Old and new name of an ``ALTER TABLE ... RENAME TO``; None for every other statement."""
    stream = list(tokens(text))
    if len(stream) < 6 or not (stream[0].is_word("ALTER") and stream[1].is_word("TABLE")):
        return None
    places = (i for i, (one, other) in enumerate(pairwise(stream)) if one.is_word("RENAME") and other.is_word("TO"))
    index = next(places, None)
    old, new = name_at(stream, 2), None if index is None else name_at(stream, index + 2)
    if old is None or new is None or old.names is None or new.names is None:
        return None
    return old.names, new.names

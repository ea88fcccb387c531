"""Statements that change a catalog past us, or the rows of a table: what they change, told from their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from twophase.spark.routing.tokens import Token, leading_words, name_at, tokens

_OBJECTS = ("TABLE", "DATABASE", "SCHEMA", "NAMESPACE", "FUNCTION")
_QUERIES = ("SELECT", "FROM", "INSERT", "VALUES", "TABLE", "MAP", "REDUCE")
_FIRST = ("CREATE", "DROP", "ALTER", "TRUNCATE", "LOAD", "MSCK", "REPAIR", "COMMENT", "CALL")


@dataclass(frozen=True, slots=True)
class Change:
    """A DDL statement.

    Attributes
    ----------
    verb : str
        As the user knows it: ``DROP TABLE``.
    object : str
        What kind of thing it changes.
    names : tuple of str or None
        The parts of the thing's name; None where they are not in plain text.
    """

    verb: str
    object: str
    names: tuple[str, ...] | None


def changes(text: str) -> Change | None:
    """The change that a single statement makes at once; None for any other statement.

    Tables that are made with their format or rows are no matter of this; nor are views and what is temporary.
    """
    first = leading_words(text, 1)
    if not first or first[0] not in _FIRST:
        return None
    stream = list(tokens(text))
    if first[0] == "CALL":
        place = name_at(stream, 1)
        return Change("CALL", "PROCEDURE", place.names if place else None)
    index = _object(first[0], stream)
    if index is None:
        return _comment_on_column(stream)
    place = name_at(stream, index + 1)
    changed = stream[index].text.upper()
    if first[0] == "CREATE" and changed == "TABLE":
        is_copy = place is not None and place.next < len(stream) and stream[place.next].is_word("LIKE")
        return Change("CREATE TABLE LIKE", changed, place.names if place else None) if is_copy else None
    verb = "LOAD DATA" if first[0] == "LOAD" else f"{first[0]} {changed}"
    return Change(verb, changed, place.names if place else None)


def _comment_on_column(stream: Sequence[Token]) -> Change | None:
    """What a ``COMMENT ON COLUMN`` changes is the column's table."""
    if [token.text.upper() for token in stream[:3]] != ["COMMENT", "ON", "COLUMN"]:
        return None
    place = name_at(stream, 3)
    return Change("COMMENT ON COLUMN", "TABLE", place.names[:-1] if place and place.names else None)


def _object(verb: str, stream: Sequence[Token]) -> int | None:
    """Index of the word that says what kind of thing is changed."""
    if verb == "LOAD":
        return next(
            (i + 1 for i, (a, b) in enumerate(pairwise(stream)) if a.is_word("INTO") and b.is_word("TABLE")), None
        )
    passed = {"CREATE": ("OR", "REPLACE", "EXTERNAL"), "MSCK": ("REPAIR",), "COMMENT": ("ON",)}.get(verb, ())
    index = 1
    while index < len(stream) and stream[index].is_word(*passed):
        index += 1
    return index if index < len(stream) and stream[index].is_word(*_OBJECTS) else None


def used_name(text: str) -> tuple[str, ...] | None:
    """What a ``USE`` names, which may be a catalog; None for every statement but ``USE``."""
    stream = list(tokens(text))
    place = name_at(stream, 1) if stream and stream[0].is_word("USE") else None
    return place.names if place else None


def row_change(text: str) -> Change | None:
    """The rows of a table that a ``DELETE``, ``UPDATE`` or ``MERGE`` changes; None for any other statement."""
    if leading_words(text, 1)[:1] not in (("DELETE",), ("UPDATE",), ("MERGE",), ("WITH",)):
        return None
    stream, depth = list(tokens(text)), 0
    for index, token in enumerate(stream):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0 and token.is_word("DELETE", "UPDATE", "MERGE"):
            return _row_change(stream, index)
        if depth == 0 and token.is_word(*_QUERIES):
            return None
    return None


def _row_change(stream: Sequence[Token], index: int) -> Change | None:
    verb = stream[index].text.upper()
    word = {"DELETE": "FROM", "MERGE": "INTO"}.get(verb)
    while word and index < len(stream) and not stream[index].is_word(word):
        index += 1
    place = name_at(stream, index + 1)
    return Change(verb, "ROWS", place.names if place else None)


def dropped_tables(text: str) -> list[tuple[str, ...]]:
    """Names of all tables that a statement, or the statements of a script, may drop."""
    stream = list(tokens(text))
    found = [
        name_at(stream, index + 2)
        for index, (first, second) in enumerate(pairwise(stream))
        if first.is_word("DROP") and second.is_word("TABLE")
    ]
    return [place.names for place in found if place and place.names]


def sought_partitions(text: str) -> list[tuple[str, ...]]:
    """Names of the tables below whose directories a statement, or one of a script, finds or makes partitions."""
    stream = list(tokens(text))
    found = []
    for index, (first, second) in enumerate(pairwise(stream)):
        if second.is_word("TABLE") and first.is_word("ALTER", "MSCK", "REPAIR"):
            place = name_at(stream, index + 2)
            if place and place.names and (not first.is_word("ALTER") or _makes_partitions(stream[place.next :])):
                found.append(place.names)
    return found


def _makes_partitions(rest: Sequence[Token]) -> bool:
    """Whether an ``ALTER TABLE`` goes on as ``ADD PARTITION``, ``RECOVER PARTITIONS`` or with a partition's rename."""
    words = [token.text.upper() for token in rest[: next((i for i, t in enumerate(rest) if t.text == ";"), None)]]
    if words[:1] == ["ADD"]:
        return next((word for word in words[1:] if word not in ("IF", "NOT", "EXISTS")), "") == "PARTITION"
    return words[:1] == ["RECOVER"] or (words[:1] == ["PARTITION"] and "RENAME" in words)


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

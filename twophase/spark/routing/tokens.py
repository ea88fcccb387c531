"""The tokens of a statement, as Spark's lexer separates them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from twophase.spark.routing.words import past_blank

# In order: a raw string ends at the first quote, in others a backslash protects it; quotes are doubled in names.
_TOKENS = re.compile(
    r"""(?P<raw>[rR](?:'[^']*+'|"[^"]*+"))
    |(?P<number>\d++(?:\.\d++)?+(?!\w))
    |(?P<word>\w++)
    |(?P<name>`(?:[^`]|``)*+`)
    |(?P<text>'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")
    |(?P<tagged>(?P<tag>\$\w*+\$).*?(?P=tag))
    |(?P<open>['"`].*+|/\*(?!\+).*+)
    |(?P<symbol>.)""",
    re.VERBOSE | re.DOTALL,
)


class Kind(Enum):
    """The kind of a token."""

    WORD = "word"
    #: A name in backquotes.
    NAME = "name"
    NUMBER = "number"
    TEXT = "text"
    SYMBOL = "symbol"
    #: A quoted text that has no end.
    OPEN = "open"


_KINDS = {"raw": Kind.TEXT, "tagged": Kind.TEXT}


@dataclass(frozen=True, slots=True)
class Token:
    """A token and its place in the text.

    Attributes
    ----------
    kind : Kind
    text : str
        As written.
    start, end : int
    """

    kind: Kind
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The word in upper case, or the symbol; empty for anything that is quoted."""
        return self.text.upper() if self.kind in (Kind.WORD, Kind.SYMBOL) else ""


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a text, without spaces and comments."""
    position = past_blank(text, 0)
    while (found := _TOKENS.match(text, position)) is not None:
        group = found.lastgroup or "symbol"
        group = "tagged" if group == "tag" else group
        yield Token(_KINDS.get(group) or Kind(group), found.group(), found.start(), found.end())
        position = past_blank(text, found.end())


def place_of(text: str, position: int) -> str:
    """Describe a position in words: Spark counts lines from 1, and positions in them from 0."""
    before = text[:position]
    line = before.count("\n") + 1
    return f"line {line}, position {position - (before.rfind(chr(10)) + 1)}"

"""Enough of Spark SQL's lexical rules to find table names in a statement's text.

Spark's parser decides what a statement *is*; it does not always tell where in the text its target stands (4.0 gives the
whole statement as the position of a CTAS target, and with parameters the positions are those of another text). So the
places are found here, and accepted only where the names in them are those that the parser read.

Offsets are those of Python strings (code points), which are also those of Spark's parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# What may be of any length is read in runs and never given back (``++``): the engine keeps a record of each step that
# it could take back, and for each character that would be a hundred bytes.
_COMMENT = r"--[^\\\r\n]*+(?:\\(?:\r?\n)?[^\\\r\n]*+)*+|/\*(?!\+)"
_STRING = "|".join(rf"{quote}[^{quote}\\]*+(?:(?:\\.|{quote * 2})[^{quote}\\]*+)*+{quote}" for quote in "'\"")
#: One whose last quote is doubled and so ends nothing: it ends before that.
_ENDS_EARLY = _STRING.replace("*+", "*")
_TOKEN = re.compile(
    rf"""
      (?P<space>\s++)
    | (?P<comment>{_COMMENT})
    | (?P<raw>[rR](?:'[^']*+'|"[^"]*+"))
    | (?P<string>{_STRING}|{_ENDS_EARLY})
    | (?P<dollar>\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    | (?P<quoted>`[^`]*+(?:``[^`]*+)*+`|`[^`]*(?:``[^`]*)*`)
    | (?P<word>[^\W\d_]++://[\w/.?=&\#%-]++|\w++)
    | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_BRACKETS = re.compile(r"/\*|\*/")

#: Tokens that carry no meaning.
_SKIPPED = frozenset({"space", "comment"})
_QUOTES = frozenset("'\"`$")


@dataclass(frozen=True, slots=True)
class Token:
    """A token: kind ``word``, ``quoted``, ``string`` or ``symbol``, and its place in the text."""

    kind: str
    text: str
    start: int
    stop: int

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these keywords (given in upper case)."""
        return self.kind == "word" and self.text.upper() in words

    @property
    def name(self) -> str:
        """As a part of a name, unquoted."""
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text


def tokens(text: str, *, quoted: bool = True) -> Iterator[Token]:
    """The tokens of a text, without spaces and comments. It never fails: what is no token is a symbol.

    Parameters
    ----------
    text : str
    quoted : bool
        Whether to go on where something in quotes begins: it may be long.
    """
    position = 0
    while (quoted or text[position : position + 1] not in _QUOTES) and (match := _TOKEN.match(text, position)):
        kind, stop = str(match.lastgroup), match.end()
        if kind == "comment" and match.group() == "/*":
            stop = _end_of_comment(text, stop)
        elif kind not in _SKIPPED:
            kind = "string" if kind in ("raw", "dollar", "tag") else kind
            yield Token(kind, match.group(), position, stop)
        position = stop


def _end_of_comment(text: str, position: int) -> int:
    """Where a bracketed comment ends; they nest, and an unclosed one goes to the end."""
    depth = 1
    for match in _BRACKETS.finditer(text, position):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return match.end()
    return len(text)


def leading_words(text: str, count: int = 3) -> tuple[str, ...]:
    """The first words of a statement in upper case, past comments and opening brackets.

    It stops at the first token that is neither, and looks at no more of the text than it needs.
    """
    words: list[str] = []
    for token in tokens(text, quoted=False):
        if token.text == "(" and not words:
            continue
        if token.kind != "word":
            break
        words.append(token.text.upper())
        if len(words) == count:
            break
    return tuple(words)


@dataclass(frozen=True, slots=True)
class NamePart:
    """One part of a name in the text: plain, or the expression inside ``IDENTIFIER(...)``."""

    name: str | None
    expression: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a statement names the table that it writes or changes.

    Attributes
    ----------
    verb : str
        ``insert``, ``create`` (also ``CREATE OR REPLACE``), ``replace`` or ``execute`` (EXECUTE IMMEDIATE, whose place
        is that of the statement's text).
    start, stop : int
        The name's place.
    parts : tuple of NamePart
    overwrite : tuple of int, optional
        Place of the word OVERWRITE.
    next : int
        Index of the token after the name.
    """

    verb: str
    start: int
    stop: int
    parts: tuple[NamePart, ...]
    overwrite: tuple[int, int] | None = None
    next: int = 0

    @property
    def names(self) -> tuple[str, ...] | None:
        """The parts as plain names; None where one is an ``IDENTIFIER(...)``."""
        names = tuple(part.name for part in self.parts if part.name is not None)
        return names if len(names) == len(self.parts) else None


def places(stream: Sequence[Token]) -> list[Place]:
    """All places in a text where a table may be written, in order."""
    found = []
    for index, token in enumerate(stream):
        reader = _READERS.get(token.text.upper()) if token.kind == "word" else None
        place = reader(_Cursor(stream, index + 1)) if reader else None
        if place is not None:
            found.append(place)
    return found


def name_at(stream: Sequence[Token], index: int) -> Place | None:
    """The name at an index, past ``IF EXISTS`` or ``IF NOT EXISTS``."""
    cursor = _Cursor(stream, index)
    if not cursor.take_all("IF", "NOT", "EXISTS"):
        cursor.take_all("IF", "EXISTS")
    return cursor.place("name")


def identifiers(stream: Sequence[Token]) -> list[Place]:
    """Every ``IDENTIFIER(...)`` in a text, in order, whatever it names."""
    found = (_Cursor(stream, index).identifier() for index in range(len(stream)))
    return [place for place in found if place is not None]


def called_names(stream: Sequence[Token]) -> set[tuple[str, ...]]:
    """Every name in front of a bracket: of functions, and of some that are none."""
    starts = (index for index in range(len(stream)) if index == 0 or stream[index - 1].text != ".")
    places = (_Cursor(stream, index).place("call") for index in starts)
    called = [place for place in places if place and place.next < len(stream) and stream[place.next].text == "("]
    return {place.names for place in called if place.names}


class _Cursor:
    """A position in the tokens that moves on when the next ones fit."""

    def __init__(self, stream: Sequence[Token], index: int) -> None:
        self.stream = stream
        self.index = index

    def peek(self, offset: int = 0) -> Token | None:
        index = self.index + offset
        return self.stream[index] if 0 <= index < len(self.stream) else None

    def take(self, *words: str) -> Token | None:
        """Take one keyword out of several."""
        token = self.peek()
        if token is None or not token.is_word(*words):
            return None
        self.index += 1
        return token

    def take_all(self, *words: str) -> bool:
        """Take a phrase, wholly or not at all."""
        before = self.index
        if all(self.take(word) for word in words):
            return True
        self.index = before
        return False

    def place(self, verb: str, overwrite: Token | None = None) -> Place | None:
        """Take a name of one or more parts."""
        first = self.peek()
        parts = self._parts()
        if first is None or not parts:
            return None
        span = (overwrite.start, overwrite.stop) if overwrite else None
        return Place(verb, first.start, self.stream[self.index - 1].stop, tuple(parts), span, self.index)

    def identifier(self) -> Place | None:
        """Take one ``IDENTIFIER(...)``."""
        first, bracket = self.peek(), self.peek(1)
        if first is None or not first.is_word("IDENTIFIER") or bracket is None or bracket.text != "(":
            return None
        part = self._identifier()
        return Place("identifier", first.start, self.stream[self.index - 1].stop, (part,)) if part else None

    def _parts(self) -> list[NamePart]:
        parts: list[NamePart] = []
        while (part := self._part()) is not None:
            parts.append(part)
            dot = self.peek()
            if dot is None or dot.text != ".":
                return parts
            self.index += 1
        return []  # nothing there, or a dot at the end

    def _part(self) -> NamePart | None:
        token, bracket = self.peek(), self.peek(1)
        if token is None or token.kind not in ("word", "quoted"):
            return None
        if token.is_word("IDENTIFIER") and bracket is not None and bracket.text == "(":
            return self._identifier()
        self.index += 1
        return NamePart(token.name)

    def _identifier(self) -> NamePart | None:
        close = _closing(self.stream, self.index + 1)
        if close is None:
            return None
        span = (self.stream[self.index + 1].stop, self.stream[close].start)
        self.index = close + 1
        return NamePart(None, span)


def _closing(stream: Sequence[Token], index: int) -> int | None:
    """Index of the bracket that closes the one at ``index``."""
    depth = 0
    for position in range(index, len(stream)):
        depth += {"(": 1, ")": -1}.get(stream[position].text, 0)
        if depth == 0:
            return position
    return None


#: What follows a table *named* ``table``, and never a name after the keyword TABLE.
_AFTER_A_NAME = ("SELECT", "VALUES", "FROM", "WITH", "PARTITION", "BY")


def _insert(cursor: _Cursor) -> Place | None:
    cursor.take_all("WITH", "SCHEMA", "EVOLUTION")
    verb = cursor.take("INTO", "OVERWRITE")
    if verb is None:
        return None
    after = cursor.peek(1)
    if after is not None and after.kind in ("word", "quoted") and not after.is_word(*_AFTER_A_NAME):
        cursor.take("TABLE")
    return cursor.place("insert", verb if verb.is_word("OVERWRITE") else None)


def _create(cursor: _Cursor) -> Place | None:
    cursor.take_all("OR", "REPLACE")
    cursor.take("EXTERNAL")
    if not cursor.take("TABLE"):
        return None
    cursor.take_all("IF", "NOT", "EXISTS")
    return cursor.place("create")


def _replace(cursor: _Cursor) -> Place | None:
    before = cursor.peek(-2)
    if (before is not None and before.is_word("OR")) or not cursor.take("TABLE"):
        return None
    return cursor.place("replace")


def _execute(cursor: _Cursor) -> Place | None:
    if not cursor.take("IMMEDIATE"):
        return None
    first, depth = cursor.peek(), 0
    while (token := cursor.peek()) is not None:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth <= 0 and (token.text == ";" or token.is_word("INTO", "USING")):
            break
        cursor.index += 1
    last = cursor.peek(-1)
    if first is None or last is None or last.start < first.start:
        return None
    span = (first.start, last.stop)
    return Place("execute", *span, (NamePart(None, span),), None, cursor.index)


_READERS = {"INSERT": _insert, "CREATE": _create, "REPLACE": _replace, "EXECUTE": _execute}


def splice(text: str, edits: Sequence[tuple[int, int, str]]) -> str:
    """Replace several spans of a text."""
    for start, stop, replacement in sorted(edits, reverse=True):
        text = text[:start] + replacement + text[stop:]
    return text

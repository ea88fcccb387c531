"""The first words of a statement: enough to see that it writes nothing; the rest of the text is not parsed."""

from __future__ import annotations

import re

# Runs of any length are possessive (``++``), so that the engine cannot backtrack: it stores every step that it could
# undo, about a hundred bytes per character.
_SKIPPED = re.compile(r"(?:\s++|--[^\\\r\n]*+(?:\\(?:\r?\n)?[^\\\r\n]*+)*+)++")
_OPENING = re.compile(r"/\*(?!\+)")
_BRACKETS = re.compile(r"/\*|\*/")
_WORD = re.compile(r"\w++")


def leading_words(text: str, count: int = 1) -> tuple[str, ...]:
    """The first words in upper case, without comments and opening brackets."""
    words: list[str] = []
    position = 0
    while len(words) < count:
        position = past_blank(text, position)
        if not words and text.startswith("(", position):
            position += 1
            continue
        word = _WORD.match(text, position)
        if word is None:
            break
        words.append(word.group().upper())
        position = word.end()
    return tuple(words)


def past_blank(text: str, position: int) -> int:
    """Skip spaces and comments; bracketed comments nest."""
    while True:
        if skipped := _SKIPPED.match(text, position):
            position = skipped.end()
        elif opening := _OPENING.match(text, position):
            position = _past_comment(text, opening.end())
        else:
            return position


def _past_comment(text: str, position: int) -> int:
    depth = 1
    for bracket in _BRACKETS.finditer(text, position):
        depth += 1 if bracket.group() == "/*" else -1
        if depth == 0:
            return bracket.end()
    return len(text)

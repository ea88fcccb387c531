"""Field names and paths."""

from __future__ import annotations

from collections.abc import Sequence

from twophase.schema.errors import SchemaError

#: A reference to a field: dotted text, one name per level, or a field id. A sequence may begin with an id.
FieldPath = str | Sequence[str | int] | int

_WAYS = ("names with dots between, in backticks where a name holds dots or backticks", "a tuple of names", "an id")


def fold(name: str) -> str:
    """Case-fold a name as Spark does, character by character."""
    if name.isascii():
        return name.lower()
    return "".join(_fold_character(character) for character in name)


def _fold_character(character: str) -> str:
    # As in Java, a character whose case mapping changes its length (such as the German sharp s) is left as it is.
    upper = character.upper()
    lower = (upper if len(upper) == 1 else character).lower()
    return lower if len(lower) == 1 else character


def format_path(parts: Sequence[str | int]) -> str:
    """Format a path so that :func:`split_path` can parse it; parts with dots or backticks are quoted."""
    return ".".join(_format_part(part) for part in parts)


def _format_part(part: str | int) -> str:
    if isinstance(part, int):
        return f"#{part}"
    return quote(part) if ("." in part or "`" in part or not part) else part


def quote(name: str) -> str:
    """Quote a name in backticks, as in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def split_path(text: str) -> tuple[list[str], bool]:
    """Split a dotted path; the flag is True if it has backticks, so that only this split is meant.

    Raises
    ------
    SchemaError
        There is an empty part or an unclosed backtick.
    """
    if "`" not in text:
        parts, exact = text.split("."), False
    else:
        parts, exact = _split_quoted(text), True
    if not all(parts):
        raise SchemaError(f"The path {text!r} has an empty part.", field_path=text, allowed=_WAYS)
    return parts, exact


def _split_quoted(text: str) -> list[str]:
    parts: list[str] = []
    position = 0
    while True:
        part, position = _read_part(text, position)
        parts.append(part)
        if position == len(text):
            return parts
        if text[position] != ".":
            raise SchemaError(f"The path {text!r} goes on after a closing backtick.", field_path=text, allowed=_WAYS)
        position += 1


def _read_part(text: str, start: int) -> tuple[str, int]:
    if start >= len(text) or text[start] != "`":
        end = text.find(".", start)
        end = len(text) if end < 0 else end
        return text[start:end], end
    position, part = start + 1, ""
    while True:
        end = text.find("`", position)
        if end < 0:
            raise SchemaError(f"The path {text!r} has a backtick that is not closed.", field_path=text, allowed=_WAYS)
        part += text[position:end]
        if text[end + 1 : end + 2] != "`":
            return part, end + 1
        part += "`"
        position = end + 2

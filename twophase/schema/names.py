"""Names of fields, and the paths that lead to them."""

from __future__ import annotations

from collections.abc import Sequence

from twophase.schema.errors import SchemaError

#: How a change names its field: a dotted text, the names one a level, or a field id. A sequence may begin with an id.
FieldPath = str | Sequence[str | int] | int

_WAYS = ("names with dots between, in backticks where a name holds dots or backticks", "a tuple of names", "an id")


def fold(name: str) -> str:
    """The form in which two names are one for Spark: case is ignored character by character."""
    if name.isascii():
        return name.lower()
    return "".join(_fold_character(character) for character in name)


def _fold_character(character: str) -> str:
    # A character that changes its length with its case (such as the German sharp s) stays as it is in Java.
    upper = character.upper()
    lower = (upper if len(upper) == 1 else character).lower()
    return lower if len(lower) == 1 else character


def format_path(parts: Sequence[str | int]) -> str:
    """A path as text that :func:`split_path` reads back: parts with dots or backticks are quoted."""
    return ".".join(_format_part(part) for part in parts)


def _format_part(part: str | int) -> str:
    if isinstance(part, int):
        return f"#{part}"
    return quote(part) if ("." in part or "`" in part or not part) else part


def quote(name: str) -> str:
    """A name in backticks, as Spark SQL wants it."""
    return "`" + name.replace("`", "``") + "`"


def split_path(text: str) -> tuple[list[str], bool]:
    """The parts of a dotted path, and whether backticks say that the split is meant exactly.

    Raises
    ------
    SchemaError
        An empty part or a backtick that is not closed.
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

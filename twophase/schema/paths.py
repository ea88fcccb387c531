"""How a path finds its field, on a finished schema and on one under change alike."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from twophase.schema.errors import AmbiguousPathError, DuplicateFieldError, UnknownFieldError
from twophase.schema.names import FieldPath, fold, format_path, split_path


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


def path_text(path: FieldPath) -> str:
    """A path as an error message shows it."""
    if isinstance(path, str):
        return path
    return f"#{path}" if isinstance(path, int) else format_path(path)


def walk(parent: T | None, path: str | Sequence[str | int], named: Callable[[T | None, str], Sequence[T]]) -> T | None:
    """The one field at a path below a parent (None: the table), or None.

    Parameters
    ----------
    parent : field or None
    path : str or sequence of str
    named : callable
        Parent, name -> the fields of that name below it; those in another case only where none has the very name.

    Raises
    ------
    AmbiguousPathError
        Several fields fit.
    """
    if isinstance(path, str):
        parts, exact = split_path(path)
    else:
        parts, exact = [str(part) for part in path], True
    if not parts:
        return None
    found = _matches(parent, parts, exact, named)
    if len(found) > 1:
        raise AmbiguousPathError(
            f"The path {path_text(path)!r} fits {len(found)} fields.",
            field_path=path_text(path),
            allowed=("the field's id", "the names of the levels one by one as a tuple, in the exact case"),
        )
    return found[0] if found else None


def _matches(parent: T | None, parts: list[str], exact: bool, named: Callable[[T | None, str], Sequence[T]]) -> list[T]:
    found: list[T] = []
    for taken in range(1, 2 if exact else len(parts) + 1):
        rest = parts[taken:]
        for node in named(parent, ".".join(parts[:taken])):
            found.extend(_matches(node, rest, exact, named) if rest else [node])
    return found


def unknown_field(path: FieldPath, known: Iterable[Sequence[str]]) -> UnknownFieldError:
    """The error for a path that leads nowhere; it names the nearest ones."""
    text = path_text(path)
    some = [format_path(parts) for parts in islice(known, 2000)]
    near = difflib.get_close_matches(text, some, n=3, cutoff=0.5)
    return UnknownFieldError(
        f"There is no field {text}.",
        field_path=text,
        hint=f"Did you mean {' or '.join(near)}?" if near else None,
        allowed=("the path of a field that is there", "AddField first, in the same list"),
    )


class Typed(Named, Protocol):
    """Anything with a name and a type."""

    @property
    def type_name(self) -> str: ...


def check_siblings(siblings: Sequence[Typed], parent: Callable[[], Sequence[str]]) -> None:
    """Refuse two siblings whose names Spark cannot tell apart, and an empty name.

    Parameters
    ----------
    siblings : sequence of fields
    parent : callable
        Gives the path of the struct, for the error.

    Raises
    ------
    DuplicateFieldError
    """
    seen: dict[str, Typed] = {}
    for node in siblings:
        folded = fold(node.name)
        if folded in seen or not node.name:
            raise _clash(seen.get(folded, node), node, parent())
        seen[folded] = node


def _clash(first: Typed, second: Typed, parent: Sequence[str]) -> DuplicateFieldError:
    where = f"in {format_path(parent)}" if parent else "in the table"
    path = format_path((*parent, second.name))
    if not second.name:
        return DuplicateFieldError(
            f"A field {where} has an empty name.", field_path=path, new_type=second.type_name, allowed=("a name",)
        )
    return DuplicateFieldError(
        f"The names {first.name!r} ({first.type_name}) and {second.name!r} ({second.type_name}) clash {where}: "
        "case is ignored.",
        field_path=path,
        old_type=first.type_name,
        new_type=second.type_name,
        allowed=("another name", f"drop or rename {first.name!r} in the same list"),
    )

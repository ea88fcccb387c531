"""Resolution of paths, in an immutable schema and in one that is being changed."""

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
    """A path as text for error messages."""
    if isinstance(path, str):
        return path
    return f"#{path}" if isinstance(path, int) else format_path(path)


def walk(parent: T | None, path: str | Sequence[str | int], named: Callable[[T | None, str], Sequence[T]]) -> T | None:
    """Find the field at a path below a parent (None: the table); None if there is none.

    Parameters
    ----------
    parent : field or None
    path : str or sequence of str
    named : callable
        Parent, name -> its children with that name; those in another case only if there is no exact match.

    Raises
    ------
    AmbiguousPathError
        Several fields match.
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
    """The error for an unknown path, with the nearest ones as suggestions."""
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
    """Refuse siblings whose names Spark cannot distinguish, and an empty name.

    Parameters
    ----------
    siblings : sequence of fields
    parent : callable
        Returns the path of the struct, for the error.

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

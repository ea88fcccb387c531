"""Changes of a schema, as values. :func:`twophase.schema.apply_changes` applies them.

A field is named by a dotted path (``"address.zip"``; backticks quote a name with dots), by a tuple with one name a
level, or by its id. Below a list the name is ``element``, below a map ``key`` and ``value``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from twophase.schema.names import FieldPath


@dataclass(frozen=True)
class Position:
    """A place among the fields of one struct; made by :func:`first`, :func:`last`, :func:`before` and :func:`after`."""

    where: str
    anchor: str | int | None = None

    def __str__(self) -> str:
        return self.where if self.anchor is None else f"{self.where} {self.anchor}"


def first() -> Position:
    """Ahead of all siblings."""
    return Position("first")


def last() -> Position:
    """Behind all siblings."""
    return Position("last")


def before(sibling: str | int) -> Position:
    """Right before a sibling, given by its name or id.

    Parameters
    ----------
    sibling : str or int
        A field of the same struct.
    """
    return Position("before", sibling)


def after(sibling: str | int) -> Position:
    """Right after a sibling, given by its name or id.

    Parameters
    ----------
    sibling : str or int
        A field of the same struct.
    """
    return Position("after", sibling)


@dataclass(frozen=True)
class Change:
    """Base of all changes."""


@dataclass(frozen=True)
class AddField(Change):
    """Add a field, at any level.

    Rows that were written before read NULL, or the default. A name that was dropped earlier comes back as another
    field.

    Parameters
    ----------
    path : str or sequence of str
        Where: the parent's path and the new name.
    type : pyarrow.DataType
        Fields of a nested type get ids of their own.
    nullable : bool
        A field that is NOT NULL needs a default.
    comment : str, optional
    default : object, optional
        A value of the type, for old rows and for writers that name none.
    position : Position, optional
        Default: last.
    parent : int, optional
        Id of the struct; ``path`` then holds only what follows it.
    write_default : object, optional
        What new rows get, where it is to differ from ``default``.
    metadata : tuple of (str, str)
        Carried with the field.
    """

    path: FieldPath
    type: pa.DataType
    nullable: bool = True
    comment: str | None = None
    default: Any = None
    position: Position | None = None
    parent: int | None = None
    write_default: Any = None
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class DropField(Change):
    """Drop a field; its id is never used again and data written under it is ignored."""

    path: FieldPath


@dataclass(frozen=True)
class RenameField(Change):
    """Give a field another name; old files are read under the new one."""

    path: FieldPath
    name: str


@dataclass(frozen=True)
class ChangeType(Change):
    """Change the type of a leaf, where the promotion policy allows it; old files are cast on read."""

    path: FieldPath
    type: pa.DataType


@dataclass(frozen=True)
class ChangeNullability(Change):
    """Let a field hold NULL, or forbid it.

    Parameters
    ----------
    path : str, sequence of str or int
    nullable : bool
    checked : bool
        The caller looked: no row holds NULL there. Without it, ``nullable=False`` is refused.
    """

    path: FieldPath
    nullable: bool
    checked: bool = False


@dataclass(frozen=True)
class ChangeDefault(Change):
    """Change what new rows get where the writer names no value; None takes the default away. Old rows keep theirs."""

    path: FieldPath
    default: Any


@dataclass(frozen=True)
class ChangeComment(Change):
    """Change or remove (None) the comment of a field."""

    path: FieldPath
    comment: str | None


@dataclass(frozen=True)
class MoveField(Change):
    """Move a field among its siblings; the order is no part of the data."""

    path: FieldPath
    position: Position


@dataclass(frozen=True)
class AddPartitionKey(Change):
    """Partition by one more field from now on; files written before stay as they are."""

    path: FieldPath


@dataclass(frozen=True)
class DropPartitionKey(Change):
    """Partition no longer by a field; the field and its values stay."""

    path: FieldPath


@dataclass(frozen=True)
class SetPrimaryKey(Change):
    """Declare the primary key anew; none for no key. All its fields must be NOT NULL."""

    paths: tuple[FieldPath, ...] = field(default=())

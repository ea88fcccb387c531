"""Schema changes as values. :func:`twophase.schema.apply_changes` applies them.

A field is given as a dotted path (``"address.zip"``; backticks quote a name with dots), as a tuple with one name per
level, or by its id. The child of a list is named ``element``, those of a map ``key`` and ``value``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from twophase.schema.names import FieldPath


@dataclass(frozen=True)
class Position:
    """A position among the fields of a struct, from :func:`first`, :func:`last`, :func:`before` or :func:`after`."""

    where: str
    anchor: str | int | None = None

    def __str__(self) -> str:
        return self.where if self.anchor is None else f"{self.where} {self.anchor}"


def first() -> Position:
    """Before all siblings."""
    return Position("first")


def last() -> Position:
    """After all siblings."""
    return Position("last")


def before(sibling: str | int) -> Position:
    """Immediately before a sibling, given by its name or id.

    Parameters
    ----------
    sibling : str or int
        A field of the same struct.
    """
    return Position("before", sibling)


def after(sibling: str | int) -> Position:
    """Immediately after a sibling, given by its name or id.

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

    Existing rows have NULL, or the default. A name that was dropped earlier becomes a new field with a new id.

    Parameters
    ----------
    path : str or sequence of str
        The parent's path and the new name.
    type : pyarrow.DataType
        Fields of a nested type get their own ids.
    nullable : bool
        A NOT NULL field needs a default.
    comment : str, optional
    default : object, optional
        A value of the type, for existing rows and for writers that provide none.
    position : Position, optional
        Default: last.
    parent : int, optional
        Id of the struct; then ``path`` is relative to it.
    write_default : object, optional
        Default for new rows, if different from ``default``.
    metadata : tuple of (str, str)
        Stored with the field.
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
    """Drop a field; its id is never reused, and data written under it is ignored."""

    path: FieldPath


@dataclass(frozen=True)
class RenameField(Change):
    """Rename a field; old files are read under the new name."""

    path: FieldPath
    name: str


@dataclass(frozen=True)
class ChangeType(Change):
    """Change the type of a leaf, if the promotion policy allows it; old files are cast on read."""

    path: FieldPath
    type: pa.DataType


@dataclass(frozen=True)
class ChangeNullability(Change):
    """Make a field nullable or NOT NULL.

    Parameters
    ----------
    path : str, sequence of str or int
    nullable : bool
    checked : bool
        The caller has verified that no row has NULL there. Without it, ``nullable=False`` is refused.
    """

    path: FieldPath
    nullable: bool
    checked: bool = False


@dataclass(frozen=True)
class ChangeDefault(Change):
    """Change the default for new rows; None removes it. Existing rows keep theirs."""

    path: FieldPath
    default: Any


@dataclass(frozen=True)
class ChangeComment(Change):
    """Change or remove (None) the comment of a field."""

    path: FieldPath
    comment: str | None


@dataclass(frozen=True)
class MoveField(Change):
    """Move a field among its siblings; the order does not affect stored data."""

    path: FieldPath
    position: Position


@dataclass(frozen=True)
class AddPartitionKey(Change):
    """Partition new files by an additional field; existing files are not changed."""

    path: FieldPath


@dataclass(frozen=True)
class DropPartitionKey(Change):
    """Stop partitioning by a field; the field and its values are kept."""

    path: FieldPath


@dataclass(frozen=True)
class SetPrimaryKey(Change):
    """Replace the primary key; an empty tuple removes it. All of its fields must be NOT NULL."""

    paths: tuple[FieldPath, ...] = field(default=())

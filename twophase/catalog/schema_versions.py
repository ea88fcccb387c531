"""Versions of a table's schema, as far as its store or the timeline knows them, and the changes between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twophase.schema import Schema

#: Metadata of a field whose type the rules do not know: the type itself, in the words of the store.
OPAQUE = "twophase.type"


@dataclass(frozen=True)
class SchemaVersion:
    """One version of a table's schema; what is not known is None.

    Attributes
    ----------
    schema : Schema
        With the ids of its fields; ``schema.schema_id`` is the number of the version.
    since : float or None
        When it became the table's, in seconds since the epoch.
    commit : str or None
        The first commit with it, in the store's own terms: a snapshot of an Iceberg table, else a commit number of the
        timeline.
    transaction_id : str or None
        The transaction of twophase that made this commit.
    is_current : bool
    """

    schema: Schema
    since: float | None = None
    commit: str | None = None
    transaction_id: str | None = None
    is_current: bool = False


@dataclass(frozen=True)
class TableSchema:
    """The columns of a table.

    Attributes
    ----------
    schema : Schema
    has_ids : bool
        Whether the ids are the table's own; otherwise its fields are known by their names.
    is_foreign : bool
        Whether the store shows that twophase has not made the table.
    """

    schema: Schema
    has_ids: bool = False
    is_foreign: bool = False


@dataclass(frozen=True)
class SchemaChange:
    """A change of a table's columns.

    Attributes
    ----------
    after : TableSchema or None
        None if the table is dropped.
    before : TableSchema or None
        None if it is not known, or if there was no table.
    creates : bool
        Whether there was no table.
    renames : mapping of str to str
        Former names of top-level columns by the new ones, where there are no ids to show that.
    """

    after: TableSchema | None
    before: TableSchema | None = None
    creates: bool = False
    renames: Mapping[str, str] = field(default_factory=dict)

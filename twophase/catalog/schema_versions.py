"""Versions of a table's schema, as far as its store or the timeline knows them, and the changes between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from twophase.schema import Field, Schema
from twophase.schema.names import fold

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


# -- comparing ---------------------------------------------------------------------------------------------------------


def bound(table: TableSchema, last: Schema | None, renames: Mapping[str, str] | None = None) -> Schema:
    """Return a schema whose fields have the ids that they had in the last version: their own, or by their names."""
    if table.has_ids or last is None:
        return table.schema
    highest = last.highest_field_id
    former = {fold(new): fold(old) for new, old in (renames or {}).items()}
    numbers: dict[int, int] = {}

    def bind(fields: Sequence[Field], old: Sequence[Field], names: Mapping[str, str]) -> tuple[Field, ...]:
        nonlocal highest
        by_name = {fold(one.name): one for one in old}
        # A name that was renamed away is free for a new field.
        by_new_name = {name: one for name, one in by_name.items() if name not in names.values()}
        by_new_name |= {new: by_name[name] for new, name in names.items() if name in by_name}
        result = []
        for one in fields:
            match = by_new_name.get(fold(one.name))
            if match is None:
                highest += 1
            numbers[one.id] = highest if match is None else match.id
            children = bind(one.children, () if match is None else match.children, {})
            result.append(replace(one, id=numbers[one.id], children=children))
        return tuple(result)

    fields = bind(table.schema.fields, last.fields, former)
    primary, partition = (
        tuple(numbers[key] for key in keys) for keys in (table.schema.primary_keys, table.schema.partition_keys)
    )
    return Schema(fields, table.schema.schema_id, highest, primary, partition)


def is_same(table: TableSchema, schema: Schema, last: Schema, *, nulls: bool = True) -> bool:
    """Return whether a schema has the fields of the last version, and its ids if they are the table's own.

    Without ``nulls`` NOT NULL makes no difference.
    """
    if [last.name_of(key) for key in last.partition_keys] != [schema.name_of(key) for key in schema.partition_keys]:
        return False
    facts = {"ids": table.has_ids, "nulls": nulls}
    return _shape(schema.fields, **facts) == _shape(last.fields, **facts)


def _shape(fields: Sequence[Field], *, ids: bool, nulls: bool) -> list[Any]:
    return [
        (
            one.id if ids else None,
            one.name,
            one.kind,
            one.leaf,
            one.nullable if nulls else None,
            one.comment or None,
            dict(one.metadata).get(OPAQUE),
            _shape(one.children, ids=ids, nulls=nulls),
        )
        for one in fields
    ]

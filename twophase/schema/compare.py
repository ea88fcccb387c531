"""Equivalence of schemas and of changes that differ only in text or ids."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from twophase.schema.changes import AddField, Change, ChangeDefault
from twophase.schema.defaults import default_key
from twophase.schema.schema import Field, Schema


def keys_of(schema: Schema) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Primary and partition keys."""
    return schema.primary_keys, schema.partition_keys


def equivalent(left: Schema, right: Schema, known: frozenset[int]) -> bool:
    """Return True if two schemas describe the same table; ids are compared only for fields in ``known``."""
    if left is right or left.same_as(right):
        return True
    if len(left) != len(right) or len(left.field_ids) != len(right.field_ids):
        return False
    return _shape(left, known) == _shape(right, known)


def _shape(schema: Schema, known: frozenset[int]) -> tuple[Any, ...]:
    keys = [[schema.path_of(key) for key in ids] for ids in keys_of(schema)]
    return tuple(_field_shape(node, known) for node in schema), keys


def _field_shape(node: Field, known: frozenset[int]) -> tuple[Any, ...]:
    children = tuple(_field_shape(child, known) for child in node.children)
    return (node.id if node.id in known else None, *facts(node), children)


def facts(node: Field) -> tuple[Any, ...]:
    """All facts of a field except its id and its children."""
    defaults = (default_key(node.initial_default), default_key(node.write_default))
    return (node.name, node.kind, node.leaf, node.nullable, node.comment, *defaults, node.metadata)


def canonical(schema: Schema, known: frozenset[int]) -> Any:
    """A form of a schema without the ids of new fields and their relative order."""
    keys = [[key if key in known else schema.path_of(key) for key in ids] for ids in keys_of(schema)]
    return _canonical(schema.fields, known), keys


def _canonical(fields: Sequence[Field], known: frozenset[int]) -> Any:
    old = [(node.id, facts(node), _canonical(node.children, known)) for node in fields if node.id in known]
    new = {node.name: (facts(node), _canonical(node.children, known)) for node in fields if node.id not in known}
    return old, new


def change_key(change: Change) -> Hashable:
    """A key that is equal for equivalent changes; it ignores the position of a new column."""
    if isinstance(change, AddField):
        plain = replace(change, position=None, default=None, write_default=None)
        return plain, default_key(change.default), default_key(change.write_default)
    if isinstance(change, ChangeDefault):
        return replace(change, default=None), default_key(change.default)
    return change

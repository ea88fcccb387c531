"""Change lists with fields referenced by id, which keep their meaning on a schema that others have changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from twophase.schema.apply import Application
from twophase.schema.changes import (
    AddField,
    AddPartitionKey,
    Change,
    DropPartitionKey,
    MoveField,
    Position,
    RenameField,
    SetPrimaryKey,
)
from twophase.schema.compare import equivalent
from twophase.schema.diff import added, diff
from twophase.schema.errors import SchemaError
from twophase.schema.schema import Schema
from twophase.schema.tree import Node


def by_ids(schema: Schema, changes: Iterable[Change]) -> list[Change]:
    """Replace the paths in a list with ids.

    Changes to a field that the list itself adds are folded into the ``AddField``: otherwise, another transaction that
    adds the same column would seem to have made only a part of the changes.

    Raises
    ------
    SchemaError
        The list cannot be applied to the schema.
    """
    application = Application(schema, trusted=True)
    steps = [_take(application, change) for change in changes]
    target = application.result(schema.schema_id + 1)
    folded = list(_folded(schema, target, steps))
    # New fields have their final names, which may clash with earlier names of other fields in the list.
    return folded if _leads_to(schema, folded, target) else diff(schema, target)


def _leads_to(schema: Schema, changes: Iterable[Change], target: Schema) -> bool:
    application = Application(schema, trusted=True)
    try:
        for change in changes:
            application.apply(change)
        return equivalent(application.result(target.schema_id), target, schema.field_ids)
    except SchemaError:
        return False


@dataclass(frozen=True)
class _Step:
    """A change and its fields, whose names may be different at the end of the list."""

    change: Any
    nodes: tuple[Node, ...]
    anchor: Node | None = None


def _take(application: Application, change: Change) -> _Step:
    """Apply a change, and record its fields."""
    if isinstance(change, AddField):
        anchor = _anchor(application, change.position, application.new_place(change)[0])
        application.apply(change)
        return _Step(change, (application.added[-1],), anchor)
    paths = change.paths if isinstance(change, SetPrimaryKey) else (getattr(change, "path", ()),)
    nodes = tuple(application.find(path) for path in paths)
    anchor = _anchor(application, change.position, nodes[0].parent) if isinstance(change, MoveField) else None
    application.apply(change)
    return _Step(change, nodes, anchor)


def _anchor(application: Application, position: Position | None, parent: Node | None) -> Node | None:
    if position is None or position.anchor is None:
        return None
    if isinstance(position.anchor, str) and (named := application.tree.siblings(parent).named(position.anchor)):
        return named[0]
    return application.find(position.anchor)


def _folded(schema: Schema, target: Schema, steps: list[_Step]) -> Iterator[Change]:
    # Only the last of several renames of one field is kept; with ids they would contradict each other.
    renames = {step.nodes[0].id: step for step in steps if isinstance(step.change, RenameField)}
    for step in steps:
        if isinstance(step.change, SetPrimaryKey):
            yield SetPrimaryKey(tuple(_reference(node) for node in step.nodes))
        elif not _within_a_new_field(step):
            yield from _change(schema, target, step, renames)


def _within_a_new_field(step: _Step) -> bool:
    """Return True if the change is already part of the addition of a new field."""
    (node,) = step.nodes
    if isinstance(step.change, AddField | MoveField):
        return node.parent is not None and node.parent.origin is None
    return node.origin is None and not isinstance(step.change, AddPartitionKey | DropPartitionKey)


def _change(schema: Schema, target: Schema, step: _Step, renames: dict[int, _Step]) -> Iterator[Change]:
    (node,) = step.nodes
    if isinstance(step.change, AddField):
        yield from added(schema, target, target.by_id(node.id), _position(step))
    elif isinstance(step.change, MoveField):
        yield MoveField(_reference(node), _position(step) or step.change.position)
    elif renames.get(node.id, step) is step or not isinstance(step.change, RenameField):
        yield replace(step.change, path=_reference(node))


def _position(step: _Step) -> Position | None:
    if step.anchor is None:
        return step.change.position
    return replace(step.change.position, anchor=step.anchor.name if step.anchor.origin is None else step.anchor.id)


def _reference(node: Node) -> int | tuple[str | int, ...]:
    """A reference to a field: its id, or for a new one its nearest existing ancestor's id and names."""
    names: list[str | int] = []
    current: Node | None = node
    while current is not None and current.origin is None:
        names.append(current.name)
        current = current.parent
    names.reverse()
    if current is None:
        return tuple(names)
    return (current.id, *names) if names else current.id

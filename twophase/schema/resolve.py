"""Change lists whose fields are named by ids, so that they mean the same on a schema that others changed meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from twophase.schema.apply import Application
from twophase.schema.changes import AddField, Change, MoveField, Position, RenameField, SetPrimaryKey
from twophase.schema.names import FieldPath
from twophase.schema.promotion import promotion_policy
from twophase.schema.schema import Schema
from twophase.schema.tree import Node

#: The changes were let through by their own transaction: no policy refuses them a second time.
_ALREADY_ALLOWED = promotion_policy("explicit")


def by_ids(schema: Schema, changes: Iterable[Change]) -> list[Change]:
    """The same list with ids for paths.

    Raises
    ------
    SchemaError
        The list does not apply to the schema.
    """
    application = Application(schema, _ALREADY_ALLOWED, None)
    resolver = _Resolver(application)
    resolved: list[Change] = []
    for change in changes:
        resolved.append(resolver.resolve(change))
        application.apply(change)
    return _without_older_renames(resolved)


def _without_older_renames(changes: Sequence[Change]) -> list[Change]:
    """Of several renames of one field only the last matters; by ids they would contradict each other."""
    final = {change.path: change for change in changes if isinstance(change, RenameField)}
    return [change for change in changes if not isinstance(change, RenameField) or final[change.path] is change]


class _Resolver:
    def __init__(self, application: Application) -> None:
        self.application = application

    def resolve(self, change: Change) -> Change:
        if isinstance(change, AddField):
            return self._add(change)
        if isinstance(change, SetPrimaryKey):
            return SetPrimaryKey(tuple(self.reference(path) for path in change.paths))
        changed = replace(change, path=self.reference(change.path))  # type: ignore[call-arg, attr-defined]
        if isinstance(changed, MoveField):
            node = self.application.find(changed.path)
            return replace(changed, position=self._position(changed.position, node.parent))
        return changed

    def _add(self, change: AddField) -> AddField:
        parent, name = self.application.new_place(change)
        position = None if change.position is None else self._position(change.position, parent)
        if parent is None:
            return replace(change, path=(name,), position=position)
        above = self._name(parent)
        if isinstance(above, int):
            return replace(change, path=(name,), parent=above, position=position)
        owner, names = (above[0], above[1:]) if isinstance(above[0], int) else (None, above)
        return replace(change, path=(*names, name), parent=owner, position=position)

    def _position(self, position: Position, parent: Node | None) -> Position:
        if not isinstance(position.anchor, str):
            return position
        named = self.application.tree.siblings(parent).named(position.anchor)
        old = [node for node in named if node.origin is not None]
        return replace(position, anchor=old[0].id) if old else position

    def reference(self, path: FieldPath) -> FieldPath:
        return self._name(self.application.find(path))

    def _name(self, node: Node) -> int | tuple[str | int, ...]:
        """The id of an older field; for a new one the nearest older id above it, and names."""
        names: list[str | int] = []
        current: Node | None = node
        while current is not None and current.origin is None:
            names.append(current.name)
            current = current.parent
        names.reverse()
        if current is None:
            return tuple(names)
        return (current.id, *names) if names else current.id

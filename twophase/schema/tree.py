"""A mutable schema, for applying changes.

Nodes know their parents, and siblings are found by id, name and position in constant time, so that the cost of a change
does not depend on the width of the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

import pyarrow as pa

from twophase.schema.leaf import type_name
from twophase.schema.names import FieldPath, fold
from twophase.schema.paths import unknown_field, walk
from twophase.schema.schema import Field, Kind, Schema


class Node:
    """A mutable field. ``origin`` is the original field (None for a new one)."""

    __slots__ = (
        *("id", "name", "kind", "leaf", "nullable", "comment", "initial_default", "write_default", "metadata"),
        *("origin", "parent", "below", "dirty"),
    )

    def __init__(self, source: Field, parent: Node | None, *, new: bool = False) -> None:
        self.id = source.id
        self.name = source.name
        self.kind = source.kind
        self.leaf: pa.DataType | None = source.leaf
        self.nullable = source.nullable
        self.comment = source.comment
        self.initial_default: pa.Scalar | None = source.initial_default
        self.write_default: pa.Scalar | None = source.write_default
        self.metadata = source.metadata
        self.origin = None if new else source
        self.parent = parent
        self.below: Siblings | None = None
        self.dirty = new

    def touch(self) -> None:
        """Mark this node and its ancestors as changed."""
        node: Node | None = self
        while node is not None and not node.dirty:
            node.dirty = True
            node = node.parent

    def ancestors(self) -> Iterator[Node]:
        node = self.parent
        while node is not None:
            yield node
            node = node.parent


class Siblings:
    """The fields of one struct (or list, map, table), in order.

    Fields become nodes only when a change reaches them, so that a change is not more expensive on a wide table. Names
    are indexed at the first lookup by name, and the order is linked at the first insert that is not at the end.
    """

    def __init__(self, fields: Iterable[Field], adopt: Callable[[Field], Node]) -> None:
        self._members: dict[int, Field | Node] = {field.id: field for field in fields}
        self._adopt = adopt
        self._names: dict[str, list[int]] | None = None
        self._next: dict[int | None, int | None] | None = None
        self._previous: dict[int | None, int | None] = {}

    def __iter__(self) -> Iterator[Field | Node]:
        if self._next is None:
            yield from self._members.values()
            return
        at = self._next[None]
        while at is not None:
            yield self._members[at]
            at = self._next[at]

    def __len__(self) -> int:
        return len(self._members)

    def node(self, field_id: int) -> Node:
        """The member with an id, as a mutable node."""
        member = self._members[field_id]
        if isinstance(member, Field):
            self._members[field_id] = member = self._adopt(member)
        return member

    def insert(self, node: Node, behind: Node | None) -> None:
        """Insert a node after another one; None inserts it first."""
        before = None if behind is None else behind.id
        if self._next is None and before != next(reversed(self._members), None):
            self._link_all()
        self._members[node.id] = node
        if self._names is not None:
            self._names.setdefault(fold(node.name), []).append(node.id)
        if self._next is not None:
            follower = self._next[before]
            self._link(before, node.id)
            self._link(node.id, follower)

    def remove(self, node: Node) -> None:
        del self._members[node.id]
        if self._names is not None:
            self._names[fold(node.name)].remove(node.id)
        if self._next is not None:
            self._link(self._previous.pop(node.id), self._next.pop(node.id))

    def rename(self, node: Node, name: str) -> None:
        if self._names is not None:
            self._names[fold(node.name)].remove(node.id)
            self._names.setdefault(fold(name), []).append(node.id)
        node.name = name

    def last(self) -> Node | None:
        at = next(reversed(self._members), None) if self._next is None else self._previous[None]
        return None if at is None else self.node(at)

    def previous(self, node: Node) -> Node | None:
        if self._next is None:
            self._link_all()
        at = self._previous[node.id]
        return None if at is None else self.node(at)

    def named(self, name: str) -> list[Node]:
        """Nodes with a name; those in another case only if there is no exact match."""
        if self._names is None:
            self._names = {}
            for field_id, member in self._members.items():
                self._names.setdefault(fold(member.name), []).append(field_id)
        alike = [self.node(field_id) for field_id in self._names.get(fold(name), ())]
        return [node for node in alike if node.name == name] or alike

    def _link_all(self) -> None:
        self._next = {}
        last: int | None = None
        for field_id in self._members:
            self._link(last, field_id)
            last = field_id
        self._link(last, None)

    def _link(self, left: int | None, right: int | None) -> None:
        assert self._next is not None
        self._next[left] = right
        self._previous[right] = left


class Tree:
    """A schema's fields as a mutable tree. Only fields that a change reaches become nodes."""

    def __init__(self, schema: Schema, highest_field_id: int) -> None:
        self.schema = schema
        self.nodes: dict[int, Node] = {}
        self.dropped: dict[int, str] = {}
        self.highest = highest_field_id
        self.top = self._unfold(schema.fields, None)

    def next_ids(self) -> Iterator[int]:
        """Ids that the table has never used; each one is given out once."""
        for number in count(self.highest + 1):
            self.highest = number
            yield number

    def siblings(self, parent: Node | None) -> Siblings:
        """The children of a node, or the top-level fields."""
        if parent is None:
            return self.top
        if parent.below is None:
            parent.below = self._unfold(parent.origin.children if parent.origin else (), parent)
        return parent.below

    def _unfold(self, fields: Iterable[Field], parent: Node | None) -> Siblings:
        return Siblings(fields, lambda source: self._adopt(source, parent))

    def _adopt(self, source: Field, parent: Node | None, *, new: bool = False) -> Node:
        node = Node(source, parent, new=new)
        self.nodes[node.id] = node
        return node

    def add_below(self, source: Field, parent: Node | None) -> Node:
        """Create a node with its descendants; it is not inserted among its siblings yet."""
        node = self._adopt(source, parent, new=True)
        node.below = self._unfold((), node)
        for child in source.children:
            node.below.insert(self.add_below(child, node), node.below.last())
        return node

    def get(self, field_id: int) -> Node | None:
        """The node with an id, created with its ancestors if needed; None if the id is unknown or dropped."""
        node = self.nodes.get(field_id)
        if node is not None or field_id not in self.schema or field_id in self.dropped:
            return node
        parent_id = self.schema.parent_of(field_id)
        if parent_id is None:
            return self.top.node(field_id)
        parent = self.get(parent_id)
        return None if parent is None else self.siblings(parent).node(field_id)

    def find(self, path: FieldPath) -> Node:
        """The node at a path.

        Raises
        ------
        UnknownFieldError, AmbiguousPathError
        """
        if isinstance(path, int):
            node = self.get(path)
        elif path and isinstance(path[0], int):
            start = self.find(path[0])
            node = walk(start, path[1:], self._named) if path[1:] else start
        else:
            node = walk(None, path, self._named)
        if node is None:
            raise unknown_field(path, self._known_paths())
        return node

    def _named(self, parent: Node | None, name: str) -> list[Node]:
        return self.siblings(parent).named(name)

    def path(self, node: Node) -> tuple[str, ...]:
        return tuple(reversed([node.name, *(parent.name for parent in node.ancestors())]))

    def drop(self, node: Node, text: str) -> None:
        """Remove a node with its descendants."""
        self.siblings(node.parent).remove(node)
        if node.parent is not None:
            node.parent.touch()
        for gone in self.ids_of(node):
            self.dropped[gone] = text
            self.nodes.pop(gone, None)

    def freeze(self) -> tuple[Field, ...]:
        """Return the current fields; unchanged ones are the original objects."""
        return self._freeze_all(self.top)

    def _freeze_all(self, siblings: Siblings) -> tuple[Field, ...]:
        return tuple([member if isinstance(member, Field) else self._freeze(member) for member in siblings])

    def _freeze(self, node: Node) -> Field:
        if node.origin is not None and not node.dirty:
            return node.origin
        if node.below is not None:
            children = self._freeze_all(node.below)
        else:
            children = node.origin.children if node.origin else ()
        facts = (node.id, node.name, node.kind, node.leaf, node.nullable, node.comment)
        frozen = Field(*facts, node.initial_default, node.write_default, node.metadata, children)
        return node.origin if node.origin is not None and frozen == node.origin else frozen

    def ids_of(self, node: Node) -> Iterator[int]:
        """The ids of a node and its descendants."""
        yield node.id
        below = node.below if node.below is not None else (node.origin.children if node.origin else ())
        for member in below:
            if isinstance(member, Field):
                yield from (field.id for field in member.walk())
            else:
                yield from self.ids_of(member)

    def _known_paths(self) -> Iterator[tuple[str, ...]]:
        for node in list(self.nodes.values()):
            yield self.path(node)
        for old in self.schema.walk():
            if old.id not in self.nodes and old.id not in self.dropped:
                yield self.schema.path_of(old.id)


def type_name_of(node: Node) -> str:
    """The name of a node's type in error messages."""
    return node.kind.value if node.leaf is None else type_name(node.leaf)


def struct_like(node: Node | None) -> bool:
    """Return True if fields can be added below: at the top level, and in structs."""
    return node is None or node.kind is Kind.STRUCT

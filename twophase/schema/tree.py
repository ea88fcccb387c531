"""A schema under change.

Nodes know their parents, and siblings stand in a linked order, so that each change costs the same on any width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

import pyarrow as pa

from twophase.schema.errors import AmbiguousPathError
from twophase.schema.names import FieldPath, fold
from twophase.schema.paths import path_text, unknown_field, walk
from twophase.schema.schema import Field, Kind, Schema


class Node:
    """A field that can change. What it was before stands in ``origin`` (None for a new one)."""

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
        """Note that this node, and so all above it, must be built anew."""
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
    """The fields of one struct (or list, map, table): ordered, found by name in one step."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._next: dict[Node | None, Node | None] = {None: None}
        self._previous: dict[Node | None, Node | None] = {None: None}
        self._named: dict[str, list[Node]] = {}
        for node in nodes:
            self.insert(node, self._previous[None])

    def __iter__(self) -> Iterator[Node]:
        node = self._next[None]
        while node is not None:
            yield node
            node = self._next[node]

    def __len__(self) -> int:
        return len(self._next) - 1

    def insert(self, node: Node, behind: Node | None) -> None:
        """Put a node right behind another; behind None is first."""
        follower = self._next[behind]
        self._link(behind, node)
        self._link(node, follower)
        self._named.setdefault(fold(node.name), []).append(node)

    def remove(self, node: Node) -> None:
        self._link(self._previous.pop(node), self._next.pop(node))
        self._forget(node)

    def rename(self, node: Node, name: str) -> None:
        self._forget(node)
        node.name = name
        self._named.setdefault(fold(name), []).append(node)

    def last(self) -> Node | None:
        return self._previous[None]

    def previous(self, node: Node) -> Node | None:
        return self._previous[node]

    def named(self, name: str) -> list[Node]:
        """Nodes of that name; those in another case only where none has the very name."""
        alike = self._named.get(fold(name), [])
        return [node for node in alike if node.name == name] or list(alike)

    def _link(self, left: Node | None, right: Node | None) -> None:
        self._next[left] = right
        self._previous[right] = left

    def _forget(self, node: Node) -> None:
        alike = self._named[fold(node.name)]
        alike.remove(node)
        if not alike:
            del self._named[fold(node.name)]


class Tree:
    """A schema's fields under change. Only the structs that a change reaches are unfolded."""

    def __init__(self, schema: Schema, highest_field_id: int) -> None:
        self.schema = schema
        self.nodes: dict[int, Node] = {}
        self.dropped: dict[int, str] = {}
        self.highest = highest_field_id
        self.top = Siblings(self._adopt(schema.fields, None))

    def next_ids(self) -> Iterator[int]:
        """Numbers that the table never used; each one taken is gone."""
        for number in count(self.highest + 1):
            self.highest = number
            yield number

    def siblings(self, parent: Node | None) -> Siblings:
        """What lies below a node, or at the top."""
        if parent is None:
            return self.top
        if parent.below is None:
            parent.below = Siblings(self._adopt(parent.origin.children if parent.origin else (), parent))
        return parent.below

    def add_below(self, source: Field, parent: Node | None) -> Node:
        """A new node with all that lies below it, not yet among its siblings."""
        node = Node(source, parent, new=True)
        self.nodes[node.id] = node
        node.below = Siblings(self.add_below(child, node) for child in source.children)
        return node

    def get(self, field_id: int) -> Node | None:
        """The node of an id, unfolding what lies above it; None where it is unknown or gone."""
        node = self.nodes.get(field_id)
        if node is not None or field_id not in self.schema or field_id in self.dropped:
            return node
        parent_id = self.schema.parent_of(field_id)
        parent = None if parent_id is None else self.get(parent_id)
        if parent is not None:
            self.siblings(parent)
        return self.nodes.get(field_id)

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
            node = walk(self.siblings(start), path[1:], self.siblings) if path[1:] else start
        elif len(path) == 1 and not isinstance(path, str):
            node = self._only(self.top.named(str(path[0])), path)
        elif isinstance(path, str) and "." not in path and "`" not in path:
            node = self._only(self.top.named(path), path)
        else:
            node = walk(self.top, path, self.siblings)
        if node is None:
            raise unknown_field(path, self._known_paths())
        return node

    def path(self, node: Node) -> tuple[str, ...]:
        return tuple(reversed([node.name, *(parent.name for parent in node.ancestors())]))

    def drop(self, node: Node, text: str) -> None:
        """Take a node away with all below it."""
        self.siblings(node.parent).remove(node)
        if node.parent is not None:
            node.parent.touch()
        for gone in self.ids_of(node):
            self.dropped[gone] = text
            self.nodes.pop(gone, None)

    def freeze(self) -> tuple[Field, ...]:
        """The fields as they are now; what did not change is the very object it was."""
        return tuple(self._freeze(node) for node in self.top)

    def _freeze(self, node: Node) -> Field:
        if node.origin is not None and not node.dirty:
            return node.origin
        if node.below is not None:
            children = tuple(self._freeze(child) for child in node.below)
        else:
            children = node.origin.children if node.origin else ()
        facts = (node.id, node.name, node.kind, node.leaf, node.nullable, node.comment)
        frozen = Field(*facts, node.initial_default, node.write_default, node.metadata, children)
        return node.origin if node.origin is not None and frozen == node.origin else frozen

    def ids_of(self, node: Node) -> Iterator[int]:
        yield node.id
        if node.below is not None:
            for child in node.below:
                yield from self.ids_of(child)
        elif node.origin is not None:
            for below in node.origin.children:
                yield from (field.id for field in below.walk())

    def _adopt(self, fields: Iterable[Field], parent: Node | None) -> Iterator[Node]:
        for source in fields:
            node = Node(source, parent)
            self.nodes[node.id] = node
            yield node

    def _only(self, found: list[Node], path: FieldPath) -> Node | None:
        if len(found) > 1:
            raise AmbiguousPathError(
                f"At this point of the list {path_text(path)!r} names {len(found)} fields.",
                field_path=path_text(path),
                hint="Name the field by its id.",
            )
        return found[0] if found else None

    def _known_paths(self) -> Iterator[tuple[str, ...]]:
        for node in list(self.nodes.values()):
            yield self.path(node)


def struct_like(node: Node | None) -> bool:
    """Whether fields can be added below: at the top, and in structs."""
    return node is None or node.kind is Kind.STRUCT

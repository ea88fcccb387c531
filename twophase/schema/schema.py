"""Schemas with field ids at every level.

Ids make schema changes unambiguous: a rename keeps the id, and a dropped column that is added again gets a new one
(Flink FLIP-226, Hudi's InternalSchema, Iceberg). Leaf types are PyArrow's; lists, maps and structs have child fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import pyarrow as pa

from twophase.schema.defaults import default_key
from twophase.schema.errors import FieldIdError, KeyFieldError, LastFieldError, SchemaError, UnknownFieldError
from twophase.schema.leaf import type_name
from twophase.schema.names import FieldPath, fold, format_path
from twophase.schema.paths import check_siblings, unknown_field, walk

#: Deeper nesting is refused: Spark, Parquet readers and JSON parsers fail at about this depth.
MAX_DEPTH = 100


class Kind(Enum):
    """The kind of a field: a leaf, or one of the nested types."""

    LEAF = "leaf"
    STRUCT = "struct"
    LIST = "list"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a schema, at any level.

    Parameters
    ----------
    id : int
        Never reused for another field of the table, not even after this one is dropped.
    name : str
        ``element`` below a list, ``key`` and ``value`` below a map.
    kind : Kind
    leaf : pyarrow.DataType, optional
        The type of a leaf; None for the other kinds.
    nullable : bool
    comment : str, optional
    initial_default : pyarrow.Scalar, optional
        Value of the field in rows that were written before it was added.
    write_default : pyarrow.Scalar, optional
        Value of the field in new rows, if the writer provides none.
    metadata : tuple of (str, str)
        Other facts from the source of the schema; passed through, never interpreted.
    children : tuple of Field
        Fields of a struct, the element of a list, or the key and the value of a map.
    """

    id: int
    name: str
    kind: Kind = Kind.LEAF
    leaf: pa.DataType | None = None
    nullable: bool = True
    comment: str | None = None
    initial_default: pa.Scalar | None = field(default=None, hash=False)
    write_default: pa.Scalar | None = field(default=None, hash=False)
    metadata: tuple[tuple[str, str], ...] = ()
    children: tuple[Field, ...] = ()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Field):
            return NotImplemented
        return self._compared() == other._compared()

    def _compared(self) -> tuple[object, ...]:
        defaults = (default_key(self.initial_default), default_key(self.write_default))
        facts = (self.id, self.name, self.kind, self.leaf, self.nullable, self.comment)
        return (*facts, *defaults, self.metadata, self.children)

    @property
    def type_name(self) -> str:
        """The name of the type in error messages."""
        return self.kind.value if self.leaf is None else type_name(self.leaf)

    def walk(self) -> Iterator[Field]:
        """This field and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Schema:
    """An immutable schema with field ids.

    Parameters
    ----------
    fields : tuple of Field
    schema_id : int
        Number of this version of the table's schema.
    highest_field_id : int
        The highest id that the table has ever used; -1 (the default): the highest one of the fields.
    primary_keys, partition_keys : tuple of int
        Field ids, in order.

    Raises
    ------
    FieldIdError
        Two fields have one id, or an id is above ``highest_field_id``.
    DuplicateFieldError
        Two siblings have the same name, ignoring case.
    LastFieldError
        A struct has no fields.
    KeyFieldError
        A key is not a field, or is below a list or map, or a primary key is nullable.
    """

    fields: tuple[Field, ...]
    schema_id: int = 0
    highest_field_id: int = -1
    primary_keys: tuple[int, ...] = ()
    partition_keys: tuple[int, ...] = ()
    _index: _Index = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index = _Index()
        index.add_all(self.fields, None, 1)
        object.__setattr__(self, "_index", index)
        highest = max(index.by_id, default=-1)
        if self.highest_field_id < 0:
            object.__setattr__(self, "highest_field_id", highest)
        if highest > self.highest_field_id:
            raise FieldIdError(
                f"The field {self.name_of(highest)} has the id {highest}, above highest_field_id "
                f"{self.highest_field_id}.",
                field_path=self.name_of(highest),
                new_type=self.by_id(highest).type_name,
                allowed=(f"highest_field_id={highest} or more",),
            )
        if self.primary_keys or self.partition_keys:
            self._check_keys()

    def _check_keys(self) -> None:
        for kind, keys in (("primary-key", self.primary_keys), ("partition", self.partition_keys)):
            if len(set(keys)) != len(keys):
                twice = next(key for key in keys if keys.count(key) > 1)
                path = self.name_of(twice)
                raise KeyFieldError(
                    f"The {kind} field {path} is named twice.",
                    field_path=path,
                    old_type=self.by_id(twice).type_name,
                    allowed=("each field once",),
                )
            for key in keys:
                self._check_key(kind, key)

    def _check_key(self, kind: str, key: int) -> None:
        target = self.by_id(key)
        path = self.name_of(key)
        if target.kind is not Kind.LEAF:
            raise KeyFieldError(
                f"The {kind} field {path} is a {target.type_name}, not a leaf.",
                field_path=path,
                old_type=target.type_name,
                new_type="a leaf",
                allowed=("a leaf below it",),
            )
        if any(parent.kind in (Kind.LIST, Kind.MAP) for parent in self.ancestors(key)):
            raise KeyFieldError(
                f"The {kind} field {path} is below a list or map.",
                field_path=path,
                old_type=target.type_name,
                allowed=("a column, or a field of structs alone",),
            )
        if kind == "primary-key" and (target.nullable or any(parent.nullable for parent in self.ancestors(key))):
            raise KeyFieldError(
                f"The primary-key field {path} is nullable.",
                field_path=path,
                old_type=target.type_name,
                new_type=f"{target.type_name} NOT NULL",
                allowed=("ChangeNullability(nullable=False, checked=True) first, of it and of the structs around it",),
            )

    # -- finding fields ------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, field_id: int) -> bool:
        return field_id in self._index.by_id

    @property
    def field_ids(self) -> frozenset[int]:
        """Ids of all fields at all levels."""
        return frozenset(self._index.by_id)

    def walk(self) -> Iterator[Field]:
        """All fields at all levels, parents first."""
        for top in self.fields:
            yield from top.walk()

    def by_id(self, field_id: int) -> Field:
        """Return the field with an id.

        Parameters
        ----------
        field_id : int
            Id of a field, at any level.

        Raises
        ------
        UnknownFieldError
        """
        try:
            return self._index.by_id[field_id]
        except KeyError:
            raise UnknownFieldError(
                f"No field has the id {field_id}.",
                field_path=f"#{field_id}",
                allowed=(f"one of the ids {_some(sorted(self._index.by_id))}",),
            ) from None

    def get(self, field_id: int) -> Field | None:
        """Return the field with an id, or None.

        Parameters
        ----------
        field_id : int
            Id of a field, at any level.
        """
        return self._index.by_id.get(field_id)

    def find(self, path: FieldPath) -> Field:
        """Return the field at a path: dotted text (with backticks for quoting), one name per level, or an id.

        Names are matched case-insensitively, as in Spark, if there is no exact match.

        Parameters
        ----------
        path : str, int or sequence
            ``"a.b"``, ``("a", "b")``, an id, or an id followed by names.

        Raises
        ------
        UnknownFieldError
            No field has that path; the error suggests the nearest ones.
        AmbiguousPathError
            ``"a.b"`` is both a column of that name and the field ``b`` of ``a``, or two names differ only in case.
        """
        if isinstance(path, int):
            return self.by_id(path)
        if path and isinstance(path[0], int):
            top = self.by_id(path[0])
            found = walk(top, path[1:], self._named) if path[1:] else top
        else:
            found = walk(None, path, self._named)
        if found is None:
            raise unknown_field(path, (self.path_of(i) for i in self._index.by_id))
        return found

    def _named(self, parent: Field | None, name: str) -> Sequence[Field]:
        return self._index.named(self.fields if parent is None else parent.children, parent, name)

    def ancestors(self, field_id: int) -> list[Field]:
        """The ancestors of a field, nearest first.

        Parameters
        ----------
        field_id : int
            Id of a field of this schema.
        """
        above: list[Field] = []
        parent = self._index.parent[field_id]
        while parent is not None:
            above.append(self._index.by_id[parent])
            parent = self._index.parent[parent]
        return above

    def path_of(self, field_id: int) -> tuple[str, ...]:
        """The path of a field as names, top level first.

        Parameters
        ----------
        field_id : int
            Id of a field of this schema.
        """
        names = [self.by_id(field_id).name, *(parent.name for parent in self.ancestors(field_id))]
        return tuple(reversed(names))

    def name_of(self, field_id: int) -> str:
        """The path of a field as text.

        Parameters
        ----------
        field_id : int
            Id of a field of this schema.
        """
        return format_path(self.path_of(field_id))

    def parent_of(self, field_id: int) -> int | None:
        """Id of the parent of a field; None at the top level.

        Parameters
        ----------
        field_id : int
            Id of a field of this schema.
        """
        return self._index.parent[field_id]

    @cached_property
    def _shape(self) -> tuple[object, ...]:
        return (self.fields, self.primary_keys, self.partition_keys)

    def same_as(self, other: Schema) -> bool:
        """Return True if both describe the same table, ignoring the version numbers.

        Parameters
        ----------
        other : Schema
            The schema to compare: ids, names, types, nullability, defaults, order and keys.
        """
        return self._shape == other._shape

    def with_id(self, schema_id: int) -> Schema:
        """The same schema with another version number.

        Parameters
        ----------
        schema_id : int
            The version number.
        """
        return self if schema_id == self.schema_id else replace(self, schema_id=schema_id)

    def __str__(self) -> str:
        lines = [f"schema {self.schema_id}"]
        for top in self.fields:
            lines.extend(_lines(top, 1))
        return "\n".join(lines)


def _lines(node: Field, depth: int) -> Iterator[str]:
    null = "" if node.nullable else " NOT NULL"
    yield f"{'  ' * depth}{node.id}: {node.name} {node.type_name}{null}"
    for child in node.children:
        yield from _lines(child, depth + 1)


class _Index:
    """An index of fields by id, built in one pass that also checks the tree."""

    __slots__ = ("by_id", "names", "parent")

    def __init__(self) -> None:
        self.by_id: dict[int, Field] = {}
        self.parent: dict[int, int | None] = {}
        #: By parent and folded name; built for a parent at the first lookup below it.
        self.names: dict[int | None, dict[str, list[Field]]] = {}

    def named(self, siblings: Sequence[Field], parent: Field | None, name: str) -> Sequence[Field]:
        """Siblings with a name; those in another case only if there is no exact match."""
        where = None if parent is None else parent.id
        names = self.names.get(where)
        if names is None:
            names = {}
            for node in siblings:
                names.setdefault(fold(node.name), []).append(node)
            self.names[where] = names
        alike = names.get(fold(name), [])
        return [node for node in alike if node.name == name] or alike

    def add_all(self, siblings: Sequence[Field], parent: Field | None, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise SchemaError(
                f"The schema is nested deeper than {MAX_DEPTH} levels.",
                field_path=format_path(self.path(parent)),
                old_type=None if parent is None else parent.type_name,
                allowed=(f"up to {MAX_DEPTH} levels",),
            )
        where = None if parent is None else parent.id
        by_id, parents = self.by_id, self.parent
        for node in siblings:
            if node.id in by_id:
                raise _id_clash(self.path(by_id[node.id]), by_id[node.id], (*self.path(parent), node.name), node)
            by_id[node.id] = node
            parents[node.id] = where
            if node.kind is not Kind.LEAF:
                _check_children(node, self.path)
                self.add_all(node.children, node, depth + 1)
        check_siblings(siblings, lambda: self.path(parent))

    def path(self, node: Field | None) -> tuple[str, ...]:
        """The path of a field that is already in the index; empty for the table."""
        names: list[str] = []
        while node is not None:
            names.append(node.name)
            above = self.parent[node.id]
            node = None if above is None else self.by_id[above]
        return tuple(reversed(names))


def _some(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:20])) + (", ..." if len(ids) > 20 else "")


def _id_clash(first_path: Sequence[str], first: Field, path: Sequence[str], second: Field) -> FieldIdError:
    return FieldIdError(
        f"The fields {format_path(first_path)} ({first.type_name}) and {format_path(path)} ({second.type_name}) both "
        f"have the id {second.id}.",
        field_path=format_path(path),
        old_type=first.type_name,
        new_type=second.type_name,
        allowed=("an id of its own for each field", "assign_ids, for a table that had no ids"),
    )


_NAMES_BELOW = {Kind.LIST: ["element"], Kind.MAP: ["key", "value"]}


def _check_children(node: Field, path_of: Callable[[Field], Sequence[str]]) -> None:
    if node.kind is Kind.STRUCT:
        if not node.children:
            path = format_path(path_of(node))
            raise LastFieldError(
                f"The struct {path} has no fields.",
                field_path=path,
                old_type="struct",
                allowed=("a struct with at least one field", "no such field"),
            )
        return
    expected = _NAMES_BELOW[node.kind]
    if [child.name for child in node.children] != expected:
        raise _wrong_below(node, path_of, f"stand {' and '.join(expected)}, not", f"just {' and '.join(expected)}")
    if node.kind is Kind.MAP and node.children[0].nullable:
        raise _wrong_below(node, path_of, "the key is nullable:", "a key that is NOT NULL")


def _wrong_below(node: Field, path_of: Callable[[Field], Sequence[str]], what: str, way: str) -> SchemaError:
    path = format_path(path_of(node))
    names = ", ".join(child.name for child in node.children) or "nothing"
    return SchemaError(
        f"Below the {node.kind.value} {path} {what} {names}.",
        field_path=path,
        old_type=node.type_name,
        allowed=(way,),
    )

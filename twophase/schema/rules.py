"""Structural rules, which apply to all types (FLIP-226's restrictions on keys, Iceberg's on nested fields)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from twophase.schema.changes import AddField, ChangeNullability
from twophase.schema.errors import (
    KeyFieldError,
    LastFieldError,
    MoveError,
    NestedFieldError,
    NullabilityError,
    TypeChangeError,
)
from twophase.schema.leaf import is_nested, type_name
from twophase.schema.promotion import Loss, PromotionPolicy, classify
from twophase.schema.schema import Kind
from twophase.schema.tree import Node, Siblings, struct_like, type_name_of


def check_map_key(node: Node | None, path: str, new_type: str | None = None) -> None:
    """Refuse any change in a map's key: two keys could become equal."""
    below = node
    while below is not None and below.parent is not None:
        if below.parent.kind is Kind.MAP and below.name == "key":
            raise NestedFieldError(
                f"{path} belongs to a map's key, which cannot change.",
                field_path=path,
                old_type=None if node is None else type_name_of(node),
                new_type=new_type,
                allowed=("a new map field with the key wanted",),
            )
        below = below.parent


def check_nested(node: Node, path: str, what: str) -> None:
    """Refuse to drop, rename or move the element, key or value of a list or map."""
    check_map_key(node, path)
    if node.parent is not None and node.parent.kind in (Kind.LIST, Kind.MAP):
        raise NestedFieldError(
            f"{path} cannot be {what}: a {node.parent.kind.value} always has its {node.name}.",
            field_path=path,
            old_type=type_name_of(node),
            allowed=("a change of its type or nullability", "the same change of the field around it"),
        )


def check_parent(parent: Node | None, path: str) -> None:
    """Refuse a new field outside a struct."""
    check_map_key(parent, path)
    if parent is not None and parent.kind is Kind.LEAF:
        raise NestedFieldError(
            f"{path} cannot be added: {parent.name} is no struct.",
            field_path=path,
            old_type=type_name_of(parent),
            new_type="struct",
            allowed=("a new struct field",),
        )
    if parent is not None and not struct_like(parent):
        below = "element" if parent.kind is Kind.LIST else "value"
        raise NestedFieldError(
            f"{path} cannot be added: {parent.name} is a {parent.kind.value}.",
            field_path=path,
            old_type=type_name_of(parent),
            new_type="struct",
            allowed=(f"a field below its {below}, where that is a struct",),
        )


def check_new_field(path: str, change: AddField, default: pa.Scalar | None) -> None:
    """Refuse a NOT NULL field without a default for existing rows."""
    if not change.nullable and default is None:
        raise NullabilityError(
            f"The new field {path} is NOT NULL, and old rows have no value for it.",
            field_path=path,
            old_type=type_name(change.type),
            new_type=f"{type_name(change.type)} NOT NULL",
            allowed=("a nullable field", "a default"),
        )


def check_keys(
    ids: Sequence[int],
    primary: Sequence[int],
    partition: Sequence[int],
    path: str,
    what: str,
    old_type: str,
    new_type: str | None = None,
) -> None:
    """Refuse to drop, rename or change the type of a key field."""
    for kind, keys in (("primary-key", primary), ("partition", partition)):
        if not set(keys).isdisjoint(ids):
            ways = {
                "primary-key": "SetPrimaryKey first, in the same list",
                "partition": "another partitioning first (DropPartitionKey, ALTER TABLE ... DROP PARTITION FIELD)",
            }
            raise KeyFieldError(
                f"{path} is or holds a {kind} field and cannot be {what}.",
                field_path=path,
                old_type=old_type,
                new_type=new_type,
                allowed=(ways[kind],),
            )


def check_not_last(left: int, gone: bool, parent: Node | None, path: str) -> None:
    """Refuse to drop the last field of a table or struct."""
    if left or gone:
        return
    where = "the table" if parent is None else f"the struct {parent.name}"
    raise LastFieldError(
        f"{path} is the last field of {where} and cannot be dropped.",
        field_path=path,
        allowed=("add another field in the same list", "drop the struct itself" if parent else "drop the table"),
    )


def check_leaf_types(node: Node, new: pa.DataType, path: str) -> pa.DataType:
    """Return the old leaf type; refuse a change from or to a nested type."""
    if node.leaf is not None and not is_nested(new):
        return node.leaf
    old = type_name_of(node)
    raise TypeChangeError(
        f"{path} is a {old} and cannot become a {type_name(new)}.",
        field_path=path,
        old_type=old,
        new_type=type_name(new),
        allowed=("changes of the fields below it", "a new field"),
    )


def check_may_turn_null(node: Node, old: pa.DataType, new: pa.DataType, policy: PromotionPolicy, path: str) -> None:
    """Refuse a cast that may produce NULL in a NOT NULL field."""
    if policy.on_cast_failure == "null" and not node.nullable and classify(old, new) is Loss.MAY_FAIL:
        raise NullabilityError(
            f"{path} is NOT NULL, and a {type_name(old)} that is no {type_name(new)} would become NULL.",
            field_path=path,
            old_type=type_name(old),
            new_type=type_name(new),
            allowed=("ChangeNullability(nullable=True) first", "on_cast_failure='error'"),
        )


def check_nullability(change: ChangeNullability, path: str, name: str, *, is_primary: bool) -> None:
    """Refuse NOT NULL without a check of the data, and a nullable primary key."""
    if change.nullable and is_primary:
        raise KeyFieldError(
            f"{path} is or holds a primary-key field and cannot be nullable.",
            field_path=path,
            old_type=f"{name} NOT NULL",
            new_type=name,
            allowed=("SetPrimaryKey first, in the same list",),
        )
    if not change.nullable and not change.checked:
        raise NullabilityError(
            f"{path} may hold NULL in old rows and cannot become NOT NULL unchecked.",
            field_path=path,
            old_type=name,
            new_type=f"{name} NOT NULL",
            allowed=("checked=True, once no row holds NULL there",),
        )


def check_anchor(node: Node, anchor: Node, parent: Node | None, path: str, anchor_path: str) -> None:
    """Refuse a position relative to the field itself or in another struct."""
    if anchor is node:
        raise MoveError(f"{path} cannot be moved beside itself.", field_path=path, allowed=("another sibling",))
    if anchor.parent is not parent:
        raise MoveError(
            f"{path} cannot be placed beside {anchor_path}: they lie in different structs.",
            field_path=path,
            allowed=("a sibling in the same struct",),
        )


def place(siblings: Siblings, where: str, anchor: Node | None, path: str) -> Node | None:
    """The node after which to insert; None for the first position."""
    if where == "first":
        return None
    if where == "last":
        return siblings.last()
    if anchor is None or where not in ("before", "after"):
        raise MoveError(
            f"{path} cannot be placed {where!r} of {'nothing' if anchor is None else anchor.name}.",
            field_path=path,
            allowed=("first()", "last()", "before(sibling)", "after(sibling)"),
        )
    return anchor if where == "after" else siblings.previous(anchor)

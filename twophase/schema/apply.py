"""Atomic application of a list of changes (Flink FLIP-226, Iceberg's schema evolution)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from twophase.schema import rules
from twophase.schema.cast_arrow import cast_scalar
from twophase.schema.changes import (
    AddField,
    AddPartitionKey,
    Change,
    ChangeComment,
    ChangeDefault,
    ChangeNullability,
    ChangeType,
    DropField,
    DropPartitionKey,
    MoveField,
    Position,
    RenameField,
    SetPrimaryKey,
)
from twophase.schema.convert_arrow import fresh_fields
from twophase.schema.defaults import as_default, default_key
from twophase.schema.errors import (
    ContradictingChangesError,
    KeyFieldError,
    SchemaError,
    UnknownFieldError,
)
from twophase.schema.leaf import SPARK_TYPE, type_name
from twophase.schema.names import FieldPath, format_path, split_path
from twophase.schema.paths import path_text
from twophase.schema.promotion import EXACT, PromotionPolicy, promotion_policy
from twophase.schema.schema import Field, Schema
from twophase.schema.tree import Node, Tree, type_name_of


def apply_changes(
    schema: Schema,
    changes: Change | Iterable[Change],
    *,
    promotion: str | PromotionPolicy = EXACT,
    highest_field_id: int | None = None,
    schema_id: int | None = None,
) -> Schema:
    """Apply a list of changes in order, atomically, and return the new schema.

    Each change uses the names at its point of the list (after ``RenameField("a", "b")`` the field is ``b``); name
    clashes are checked at the end.

    Parameters
    ----------
    schema : Schema
    changes : Change or iterable of Change
    promotion : str or PromotionPolicy
        The allowed changes of type; default ``exact``.
    highest_field_id : int, optional
        The highest id ever used, if the history has a higher one than the schema (from a failed commit).
    schema_id : int, optional
        Number of the new version; default: the next one.

    Returns
    -------
    Schema
        The given object itself, if nothing changes.

    Raises
    ------
    UnknownFieldError, AmbiguousPathError
        A path matches no field, or several.
    ContradictingChangesError
        Two changes contradict each other, such as a drop and a later change of the same field.
    TypeChangeError
        The promotion policy refuses a change of type, or it would replace one nested type with another.
    NullabilityError
        A nullable field becomes NOT NULL without a check, or a new NOT NULL field has no default.
    KeyFieldError, NestedFieldError, LastFieldError, MoveError, DuplicateFieldError, DefaultValueError
        As their names say.
    UnsupportedTypeError
        The type of a new field is not supported.
    """
    application = Application(schema, promotion_policy(promotion), highest_field_id)
    for change in [changes] if isinstance(changes, Change) else changes:
        application.apply(change)
    return application.result(schema.schema_id + 1 if schema_id is None else schema_id)


class Application:
    """The application of one list of changes."""

    def __init__(
        self,
        schema: Schema,
        policy: PromotionPolicy = EXACT,
        floor: int | None = None,
        *,
        trusted: bool = False,
    ) -> None:
        self.schema = schema
        # A replayed list was already accepted in its own transaction: no policy refuses it again, and a default that
        # did not fit the new type was dropped then and is dropped now.
        self.trusted = trusted
        self.policy = promotion_policy("explicit", on_cast_failure="null") if trusted else policy
        self.tree = Tree(schema, max(schema.highest_field_id, -1 if floor is None else floor))
        self.primary = list(schema.primary_keys)
        self.partition = list(schema.partition_keys)
        self.settled: dict[tuple[int, str], Any] = {}
        self.touched: set[int] = set()
        self.thinned: list[tuple[Node | None, str]] = []
        self.added: list[Node] = []

    def apply(self, change: Change) -> None:
        try:
            handler = _HANDLERS[type(change)]
        except KeyError:
            raise SchemaError(
                f"{change!r} is no change of a schema.", allowed=sorted(kind.__name__ for kind in _HANDLERS)
            ) from None
        handler(self, change)

    def result(self, schema_id: int) -> Schema:
        for parent, path in self.thinned:
            gone = parent is not None and parent.id in self.tree.dropped
            rules.check_not_last(0 if gone else len(self.tree.siblings(parent)), gone, parent, path)
        fields = self.tree.freeze()
        primary, partition = tuple(self.primary), tuple(self.partition)
        keys = (self.schema.primary_keys, self.schema.partition_keys)
        unchanged = len(fields) == len(self.schema) and all(
            new is old for new, old in zip(fields, self.schema.fields, strict=True)
        )
        if unchanged and (primary, partition) == keys:
            return self.schema
        return Schema(fields, schema_id, self.tree.highest, primary, partition)

    # -- finding ---------------------------------------------------------------------------------------------------

    def find(self, path: FieldPath) -> Node:
        try:
            return self.tree.find(path)
        except UnknownFieldError:
            if gone := self._dropped(path):
                raise ContradictingChangesError(
                    f"The field {path_text(path)} cannot be changed: the same list drops {gone}.",
                    field_path=path_text(path),
                    allowed=("leave one of the two out", "add a field of that name anew"),
                ) from None
            raise

    def _dropped(self, path: FieldPath) -> str | None:
        try:
            return self.tree.dropped.get(self.schema.find(path).id)
        except SchemaError:
            return None

    def text(self, node: Node) -> str:
        return format_path(self.tree.path(node))

    def settle(self, node: Node, what: str, value: Any) -> None:
        """Record the effect of a change, and refuse a later change of the same list that contradicts it."""
        key = (node.id, what)
        if key in self.settled and self.settled[key] != value:
            raise ContradictingChangesError(
                f"The list changes the {what} of {self.text(node)} twice: to {self.settled[key]} and to {value}.",
                field_path=self.text(node),
                old_type=type_name(self.settled[key]) if what == "type" else type_name_of(node),
                new_type=type_name(value) if what == "type" else type_name_of(node),
                allowed=("one of the two", "two lists, one after the other"),
            )
        self.settled[key] = value
        self.touched.add(node.id)

    # -- the changes -------------------------------------------------------------------------------------------------

    def add(self, change: AddField) -> None:
        parent, name = self.new_place(change)
        path = name if parent is None else f"{self.text(parent)}.{name}"
        rules.check_parent(parent, path)
        own = self._new_id()
        default = as_default(change.default, change.type, path)
        written = change.default if change.write_default is None else change.write_default
        rules.check_new_field(path, change, default)
        source = pa.field(name, change.type, change.nullable)
        (made,) = fresh_fields([source], _chain(own, self.tree), self.tree.path(parent) if parent else ())
        made = Field(
            *(made.id, made.name, made.kind, made.leaf, made.nullable, change.comment),
            *(default, as_default(written, change.type, path), change.metadata, made.children),
        )
        siblings = self.tree.siblings(parent)
        node = self.tree.add_below(made, parent)
        behind = siblings.last() if change.position is None else self._behind(node, change.position, parent)
        siblings.insert(node, behind)
        self.added.append(node)
        if parent is not None:
            parent.touch()

    def _new_id(self) -> int:
        return next(self.tree.next_ids())

    def new_place(self, change: AddField) -> tuple[Node | None, str]:
        """The parent of a new field (None: the table), and its name."""
        if isinstance(change.path, int):
            raise SchemaError(
                "A new field is named by a path, not by an id.",
                field_path=path_text(change.path),
                new_type=type_name(change.type),
                allowed=("a path such as 'parent.name'", "AddField((name,), type, parent=id)"),
            )
        parts, exact = (
            split_path(change.path) if isinstance(change.path, str) else ([str(p) for p in change.path], True)
        )
        if not parts:
            raise SchemaError(
                "A new field needs a name.",
                field_path="",
                new_type=type_name(change.type),
                allowed=("a path that ends with the new name",),
            )
        above, name = parts[:-1], parts[-1]
        if change.parent is not None:
            parent = self.find(change.parent)
            return (self.find([*self.tree.path(parent), *above]) if above else parent), name
        if not above:
            return None, name
        return self.find(above if exact else ".".join(above)), name

    def drop(self, change: DropField) -> None:
        node = self.find(change.path)
        path = self.text(node)
        rules.check_nested(node, path, "dropped")
        rules.check_keys(self._below(node), self.primary, self.partition, path, "dropped", type_name_of(node))
        for field_id in self._below(node):
            if field_id in self.touched or field_id not in self.schema:
                raise ContradictingChangesError(
                    f"The list changes {path} (or a field below it) and then drops it.",
                    field_path=path,
                    old_type=type_name_of(node),
                    allowed=("only the drop", "two lists, one after the other"),
                )
        self.thinned.append((node.parent, path))
        self.tree.drop(node, path)

    def _below(self, node: Node) -> list[int]:
        return list(self.tree.ids_of(node))

    def rename(self, change: RenameField) -> None:
        node = self.find(change.path)
        path = self.text(node)
        if change.name == node.name:
            return
        rules.check_nested(node, path, "renamed")
        rules.check_keys([node.id], self.primary, self.partition, path, "renamed", type_name_of(node))
        if isinstance(change.path, int):
            # Renames by name may follow each other, as each uses the current name; two renames by id contradict.
            self.settle(node, "name", change.name)
        self.settled[node.id, "name"] = change.name
        self.touched.add(node.id)
        self.tree.siblings(node.parent).rename(node, change.name)
        node.touch()

    def change_type(self, change: ChangeType) -> None:
        node = self.find(change.path)
        path = self.text(node)
        rules.check_map_key(node, path, type_name(change.type))
        old = rules.check_leaf_types(node, change.type, path)
        self.settle(node, "type", change.type)
        if old == change.type:
            return
        types = type_name(old), type_name(change.type)
        rules.check_keys([node.id], self.primary, self.partition, path, "given another type", *types)
        self.policy.check(path, old, change.type)
        if not self.trusted:
            rules.check_may_turn_null(node, old, change.type, self.policy, path)
        mode = self.policy.on_cast_failure
        node.leaf = change.type
        node.initial_default = cast_scalar(node.initial_default, change.type, mode, path)
        node.write_default = cast_scalar(node.write_default, change.type, mode, path)
        node.metadata = tuple(item for item in node.metadata if item[0] != SPARK_TYPE)
        node.touch()

    def change_nullability(self, change: ChangeNullability) -> None:
        node = self.find(change.path)
        path = self.text(node)
        rules.check_map_key(node, path)
        self.settle(node, "nullability", change.nullable)
        if change.nullable == node.nullable:
            return
        rules.check_nullability(change, path, type_name_of(node), is_primary=self._holds_primary(node))
        node.nullable = change.nullable
        node.touch()

    def _holds_primary(self, node: Node) -> bool:
        return not set(self.primary).isdisjoint(self.tree.ids_of(node))

    def change_default(self, change: ChangeDefault) -> None:
        node = self.find(change.path)
        path = self.text(node)
        rules.check_map_key(node, path)
        if node.leaf is None:
            default = as_default(change.default, pa.struct([]), path)
        else:
            default = as_default(change.default, node.leaf, path)
        self.settle(node, "default", default_key(default))
        node.write_default = default
        node.touch()

    def change_comment(self, change: ChangeComment) -> None:
        node = self.find(change.path)
        rules.check_nested(node, self.text(node), "commented")
        self.settle(node, "comment", change.comment)
        node.comment = change.comment
        node.touch()

    def move(self, change: MoveField) -> None:
        node = self.find(change.path)
        rules.check_nested(node, self.text(node), "moved")
        self.settle(node, "position", change.position)
        siblings = self.tree.siblings(node.parent)
        anchor = self._anchor(node, change.position, node.parent)
        siblings.remove(node)
        siblings.insert(node, rules.place(siblings, change.position.where, anchor, self.text(node)))
        if node.parent is not None:
            node.parent.touch()

    def _behind(self, node: Node, position: Position, parent: Node | None) -> Node | None:
        anchor = self._anchor(node, position, parent)
        return rules.place(self.tree.siblings(parent), position.where, anchor, self.text(node))

    def _anchor(self, node: Node, position: Position, parent: Node | None) -> Node | None:
        """The sibling to which a position refers.

        Raises
        ------
        MoveError
            It is the field itself, or is in another struct.
        """
        if position.anchor is None:
            return None
        if isinstance(position.anchor, str) and (named := self.tree.siblings(parent).named(position.anchor)):
            anchor = named[0]
        else:
            anchor = self.find(position.anchor)
        rules.check_anchor(node, anchor, parent, self.text(node), self.text(anchor))
        return anchor

    def add_partition_key(self, change: AddPartitionKey) -> None:
        node = self.find(change.path)
        if node.id not in self.partition:
            self.partition.append(node.id)

    def drop_partition_key(self, change: DropPartitionKey) -> None:
        node = self.find(change.path)
        if node.id not in self.partition:
            present = ", ".join(format_path(self.tree.path(self.tree.find(key))) for key in self.partition)
            raise KeyFieldError(
                f"{self.text(node)} is no partition field.",
                field_path=self.text(node),
                old_type=type_name_of(node),
                allowed=(f"DropPartitionKey of one of: {present or 'none, the table has no partition fields'}",),
            )
        self.partition.remove(node.id)

    def set_primary_key(self, change: SetPrimaryKey) -> None:
        self.primary = [self.find(path).id for path in change.paths]


def _chain(own: int, tree: Tree) -> Iterable[int]:
    """The id of the new field itself, then ids for its descendants."""
    yield own
    yield from tree.next_ids()


_HANDLERS: dict[type[Change], Callable[[Application, Any], None]] = {
    AddField: Application.add,
    DropField: Application.drop,
    RenameField: Application.rename,
    ChangeType: Application.change_type,
    ChangeNullability: Application.change_nullability,
    ChangeDefault: Application.change_default,
    ChangeComment: Application.change_comment,
    MoveField: Application.move,
    AddPartitionKey: Application.add_partition_key,
    DropPartitionKey: Application.drop_partition_key,
    SetPrimaryKey: Application.set_primary_key,
}

"""Random schemas, rows and change lists for Hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from twophase.schema import (
    AddField,
    AddPartitionKey,
    Change,
    ChangeComment,
    ChangeDefault,
    ChangeNullability,
    ChangeType,
    DropField,
    DropPartitionKey,
    Field,
    Kind,
    MoveField,
    RenameField,
    Schema,
    SetPrimaryKey,
    after,
    apply_changes,
    assign_ids,
    before,
    first,
    last,
)
from twophase.schema.errors import SchemaError
from twophase.schema.names import FieldPath

NAMES = st.sampled_from([*"abcdefgh", "B", "with.dot", "with`tick", "\u00e4"])
SMALL_LEAVES = st.sampled_from([pa.int32(), pa.string(), pa.float32(), pa.decimal128(9, 2)])


#: Whether a field may hold NULL; most may.
NULLABLE = st.sampled_from([True, True, True, False])


def structs(leaves: st.SearchStrategy[pa.DataType], below: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[Any]:
    fields = st.lists(st.tuples(NAMES, below, NULLABLE), min_size=1, max_size=3, unique_by=lambda item: item[0].lower())
    return fields.map(lambda items: pa.struct([pa.field(*item) for item in items]))


def types(leaves: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.recursive(
        leaves,
        lambda below: st.one_of(
            structs(leaves, below),
            below.map(lambda t: pa.list_(pa.field("element", t))),
            below.map(lambda t: pa.map_(pa.string(), t)),
        ),
        max_leaves=4,
    )


@st.composite
def schemas(draw: st.DrawFn, leaves: st.SearchStrategy[pa.DataType] = SMALL_LEAVES) -> Schema:
    """Nested schemas, with NOT NULL fields, and some with a primary key and partition keys, nested ones too."""
    columns = st.tuples(NAMES, types(leaves), NULLABLE)
    items = draw(st.lists(columns, min_size=1, max_size=4, unique_by=lambda item: item[0].lower()))
    plain = assign_ids(pa.schema([pa.field(*item) for item in items]))
    primary = draw(st.lists(st.sampled_from(may_be_primary(plain) or [-1]), max_size=1))
    partition = draw(st.lists(st.sampled_from(may_be_key(plain) or [-1]), max_size=2, unique=True))
    keys = [tuple(key for key in keys if key > 0) for keys in (primary, partition)]
    return Schema(plain.fields, 0, plain.highest_field_id, *keys)


def may_be_key(schema: Schema) -> list[int]:
    return [
        node.id
        for node in schema.walk()
        if node.kind is Kind.LEAF and all(parent.kind is Kind.STRUCT for parent in schema.ancestors(node.id))
    ]


def may_be_primary(schema: Schema) -> list[int]:
    return [
        key
        for key in may_be_key(schema)
        if not any(node.nullable for node in (schema.by_id(key), *schema.ancestors(key)))
    ]


@st.composite
def changes(draw: st.DrawFn, schema: Schema, base: Schema | None = None) -> Change:
    """One change of a field that is there, one that the base has not as often as others; it may be refused."""
    new = [node for node in schema.walk() if base is not None and node.id not in base]
    node = draw(st.sampled_from(new if new and draw(st.booleans()) else list(schema.walk())))
    paths: list[FieldPath] = [node.id, schema.path_of(node.id)]
    path = draw(st.sampled_from(paths))
    siblings = schema.fields if schema.parent_of(node.id) is None else schema.ancestors(node.id)[0].children
    beside = [place(sibling.id) for sibling in siblings for place in (before, after)]
    place = draw(st.sampled_from([first(), last(), *beside]))
    below = node.id if node.kind is Kind.STRUCT else None
    beside_new = place if below is None and schema.parent_of(node.id) is None else None
    change: Change = draw(
        st.one_of(
            st.builds(lambda n, t: AddField((n,), t, parent=below, position=beside_new), NAMES, types(SMALL_LEAVES)),
            st.builds(lambda n: AddField((n,), pa.int64(), nullable=False, default=7, position=first()), NAMES),
            st.just(DropField(path)),
            NAMES.map(lambda name: RenameField(path, name)),
            SMALL_LEAVES.map(lambda t: ChangeType(path, t)),
            st.sampled_from([pa.int64(), pa.float64(), pa.string()]).map(lambda t: ChangeType(path, t)),
            st.booleans().map(lambda nullable: ChangeNullability(path, nullable, checked=True)),
            st.sampled_from([None, "one", "two"]).map(lambda text: ChangeComment(path, text)),
            st.sampled_from([None, 1, "x", float("nan")]).map(lambda value: ChangeDefault(path, value)),
            st.just(MoveField(path, place)),
            key_changes(schema, path),
        )
    )
    return change


def key_changes(schema: Schema, path: FieldPath) -> st.SearchStrategy[Change]:
    """Changes of the keys, most of fields that can be some."""
    primary = [SetPrimaryKey((key,)) for key in may_be_primary(schema)]
    partition = [AddPartitionKey(schema.path_of(key)) for key in may_be_key(schema)]
    dropped = [DropPartitionKey(key) for key in schema.partition_keys]
    return st.sampled_from([SetPrimaryKey(()), AddPartitionKey(path), *primary, *partition, *dropped])


@st.composite
def change_lists(
    draw: st.DrawFn, schema: Schema, max_size: int = 4, first_changes: Sequence[Change] = ()
) -> list[Change]:
    """A list that applies: changes that are refused are left out one by one."""
    kept = list(first_changes)
    for _ in range(draw(st.integers(0, max_size))):
        # Names are those at this point of the list.
        candidate = draw(changes(apply_changes(schema, kept, promotion="explicit"), schema))
        try:
            apply_changes(schema, [*kept, candidate], promotion="explicit")
        except SchemaError:
            continue
        kept.append(candidate)
    return kept


def value_of(node: Field, seed: int) -> Any:
    """A value that tells which field it was written to."""
    if seed % 5 == 0 and node.nullable:
        return None
    if node.kind is Kind.STRUCT:
        return {child.name: value_of(child, seed + 1) for child in node.children}
    if node.kind is Kind.LIST:
        return [value_of(node.children[0], seed + i) for i in range(seed % 3)]
    if node.kind is Kind.MAP:
        return [(f"k{i}", value_of(node.children[1], seed + i)) for i in range(seed % 3)]
    return leaf_value(node.leaf, node.id * 100 + seed % 50)


def leaf_value(leaf: pa.DataType, number: int) -> Any:
    if pa.types.is_string(leaf):
        return f"v{number}"
    if pa.types.is_decimal(leaf):
        return Decimal(number) / 4
    if pa.types.is_floating(leaf):
        return number / 2
    return number % 100 if pa.types.is_int8(leaf) else number


def rows_of(schema: Schema, count: int = 6) -> list[dict[str, Any]]:
    return [{node.name: value_of(node, row * 7 + i) for i, node in enumerate(schema)} for row in range(count)]

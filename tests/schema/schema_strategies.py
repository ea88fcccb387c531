"""Random schemas, rows and change lists for Hypothesis."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from twophase.schema import (
    AddField,
    Change,
    ChangeComment,
    ChangeDefault,
    ChangeNullability,
    ChangeType,
    DropField,
    Field,
    Kind,
    MoveField,
    RenameField,
    Schema,
    after,
    apply_changes,
    assign_ids,
    first,
    last,
)
from twophase.schema.errors import SchemaError
from twophase.schema.names import FieldPath
from twophase.schema.promotion import SAMPLE_TYPES, Loss, classify

NAMES = st.sampled_from([*"abcdefgh", "B", "with.dot", "with`tick", "\u00e4"])
LEAVES = st.sampled_from([t for name, t in SAMPLE_TYPES.items() if name not in ("null", "binary", "time")])
SMALL_LEAVES = st.sampled_from([pa.int32(), pa.string(), pa.float32(), pa.decimal128(9, 2)])


def structs(leaves: st.SearchStrategy[pa.DataType], below: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[Any]:
    fields = st.lists(st.tuples(NAMES, below), min_size=1, max_size=3, unique_by=lambda item: item[0].lower())
    return fields.map(lambda items: pa.struct([pa.field(name, data_type) for name, data_type in items]))


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
    items = draw(st.lists(st.tuples(NAMES, types(leaves)), min_size=1, max_size=4, unique_by=lambda i: i[0].lower()))
    return assign_ids(pa.schema([pa.field(name, data_type) for name, data_type in items]))


@st.composite
def changes(draw: st.DrawFn, schema: Schema) -> Change:
    """One change of a field that is there; it may be refused."""
    node = draw(st.sampled_from(list(schema.walk())))
    paths: list[FieldPath] = [node.id, schema.path_of(node.id)]
    path = draw(st.sampled_from(paths))
    siblings = schema.fields if schema.parent_of(node.id) is None else schema.ancestors(node.id)[0].children
    place = draw(st.sampled_from([first(), last(), *(after(sibling.id) for sibling in siblings)]))
    below = node.id if node.kind is Kind.STRUCT else None
    change: Change = draw(
        st.one_of(
            st.builds(lambda n, t: AddField((n,), t, parent=below), NAMES, types(SMALL_LEAVES)),
            st.builds(lambda n: AddField((n,), pa.int64(), nullable=False, default=7, position=first()), NAMES),
            st.just(DropField(path)),
            NAMES.map(lambda name: RenameField(path, name)),
            SMALL_LEAVES.map(lambda t: ChangeType(path, t)),
            st.sampled_from([pa.int64(), pa.float64(), pa.string()]).map(lambda t: ChangeType(path, t)),
            st.booleans().map(lambda nullable: ChangeNullability(path, True if nullable else node.nullable)),
            st.sampled_from([None, "one", "two"]).map(lambda text: ChangeComment(path, text)),
            st.sampled_from([None, 1, "x"]).map(lambda value: ChangeDefault(path, value)),
            st.just(MoveField(path, place)),
        )
    )
    return change


@st.composite
def change_lists(draw: st.DrawFn, schema: Schema, max_size: int = 4) -> list[Change]:
    """A list that applies: changes that are refused are left out one by one."""
    kept: list[Change] = []
    for _ in range(draw(st.integers(0, max_size))):
        # Names are those at this point of the list.
        candidate = draw(changes(apply_changes(schema, kept, promotion="explicit")))
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


def lossless(old: Schema, new: Schema) -> bool:
    """Whether all types that both have were only widened."""
    pairs = [(node.leaf, new.get(node.id)) for node in old.walk() if node.leaf is not None]
    return all(n is None or n.leaf is None or classify(leaf, n.leaf) <= Loss.WIDE for leaf, n in pairs)

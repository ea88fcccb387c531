"""RFC-82's table row by row, and what rebasing adds to it."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest

from twophase.errors import ConcurrentSchemaEvolutionError
from twophase.schema import (
    DEFAULT_STRATEGY,
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
    RebaseSchemaConflictResolutionStrategy,
    RenameField,
    Schema,
    SchemaConflictResolutionStrategy,
    SimpleSchemaConflictResolutionStrategy,
    after,
    apply_changes,
    assign_ids,
    first,
    last,
    plan_read,
    to_arrow,
)
from twophase.schema.errors import SchemaConflictError

SIMPLE = SimpleSchemaConflictResolutionStrategy()
REBASE = RebaseSchemaConflictResolutionStrategy()
POINT = pa.struct([("x", pa.int32()), ("y", pa.int32())])


def columns(*names: str) -> Schema:
    return assign_ids(pa.schema([(name, pa.int32()) for name in names]))


S1 = columns("a", "b")
S2 = apply_changes(S1, AddField("c", pa.int32()))
S3 = apply_changes(S1, AddField("d", pa.int32()))

#: Row of RFC-82, the table's schema at the start and at validation, the writer's, and the result (None: conflict).
ROWS: list[tuple[int, Schema | None, Schema | None, Schema, Schema | None]] = [
    (1, None, None, S1, S1),
    (2, None, S1, S1, S1),
    (3, None, S2, S3, None),
    (4, S1, S1, S1, S1),
    (5, S1, S1, S2, S2),
    (6, S1, S2, S1, S2),
    (7, S1, S2, S2, S2),
    (8, S1, S2, S3, None),
]


@pytest.mark.parametrize("strategy", [SIMPLE, REBASE], ids=["simple", "rebase"])
@pytest.mark.parametrize(("row", "start", "now", "writer", "result"), ROWS, ids=[f"row {row[0]}" for row in ROWS])
def test_rfc_82(
    strategy: SchemaConflictResolutionStrategy,
    row: int,
    start: Schema | None,
    now: Schema | None,
    writer: Schema,
    result: Schema | None,
) -> None:
    if result is not None:
        assert strategy.resolve(start, now, writer).schema is result
    elif strategy is SIMPLE:
        with pytest.raises(ConcurrentSchemaEvolutionError):
            strategy.resolve(start, now, writer)
    else:
        # What RFC-82 leaves for later: the lists touch different fields, so both are kept.
        names = [node.name for node in strategy.resolve(start, now, writer).schema]
        assert names == ["a", "b", "c", "d"]


def test_simple_is_the_default() -> None:
    assert isinstance(DEFAULT_STRATEGY, SimpleSchemaConflictResolutionStrategy)


def test_schemas_are_compared_and_not_their_texts_or_numbers() -> None:
    rebuilt = Schema(S2.fields, schema_id=17)
    assert SIMPLE.resolve(S1, S2, rebuilt).schema is S2
    other_id = apply_changes(S1, AddField("c", pa.int32()), highest_field_id=50)
    resolution = SIMPLE.resolve(S1, S2, other_id)
    assert resolution.schema is S2
    assert resolution.writer_ids == {51: 3}


def test_a_table_that_is_gone_meanwhile_is_a_conflict() -> None:
    for strategy in (SIMPLE, REBASE):
        with pytest.raises(SchemaConflictError, match="to none"):
            strategy.resolve(S1, None, S1)


def test_a_conflict_names_table_field_and_both_versions_and_survives_pickling() -> None:
    theirs = apply_changes(S1, ChangeType("a", pa.int64()))
    ours = apply_changes(S1, ChangeType("a", pa.float64()), promotion="wide", schema_id=9)
    with pytest.raises(SchemaConflictError) as caught:
        SIMPLE.resolve(S1, theirs, ours, table="sales.daily")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.path, error.field_path, error.table_version, error.writer_version) == ("sales.daily", "a", 1, 9)
    assert "sales.daily" in str(error) and "changed the field a concurrently" in str(error)


def test_a_field_that_only_this_writer_has_changed_is_not_said_to_be_changed_by_two() -> None:
    theirs = apply_changes(S1, RenameField("a", "z"))
    ours = apply_changes(S1, AddField("x", pa.int32()))
    with pytest.raises(
        SchemaConflictError, match=r"changed the schema \(this one the field x\) concurrently"
    ) as caught:
        SIMPLE.resolve(S1, theirs, ours)
    assert caught.value.field_path == "x"


def there_and_back() -> Schema:
    """The table after a column was added, written to and dropped again: what it was, but for an id that is taken."""
    return apply_changes(apply_changes(S1, AddField("gone", POINT)), DropField("gone"))


@pytest.mark.parametrize("strategy", [SIMPLE, REBASE], ids=["simple", "rebase"])
def test_row_5_gives_no_id_again_that_the_table_used_meanwhile(strategy: SchemaConflictResolutionStrategy) -> None:
    now = there_and_back()
    writer = apply_changes(S1, [AddField("c", POINT), AddPartitionKey("c.x")])
    resolution = strategy.resolve(S1, now, writer)
    new = resolution.schema.field_ids - S1.field_ids
    assert min(new) > now.highest_field_id == 5
    assert resolution.schema.highest_field_id == max(new)
    assert resolution.schema.partition_keys == (resolution.schema.find("c.x").id,)
    assert resolution.renumbered(writer).fields == resolution.schema.fields
    # The writer's file is read under the new ids, the file of the column that is gone is not.
    data = pa.table([pa.array([i]) for i in range(2)], names=["a", "b"]).cast(to_arrow(S1))
    mine = data.append_column(
        to_arrow(writer).field("c"), pa.array([{"x": 7, "y": 8}], to_arrow(writer).field("c").type)
    )
    renumbered = plan_read(resolution.renumbered(writer), resolution.schema).project(mine)
    assert renumbered.column("c").to_pylist() == [{"x": 7, "y": 8}]
    theirs = apply_changes(S1, AddField("gone", POINT))
    old = data.append_column(
        to_arrow(theirs).field("gone"), pa.array([{"x": 1, "y": 2}], to_arrow(theirs).field("gone").type)
    )
    assert plan_read(theirs, resolution.schema).project(old).column("c").to_pylist() == [None]


def test_row_5_without_a_new_column_carries_the_highest_id_on() -> None:
    now = there_and_back()
    resolution = SIMPLE.resolve(S1, now, apply_changes(S1, RenameField("a", "z")))
    assert resolution.schema.highest_field_id == now.highest_field_id
    assert not resolution.writer_ids


BASE = assign_ids(
    pa.schema(
        [
            ("a", pa.int32()),
            ("b", pa.int32()),
            ("p", POINT),
            ("l", pa.list_(POINT)),
            ("c", pa.int32()),
            ("d", pa.int32()),
        ]
    )
)

COMBINED: dict[str, tuple[Sequence[Change], Sequence[Change]]] = {
    "two new columns": ([AddField("x", pa.int32())], [AddField("y", pa.int32())]),
    "two new nested fields": ([AddField("p.z", pa.int32())], [AddField("p.w", POINT)]),
    "rename and new type of one field": ([RenameField("a", "z")], [ChangeType("a", pa.int64())]),
    "rename of a struct and a field in it": ([RenameField("p", "q")], [RenameField("p.x", "z")]),
    "rename of a struct and a new field in it": ([RenameField("p", "q")], [AddField("p.z", pa.int32())]),
    "rename and comment below a list": ([RenameField("l.element.x", "z")], [ChangeComment("l.element.x", "east")]),
    "default and type of one field": ([ChangeDefault("a", 5)], [ChangeType("a", pa.int64())]),
    "two drops": ([DropField("a")], [DropField("b")]),
    "the same drop": ([DropField("a"), DropField("c")], [DropField("a"), DropField("b")]),
    "the same rename and another one": ([RenameField("a", "z")], [RenameField("a", "z"), RenameField("b", "y")]),
    "two moves that do not meet": ([MoveField("c", first())], [MoveField("a", last())]),
    "two moves past each other": ([MoveField("a", last())], [MoveField("d", first())]),
    "names swapped by way of a third and a new column": (
        [RenameField("a", "tmp"), RenameField("b", "a"), RenameField("tmp", "b")],
        [AddField("x", pa.int32())],
    ),
    "a move and a drop": ([MoveField("b", first())], [DropField("a")]),
    "a partition key and a new column": ([AddPartitionKey("a")], [AddField("x", pa.int32())]),
    "one of two equal new columns renamed": (
        [AddField("x", pa.int32()), RenameField("x", "z")],
        [AddField("x", pa.int32())],
    ),
    "two new columns, swapped by one writer": (
        [AddField("x", pa.int32()), AddField("y", pa.string()), RenameField("x", "t"), RenameField("y", "x")],
        [AddField("y", pa.string())],
    ),
    "a key that is laid down, changed and taken up again by both": (
        [AddPartitionKey("a"), DropPartitionKey("a"), RenameField("a", "z")],
        [AddPartitionKey("a"), DropPartitionKey("a"), ChangeType("a", pa.int64())],
    ),
    "all of one list, and more": (
        [ChangeDefault("a", 5)],
        [ChangeDefault("a", 5), ChangeType("a", pa.int64()), ChangeComment("b", "?")],
    ),
    "a default of NaN and another change": (
        [AddField("f", pa.float64(), default=math.nan)],
        [AddField("f", pa.float64(), default=math.nan), AddField("x", pa.int8())],
    ),
    "new columns at one place": (
        [AddField("x", pa.int8(), position=first())],
        [AddField("y", pa.int8(), position=first())],
    ),
}


@pytest.mark.parametrize(("theirs", "ours"), COMBINED.values(), ids=COMBINED)
def test_lists_that_touch_different_things_are_combined(theirs: Sequence[Change], ours: Sequence[Change]) -> None:
    table, writer = apply_changes(BASE, theirs), apply_changes(BASE, ours)
    merged = REBASE.resolve(BASE, table, writer, table_changes=theirs, writer_changes=ours).schema
    for node in table.walk():
        assert node.id in merged or node.id not in writer
    turned = REBASE.resolve(BASE, writer, table, table_changes=ours, writer_changes=theirs).schema
    assert sorted(merged.name_of(i) for i in merged.field_ids) == sorted(turned.name_of(i) for i in turned.field_ids)


CLASHES: dict[str, tuple[Sequence[Change], Sequence[Change], str]] = {
    "two names": ([RenameField("a", "x")], [RenameField("a", "y")], "y"),
    "two types": ([ChangeType("a", pa.int64())], [ChangeType("a", pa.float64())], "a"),
    "two comments": ([ChangeComment("a", "x")], [ChangeComment("a", "y")], "a"),
    "two defaults": ([ChangeDefault("a", 1)], [ChangeDefault("a", 2)], "a"),
    "a drop and a change": ([DropField("a")], [ChangeComment("a", "y")], "a"),
    "a change and a drop": ([ChangeType("a", pa.int64())], [DropField("a")], "a"),
    "a drop and a change below": ([DropField("p")], [AddField("p.z", pa.int32())], "p"),
    "one name for two types": ([AddField("x", pa.int32())], [AddField("x", pa.string())], "x"),
    "one name for two fields": ([RenameField("a", "x")], [AddField("x", pa.int32())], "x"),
    "one of two equal new columns given another type": (
        [AddField("x", pa.int32()), ChangeType("x", pa.int64())],
        [AddField("x", pa.int32())],
        "x",
    ),
    "one of two equal new columns made NOT NULL": (
        [AddField("x", pa.int32()), ChangeNullability("x", False, checked=True)],
        [AddField("x", pa.int32())],
        "x",
    ),
    "one of two equal new structs given a field": (
        [AddField("x", POINT), AddField("x.z", pa.int32())],
        [AddField("x", POINT)],
        "x",
    ),
    "one name in two cases": ([AddField("x", pa.int32())], [AddField("X", pa.string())], "X"),
    "the last field of a struct": ([DropField("p.x")], [DropField("p.y")], "p"),
    "a partition key that is renamed": ([AddPartitionKey("a")], [RenameField("a", "x")], "x"),
    "two moves to one place": ([MoveField("c", first())], [MoveField("d", first())], "d"),
    "a move behind what is dropped": ([DropField("a")], [MoveField("d", after("a"))], "d"),
}


@pytest.mark.parametrize(("theirs", "ours", "path"), CLASHES.values(), ids=CLASHES)
def test_a_real_clash_is_a_conflict(theirs: Sequence[Change], ours: Sequence[Change], path: str) -> None:
    table = apply_changes(BASE, theirs, promotion="wide")
    writer = apply_changes(BASE, ours, promotion="wide")
    with pytest.raises(SchemaConflictError) as caught:
        REBASE.resolve(BASE, table, writer, table_changes=theirs, writer_changes=ours)
    assert caught.value.field_path == path
    with pytest.raises(SchemaConflictError):
        SIMPLE.resolve(BASE, table, writer)


def test_the_same_new_column_is_one_with_the_first_writers_id() -> None:
    table = apply_changes(BASE, [AddField("x", POINT), AddField("y", pa.int32())])
    writer = apply_changes(BASE, [AddField("z", pa.int32()), AddField("x", POINT)])
    resolution = REBASE.resolve(BASE, table, writer)
    merged = resolution.schema
    assert merged.find("x") == table.find("x")
    assert merged.find("z").id > max(table.highest_field_id, writer.highest_field_id)
    assert resolution.writer_ids[writer.find("x.y").id] == table.find("x.y").id


def test_a_new_column_that_its_writer_renames_is_not_the_others_column_of_the_first_name() -> None:
    renamed = [AddField("x", pa.int32()), RenameField("x", "z")]
    plain = [AddField("x", pa.int32())]
    table, writer = apply_changes(BASE, renamed), apply_changes(BASE, plain)
    for theirs, ours, then in ((renamed, plain, ["z", "x"]), (plain, renamed, ["x", "z"])):
        sides = (table, writer) if theirs is renamed else (writer, table)
        merged = REBASE.resolve(BASE, *sides, table_changes=theirs, writer_changes=ours).schema
        assert [node.name for node in merged][-2:] == then
    same = apply_changes(BASE, [AddField("z", pa.int32())])
    merged = REBASE.resolve(BASE, table, same, table_changes=renamed, writer_changes=[AddField("z", pa.int32())]).schema
    assert merged is table


def test_keys_that_both_lay_down_to_change_the_field_do_not_stand_in_the_way() -> None:
    keyed = apply_changes(BASE, AddPartitionKey("a"))
    theirs = [DropPartitionKey("a"), RenameField("a", "z"), AddPartitionKey("z")]
    ours = [DropPartitionKey("a"), ChangeType("a", pa.int64()), AddPartitionKey("a")]
    table, writer = apply_changes(keyed, theirs), apply_changes(keyed, ours)
    merged = REBASE.resolve(keyed, table, writer, table_changes=theirs, writer_changes=ours).schema
    assert merged.find("z").leaf == pa.int64() and merged.partition_keys == keyed.partition_keys


def test_the_writers_files_read_right_after_its_new_columns_got_other_ids() -> None:
    table = apply_changes(BASE, AddField("theirs", pa.int32()))
    writer = apply_changes(BASE, AddField("ours", pa.int32()))
    assert table.find("theirs").id == writer.find("ours").id
    resolution = REBASE.resolve(BASE, table, writer)
    data = pa.table(
        [
            pa.array([i], f.type) if f.name in ("a", "ours") else pa.nulls(1, f.type)
            for i, f in enumerate(to_arrow(writer))
        ],
        schema=to_arrow(writer),
    )
    rows = plan_read(resolution.renumbered(writer), resolution.schema).project(data).to_pylist()
    assert (rows[0]["a"], rows[0]["theirs"], rows[0]["ours"]) == (0, None, 6)


def test_an_id_that_the_writers_files_carry_never_comes_to_name_another_field() -> None:
    table = apply_changes(BASE, AddField("theirs", pa.int32()))
    writer = apply_changes(BASE, [AddField("one", pa.int32()), AddField("two", pa.int32())])
    merged = REBASE.resolve(BASE, table, writer).schema
    assert {merged.find("one").id, merged.find("two").id}.isdisjoint(table.field_ids | writer.field_ids)


def test_a_field_made_not_null_at_the_same_time_is_to_be_looked_at_again() -> None:
    table = apply_changes(BASE, AddField("x", pa.int32()))
    writer = apply_changes(BASE, ChangeNullability("p.x", False, checked=True))
    assert REBASE.resolve(BASE, table, writer).recheck == ("p.x",)
    assert REBASE.resolve(BASE, writer, table).recheck == ("p.x",)


def test_two_creators_of_one_table_are_combined_only_by_rebasing() -> None:
    one, two = columns("a", "b"), columns("b", "c")
    with pytest.raises(SchemaConflictError):
        SIMPLE.resolve(None, one, two)
    resolution = REBASE.resolve(None, one, two)
    assert [node.name for node in resolution.schema] == ["a", "b", "c"]
    assert resolution.renumbered(two).find("b").id == one.find("b").id

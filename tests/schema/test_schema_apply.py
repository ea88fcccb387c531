"""Changes: all or nothing, the structural rules, and what the errors say. Each refusal leaves data as it was."""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.schema.schema_data import rows_table, write_rows
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
    plan_read,
    promotion_policy,
    to_arrow,
)
from twophase.schema.errors import (
    AmbiguousPathError,
    ContradictingChangesError,
    DefaultValueError,
    DuplicateFieldError,
    KeyFieldError,
    LastFieldError,
    MoveError,
    NestedFieldError,
    NullabilityError,
    SchemaError,
    TypeChangeError,
    UnknownFieldError,
    UnsupportedTypeError,
)
from twophase.schema.tree import Tree

POINT = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.int32())])
TABLE = assign_ids(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("day", pa.date32()),
            pa.field("a", pa.int32()),
            pa.field("b", pa.string()),
            pa.field("p", POINT),
            pa.field("l", pa.list_(POINT)),
            pa.field("m", pa.map_(pa.struct([("k", pa.string())]), POINT)),
            pa.field("one", pa.struct([("only", pa.int32())])),
        ]
    ),
    primary_keys=["id"],
    partition_keys=["day"],
)
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "day": None,
        "a": 7,
        "b": "seven",
        "p": {"x": 1, "y": 2},
        "l": [{"x": 3, "y": None}, None],
        "m": [({"k": "key"}, {"x": 5, "y": 6})],
        "one": {"only": 9},
    },
    {"id": 2, "day": None, "a": None, "b": None, "p": None, "l": None, "m": None, "one": None},
]

#: What is refused, the error, the path it names, and a part of what it says would be allowed.
REFUSED: list[tuple[str, Sequence[Change], type[SchemaError], str, str]] = [
    ("drop of the last field of a struct", [DropField("one.only")], LastFieldError, "one.only", "drop the struct"),
    ("drop of a partition field", [DropField("day")], KeyFieldError, "day", "DropPartitionKey"),
    ("rename of a partition field", [RenameField("day", "d")], KeyFieldError, "day", "DropPartitionKey"),
    ("retype of a partition field", [ChangeType("day", pa.string())], KeyFieldError, "day", "DropPartitionKey"),
    ("drop of a primary-key field", [DropField("id")], KeyFieldError, "id", "SetPrimaryKey"),
    ("rename of a primary-key field", [RenameField("id", "i")], KeyFieldError, "id", "SetPrimaryKey"),
    ("retype of a primary-key field", [ChangeType("id", pa.string())], KeyFieldError, "id", "SetPrimaryKey"),
    ("nullable primary key", [ChangeNullability("id", True)], KeyFieldError, "id", "SetPrimaryKey"),
    ("primary key that is nullable", [SetPrimaryKey(("a",))], KeyFieldError, "a", ""),
    ("primary key below a list", [SetPrimaryKey(("l.element.x",))], KeyFieldError, "l.element.x", ""),
    ("partition by a struct", [AddPartitionKey("p")], KeyFieldError, "p", ""),
    ("no longer partitioned by what was none", [DropPartitionKey("a")], KeyFieldError, "a", ""),
    ("rename inside a map's key", [RenameField("m.key.k", "z")], NestedFieldError, "m.key.k", "new map"),
    ("field added to a map's key", [AddField("m.key.z", pa.int32())], NestedFieldError, "m.key.z", "new map"),
    ("drop inside a map's key", [DropField("m.key.k")], NestedFieldError, "m.key.k", "new map"),
    ("retype inside a map's key", [ChangeType("m.key.k", pa.binary())], NestedFieldError, "m.key.k", "new map"),
    ("nullable map key", [ChangeNullability("m.key", True)], NestedFieldError, "m.key", "new map"),
    ("drop of a list's element", [DropField("l.element")], NestedFieldError, "l.element", "around it"),
    ("drop of a map's value", [DropField("m.value")], NestedFieldError, "m.value", "around it"),
    ("rename of a map's value", [RenameField("m.value", "v")], NestedFieldError, "m.value", "around it"),
    ("move of a map's value", [MoveField("m.value", first())], NestedFieldError, "m.value", "around it"),
    ("field below a leaf", [AddField("a.z", pa.int32())], NestedFieldError, "a.z", "struct"),
    ("field below a list itself", [AddField("l.z", pa.int32())], NestedFieldError, "l.z", "element"),
    ("field below a map itself", [AddField("m.z", pa.int32())], NestedFieldError, "m.z", "value"),
    ("struct to leaf", [ChangeType("p", pa.int32())], TypeChangeError, "p", "fields below"),
    ("leaf to struct", [ChangeType("a", POINT)], TypeChangeError, "a", "fields below"),
    ("list to map", [ChangeType("l", pa.map_(pa.int32(), pa.int32()))], TypeChangeError, "l", "fields below"),
    ("narrowing", [ChangeType("a", pa.int16())], TypeChangeError, "a", "int to long"),
    ("NOT NULL unchecked", [ChangeNullability("b", False)], NullabilityError, "b", "checked=True"),
    ("NOT NULL without default", [AddField("z", pa.int32(), nullable=False)], NullabilityError, "z", "default"),
    ("default of another type", [ChangeDefault("a", "seven")], DefaultValueError, "a", "int"),
    ("default out of range", [AddField("z", pa.int8(), default=300)], DefaultValueError, "z", "byte"),
    ("default of a struct", [ChangeDefault("p", {"x": 1})], DefaultValueError, "p", "leaf"),
    ("clash of names", [AddField("A", pa.int32())], DuplicateFieldError, "A", "another name"),
    ("clash by rename", [RenameField("a", "B")], DuplicateFieldError, "b", "another name"),
    ("clash in a struct", [AddField("p.X", pa.int32())], DuplicateFieldError, "p.X", "another name"),
    ("empty name", [RenameField("a", "")], DuplicateFieldError, "``", "a name"),
    ("move beside itself", [MoveField("a", after("a"))], MoveError, "a", "sibling"),
    ("move across structs", [MoveField("a", after("p.x"))], MoveError, "a", "same struct"),
    ("unknown path", [DropField("p.z")], UnknownFieldError, "p.z", "Did you mean"),
    ("unknown id", [DropField(99)], UnknownFieldError, "#99", ""),
    ("unknown anchor", [MoveField("a", after("zz"))], UnknownFieldError, "zz", ""),
    ("drop, then change", [DropField("a"), ChangeComment("a", "?")], ContradictingChangesError, "a", "leave one"),
    ("change, then drop", [ChangeComment("a", "?"), DropField("a")], ContradictingChangesError, "a", "only the drop"),
    ("change below, then drop", [RenameField("p.x", "z"), DropField("p")], ContradictingChangesError, "p", "drop"),
    ("add, then drop", [AddField("z", pa.int32()), DropField("z")], ContradictingChangesError, "z", "drop"),
    ("add below a dropped parent", [DropField("p"), AddField("p.z", pa.int8())], ContradictingChangesError, "p", ""),
    (
        "two types",
        [ChangeType("a", pa.int64()), ChangeType("a", pa.string())],
        ContradictingChangesError,
        "a",
        "one of",
    ),
    ("two names by id", [RenameField(3, "y"), RenameField(3, "z")], ContradictingChangesError, "y", "one of"),
    ("two comments", [ChangeComment("a", "y"), ChangeComment("a", "z")], ContradictingChangesError, "a", "one of"),
    ("two places", [MoveField("a", first()), MoveField("a", last())], ContradictingChangesError, "a", "one of"),
    ("a type no schema holds", [AddField("z", pa.large_list(pa.int8()))], UnsupportedTypeError, "z", "list_"),
    (
        "a type no schema holds, below",
        [AddField("z", pa.list_(pa.string_view()))],
        UnsupportedTypeError,
        "z.element",
        "",
    ),
]


@pytest.mark.parametrize(
    ("changes", "error", "path", "hint"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_a_refused_list_names_the_field_and_a_way_out_and_changes_nothing(
    changes: Sequence[Change], error: type[SchemaError], path: str, hint: str
) -> None:
    before_it = to_arrow(TABLE)
    with pytest.raises(error) as caught:
        # A good change ahead of the bad one: it must not stay.
        apply_changes(TABLE, [ChangeComment("one", "kept?"), *changes])
    assert caught.value.field_path == path
    assert hint in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert to_arrow(TABLE).equals(before_it, check_metadata=True)


@pytest.mark.parametrize("policy", ["exact", "explicit"])
def test_data_reads_as_before_after_every_refusal(spark: SparkSession, tmp_path: Path, policy: str) -> None:
    schema = TABLE
    for _, changes, error, _, _ in REFUSED:
        with pytest.raises(error):
            schema = apply_changes(schema, [AddField("extra", pa.int32()), *changes])
    data = rows_table(TABLE, ROWS)
    plan = plan_read(TABLE, schema, on_cast_failure=promotion_policy(policy).on_cast_failure)
    assert plan.project(data).to_pylist() == data.to_pylist()
    frame = spark.read.parquet(str(write_rows(tmp_path / "f.parquet", TABLE, ROWS)))
    assert frame.selectExpr(*plan.spark_expressions()).toArrow().to_pylist() == frame.toArrow().to_pylist()


def test_the_last_column_of_a_table_stays() -> None:
    table = assign_ids(pa.schema([("only", pa.int32())]))
    with pytest.raises(LastFieldError, match="the table"):
        apply_changes(table, DropField("only"))
    replaced = apply_changes(table, [DropField("only"), AddField("other", pa.int32())])
    assert [node.name for node in replaced] == ["other"]


def test_a_cast_that_may_give_null_is_refused_on_a_not_null_field() -> None:
    table = assign_ids(pa.schema([pa.field("s", pa.string(), nullable=False)]))
    lenient = promotion_policy("explicit", on_cast_failure="null")
    with pytest.raises(NullabilityError, match="would become NULL"):
        apply_changes(table, ChangeType("s", pa.int32()), promotion=lenient)
    changed = apply_changes(table, [ChangeNullability("s", True), ChangeType("s", pa.int32())], promotion=lenient)
    data = pa.table([pa.array(["1", "x"])], schema=to_arrow(table))
    assert plan_read(table, changed, on_cast_failure="null").project(data).to_pylist() == [{"s": 1}, {"s": None}]


NO_EFFECT: list[Sequence[Change]] = [
    [],
    [RenameField("a", "a")],
    [RenameField("a", "z"), RenameField("z", "a")],
    [ChangeType("a", pa.int32())],
    [ChangeComment("a", None)],
    [ChangeDefault("a", None)],
    [MoveField("a", after("day"))],
    [ChangeNullability("a", True), ChangeNullability("a", True)],
    [AddPartitionKey("day")],
    [DropPartitionKey("day"), AddPartitionKey("day")],
    [SetPrimaryKey(("id",))],
]


@pytest.mark.parametrize("changes", NO_EFFECT, ids=str)
def test_a_list_without_effect_gives_the_very_same_object(changes: Sequence[Change]) -> None:
    assert apply_changes(TABLE, changes) is TABLE


def test_what_a_change_does_not_reach_is_the_very_same_object() -> None:
    changed = apply_changes(TABLE, RenameField("p.x", "z"))
    assert changed.find("m") is TABLE.find("m")
    assert changed.find("p").children[1] is TABLE.find("p.y")


def test_ids_are_never_used_again() -> None:
    dropped = apply_changes(TABLE, DropField("p"))
    again = apply_changes(dropped, AddField("p", POINT))
    assert min(node.id for node in again.find("p").walk()) > TABLE.highest_field_id
    assert dropped.highest_field_id == TABLE.highest_field_id
    later = apply_changes(TABLE, AddField("z", pa.int32()), highest_field_id=500)
    assert later.find("z").id == 501


def test_drop_and_add_of_one_name_in_one_list_is_another_field() -> None:
    changed = apply_changes(TABLE, [DropField("a"), AddField("a", pa.int32(), position=before("b"))])
    assert changed.find("a").id != TABLE.find("a").id
    assert [node.name for node in changed][:4] == ["id", "day", "a", "b"]


def test_two_fields_swap_their_names() -> None:
    by_id = apply_changes(TABLE, [RenameField(3, "b"), RenameField(4, "a")])
    by_name = apply_changes(TABLE, [RenameField("a", "tmp"), RenameField("b", "a"), RenameField("tmp", "b")])
    assert by_id.same_as(by_name)
    assert by_id.find("b").id == TABLE.find("a").id


def test_a_field_that_was_just_added_can_be_added_to() -> None:
    changed = apply_changes(TABLE, [AddField("s", POINT), AddField("s.z", pa.int32()), ChangeComment("s.x", "east")])
    assert [node.name for node in changed.find("s").children] == ["x", "y", "z"]
    assert changed.find("s.x").comment == "east"


def names(schema: Schema) -> list[str]:
    return [node.name for node in schema]


def test_moves_reach_every_place() -> None:
    table = assign_ids(pa.schema([(name, pa.int32()) for name in "abcd"]))
    assert names(apply_changes(table, MoveField("c", first()))) == list("cabd")
    assert names(apply_changes(table, MoveField("a", last()))) == list("bcda")
    assert names(apply_changes(table, MoveField("d", before("b")))) == list("adbc")
    assert names(apply_changes(table, MoveField("a", after("c")))) == list("bcad")
    assert names(apply_changes(table, AddField("x", pa.int32(), position=after("a")))) == list("axbcd")
    assert names(apply_changes(table, AddField("x", pa.int32(), position=first()))) == list("xabcd")


def test_a_dotted_name_is_found_unless_it_is_ambiguous() -> None:
    table = assign_ids(pa.schema([("a.b", pa.int32()), ("a", pa.struct([("c", pa.int32()), ("b", pa.int32())]))]))
    assert table.find("a.c").name == "c"
    with pytest.raises(AmbiguousPathError, match="tuple"):
        apply_changes(table, DropField("a.b"))
    assert apply_changes(table, DropField(("a.b",))).find("a").id == 2
    assert apply_changes(table, DropField("a.`b`")).find("a.b").id == 1
    assert apply_changes(table, RenameField("`a.b`", "x")).find("x").id == 1


def test_a_name_in_another_case_is_found_as_spark_finds_it() -> None:
    assert apply_changes(TABLE, RenameField("P.X", "z")).find("p.z").id == TABLE.find("p.x").id


def test_a_change_of_default_leaves_old_rows_alone() -> None:
    table = apply_changes(TABLE, AddField("z", pa.int32(), nullable=False, default=1))
    changed = apply_changes(table, ChangeDefault("z", 2))
    assert changed.find("z").initial_default == pa.scalar(1, pa.int32())
    assert changed.find("z").write_default == pa.scalar(2, pa.int32())
    rows = plan_read(TABLE, changed).project(rows_table(TABLE, ROWS))
    assert rows.column("z").to_pylist() == [1, 1]


def test_defaults_follow_the_type() -> None:
    table = apply_changes(TABLE, AddField("z", pa.int32(), default=1))
    changed = apply_changes(table, ChangeType("z", pa.int64()))
    assert changed.find("z").initial_default == pa.scalar(1, pa.int64())


def test_the_refusal_of_a_type_names_the_policies_that_would_allow_it() -> None:
    with pytest.raises(TypeChangeError) as caught:
        apply_changes(TABLE, ChangeType("a", pa.float64()))
    assert (caught.value.old_type, caught.value.new_type) == ("int", "double")
    assert "policy 'wide'" in str(caught.value) and "policy 'hudi'" in str(caught.value)


def test_something_that_is_no_change_is_refused() -> None:
    with pytest.raises(SchemaError, match="no change"):
        apply_changes(TABLE, [Change()])
    with pytest.raises(SchemaError, match="no promotion policy"):
        apply_changes(TABLE, [], promotion="loose")


def calls_to_change_each_seventh(width: int, *, by_path: bool) -> int:
    """How many calls it takes; unlike a time it is the same on each machine."""
    table = assign_ids(pa.schema([(f"c{i}", pa.int32()) for i in range(width)]))
    changes: list[Change] = [ChangeType(f"c{i}" if by_path else i + 1, pa.int64()) for i in range(0, width, 7)]
    count = 0

    def see(*_: object) -> None:
        nonlocal count
        count += 1

    gc.disable()  # What it frees would be counted.
    sys.setprofile(see)
    try:
        apply_changes(table, changes)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("by_path", [False, True], ids=["by id", "by path"])
def test_ten_times_the_changes_on_ten_times_the_fields_cost_ten_times_as_much(by_path: bool) -> None:
    narrow, wide = (calls_to_change_each_seventh(width, by_path=by_path) for width in (300, 3000))
    assert wide < 10.5 * narrow


def test_what_no_change_reaches_costs_no_call() -> None:
    table = assign_ids(pa.schema([(f"c{i}", pa.int32()) for i in range(1000)]))
    tree = Tree(table, table.highest_field_id)
    tree.find(500)
    assert set(tree.nodes) == {500}

"""Each rule and each refusal on data: written, changed, written again, and read back by Spark and by PyArrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.schema.schema_data import TYPES, VALUES, comparable, rows_table
from tests.schema.table_on_disk import Rows, Table, nested_in, nested_row
from tests.schema.test_schema_apply import REFUSED, ROWS, TABLE
from twophase.schema import (
    POLICY_NAMES,
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
    SetPrimaryKey,
    after,
    assign_ids,
    before,
    first,
    last,
    promotion_policy,
    reconcile,
    to_arrow,
)
from twophase.schema.cast_arrow import cast_array
from twophase.schema.errors import SchemaError, TypeChangeError

# -- the promotion matrix ----------------------------------------------------------------------------------------------

#: Spark's Parquet reader opens no column of type null; the test after this one reads it with PyArrow.
STORED = [name for name in TYPES if name != "null"]


def cells(policy: str, *, allowed: bool) -> list[tuple[str, str]]:
    chosen = promotion_policy(policy)
    pairs = [(old, new) for old in STORED for new in STORED if old != new]
    return [(old, new) for old, new in pairs if chosen.allows(TYPES[old], TYPES[new]) == allowed]


def cell_table(directory: Path, pairs: Sequence[tuple[str, str]]) -> Table:
    """A column of the old type at every level, for each cell of the matrix."""
    fields = [
        pa.field(f"{old}_{new}_{name}", data_type) for old, new in pairs for name, data_type, _ in nested_in(TYPES[old])
    ]
    return Table(directory, assign_ids(pa.schema(fields)))


def cell_rows(columns: dict[str, list[Any]]) -> Rows:
    """Rows that hold the values of each cell at each level."""
    rows: Rows = []
    for i in range(max(map(len, columns.values()))):
        row: dict[str, Any] = {}
        for cell, values in columns.items():
            row |= {f"{cell}_{name}": held for name, held in nested_row(values[i % len(values)]).items()}
        rows.append(row)
    return rows


def stored(name: str) -> list[Any]:
    """Values of a type as a file gives them back."""
    return pa.array([*VALUES[name][:5], None], TYPES[name]).to_pylist()


def read_as(old: str, new: str) -> list[Any]:
    """Values of the old type as the new one; the tests of the casts compare these with what Spark's own casts give."""
    return cast_array(pa.array(stored(old), TYPES[old]), TYPES[new], "null", "c").to_pylist()


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_each_allowed_cell_of_the_matrix_at_every_level(spark: SparkSession, tmp_path: Path, policy: str) -> None:
    pairs = cells(policy, allowed=True)
    table = cell_table(tmp_path, pairs)
    table.write(cell_rows({f"{old}_{new}": stored(old) for old, new in pairs}))
    changes = [
        ChangeType(f"{old}_{new}_{path}", TYPES[new]) for old, new in pairs for *_, path in nested_in(TYPES[old])
    ]
    table.change(changes, promotion_policy(policy, on_cast_failure="null"))
    table.write(cell_rows({f"{old}_{new}": stored(new) for old, new in pairs}))
    expected = cell_rows({f"{old}_{new}": read_as(old, new) for old, new in pairs})
    expected += cell_rows({f"{old}_{new}": stored(new) for old, new in pairs})
    assert comparable(table.read(spark)) == comparable(expected)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_each_refused_cell_of_the_matrix_leaves_the_data_at_every_level(
    spark: SparkSession, tmp_path: Path, policy: str
) -> None:
    pairs = cells(policy, allowed=False)
    table = cell_table(tmp_path, [(old, "same") for old in STORED])
    rows = cell_rows({f"{old}_same": stored(old) for old in STORED})
    table.write(rows)
    for old, new in pairs:
        for *_, path in nested_in(TYPES[old]):
            with pytest.raises(TypeChangeError) as caught:
                table.change(ChangeType(f"{old}_same_{path}", TYPES[new]), policy)
            assert caught.value.field_path == f"{old}_same_{path}"
            assert caught.value.old_type and caught.value.new_type and caught.value.allowed
    table.write(rows)
    assert comparable(table.read(spark)) == comparable([*rows, *rows])


@pytest.mark.parametrize("policy", ["wide", "implicit", "explicit"])
def test_a_column_of_type_null_becomes_anything_at_every_level(tmp_path: Path, policy: str) -> None:
    table = cell_table(tmp_path, [("null", new) for new in STORED])
    table.write(cell_rows({f"null_{new}": [None, None] for new in STORED}))
    table.change(
        [ChangeType(f"null_{new}_{path}", TYPES[new]) for new in STORED for *_, path in nested_in(pa.null())], policy
    )
    table.write(cell_rows({f"null_{new}": stored(new) for new in STORED}))
    expected = cell_rows({f"null_{new}": [None, None] for new in STORED})
    expected += cell_rows({f"null_{new}": stored(new) for new in STORED})
    assert comparable(table.by_arrow()) == comparable(expected)


# -- the rules ---------------------------------------------------------------------------------------------------------

POINT = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())])
#: Where a pair of fields can be: in the table, a struct, the elements of a list, and the values of a map.
LEVELS = ("", "p.", "l.element.", "m.value.")
POINTS = assign_ids(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            *POINT,
            ("p", POINT),
            ("l", pa.list_(POINT)),
            ("m", pa.map_(pa.string(), POINT)),
        ]
    ),
    primary_keys=["id"],
)

Point = dict[str, Any]


def row_of(number: int, point: Point) -> dict[str, Any]:
    """A row that holds the pair at every level."""
    return {"id": number, **point, "p": point, "l": [point, None], "m": [("k", point), ("n", None)]}


def empty_row(number: int, point: Point) -> dict[str, Any]:
    """A row that holds the pair in no list, struct or map."""
    return {"id": number, **point, "p": None, "l": [], "m": None}


#: What is done to x and y at every level (``{}`` stands for what leads there), the pair that old rows then read for
#: (1, 'one'), and one that is written afterwards.
RULES: dict[str, tuple[Callable[[str], Sequence[Change]], Point, Point]] = {
    "add": (
        lambda at: [AddField(f"{at}z", pa.int32(), position=after("y"))],
        {"x": 1, "y": "one", "z": None},
        {"x": 2, "y": "two", "z": 3},
    ),
    "add NOT NULL with a default": (
        lambda at: [AddField(f"{at}z", pa.int32(), nullable=False, default=7, position=after("y"))],
        {"x": 1, "y": "one", "z": 7},
        {"x": 2, "y": "two", "z": 3},
    ),
    "add a struct": (
        lambda at: [AddField(f"{at}z", POINT, position=after("y"))],
        {"x": 1, "y": "one", "z": None},
        {"x": 2, "y": "two", "z": {"x": 3, "y": None}},
    ),
    "add between": (
        lambda at: [AddField(f"{at}z", pa.int32(), position=before("y"))],
        {"x": 1, "z": None, "y": "one"},
        {"x": 2, "z": 3, "y": "two"},
    ),
    "drop": (lambda at: [DropField(f"{at}x")], {"y": "one"}, {"y": "two"}),
    "rename": (lambda at: [RenameField(f"{at}x", "z")], {"z": 1, "y": "one"}, {"z": 2, "y": "two"}),
    "drop and add again": (
        lambda at: [DropField(f"{at}x"), AddField(f"{at}x", pa.int32(), position=before("y"))],
        {"x": None, "y": "one"},
        {"x": 2, "y": "two"},
    ),
    "rename and take the name again": (
        lambda at: [RenameField(f"{at}x", "z"), AddField(f"{at}x", pa.string(), position=after("y"))],
        {"z": 1, "y": "one", "x": None},
        {"z": 2, "y": "two", "x": "x"},
    ),
    "swap names": (
        lambda at: [RenameField(f"{at}x", "t"), RenameField(f"{at}y", "x"), RenameField(f"{at}t", "y")],
        {"y": 1, "x": "one"},
        {"y": 2, "x": "two"},
    ),
    "change the type": (lambda at: [ChangeType(f"{at}x", pa.int64())], {"x": 1, "y": "one"}, {"x": 2**40, "y": "two"}),
    "rename, change the type and move": (
        lambda at: [RenameField(f"{at}x", "z"), ChangeType(f"{at}z", pa.int64()), MoveField(f"{at}z", after("y"))],
        {"y": "one", "z": 1},
        {"y": "two", "z": 2**40},
    ),
    "forbid NULL": (
        lambda at: [ChangeNullability(f"{at}x", False, checked=True)],
        {"x": 1, "y": "one"},
        {"x": 2, "y": None},
    ),
    "forbid NULL and allow it again": (
        lambda at: [ChangeNullability(f"{at}x", True)],
        {"x": 1, "y": "one"},
        {"x": None, "y": "two"},
    ),
    "change the default": (lambda at: [ChangeDefault(f"{at}x", 9)], {"x": 1, "y": "one"}, {"x": None, "y": "two"}),
    "comment": (lambda at: [ChangeComment(f"{at}x", "east")], {"x": 1, "y": "one"}, {"x": 2, "y": "two"}),
    "move after": (lambda at: [MoveField(f"{at}x", after("y"))], {"y": "one", "x": 1}, {"y": "two", "x": 2}),
    "move before": (lambda at: [MoveField(f"{at}y", before("x"))], {"y": "one", "x": 1}, {"y": "two", "x": 2}),
    "no longer a key": (lambda at: [SetPrimaryKey(())], {"x": 1, "y": "one"}, {"x": 2, "y": "two"}),
}


@pytest.mark.parametrize(("changes", "old", "new"), RULES.values(), ids=RULES)
def test_each_rule_at_every_level(
    spark: SparkSession, tmp_path: Path, changes: Callable[[str], Sequence[Change]], old: Point, new: Point
) -> None:
    table = Table(tmp_path, POINTS)
    point = {"x": 1, "y": "one"}
    table.write([row_of(1, point), empty_row(2, point)])
    if any(isinstance(change, ChangeNullability) and change.nullable for change in changes("")):
        table.change([ChangeNullability(f"{level}x", False, checked=True) for level in LEVELS])
    table.change([change for level in LEVELS for change in changes(level)])
    table.write([row_of(3, new), empty_row(4, new)])
    assert comparable(table.read(spark)) == comparable(
        [row_of(1, old), empty_row(2, old), row_of(3, new), empty_row(4, new)]
    )


def test_moves_to_the_first_and_the_last_place(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(tmp_path, POINTS)
    table.write([row_of(1, {"x": 1, "y": "one"})])
    table.change([MoveField(f"{level}x", first() if level else last()) for level in LEVELS])
    table.change([MoveField(f"{level}x", last()) for level in LEVELS[1:]])
    assert [list(row) for row in table.read(spark)] == [["id", "y", "p", "l", "m", "x"]]
    assert [list(row["p"]) for row in table.by_arrow()] == [["y", "x"]]


@pytest.mark.parametrize("level", LEVELS)
def test_the_write_default_is_for_new_rows_alone(spark: SparkSession, tmp_path: Path, level: str) -> None:
    table = Table(tmp_path, POINTS)
    table.write([row_of(1, {"x": 1, "y": "one"})])
    table.change(AddField(f"{level}z", pa.int32(), default=1, position=after("y")))
    table.change(ChangeDefault(f"{level}z", 2))
    plan = reconcile(table.schema, to_arrow(POINTS)).plan
    incoming = rows_table(POINTS, [row_of(2, {"x": 2, "y": "two"})])
    table.write(plan.project(incoming).to_pylist())
    seen = [found_at(row, level)["z"] for row in table.read(spark)]
    assert seen == [1, 2]


def found_at(row: dict[str, Any], level: str) -> Point:
    """The pair that a row holds at a level."""
    held: dict[str, Point] = {"": row, "p.": row["p"], "l.element.": row["l"][0], "m.value.": row["m"][0][1]}
    return held[level]


def test_keys_come_and_go_on_data(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(tmp_path, POINTS)
    row = row_of(1, {"x": 1, "y": "one"})
    table.write([row])
    table.change([AddPartitionKey("x"), SetPrimaryKey(())])
    table.write([row], {"x": "1"})
    table.change([DropPartitionKey("x"), AddPartitionKey("y"), RenameField("x", "z")])
    table.write([{"z" if name == "x" else name: value for name, value in row.items()}], {"y": "one"})
    table.change([DropPartitionKey("y"), SetPrimaryKey(("id",)), DropField("y")])
    expected = {"id": 1, "z": 1, **{name: row[name] for name in ("p", "l", "m")}}
    assert comparable(table.read(spark)) == comparable([expected] * 3)


# -- the refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "error"), [(c[1], c[2]) for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_each_refusal_leaves_what_was_written_and_what_will_be(
    spark: SparkSession, tmp_path: Path, changes: Sequence[Change], error: type[SchemaError]
) -> None:
    table = Table(tmp_path, TABLE)
    table.write(ROWS)
    with pytest.raises(error):
        # A good change ahead of the bad one: it must not stay.
        table.change([AddField("extra", pa.int32()), *changes])
    assert table.history.latest() == table.schema and table.schema.same_as(TABLE)
    table.write(ROWS)
    assert comparable(table.read(spark)) == comparable([*ROWS, *ROWS])

"""Reading older files, with Spark and with PyArrow: worked examples, both flags, filters, reconcile."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.schema.schema_data import comparable, rows_table, write_rows
from tests.schema.schema_strategies import change_lists, rows_of, schemas
from twophase.schema import (
    EVOLVE,
    KEEP,
    STRICT,
    AddField,
    ChangeDefault,
    ChangeNullability,
    ChangeType,
    DropField,
    Field,
    MoveField,
    Origin,
    ReadPlan,
    ReconcilePolicy,
    RenameField,
    Schema,
    after,
    apply_changes,
    assign_ids,
    describe,
    file_filter,
    first,
    merge_schemas,
    plan_read,
    promotion_policy,
    reconcile,
    row_filter,
    row_filter_sql,
    to_arrow,
    to_spark,
)
from twophase.schema.convert_arrow import arrow_type
from twophase.schema.errors import (
    FieldIdError,
    IncompatibleWriteError,
    KeyFieldError,
    NullabilityError,
    SchemaError,
)

Rows = list[dict[str, Any]]


def read_both(spark: SparkSession, tmp_path: Path, plan: ReadPlan, rows: Rows) -> Rows:
    """The plan's rows; they must be the same by PyArrow, and by Spark from a file."""
    by_arrow: Rows = plan.project(rows_table(plan.file, rows)).to_pylist()
    path = write_rows(tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet", plan.file, rows)
    frame = spark.read.parquet(str(path)).selectExpr(*plan.spark_expressions())
    # By way of a file: toArrow cannot hold a NOT NULL field below a NULL struct.
    frame.write.parquet(f"{path}.out")
    by_spark = pq.read_table(f"{path}.out").to_pylist()
    assert comparable(by_spark) == comparable(by_arrow)
    return by_arrow


def test_flip_226_example(spark: SparkSession, tmp_path: Path) -> None:
    table = assign_ids(pa.schema([(name, pa.string()) for name in "abc"]))
    old = [{"a": "a1", "b": "b1", "c": "c1"}]
    dropped = apply_changes(table, DropField("c"))
    again = apply_changes(dropped, AddField("c", pa.string()))
    new = [{"a": "a2", "b": "b2", "c": "c2"}]
    plan = plan_read(table, again)
    assert plan.find(again.find("c").id).origin is Origin.READDED  # type: ignore[union-attr]
    assert read_both(spark, tmp_path, plan, old) == [{"a": "a1", "b": "b1", "c": None}]
    assert read_both(spark, tmp_path, plan_read(again, again), new) == new


def node(number: int, name: str, leaf: pa.DataType) -> Field:
    return Field(number, name, leaf=leaf)


FILE = Schema((node(0, "f1", pa.string()), node(1, "x1", pa.string()), node(2, "f3", pa.int32())))
QUERY = Schema(
    (node(0, "f1v1", pa.string()), node(2, "f3", pa.int64()), node(3, "n1", pa.string()), node(4, "f1", pa.string()))
)


def test_hudi_merger_example(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"f1": "v", "x1": "w", "f3": 7}]
    read = read_both(spark, tmp_path, plan_read(FILE, QUERY), rows)
    assert read == [{"f1v1": "v", "f3": 7, "n1": None, "f1": None}]
    assert "f1 <- NULL (readded)" in describe(plan_read(FILE, QUERY))


@pytest.mark.parametrize(("type_from_file", "leaf"), [(True, pa.int32()), (False, pa.int64())])
@pytest.mark.parametrize(("name_from_file", "name"), [(True, "f1"), (False, "f1v1")])
def test_merger_flags(type_from_file: bool, leaf: pa.DataType, name_from_file: bool, name: str) -> None:
    merged = merge_schemas(FILE, QUERY, type_from_file=type_from_file, name_from_file=name_from_file)
    assert [n.id for n in merged] == [0, 2, 3, 4]
    assert merged.by_id(0).name == name
    assert merged.by_id(2).leaf == leaf
    assert merged.by_id(3).name == "n1"
    assert merged.by_id(4).name not in {"f1", "x1", "f3", "f1v1", "n1"}


def test_a_readded_field_gets_a_name_that_no_real_column_has() -> None:
    file = Schema((node(0, "f1", pa.string()), node(1, "f1__4", pa.string()), node(2, "F1__4_", pa.string())))
    merged = merge_schemas(file, QUERY)
    assert merged.by_id(4).name == "f1__4__"


@pytest.mark.parametrize("by_id", [True, False])
def test_spark_opens_a_file_with_the_merged_schema(spark: SparkSession, tmp_path: Path, by_id: bool) -> None:
    rows = [{"f1": "v", "x1": "w", "f3": 7}]
    path = str(write_rows(tmp_path / "f.parquet", FILE, rows))
    spark.conf.set("spark.sql.parquet.fieldId.read.enabled", str(by_id).lower())
    try:
        merged = merge_schemas(FILE, QUERY)
        read = spark.read.schema(to_spark(merged)).parquet(path).toArrow().to_pylist()
        native = spark.read.schema(to_spark(QUERY)).parquet(path).toArrow().to_pylist()
    finally:
        spark.conf.unset("spark.sql.parquet.fieldId.read.enabled")
    assert [list(row.values()) for row in read] == [["v", 7, None, None]]
    # By ids Spark gets the query's own schema right; by names alone it would bring the wrong column back.
    assert native == [{"f1v1": "v", "f3": 7, "n1": None, "f1": None}] if by_id else native[0]["f1"] == "v"


POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
NESTED = assign_ids(
    pa.schema(
        [
            ("a", pa.int32()),
            ("p", POINT),
            ("l", pa.list_(POINT)),
            ("m", pa.map_(pa.string(), pa.list_(POINT))),
            ("d", pa.date32()),
        ]
    )
)
NESTED_ROWS: Rows = [
    {
        "a": 1,
        "p": {"x": 1, "y": "one"},
        "l": [{"x": 2, "y": "two"}, None, {"x": None, "y": None}],
        "m": [("k", [{"x": 3, "y": "three"}]), ("n", None)],
        "d": dt.date(2020, 1, 2),
    },
    {"a": None, "p": None, "l": None, "m": None, "d": None},
    {"a": 3, "p": {"x": None, "y": None}, "l": [], "m": [], "d": dt.date(1969, 1, 1)},
]


def test_every_rule_at_every_level_on_data(spark: SparkSession, tmp_path: Path) -> None:
    changes = [
        RenameField("a", "aa"),
        *(ChangeType(f"{above}.x", pa.int64()) for above in ("p", "l.element", "m.value.element")),
        *(RenameField(f"{above}.y", "why") for above in ("p", "l.element")),
        *(DropField("m.value.element.y"), AddField("m.value.element.y", pa.string())),
        AddField("l.element.z", pa.int32(), nullable=False, default=5, position=first()),
        AddField("q", POINT, position=after("aa")),
        ChangeType("d", pa.timestamp("us")),
        MoveField("d", first()),
    ]
    changed = apply_changes(NESTED, changes, promotion="wide")
    rows = read_both(spark, tmp_path, plan_read(NESTED, changed), NESTED_ROWS)
    assert rows[0] == {
        "d": dt.datetime(2020, 1, 2),
        "aa": 1,
        "q": None,
        "p": {"x": 1, "why": "one"},
        "l": [{"z": 5, "x": 2, "why": "two"}, None, {"z": 5, "x": None, "why": None}],
        "m": [("k", [{"x": 3, "y": None}]), ("n", None)],
    }
    assert rows[1] == dict.fromkeys(rows[0])
    assert rows[2]["l"] == [] and rows[2]["m"] == [] and rows[2]["p"] == {"x": None, "why": None}


def test_slices_and_chunks_read_like_whole_tables() -> None:
    changed = apply_changes(NESTED, [ChangeType("l.element.x", pa.int64()), DropField("p.y")])
    plan = plan_read(NESTED, changed)
    table = rows_table(NESTED, NESTED_ROWS)
    whole = plan.project(table).to_pylist()
    assert plan.project(table.slice(1)).to_pylist() == whole[1:]
    chunked = pa.concat_tables([table.slice(2), table.slice(0, 2)])
    assert plan.project(chunked).to_pylist() == [whole[2], *whole[:2]]
    assert plan.project(table.slice(0, 0)).num_rows == 0


def test_a_null_in_a_not_null_field_is_an_error_in_both_engines(spark: SparkSession, tmp_path: Path) -> None:
    table = assign_ids(pa.schema([("a", pa.int32()), ("p", POINT)]))
    for path in ("a", "p.x"):
        strict = apply_changes(table, ChangeNullability(path, False, checked=True))
        plan = plan_read(table, strict)
        good: Rows = [{"a": 1, "p": {"x": 1, "y": None}}, {"a": 2, "p": None}]
        assert len(read_both(spark, tmp_path, plan, good)) == 2
        bad: Rows = [{"a": None, "p": {"x": None, "y": None}}]
        with pytest.raises(NullabilityError, match=f"{path} is NOT NULL"):
            plan.project(rows_table(table, bad))
        file = str(write_rows(tmp_path / "bad.parquet", table, bad))
        with pytest.raises(PySparkException, match=f"{path} is NOT NULL"):
            spark.read.parquet(file).selectExpr(*plan.spark_expressions()).collect()


def test_defaults_of_every_type_reach_old_rows_in_both_engines(spark: SparkSession, tmp_path: Path) -> None:
    from tests.schema.test_schema_convert import DEFAULTS

    table = assign_ids(pa.schema([("id", pa.int32())]))
    added = [AddField(f"c{i}", leaf, default=value, nullable=False) for i, (leaf, value) in enumerate(DEFAULTS)]
    rows = read_both(spark, tmp_path, plan_read(table, apply_changes(table, added)), [{"id": 1}])
    float_index = next(i for i, (leaf, _) in enumerate(DEFAULTS) if pa.types.is_float32(leaf))
    for i, (_, value) in enumerate(DEFAULTS):
        assert rows[0][f"c{i}"] == (pytest.approx(value) if i == float_index else value)


def test_schemas_of_two_tables_are_not_merged() -> None:
    with pytest.raises(FieldIdError, match="not versions of one table"):
        plan_read(assign_ids(pa.schema([("a", POINT)])), assign_ids(pa.schema([("a", pa.int32())])))


# -- filters -----------------------------------------------------------------------------------------------------------

WIDENED = apply_changes(
    NESTED,
    [
        RenameField("a", "aa"),
        ChangeType("aa", pa.int64()),
        AddField("n", pa.int32(), default=5),
        AddField("a", pa.int32()),
        RenameField("p.x", "z"),
        AddField("p.w", pa.int32(), default=5),
        ChangeType("d", pa.timestamp("us")),
    ],
    promotion="wide",
)

FILTERS: list[Any] = [
    [("aa", "=", 1)],
    [("aa", "=", 2**40)],
    [("aa", "<", 2**40)],
    [("aa", "!=", 2**40)],
    [("aa", ">", -(2**40)), ("aa", "<=", 1)],
    [("aa", "in", [1, 2**40])],
    [("aa", "not in", [1, 2**40])],
    [("aa", "not in", [1])],
    [("aa", "is null", None)],
    [("aa", "is not null", None)],
    [("a", "=", 1)],
    [("a", "is null", None)],
    [("n", "=", 5)],
    [("n", "<", 5)],
    [("n", "in", [4, 5])],
    [("p.z", ">=", 1)],
    [("p.z", "is null", None)],
    [("p.w", "=", 5)],
    [("p.w", "is null", None)],
    [("p.w", "!=", 5)],
    [("d", ">", dt.datetime(2000, 1, 1))],
    [("d", ">", dt.datetime(2000, 1, 1, 12))],
    [("d", "=", dt.datetime(2020, 1, 2, 12))],
    [("d", "=", dt.datetime(2020, 1, 2))],
    [[("aa", "=", 1)], [("n", "=", 4)]],
    [[("aa", "=", 3)], [("n", "=", 5)]],
    [[("aa", "=", 3), ("a", "=", 3)], [("p.w", "=", 5)]],
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_a_filter_on_the_file_keeps_what_it_keeps_on_the_query(filters: Any) -> None:
    plan = plan_read(NESTED, WIDENED)
    table = rows_table(NESTED, NESTED_ROWS)
    wanted = plan.project(table).filter(row_filter(WIDENED, filters)).to_pylist()
    pushed = file_filter(plan, filters)
    kept = table if pushed.expression is None else table.filter(pushed.expression)
    kept = kept.slice(0, 0) if pushed.never else kept
    found = plan.project(kept)
    assert found.filter(row_filter(WIDENED, filters)).to_pylist() == wanted
    if pushed.exact:
        assert found.to_pylist() == wanted


def test_every_filter_keeps_the_same_rows_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    plan = plan_read(NESTED, WIDENED)
    table = rows_table(NESTED, NESTED_ROWS)
    path = write_rows(tmp_path / "f.parquet", NESTED, NESTED_ROWS)
    frame = spark.read.parquet(str(path)).selectExpr(*plan.spark_expressions())
    rows = plan.project(table)
    for filters in FILTERS:
        wanted = rows.filter(row_filter(WIDENED, filters)).column("aa").to_pylist()
        assert [row.aa for row in frame.where(row_filter_sql(WIDENED, filters)).collect()] == wanted, filters


def test_a_filter_reaches_the_statistics_of_an_old_file(tmp_path: Path) -> None:
    rows = [{"a": i, "p": None, "l": None, "m": None, "d": None} for i in range(1000)]
    pq.write_table(rows_table(NESTED, rows), tmp_path / "f.parquet", row_group_size=100)
    pushed = file_filter(plan_read(NESTED, WIDENED), [("aa", ">=", 950)])
    (fragment,) = ds.dataset(tmp_path / "f.parquet").get_fragments()
    assert fragment.subset(pushed.expression).num_row_groups == 1


def test_a_lossy_cast_is_never_pushed_through() -> None:
    text = apply_changes(NESTED, ChangeType("a", pa.string()), promotion="explicit")
    pushed = file_filter(plan_read(NESTED, text), [("a", ">", "10")])
    assert (pushed.expression, pushed.never, pushed.exact) == (None, False, False)


@pytest.mark.parametrize(
    "filters", [[], [("aa", "~", 1)], [("l.element.x", "=", 1)], [("p", "=", 1)], [("aa", "=", None)]], ids=str
)
def test_a_filter_that_means_nothing_is_refused(filters: Any) -> None:
    with pytest.raises(SchemaError):
        file_filter(plan_read(NESTED, WIDENED), filters)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_filters_stay_right_under_any_changes(data: st.DataObject) -> None:
    file = data.draw(schemas())
    query = apply_changes(file, data.draw(change_lists(file)), promotion="explicit")
    leaves = [
        n for n in query.walk() if n.leaf is not None and all(p.kind.value == "struct" for p in query.ancestors(n.id))
    ]
    plan = plan_read(file, query, on_cast_failure="null")
    table = rows_table(file, rows_of(file))
    try:
        rows = plan.project(table)
    except NullabilityError:
        return
    for leaf in leaves:
        column: Any = rows.column(query.path_of(leaf.id)[0])
        for name in query.path_of(leaf.id)[1:]:
            column = pa.compute.struct_field(column, name)
        literal = next((v for v in column.to_pylist() if v is not None and v == v), None)
        ops = ["is null", "is not null", *(() if literal is None else ("=", "<", ">=", "!="))]
        for op in ops:
            filters = [(leaf.id, op, literal)]
            pushed = file_filter(plan, filters)
            kept = table if pushed.expression is None else table.filter(pushed.expression)
            kept = kept.slice(0, 0) if pushed.never else kept
            wanted = rows.filter(row_filter(query, filters)).to_pylist()
            found = plan.project(kept)
            assert comparable(found.filter(row_filter(query, filters)).to_pylist()) == comparable(wanted)
            assert not pushed.exact or comparable(found.to_pylist()) == comparable(wanted)


# -- reconcile ---------------------------------------------------------------------------------------------------------

TARGET = assign_ids(
    pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), ("p", POINT), ("l", pa.list_(POINT))]),
    primary_keys=["id"],
)
INCOMING = pa.schema(
    [
        ("p", pa.struct([("y", pa.string()), ("new", pa.int32()), ("x", pa.int64())])),
        ("N", pa.string()),
        pa.field("ID", pa.int32(), nullable=False),
        ("l", pa.list_(pa.struct([("x", pa.int16())]))),
    ]
)
INCOMING_ROWS: Rows = [
    {"p": {"y": "one", "new": 9, "x": 2**40}, "N": "n", "ID": 1, "l": [{"x": 3}, None]},
    {"p": None, "N": None, "ID": 2, "l": None},
]


def test_a_write_with_missing_new_wider_narrower_and_reordered_columns_fits(spark: SparkSession) -> None:
    result = reconcile(TARGET, INCOMING)
    names = [node.name for node in result.schema]
    assert names == ["id", "a", "p", "N", "l"]
    assert [node.name for node in result.schema.find("p").children] == ["x", "y", "new"]
    assert result.schema.find("p.x").leaf == pa.int64()
    assert result.schema.find("l.element.x").leaf == pa.int32()
    data = pa.Table.from_pylist(INCOMING_ROWS, schema=INCOMING)
    rows = result.plan.project(data).to_pylist()
    assert rows[0] == {
        "id": 1,
        "a": None,
        "p": {"x": 2**40, "y": "one", "new": 9},
        "N": "n",
        "l": [{"x": 3, "y": None}, None],
    }
    frame = spark.createDataFrame(data).selectExpr(*result.plan.spark_expressions())
    assert frame.toArrow().to_pylist() == rows
    # The table's older rows stay readable under the new schema.
    old = rows_table(TARGET, [{"id": 1, "a": 5, "p": {"x": 1, "y": "y"}, "l": None}])
    assert plan_read(TARGET, result.schema).project(old).to_pylist()[0]["p"] == {"x": 1, "y": "y", "new": None}


def test_a_write_that_fits_leaves_the_table_as_it_is() -> None:
    result = reconcile(TARGET, pa.schema(list(to_arrow(TARGET))), STRICT)
    assert result.schema is TARGET and result.changes == ()


def test_new_columns_go_where_their_neighbours_are() -> None:
    table = assign_ids(pa.schema([("a", pa.int32()), ("b", pa.int32())]))
    incoming = pa.schema([(name, pa.int32()) for name in ("w", "a", "x", "y", "b", "z")])
    assert [node.name for node in reconcile(table, incoming).schema] == ["w", "a", "x", "y", "b", "z"]


def test_by_position_names_do_not_matter_and_more_columns_go_to_the_end() -> None:
    table = assign_ids(pa.schema([("a", pa.int64()), ("p", POINT)]))
    incoming = pa.schema(
        [("p", pa.int32()), ("a", pa.struct([("y", pa.int32()), ("x", pa.string())])), ("b", pa.int8())]
    )
    result = reconcile(table, incoming, by="position")
    assert [node.name for node in result.schema] == ["a", "p", "b"]
    data = pa.Table.from_pylist([{"p": 1, "a": {"y": 2, "x": "z"}, "b": 3}], schema=incoming)
    assert result.plan.project(data).to_pylist() == [{"a": 1, "p": {"x": 2, "y": "z"}, "b": 3}]
    shorter = reconcile(table, pa.schema([("z", pa.int64())]), by="position")
    assert shorter.schema is table
    assert shorter.plan.project(pa.table({"z": [5]})).to_pylist() == [{"a": 5, "p": None}]


def test_a_missing_column_gets_the_write_default_and_not_what_old_rows_read() -> None:
    table = apply_changes(TARGET, [AddField("n", pa.int32(), nullable=False, default=1), ChangeDefault("n", 2)])
    result = reconcile(table, pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    assert result.plan.project(pa.table({"id": [7]})).column("n").to_pylist() == [2]


NULLS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.null()),
        ("s", pa.struct([("x", pa.int32()), ("y", pa.null())])),
        ("t", pa.struct([("x", pa.null())])),
        ("p", pa.struct([("x", pa.int32()), ("z", pa.null())])),
    ]
)


def test_a_new_column_that_is_null_in_all_rows_waits_for_its_first_value(spark: SparkSession) -> None:
    result = reconcile(TARGET, NULLS)
    assert [node.name for node in result.schema] == ["id", "s", "a", "p", "l"]
    assert [node.name for node in result.schema.find("s").children] == ["x"]
    assert result.schema.find("p") is TARGET.find("p")
    rows = [{"id": 1, "n": None, "s": {"x": 2, "y": None}, "t": {"x": None}, "p": {"x": 3, "z": None}}]
    data = pa.Table.from_pylist(rows, schema=NULLS)
    read = result.plan.project(data).to_pylist()
    assert read == [{"id": 1, "a": None, "s": {"x": 2}, "p": {"x": 3, "y": None}, "l": None}]
    assert spark.createDataFrame(data).selectExpr(*result.plan.spark_expressions()).toArrow().to_pylist() == read
    first = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int8())])
    assert reconcile(result.schema, first).schema.find("n").leaf == pa.int8()


@pytest.mark.parametrize("odd", [pa.list_(pa.null()), pa.map_(pa.string(), pa.null())], ids=str)
def test_new_lists_of_nothing_but_null_are_refused_because_they_would_be_lost(odd: pa.DataType) -> None:
    with pytest.raises(IncompatibleWriteError, match=r"n is new, and NULL in all rows.*a cast to its type"):
        reconcile(TARGET, pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", odd)]))


def test_by_position_no_column_can_be_left_out() -> None:
    incoming = pa.schema([("a", pa.int32()), ("n", pa.null()), ("c", pa.int32())])
    with pytest.raises(IncompatibleWriteError, match="by='name'"):
        reconcile(assign_ids(pa.schema([("a", pa.int32())])), incoming, by="position")


def test_two_decimals_meet_where_both_fit() -> None:
    table = assign_ids(pa.schema([("d", pa.decimal128(10, 4))]))
    result = reconcile(
        table, pa.schema([("d", pa.decimal128(12, 2))]), ReconcilePolicy(promotion=promotion_policy("wide"))
    )
    assert result.schema.find("d").leaf == pa.decimal128(14, 4)


def test_a_column_that_is_null_in_all_rows_fits_everywhere() -> None:
    nulls = pa.schema([pa.field("id", pa.int64(), False), ("a", pa.null()), ("p", pa.null()), ("l", pa.null())])
    result = reconcile(TARGET, nulls)
    assert result.schema is TARGET
    data = pa.table([pa.array([1]), *[pa.nulls(1)] * 3], schema=nulls)
    assert result.plan.project(data).to_pylist() == [{"id": 1, "a": None, "p": None, "l": None}]


def test_not_null_is_relaxed_only_on_request_and_else_checked_on_the_rows() -> None:
    table = assign_ids(pa.schema([pa.field("a", pa.int32(), nullable=False)]))
    incoming = pa.schema([("a", pa.int32())])
    assert reconcile(table, incoming, ReconcilePolicy(relax_not_null=True)).schema.find("a").nullable
    kept = reconcile(table, incoming)
    assert kept.schema is table
    with pytest.raises(NullabilityError):
        kept.plan.project(pa.table([pa.array([None], pa.int32())], schema=incoming))


REFUSED: dict[str, tuple[ReconcilePolicy, Sequence[Any], str, str]] = {
    "new column": (KEEP, [("z", pa.int32())], "z", "new='add'"),
    "wider type": (KEEP, [("a", pa.int64())], "a", "widen=True"),
    "missing column": (STRICT, [("a", pa.int32())], "id", "missing=True"),
    "narrower type": (STRICT, [("a", pa.int16())], "a", "cast=True"),
    "other order": (ReconcilePolicy(reorder=False), [("a", pa.int32()), ("id", pa.int64())], "", "reorder=True"),
    "missing NOT NULL column": (EVOLVE, [("a", pa.int32())], "id", "relax_not_null=True"),
    "other type": (EVOLVE, [("a", pa.string())], "a", "policy 'hudi'"),
    "other type below": (EVOLVE, [("l", pa.list_(pa.struct([("x", pa.bool_())])))], "l.element.x", "int"),
    "other kind": (EVOLVE, [("p", pa.list_(pa.int32()))], "p", ""),
    "not exact enough": (EVOLVE, [("a", pa.float64())], "a", "policy 'wide'"),
}


@pytest.mark.parametrize(("policy", "columns", "path", "way"), REFUSED.values(), ids=REFUSED)
def test_a_write_that_the_policy_refuses_names_the_column_and_a_way_out(
    policy: ReconcilePolicy, columns: Sequence[Any], path: str, way: str
) -> None:
    wanted = [*([] if path == "id" or ("id", pa.int64()) in columns else [("id", pa.int64())]), *columns]
    with pytest.raises(IncompatibleWriteError) as caught:
        reconcile(TARGET, pa.schema(wanted), policy)
    assert caught.value.field_path == path
    assert way in str(caught.value)


def test_a_key_is_not_widened_by_a_write() -> None:
    table = assign_ids(pa.schema([pa.field("id", pa.int32(), nullable=False)]), primary_keys=["id"])
    with pytest.raises(KeyFieldError, match="another type"):
        reconcile(table, pa.schema([pa.field("id", pa.int64(), nullable=False)]))


def test_ignored_columns_are_not_written() -> None:
    result = reconcile(
        TARGET, pa.schema([pa.field("id", pa.int64(), False), ("z", pa.int8())]), ReconcilePolicy(new="ignore")
    )
    assert result.schema is TARGET and result.plan.file_columns == ["id"]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(schemas(), schemas())
def test_a_reconciled_table_holds_old_and_new_rows(table: Schema, other: Schema) -> None:
    incoming = pa.schema([pa.field(n.name, arrow_type(n), n.nullable) for n in other])
    policy = ReconcilePolicy(promotion=promotion_policy("wide"), relax_not_null=True)
    try:
        result = reconcile(table, incoming, policy)
    except SchemaError:
        return
    assert plan_read(table, result.schema).project(rows_table(table, rows_of(table))).num_rows == 6
    assert result.plan.project(rows_table(other, rows_of(other))).num_rows == 6
    again = reconcile(result.schema, incoming, policy)
    assert again.schema is result.schema

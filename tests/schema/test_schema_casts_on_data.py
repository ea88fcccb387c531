"""Every cell of every promotion matrix, on values with sharp edges, read by Spark and by PyArrow with one result."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import SparkSession

from tests.schema.schema_data import TYPES, comparable, edge_values
from twophase.schema import (
    POLICY_NAMES,
    ChangeType,
    Field,
    Loss,
    ReadPlan,
    Schema,
    apply_changes,
    assign_ids,
    classify,
    matrix,
    plan_read,
    promotion_policy,
    to_arrow,
)
from twophase.schema.cast_arrow import cast_array
from twophase.schema.errors import CastError, TypeChangeError
from twophase.schema.promotion import HUDI_MATRIX

CELLS = [(old, new) for old in TYPES for new in TYPES if old != new]
CASTS = [(old, new) for old, new in CELLS if classify(TYPES[old], TYPES[new]) is not Loss.IMPOSSIBLE]
FILE, TABLE = edge_values()


def plan_cell(old: str, new: str, mode: str) -> ReadPlan:
    """Read the column of one type as another one."""
    return plan_read(FILE, Schema((Field(FILE.find(old).id, f"{old}_{new}", leaf=TYPES[new]),)), on_cast_failure=mode)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The edge values as a file; Spark cannot open a column of type null, which is tried apart."""
    path = tmp_path_factory.mktemp("edges") / "edges.parquet"
    pq.write_table(TABLE.drop_columns(["null"]), path)
    return str(path)


def test_spark_and_pyarrow_read_every_castable_cell_alike(spark: SparkSession, file: str) -> None:
    plans = [plan_cell(old, new, "null") for old, new in CASTS]
    frame = spark.read.parquet(file).selectExpr("CAST(NULL AS VOID) AS `null`", "*")
    read = frame.selectExpr(*(text for plan in plans for text in plan.spark_expressions())).toArrow()
    wrong = []
    for plan, (old, new) in zip(plans, CASTS, strict=True):
        by_arrow = comparable(plan.project(TABLE).column(0).to_pylist())
        by_spark = comparable(read.column(f"{old}_{new}").to_pylist())
        sources = TABLE.column(old).to_pylist()
        wrong += [(old, new, *row) for row in zip(sources, by_arrow, by_spark, strict=True) if row[1] != row[2]]
    assert wrong == []
    assert len(CASTS) == 117


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_no_session_setting_changes_what_a_lossy_cast_gives(spark: SparkSession, file: str, ansi: str) -> None:
    cells = [("decimal", "string"), ("timestamp", "string"), ("long", "int"), ("double", "long"), ("string", "int")]
    plans = [plan_cell(old, new, "null") for old, new in cells]
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        frame = spark.read.parquet(file)
        read = frame.selectExpr(*(text for plan in plans for text in plan.spark_expressions())).toArrow()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    for plan, (old, new) in zip(plans, cells, strict=True):
        expected = plan.project(TABLE).column(0).to_pylist()
        assert comparable(read.column(f"{old}_{new}").to_pylist()) == comparable(expected)


@pytest.mark.parametrize(
    ("old", "new"), [("int", "long"), ("float", "double"), ("byte", "decimal"), ("date", "timestamp_ntz")]
)
def test_a_widening_keeps_every_value_exactly(old: str, new: str) -> None:
    plan = plan_cell(old, new, "error")
    back = plan.project(TABLE).column(0).cast(TYPES[old])
    assert comparable(back.to_pylist()) == comparable(TABLE.column(old).to_pylist())


@pytest.mark.parametrize("loss", [Loss.EXACT, Loss.WIDE, Loss.ROUNDS])
def test_only_casts_that_are_said_to_may_fail_on_a_value(loss: Loss) -> None:
    for old, new in CASTS:
        if classify(TYPES[old], TYPES[new]) is loss:
            projected = plan_cell(old, new, "null").project(TABLE).column(0)
            assert projected.null_count == TABLE.column(old).null_count, (old, new)


FAILING = [
    ("string", "int"),
    ("string", "date"),
    ("string", "decimal"),
    ("string", "boolean"),
    ("long", "int"),
    ("short", "byte"),
    ("double", "long"),
    ("double", "small_decimal"),
    ("decimal", "small_decimal"),
    ("long_decimal", "long"),
    ("int", "small_decimal"),
    ("binary", "string"),
]


@pytest.mark.parametrize(("old", "new"), FAILING)
def test_a_failing_cast_is_an_error_that_names_field_types_and_value(old: str, new: str) -> None:
    with pytest.raises(CastError) as caught:
        plan_cell(old, new, "error").project(TABLE)
    assert caught.value.field_path == f"{old}_{new}"
    assert caught.value.old_type is not None and caught.value.new_type is not None
    assert "on_cast_failure='null'" in str(caught.value)


@pytest.mark.parametrize(("old", "new"), FAILING[:5])
def test_a_failing_cast_is_an_error_in_spark_too(spark: SparkSession, file: str, old: str, new: str) -> None:
    frame = spark.read.parquet(file).selectExpr(*plan_cell(old, new, "error").spark_expressions())
    with pytest.raises(SparkRuntimeException, match=f"A value of {old}_{new} is no"):
        frame.collect()


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("old", TYPES)
def test_a_policy_lets_through_just_what_can_be_read_afterwards(policy: str, old: str) -> None:
    base = assign_ids(pa.schema([("keep", pa.int32()), ("c", TYPES[old])]))
    data = pa.table([pa.array([7] * TABLE.num_rows, pa.int32()), TABLE.column(old)], schema=to_arrow(base))
    chosen = promotion_policy(policy, on_cast_failure="null")
    for new in TYPES.keys() - {old}:
        if chosen.allows(TYPES[old], TYPES[new]):
            changed = apply_changes(base, ChangeType("c", TYPES[new]), promotion=chosen)
            rows = plan_read(base, changed, on_cast_failure="null").project(data)
            assert rows.column("c").type == TYPES[new]
            assert rows.num_rows == TABLE.num_rows
        else:
            with pytest.raises(TypeChangeError) as caught:
                apply_changes(base, ChangeType("c", TYPES[new]), promotion=chosen)
            assert caught.value.field_path == "c"
            unchanged = plan_read(base, base).project(data).column("c").to_pylist()
            assert comparable(unchanged) == comparable(data.column("c").to_pylist())


EXPECTED_EXACT = {("int", "long"), ("float", "double")}
EXPECTED_WIDE = EXPECTED_EXACT | {
    *(("byte", new) for new in ("short", "int", "long", "float", "double", "decimal", "long_decimal", "small_decimal")),
    *(("short", new) for new in ("int", "long", "float", "double", "decimal", "long_decimal")),
    *(("int", new) for new in ("double", "decimal", "long_decimal")),
    *(("long", new) for new in ("decimal", "long_decimal")),
    *(("small_decimal", new) for new in ("decimal",)),
    ("long_decimal", "decimal"),
    ("date", "timestamp_ntz"),
    *(("null", new) for new in TYPES if new != "null"),
}


def allowed(policy: str) -> set[tuple[str, str]]:
    return {(old, new) for old, new in CELLS if promotion_policy(policy).allows(TYPES[old], TYPES[new])}


def test_exact_is_what_every_engine_accepts() -> None:
    assert allowed("exact") == EXPECTED_EXACT
    assert promotion_policy("exact").allows(pa.decimal128(5, 2), pa.decimal128(9, 2))
    assert not promotion_policy("exact").allows(pa.decimal128(5, 2), pa.decimal128(9, 3))


def test_wide_is_every_exact_cast() -> None:
    # A byte has up to three digits and so fits decimal(5,2); a long_decimal's 20 digits fit the sample decimal(38,18).
    assert allowed("wide") == EXPECTED_WIDE


def test_hudi_is_the_articles_matrix_cell_by_cell() -> None:
    families = ("int", "long", "float", "double", "string", "decimal", "date")
    rows = {
        "int": "YYYYYY-",
        "long": "-Y-YYY-",
        "float": "--YYYY-",
        "double": "---YYY-",
        "decimal": "----YY-",
        "string": "----YYY",
        "date": "----Y-Y",
    }
    printed = matrix("hudi")
    for old, row in rows.items():
        assert "".join("Y" if printed[old][new] else "-" for new in families) == row
    assert set(HUDI_MATRIX) == set(rows)


def test_implicit_never_fails_and_never_makes_text() -> None:
    for old, new in allowed("implicit"):
        assert classify(TYPES[old], TYPES[new]) < Loss.MAY_FAIL
        assert new != "string" or old == "null"
    assert ("int", "float") in allowed("implicit") and ("long", "double") in allowed("implicit")


def test_explicit_is_every_cast_there_is() -> None:
    assert allowed("explicit") == set(CASTS)


def test_each_policy_is_within_explicit_and_exact_is_within_all_but_hudi() -> None:
    for policy in POLICY_NAMES:
        assert allowed(policy) <= allowed("explicit")
        assert allowed(policy) >= allowed("exact")


def test_a_file_reads_as_if_every_change_of_type_had_rewritten_it(spark: SparkSession, tmp_path: Path) -> None:
    base = assign_ids(pa.schema([("c", pa.int32())]))
    as_text = apply_changes(base, ChangeType("c", pa.string()), promotion="explicit")
    as_date = apply_changes(as_text, ChangeType("c", pa.date32()), promotion="explicit")
    data = pa.table([pa.array([2020, None], pa.int32())], schema=to_arrow(base))
    pq.write_table(data, tmp_path / "old.parquet")
    with pytest.raises(TypeChangeError, match="through"):
        plan_read(base, as_date)
    plan = plan_read(base, as_date, through=[as_text])
    frame = spark.read.parquet(str(tmp_path / "old.parquet")).selectExpr(*plan.spark_expressions())
    assert str(plan.project(data).column("c").to_pylist()) == "[datetime.date(2020, 1, 1), None]"
    assert frame.toArrow().column("c").to_pylist() == plan.project(data).column("c").to_pylist()


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_text_of_as_many_digits_as_a_decimal_has_keeps_them(sign: str) -> None:
    """Python's own context of decimals has 28 digits."""
    kind, text = pa.decimal128(38, 2), f"{sign}{'9' * 36}.99"
    assert cast_array(pa.array([text]), kind, "error", "v").to_pylist() == [Decimal(text)]
    assert cast_array(pa.array([f"{text}5", "1e36"]), kind, "null", "v").to_pylist() == [None, None]

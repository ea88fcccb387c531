"""Partition evolution: files stay in the layout of their own version, and the table reads as if there had been one."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.schema.schema_data import rows_table
from twophase.schema import (
    AddPartitionKey,
    ChangeType,
    DropPartitionKey,
    RenameField,
    apply_changes,
    assign_ids,
    may_skip,
    partition_values,
    plan_partitioned_read,
)
from twophase.schema.errors import CastError, KeyFieldError, SchemaError, UnknownFieldError

Rows = list[dict[str, Any]]


def test_adding_and_dropping_partition_keys_changes_no_data(spark: SparkSession, tmp_path: Path) -> None:
    """FLIP-226: each file keeps its own version's layout, and the table reads as if there had been one."""
    by_day = assign_ids(
        pa.schema([("v", pa.int32()), ("day", pa.date32()), ("hour", pa.int32())]), partition_keys=["day"]
    )
    by_both = apply_changes(by_day, AddPartitionKey("hour"))
    by_none = apply_changes(
        by_both, [DropPartitionKey("day"), DropPartitionKey("hour"), ChangeType("hour", pa.int64())]
    )
    rows: Rows = [{"v": i, "day": dt.date(2020, 1, 1 + i % 2), "hour": i % 3} for i in range(6)]
    read: list[tuple[Any, ...]] = []
    by_engine: list[tuple[Any, ...]] = []
    for version, (schema, part) in enumerate([(by_day, rows[:2]), (by_both, rows[2:4]), (by_none, rows[4:])]):
        keys = [schema.by_id(key).name for key in schema.partition_keys]
        for row in part:
            plan = plan_partitioned_read(schema, by_none, {key: str(row[key]) for key in keys})
            stored = rows_table(schema, [row]).drop_columns(keys)
            path = tmp_path / f"{version}-{row['v']}.parquet"
            pq.write_table(stored, path)
            read += [tuple(r.values()) for r in plan.project(stored).to_pylist()]
            frame = spark.read.parquet(str(path)).selectExpr(*plan.spark_expressions())
            by_engine += [tuple(r.values()) for r in frame.toArrow().to_pylist()]
    assert read == by_engine == [tuple(row.values()) for row in rows]


def test_a_file_is_skipped_only_by_what_its_own_version_was_partitioned_by() -> None:
    by_day = assign_ids(
        pa.schema([("v", pa.int32()), ("day", pa.date32()), ("hour", pa.int32())]), partition_keys=["day"]
    )
    by_both = apply_changes(by_day, AddPartitionKey("hour"))
    old = plan_partitioned_read(by_day, by_both, {"day": "2020-01-01"})
    new = plan_partitioned_read(by_both, by_both, {"day": "2020-01-01", "hour": "3"})
    assert may_skip(old, [("day", "=", dt.date(2020, 1, 2))])
    assert not may_skip(old, [("hour", "=", 4)])
    assert may_skip(new, [("hour", "=", 4)])
    assert not may_skip(new, [("hour", "=", 3)])


def test_directory_names_must_be_the_versions_partition_values() -> None:
    table = assign_ids(
        pa.schema([("v", pa.int32()), ("n", pa.int32()), ("t", pa.timestamp("us"))]), partition_keys=["n", "t"]
    )
    values = partition_values(table, {"n": "__HIVE_DEFAULT_PARTITION__", "T": "2020-01-01 00:00:00.12"})
    assert values[2] is None and values[3].as_py() == dt.datetime(2020, 1, 1, microsecond=120000)
    for directory, path in (({"n": "1"}, "t"), ({"n": "1", "t": None, "v": "1"}, "v"), ({"n": "1", "N": "2"}, "n")):
        with pytest.raises(KeyFieldError, match="partitioned by n, t") as caught:
            partition_values(table, directory)
        assert caught.value.field_path == path and caught.value.allowed
    with pytest.raises(UnknownFieldError, match="zz"):
        partition_values(table, {"n": "1", "t": None, "zz": "1"})
    with pytest.raises(CastError, match="n are no int"):
        partition_values(table, {"n": "x", "t": None})
    for text in ("yesterday", "2020-01-01 00:00:00Z"):
        with pytest.raises(CastError, match="no value of t") as bad:
            partition_values(table, {"n": "1", "t": text})
        assert (bad.value.old_type, bad.value.new_type) == ("text", "timestamp_ntz")


NESTED = assign_ids(
    pa.schema(
        [
            ("v", pa.int32()),
            ("sent", pa.struct([("day", pa.date32()), ("x", pa.int32())])),
            ("read", pa.struct([("day", pa.date32()), ("x", pa.int32())])),
        ]
    ),
    partition_keys=["sent.day", "read.day"],
)


def test_two_nested_keys_of_one_name_are_distinguished_by_their_paths(spark: SparkSession, tmp_path: Path) -> None:
    directory = {"sent.day": "2020-01-01", "READ.Day": None}
    values = partition_values(NESTED, directory)
    sent, read = (NESTED.find(path).id for path in ("sent.day", "read.day"))
    assert values[sent].as_py() == dt.date(2020, 1, 1) and values[read] is None
    assert partition_values(NESTED, {("sent", "day"): "2020-01-01", read: None}) == values
    renamed = apply_changes(NESTED, RenameField("sent.x", "z"))
    plan = plan_partitioned_read(NESTED, renamed, directory)
    stored = pa.table(
        {"v": pa.array([1], pa.int32()), "sent": pa.array([{"x": 2}]), "read": pa.array([{"x": 3}])}
    ).cast(pa.schema([("v", pa.int32()), *((n, pa.struct([("x", pa.int32())])) for n in ("sent", "read"))]))
    rows = plan.project(stored).to_pylist()
    assert rows == [{"v": 1, "sent": {"day": dt.date(2020, 1, 1), "z": 2}, "read": {"day": None, "x": 3}}]
    pq.write_table(stored, tmp_path / "f.parquet")
    frame = spark.read.parquet(str(tmp_path / "f.parquet")).selectExpr(*plan.spark_expressions())
    assert frame.toArrow().to_pylist() == rows
    with pytest.raises(UnknownFieldError):
        partition_values(NESTED, {"day": "2020-01-01"})


def test_a_timestamp_that_spark_wrote_into_a_directorys_name_is_read_in_its_sessions_zone(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = assign_ids(pa.schema([("v", pa.int32()), ("t", pa.timestamp("us", "UTC"))]), partition_keys=["t"])
    moments = [dt.datetime(2020, 7, 1, 5, 30, 0, 120000, dt.UTC), dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)]
    data = rows_table(table, [{"v": i, "t": moment} for i, moment in enumerate(moments)])
    spark.createDataFrame(data).write.partitionBy("t").parquet(str(tmp_path / "t"))
    found = {}
    for path in (tmp_path / "t").glob("t=*/*.parquet"):
        text = unquote(path.parent.name.partition("=")[2])
        plan = plan_partitioned_read(table, table, {"t": text}, time_zone="America/New_York")
        (row,) = plan.project(pq.ParquetFile(path).read()).to_pylist()
        found[row["v"]] = row["t"]
        with pytest.raises(CastError, match="time_zone="):
            partition_values(table, {"t": text})
        with pytest.raises(SchemaError, match="no time zone 'Nowhere'"):
            partition_values(table, {"t": text}, time_zone="Nowhere")
    assert found == dict(enumerate(moments))
    for text in ("2020-07-01T05:30:00.12Z", "2020-07-01 07:30:00.12+02:00"):
        assert partition_values(table, {"t": text})[2].as_py() == moments[0]

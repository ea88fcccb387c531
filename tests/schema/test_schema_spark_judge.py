"""Spark's ALTER TABLE as a judge, really run on a table of the session. Every disagreement is listed, with its reason.

A table of a Python data source is one that Spark changes through its catalog interface (version 2), with all of its own
checks; tables of the built-in formats can only be added to.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from twophase.schema import (
    AddField,
    Change,
    ChangeComment,
    ChangeNullability,
    ChangeType,
    DropField,
    MoveField,
    RenameField,
    Schema,
    after,
    apply_changes,
    assign_ids,
    first,
    promotion_policy,
    to_spark,
)
from twophase.schema.errors import SchemaError
from twophase.schema.leaf import type_name
from twophase.schema.plan_spark import sql_leaf, sql_type


class Judged(DataSource):
    """A source whose tables only have a schema."""

    @classmethod
    def name(cls) -> str:
        return "judged"

    def schema(self) -> str:
        return "a INT"


@pytest.fixture(scope="module")
def judge(spark: SparkSession) -> Iterator[SparkSession]:
    spark.dataSource.register(Judged)
    # PySpark logs each refusal with its whole stack.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield spark
    logger.setLevel(level)


def create(spark: SparkSession, schema: Schema) -> None:
    columns = [f"{node.name} {sql_type(node)}{'' if node.nullable else ' NOT NULL'}" for node in schema]
    spark.sql(f"CREATE TABLE judged ({', '.join(columns)}) USING judged")


def alter(spark: SparkSession, statement: str) -> bool:
    try:
        spark.sql(f"ALTER TABLE judged {statement}")
    except PySparkException:
        return False
    return True


# -- types -------------------------------------------------------------------------------------------------------------

TYPES: tuple[pa.DataType, ...] = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(9, 2)),
    *(pa.decimal128(12, 2), pa.decimal128(12, 4), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC")),
    *(pa.timestamp("us"), pa.time64("us")),
)

#: What Spark lets through and ``wide`` does not.
LOOSER_THAN_WIDE = {
    ("boolean", "string"): "as text, true is no boolean for other readers, and a filter on it compares text",
    ("byte", "string"): "text does not sort like numbers: min, max and filters change their meaning",
    ("short", "string"): "text does not sort like numbers",
    ("int", "string"): "text does not sort like numbers",
    ("long", "string"): "text does not sort like numbers",
    ("float", "string"): "text does not sort like numbers, and engines write 1e10 in different ways",
    ("double", "string"): "text does not sort like numbers, and engines write 1e10 in different ways",
    ("decimal(9,2)", "string"): "text does not sort like numbers, and 1.50 differs from 1.5",
    ("decimal(12,2)", "string"): "text does not sort like numbers, and 1.50 differs from 1.5",
    ("decimal(12,4)", "string"): "text does not sort like numbers, and 1.5000 differs from 1.5",
    ("binary", "string"): "not all bytes are text",
    ("date", "string"): "the text of years beyond 9999 does not sort like dates",
    ("timestamp", "string"): "Spark's text depends on the session's time zone",
    ("timestamp_ntz", "string"): "the text of years beyond 9999 does not sort like moments",
    ("time", "string"): "the text has as many digits as the value needs: 01:00:00 and 01:00:00.5 end differently",
    ("int", "float"): "above 2**24 it rounds",
    ("long", "float"): "above 2**24 it rounds",
    ("long", "double"): "above 2**53 it rounds",
    ("long", "timestamp"): "a number is no moment before somebody says of which unit",
    ("timestamp", "long"): "seconds: the fraction is lost",
    ("date", "timestamp"): "midnight of which zone? it depends on the session",
    ("timestamp", "timestamp_ntz"): "the local time of which zone? it depends on the session",
    ("timestamp_ntz", "timestamp"): "the moment in which zone? it depends on the session",
}
#: What ``wide`` lets through, as Spark does, and ``exact`` does not.
ONLY_WIDE = {
    ("byte", "short"): "Iceberg has no bytes: its readers refuse such a file or change",
    ("byte", "int"): "Iceberg has no bytes",
    ("byte", "long"): "Iceberg has no bytes",
    ("byte", "float"): "a reader must cast: Parquet stores an integer",
    ("byte", "double"): "a reader must cast: Parquet stores an integer",
    ("byte", "decimal(9,2)"): "a reader must cast: Parquet stores the number without its scale",
    ("byte", "decimal(12,2)"): "a reader must cast: Parquet stores the number without its scale",
    ("byte", "decimal(12,4)"): "a reader must cast: Parquet stores the number without its scale",
    ("short", "int"): "Iceberg has no shorts",
    ("short", "long"): "Iceberg has no shorts",
    ("short", "float"): "a reader must cast: Parquet stores an integer",
    ("short", "double"): "a reader must cast: Parquet stores an integer",
    ("short", "decimal(9,2)"): "a reader must cast: Parquet stores the number without its scale",
    ("short", "decimal(12,2)"): "a reader must cast: Parquet stores the number without its scale",
    ("short", "decimal(12,4)"): "a reader must cast: Parquet stores the number without its scale",
    ("int", "double"): "a reader must cast: Parquet stores an integer",
    ("int", "decimal(12,2)"): "a reader must cast: Parquet stores the number without its scale",
    ("decimal(9,2)", "decimal(12,4)"): "the file's unscaled number would mean another value to a reader that casts not",
    ("date", "timestamp_ntz"): "a reader must cast: Parquet stores days",
}
#: What FLIP-226's ``implicit`` lets through and Spark does not.
IMPLICIT_ONLY = {
    ("decimal(9,2)", "float"): "it rounds, and cannot fail: Flink's implicit casts are those",
    ("decimal(9,2)", "double"): "it rounds, and cannot fail",
    ("decimal(12,2)", "float"): "it rounds, and cannot fail",
    ("decimal(12,2)", "double"): "it rounds, and cannot fail",
    ("decimal(12,4)", "float"): "it rounds, and cannot fail",
    ("decimal(12,4)", "double"): "it rounds, and cannot fail",
    ("timestamp_ntz", "date"): "the time of the day is lost, and it cannot fail",
}
#: What ``implicit`` lets through, as Spark does, and ``wide`` does not.
ROUNDING = {
    ("int", "float"): "above 2**24 it rounds",
    ("long", "float"): "above 2**24 it rounds",
    ("long", "double"): "above 2**53 it rounds",
}
LOOSER = {
    "exact": LOOSER_THAN_WIDE | ONLY_WIDE,
    "wide": LOOSER_THAN_WIDE,
    "implicit": {pair: why for pair, why in LOOSER_THAN_WIDE.items() if pair not in ROUNDING},
}
STRICTER: dict[str, dict[tuple[str, str], str]] = {"exact": {}, "wide": {}, "implicit": IMPLICIT_ONLY}


@pytest.fixture(scope="module")
def spark_allows(judge: SparkSession) -> dict[tuple[pa.DataType, pa.DataType], bool]:
    """What Spark's ALTER TABLE says of every pair of types."""
    verdicts = {}
    for old in TYPES:
        create(judge, assign_ids(pa.schema([(f"c{i}", old) for i in range(len(TYPES))])))
        try:
            for i, new in enumerate(TYPES):
                if new != old:
                    verdicts[old, new] = alter(judge, f"ALTER COLUMN c{i} TYPE {sql_leaf(new, 'c')}")
        finally:
            judge.sql("DROP TABLE judged")
    return verdicts


@pytest.mark.parametrize("policy", LOOSER)
def test_each_policy_and_spark_agree_on_every_pair_of_types_but_the_listed_ones(
    spark_allows: dict[tuple[pa.DataType, pa.DataType], bool], policy: str
) -> None:
    ours = promotion_policy(policy)
    looser, stricter = set(), set()
    for (old, new), theirs in spark_allows.items():
        if theirs and not ours.allows(old, new):
            looser.add((type_name(old), type_name(new)))
        if not theirs and ours.allows(old, new):
            stricter.add((type_name(old), type_name(new)))
    assert looser == LOOSER[policy].keys()
    assert stricter == STRICTER[policy].keys()


# -- rules -------------------------------------------------------------------------------------------------------------

POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
BASE = assign_ids(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("a", pa.int32()),
            ("p", POINT),
            ("l", pa.list_(POINT)),
            ("m", pa.map_(pa.string(), POINT)),
            ("k", pa.map_(POINT, pa.int32())),
            ("one", pa.struct([("only", pa.int32())])),
        ]
    )
)

AGREED: dict[str, tuple[Change, str]] = {
    "add": (AddField("z", pa.int32()), "ADD COLUMN z INT"),
    "add first": (AddField("z", pa.int32(), position=first()), "ADD COLUMN z INT FIRST"),
    "add after": (AddField("z", pa.int32(), position=after("id")), "ADD COLUMN z INT AFTER id"),
    "add nested": (AddField("p.z", pa.int32(), position=after("x")), "ADD COLUMN p.z INT AFTER x"),
    "add below a list": (AddField("l.element.z", pa.int32()), "ADD COLUMN l.element.z INT"),
    "add below a map": (AddField("m.value.z", pa.int32()), "ADD COLUMN m.value.z INT"),
    "add a struct": (AddField("s", POINT), "ADD COLUMN s STRUCT<x: INT, y: STRING>"),
    "add with a comment": (AddField("z", pa.int32(), comment="new"), "ADD COLUMN z INT COMMENT 'new'"),
    "add below a leaf": (AddField("a.z", pa.int32()), "ADD COLUMN a.z INT"),
    "add a name that is taken": (AddField("a", pa.int32()), "ADD COLUMN a INT"),
    "add a name in another case": (AddField("A", pa.int32()), "ADD COLUMN A INT"),
    "add below what is not there": (AddField("q.z", pa.int32()), "ADD COLUMN q.z INT"),
    "drop": (DropField("a"), "DROP COLUMN a"),
    "drop nested": (DropField("p.x"), "DROP COLUMN p.x"),
    "drop below a list": (DropField("l.element.x"), "DROP COLUMN l.element.x"),
    "drop below a map": (DropField("m.value.y"), "DROP COLUMN m.value.y"),
    "drop what is not there": (DropField("zz"), "DROP COLUMN zz"),
    "drop an element": (DropField("l.element"), "DROP COLUMN l.element"),
    "drop a map's key": (DropField("m.key"), "DROP COLUMN m.key"),
    "drop a map's value": (DropField("m.value"), "DROP COLUMN m.value"),
    "rename": (RenameField("a", "b"), "RENAME COLUMN a TO b"),
    "rename nested": (RenameField("p.x", "z"), "RENAME COLUMN p.x TO z"),
    "rename below a map": (RenameField("m.value.x", "z"), "RENAME COLUMN m.value.x TO z"),
    "rename to a name that is taken": (RenameField("a", "p"), "RENAME COLUMN a TO p"),
    "rename to a name in another case": (RenameField("a", "ID"), "RENAME COLUMN a TO ID"),
    "rename an element": (RenameField("l.element", "e"), "RENAME COLUMN l.element TO e"),
    "widen": (ChangeType("a", pa.int64()), "ALTER COLUMN a TYPE BIGINT"),
    "widen nested": (ChangeType("p.x", pa.int64()), "ALTER COLUMN p.x TYPE BIGINT"),
    "widen below a list": (ChangeType("l.element.x", pa.int64()), "ALTER COLUMN l.element.x TYPE BIGINT"),
    "narrow": (ChangeType("id", pa.int32()), "ALTER COLUMN id TYPE INT"),
    "struct to leaf": (ChangeType("p", pa.int32()), "ALTER COLUMN p TYPE INT"),
    "leaf to struct": (ChangeType("a", POINT), "ALTER COLUMN a TYPE STRUCT<x: INT, y: STRING>"),
    "list to map": (ChangeType("l", pa.map_(pa.int32(), POINT)), "ALTER COLUMN l TYPE MAP<INT, INT>"),
    "move first": (MoveField("p", first()), "ALTER COLUMN p FIRST"),
    "move after": (MoveField("id", after("p")), "ALTER COLUMN id AFTER p"),
    "move nested": (MoveField("p.y", first()), "ALTER COLUMN p.y FIRST"),
    "move beside what is not there": (MoveField("a", after("zz")), "ALTER COLUMN a AFTER zz"),
    "move onto itself": (MoveField("a", after("a")), "ALTER COLUMN a AFTER a"),
    "retype a struct as a whole": (
        ChangeType("p", pa.struct([("x", pa.int64()), ("y", pa.string())])),
        "ALTER COLUMN p TYPE STRUCT<x: BIGINT, y: STRING>",
    ),
    "allow NULL": (ChangeNullability("id", True), "ALTER COLUMN id DROP NOT NULL"),
    "forbid NULL": (ChangeNullability("a", False), "ALTER COLUMN a SET NOT NULL"),
    "comment": (ChangeComment("a", "said"), "ALTER COLUMN a COMMENT 'said'"),
    "comment nested": (ChangeComment("p.x", "said"), "ALTER COLUMN p.x COMMENT 'said'"),
}

#: Changes on which the two disagree, whether Spark lets them through, and the reason.
DISAGREED: dict[str, tuple[Change, str, bool, str]] = {
    "drop the last field of a struct": (
        DropField("one.only"),
        "DROP COLUMN one.only",
        True,
        "Parquet cannot store a struct without fields: the next write would fail",
    ),
    "widen inside a map's key": (
        ChangeType("k.key.x", pa.int64()),
        "ALTER COLUMN k.key.x TYPE BIGINT",
        True,
        "two keys of old files could become one; Iceberg forbids it, too",
    ),
    "rename inside a map's key": (
        RenameField("k.key.x", "z"),
        "RENAME COLUMN k.key.x TO z",
        True,
        "a key is one value: whoever compares or hashes it would see another one",
    ),
    "drop inside a map's key": (
        DropField("k.key.x"),
        "DROP COLUMN k.key.x",
        True,
        "keys that differ in that field alone would become one",
    ),
    "add inside a map's key": (
        AddField("k.key.z", pa.int32()),
        "ADD COLUMN k.key.z INT",
        True,
        "a key of an old file would equal none of a new one",
    ),
    "move inside a map's key": (
        MoveField("k.key.y", first()),
        "ALTER COLUMN k.key.y FIRST",
        True,
        "a struct is compared field by field in its order: keys would sort in another one",
    ),
    "add NOT NULL": (
        AddField("z", pa.int32(), nullable=False),
        "ADD COLUMN z INT NOT NULL",
        True,
        "old rows have no value for it; Spark leaves that to the catalog",
    ),
    "comment an element": (
        ChangeComment("l.element", "said"),
        "ALTER COLUMN l.element COMMENT 'said'",
        True,
        "neither Iceberg nor Spark's own types have a place for it: Spark lets it through and forgets it",
    ),
}


def judged(spark: SparkSession, statement: str) -> Any:
    """What Spark makes of a change; None where it refuses."""
    create(spark, BASE)
    try:
        return shape(spark.table("judged").schema) if alter(spark, statement) else None
    finally:
        spark.sql("DROP TABLE judged")


def shape(data_type: DataType) -> Any:
    """A type as plain values: names, order, types, NOT NULL and comments."""
    if isinstance(data_type, StructType):
        return [(f.name, shape(f.dataType), f.nullable, f.metadata.get("comment")) for f in data_type]
    if isinstance(data_type, ArrayType):
        return ["array", shape(data_type.elementType), data_type.containsNull]
    if isinstance(data_type, MapType):
        return ["map", shape(data_type.keyType), shape(data_type.valueType), data_type.valueContainsNull]
    return data_type.simpleString()


def our_verdict(change: Change) -> Any:
    try:
        return shape(to_spark(apply_changes(BASE, change)))
    except SchemaError:
        return None


@pytest.mark.parametrize(("change", "statement"), AGREED.values(), ids=AGREED)
def test_spark_makes_the_same_of_a_change(judge: SparkSession, change: Change, statement: str) -> None:
    assert our_verdict(change) == judged(judge, statement)


@pytest.mark.parametrize(("change", "statement", "spark_lets", "why"), DISAGREED.values(), ids=DISAGREED)
def test_spark_makes_something_else_of_it(
    judge: SparkSession, change: Change, statement: str, spark_lets: bool, why: str
) -> None:
    assert why
    ours, theirs = our_verdict(change), judged(judge, statement)
    assert ours != theirs
    assert (theirs is not None) == spark_lets


def test_tables_of_the_built_in_formats_can_only_be_added_to(judge: SparkSession) -> None:
    judge.sql("CREATE TABLE judged (a INT, b STRING) USING parquet")
    try:
        assert not alter(judge, "ALTER COLUMN a TYPE BIGINT")
        assert not alter(judge, "RENAME COLUMN a TO z")
        assert not alter(judge, "DROP COLUMN a")
        # Were it otherwise: without ids, drop and add of one name would bring old values back.
        assert alter(judge, "ADD COLUMN c INT")
    finally:
        judge.sql("DROP TABLE judged")

"""Round trips into other systems: exact, or refused by name."""

from __future__ import annotations

import copy
import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyspark.sql import types as spark_types

from twophase.schema import (
    AddField,
    ChangeDefault,
    ChangeType,
    Field,
    Schema,
    apply_changes,
    assign_ids,
    bind_by_name,
    diff,
    from_arrow,
    from_document,
    from_iceberg,
    from_iceberg_document,
    from_json,
    from_spark,
    from_spark_types,
    to_arrow,
    to_document,
    to_iceberg,
    to_iceberg_document,
    to_iceberg_partition_spec,
    to_json,
    to_spark,
    verify_file_schema,
)
from twophase.schema.compare import equivalent
from twophase.schema.errors import (
    DefaultValueError,
    FieldIdError,
    NewerDocumentError,
    SchemaDocumentError,
    SchemaError,
    UnknownFieldError,
    UnsupportedTypeError,
)

DEFAULTS: list[tuple[pa.DataType, Any]] = [
    (pa.bool_(), True),
    (pa.int8(), -128),
    (pa.int64(), 2**63 - 1),
    (pa.float32(), 0.1),
    (pa.float64(), 1e300),
    (pa.decimal128(10, 4), Decimal("-1.25")),
    (pa.string(), "it's `quoted` \\ \u00e4"),
    (pa.binary(), b"\x00\xff"),
    (pa.date32(), dt.date(2020, 2, 29)),
    (pa.timestamp("us"), dt.datetime(2020, 1, 2, 3, 4, 5, 600)),
    (pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
    (pa.time64("us"), dt.time(1, 2, 3)),
]
EVERY_LEAF = [
    *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
    *(pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.binary(7)),
    *(pa.large_binary(), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.timestamp("ns"), pa.uuid()),
    *(pa.timestamp("ms", "Europe/Berlin"), pa.duration("us"), pa.decimal128(38, 38), pa.decimal256(76, 3)),
]


def table_with_defaults() -> Schema:
    table = assign_ids(pa.schema([pa.field("id", pa.int64(), nullable=False)]), primary_keys=["id"])
    added = [AddField(f"c{i}", leaf, default=value, comment=f"no. {i}") for i, (leaf, value) in enumerate(DEFAULTS)]
    nested = AddField("n", pa.map_(pa.string(), pa.list_(pa.struct([pa.field("x", pa.int32(), nullable=False)]))))
    return apply_changes(
        table, [*added, nested, ChangeDefault("c1", 5), AddField("n.value.element.y", pa.int8(), default=3)]
    )


def test_arrow_and_json_hold_everything() -> None:
    table = table_with_defaults()
    assert from_arrow(to_arrow(table)) == table
    assert from_json(to_json(table)) == table
    leaves = Schema(tuple(Field(i, f"c{i}", leaf=leaf) for i, leaf in enumerate(EVERY_LEAF)))
    assert from_arrow(to_arrow(leaves)) == leaves
    assert from_json(to_json(leaves)) == leaves


@pytest.mark.parametrize("leaf", [pa.float32(), pa.float64()], ids=str)
def test_a_default_of_nan_is_equal_to_itself(leaf: pa.DataType) -> None:
    table = assign_ids(pa.schema([("id", pa.int64())]))
    made = [apply_changes(table, AddField("x", leaf, default=float("nan"))) for _ in range(2)]
    again = [*made, from_json(to_json(made[0])), from_arrow(to_arrow(made[0])), from_spark(to_spark(made[0]))]
    for other in again:
        assert other.same_as(made[0]) and other.fields == made[0].fields
        assert hash(other.find("x")) == hash(made[0].find("x"))
        assert diff(made[0], other) == []
        assert equivalent(made[0], other, frozenset())
        assert apply_changes(other, ChangeDefault("x", float("nan"))) is other
    twice = [ChangeDefault("x", float("nan")), ChangeDefault("x", float("nan"))]
    assert apply_changes(made[0], twice) is made[0]
    assert not made[0].same_as(apply_changes(made[0], ChangeDefault("x", 1.0)))
    if leaf == pa.float32():
        assert diff(made[0], apply_changes(made[0], ChangeType("x", pa.float64()))) == [ChangeType(2, pa.float64())]


def test_ids_survive_in_a_parquet_file_at_every_level(tmp_path: Path) -> None:
    table = table_with_defaults()
    pq.write_table(to_arrow(table).empty_table(), tmp_path / "t.parquet")
    read = from_arrow(pa.schema(list(pq.read_schema(tmp_path / "t.parquet"))))
    assert [(node.id, node.name) for node in read.walk()] == [(node.id, node.name) for node in table.walk()]


def test_spark_holds_ids_comments_defaults_and_nested_ids() -> None:
    table = table_with_defaults()
    struct = to_spark(table)
    assert from_spark(spark_types.StructType.fromJson(struct.jsonValue())).fields == table.fields
    assert struct["c1"].metadata["parquet.field.id"] == table.find("c1").id
    assert struct["c1"].metadata["comment"] == "no. 1"
    assert struct["c1"].metadata["EXISTS_DEFAULT"] == "-128"
    assert struct["c1"].metadata["CURRENT_DEFAULT"] == "5"


def test_version_and_keys_survive_in_sparks_form_as_long_as_the_table_is_whole() -> None:
    table = table_with_defaults()
    keyed = Schema(table.fields, 7, 99, table.primary_keys, (table.find("c7").id,))
    struct = to_spark(keyed)
    assert from_spark(spark_types.StructType.fromJson(struct.jsonValue())) == keyed
    # Rows that Spark read back are nullable, and a projection lacks columns: no keys then, and no error.
    nullable = spark_types.StructType([spark_types.StructField(f.name, f.dataType, True, f.metadata) for f in struct])
    assert from_spark(nullable).primary_keys == () and from_spark(nullable).partition_keys == keyed.partition_keys
    part = from_spark(spark_types.StructType(struct.fields[:2]))
    assert (part.schema_id, part.highest_field_id, part.partition_keys) == (7, 99, ())
    broken = spark_types.StructType().add("a", "integer", True, {"parquet.field.id": 1, "twophase": {"table": {}}})
    with pytest.raises(SchemaDocumentError, match="of a cannot be read"):
        from_spark(broken)


def test_icebergs_partition_spec_holds_the_keys_or_is_refused_by_name() -> None:
    table = assign_ids(pa.schema([("a", pa.int32()), ("p", pa.struct([("d", pa.date32())]))]), partition_keys=["p.d"])
    spec = to_iceberg_partition_spec(table)
    assert PartitionSpec.model_validate(spec).fields[0].source_id == table.find("p.d").id
    assert from_iceberg(to_iceberg(table), partition_spec=PartitionSpec.model_validate(spec)) == table
    spec["fields"][0]["transform"] = "month"
    with pytest.raises(UnsupportedTypeError, match=r"by month of p\.d"):
        from_iceberg_document(to_iceberg_document(table), partition_spec=spec)


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_a_default_that_json_has_no_number_for_is_refused_by_name(value: float) -> None:
    table = apply_changes(assign_ids(pa.schema([("a", pa.int32())])), AddField("p", pa.struct([("x", pa.float64())])))
    changed = apply_changes(table, ChangeDefault("p.x", value))
    with pytest.raises(UnsupportedTypeError, match=r"p\.x") as caught:
        to_iceberg_document(changed)
    assert "ChangeDefault" in str(caught.value)


def test_types_that_spark_holds_under_a_wider_name_come_back_exactly() -> None:
    own = [pa.large_string(), pa.large_binary(), pa.binary(4), pa.timestamp("us", "Europe/Berlin"), pa.duration("us")]
    schema = Schema(tuple(Field(i, f"c{i}", leaf=leaf) for i, leaf in enumerate(own)))
    assert from_spark(to_spark(schema)).fields == schema.fields


def test_sparks_own_types_and_metadata_come_back_exactly() -> None:
    fields = [
        spark_types.StructField("v", spark_types.VarcharType(10), metadata={"parquet.field.id": 1, "mine": {"a": [1]}}),
        spark_types.StructField("c", spark_types.CharType(3), metadata={"parquet.field.id": 2, "text": "kept"}),
        spark_types.StructField("s", spark_types.StringType("UTF8_LCASE"), metadata={"parquet.field.id": 3}),
        spark_types.StructField("d", spark_types.DayTimeIntervalType(0, 1), metadata={"parquet.field.id": 4}),
    ]
    struct = spark_types.StructType(fields)
    assert to_spark(from_spark(struct)) == struct


@pytest.mark.parametrize(
    "leaf", [pa.uint8(), pa.float16(), pa.timestamp("ns"), pa.date64(), pa.decimal256(50, 2), pa.uuid()], ids=str
)
def test_types_that_spark_does_not_have_are_refused_by_name(leaf: pa.DataType) -> None:
    with pytest.raises(UnsupportedTypeError) as caught:
        to_spark(Schema((Field(1, "odd", leaf=leaf),)))
    assert caught.value.field_path == "odd"


@pytest.mark.parametrize(
    "spark_type",
    [spark_types.VariantType(), spark_types.CalendarIntervalType(), spark_types.YearMonthIntervalType()],
    ids=str,
)
def test_sparks_types_that_arrow_does_not_have_are_refused_by_name(spark_type: spark_types.DataType) -> None:
    with pytest.raises(UnsupportedTypeError, match="odd"):
        from_spark_types(spark_types.StructType([spark_types.StructField("odd", spark_type)]))


def test_a_default_that_only_spark_can_evaluate_is_refused_by_name() -> None:
    field = spark_types.StructField("c", spark_types.DateType(), metadata={"CURRENT_DEFAULT": "current_date()"})
    with pytest.raises(UnsupportedTypeError, match="current_date"):
        from_spark_types(spark_types.StructType([field]))


def test_a_struct_type_without_ids_gets_them_or_is_refused() -> None:
    struct = spark_types.StructType().add("a", "integer").add("b", spark_types.ArrayType(spark_types.StringType()))
    with pytest.raises(FieldIdError, match="assign_ids"):
        from_spark(struct)
    schema = assign_ids(from_spark_types(struct))
    assert [(node.id, node.name) for node in schema.walk()] == [(1, "a"), (2, "b"), (3, "element")]


def test_iceberg_documents_hold_everything_that_iceberg_has() -> None:
    table = table_with_defaults()
    without = Schema(
        tuple(n for n in table if n.leaf not in (pa.int8(),)), 0, table.highest_field_id, table.primary_keys
    )
    with pytest.raises(UnsupportedTypeError, match="byte"):
        to_iceberg_document(table)
    plain = Schema(without.fields[:-1], 0, table.highest_field_id, table.primary_keys)
    document = to_iceberg_document(plain)
    assert from_iceberg_document(document, highest_field_id=table.highest_field_id) == plain
    assert document["identifier-field-ids"] == [1]


@pytest.mark.parametrize("leaf", [pa.int8(), pa.int16(), pa.uint32(), pa.large_string(), pa.duration("us")], ids=str)
def test_types_that_iceberg_does_not_have_are_refused_by_name(leaf: pa.DataType) -> None:
    with pytest.raises(UnsupportedTypeError) as caught:
        to_iceberg_document(Schema((Field(1, "odd", leaf=leaf),)))
    assert caught.value.field_path == "odd"
    assert caught.value.new_type == "a type of Iceberg"


def test_iceberg_types_that_arrow_does_not_have_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedTypeError, match="variant"):
        from_iceberg_document({"fields": [{"id": 1, "name": "v", "type": "variant", "required": False}]})


def test_arrow_types_that_no_schema_holds_are_refused_by_path() -> None:
    for odd in (
        pa.dictionary(pa.int8(), pa.string()),
        pa.list_(pa.int8(), 3),
        pa.large_list(pa.int8()),
        pa.decimal32(5, 2),
    ):
        with pytest.raises(UnsupportedTypeError) as caught:
            assign_ids(pa.schema([("s", pa.struct([("odd", odd)]))]))
        assert caught.value.field_path == "s.odd"


def document() -> dict[str, Any]:
    return to_document(table_with_defaults())


def broken(path: list[Any], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(document())
    target = made
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return made


BROKEN = [
    (["fields", 0, "id"], "1", r"\$\.fields\[0\]\.id"),
    (["fields", 0, "id"], True, r"\$\.fields\[0\]\.id"),
    (["fields", 0, "type"], "int31", "int31"),
    (["fields", 0, "type"], 5, r"\$\.fields\[0\]\.type"),
    (["fields", 1, "initial_default"], "maybe", "maybe"),
    (["fields", 2, "id"], 1, "both have the id 1"),
    (["fields", 2, "name"], "ID", "clash"),
    (["fields", 0, "struct"], [], "one of type, struct, list and map"),
    (["fields"], {}, r"\$\.fields"),
    (["primary_keys"], ["id"], "no field id"),
    (["primary_keys"], [99], "99"),
    (["highest_field_id"], 3, "highest_field_id"),
    (["fields", -1, "map", 0, "name"], "k", "key"),
    (["fields", 0], None, "no object"),
]


@pytest.mark.parametrize(("path", "value", "said"), BROKEN, ids=[str(case[0]) for case in BROKEN])
def test_a_broken_document_is_an_error_that_says_where(path: list[Any], value: Any, said: str) -> None:
    with pytest.raises(SchemaDocumentError, match=said):
        from_document(broken(path, value))


def test_documents_that_are_newer_too_deep_or_no_json_are_named() -> None:
    with pytest.raises(NewerDocumentError, match="format 2"):
        from_document(broken(["format"], 2))
    deep: dict[str, Any] = {"id": 0, "name": "x", "type": "int32"}
    for i in range(1, 150):
        deep = {"id": i, "name": "x", "struct": [deep]}
    with pytest.raises(SchemaDocumentError, match="deeper"):
        from_document(broken(["fields"], [deep]))
    for text in ("", "[", "[" * 100000, "null"):
        with pytest.raises(SchemaDocumentError):
            from_json(text)


def test_a_file_without_ids_is_bound_by_the_names_of_its_own_version() -> None:
    old = assign_ids(pa.schema([("a", pa.int32()), ("c", pa.struct([("x", pa.int32())]))]))
    file = pa.schema([("c", pa.struct([("x", pa.int32())])), ("a", pa.int32())])
    bound = bind_by_name(file, old)
    assert [(node.id, node.name) for node in bound.walk()] == [(2, "c"), (3, "x"), (1, "a")]
    with pytest.raises(UnknownFieldError, match="zz"):
        bind_by_name(pa.schema([("zz", pa.int32())]), old)


def test_a_file_whose_ids_are_not_the_schemas_is_refused() -> None:
    table = assign_ids(pa.schema([("a", pa.int32()), ("b", pa.int32()), ("l", pa.list_(pa.int32()))]))
    verify_file_schema(to_arrow(table), table)
    a, b, _ = table.fields
    swapped = Schema((Field(b.id, "a", leaf=pa.int32()), Field(a.id, "b", leaf=pa.int32())))
    with pytest.raises(FieldIdError, match="has the id 2, which in schema 0 is b"):
        verify_file_schema(to_arrow(swapped), table)
    partial = pa.schema(
        [to_arrow(table).field(0), pa.field("l", pa.list_(pa.int32()), metadata={"PARQUET:field_id": "3"})]
    )
    with pytest.raises(FieldIdError, match=r"l\.element has no id"):
        verify_file_schema(partial, table)
    with pytest.raises(FieldIdError, match="no number"):
        from_arrow(pa.schema([pa.field("a", pa.int32(), metadata={"PARQUET:field_id": "-1"})]))


def test_a_schema_refuses_what_is_none() -> None:
    leaf = pa.int32()
    with pytest.raises(FieldIdError):
        Schema((Field(1, "a", leaf=leaf), Field(1, "b", leaf=leaf)))
    with pytest.raises(SchemaError):
        assign_ids(pa.schema([("empty", pa.struct([]))]))
    with pytest.raises(DefaultValueError):
        from_arrow(
            pa.schema([pa.field("a", leaf, metadata={"PARQUET:field_id": "1", "twophase.initial_default": "x"})])
        )

"""Spark schemas travel as PyArrow schemas and come back as they were."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from twophase.errors import CatalogError
from twophase.model import TableDefinition
from twophase.spark import types

ATOMIC = [
    "boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date", "timestamp",
    "timestamp_ntz", "void", "interval", "variant", "decimal(38,18)", "decimal(5,-2)", "char(7)", "varchar(20)",
    "interval year to month", "interval month", "interval day to second", "interval hour to minute", "time(3)",
    "geometry(4326)",
]  # fmt: skip


def field(name: str, kind: object, nullable: bool = True, **metadata: object) -> dict[str, object]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def test_a_definition_of_before_a_field_was_renamed_is_read() -> None:
    kept = TableDefinition(pa.schema([("a", pa.int64())]), "orc", written_provider="ORC")
    document = kept.to_document()
    document["provider_class"] = document.pop("written_provider")
    assert TableDefinition.from_document(document) == kept


def round_trip(*fields: dict[str, object]) -> list[dict[str, object]]:
    definition = TableDefinition(types.to_arrow(json.dumps({"type": "struct", "fields": fields})))
    restored = TableDefinition.from_document(json.loads(json.dumps(definition.to_document())))
    found: list[dict[str, object]] = json.loads(types.from_arrow(restored.schema))["fields"]
    return found


@pytest.mark.parametrize("kind", ATOMIC)
def test_an_atomic_type_comes_back_exactly(kind: str) -> None:
    asked = field("c", kind, nullable=kind == "void")

    assert round_trip(asked) == [asked]


def test_nested_types_keep_names_comments_and_nullability() -> None:
    inner = {"type": "struct", "fields": [field("x", "char(3)", False, comment="inner"), field("y", "variant")]}
    nested = {
        "type": "map",
        "keyType": "string",
        "valueType": {"type": "array", "elementType": inner, "containsNull": False},
        "valueContainsNull": True,
    }
    asked = field("m", nested, False, comment="outer")

    assert round_trip(asked) == [asked]


def test_defaults_collations_and_other_metadata_come_back() -> None:
    asked = [
        field("d", "integer", CURRENT_DEFAULT="41 + 1", EXISTS_DEFAULT="42"),
        field("s", "string", __COLLATIONS={"s": "icu.UNICODE_CI"}),
        field("ключ with `quotes` and.dots", "long", comment="Überschrift"),
        field("u", {"type": "udt", "class": "x.Point", "pyClass": "x.Point", "sqlType": "binary"}),
    ]

    assert round_trip(*asked) == asked


def test_what_a_catalog_changed_wins_over_what_spark_said() -> None:
    schema = types.to_arrow(json.dumps({"type": "struct", "fields": [field("c", "char(7)", False, comment="old")]}))
    changed = schema.field(0).with_name("d").with_nullable(True)
    metadata = {**(changed.metadata or {}), b"comment": b"new"}

    found = json.loads(types.from_arrow(pa.schema([changed.with_metadata(metadata)])))["fields"]

    assert found == [field("d", "char(7)", True, comment="new")]


def test_a_comment_that_a_catalog_removed_stays_away() -> None:
    schema = types.to_arrow(json.dumps({"type": "struct", "fields": [field("c", "long", comment="old")]}))
    kept = {types.SPARK_FIELD: (schema.field(0).metadata or {})[types.SPARK_FIELD]}

    found = json.loads(types.from_arrow(pa.schema([schema.field(0).with_metadata(kept)])))["fields"]

    assert found == [field("c", "long")]


def test_a_type_that_a_catalog_changed_follows_from_arrow() -> None:
    schema = types.to_arrow(json.dumps({"type": "struct", "fields": [field("c", "integer")]}))
    widened = schema.field(0).with_type(pa.int64())

    assert json.loads(types.from_arrow(pa.schema([widened])))["fields"][0]["type"] == "long"


@pytest.mark.parametrize(
    ("arrow", "spark"),
    [
        (pa.uint8(), "short"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.large_string(), "string"),
        (pa.binary(16), "binary"),
        (pa.timestamp("ns", tz="Europe/Berlin"), "timestamp"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.decimal256(20, 4), "decimal(20,4)"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.date64(), "date"),
        (pa.duration("ns"), "interval day to second"),
    ],
)
def test_an_arrow_type_of_a_plugin_gets_the_nearest_spark_type(arrow: pa.DataType, spark: str) -> None:
    assert json.loads(types.from_arrow(pa.schema([pa.field("c", arrow)])))["fields"][0]["type"] == spark


def test_types_without_a_counterpart_are_refused_by_name() -> None:
    with pytest.raises(CatalogError, match=r"Column 'u'.*no counterpart"):
        types.from_arrow(pa.schema([pa.field("u", pa.dense_union([pa.field("a", pa.int8())]))]))
    with pytest.raises(CatalogError, match=r"Column 'c'.*hologram"):
        types.to_arrow(json.dumps({"type": "struct", "fields": [field("c", "hologram")]}))

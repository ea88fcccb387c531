"""Lossless conversion of Spark schemas to PyArrow schemas and back, without a JVM.

Spark's own JSON of a field is stored in the Arrow field's metadata (``SPARK:field``), so that char and varchar lengths,
collations, interval units, variants, defaults and user-defined types are restored exactly. A catalog may rename a
field, change its nullability or its ``comment``: those are taken from the Arrow field. If the Arrow type itself was
changed, or a catalog created the field, the Spark type is derived from the Arrow type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twophase.catalog.spark_columns import SPARK_FIELD, spark_field
from twophase.errors import CatalogError
from twophase.model import WAITING
from twophase.schema.convert_spark import CURRENT_DEFAULT, EXISTS_DEFAULT

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COMMENT = b"comment"

Json = Any

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
    "null": pa.null(),
    "interval": pa.month_day_nano_interval(),
    "variant": pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)]),
}

#: Parametric types, by the start of Spark's name. Geo types are represented as well-known binary.
_PARAMETRIC: tuple[tuple[str, pa.DataType], ...] = (
    ("char(", pa.string()),
    ("varchar(", pa.string()),
    ("string collate ", pa.string()),
    ("interval year", pa.int32()),  # months, as Spark stores them
    ("interval month", pa.int32()),
    ("interval ", pa.duration("us")),
    ("time(", pa.time64("us")),
    ("geography(", pa.binary()),
    ("geometry(", pa.binary()),
)

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")


def _same(data_type: Json) -> Json:
    return data_type


def struct_json(fields: list[Json]) -> str:
    """JSON of a ``StructType`` with these fields."""
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"), ensure_ascii=False)


def mapped_fields(
    fields: list[Json], change: Callable[[Json], Json] = _same, *, atom: Callable[[str], str] = _same
) -> list[Json]:
    """Return fields of a struct, changed as by :func:`mapped`."""
    return [change({**field, "type": mapped(field["type"], change, atom=atom)}) for field in fields]


def mapped(kind: Json, change: Callable[[Json], Json] = _same, *, atom: Callable[[str], str] = _same) -> Json:
    """Return a type with all fields of its structs, and all its atomic types, changed.

    Parameters
    ----------
    kind : str or dict
    change : callable, optional
        Changes a field, after those below it.
    atom : callable, optional
        Changes the name of an atomic type.
    """
    if isinstance(kind, str):
        return atom(kind)
    if kind["type"] == "struct":
        return {**kind, "fields": mapped_fields(kind["fields"], change, atom=atom)}
    below = [name for name in ("elementType", "keyType", "valueType") if name in kind]
    return {**kind, **{name: mapped(kind[name], change, atom=atom) for name in below}}


# -- Spark to Arrow ----------------------------------------------------------------------------------------------------


def with_defaults(struct_json: str, defaults: Mapping[str, str | None]) -> str:
    """Add the given column defaults, in Spark's SQL, to a struct.

    If the store computes one of them, each column is marked, to distinguish values that Spark fills in from given ones.
    """
    if not defaults:
        return struct_json
    struct = json.loads(struct_json)
    computes = None in defaults.values()
    for field in struct["fields"]:
        if field["name"] in defaults:
            sql = defaults[field["name"]] or _stand_in(field["type"])
            field["metadata"] |= {CURRENT_DEFAULT: sql, EXISTS_DEFAULT: sql}
        if computes:
            field["metadata"] |= {WAITING: "column"}
    return json.dumps(struct)


def without_defaults(schema: pa.Schema) -> pa.Schema:
    """A schema whose columns have no default of Spark."""
    if not any(b"_DEFAULT" in (field.metadata or {}).get(SPARK_FIELD, b"") for field in schema):
        return schema
    fields = json.loads(from_arrow(schema))["fields"]
    for field in fields:
        field["metadata"] = {k: v for k, v in field["metadata"].items() if k not in (CURRENT_DEFAULT, EXISTS_DEFAULT)}
    return to_arrow(struct_json(fields))


def _stand_in(kind: Json) -> str:
    """A constant of a type for Spark's syntax: it is never written to a row."""
    if not isinstance(kind, str):
        return "array()" if kind["type"] == "array" else "NULL"
    if kind.startswith(("date", "timestamp")):
        return f"CAST('1970-01-01' AS {kind})"
    return "''" if kind.startswith(("string", "varchar(", "char(")) else f"CAST('0' AS {kind})"


def to_arrow(struct_json: str) -> pa.Schema:
    """The Arrow schema of a Spark ``StructType``'s JSON.

    Raises
    ------
    CatalogError
        A type unknown to this version.
    """
    return pa.schema([_arrow_field(field) for field in json.loads(struct_json)["fields"]])


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of PySpark's own schema object."""
    return to_arrow(schema.json())


def _arrow_field(field: Json) -> pa.Field:
    metadata = {SPARK_FIELD: json.dumps(field, separators=(",", ":"), ensure_ascii=False).encode()}
    if (comment := field.get("metadata", {}).get("comment")) is not None:
        metadata[COMMENT] = str(comment).encode()
    return _field(field, metadata)


def _field(field: Json, metadata: Mapping[bytes, bytes] | None) -> pa.Field:
    return _nullable_field(field["name"], _arrow_type(field["type"], field["name"]), field["nullable"], metadata)


def _nullable_field(
    name: str, arrow: pa.DataType, nullable: bool, metadata: Mapping[bytes, bytes] | None = None
) -> pa.Field:
    # Arrow has no type for "always null, yet not nullable": the elements of ``array()``.
    return pa.field(name, arrow, nullable or pa.types.is_null(arrow), metadata)


def _arrow_type(kind: Json, name: str) -> pa.DataType:
    if isinstance(kind, str):
        return _arrow_atom(kind, name)
    if kind["type"] == "array":
        return pa.list_(_nullable_field("element", _arrow_type(kind["elementType"], name), kind["containsNull"]))
    if kind["type"] == "map":
        value = _nullable_field("value", _arrow_type(kind["valueType"], name), kind["valueContainsNull"])
        key = _arrow_type(kind["keyType"], name)
        # The key of ``map()``: PyArrow does not support such a map; the field's own JSON restores it in Spark.
        key = pa.string() if pa.types.is_null(key) else key
        return pa.map_(pa.field("key", key, False), value)
    if kind["type"] == "struct":
        return pa.struct([_nested_field(field) for field in kind["fields"]])
    if kind["type"] == "udt":
        return _arrow_type(kind["sqlType"], name)
    raise _unknown(kind, name)


def _nested_field(field: Json) -> pa.Field:
    comment = field.get("metadata", {}).get("comment")
    return _field(field, None if comment is None else {COMMENT: str(comment).encode()})


def _arrow_atom(kind: str, name: str) -> pa.DataType:
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if kind == "decimal":
        return pa.decimal128(10, 0)
    if decimal := _DECIMAL.fullmatch(kind):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    for start, arrow in _PARAMETRIC:
        if kind.startswith(start):
            return arrow
    raise _unknown(kind, name)


def _unknown(kind: object, name: str) -> CatalogError:
    return CatalogError(f"Column {name!r} has the type {kind!r}, which twophase does not know.")


# -- Arrow to Spark ----------------------------------------------------------------------------------------------------


def from_arrow(schema: pa.Schema) -> str:
    """JSON of the Spark ``StructType`` of an Arrow schema.

    Raises
    ------
    CatalogError
        An Arrow type without a counterpart in Spark.
    """
    return struct_json([_spark_field(field) for field in schema])


def _spark_field(field: pa.Field) -> Json:
    metadata = field.metadata or {}
    remembered = spark_field(field)
    # A catalog may have changed the type, or created the field.
    if not remembered or not _arrow_type(remembered["type"], field.name).equals(field.type):
        remembered = {"type": _spark_type(field.type, field.name), "metadata": {}}
    facts = {key: value for key, value in remembered.get("metadata", {}).items() if key != "comment"}
    if COMMENT in metadata:
        facts["comment"] = metadata[COMMENT].decode()
    return {"name": field.name, "type": remembered["type"], "nullable": field.nullable, "metadata": facts}


def _spark_type(arrow: pa.DataType, name: str) -> Json:
    for test, convert in _CONVERSIONS:
        if test(arrow):
            return convert(arrow, name)
    raise CatalogError(f"Column {name!r} has the Arrow type {arrow}, which has no counterpart in Spark.")


def _spark_nested(field: pa.Field) -> Json:
    metadata = field.metadata or {}
    facts = {"comment": metadata[COMMENT].decode()} if COMMENT in metadata else {}
    return {
        "name": field.name,
        "type": _spark_type(field.type, field.name),
        "nullable": field.nullable,
        "metadata": facts,
    }


def _spark_list(arrow: Any, name: str) -> Json:
    element = arrow.value_field
    return {"type": "array", "elementType": _spark_type(element.type, name), "containsNull": element.nullable}


def _spark_map(arrow: Any, name: str) -> Json:
    return {
        "type": "map",
        "keyType": _spark_type(arrow.key_type, name),
        "valueType": _spark_type(arrow.item_type, name),
        "valueContainsNull": arrow.item_field.nullable,
    }


def _spark_struct(arrow: Any, _: str) -> Json:
    return {"type": "struct", "fields": [_spark_nested(arrow.field(i)) for i in range(arrow.num_fields)]}


def _always(name: str) -> Any:
    return lambda _arrow, _column: name


_is = pa.types
_CONVERSIONS: tuple[tuple[Any, Any], ...] = (
    (_is.is_boolean, _always("boolean")),
    (_is.is_int8, _always("byte")),
    (lambda a: _is.is_int16(a) or _is.is_uint8(a), _always("short")),
    (lambda a: _is.is_int32(a) or _is.is_uint16(a), _always("integer")),
    (lambda a: _is.is_int64(a) or _is.is_uint32(a), _always("long")),
    (_is.is_uint64, _always("decimal(20,0)")),
    (lambda a: _is.is_float16(a) or _is.is_float32(a), _always("float")),
    (_is.is_float64, _always("double")),
    (lambda a: _is.is_decimal(a) and a.precision <= 38, lambda a, _: f"decimal({a.precision},{a.scale})"),
    (lambda a: _is.is_string(a) or _is.is_large_string(a) or _is.is_string_view(a), _always("string")),
    (
        lambda a: _is.is_binary(a) or _is.is_large_binary(a) or _is.is_fixed_size_binary(a) or _is.is_binary_view(a),
        _always("binary"),
    ),
    (_is.is_date, _always("date")),
    (lambda a: _is.is_timestamp(a) and a.tz is None, _always("timestamp_ntz")),
    (_is.is_timestamp, _always("timestamp")),
    (_is.is_duration, _always("interval day to second")),
    (_is.is_interval, _always("interval")),
    (_is.is_time, _always("time(6)")),
    (_is.is_null, _always("void")),
    (_is.is_dictionary, lambda a, name: _spark_type(a.value_type, name)),
    (lambda a: _is.is_list(a) or _is.is_large_list(a) or _is.is_fixed_size_list(a), _spark_list),
    (_is.is_map, _spark_map),
    (_is.is_struct, _spark_struct),
)

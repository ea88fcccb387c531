"""Conversion of schemas to and from Spark's ``StructType``, with PySpark's type classes only: no session, no JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twophase.schema.compare import keys_of
from twophase.schema.convert_arrow import FIELD_ID
from twophase.schema.defaults import format_default, parse_default
from twophase.schema.errors import FieldIdError, SchemaDocumentError, UnsupportedTypeError
from twophase.schema.leaf import SPARK_TYPE, family, format_leaf, parse_leaf, type_name
from twophase.schema.plan_spark import literal
from twophase.schema.schema import Field, Kind, Schema

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

#: Metadata key of a field's id for Spark's Parquet reader and writer.
SPARK_FIELD_ID = "parquet.field.id"
COMMENT = "comment"
#: Spark's own keys: the default of existing rows (filled in by its Parquet reader), and that of new rows.
EXISTS_DEFAULT = "EXISTS_DEFAULT"
CURRENT_DEFAULT = "CURRENT_DEFAULT"
#: Facts that Spark cannot represent: ids below lists and maps, exact PyArrow types, defaults as values.
TWOPHASE = "twophase"
_METADATA = "SPARK:metadata"
_READ_BY_US = frozenset((SPARK_FIELD_ID, COMMENT, EXISTS_DEFAULT, CURRENT_DEFAULT, TWOPHASE))


def to_spark(schema: Schema) -> StructType:
    """Convert a schema to a ``StructType`` from which :func:`from_spark` restores it exactly.

    ``parquet.field.id`` makes Spark write the ids to Parquet, and read by them. The version and the keys are in the
    metadata of the first column.

    Parameters
    ----------
    schema : Schema
        Any version.

    Raises
    ------
    UnsupportedTypeError
        A type that Spark does not have.
    """
    from pyspark.sql import types as spark

    facts = _table_facts(schema)
    return spark.StructType([_struct_field(top, facts if i == 0 else {}) for i, top in enumerate(schema)])


def _table_facts(schema: Schema) -> dict[str, Any]:
    """Facts that a ``StructType`` cannot represent, for the metadata of its first column; empty if there are none."""
    plain = Schema(schema.fields)
    if (schema.schema_id, schema.highest_field_id, keys_of(schema)) == (0, plain.highest_field_id, keys_of(plain)):
        return {}
    facts = {"schema_id": schema.schema_id, "highest_field_id": schema.highest_field_id}
    keys = {"primary_keys": list(schema.primary_keys), "partition_keys": list(schema.partition_keys)}
    return {"table": {**facts, **keys}}


def _struct_field(node: Field, table_facts: dict[str, Any] | None = None) -> StructField:
    from pyspark.sql import types as spark

    facts = {**_facts(node), **(table_facts or {})}
    for path, below in _unnamed(node, ""):
        if extra := _facts(below) | {"id": below.id}:
            facts.setdefault("below", {})[path] = extra
    metadata: dict[str, Any] = {k: v for k, v in node.metadata if k != SPARK_TYPE}
    if _METADATA in metadata:
        metadata |= json.loads(metadata.pop(_METADATA))
    metadata[SPARK_FIELD_ID] = node.id
    if node.comment is not None:
        metadata[COMMENT] = node.comment
    if node.initial_default is not None:
        metadata[EXISTS_DEFAULT] = literal(node.initial_default)
    if node.write_default is not None:
        metadata[CURRENT_DEFAULT] = literal(node.write_default)
    if facts:
        metadata[TWOPHASE] = facts
    return spark.StructField(node.name, _data_type(node, node.name), node.nullable, metadata)


def _unnamed(node: Field, above: str) -> Iterator[tuple[str, Field]]:
    """The elements, keys and values below a field, which have no metadata of their own in Spark."""
    if node.kind in (Kind.LIST, Kind.MAP):
        for child in node.children:
            path = f"{above}.{child.name}".lstrip(".")
            yield path, child
            yield from _unnamed(child, path)


def _facts(node: Field) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if node.leaf is not None and _from_leaf(_data_type(node, node.name))[0] != node.leaf:
        facts["type"] = format_leaf(node.leaf)
    if node.initial_default is not None:
        facts["initial_default"] = format_default(node.initial_default, node.name)
    if node.write_default is not None:
        facts["write_default"] = format_default(node.write_default, node.name)
    if node.name in ("element", "key", "value"):
        facts |= _unnamed_facts(node)
    return facts


def _unnamed_facts(node: Field) -> dict[str, Any]:
    metadata = {k: v for k, v in node.metadata if k != SPARK_TYPE}
    return ({"metadata": metadata} if metadata else {}) | (
        {"comment": node.comment} if node.comment is not None else {}
    )


def _data_type(node: Field, path: str) -> DataType:
    from pyspark.sql import types as spark

    if node.leaf is not None:
        return _leaf_type(node, path)
    if node.kind is Kind.STRUCT:
        return spark.StructType([_struct_field(child) for child in node.children])
    below = [_data_type(child, f"{path}.{child.name}") for child in node.children]
    if node.kind is Kind.LIST:
        return spark.ArrayType(below[0], node.children[0].nullable)
    return spark.MapType(below[0], below[1], node.children[1].nullable)


def _leaf_type(node: Field, path: str) -> DataType:
    from pyspark.sql import types as spark

    own = dict(node.metadata).get(SPARK_TYPE)
    if own is not None:
        field = {"name": "x", "type": own, "nullable": True, "metadata": {}}
        return spark.StructType.fromJson({"type": "struct", "fields": [field]})[0].dataType
    leaf: Any = node.leaf
    kind = family(leaf) or ("binary" if pa.types.is_fixed_size_binary(leaf) else None)
    if kind == "decimal" and 0 <= leaf.scale <= leaf.precision <= 38:
        return spark.DecimalType(leaf.precision, leaf.scale)
    if pa.types.is_duration(leaf) and leaf.unit == "us":
        return spark.DayTimeIntervalType()
    name = _SPARK_CLASSES.get(kind or "")
    if name is None or not hasattr(spark, name):
        raise UnsupportedTypeError(
            f"The field {path} has the type {leaf}, which Spark does not have.",
            field_path=path,
            old_type=type_name(leaf),
            new_type="a type of Spark",
            allowed=_near(leaf),
        )
    return getattr(spark, name)()


_SPARK_CLASSES = {
    "null": "NullType",
    "boolean": "BooleanType",
    "byte": "ByteType",
    "short": "ShortType",
    "int": "IntegerType",
    "long": "LongType",
    "float": "FloatType",
    "double": "DoubleType",
    "string": "StringType",
    "binary": "BinaryType",
    "date": "DateType",
    "timestamp": "TimestampType",
    "timestamp_ntz": "TimestampNTZType",
    "time": "TimeType",
}
_LEAVES = {
    "NullType": pa.null(),
    "BooleanType": pa.bool_(),
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "StringType": pa.string(),
    "CharType": pa.string(),
    "VarcharType": pa.string(),
    "BinaryType": pa.binary(),
    "DateType": pa.date32(),
    "TimestampType": pa.timestamp("us", "UTC"),
    "TimestampNTZType": pa.timestamp("us"),
    "TimeType": pa.time64("us"),
    "DayTimeIntervalType": pa.duration("us"),
}


def _near(leaf: pa.DataType) -> tuple[str, ...]:
    if pa.types.is_unsigned_integer(leaf):
        return ("a signed type, or decimal",)
    if pa.types.is_temporal(leaf):
        return ("the same type in microseconds",)
    return ("binary, or a decimal of up to 38 digits",)


def from_spark(source: StructType) -> Schema:
    """Convert a ``StructType`` in which every field has a ``parquet.field.id``.

    Parameters
    ----------
    source : pyspark.sql.types.StructType
        A result of :func:`to_spark`.

    Raises
    ------
    FieldIdError
        A field has no id; for a new table, use :func:`from_spark_types` and :func:`twophase.schema.assign_ids`.
    UnsupportedTypeError
        A type has no PyArrow counterpart (variant, calendar interval, user-defined types).
    """
    fields = tuple(_read(field, _required_id, field.name) for field in source)
    facts = dict(source[0].metadata.get(TWOPHASE, {})).get("table") if fields else None
    return Schema(fields) if facts is None else _with_facts(fields, facts, source[0].name)


def _with_facts(fields: tuple[Field, ...], facts: Any, path: str) -> Schema:
    plain = Schema(fields)
    try:
        highest = max(int(facts["highest_field_id"]), plain.highest_field_id)
        primary, partition = tuple(facts["primary_keys"]), tuple(facts["partition_keys"])
        number = int(facts["schema_id"])
    except (ValueError, TypeError, KeyError) as error:
        raise SchemaDocumentError(
            f"The metadata {TWOPHASE!r} of {path} cannot be read: {error!r}.",
            field_path=path,
            allowed=("what to_spark wrote there", "no such metadata"),
        ) from error
    # Keys are dropped for a subset of the columns, or for rows that Spark has read (where all columns are nullable).
    held = {key: [plain.by_id(key), *plain.ancestors(key)] for key in (*primary, *partition) if key in plain}
    kept = primary if all(key in held and not any(n.nullable for n in held[key]) for key in primary) else ()
    return Schema(fields, number, highest, kept, partition if all(key in held for key in partition) else ())


def from_spark_types(source: StructType) -> pa.Schema:
    """Convert a ``StructType`` without ids to a PyArrow schema, for :func:`assign_ids` and :func:`reconcile`.

    Parameters
    ----------
    source : pyspark.sql.types.StructType
        The type; ids in its metadata are ignored.

    Raises
    ------
    UnsupportedTypeError
        A type has no PyArrow counterpart.
    """
    from twophase.schema.convert_arrow import arrow_field

    numbers = iter(range(1, 1 << 31))
    tree = [_read(field, lambda _metadata, _path: next(numbers), field.name) for field in source]
    return pa.schema([_without_id(arrow_field(top)) for top in tree])


def _without_id(field: pa.Field) -> pa.Field:
    metadata = {k: v for k, v in (field.metadata or {}).items() if k != FIELD_ID.encode()}
    return field.with_metadata(metadata or None)


def _required_id(facts: dict[str, Any], path: str) -> int:
    number = facts.get(SPARK_FIELD_ID, facts.get("id"))
    if not isinstance(number, int):
        raise FieldIdError(
            f"The field {path} has no id ({SPARK_FIELD_ID}).",
            field_path=path,
            hint="Number a new table with assign_ids(from_spark_types(schema)).",
        )
    return number


def _read(source: StructField, number_of: Any, path: str) -> Field:
    metadata = dict(source.metadata or {})
    facts = dict(metadata.get(TWOPHASE, {}))
    rest = {k: v for k, v in metadata.items() if k not in _READ_BY_US}
    text = {k: v for k, v in rest.items() if isinstance(v, str) and k != _METADATA}
    if other := {k: v for k, v in rest.items() if not isinstance(v, str)}:
        text[_METADATA] = json.dumps(other, sort_keys=True)
    known = {**facts, "id": metadata.get(SPARK_FIELD_ID), "comment": metadata.get(COMMENT), "metadata": text}
    _foreign_defaults(metadata, facts, path)
    return _make(source.name, source.dataType, source.nullable, known, facts.get("below", {}), "", number_of, path)


def _foreign_defaults(metadata: dict[str, Any], facts: dict[str, Any], path: str) -> None:
    for key, ours in ((EXISTS_DEFAULT, "initial_default"), (CURRENT_DEFAULT, "write_default")):
        if key in metadata and ours not in facts:
            raise UnsupportedTypeError(
                f"The default of {path} is the SQL text {metadata[key]!r}, which only Spark can evaluate.",
                field_path=path,
                allowed=("ChangeDefault with a value",),
            )


def _make(
    name: str,
    data_type: DataType,
    nullable: bool,
    facts: dict[str, Any],
    below: dict[str, Any],
    inner: str,
    number_of: Any,
    path: str,
) -> Field:
    from pyspark.sql import types as spark

    number = number_of(facts, path)
    metadata = dict(facts.get("metadata", {}))
    kind, leaf = Kind.LEAF, None
    children: tuple[Field, ...] = ()

    def nested(child: str, child_type: DataType, child_nullable: bool) -> Field:
        at = f"{inner}.{child}".lstrip(".")
        return _make(child, child_type, child_nullable, below.get(at, {}), below, at, number_of, f"{path}.{child}")

    if isinstance(data_type, spark.StructType):
        kind, children = Kind.STRUCT, tuple(_read(c, number_of, f"{path}.{c.name}") for c in data_type)
    elif isinstance(data_type, spark.ArrayType):
        kind, children = Kind.LIST, (nested("element", data_type.elementType, data_type.containsNull),)
    elif isinstance(data_type, spark.MapType):
        kind = Kind.MAP
        value = nested("value", data_type.valueType, data_type.valueContainsNull)
        children = (nested("key", data_type.keyType, False), value)
    else:
        leaf, own = _from_leaf(data_type, path)
        leaf = parse_leaf(facts["type"], path) if "type" in facts else leaf
        if own is not None:
            metadata[SPARK_TYPE] = own
    initial, write = (_default(facts.get(key), leaf, path) for key in ("initial_default", "write_default"))
    extras = tuple(sorted(metadata.items()))
    return Field(number, name, kind, leaf, nullable, facts.get("comment"), initial, write, extras, children)


def _default(text: str | None, leaf: pa.DataType, path: str) -> pa.Scalar | None:
    return None if text is None else parse_default(text, leaf, path)


def _from_leaf(data_type: DataType, path: str = "") -> tuple[pa.DataType, str | None]:
    """The PyArrow type, and Spark's text of the type if PyArrow's is not equivalent."""
    from pyspark.sql import types as spark

    if isinstance(data_type, spark.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale), None
    name = type(data_type).__name__
    leaf = _LEAVES.get(name)
    if leaf is None:
        raise UnsupportedTypeError(
            f"The field {path} has Spark's type {data_type.simpleString()}, which PyArrow does not have.",
            field_path=path,
            old_type=data_type.simpleString(),
            new_type="a type of PyArrow",
            allowed=("string, binary, or a struct of plain types",),
        )
    says_all = name not in ("CharType", "VarcharType") and data_type == type(data_type)()
    return leaf, None if says_all else str(data_type.jsonValue())

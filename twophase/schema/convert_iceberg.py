"""Conversion of schemas to and from Iceberg, through the JSON form of Iceberg's specification."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twophase.schema.defaults import parse_default
from twophase.schema.errors import UnsupportedTypeError
from twophase.schema.leaf import format_leaf, parse_leaf, type_name
from twophase.schema.schema import Field, Kind, Schema

if TYPE_CHECKING:
    import pyiceberg.partitioning
    import pyiceberg.schema

_NAMES = {
    "bool": "boolean",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date32[day]": "date",
    "time64[us]": "time",
    "timestamp[us]": "timestamp",
    "timestamp[us, tz=UTC]": "timestamptz",
    "timestamp[ns]": "timestamp_ns",
    "timestamp[ns, tz=UTC]": "timestamptz_ns",
    "extension<arrow.uuid>": "uuid",
    "null": "unknown",
}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_FIXED = re.compile(r"fixed\[\s*(\d+)\s*\]")
_NEAR = {
    "int8": "int32",
    "int16": "int32",
    "uint8": "int32",
    "uint16": "int32",
    "uint32": "int64",
    "large_string": "string",
    "large_binary": "binary",
    "halffloat": "float",
    "date64[ms]": "date32",
}


def to_iceberg_document(schema: Schema) -> dict[str, Any]:
    """Convert a schema to a ``schema`` object of Iceberg's table metadata.

    Primary keys become ``identifier-field-ids``. Partition keys are not part of an Iceberg schema; see
    :func:`to_iceberg_partition_spec`.

    Parameters
    ----------
    schema : Schema
        Any version.

    Raises
    ------
    UnsupportedTypeError
        A type or a fact that Iceberg has no counterpart for.
    """
    return {
        "type": "struct",
        "schema-id": schema.schema_id,
        "identifier-field-ids": list(schema.primary_keys),
        "fields": [_field(top, (top.name,)) for top in schema],
    }


def to_iceberg_partition_spec(schema: Schema, *, spec_id: int = 0) -> dict[str, Any]:
    """Convert partition keys to a ``partition-spec`` object of Iceberg's table metadata, with identity transforms.

    Parameters
    ----------
    schema : Schema
        The schema with the ``partition_keys``.
    spec_id : int
        Number of the spec.
    """
    fields = [
        {"name": schema.name_of(key), "transform": "identity", "source-id": key, "field-id": 1000 + i}
        for i, key in enumerate(schema.partition_keys)
    ]
    return {"spec-id": spec_id, "fields": fields}


def _field(node: Field, path: tuple[str, ...]) -> dict[str, Any]:
    if node.metadata:
        raise _no_counterpart(".".join(path), f"metadata {', '.join(key for key, _ in node.metadata)}", ())
    document = {"id": node.id, "name": node.name, "required": not node.nullable, "type": _type(node, path)}
    if node.comment is not None:
        document["doc"] = node.comment
    if node.initial_default is not None:
        document["initial-default"] = _value(node.initial_default, path)
    if node.write_default is not None:
        document["write-default"] = _value(node.write_default, path)
    return document


def _type(node: Field, path: tuple[str, ...]) -> Any:
    if node.leaf is not None:
        return _leaf(node.leaf, ".".join(path))
    if node.kind is Kind.STRUCT:
        return {"type": "struct", "fields": [_field(child, (*path, child.name)) for child in node.children]}
    document: dict[str, Any] = {"type": node.kind.value}
    for child in node.children:
        _refuse_facts(child, path)
        document[f"{child.name}-id"] = child.id
        document[child.name] = _type(child, (*path, child.name))
        if child.name != "key":
            document[f"{child.name}-required"] = not child.nullable
    return document


def _refuse_facts(child: Field, path: tuple[str, ...]) -> None:
    facts = (child.comment, child.initial_default, child.write_default, *child.metadata)
    if any(fact is not None for fact in facts):
        where = ".".join((*path, child.name))
        raise _no_counterpart(where, f"comment, default or metadata of a {child.name}", ())


def _leaf(leaf: pa.DataType, path: str) -> str:
    text = format_leaf(leaf)
    if text in _NAMES:
        return _NAMES[text]
    if pa.types.is_decimal128(leaf) and leaf.scale >= 0:
        return f"decimal({leaf.precision}, {leaf.scale})"
    if pa.types.is_fixed_size_binary(leaf):
        return f"fixed[{leaf.byte_width}]"
    raise _no_counterpart(path, type_name(leaf), (_NEAR[text],) if text in _NEAR else ())


def _no_counterpart(path: str, what: str, allowed: Iterable[str]) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"Iceberg has no counterpart for {what} of the field {path}.",
        field_path=path,
        old_type=what,
        new_type="a type of Iceberg",
        allowed=(*allowed, "another field of a type that Iceberg has, and this one dropped"),
    )


def _value(scalar: pa.Scalar, path: tuple[str, ...]) -> Any:
    """A default in Iceberg's JSON form for single values (appendix of the specification)."""
    data_type = scalar.type
    if pa.types.is_floating(data_type) and not math.isfinite(scalar.as_py()):
        # JSON has no such number, and the specification defines no text for it.
        raise _no_counterpart(".".join(path), f"the default {scalar.as_py()}", ("ChangeDefault(path, None)",))
    if pa.types.is_boolean(data_type) or pa.types.is_integer(data_type) or pa.types.is_floating(data_type):
        return scalar.as_py()
    if pa.types.is_binary(data_type) or pa.types.is_fixed_size_binary(data_type):
        return scalar.as_py().hex()
    if pa.types.is_timestamp(data_type):
        naive = scalar.cast(pa.int64()).cast(pa.timestamp(data_type.unit)).cast(pa.string()).as_py()
        return naive.replace(" ", "T") + ("+00:00" if data_type.tz else "")
    return str(scalar.as_py()) if isinstance(scalar, pa.ExtensionScalar) else scalar.cast(pa.string()).as_py()


def to_iceberg(schema: Schema) -> pyiceberg.schema.Schema:
    """Convert a schema to a PyIceberg schema.

    Parameters
    ----------
    schema : Schema
        Any version.

    Raises
    ------
    UnsupportedTypeError
        A type or a fact that Iceberg has no counterpart for.
    """
    from pyiceberg.schema import Schema as IcebergSchema

    return IcebergSchema.model_validate(to_iceberg_document(schema))


def from_iceberg(
    source: pyiceberg.schema.Schema,
    *,
    highest_field_id: int | None = None,
    partition_spec: pyiceberg.partitioning.PartitionSpec | None = None,
) -> Schema:
    """Convert a PyIceberg schema.

    Parameters
    ----------
    source : pyiceberg.schema.Schema
    highest_field_id : int, optional
        The table's ``last-column-id``; default: the highest id in the schema.
    partition_spec : pyiceberg.partitioning.PartitionSpec, optional
        The table's partition spec; default: not partitioned.

    Raises
    ------
    UnsupportedTypeError
        As :func:`from_iceberg_document`.
    """
    return from_iceberg_document(
        source.model_dump(by_alias=True, mode="json"),
        highest_field_id=highest_field_id,
        partition_spec=None if partition_spec is None else partition_spec.model_dump(by_alias=True, mode="json"),
    )


def from_iceberg_document(
    document: dict[str, Any],
    *,
    highest_field_id: int | None = None,
    partition_spec: dict[str, Any] | None = None,
) -> Schema:
    """Convert a ``schema`` object, and optionally a ``partition-spec`` object, of Iceberg's table metadata.

    Parameters
    ----------
    document : dict
        The ``schema`` object.
    highest_field_id : int, optional
        ``last-column-id`` of the table, so that ids of dropped columns are not reused; None: the highest in use.
    partition_spec : dict, optional
        The ``partition-spec`` object; None: not partitioned.

    Raises
    ------
    UnsupportedTypeError
        PyArrow does not have a type (variant, geometry, geography), or a partition transform is not identity.
    """
    fields = tuple(_read_field(item, (item["name"],)) for item in document["fields"])
    highest = -1 if highest_field_id is None else highest_field_id
    keys = tuple(document.get("identifier-field-ids") or ())
    schema = Schema(fields, document.get("schema-id", 0), highest, keys)
    if partition_spec is None:
        return schema
    partition = tuple(_partition_key(schema, item) for item in partition_spec["fields"])
    return Schema(fields, schema.schema_id, highest, keys, partition)


def _partition_key(schema: Schema, item: dict[str, Any]) -> int:
    if item["transform"] != "identity":
        path = schema.name_of(item["source-id"])
        raise UnsupportedTypeError(
            f"The table is partitioned by {item['transform']} of {path}: a key is a field's own value here.",
            field_path=path,
            old_type=item["transform"],
            new_type="identity",
            allowed=("an identity partition field",),
        )
    return int(item["source-id"])


def _read_field(item: dict[str, Any], path: tuple[str, ...]) -> Field:
    return _read(item["id"], item["name"], item["type"], bool(item["required"]), path, item)


def _read(number: int, name: str, kind: Any, required: bool, path: tuple[str, ...], facts: dict[str, Any]) -> Field:
    if isinstance(kind, str):
        leaf = _read_leaf(kind, ".".join(path))
        initial, write = (
            _read_value(facts.get(key), leaf, ".".join(path)) for key in ("initial-default", "write-default")
        )
        return Field(number, name, Kind.LEAF, leaf, not required, facts.get("doc"), initial, write)
    if kind["type"] == "struct":
        children = tuple(_read_field(item, (*path, item["name"])) for item in kind["fields"])
    else:
        names = ("element",) if kind["type"] == "list" else ("key", "value")
        children = tuple(_read_unnamed(kind, child, path) for child in names)
    return Field(number, name, Kind(kind["type"]), None, not required, facts.get("doc"), children=children)


def _read_unnamed(kind: dict[str, Any], name: str, path: tuple[str, ...]) -> Field:
    required = name == "key" or bool(kind[f"{name}-required"])
    return _read(kind[f"{name}-id"], name, kind[name], required, (*path, name), {})


_LEAVES = {iceberg: arrow for arrow, iceberg in _NAMES.items()}


def _read_leaf(text: str, path: str) -> pa.DataType:
    if text in _LEAVES:
        return parse_leaf(_LEAVES[text])
    if match := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(match[1]), int(match[2]))
    if match := _FIXED.fullmatch(text):
        return pa.binary(int(match[1]))
    raise UnsupportedTypeError(
        f"The field {path} has Iceberg's type {text}, which PyArrow does not have.",
        field_path=path,
        old_type=text,
        new_type="a type of PyArrow",
        allowed=("binary", "string"),
    )


def _read_value(value: Any, leaf: pa.DataType, path: str) -> pa.Scalar | None:
    if value is None:
        return None
    if isinstance(value, str) and isinstance(leaf, pa.BaseExtensionType):
        return pa.ExtensionScalar.from_storage(leaf, bytes.fromhex(value.replace("-", "")))
    if isinstance(value, str) and (pa.types.is_binary(leaf) or pa.types.is_fixed_size_binary(leaf)):
        return pa.scalar(bytes.fromhex(value), leaf)
    if isinstance(value, str) and pa.types.is_timestamp(leaf):
        return pa.scalar(value.removesuffix("+00:00")).cast(pa.timestamp(leaf.unit)).cast(pa.int64()).cast(leaf)
    return parse_default(value, leaf, path) if isinstance(value, str) else pa.scalar(value).cast(leaf)

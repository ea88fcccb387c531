"""Spark's own JSON of a column, which its Arrow field carries, as Arrow does not have all types of Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

#: The key of the JSON in the metadata of an Arrow field.
SPARK_FIELD = b"SPARK:field"
#: The metadata key in which Spark stores the length of a CHAR or VARCHAR that it treats as a string.
CHAR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
#: The metadata key in which Spark stores the collations of texts, by their paths below the field.
_COLLATIONS = "__COLLATIONS"


def spark_field(column: pa.Field) -> dict[str, Any]:
    """Return a column as in the JSON of Spark's ``StructType``; empty if only Arrow describes it."""
    return json.loads((column.metadata or {}).get(SPARK_FIELD, b"{}"))


def declared_type(field: Mapping[str, Any]) -> Any:
    """Return the type of a column as it was declared, with the length of a CHAR or VARCHAR; None if it is unknown.

    Parameters
    ----------
    field : mapping
        Spark's JSON of the column.
    """
    return field.get("metadata", {}).get(CHAR_VARCHAR) or field.get("type")


def collated_types(field: Mapping[str, Any]) -> list[str]:
    """Return the types of a column's texts with a collation, which the JSON of a schema keeps beside the types.

    Those in a struct are noted at the fields of the struct.

    Parameters
    ----------
    field : mapping
        Spark's JSON of the column, or of a field of a struct.
    """
    named = field.get("metadata", {}).get(_COLLATIONS, {}).values()
    return [f"string collate {name.rpartition('.')[2]}" for name in named]


def has_collation(column: pa.Field) -> bool:
    """Return whether a text of a column, at any level, has a collation.

    Parameters
    ----------
    column : pyarrow.Field
    """
    return f'"{_COLLATIONS}"'.encode() in (column.metadata or {}).get(SPARK_FIELD, b"")

"""Partition evolution (FLIP-226): new files are partitioned by other fields, while existing files are not moved.

The values of the partition fields of a file's own version are in its directory names. Under a later version such a
value is a constant of the file, and partition fields that were added later are read from the file as usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from twophase.schema.cast_arrow import cast_array
from twophase.schema.errors import CastError, KeyFieldError, SchemaError
from twophase.schema.filters import Filters, file_filter
from twophase.schema.leaf import family
from twophase.schema.merge import plan_read
from twophase.schema.names import FieldPath
from twophase.schema.paths import path_text
from twophase.schema.read_plan import ReadPlan
from twophase.schema.schema import Field, Schema

#: Directory name of NULL in Hive and Spark.
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_values(
    written_with: Schema, directory: Mapping[FieldPath, str | None], *, time_zone: str | None = None
) -> dict[int, Any]:
    """Parse the values of a file's partition fields, by field id, from its directory names.

    Parameters
    ----------
    written_with : Schema
    directory : mapping of path to str or None
        ``{"day": "2024-01-01"}`` for ``day=2024-01-01``, unescaped; a nested field by its path (``"event.day"``).
    time_zone : str, optional
        That of the session that wrote the file; required for a timestamp with a time zone: directories have local time.

    Raises
    ------
    KeyFieldError
        The directories do not match the version's partition fields.
    UnknownFieldError, AmbiguousPathError
        A directory name is not the path of one field.
    CastError
        A text is not a value of the field's type, or is a local time and ``time_zone`` is missing.
    """
    values: dict[int, str | None] = {}
    for path, text in directory.items():
        key = written_with.find(path).id
        if key in values or key not in written_with.partition_keys:
            raise _wrong_directories(written_with, directory, written_with.name_of(key))
        values[key] = text
    if missing := [key for key in written_with.partition_keys if key not in values]:
        raise _wrong_directories(written_with, directory, written_with.name_of(missing[0]))
    zone = None if time_zone is None else _zone(time_zone)
    return {key: _parse(written_with, key, text, zone) for key, text in values.items()}


def _wrong_directories(schema: Schema, directory: Mapping[FieldPath, str | None], path: str) -> KeyFieldError:
    keys = ", ".join(schema.name_of(key) for key in schema.partition_keys) or "nothing"
    named = ", ".join(path_text(name) for name in directory) or "nothing"
    return KeyFieldError(
        f"The directories name {named}, but schema {schema.schema_id} is partitioned by {keys}.",
        field_path=path,
        allowed=(f"one directory for each of: {keys}", "the version that the file was written with"),
    )


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError) as error:
        raise SchemaError(f"There is no time zone {name!r}.", allowed=("a name such as 'Europe/Berlin'",)) from error


def _parse(schema: Schema, key: int, text: str | None, zone: ZoneInfo | None) -> pa.Scalar | None:
    if text is None or text == HIVE_NULL:
        return None
    node, path = schema.by_id(key), schema.name_of(key)
    if family(node.leaf) in ("timestamp", "timestamp_ntz"):
        return _parse_timestamp(node, text, zone, path)
    return cast_array(pa.array([text]), node.leaf, "error", path)[0]


def _parse_timestamp(node: Field, text: str, zone: ZoneInfo | None, path: str) -> pa.Scalar:
    local = family(node.leaf) == "timestamp_ntz"
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None and local:
            raise ValueError("it has a time zone")
    except ValueError as error:
        raise _no_value(node, text, path, str(error), ("yyyy-mm-dd hh:mm:ss.ffffff",)) from error
    if local:
        return pa.scalar(moment, node.leaf)
    if moment.tzinfo is None:
        if zone is None:
            ways = ("time_zone=, that of the session that wrote the file", "a text that ends with Z or an offset")
            raise _no_value(node, text, path, "it is a local time, and nothing says of which zone", ways)
        moment = moment.replace(tzinfo=zone)
    return pa.scalar(moment.astimezone(UTC), node.leaf)


def _no_value(node: Field, text: str, path: str, why: str, ways: Sequence[str]) -> CastError:
    return CastError(
        f"The directory's {text!r} is no value of {path}: {why}.",
        field_path=path,
        old_type="text",
        new_type=node.type_name,
        allowed=ways,
    )


def plan_partitioned_read(
    written_with: Schema,
    query: Schema,
    directory: Mapping[FieldPath, str | None],
    *,
    time_zone: str | None = None,
    through: Sequence[Schema] = (),
    on_cast_failure: str | Sequence[str] = "error",
) -> ReadPlan:
    """Plan how to read a file of a partitioned table with another version of the schema.

    Parameters
    ----------
    written_with, query : Schema
    directory : mapping of path to str or None
    time_zone : str, optional
        As in :func:`partition_values`.
    through : sequence of Schema, optional
    on_cast_failure : str or sequence of str
        As in :func:`twophase.schema.plan_read`.

    Raises
    ------
    KeyFieldError, CastError, TypeChangeError, FieldIdError
    """
    constants = partition_values(written_with, directory, time_zone=time_zone)
    return plan_read(written_with, query, through=through, constants=constants, on_cast_failure=on_cast_failure)


def may_skip(plan: ReadPlan, filters: Filters) -> bool:
    """Return True if no row of a file can pass a filter, without opening the file.

    Only partition fields of the file's own version, and fields that were added later, can decide this; a partition
    field of a later version does not help with an older file.

    Parameters
    ----------
    plan : ReadPlan
        The read plan of the file.
    filters : Filters
        One conjunction of ``(path, op, value)`` or several, of which one must hold; paths are the query's.
    """
    return file_filter(plan, filters).never

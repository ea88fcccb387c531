"""Partition evolution (FLIP-226): partitioning by other fields from now on, while older files stay where they are.

A file keeps the values of its own version's partition fields in its directory's name. Read under a later version, such
a value
is a constant of the file; a partition field that came later is read from the file like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from twophase.schema.cast_arrow import cast_array
from twophase.schema.errors import KeyFieldError
from twophase.schema.filters import Filters, file_filter
from twophase.schema.leaf import family
from twophase.schema.merge import ReadPlan, plan_read
from twophase.schema.names import fold
from twophase.schema.schema import Field, Schema

#: How Hive and Spark name the directory of NULL.
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_values(written_with: Schema, directory: Mapping[str, str | None]) -> dict[int, Any]:
    """Values of a file's partition fields by field id, from the names of its directories.

    Parameters
    ----------
    written_with : Schema
        The version that the file was written with.
    directory : mapping of str to str or None
        ``{"day": "2024-01-01"}`` for ``day=2024-01-01``, unescaped.

    Raises
    ------
    KeyFieldError
        The directories do not name just the version's partition fields.
    CastError
        A name is no value of the field's type.
    """
    fields = {fold(written_with.by_id(key).name): written_with.by_id(key) for key in written_with.partition_keys}
    named = {fold(name): value for name, value in directory.items()}
    if named.keys() != fields.keys():
        raise KeyFieldError(
            f"The directories name {sorted(directory)}, but schema {written_with.schema_id} is partitioned by "
            f"{sorted(node.name for node in fields.values())}.",
        )
    return {node.id: _parse(node, named[name]) for name, node in fields.items()}


def _parse(node: Field, text: str | None) -> pa.Scalar | None:
    if text is None or text == HIVE_NULL:
        return None
    if family(node.leaf) in ("timestamp", "timestamp_ntz"):
        return pa.scalar(text).cast(pa.timestamp("us")).cast(pa.int64()).cast(node.leaf)
    return cast_array(pa.array([text]), node.leaf, "error", node.name)[0]


def plan_partitioned_read(
    written_with: Schema,
    query: Schema,
    directory: Mapping[str, str | None],
    *,
    through: Sequence[Schema] = (),
    on_cast_failure: str | Sequence[str] = "error",
) -> ReadPlan:
    """Plan how a file of a partitioned table is read under another version of the schema.

    Parameters
    ----------
    written_with, query : Schema
    directory : mapping of str to str or None
        As :func:`partition_values` takes it.
    through : sequence of Schema, optional
    on_cast_failure : str or sequence of str
        As in :func:`twophase.schema.plan_read`.

    Raises
    ------
    KeyFieldError, CastError, TypeChangeError, FieldIdError
    """
    constants = partition_values(written_with, directory)
    return plan_read(written_with, query, through=through, constants=constants, on_cast_failure=on_cast_failure)


def may_skip(plan: ReadPlan, filters: Filters) -> bool:
    """Whether a file holds no row that passes a filter, told without opening it.

    Only what the file's own version was partitioned by, and fields that came later, can tell: a partition field of a
    later
    version says nothing about an older file.
    """
    return file_filter(plan, filters).never

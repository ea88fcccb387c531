"""Spark's own readers of the formats whose tables evolve: what they follow of a change of columns in older files.

The Parquet reader goes by the names of columns, or by field ids in a table that has them; the ORC reader by names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from twophase.catalogs.hive.schema.columns import DEFAULTS, HELD
from twophase.schema import Field, Schema, promotion_policy

#: The formats whose tables evolve.
EVOLVING = frozenset({"parquet", "orc"})
#: The changes of type that the readers can follow, but for those that :func:`reads` excepts.
NATIVE = promotion_policy("wide")
#: The columns of ORC files of this name are found by their position, where all of a file have it.
NAMELESS = "_col"


def reads(provider: str | None, old: pa.DataType, new: pa.DataType) -> bool:
    """Whether the reader of a format gives values of one type as those of another, by itself."""
    if provider == "orc":
        return NATIVE.allows(old, new) and not _orc_fails(old, new)
    return NATIVE.allows(old, new) and not _parquet_fails(old, new) and _filters(old, new)


def _parquet_fails(old: pa.DataType, new: pa.DataType) -> bool:
    """Parquet has small integers as 32-bit ones."""
    small = pa.types.is_int8(old) or pa.types.is_int16(old)
    return small and pa.types.is_decimal(new) and new.precision - new.scale < 10


def _filters(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether filters on a column keep the rows of Parquet files that have it with another type.

    Of decimals Spark compares the scales only, and cuts the value of the filter to the bytes that the file has.
    """
    if not (pa.types.is_decimal(old) and pa.types.is_decimal(new)):
        return True
    return old.scale != new.scale or _bytes(old.precision) == _bytes(new.precision)


def _bytes(precision: int) -> int:
    """The number of bytes that Parquet has for a decimal: those of an integer, or as few as it needs."""
    if precision <= 18:
        return 4 if precision <= 9 else 8
    return int((10**precision - 1).bit_length() // 8 + 1)


def unread(old: pa.DataType, new: pa.DataType, name: str) -> str:
    """Return the reason for a column not to get another type by itself, where :func:`reads` refuses it."""
    why = ""
    if not _filters(old, new):
        why = ", as filters of its files would take one decimal for another"
    elif pa.types.is_decimal(new):
        why = "; a decimal needs room for ten digits before the point"
    return f"Spark reads no {old} of {name} as {new}{why}"


def has_default(field: Field) -> bool:
    """Whether old rows read a value in a column that their files lack."""
    return dict(field.metadata).get(HELD + DEFAULTS[1], "NULL").upper() != "NULL"


def parquet_misreads(before: Schema, after: Schema, partition: Collection[str]) -> str | None:
    """Why Spark's Parquet reader would not give old rows their defaults under changed columns; None if it would.

    Without the vectorised reader (``spark.sql.parquet.enableVectorizedReader = false``) it counts the columns that a
    file has, and takes those that it lacks for the last ones: another column's default would replace values, or not be
    read. So what is before a column with a default has to be older than it, and what is behind it younger.

    Parameters
    ----------
    before, after : Schema
        With the same ids.
    partition : collection of str
        The partition columns in lower case, which no file has.
    """
    old, new = ([f for f in schema if f.name.lower() not in partition] for schema in (before, after))
    left = {field.id for field in new}
    known = [field.id for field in old]
    for place, field in enumerate(new):
        if not has_default(field):
            continue
        older = known[: known.index(field.id)] if field.id in known else left - {field.id}
        if {other.id for other in new[:place]} != left & set(older):
            return (
                "Spark's Parquet reader, where it is not the vectorised one, takes the columns that a file lacks for "
                f"the last ones, and would read old rows of {field.name} wrongly, which has a DEFAULT"
            )
    return None


def _orc_fails(old: pa.DataType, new: pa.DataType) -> bool:
    """ORC reads no date as a timestamp."""
    return pa.types.is_null(old) or (pa.types.is_date(old) and pa.types.is_timestamp(new))


def orc_misreads(before: Schema, after: Schema, *, has_former: bool) -> str | None:
    """Why Spark's ORC reader would not read files right under changed columns; None if it would.

    It finds columns by name, but compares the types of timestamps by position before that, and refuses a file that has
    one of the other kind there.

    Parameters
    ----------
    before, after : Schema
        With the same ids.
    has_former : bool
        Whether files have columns that the table has no more.
    """
    old, new = _data(before), _data(after)
    nameless = [field.name for field in (*old, *new) if field.name.startswith(NAMELESS)]
    moves = not keeps_positions(before, after)
    if moves and nameless:
        return f"Spark reads ORC files by position whose columns are named like {nameless[0]}"
    kinds, former_kinds = _timestamps(new), _timestamps(old)
    if (moves and len(kinds | former_kinds) > 1) or (has_former and kinds - former_kinds):
        return "Spark compares timestamps with and without a zone by their position in ORC files, which would change"
    return None


def keeps_positions(before: Schema, after: Schema) -> bool:
    """Whether all fields stay where they are, at every level: new ones come last.

    Parameters
    ----------
    before, after : Schema
        With the same ids.
    """
    return _appends(_data(before), _data(after))


def _data(schema: Schema) -> list[Field]:
    return [field for field in schema if field.id not in schema.partition_keys]


def _appends(old: Sequence[Field], new: Sequence[Field]) -> bool:
    """Whether all fields keep their positions, at every level."""
    return [field.id for field in old] == [field.id for field in new[: len(old)]] and all(
        _appends(one.children, other.children) for one, other in zip(old, new, strict=False)
    )


def _timestamps(fields: Sequence[Field]) -> set[bool]:
    """For each kind of timestamps whether it is one with a zone."""
    found = {field.leaf.tz is not None for field in fields if field.leaf is not None and _is_timestamp(field.leaf)}
    return found.union(*(_timestamps(field.children) for field in fields))


def _is_timestamp(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(data_type))

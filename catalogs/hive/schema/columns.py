"""The columns of a table that can evolve, and how what only Spark knows of them passes through the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from twophase.catalog.schema_versions import OPAQUE
from twophase.schema import Schema

__all__ = ["DEFAULTS", "HELD", "OPAQUE", "Columns", "is_plain"]

#: Metadata of a field with a default, in Spark's SQL.
DEFAULTS = ("CURRENT_DEFAULT", "EXISTS_DEFAULT")
#: Prefix of a default while the rules handle its field: they do not know SQL.
HELD = "twophase."

#: Types of Spark, in its JSON, that the rules know.
_PLAIN = frozenset(
    ("boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date", "timestamp")
) | {"timestamp_ntz"}


def is_plain(described: Any, *also: str) -> bool:
    """Whether the rules know a type of Spark, given by its JSON, and all below it; or one of those that are named."""
    if isinstance(described, str):
        return described in _PLAIN or described in also or described.startswith(("decimal(", "char(", "varchar("))
    if described["type"] == "struct":
        return all(is_plain(field["type"], *also) for field in described["fields"])
    if described["type"] == "array":
        return is_plain(described["elementType"], *also)
    below = [described[name] for name in ("keyType", "valueType") if described["type"] == "map"]
    return bool(below) and all(is_plain(kind, *also) for kind in below)


@dataclass(frozen=True)
class Columns:
    """The columns of a table, with what its files know of them.

    Parameters
    ----------
    schema : Schema
        With ids of its own if the table has none.
    has_ids : bool
        Whether the table's files have ids, and Spark reads by them.
    used : tuple of (tuple of str, int or None)
        Names that files may have for another field than the table: a path in lower case, and the field's id.
    """

    schema: Schema
    has_ids: bool
    used: tuple[tuple[tuple[str, ...], int | None], ...] = ()

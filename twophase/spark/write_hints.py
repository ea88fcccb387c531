"""Write hints: facts about a write that Spark does not pass to a native catalog in time.

- A *dynamic* overwrite: Spark refuses ``OverwritePartitionsDynamic`` for a V1 write, so a rule on the plan turns it
  into an append and adds an option that states the overwrite. The option belongs to one write: a script or
  multi-insert may append to the very table that it overwrites elsewhere.
- The options of a ``DataFrameWriter``: Spark passes them only after the table is staged. They may contain secrets, so
  they stay in this process, and only a token is passed, in a local property: it follows the statement through the JVM's
  thread into the catalog's callbacks.
- A write that *brings columns* (the option ``mergeSchema``; ``INSERT WITH SCHEMA EVOLUTION``, for which a rule on the
  plan sets the property): Spark compares the rows with the table before it passes any option.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

from twophase.catalog.schema_changes import MERGE_SCHEMA
from twophase.model import ObjectPath, OverwriteScope
from twophase.spark.afterwards import afterwards
from twophase.spark.jvm import local_properties
from twophase.spark.jvm.local_properties import WRITE_HINTS

#: Option of an INSERT that runs as an append but states an overwrite.
OVERWRITE_OPTION = "twophase.overwrite"

#: Option of a write, of Spark itself: which rows it replaces.
_OVERWRITE_MODE = "partitionoverwritemode"

_options: dict[str, Mapping[ObjectPath, Mapping[str, str]]] = {}


@contextmanager
def carrying_hints(
    context: Any,
    options: Mapping[ObjectPath, Mapping[str, str]],
    *,
    session_table: bool = False,
    brings_columns: bool = False,
) -> Iterator[None]:
    """Carry the write hints of one statement, and restore the previous ones afterwards.

    Parameters
    ----------
    context : pyspark.SparkContext
    options : mapping of ObjectPath to mapping
        Options that new tables get, by table; may be empty.
    session_table : bool
        Whether it is a table of the session catalog that is written under its full name in the twophase catalog.
    brings_columns : bool
        Whether the rows may bring columns, as by the option ``mergeSchema``.
    """
    before = local_properties.get(context, WRITE_HINTS)
    token = secrets.token_hex(8)
    _options[token] = options
    try:
        with afterwards(lambda: local_properties.put(context, WRITE_HINTS, before)):
            facts = {"options": token, "session_table": session_table, "brings_columns": brings_columns}
            local_properties.put(context, WRITE_HINTS, json.dumps(facts))
            yield
    finally:
        _options.pop(token, None)


def options_of(hints: str | None, path: ObjectPath) -> dict[str, str]:
    """The options that the statement's new table gets in addition to those in its definition.

    Parameters
    ----------
    hints : str or None
        Value of the local property, as read in the callback.
    path : ObjectPath
        The table that is created.
    """
    for other, options in _options.get(json.loads(hints)["options"], {}).items() if hints else ():
        if _folded(other) == _folded(path):
            return {key: value for key, value in options.items() if key.lower() != "path"}
    return {}


def brings_columns(hints: str | None) -> bool:
    """Whether the statement of these hints may bring columns."""
    return bool(hints) and bool(json.loads(str(hints)).get("brings_columns"))


def merges_schema(options: Mapping[str, Any]) -> bool:
    """Whether options of a writer let its rows bring columns."""
    return any(key.lower() == MERGE_SCHEMA.lower() and str(value).lower() == "true" for key, value in options.items())


def stated_as(scope: OverwriteScope) -> str:
    """The value of the option that states the overwrite of an append."""
    return quote(json.dumps(scope.to_document()), safe='{}[]":,._-')


def stated_overwrite(options: Mapping[str, str]) -> tuple[OverwriteScope | None, dict[str, str]]:
    """The overwrite scope stated by an append's own options, and the remaining options, which are of its files."""
    rest = {key: value for key, value in options.items() if key.lower() not in (OVERWRITE_OPTION, _OVERWRITE_MODE)}
    stated = options.get(OVERWRITE_OPTION)
    return (OverwriteScope.from_document(json.loads(unquote(stated))) if stated else None), rest


def is_dynamic(options: Mapping[str, str]) -> bool:
    """Whether an overwrite with these options replaces only the partitions that contain new rows."""
    return any(key.lower() == _OVERWRITE_MODE and value.lower() == "dynamic" for key, value in options.items())


def _folded(path: ObjectPath) -> tuple[str, ...]:
    return tuple(part.casefold() for part in path.to_document())

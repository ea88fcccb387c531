"""What a job tells the DataFrame API about a new table's layout, as a statement of SQL that says the same.

Only Spark's analyser reads it, to tell in which words Spark itself would refuse the layout; nothing runs it. Options,
which may be secret, are no part of it, nor are the names inside of nested types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql.types import ArrayType, AtomicType, MapType, StructType

from twophase.model import ObjectPath, quote
from twophase.spark.jvm.writers import WriterFacts
from twophase.spark.routing.targets import quoted

_PLAIN = re.compile(r"\A(?:[A-Za-z_]\w*|[a-z]+\((?:\d+, )?[A-Za-z_]\w*\))\Z", re.ASCII)
_STAND_INS = ((ArrayType, "ARRAY<INT>"), (MapType, "MAP<INT, INT>"), (StructType, "STRUCT<a: INT>"))


def of_save(path: ObjectPath, facts: WriterFacts, schema: StructType) -> str | None:
    """The statement of a ``saveAsTable`` that makes a table; None where it has none."""
    clauses = []
    if facts.partition_columns:
        clauses.append(f"PARTITIONED BY ({_names(facts.partition_columns)})")
    if facts.bucketing:
        count, columns, order = facts.bucketing
        sorted_by = f" SORTED BY ({_names(order)})" if order else ""
        clauses.append(f"CLUSTERED BY ({_names(columns)}){sorted_by} INTO {count} BUCKETS")
    if facts.clustering_columns:
        clauses.append(f"CLUSTER BY ({', '.join(facts.clustering_columns)})")
    return _statement(path, facts.source, clauses, schema)


def of_write_to(
    path: ObjectPath, provider: str | None, partitioning: Iterable[Any], clustering: Sequence[str], schema: StructType
) -> str | None:
    """The statement of a ``writeTo`` that makes a table; None where it has none."""
    transforms = [c if isinstance(c, str) else str(c._jc.toString()) for c in partitioning]
    if not all(_PLAIN.match(transform) for transform in transforms):
        return None  # Its text does not tell what is a name and what is not.
    clauses = [f"PARTITIONED BY ({', '.join(transforms)})"] if transforms else []
    clauses += [f"CLUSTER BY ({', '.join(clustering)})"] if clustering else []
    return _statement(path, provider, clauses, schema)


def _statement(path: ObjectPath, provider: str | None, clauses: Sequence[str], schema: StructType) -> str | None:
    rows = ", ".join(f"CAST(NULL AS {_type(field.dataType)}) AS {quote(field.name)}" for field in schema)
    name = quoted(("spark_catalog", *path.to_document()))
    words = [f"CREATE TABLE {name}", *([f"USING {provider}"] if provider else []), *clauses, f"AS SELECT {rows}"]
    text = " ".join(words)
    return None if "${" in text else text  # Spark would put a setting there.


def _type(found: Any) -> str:
    for kind, stand_in in _STAND_INS:
        if isinstance(found, kind):
            return stand_in
    return found.simpleString() if isinstance(found, AtomicType) else "STRING"


def _names(columns: Iterable[str]) -> str:
    return ", ".join(map(quote, columns))

"""What a job tells the DataFrame API about a new table, as a statement of SQL that says the same.

Only Spark's analyser reads it, to tell in which words Spark itself would refuse the table; nothing runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from twophase.model import ObjectPath, quote
from twophase.schema.plan_spark import string_literal
from twophase.spark.jvm_writers import WriterFacts
from twophase.spark.targets import quoted


def of_save(path: ObjectPath, facts: WriterFacts, schema: Any) -> str:
    """The statement of a ``saveAsTable`` that makes a table."""
    clauses = []
    if facts.partition_columns:
        clauses.append(f"PARTITIONED BY ({_names(facts.partition_columns)})")
    if facts.bucketing:
        count, columns, order = facts.bucketing
        sorted_by = f" SORTED BY ({_names(order)})" if order else ""
        clauses.append(f"CLUSTERED BY ({_names(columns)}){sorted_by} INTO {count} BUCKETS")
    return _statement(path, facts.source, facts.options, clauses, schema)


def of_write_to(
    path: ObjectPath, provider: str | None, options: Mapping[str, Any], partitioning: Iterable[Any], schema: Any
) -> str:
    """The statement of a ``writeTo`` that makes a table."""
    transforms = ", ".join(quote(c) if isinstance(c, str) else str(c._jc.toString()) for c in partitioning)
    clauses = [f"PARTITIONED BY ({transforms})"] if transforms else []
    return _statement(path, provider, options, clauses, schema)


def _statement(
    path: ObjectPath, provider: str | None, options: Mapping[str, Any], clauses: Sequence[str], schema: Any
) -> str:
    given = ", ".join(
        f"{string_literal(k)} {string_literal(str(v))}" for k, v in options.items() if k.lower() != "path"
    )
    rows = ", ".join(f"CAST(NULL AS {field.dataType.simpleString()}) AS {quote(field.name)}" for field in schema)
    words = [
        f"CREATE TABLE {quoted(path.to_document())}",
        f"USING {provider}" if provider else "",
        f"OPTIONS ({given})" if given else "",
        *clauses,
        f"AS SELECT {rows}",
    ]
    return " ".join(word for word in words if word)


def _names(columns: Iterable[str]) -> str:
    return ", ".join(map(quote, columns))

"""Spark's own Parquet reader over files that are named one by one, by field ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from twophase.spark.jvm import Jvm, private_name

_OPTIONS = {
    # Brackets and stars in a name are not patterns.
    "__globPaths__": "false",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.fieldId.read.ignoreMissing": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}


def parquet_scan(jvm: Jvm, locations: Sequence[str], schema: str, wanted: str, predicates: Sequence[Any]) -> Any:
    """A ``ParquetScan``: vectorised, and split as Spark splits files.

    Parameters
    ----------
    jvm : Jvm
    locations : sequence of str
        Of the files; there may be none.
    schema, wanted : str
        JSON of the table's and of the read's ``StructType``, with field ids.
    predicates : sequence of Java ``Predicate``
        What the reader may leave row groups out by; it finds columns by the names that they have in the files.
    """
    facts = {**_OPTIONS, "paths": json.dumps(list(locations))}
    with private_name("ParquetScanBuilder.pruneColumns", jvm.spark):
        builder = jvm.file_source("parquet", schema, facts).newScanBuilder(
            jvm.kind("org.apache.spark.sql.util.CaseInsensitiveStringMap")(jvm.map(facts))
        )
        builder.pruneColumns(jvm.struct(wanted))
    filters = [found for found in (_filter(jvm, predicate) for predicate in predicates) if found is not None]
    with private_name("ParquetScanBuilder.pushedDataFilters_$eq", jvm.spark):
        getattr(builder, "pushedDataFilters_$eq")(jvm.array("org.apache.spark.sql.sources.Filter", filters))
        return builder.build()


def _filter(jvm: Jvm, predicate: Any) -> Any | None:
    with private_name("PredicateUtils.toV1", jvm.spark):
        found = jvm.kind("org.apache.spark.sql.internal.connector.PredicateUtils").toV1(predicate)
    return found.get() if found.isDefined() else None

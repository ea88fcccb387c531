"""The metadata table ``schema_history`` of a table: the versions of its schema, as rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from twophase.catalog import BatchReader, Catalog, Filter, ReadSource, SchemaVersion
from twophase.model import ObjectPath, TableDefinition
from twophase.schema import to_document
from twophase.spark.attached import AttachedSession
from twophase.spark.schema_versions import versions_of

#: Its name, which follows that of the table.
NAME = "schema_history"
_COLUMNS = pa.schema(
    [
        pa.field("schema_id", pa.int32(), nullable=False),
        pa.field("since", pa.timestamp("us", "UTC")),
        pa.field("commit", pa.string()),
        pa.field("transaction_id", pa.string()),
        pa.field("is_current", pa.bool_(), nullable=False),
        pa.field("schema", pa.string(), nullable=False),
    ]
)


def is_of_table(catalog: Catalog, path: ObjectPath) -> bool:
    """Return whether a path means the history of a table."""
    return path.name == NAME and len(path.namespace) == 2 and catalog.table_exists(ObjectPath.of(*path.namespace))


def source(session: AttachedSession, catalog: Catalog, path: ObjectPath) -> ReadSource | None:
    """Return the source of the rows; None for any other path."""
    if not is_of_table(catalog, path):
        return None
    table = ObjectPath.of(*path.namespace)
    rows = pa.Table.from_pylist([_row(version) for version in versions_of(session, catalog, table)], _COLUMNS)
    return ReadSource("batches", definition=TableDefinition(_COLUMNS), reader=_Rows(rows))


def _row(version: SchemaVersion) -> dict[str, object]:
    return {
        "schema_id": version.schema.schema_id,
        "since": None if version.since is None else round(version.since * 1_000_000),
        "commit": version.commit,
        "transaction_id": version.transaction_id,
        "is_current": version.is_current,
        "schema": json.dumps(to_document(version.schema), ensure_ascii=False),
    }


@dataclass(frozen=True)
class _Rows(BatchReader):
    rows: pa.Table

    def accepts(self, condition: Filter) -> bool:
        return False

    def plan(
        self, columns: Sequence[str], conditions: Sequence[Filter]
    ) -> Sequence[Callable[[], Iterator[pa.RecordBatch]]]:
        chosen = self.rows.select(list(columns))
        return [lambda: iter(chosen.to_batches())]

"""The schemas with which the files of a Parquet table were written, from their footers (Hudi's outlook)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from twophase.catalog.schema_versions import TableSchema
from twophase.catalog.spark_columns import spark_field
from twophase.catalogs.files import Files
from twophase.catalogs.hive.schema.changes import table_schema
from twophase.catalogs.hive.schema.columns import DEFAULTS
from twophase.catalogs.hive.snapshots import SnapshotRead
from twophase.catalogs.hive.store import HiveStore
from twophase.errors import CatalogError, TwoPhaseError
from twophase.model import ObjectPath, TableDefinition
from twophase.schema import Field, Kind, Schema

#: Footers that are read at most.
MOST = 200


def written_schemas(store: HiveStore, path: ObjectPath) -> list[tuple[float, TableSchema]]:
    """Return the schemas of a table's files, the oldest first, each with the time of the first file that has it.

    Between two files with the same schema others are not looked at: what changed and changed back is not found.

    Parameters
    ----------
    store : HiveStore
    path : ObjectPath
        As the metastore stores it.
    """
    try:
        state = SnapshotRead(store, path, ()).state()
    except TwoPhaseError:  # Its files are not for Spark's own readers.
        return []
    if state.definition.provider != "parquet":
        return []
    names = {name.lower() for name in state.definition.partition_columns}
    keys = [field for field in state.definition.schema if field.name.lower() in names]
    files = sorted((entry.modified / 1000, place) for place, entry in state.files)

    def read(place: str) -> TableSchema | None:
        schema = _footer(store.files, place)
        if schema is None:
            return None
        written = store.metastore.schema_of_file(schema)
        columns = [field for field in written if field.name.lower() not in names]
        found = table_schema(store.metastore, path, replace(state.definition, schema=pa.schema([*columns, *keys])))
        return None if found is None else replace(found, schema=_relaxed(found.schema))

    return _boundaries(files, read)


def require_defaults(store: HiveStore, path: ObjectPath, definition: TableDefinition) -> None:
    """Refuse to read a Parquet table whose oldest file lacks a column with a DEFAULT.

    Its rows have the default of when the column was added, and a server tells only the present one.

    Parameters
    ----------
    store : HiveStore
    path : ObjectPath
        As the metastore stores it.
    definition : TableDefinition
    """
    wanted = [f.name for f in definition.schema if DEFAULTS[0] in spark_field(f).get("metadata", {})]
    if not wanted or definition.provider != "parquet":
        return
    files = sorted((entry.modified, place) for place, entry in SnapshotRead(store, path, ()).state().files)
    there = _footer(store.files, files[0][1]) if files else None
    known = set() if there is None else {name.lower() for name in there.names}
    keys = {name.lower() for name in definition.partition_columns}
    for name in wanted:
        if there is not None and name.lower() not in known | keys:
            raise CatalogError(
                f"{path} was not read: files of it are older than its column {name}, and HiveServer2 does not tell "
                "which DEFAULT their rows have there.",
                path=path,
                hint="Read it in a session whose own metastore is the server's, or write its rows anew there.",
            )


def _relaxed(schema: Schema) -> Schema:
    """The schema without NOT NULL, which a file has of the query that wrote it."""

    def relax(fields: tuple[Field, ...], above: Kind) -> tuple[Field, ...]:
        return tuple(
            replace(
                one,
                nullable=not (above is Kind.MAP and one.name == "key"),
                children=relax(one.children, one.kind),
            )
            for one in fields
        )

    return replace(schema, fields=relax(schema.fields, Kind.STRUCT))


def _footer(files: Files, place: str) -> pa.Schema | None:
    store, name = files.find(place)
    try:
        with store.open(name) as stream:
            return pq.read_schema(stream)
    except (OSError, pa.ArrowInvalid):  # Removed meanwhile, or not a Parquet file.
        return None


def _boundaries(
    files: list[tuple[float, str]], read: Callable[[str], TableSchema | None]
) -> list[tuple[float, TableSchema]]:
    """Find the places where the schema changes in a list of files, by bisection."""
    known: dict[int, TableSchema | None] = {}

    def at(index: int) -> TableSchema | None:
        if index not in known and len(known) < MOST:
            known[index] = read(files[index][1])
        return known.get(index)

    found: list[tuple[float, TableSchema]] = []

    def between(low: int, high: int) -> None:
        first, last = at(low), at(high)
        if high - low <= 1 or len(known) >= MOST:
            if last is not None and (first is None or first != last):
                found.append((files[high][0], last))
            return
        if first == last:
            return
        middle = (low + high) // 2
        between(low, middle)
        between(middle, high)

    if files:
        if (first := at(0)) is not None:
            found.append((files[0][0], first))
        between(0, len(files) - 1)
    return found

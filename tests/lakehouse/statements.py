"""Statements without Spark: what the coordinator does with one participant, step by step."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.catalogs.lakehouse.participant import LakehouseParticipant
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition, WriteContext

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = [(1, "one"), (2, "two")]


def table(rows: Sequence[Sequence[Any]], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Rows as Arrow."""
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def transaction_id() -> str:
    return f"lake-20260101t000000-{uuid.uuid4().hex[:8]}"


def offer(
    catalog: LakehouseCatalog,
    path: ObjectPath,
    purpose: Purpose,
    schema: pa.Schema = SCHEMA,
    overwrite: OverwriteScope | None = None,
    **facts: Any,
) -> LakehouseParticipant:
    """A participant that has staged nothing yet."""
    scope = overwrite or (OverwriteScope() if purpose is Purpose.INSERT_OVERWRITE else None)
    context = WriteContext(transaction_id(), overwrite=scope)
    found = catalog.two_phase_create_table(path, TableDefinition(schema, **facts), purpose=purpose, context=context)
    assert isinstance(found, LakehouseParticipant)
    return found


def stage(
    catalog: LakehouseCatalog,
    path: ObjectPath,
    purpose: Purpose = Purpose.CREATE_TABLE_AS,
    rows: Sequence[Sequence[Any]] = ROWS,
    schema: pa.Schema = SCHEMA,
    **facts: Any,
) -> LakehouseParticipant:
    """Up to the decision."""
    participant = offer(catalog, path, purpose, schema, **facts)
    participant.begin()
    participant.write(table(rows, schema))
    participant.prepare()
    return participant


def run(
    catalog: LakehouseCatalog,
    path: ObjectPath,
    purpose: Purpose = Purpose.CREATE_TABLE_AS,
    rows: Sequence[Sequence[Any]] = ROWS,
    schema: pa.Schema = SCHEMA,
    **facts: Any,
) -> LakehouseParticipant:
    """A whole statement."""
    participant = stage(catalog, path, purpose, rows, schema, **facts)
    participant.commit()
    participant.finish()
    return participant

"""Statements without Spark over this catalog."""

from __future__ import annotations

from typing import Any

from tests.statements import ROWS, SCHEMA, Statements, table, transaction_id
from twophase.catalog.reading import Filter
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.catalogs.jdbc.participant import JdbcParticipant
from twophase.model import ObjectPath

_STATEMENTS: Statements[JdbcCatalog, JdbcParticipant] = Statements(JdbcParticipant)
offer, stage, run = _STATEMENTS.offer, _STATEMENTS.stage, _STATEMENTS.run

__all__ = ["ROWS", "SCHEMA", "offer", "read", "run", "stage", "table", "transaction_id"]


def read(catalog: JdbcCatalog, path: ObjectPath, *conditions: Filter) -> list[dict[str, Any]]:
    """Rows as tasks read them, by the conditions that the reader takes."""
    reader = catalog.read_source(path).reader
    assert reader is not None
    taken = [condition for condition in conditions if reader.accepts(condition)]
    parts = reader.plan(catalog.load_table(path).schema.names, taken)
    return [row for part in parts for batch in part() for row in batch.to_pylist()]

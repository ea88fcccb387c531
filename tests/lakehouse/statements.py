"""Statements without Spark over this catalog."""

from __future__ import annotations

from tests.statements import ROWS, SCHEMA, Statements, table, transaction_id
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.catalogs.lakehouse.participant import LakehouseParticipant

_STATEMENTS: Statements[LakehouseCatalog, LakehouseParticipant] = Statements(LakehouseParticipant)
offer, stage, run = _STATEMENTS.offer, _STATEMENTS.stage, _STATEMENTS.run

__all__ = ["ROWS", "SCHEMA", "offer", "run", "stage", "table", "transaction_id"]

"""Statements without Spark over this catalog."""

from __future__ import annotations

from tests.statements import ROWS, SCHEMA, Statements, table, transaction_id
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.catalogs.jdbc.participant import JdbcParticipant

_STATEMENTS: Statements[JdbcCatalog, JdbcParticipant] = Statements(JdbcParticipant)
offer, stage, run = _STATEMENTS.offer, _STATEMENTS.stage, _STATEMENTS.run

__all__ = ["ROWS", "SCHEMA", "offer", "run", "stage", "table", "transaction_id"]

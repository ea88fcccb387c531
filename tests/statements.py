"""Statements without Spark: what the coordinator does with one participant, step by step, over any catalog."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition, WriteContext

C = TypeVar("C", bound=Catalog)
P = TypeVar("P", bound=TwoPhaseCatalogTable)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = [(1, "one"), (2, "two")]


def table(rows: Sequence[Sequence[Any]], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Rows as Arrow."""
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def transaction_id() -> str:
    return f"test-20260101t000000-{uuid.uuid4().hex[:8]}"


class Statements(Generic[C, P]):
    """Statements over catalogs of one class.

    Parameters
    ----------
    kind : type
        Of their participants.
    """

    def __init__(self, kind: type[P]) -> None:
        self._kind = kind

    def offer(
        self,
        catalog: C,
        path: ObjectPath,
        purpose: Purpose,
        schema: pa.Schema = SCHEMA,
        overwrite: OverwriteScope | None = None,
        **facts: Any,
    ) -> P:
        """A participant that has staged nothing yet."""
        scope = overwrite or (OverwriteScope() if purpose is Purpose.INSERT_OVERWRITE else None)
        context = WriteContext(transaction_id(), overwrite=scope)
        definition = TableDefinition(schema, **facts)
        found = catalog.two_phase_create_table(path, definition, purpose=purpose, context=context)
        assert isinstance(found, self._kind)
        return found

    def stage(
        self,
        catalog: C,
        path: ObjectPath,
        purpose: Purpose = Purpose.CREATE_TABLE_AS,
        rows: Sequence[Sequence[Any]] = ROWS,
        schema: pa.Schema = SCHEMA,
        **facts: Any,
    ) -> P:
        """Up to the decision."""
        participant = self.offer(catalog, path, purpose, schema, **facts)
        participant.begin()
        participant.write(table(rows, schema))
        participant.prepare()
        return participant

    def run(self, *statement: Any, **facts: Any) -> P:
        """A whole statement; it is given as to :meth:`stage`."""
        participant = self.stage(*statement, **facts)
        participant.commit()
        participant.finish()
        return participant

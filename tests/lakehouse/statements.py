"""Statements without Spark over this catalog."""

from __future__ import annotations

from tests.statements import ROWS, SCHEMA, Statements, table, transaction_id
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.catalogs.lakehouse.participant import LakehouseParticipant
from twophase.model import ObjectPath

_STATEMENTS: Statements[LakehouseCatalog, LakehouseParticipant] = Statements(LakehouseParticipant)
offer, stage, run = _STATEMENTS.offer, _STATEMENTS.stage, _STATEMENTS.run

__all__ = ["ROWS", "SCHEMA", "drop_renamed", "drop_twice", "offer", "run", "stage", "table", "transaction_id"]


def drop_twice(catalog: LakehouseCatalog, path: ObjectPath) -> None:
    """Two sessions have looked at a table and drop it: the second one must not forget where its files lie."""
    run(catalog, path)
    found = catalog.store.load(path)
    assert found is not None
    place = found.metadata.location
    assert catalog.store.drop(path, found.location, place)
    assert not catalog.store.drop(path, found.location, place)
    assert [(location, target) for location, target, _ in catalog.store.dropped()] == [(place, path)]
    catalog.store.forget_dropped(place)


def drop_renamed(catalog: LakehouseCatalog, path: ObjectPath) -> None:
    """A session has looked at a table, which is renamed, and drops it: nothing may say that it was dropped."""
    run(catalog, path)
    found = catalog.store.load(path)
    assert found is not None
    new = ObjectPath.of(path.database, "another")
    catalog.rename_table(path, new)
    assert not catalog.store.drop(path, found.location, found.metadata.location)
    assert catalog.store.dropped() == []
    assert catalog.table_exists(new)

"""Statements without Spark over this catalog."""

from __future__ import annotations

from dataclasses import replace

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
    assert catalog.store.drop(path, found.location, found)
    assert not catalog.store.drop(path, found.location, found)
    (dropped,) = catalog.store.dropped()
    assert (dropped.location, dropped.path, dropped.pointer) == (place, path, found.location)
    purge_dropped(catalog, path)
    assert not catalog.files.exists(place)


def purge_dropped(catalog: LakehouseCatalog, path: ObjectPath) -> None:
    """What ``twophase clean --purge-dropped`` does once the retention has ended."""
    retention, catalog.environment.retention = catalog.environment.retention, -1.0
    (leftover,) = [leftover for leftover in catalog.leftovers() if leftover.dropped == f"{catalog.name}.{path}"]
    catalog.environment.retention = retention
    catalog.remove_leftover(replace(leftover, kept=None))
    assert catalog.store.dropped() == []


def drop_renamed(catalog: LakehouseCatalog, path: ObjectPath) -> None:
    """A session has looked at a table, which is renamed, and drops it: nothing may say that it was dropped."""
    run(catalog, path)
    found = catalog.store.load(path)
    assert found is not None
    new = ObjectPath.of(path.database, "another")
    catalog.rename_table(path, new)
    assert not catalog.store.drop(path, found.location, found)
    assert catalog.store.dropped() == []
    assert catalog.table_exists(new)

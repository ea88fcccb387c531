"""What users do about named savepoints, without Spark, over any catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twophase.catalog import Catalog
from twophase.catalog.reading import ReadSource
from twophase.model import ObjectPath
from twophase.spark.restoring import restore
from twophase.spark.statement import StatementContext
from twophase.timeline.savepoints import SavepointRecord
from twophase.timeline.timeline import Timeline
from twophase.transactions.clean import Cleaned, clean
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.named_savepoints import create_savepoint, drop_savepoint, plan_restore
from twophase.transactions.transaction import Transaction


def no_rows(source: ReadSource) -> Any:
    raise AssertionError(f"{source} is to be staged by its store, and not read")


class Savepoints:
    """Savepoints over one catalog and a timeline.

    Parameters
    ----------
    timeline : Timeline
    catalog : Catalog
    rows : callable, optional
        Reads what is kept, where the store cannot stage it.
    """

    def __init__(self, timeline: Timeline, catalog: Any, rows: Callable[[ReadSource], Any] = no_rows) -> None:
        self.timeline, self.catalog, self._rows = timeline, catalog, rows
        self.coordinator = Coordinator(timeline, self.resolve, name="job", wait_seconds=0.0)

    def resolve(self, name: str) -> Catalog:
        assert name == self.catalog.name
        found: Catalog = self.catalog
        return found

    def create(self, name: str, *tables: ObjectPath, databases: Sequence[str] = (), **facts: Any) -> SavepointRecord:
        return create_savepoint(
            self.coordinator,
            name,
            tables=[(self.catalog, path) for path in tables],
            databases=[(self.catalog, database) for database in databases],
            **facts,
        )

    def restore(self, name: str = "before", *, keep_new: bool = False, **which: Any) -> Transaction:
        plan = plan_restore(self.timeline, self.resolve, name, **which)
        tx = self.coordinator.begin()
        try:
            context = StatementContext(self.coordinator, None, tx)
            restore(context, plan, lambda _, __, source: self._rows(source), keep_new=keep_new)
        except BaseException as error:
            tx.abort(error)
            raise
        tx.commit()
        return tx

    def drop(self, name: str = "before") -> None:
        drop_savepoint(self.timeline, self.resolve, name)

    def clean(self, *, dry_run: bool = False, purge_dropped: Sequence[str] = ()) -> list[Cleaned]:
        return clean(self.coordinator, [self.catalog], dry_run, purge_dropped)

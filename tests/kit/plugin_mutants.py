"""The plugin of the examples with the bugs that a plugin is most likely to have; the suite must find each."""

from __future__ import annotations

import os
from typing import Any

from examples.sqlite_plugin import SqliteCatalog
from twophase import Environment, Outcome
from twophase.catalog.staged_rows import StagedRows
from twophase.catalog.transactional_table import TransactionalTable
from twophase.testing import LocalRunner


class PublishesAgain(TransactionalTable):
    """It does not look whether it is recorded: a repeated publish happens again."""

    def publish(self, db: Any) -> None:
        self._store.forget(db, self.key)
        super().publish(db)


class DropsWhatItPublished(TransactionalTable):
    """Spark calls abort also where the publish was done."""

    def abort(self) -> None:
        super().abort()
        if self.outcome() is Outcome.PUBLISHED:
            self._store.drop_table(self.path, ignore_if_not_exists=True)

    def finish(self) -> None:
        super().abort()


class LoadsEveryFile(TransactionalTable):
    """Whatever attempts of tasks have written is published, and not only what those wrote that count."""

    def _rows(self) -> StagedRows:
        names = sorted(os.listdir(self.directory)) if os.path.isdir(self.directory) else []
        return StagedRows(tuple(os.path.join(self.directory, name) for name in names), self._state.definition.schema)


class RecordsInATransactionOfItsOwn(TransactionalTable):
    """The rows are there, and a crash comes before the record: a recovery publishes them once more."""

    def commit(self) -> None:
        with self._store.transaction() as db:
            if self._store.is_recorded(db, self.key):
                return
            self.publish(db)
            self._store.forget(db, self.key)
        with self._store.transaction() as db:
            self._store.record(db, self.key)


def open_mutant(file: str, table: str) -> SqliteCatalog:
    """The plugin with another participant."""
    environment = Environment()
    environment.partition_runner = LocalRunner()
    catalog = SqliteCatalog("lite", {"file": file}, environment)
    catalog.table = globals()[table]
    return catalog

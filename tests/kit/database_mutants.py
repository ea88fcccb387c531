"""A chaos catalog that stages databases, and those that break one promise of it each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.kit.mutants import Mutant
from twophase.catalog import SupportsStagedDatabases, TwoPhaseCatalogTable, staged_databases
from twophase.catalog.staged_databases import DROPPING, PENDING


class StagingDatabases(Mutant, SupportsStagedDatabases):
    """It breaks nothing."""

    def restore(self, document: Mapping[str, Any]) -> TwoPhaseCatalogTable:
        return staged_databases.restored(self, document) or super().restore(document)


# -- those that break something ----------------------------------------------------------------------------------------


class LosesWhatOthersHavePutIntoADatabase(StagingDatabases):
    def contents_of(self, database: str) -> list[str]:
        return []

    def remove_staged_database(self, database: str, transaction_id: str) -> None:
        self.drop_database(database, ignore_if_not_exists=True, cascade=True)


class KeepsADatabaseAfterARollback(StagingDatabases):
    def remove_staged_database(self, database: str, transaction_id: str) -> None:
        pass


class NeverPublishesADatabase(StagingDatabases):
    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        super().alter_database(database, {key: value for key, value in changes.items() if key != PENDING})


class DropsADatabaseByItsMark(StagingDatabases):
    """It is gone before the transaction has ended."""

    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        super().alter_database(database, changes)
        if changes.get(DROPPING):
            self.drop_database(database)


class KnowsADatabaseByItsName(StagingDatabases):
    """The next one of the name is taken for the one that is dropped."""

    def database_identity(self, database: str) -> str | None:
        return database


class KeepsTheMarkOfADrop(StagingDatabases):
    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        super().alter_database(database, {k: v for k, v in changes.items() if k != DROPPING or v is not None})


def _all() -> list[type[Any]]:
    return [thing for thing in globals().values() if isinstance(thing, type) and thing.__module__ == __name__]


#: Those that break something.
MUTANTS = [thing for thing in _all() if thing is not StagingDatabases]

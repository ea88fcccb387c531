"""Chapter of the conformance suite: CREATE DATABASE and DROP DATABASE as statements of a transaction."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest

from twophase.catalog import SupportsStagedDatabases, staged_databases
from twophase.catalog import TwoPhaseCatalogTable as Participant
from twophase.errors import CatalogError, TransactionAborted
from twophase.model import ObjectPath, Outcome, TableDefinition, WriteContext
from twophase.testing._suite_base import SCHEMA, Driver, SuiteBase, quick, transaction_id


class StagedDatabasesChapter(SuiteBase):
    """A staged database: published, undone, and never lost with what others have put into it."""

    @pytest.fixture
    def new_database(self, driver: Driver) -> Iterator[str]:
        """The name of a database that does not exist yet."""
        name = f"conformance_{uuid.uuid4().hex[:12]}"
        yield name
        driver.catalog.drop_database(name, ignore_if_not_exists=True, cascade=True)

    def staging(self, driver: Driver, database: str) -> SupportsStagedDatabases | None:
        """Return the catalog as one that stages databases; None if it does not, which is no failure."""
        catalog = driver.catalog
        if not isinstance(catalog, SupportsStagedDatabases):
            return None
        return catalog if catalog.unstaged_database_reason(database) is None else None

    def creating_database(self, driver: Driver, database: str) -> Participant | None:
        """Create a participant that creates a database, and begin it twice; None if the catalog has none."""
        if (catalog := self.staging(driver, database)) is None:
            return None
        context = WriteContext(transaction_id())
        participant = staged_databases.plan_create(catalog, database, {"comment": "of it"}, context)
        participant.begin()
        participant.begin()
        return participant

    def dropping_database(self, driver: Driver, database: str) -> Participant | None:
        """Create a participant that drops a database, begin and prepare it; None if the catalog has none."""
        if (catalog := self.staging(driver, database)) is None:
            return None
        participant = staged_databases.plan_drop(catalog, database, (), WriteContext(transaction_id()))
        participant.begin()
        participant.prepare()
        return participant

    def assert_exists(self, driver: Driver, database: str, exists: bool = True) -> None:
        fresh = driver.fresh()
        try:
            assert driver.catalog.database_exists(database) == fresh.database_exists(database) == exists
        finally:
            fresh.close()

    @quick
    def test_a_created_database_is_published_and_stays(self, driver: Driver, new_database: str) -> None:
        participant = self.creating_database(driver, new_database)
        if participant is None:
            return
        participant.prepare()
        participant.persist()
        assert participant.outcome() is Outcome.NOT_PUBLISHED
        for _ in range(2):
            participant.commit()
        assert driver.outcome_elsewhere(participant) is Outcome.PUBLISHED
        restored = driver.catalog.restore(json.loads(json.dumps(participant.document)))
        for step in (participant.finish, restored.commit, restored.abort, restored.finish):
            step()
        self.assert_exists(driver, new_database)
        assert driver.catalog.load_database(new_database)["comment"] == "of it"

    @quick
    def test_a_created_database_is_gone_after_a_rollback(self, driver: Driver, new_database: str) -> None:
        for steps in ((), ("prepare",), ("prepare", "commit", "compensate")):
            participant = self.creating_database(driver, new_database)
            if participant is None:
                return
            for step in steps:
                getattr(participant, step)()
            for _ in range(2):
                driver.catalog.restore(participant.document).abort()
            assert participant.left_behind() == []
            self.assert_exists(driver, new_database, False)
            with pytest.raises(TransactionAborted):
                participant.commit()

    @quick
    def test_a_created_database_that_others_use_is_not_lost(self, driver: Driver, new_database: str) -> None:
        participant = self.creating_database(driver, new_database)
        if participant is None:
            return
        path = ObjectPath.of(new_database, "theirs")
        driver.catalog.create_table(path, TableDefinition(SCHEMA))
        participant.abort()
        participant.abort()
        assert driver.state(path) == []

    @quick
    def test_a_dropped_database_is_there_until_the_transaction_has_ended(self, driver: Driver, database: str) -> None:
        participant = self.dropping_database(driver, database)
        if participant is None:
            return
        assert participant.outcome() is Outcome.NOT_PUBLISHED
        participant.persist()
        for _ in range(2):
            participant.commit()
        self.assert_exists(driver, database)
        assert driver.outcome_elsewhere(participant) is Outcome.PUBLISHED
        restored = driver.catalog.restore(json.loads(json.dumps(participant.document)))
        restored.finish()
        self.assert_exists(driver, database, False)
        driver.catalog.create_database(database)
        restored.finish()
        self.assert_exists(driver, database)

    @quick
    def test_a_drop_of_a_database_is_undone(self, driver: Driver, database: str) -> None:
        participant = self.dropping_database(driver, database)
        if participant is None:
            return
        participant.commit()
        if not participant.can_undo:
            assert not participant.compensate()
        participant.abort()
        assert participant.outcome() is Outcome.NOT_PUBLISHED and participant.left_behind() == []
        self.assert_exists(driver, database)
        assert not {key for key in driver.catalog.load_database(database) if key.startswith("twophase.")}

    @quick
    def test_a_database_with_something_in_it_is_not_dropped(self, driver: Driver, database: str) -> None:
        path = ObjectPath.of(database, "theirs")
        early, late = self.dropping_database(driver, database), self.dropping_database(driver, database)
        if early is None or late is None:
            return
        late.commit()
        driver.catalog.create_table(path, TableDefinition(SCHEMA))
        with pytest.raises(TransactionAborted):
            early.commit()
        early.abort()
        late.finish()
        assert driver.state(path) == [] and late.left_behind() == []
        with pytest.raises(CatalogError, match="theirs"):
            self.dropping_database(driver, database)

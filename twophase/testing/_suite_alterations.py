"""Chapter of the conformance suite: ALTER TABLE as a statement of a transaction."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from twophase.catalog import SupportsStagedAlter, TableChange
from twophase.catalog import TwoPhaseCatalogTable as Participant
from twophase.errors import TableNotExistError, TransactionAborted
from twophase.model import ObjectPath, Outcome, Purpose, WriteContext
from twophase.testing._suite_base import SCHEMA, Driver, Rows, SuiteBase, quick, transaction_id


def _added(name: str) -> TableChange:
    return TableChange("add_column", (name,), {"field": pa.schema([pa.field(name, pa.int64())])})


class AlterationsChapter(SuiteBase):
    """A staged ALTER TABLE: published, undone, and beside another one; of a catalog that has it."""

    def altering(
        self, driver: Driver, path: ObjectPath, name: str = "extra", context: WriteContext | None = None
    ) -> Participant | None:
        """Create a participant that adds a column, and begin it; None if the catalog has none, which is no failure."""
        if not isinstance(driver.catalog, SupportsStagedAlter):
            return None
        context = context or WriteContext(transaction_id())
        participant = driver.catalog.two_phase_alter_table(path, [_added(name)], context=context)
        if participant is None:
            return None
        assert participant.purpose is Purpose.ALTER_TABLE
        assert participant.path == path and participant.transaction_id == context.transaction_id
        participant.begin()
        return participant

    def assert_altered(self, driver: Driver, path: ObjectPath, rows: Rows, *added: str) -> None:
        """Check the columns that all readers see, and that the rows are those from before."""
        fresh = driver.fresh()
        try:
            for catalog in (driver.catalog, fresh):
                assert catalog.load_table(path).schema.names == [*SCHEMA.names, *added]
        finally:
            fresh.close()
        assert [row[: len(SCHEMA)] for row in driver.rows(path)] == rows

    @quick
    def test_an_altered_table_is_as_before_until_the_publish(self, driver: Driver, path: ObjectPath) -> None:
        old = driver.existing(path)
        participant = self.altering(driver, path)
        if participant is None:
            return
        participant.prepare()
        participant.prepare()
        assert participant.outcome() is Outcome.NOT_PUBLISHED
        self.assert_altered(driver, path, old)
        participant.persist()
        participant.commit()
        self.assert_altered(driver, path, old, "extra")
        driver.ended_again(participant)
        self.assert_altered(driver, path, old, "extra")
        assert driver.left_in_store(participant.transaction_id) == []

    @quick
    def test_an_alter_that_is_rolled_back_leaves_the_definition(self, driver: Driver, path: ObjectPath) -> None:
        old = driver.existing(path)
        for is_prepared in (False, True):
            participant = self.altering(driver, path)
            if participant is None:
                return
            if is_prepared:
                participant.prepare()
            driver.rolled_back(participant)
            self.assert_altered(driver, path, old)
            assert driver.left_in_store(participant.transaction_id) == []

    @quick
    def test_an_alter_builds_on_the_one_before_it(self, driver: Driver, path: ObjectPath) -> None:
        old = driver.existing(path)
        first = self.altering(driver, path)
        if first is None:
            return
        first.prepare()
        second = self.altering(driver, path, "more", WriteContext(first.transaction_id, 1, base=first.document))
        if second is None:
            first.abort()
            return
        second.prepare()
        second.persist()
        second.commit()
        second.finish()
        first.abort()
        self.assert_altered(driver, path, old, "extra", "more")
        assert driver.left_in_store(first.transaction_id) == []

    @quick
    def test_of_two_alters_none_is_lost_in_silence(self, driver: Driver, path: ObjectPath) -> None:
        old = driver.existing(path)
        early, late = self.altering(driver, path), self.altering(driver, path, "more")
        if early is None or late is None:
            return
        late.prepare()
        early.prepare()
        early.commit()
        added = ["extra", "more"]
        try:
            late.commit()
        except TransactionAborted:
            late.abort()
            added = ["extra"]
        self.assert_altered(driver, path, old, *added)
        early.finish()

    @quick
    def test_a_published_alter_is_undone_where_the_catalog_says_so(self, driver: Driver, path: ObjectPath) -> None:
        old = driver.existing(path)
        participant = self.altering(driver, path)
        if participant is None:
            return
        participant.prepare()
        participant.persist()
        participant.commit()
        if not participant.can_undo:
            assert not participant.compensate()
            self.assert_altered(driver, path, old, "extra")
            return
        assert participant.compensate() and participant.compensate()
        assert participant.outcome() is Outcome.NOT_PUBLISHED
        self.assert_altered(driver, path, old)

    @quick
    def test_a_missing_table_is_not_altered(self, driver: Driver, path: ObjectPath) -> None:
        if isinstance(driver.catalog, SupportsStagedAlter):
            with suppress(TableNotExistError):
                assert driver.catalog.two_phase_alter_table(path, [_added("extra")]) is None
        assert driver.state(path) is None

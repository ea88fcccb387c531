"""Chapter of the conformance suite: DROP TABLE as a statement of a transaction."""

from __future__ import annotations

from contextlib import suppress

import pytest

from twophase.catalog import SupportsStagedDrop
from twophase.catalog import TwoPhaseCatalogTable as Participant
from twophase.errors import CatalogError, TableNotExistError, TransactionAborted
from twophase.model import ObjectPath, Outcome, Purpose, WriteContext
from twophase.testing._suite_base import NEW, Driver, SuiteBase, quick, transaction_id


class DropsChapter(SuiteBase):
    """A staged drop: published, undone, and in conflict; of a catalog that has it."""

    def dropping(self, driver: Driver, path: ObjectPath, context: WriteContext | None = None) -> Participant | None:
        """Create a participant that drops a table, and begin it; None if the catalog has none, which is no failure."""
        if not isinstance(driver.catalog, SupportsStagedDrop):
            return None
        context = context or WriteContext(transaction_id())
        participant = driver.catalog.two_phase_drop_table(path, context=context)
        if participant is None:
            return None
        assert participant.purpose is Purpose.DROP_TABLE
        assert participant.path == path and participant.transaction_id == context.transaction_id
        participant.begin()
        return participant

    @quick
    def test_a_dropped_table_is_there_until_the_publish_and_gone_after_it(
        self, driver: Driver, path: ObjectPath
    ) -> None:
        old = driver.existing(path)
        participant = self.dropping(driver, path)
        if participant is None:
            return
        participant.prepare()
        participant.prepare()
        assert participant.outcome() is Outcome.NOT_PUBLISHED
        assert driver.state(path) == old
        participant.persist()
        participant.commit()
        assert driver.state(path) is None
        restored = driver.ended_again(participant)
        assert driver.state(path) is None
        assert driver.left_in_store(participant.transaction_id) == []
        driver.published(path, Purpose.CREATE_TABLE_AS, NEW)
        restored.commit()
        restored.finish()
        assert restored.outcome() is Outcome.PUBLISHED
        assert driver.state(path) == NEW

    @quick
    def test_a_drop_that_is_rolled_back_leaves_the_table(self, driver: Driver, path: ObjectPath) -> None:
        old = driver.existing(path)
        for is_prepared in (False, True):
            participant = self.dropping(driver, path)
            if participant is None:
                return
            if is_prepared:
                participant.prepare()
            driver.rolled_back(participant)
            assert driver.state(path) == old

    @quick
    def test_a_table_that_others_have_changed_is_not_dropped(self, driver: Driver, path: ObjectPath) -> None:
        if Purpose.INSERT_INTO not in self.capabilities.purposes or self.capabilities.unseen_changes:
            return
        driver.existing(path)
        early, late = self.dropping(driver, path), self.dropping(driver, path)
        if early is None or late is None:
            return
        late.prepare()
        driver.published(path, Purpose.INSERT_INTO, NEW)
        now = driver.state(path)
        with pytest.raises(TransactionAborted):
            early.prepare()
        with pytest.raises(TransactionAborted):
            late.commit()
        assert late.outcome() is Outcome.NOT_PUBLISHED
        for participant in (early, late):
            participant.abort()
        assert driver.state(path) == now

    @quick
    def test_a_published_drop_is_undone_where_the_catalog_says_so(self, driver: Driver, path: ObjectPath) -> None:
        old = driver.existing(path)
        participant = self.dropping(driver, path)
        if participant is None:
            return
        participant.prepare()
        participant.persist()
        participant.commit()
        if not participant.can_undo:
            assert not participant.compensate()
            assert driver.state(path) is None
            return
        assert participant.compensate() and participant.compensate()
        assert participant.outcome() is Outcome.NOT_PUBLISHED
        assert driver.state(path) == old
        participant.commit()
        assert driver.state(path) is None

    @quick
    def test_a_drop_is_not_undone_where_another_table_has_its_name(self, driver: Driver, path: ObjectPath) -> None:
        driver.existing(path)
        participant = self.dropping(driver, path)
        if participant is None:
            return
        participant.prepare()
        participant.commit()
        try:
            driver.published(path, Purpose.CREATE_TABLE_AS, NEW)
        except CatalogError:  # The files of the old one may keep the place of a new one until the drop is finished.
            return
        assert not participant.compensate()
        assert driver.state(path) == NEW

    @quick
    def test_a_table_is_created_by_the_transaction_that_drops_it(self, driver: Driver, path: ObjectPath) -> None:
        if Purpose.CREATE_TABLE_AS not in self.capabilities.purposes:
            return
        driver.existing(path)
        for purpose in (Purpose.CREATE_TABLE_AS, Purpose.CREATE_OR_REPLACE_TABLE_AS):
            dropped = self.dropping(driver, path)
            if dropped is None or purpose not in self.capabilities.purposes:
                return
            dropped.prepare()
            created = driver.staged(path, purpose, NEW, context=_after(dropped))
            created.persist()
            created.commit()
            assert created.outcome() is Outcome.PUBLISHED
            created.finish()
            dropped.abort()
            assert driver.state(path) == NEW
            assert driver.left_in_store(dropped.transaction_id) == []

    @quick
    def test_rows_that_others_have_added_since_a_drop_are_not_lost_by_a_create(
        self, driver: Driver, path: ObjectPath
    ) -> None:
        wanted = {Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO}
        if self.capabilities.unseen_changes or not wanted <= self.capabilities.purposes:
            return
        driver.existing(path)
        early, late = self.dropping(driver, path), self.dropping(driver, path)
        if early is None or late is None:
            return
        early.prepare()
        late.prepare()
        created = driver.staged(path, Purpose.CREATE_TABLE_AS, NEW, context=_after(early))
        driver.published(path, Purpose.INSERT_INTO, NEW)
        now = driver.state(path)
        with pytest.raises(TransactionAborted):
            created.commit()
        created.abort()
        participant = None
        with pytest.raises(TransactionAborted):
            participant = driver.written(path, Purpose.CREATE_TABLE_AS, NEW, context=_after(late))
            participant.prepare()
            participant.commit()
        for each in (participant, early, late):
            if each is not None:
                each.abort()
        assert driver.state(path) == now

    @quick
    def test_a_missing_table_is_not_dropped(self, driver: Driver, path: ObjectPath) -> None:
        if isinstance(driver.catalog, SupportsStagedDrop):
            with suppress(TableNotExistError):
                assert driver.catalog.two_phase_drop_table(path) is None
        assert driver.state(path) is None

    @quick
    def test_a_table_that_its_transaction_created_is_dropped_with_what_was_staged(
        self, driver: Driver, path: ObjectPath
    ) -> None:
        if Purpose.CREATE_TABLE_AS not in self.capabilities.purposes:
            return
        transaction = transaction_id()
        created = driver.staged(path, Purpose.CREATE_TABLE_AS, context=WriteContext(transaction))
        participant = self.dropping(driver, path, WriteContext(transaction, 1, base=created.document))
        if participant is not None:
            participant.prepare()
            participant.persist()
            participant.commit()
            assert participant.outcome() is Outcome.PUBLISHED
            participant.finish()
        created.abort()
        assert driver.state(path) is None
        assert driver.left_in_store(transaction) == []


def _after(dropped: Participant) -> WriteContext:
    """The context of the next statement on the table that a participant drops."""
    return WriteContext(dropped.transaction_id, 1, base=dropped.document)

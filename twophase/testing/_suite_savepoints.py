"""Chapter of the conformance suite: states of tables that a named savepoint keeps."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

import pytest

from twophase.catalog import SupportsSavepoints
from twophase.errors import AtomicityNotSupportedError, CatalogError, TableNotExistError
from twophase.model import ObjectPath, Purpose, WriteContext
from twophase.testing._suite_base import NEW, Driver, SuiteBase, quick, transaction_id


class SavepointsChapter(SuiteBase):
    """A state is kept, given back, and forgotten; of a catalog that has savepoints."""

    def planned(self, driver: Driver, path: ObjectPath) -> Mapping[str, Any] | None:
        """Plan to keep a table, with copies if the catalog needs them; None if it has no savepoints: no failure."""
        if not isinstance(driver.catalog, SupportsSavepoints):
            return None
        name, copies = f"sp{secrets.token_hex(10)}", self.capabilities.copying_savepoints
        if copies and driver.catalog.table_exists(path):
            with pytest.raises(AtomicityNotSupportedError):
                driver.catalog.plan_kept(path, name, "before it")
        return self.recorded(driver.catalog.plan_kept(path, name, "before it", copies=copies))

    def recorded(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a document after its way through the timeline."""
        found: Mapping[str, Any] = json.loads(json.dumps(document))
        assert found == document, "A document is plain JSON."
        return found

    def restored(self, driver: Driver, path: ObjectPath, document: Mapping[str, Any]) -> None:
        """Restore a table as a transaction does, if the store stages what it keeps."""
        catalog = driver.as_one(SupportsSavepoints)
        definition = catalog.kept_definition(document)
        purpose = Purpose.CREATE_OR_REPLACE_TABLE_AS
        participant = driver.offer(path, purpose, definition, context=WriteContext(transaction_id()))
        assert participant is not None
        participant.begin()
        if not catalog.write_kept(participant, document):
            assert catalog.read_kept(document) is not None
            participant.abort()
            return
        for step in (participant.prepare, participant.persist, participant.commit, participant.finish):
            step()

    @quick
    def test_what_a_savepoint_keeps_comes_back_however_often(self, driver: Driver, path: ObjectPath) -> None:
        if not self.declares(driver, path, Purpose.REPLACE_TABLE_AS):
            return
        old = driver.existing(path)
        planned = self.planned(driver, path)
        if planned is None:
            return
        catalog = driver.as_one(SupportsSavepoints)
        version = driver.catalog.table_version(path)
        document = self.recorded(catalog.keep(planned))
        assert self.recorded(catalog.keep(planned)) is not None
        assert driver.catalog.table_version(path) == version, "Nothing of the table itself is changed."
        for _ in range(2):
            driver.published(path, Purpose.REPLACE_TABLE_AS, NEW)
            self.restored(driver, path, document)
            assert driver.state(path) == old
        catalog.forget_kept(document)
        assert driver.state(path) == old

    def test_a_table_that_was_dropped_since_comes_back(self, driver: Driver, path: ObjectPath) -> None:
        old = driver.existing(path)
        planned = self.planned(driver, path)
        if planned is None:
            return
        catalog = driver.as_one(SupportsSavepoints)
        document = self.recorded(catalog.keep(planned))
        driver.catalog.drop_table(path)
        driver.dropped_by_the_host(path)
        assert catalog.kept_definition(document).schema.names
        self.restored(driver, path, document)
        assert driver.state(path) in (old, None)
        catalog.forget_kept(document)

    def test_what_is_forgotten_is_gone_and_forgetting_is_idempotent(self, driver: Driver, path: ObjectPath) -> None:
        old = driver.existing(path)
        planned = self.planned(driver, path)
        if planned is None:
            return
        catalog = driver.as_one(SupportsSavepoints)
        catalog.forget_kept(planned)
        document = catalog.keep(planned)
        for found in (document, document, planned):
            catalog.forget_kept(self.recorded(found))
        assert driver.state(path) == old

    def test_a_missing_table_cannot_be_kept(self, driver: Driver, path: ObjectPath) -> None:
        if isinstance(driver.catalog, SupportsSavepoints):
            assert driver.catalog.tables_to_keep(path.database) == []
            with pytest.raises((TableNotExistError, CatalogError)):
                self.planned(driver, path)

"""Chapter two of the conformance suite: every purpose on every kind of target."""

from __future__ import annotations

from functools import wraps
from typing import Any

import pyarrow as pa
import pytest

from twophase.errors import (
    CatalogError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TableNotExistError,
    TransactionAborted,
    WriteConflictError,
)
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition, Transform, WriteContext
from twophase.testing._suite_base import NEW, SCHEMA, Driver, Rows, SuiteBase, Test, after, quick, transaction_id

any_purpose = pytest.mark.parametrize("purpose", [p for p in Purpose if p.writes], ids=lambda p: p.value)


def each_purpose(test: Test) -> Test:
    """Run a test for each purpose that the catalog declares; the others must be refused, with nothing changed."""

    @wraps(test)
    def declared(self: SuiteBase, driver: Driver, path: ObjectPath, purpose: Purpose, *rest: Any, **facts: Any) -> None:
        if self.declares(driver, path, purpose):
            test(self, driver, path, purpose, *rest, **facts)

    return any_purpose(declared)


PARTITIONED = TableDefinition(
    pa.schema([("id", pa.int64()), ("part", pa.string())]), partitioning=(Transform.identity("part"),)
)
PARTS: Rows = [(1, "a"), (2, "a"), (3, "b"), (4, "c")]


class PurposesChapter(SuiteBase):
    """Six purposes by target: missing, existing, in a missing database."""

    @each_purpose
    @quick
    def test_a_missing_target_is_created_or_refused(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        if not purpose.creates:
            with pytest.raises(TableNotExistError):
                driver.offer(path, purpose)
            assert driver.state(path) is None
            return
        driver.published(path, purpose, NEW)
        assert driver.state(path) == NEW

    @each_purpose
    @quick
    def test_an_existing_target_is_written_or_refused(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        old = driver.existing(path)
        if purpose is Purpose.CREATE_TABLE_AS:
            with pytest.raises(TableAlreadyExistsError):
                driver.offer(path, purpose)
            assert driver.state(path) == old
        elif purpose is Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS:
            self._existing_is_no_error(driver, path, old)
        else:
            driver.published(path, purpose, NEW)
            assert driver.state(path) == after(purpose, old, NEW)

    def _existing_is_no_error(self, driver: Driver, path: ObjectPath, old: Rows) -> None:
        """The caller checks first, but another writer may be faster: then the table is left unchanged."""
        participant = None
        try:
            participant = driver.offer(path, Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS, ignore_if_exists=True)
            if participant is not None:
                participant.begin()
                participant.write(driver.make_frame(NEW, SCHEMA))
                participant.prepare()
                participant.commit()
                participant.finish()
        except (TableAlreadyExistsError, TransactionAborted):
            # The caller knows what these errors mean here: another writer has created the table.
            if participant is not None:
                participant.abort()
        assert driver.state(path) == old

    @each_purpose
    def test_a_missing_database_is_an_error(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        homeless = ObjectPath.of(f"{path.database}_missing", "target")
        expected = DatabaseNotExistError if purpose.creates else (DatabaseNotExistError, TableNotExistError)
        with pytest.raises(expected):
            driver.offer(homeless, purpose)

    @each_purpose
    def test_an_empty_result_is_a_result(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        old = driver.ready(path, purpose)
        driver.published(path, purpose, [])
        assert driver.state(path) == after(purpose, old, [])

    @any_purpose
    def test_an_unbounded_query_gets_none(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        old = driver.ready(path, purpose)
        if self.capabilities.streaming and purpose in self.capabilities.purposes:
            assert driver.offer(path, purpose, is_streaming_mode=True) is not None
        else:
            assert driver.offer(path, purpose, is_streaming_mode=True) is None
        assert driver.catalog.table_exists(path) == bool(purpose.replaces or purpose.inserts)
        assert old == [] or driver.rows(path) == old

    @each_purpose
    def test_an_offer_changes_nothing(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        driver.ready(path, purpose)
        before = driver.state(path)
        participant = driver.offer(path, purpose)
        assert participant is not None
        assert (participant.path, participant.purpose) == (path, purpose)
        assert driver.left_in_store(participant.transaction_id) == []
        assert driver.state(path) == before


class LayoutChapter(SuiteBase):
    """The parts of a statement besides its rows: a new definition, partitions, the scope of an overwrite."""

    def test_a_create_carries_comment_and_properties(self, driver: Driver, path: ObjectPath) -> None:
        purpose = Purpose.CREATE_TABLE_AS
        if self.declares(driver, path, purpose):
            definition = TableDefinition(SCHEMA, comment="daily", properties={"team": "sales"})
            driver.published(path, purpose, NEW, definition=definition)
            loaded = driver.fresh().load_table(path)
            assert (loaded.comment, loaded.properties["team"]) == ("daily", "sales")
            assert loaded.schema.names == SCHEMA.names

    @pytest.mark.parametrize("purpose", [p for p in Purpose if p.replaces], ids=lambda p: p.value)
    def test_a_replace_brings_its_own_schema(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        if self.declares(driver, path, purpose):
            driver.existing(path)
            schema = pa.schema([("total", pa.float64())])
            driver.published(path, purpose, [(1.5,)], definition=TableDefinition(schema))
            assert driver.fresh().load_table(path).schema.names == ["total"]
            assert driver.state(path) == [(1.5,)]

    def test_a_partitioned_table_is_published_with_all_its_rows(self, driver: Driver, path: ObjectPath) -> None:
        if self._has_partitions(driver, path):
            assert driver.state(path) == PARTS
            assert driver.fresh().load_table(path).partition_columns == ("part",)

    @pytest.mark.parametrize(
        ("scope", "expected"),
        [
            (OverwriteScope(), [(9, "a")]),
            (OverwriteScope({"part": "a"}), [(3, "b"), (4, "c"), (9, "a")]),
            (OverwriteScope(dynamic=True), [(3, "b"), (4, "c"), (9, "a")]),
            (OverwriteScope({"part": "a"}, dynamic=True), [(3, "b"), (4, "c"), (9, "a")]),
        ],
        ids=["whole table", "static partition", "dynamic partitions", "both"],
    )
    def test_an_overwrite_replaces_its_scope_and_no_more(
        self, driver: Driver, path: ObjectPath, scope: OverwriteScope, expected: Rows
    ) -> None:
        if Purpose.INSERT_OVERWRITE not in self.capabilities.purposes:
            self.declares(driver, path, Purpose.INSERT_OVERWRITE)
        elif self._has_partitions(driver, path):
            context = WriteContext(transaction_id(), overwrite=scope)
            driver.published(path, Purpose.INSERT_OVERWRITE, [(9, "a")], definition=PARTITIONED, context=context)
            assert driver.state(path) == expected

    def test_an_insert_adds_to_old_and_new_partitions(self, driver: Driver, path: ObjectPath) -> None:
        if Purpose.INSERT_INTO not in self.capabilities.purposes:
            self.declares(driver, path, Purpose.INSERT_INTO)
        elif self._has_partitions(driver, path):
            driver.published(path, Purpose.INSERT_INTO, [(8, "a"), (9, "d")], definition=PARTITIONED)
            assert driver.state(path) == sorted([*PARTS, (8, "a"), (9, "d")], key=repr)

    def test_rows_with_too_many_columns_are_refused_and_leave_nothing(self, driver: Driver, path: ObjectPath) -> None:
        purpose = Purpose.INSERT_INTO
        if not self.declares(driver, path, purpose):
            return
        old = driver.existing(path)
        wide = TableDefinition(pa.schema([*SCHEMA, pa.field("more", pa.int64())]))
        with pytest.raises(CatalogError):
            driver.offer(path, purpose, wide)
        assert driver.state(path) == old

    def test_rows_in_the_order_of_other_columns_are_a_conflict(self, driver: Driver, path: ObjectPath) -> None:
        """Spark has put them in order, and another writer has changed the columns since."""
        purpose = Purpose.INSERT_INTO
        if not self.declares(driver, path, purpose):
            return
        old = driver.existing(path)
        others = (pa.field("other", pa.int64()), *list(SCHEMA)[1:]), (*SCHEMA, pa.field("more", pa.int64()))
        for fields in others:
            rows = TableDefinition(pa.schema(fields))
            with pytest.raises(WriteConflictError):
                context = WriteContext(transaction_id(), columns=tuple(rows.schema.names))
                driver.offer(path, purpose, rows, context=context)
        driver.published(path, purpose, context=WriteContext(transaction_id(), columns=tuple(SCHEMA.names)))
        assert len(driver.state(path) or ()) == len(old) + len(NEW)

    def _has_partitions(self, driver: Driver, path: ObjectPath) -> bool:
        """Return whether a partitioned table was created; if identity is not declared, assert that it is refused."""
        if not self.declares(driver, ObjectPath.of(path.database, "other"), Purpose.CREATE_TABLE_AS):
            return False
        if "identity" not in self.capabilities.partitioning:
            with pytest.raises(CatalogError):
                driver.offer(path, Purpose.CREATE_TABLE_AS, PARTITIONED)
            return False
        driver.published(path, Purpose.CREATE_TABLE_AS, PARTS, definition=PARTITIONED)
        return True

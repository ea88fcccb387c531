"""Chapter four of the conformance suite: with a real coordinator, and leftovers of dead transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from twophase.catalog import Catalog, SupportsCleaning, SupportsGroupPublish, SupportsRecordedPublish
from twophase.errors import (
    CatalogError,
    LeaseLostError,
    TableAlreadyExistsError,
    TransactionAborted,
    TwoPhaseError,
)
from twophase.model import Level, ObjectPath, Outcome, OverwriteScope, Purpose, TableDefinition, WriteContext
from twophase.testing._reading import read
from twophase.testing._suite_base import NEW, OLD, SCHEMA, SECRET, Driver, Rows, SuiteBase, after, quick, transaction_id
from twophase.testing._suite_purposes import each_purpose
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.transaction import Transaction, TransactionState


class TransactionChapter(SuiteBase):
    """Two participants of this catalog in one transaction."""

    @pytest.fixture
    def timeline_file(self, tmp_path: Path) -> Path:
        return tmp_path / "timeline.db"

    @pytest.fixture
    def coordinator(self, catalog: Catalog, timeline_file: Path) -> Iterator[Coordinator]:
        coordinator = Coordinator(Timeline(f"sqlite:///{timeline_file}"), lambda _: catalog, name="conformance")
        yield coordinator
        coordinator.close()

    @each_purpose
    @quick
    def test_two_tables_appear_together(
        self, driver: Driver, path: ObjectPath, purpose: Purpose, coordinator: Coordinator
    ) -> None:
        other = ObjectPath.of(path.database, "other")
        old = [driver.ready(target, purpose) for target in (path, other)]
        before = [driver.state(target) for target in (path, other)]
        transaction = coordinator.begin()
        for target in (path, other):
            self._write(driver, transaction, target, purpose)
        assert [driver.state(target) for target in (path, other)] == before
        transaction.commit()
        assert transaction.state is TransactionState.COMPLETED
        assert [driver.state(target) for target in (path, other)] == [after(purpose, rows, NEW) for rows in old]
        assert driver.left_in_store(transaction.id) == []
        grouped = self.capabilities.group_publish and self.capabilities.max_level is Level.ATOMIC
        assert (transaction.level is Level.ATOMIC) == grouped

    @each_purpose
    def test_two_tables_are_given_up_together(
        self, driver: Driver, path: ObjectPath, purpose: Purpose, coordinator: Coordinator
    ) -> None:
        other = ObjectPath.of(path.database, "other")
        for target in (path, other):
            driver.ready(target, purpose)
        before = [driver.state(target) for target in (path, other)]
        transaction = coordinator.begin()
        for target in (path, other):
            self._write(driver, transaction, target, purpose)
        transaction.abort()
        assert transaction.state is TransactionState.ROLLED_BACK
        assert [driver.state(target) for target in (path, other)] == before
        assert driver.left_in_store(transaction.id) == []

    def test_the_timeline_holds_no_secret(
        self, driver: Driver, path: ObjectPath, coordinator: Coordinator, timeline_file: Path, secrets: list[str]
    ) -> None:
        if not self.declares(driver, path, Purpose.CREATE_TABLE_AS):
            return
        transaction = coordinator.begin()
        definition = TableDefinition(SCHEMA, options={"password": SECRET})
        try:
            self._write(driver, transaction, path, Purpose.CREATE_TABLE_AS, definition)
            transaction.commit()
        except CatalogError:
            transaction.abort()  # It refuses unknown options, which is just as good.
        held = b"".join(file.read_bytes() for file in timeline_file.parent.glob("timeline.db*"))
        assert held
        assert not [secret for secret in [*secrets, SECRET] if secret.encode() in held]

    def test_a_second_statement_builds_on_the_first_or_is_refused(
        self, driver: Driver, path: ObjectPath, coordinator: Coordinator
    ) -> None:
        both = (Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO)
        if not all([self.declares(driver, ObjectPath.of(path.database, f"t_{p.value}"), p) for p in both]):  # noqa: C419
            return
        transaction = coordinator.begin()
        self._write(driver, transaction, path, Purpose.CREATE_TABLE_AS, rows=OLD)
        try:
            self._write(driver, transaction, path, Purpose.INSERT_INTO, rows=NEW)
        except (TwoPhaseError, AssertionError):
            transaction.abort()
            assert driver.state(path) is None
            return
        transaction.commit()
        assert driver.state(path) == sorted([*OLD, *NEW])
        assert driver.left_in_store(transaction.id) == []

    @pytest.mark.parametrize("second", [Purpose.INSERT_OVERWRITE, Purpose.CREATE_OR_REPLACE_TABLE_AS])
    @pytest.mark.parametrize("first", [Purpose.INSERT_INTO, Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS])
    def test_a_second_statement_replaces_no_rows_that_others_add_meanwhile(
        self, driver: Driver, path: ObjectPath, coordinator: Coordinator, first: Purpose, second: Purpose
    ) -> None:
        """The first one conflicts with no such rows, so the second one has to."""
        needed = {first, second, Purpose.INSERT_INTO, Purpose.CREATE_TABLE_AS}
        if not needed <= self.capabilities.purposes:
            return
        old = driver.ready(path, first)
        transaction = coordinator.begin()
        self._write(driver, transaction, path, first, rows=[(6, "six")])
        try:
            self._write(driver, transaction, path, second)
        except (TwoPhaseError, AssertionError):
            transaction.abort()
            assert driver.state(path) == (old or None)
            return
        driver.published(path, Purpose.INSERT_INTO if old else Purpose.CREATE_TABLE_AS, [(7, "seven")])
        with pytest.raises((TransactionAborted, TableAlreadyExistsError)):
            transaction.commit()
        assert driver.state(path) == [*old, (7, "seven")]
        assert driver.left_in_store(transaction.id) == []

    @each_purpose
    def test_what_is_staged_is_read_as_it_will_be_published(
        self, driver: Driver, path: ObjectPath, purpose: Purpose
    ) -> None:
        """By later statements of its transaction, if the catalog supports it."""
        old = driver.ready(path, purpose)
        participant = driver.staged(path, purpose)
        source = participant.read_source()
        rows = None if source is None else read(source)
        assert rows in (None, after(purpose, old, NEW))
        participant.abort()

    def test_several_are_published_in_one_step_only_where_that_is_declared(
        self, driver: Driver, path: ObjectPath
    ) -> None:
        if not self.declares(driver, path, Purpose.CREATE_TABLE_AS):
            return
        identity = transaction_id()
        targets = [path, ObjectPath.of(path.database, "other")]
        members = [
            driver.staged(target, Purpose.CREATE_TABLE_AS, context=WriteContext(identity, ordinal))
            for ordinal, target in enumerate(targets)
        ]
        if not self.capabilities.group_publish:
            return
        grouping = driver.as_one(SupportsGroupPublish)
        keys = {grouping.group_key(member) for member in members}
        assert len(keys) == 1
        assert keys != {None}
        grouping.publish_group(members)
        grouping.publish_group(members)
        assert [driver.state(target) for target in targets] == [NEW, NEW]
        assert [member.outcome() for member in members] == [Outcome.PUBLISHED] * 2

    @each_purpose
    def test_a_record_is_written_by_the_transaction_that_publishes(
        self, driver: Driver, path: ObjectPath, purpose: Purpose
    ) -> None:
        old = driver.ready(path, purpose)
        before = driver.state(path)
        recording = driver.catalog
        if not isinstance(recording, SupportsRecordedPublish) or recording.publish_database is None:
            return
        participant = driver.staged(path, purpose)

        def refuse(_: Any) -> None:
            raise LeaseLostError("Another process has taken over.")

        with pytest.raises(LeaseLostError):
            recording.publish_with_record([participant], refuse)
        assert driver.state(path) == before, "It was published without its record."
        assert participant.outcome() is Outcome.NOT_PUBLISHED
        inside: list[bool] = []
        for _ in range(2):
            recording.publish_with_record([participant], lambda found: inside.append(found.in_transaction()))
        assert inside == [True], "The record is written once, in a transaction."
        assert driver.state(path) == after(purpose, old, NEW)
        assert participant.outcome() is Outcome.PUBLISHED

    @each_purpose
    def test_a_publish_is_undone_only_where_that_is_declared(
        self, driver: Driver, path: ObjectPath, purpose: Purpose
    ) -> None:
        old = driver.ready(path, purpose)
        before = driver.state(path)
        participant = driver.staged(path, purpose)
        participant.commit()
        undone = participant.compensate()
        assert undone == participant.can_undo, "It is not as it says whether it can be undone."
        if undone:
            assert self.capabilities.compensate, "It undoes what it does not declare."
            assert driver.state(path) == before
            participant.compensate()
            assert driver.state(path) == before
            assert participant.outcome() is Outcome.NOT_PUBLISHED
            participant.abort()
            assert driver.left_in_store(participant.transaction_id) == []
        else:
            assert driver.state(path) == after(purpose, old, NEW)
            assert participant.outcome() is Outcome.PUBLISHED

    def test_what_is_declared_can_be_undone(self, driver: Driver, database: str) -> None:
        """Some purposes may not be undoable; a catalog that declares the capability can undo at least one."""
        undone = []
        for purpose in sorted(self.capabilities.purposes, key=lambda p: p.value):
            path = ObjectPath.of(database, f"t_{purpose.value}")
            driver.ready(path, purpose)
            participant = driver.staged(path, purpose)
            participant.commit()
            undone.append(participant.compensate())
        assert not undone or any(undone) == self.capabilities.compensate

    def test_several_that_were_published_in_one_step_are_undone_in_one(self, driver: Driver, database: str) -> None:
        if not self.capabilities.group_publish:
            return
        identity, catalog = transaction_id(), driver.as_one(SupportsGroupPublish)
        members, before = [], {}
        for ordinal, purpose in enumerate(sorted(self.capabilities.purposes, key=lambda p: p.value)):
            path = ObjectPath.of(database, f"t_{purpose.value}")
            driver.ready(path, purpose)
            before[path] = driver.state(path)
            members.append(driver.staged(path, purpose, context=WriteContext(identity, ordinal)))
        members = [member for member in members if catalog.group_key(member) == catalog.group_key(members[0])]
        catalog.publish_group(members)
        published = {member.path: driver.state(member.path) for member in members}
        if not self.capabilities.compensate:
            assert not catalog.compensate_group(members)
            assert {path: driver.state(path) for path in published} == published
            return
        for _ in range(2):
            assert catalog.compensate_group(members)
            assert {path: driver.state(path) for path in published} == {path: before[path] for path in published}
            assert [member.outcome() for member in members] == [Outcome.NOT_PUBLISHED] * len(members)
        for member in members:
            member.abort()
        assert driver.left_in_store(identity) == []

    def test_of_several_none_is_undone_under_a_later_writer_of_one(self, driver: Driver, database: str) -> None:
        both = [ObjectPath.of(database, name) for name in ("t", "u")]
        if not (self.capabilities.group_publish and self.capabilities.compensate):
            return
        if not all([self.declares(driver, path, Purpose.INSERT_INTO) for path in both]):  # noqa: C419
            return
        for path in both:
            driver.existing(path)
        identity = transaction_id()
        members = [
            driver.staged(path, Purpose.INSERT_INTO, context=WriteContext(identity, ordinal))
            for ordinal, path in enumerate(both)
        ]
        grouping = driver.as_one(SupportsGroupPublish)
        grouping.publish_group(members)
        driver.published(both[1], Purpose.INSERT_INTO, [(7, "seven")])
        published = [driver.state(path) for path in both]
        assert not grouping.compensate_group(members)
        assert [driver.state(path) for path in both] == published
        assert [member.outcome() for member in members] == [Outcome.PUBLISHED] * 2

    @each_purpose
    def test_what_was_undone_is_published_again_wholly_or_not_at_all(
        self, driver: Driver, path: ObjectPath, purpose: Purpose
    ) -> None:
        old = driver.ready(path, purpose)
        before = driver.state(path)
        participant = driver.staged(path, purpose)
        participant.commit()
        if not participant.compensate():
            return
        try:
            participant.commit()
        except Exception:
            assert participant.outcome() is Outcome.NOT_PUBLISHED
            assert driver.state(path) == before
            participant.abort()
            assert driver.state(path) == before
        else:
            assert participant.outcome() is Outcome.PUBLISHED
            assert driver.state(path) == after(purpose, old, NEW)
            participant.finish()
            assert driver.state(path) == after(purpose, old, NEW)
        assert driver.left_in_store(participant.transaction_id) == []

    def test_a_publish_is_not_undone_under_a_later_writer(self, driver: Driver, path: ObjectPath) -> None:
        if not self.declares(driver, path, Purpose.INSERT_INTO):
            return
        old = driver.existing(path)
        first = driver.staged(path, Purpose.INSERT_INTO, [(6, "six")])
        first.commit()
        driver.published(path, Purpose.INSERT_INTO, [(7, "seven")])
        expected = sorted([*old, (6, "six"), (7, "seven")], key=repr)
        if first.compensate():  # Removing only its own rows is as good as refusing.
            expected.remove((6, "six"))
        assert driver.state(path) == expected

    def _write(
        self,
        driver: Driver,
        transaction: Transaction,
        path: ObjectPath,
        purpose: Purpose,
        definition: TableDefinition | None = None,
        rows: Rows = NEW,
    ) -> None:
        participant = transaction.stage(
            driver.catalog,
            path,
            definition or TableDefinition(SCHEMA),
            purpose=purpose,
            overwrite=OverwriteScope() if purpose is Purpose.INSERT_OVERWRITE else None,
        )
        assert participant is not None
        transaction.begin_participant(participant)
        transaction.write(participant, driver.make_frame(rows, SCHEMA))
        transaction.prepare_participant(participant)


class LeftoversChapter(SuiteBase):
    """Leftovers of dead transactions are found, and nothing else is removed."""

    @each_purpose
    def test_what_the_dead_left_is_found_and_removed(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        driver.ready(path, purpose)
        before = driver.state(path)
        dead = driver.staged(path, purpose)
        assert dead.left_behind(), "Something is staged, and the participant does not report it."
        fresh = driver.as_one(SupportsCleaning, driver.fresh())
        found = [r for r in fresh.leftovers() if r.transaction_id == dead.transaction_id]
        assert found, "What a dead transaction left is not found."
        assert all(r.kind in ("staging", "version", "metadata") and r.location and r.size >= -1 for r in found)
        for leftover in found:
            fresh.remove_leftover(leftover)
            fresh.remove_leftover(leftover)
        assert [r for r in fresh.leftovers() if r.transaction_id == dead.transaction_id] == []
        assert driver.state(path) == before

    def test_what_the_living_stage_is_no_leftover(self, driver: Driver, path: ObjectPath) -> None:
        if not self.declares(driver, path, Purpose.CREATE_TABLE_AS):
            return
        living = driver.staged(path, Purpose.CREATE_TABLE_AS)
        names = frozenset({living.transaction_id})
        found = driver.as_one(SupportsCleaning, driver.fresh()).leftovers(live_transactions=names)
        assert living.transaction_id not in {r.transaction_id for r in found}
        living.commit()
        living.finish()
        assert driver.state(path) == NEW

    def test_removing_an_old_finding_does_not_touch_what_was_published_since(
        self, driver: Driver, path: ObjectPath
    ) -> None:
        if not self.declares(driver, path, Purpose.CREATE_TABLE_AS):
            return
        participant = driver.staged(path, Purpose.CREATE_TABLE_AS)
        cleaning = driver.as_one(SupportsCleaning)
        found = [r for r in cleaning.leftovers() if r.transaction_id == participant.transaction_id]
        participant.commit()
        for leftover in found:
            with suppress(CatalogError):  # A clear refusal is just as good.
                cleaning.remove_leftover(leftover)
        assert driver.state(path) == NEW

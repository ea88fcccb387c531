"""Chapter four of the conformance suite: under a real coordinator, and what dead transactions leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from twophase.catalog import Catalog
from twophase.coordinator import Coordinator
from twophase.errors import CatalogError, LeaseLostError, TwoPhaseError
from twophase.model import Level, ObjectPath, Outcome, OverwriteScope, Purpose, TableDefinition, WriteContext
from twophase.testing._suite_base import NEW, OLD, SCHEMA, SECRET, Driver, Rows, SuiteBase, after, transaction_id
from twophase.testing._suite_purposes import each_purpose
from twophase.timeline import Timeline
from twophase.transactions import Transaction, TransactionState


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
    def test_two_tables_appear_together(
        self, driver: Driver, path: ObjectPath, purpose: Purpose, coordinator: Coordinator
    ) -> None:
        if not self.declares(driver, path, purpose):
            return
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
        if not self.declares(driver, path, purpose):
            return
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
            transaction.abort()  # It refuses options that it does not know: as good.
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
        keys = {driver.catalog.group_key(member) for member in members}
        if not self.capabilities.group_publish:
            assert keys == {None}
            with pytest.raises((NotImplementedError, TwoPhaseError)):
                driver.catalog.publish_group(members)
            assert [driver.state(target) for target in targets] == [None, None]
            return
        assert len(keys) == 1
        assert keys != {None}
        driver.catalog.publish_group(members)
        driver.catalog.publish_group(members)
        assert [driver.state(target) for target in targets] == [NEW, NEW]
        assert [member.outcome() for member in members] == [Outcome.PUBLISHED] * 2

    @each_purpose
    def test_a_record_is_written_by_the_transaction_that_publishes(
        self, driver: Driver, path: ObjectPath, purpose: Purpose
    ) -> None:
        if not self.declares(driver, path, purpose):
            return
        old = driver.ready(path, purpose)
        before = driver.state(path)
        participant = driver.staged(path, purpose)
        if driver.catalog.publish_database is None:
            with pytest.raises(NotImplementedError):
                driver.catalog.publish_with_record([participant], lambda _: None)
            assert driver.state(path) == before
            return

        def refuse(_: Any) -> None:
            raise LeaseLostError("Another process has taken over.")

        with pytest.raises(LeaseLostError):
            driver.catalog.publish_with_record([participant], refuse)
        assert driver.state(path) == before, "It was published without its record."
        assert participant.outcome() is Outcome.NOT_PUBLISHED
        inside: list[bool] = []
        for _ in range(2):
            driver.catalog.publish_with_record([participant], lambda found: inside.append(found.in_transaction()))
        assert inside == [True], "The record is written once, in a transaction."
        assert driver.state(path) == after(purpose, old, NEW)
        assert participant.outcome() is Outcome.PUBLISHED

    @each_purpose
    def test_a_publish_is_undone_only_where_that_is_declared(
        self, driver: Driver, path: ObjectPath, purpose: Purpose
    ) -> None:
        if not self.declares(driver, path, purpose):
            return
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
        """Some purposes may have no way back; a catalog that declares one has it for some."""
        undone = []
        for purpose in sorted(self.capabilities.purposes, key=lambda p: p.value):
            path = ObjectPath.of(database, f"t_{purpose.value}")
            driver.ready(path, purpose)
            participant = driver.staged(path, purpose)
            participant.commit()
            undone.append(participant.compensate())
        assert not undone or any(undone) == self.capabilities.compensate

    def test_several_that_were_published_in_one_step_are_undone_in_one(self, driver: Driver, database: str) -> None:
        identity, catalog = transaction_id(), driver.catalog
        members, before = [], {}
        for ordinal, purpose in enumerate(sorted(self.capabilities.purposes, key=lambda p: p.value)):
            path = ObjectPath.of(database, f"t_{purpose.value}")
            driver.ready(path, purpose)
            before[path] = driver.state(path)
            members.append(driver.staged(path, purpose, context=WriteContext(identity, ordinal)))
        members = [member for member in members if catalog.group_key(member) == catalog.group_key(members[0])]
        if not self.capabilities.group_publish:
            assert not catalog.compensate_group(members)
            return
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
        driver.catalog.publish_group(members)
        driver.published(both[1], Purpose.INSERT_INTO, [(7, "seven")])
        published = [driver.state(path) for path in both]
        assert not driver.catalog.compensate_group(members)
        assert [driver.state(path) for path in both] == published
        assert [member.outcome() for member in members] == [Outcome.PUBLISHED] * 2

    @each_purpose
    def test_what_was_undone_is_published_again_wholly_or_not_at_all(
        self, driver: Driver, path: ObjectPath, purpose: Purpose
    ) -> None:
        if not self.declares(driver, path, purpose):
            return
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
        if first.compensate():  # Taking out just its own rows is as good as refusing.
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


class ResiduesChapter(SuiteBase):
    """What dead transactions leave is found, and only that is removed."""

    @each_purpose
    def test_what_the_dead_left_is_found_and_removed(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        if not self.declares(driver, path, purpose):
            return
        driver.ready(path, purpose)
        before = driver.state(path)
        dead = driver.staged(path, purpose)
        assert dead.left_behind(), "Something is staged, and the participant does not tell it."
        fresh = driver.fresh()
        found = [r for r in fresh.residues() if r.transaction_id == dead.transaction_id]
        assert found, "What a dead transaction left is not found."
        assert all(r.kind in ("staging", "version", "metadata") and r.location and r.size >= -1 for r in found)
        for residue in found:
            fresh.remove_residue(residue)
            fresh.remove_residue(residue)
        assert [r for r in fresh.residues() if r.transaction_id == dead.transaction_id] == []
        assert driver.state(path) == before

    def test_what_the_living_stage_is_no_residue(self, driver: Driver, path: ObjectPath) -> None:
        if not self.declares(driver, path, Purpose.CREATE_TABLE_AS):
            return
        living = driver.staged(path, Purpose.CREATE_TABLE_AS)
        names = frozenset({living.transaction_id})
        found: list[Any] = driver.fresh().residues(live_transactions=names)
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
        found = [r for r in driver.catalog.residues() if r.transaction_id == participant.transaction_id]
        participant.commit()
        for residue in found:
            with suppress(CatalogError):  # Refused with words: as good.
                driver.catalog.remove_residue(residue)
        assert driver.state(path) == NEW

"""Chapter three of the conformance suite: the contract of each method of a participant."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from twophase.catalog import Catalog
from twophase.catalog import TwoPhaseCatalogTable as Participant
from twophase.errors import CatalogError, TableAlreadyExistsError, TransactionAborted
from twophase.model import Level, ObjectPath, Outcome, Purpose, TableDefinition
from twophase.testing._child import in_fresh_process
from twophase.testing._suite_base import NEW, OLD, SCHEMA, SECRET, Driver, FreshProcess, SuiteBase, after, quick
from twophase.testing._suite_purposes import each_purpose


class VisibilityChapter(SuiteBase):
    """Nothing before the publish, everything after it."""

    @each_purpose
    @quick
    def test_nothing_is_visible_before_commit(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        old = driver.ready(path, purpose)
        before, names = driver.state(path), driver.catalog.list_tables(path.database)
        participant = driver.offer(path, purpose)
        assert participant is not None
        for step in (
            participant.begin,
            lambda: participant.write(driver.make_frame(NEW, SCHEMA)),
            participant.prepare,
        ):
            step()
            assert driver.state(path) == before, "Readers see what is only staged."
            assert driver.catalog.list_tables(path.database) == names
        participant.commit()
        assert driver.state(path) == after(purpose, old, NEW)

    @each_purpose
    def test_the_level_is_reported_with_its_reason(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        driver.ready(path, purpose)
        participant = driver.staged(path, purpose)
        assert Level.BEST_EFFORT < participant.level <= self.capabilities.max_level
        assert (participant.level_reason is None) == (participant.level is Level.ATOMIC)
        participant.abort()

    def test_the_best_level_is_the_declared_one(self, driver: Driver, database: str) -> None:
        reached = set()
        for purpose in sorted(self.capabilities.purposes, key=lambda p: p.value):
            path = ObjectPath.of(database, f"t_{purpose.value}")
            driver.ready(path, purpose)
            participant = driver.staged(path, purpose)
            reached.add(participant.level)
            participant.abort()
        assert not reached or max(reached) is self.capabilities.max_level


class IdempotenceChapter(SuiteBase):
    """Each method twice, and in the orders that may occur in a recovery."""

    @each_purpose
    @quick
    def test_each_method_twice_is_as_once(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        old = driver.ready(path, purpose)
        participant = driver.offer(path, purpose)
        assert participant is not None
        participant.begin()
        participant.begin()
        participant.write(driver.make_frame(NEW, SCHEMA))
        participant.begin()
        for method in (participant.prepare, participant.commit, participant.finish):
            method()
            method()
        assert driver.state(path) == after(purpose, old, NEW)
        assert driver.left_in_store(participant.transaction_id) == []

    @each_purpose
    def test_repeating_a_commit_does_not_undo_a_later_writer(
        self, driver: Driver, path: ObjectPath, purpose: Purpose
    ) -> None:
        driver.ready(path, purpose)
        participant = driver.published(path, purpose, OLD)
        participant.commit()
        driver.catalog.drop_table(path)
        driver.dropped_by_the_host(path)
        later = Purpose.CREATE_TABLE_AS
        if later in self.capabilities.purposes:
            driver.published(path, later, NEW)
            participant.abort()
            participant.finish()
            assert driver.state(path) == NEW

    @each_purpose
    @quick
    def test_abort_after_commit_keeps_what_is_published(
        self, driver: Driver, path: ObjectPath, purpose: Purpose
    ) -> None:
        old = driver.ready(path, purpose)
        participant = driver.staged(path, purpose)
        participant.commit()
        participant.abort()  # Spark calls its own abort even after a commit that raised.
        assert driver.state(path) == after(purpose, old, NEW)
        participant.finish()
        participant.abort()
        participant.finish()
        assert driver.state(path) == after(purpose, old, NEW)
        assert participant.outcome() is Outcome.PUBLISHED

    @each_purpose
    @pytest.mark.parametrize("until", ["offer", "begin", "write", "prepare"])
    def test_abort_leaves_nothing(self, driver: Driver, path: ObjectPath, purpose: Purpose, until: str) -> None:
        driver.ready(path, purpose)
        before, names = driver.state(path), driver.catalog.list_tables(path.database)
        participant = self._until(driver, path, purpose, until)
        participant.abort()
        participant.abort()
        assert participant.left_behind() == []
        assert driver.left_in_store(participant.transaction_id) == []
        assert driver.state(path) == before
        assert driver.catalog.list_tables(path.database) == names
        self.assert_nothing_left(driver, participant)
        again = driver.published(path, purpose)  # The statement can be run again immediately.
        assert again.outcome() is Outcome.PUBLISHED

    def assert_nothing_left(self, driver: Driver, participant: Participant) -> None:
        """Check the store itself (files, hidden tables) after an abort; to be overridden."""

    def _until(self, driver: Driver, path: ObjectPath, purpose: Purpose, until: str) -> Participant:
        participant = driver.offer(path, purpose)
        assert participant is not None
        steps = {
            "begin": participant.begin,
            "write": lambda: participant.write(driver.make_frame(NEW, SCHEMA)),
            "prepare": participant.prepare,
        }
        for name in list(steps)[: ["offer", *steps].index(until)]:
            steps[name]()
        return participant


class OutcomeChapter(SuiteBase):
    """The outcome of a publish, as reported by the store."""

    @each_purpose
    @quick
    def test_the_outcome_is_true_in_every_state(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        driver.ready(path, purpose)
        participant = driver.offer(path, purpose)
        assert participant is not None
        steps: list[tuple[Any, Outcome]] = [
            (lambda: None, Outcome.NOT_PUBLISHED),
            (participant.begin, Outcome.NOT_PUBLISHED),
            (lambda: participant.write(driver.make_frame(NEW, SCHEMA)), Outcome.NOT_PUBLISHED),
            (participant.prepare, Outcome.NOT_PUBLISHED),
            (participant.commit, Outcome.PUBLISHED),
            (participant.finish, Outcome.PUBLISHED),
        ]
        for step, expected in steps:
            step()
            assert participant.outcome() is expected
            assert driver.outcome_elsewhere(participant) is expected

    @each_purpose
    def test_what_was_aborted_is_not_published(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        driver.ready(path, purpose)
        participant = driver.staged(path, purpose)
        participant.abort()
        assert driver.outcome_elsewhere(participant) is Outcome.NOT_PUBLISHED
        # A paused process that resumes after its abort publishes nothing.
        before = driver.state(path)
        with pytest.raises(Exception):  # noqa: B017 - any refusal will do
            participant.commit()
        assert driver.state(path) == before
        assert participant.outcome() is not Outcome.PUBLISHED

    @pytest.mark.parametrize("purpose", [p for p in Purpose if p.replaces or p.inserts], ids=lambda p: p.value)
    def test_a_publish_is_not_denied_after_a_later_one(
        self, driver: Driver, path: ObjectPath, purpose: Purpose
    ) -> None:
        if not self.declares(driver, path, purpose):
            return
        driver.ready(path, purpose)
        first = driver.published(path, purpose)
        driver.published(path, purpose)
        assert driver.outcome_elsewhere(first) is not Outcome.NOT_PUBLISHED


class OwnershipChapter(SuiteBase):
    """Two concurrent writers: one wins; the other reports its outcome correctly and leaves the winner's data alone."""

    @pytest.mark.parametrize(
        "purpose", [Purpose.CREATE_TABLE_AS, Purpose.REPLACE_TABLE_AS, Purpose.CREATE_OR_REPLACE_TABLE_AS],
        ids=lambda p: p.value,
    )  # fmt: skip
    @quick
    def test_of_two_writers_one_wins_wholly(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        if not self.declares(driver, path, purpose):
            return
        driver.ready(path, purpose)
        winner, loser = driver.staged(path, purpose, OLD), driver.staged(path, purpose, NEW)
        winner.commit()
        try:
            loser.prepare()
            loser.commit()
        except (TransactionAborted, TableAlreadyExistsError):
            assert loser.outcome() is Outcome.NOT_PUBLISHED
            loser.abort()
            expected = OLD
        else:
            assert purpose is not Purpose.CREATE_TABLE_AS, "Two have created one table."
            expected = NEW  # The last one wins completely.
        assert driver.state(path) == expected
        winner.finish()
        assert driver.state(path) == expected

    @each_purpose
    def test_a_loser_that_aborts_late_touches_nothing(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        old = driver.ready(path, purpose)
        winner, loser = driver.staged(path, purpose, NEW), driver.staged(path, purpose, OLD)
        loser.abort()
        winner.commit()
        loser.abort()
        assert driver.state(path) == after(purpose, old, NEW)
        winner.finish()
        loser.abort()
        assert driver.state(path) == after(purpose, old, NEW)
        assert winner.outcome() is Outcome.PUBLISHED

    @pytest.mark.parametrize("moment", ["begin", "write", "prepare", "commit"])
    def test_a_table_made_by_another_writer_is_not_overwritten(
        self, driver: Driver, path: ObjectPath, moment: str
    ) -> None:
        if not self.declares(driver, path, Purpose.CREATE_TABLE_AS):
            return
        participant = driver.offer(path, Purpose.CREATE_TABLE_AS)
        assert participant is not None
        steps = {
            "begin": participant.begin,
            "write": lambda: participant.write(driver.make_frame(NEW, SCHEMA)),
            "prepare": participant.prepare,
            "commit": participant.commit,
        }
        with pytest.raises((TransactionAborted, TableAlreadyExistsError)):
            for name, step in steps.items():
                if name == moment:
                    driver.catalog.create_table(path, TableDefinition(SCHEMA))
                step()
        assert participant.outcome() is Outcome.NOT_PUBLISHED
        participant.abort()
        assert driver.state(path) == []

    def test_no_table_is_published_into_a_database_that_was_dropped(self, driver: Driver, path: ObjectPath) -> None:
        purpose = Purpose.CREATE_TABLE_AS
        if not self.declares(driver, path, purpose):
            return
        participant = driver.staged(path, purpose)
        driver.catalog.drop_database(path.database, cascade=True)
        with pytest.raises(Exception):  # noqa: B017 - some stores say so in their own words
            participant.commit()
        assert participant.outcome() is not Outcome.PUBLISHED
        participant.abort()
        driver.catalog.create_database(path.database)
        assert driver.state(path) is None
        assert driver.left_in_store(participant.transaction_id) == []

    def test_inserts_side_by_side_lose_no_rows(self, driver: Driver, path: ObjectPath) -> None:
        if not self.declares(driver, path, Purpose.INSERT_INTO):
            return
        expected = driver.existing(path)
        one, two = (driver.staged(path, Purpose.INSERT_INTO, rows) for rows in ([(6, "six")], [(7, "seven")]))
        for participant, row in ((one, (6, "six")), (two, (7, "seven"))):
            try:
                participant.prepare()
                participant.commit()
            except TransactionAborted:
                participant.abort()
            else:
                participant.finish()
                expected.append(row)
        assert (6, "six") in expected
        assert driver.state(path) == sorted(expected, key=repr)


class DocumentChapter(SuiteBase):
    """A participant is its document: it survives the process, and contains no secrets."""

    @each_purpose
    def test_it_survives_into_a_fresh_process(
        self,
        driver: Driver,
        path: ObjectPath,
        purpose: Purpose,
        fresh_process: FreshProcess | None,
    ) -> None:
        old = driver.ready(path, purpose)
        participant = driver.staged(path, purpose)
        answer = in_fresh_process(participant, fresh_process)
        assert answer["document"] == json.loads(json.dumps(participant.document))
        assert answer["unbound"], "An unpickled participant must ask for its catalog."
        if fresh_process is None:
            survivor: Participant = pickle.loads(answer["pickle"])
            survivor.bind(driver.fresh())
            assert survivor.outcome() is Outcome.NOT_PUBLISHED
            survivor.commit()
            survivor.finish()
        else:
            assert answer["outcomes"] == ["not_published", "published", "published"]
        assert driver.state(path) == after(purpose, old, NEW)
        assert participant.outcome() is Outcome.PUBLISHED

    @each_purpose
    @pytest.mark.parametrize("known", ["before preparing", "after preparing"])
    def test_a_survivor_can_abort(self, driver: Driver, path: ObjectPath, purpose: Purpose, known: str) -> None:
        """The changes of ``prepare()`` are recorded with the decision: an abort may have to do without them."""
        driver.ready(path, purpose)
        before = driver.state(path)
        participant = driver.written(path, purpose)
        document = json.dumps(participant.document)
        participant.prepare()
        if known == "after preparing":
            document = json.dumps(participant.document)
        survivor = driver.fresh().restore(json.loads(document))
        assert (survivor.path, survivor.purpose, survivor.transaction_id) == (
            path,
            purpose,
            participant.transaction_id,
        )
        survivor.abort()
        survivor.abort()
        assert driver.left_in_store(participant.transaction_id) == []
        assert driver.state(path) == before

    @each_purpose
    @quick
    def test_no_secret_is_shown(self, driver: Driver, path: ObjectPath, purpose: Purpose, secrets: list[str]) -> None:
        driver.ready(path, purpose)
        for options in ({}, {"password": SECRET}):
            try:
                participant = driver.offer(path, purpose, TableDefinition(SCHEMA, options=options))
            except CatalogError as error:
                assert SECRET not in str(error)
                continue
            assert participant is not None
            self._shows_no_secret(participant, secrets)
            participant.begin()
            participant.write(driver.make_frame(NEW, SCHEMA))
            participant.prepare()
            self._shows_no_secret(participant, secrets)
            participant.abort()

    def test_a_secret_in_an_error_is_none(self, catalog: Catalog, path: ObjectPath, secrets: list[str]) -> None:
        for call in (catalog.load_table, catalog.drop_table):
            with pytest.raises(CatalogError) as caught:
                call(path)
            assert not [secret for secret in secrets if secret in str(caught.value)]

    def _shows_no_secret(self, participant: Participant, secrets: list[str]) -> None:
        reported = {
            "its document (OPTIONS never go there)": json.dumps(participant.document),
            "its repr": repr(participant),
            "its pickle": repr(pickle.dumps(participant)),
            "left_behind()": repr(participant.left_behind()),
        }
        leaked = [where for where, text in reported.items() for secret in [*secrets, SECRET] if secret in text]
        assert not leaked, f"A secret is in {' and '.join(dict.fromkeys(leaked))}, where everybody can read it."

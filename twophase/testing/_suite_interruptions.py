"""Chapter five of the conformance suite: interrupted publishes, and tasks that run more than once."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest

from twophase.catalog import TwoPhaseCatalogTable as Participant
from twophase.model import Level, ObjectPath, Outcome, Purpose
from twophase.testing._child import killed, recovered
from twophase.testing._moments import Moment, folders_of, interrupt, passed, some_of
from twophase.testing._suite_base import NEW, Driver, FreshProcess, Rows, SuiteBase, after, quick
from twophase.testing.runner import LocalRunner

each_kind = pytest.mark.parametrize(
    "purpose", [Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE], ids=lambda p: p.value
)


class InterruptionChapter(SuiteBase):
    """After an interrupted ``commit``, the outcome is correct, and recovery completes the publish exactly once."""

    # A cut between the opening of a connection and the line that keeps it leaves it to the garbage collector.
    @pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
    @each_kind
    def test_a_publish_whose_connection_is_cut_is_carried_through(
        self, driver: Driver, database: str, purpose: Purpose
    ) -> None:
        moments = self._moments(driver, database, purpose)
        for number, moment in enumerate(moments):
            path = ObjectPath.of(database, f"t_{number}")
            old = driver.ready(path, purpose)
            before = driver.state(path)
            participant = driver.staged(path, purpose)
            try:
                interrupt(folders_of(driver.catalog, participant), moment, participant.commit, _cut)
            except Exception:
                # One that still has the connection, or its lock, may know more than the other; they never disagree.
                reported = {participant.outcome(), driver.outcome_elsewhere(participant)} - {Outcome.UNKNOWN}
                assert len(reported) < 2, _where(moment)
            self._is_true(driver, participant, moment, before, after(purpose, old, NEW))
            participant.commit()
            participant.finish()
            assert driver.state(path) == after(purpose, old, NEW), _where(moment)
            assert participant.outcome() is Outcome.PUBLISHED, _where(moment)
            assert driver.outcome_elsewhere(participant) is not Outcome.NOT_PUBLISHED, _where(moment)
            assert driver.left_in_store(participant.transaction_id) == [], _where(moment)
        gc.collect()

    def test_a_publish_whose_process_is_killed_is_carried_through_by_a_fresh_one(
        self, driver: Driver, database: str, fresh_process: FreshProcess | None
    ) -> None:
        wanted = (Purpose.INSERT_INTO, Purpose.CREATE_TABLE_AS, *Purpose)  # Duplicate rows show up in an append.
        purpose = next((purpose for purpose in wanted if purpose in self.capabilities.purposes), None)
        if purpose is None or fresh_process is None:
            return
        moments = self._moments(driver, database, purpose)
        paths = [ObjectPath.of(database, f"t_{number}") for number in range(len(moments))]
        old = [driver.ready(path, purpose) for path in paths]
        before = [driver.state(path) for path in paths]
        participants = [driver.staged(path, purpose) for path in paths]
        folders = folders_of(driver.catalog, participants[0])
        assert any(killed(participants, moments, folders, fresh_process)), "No process died in the middle."
        expected = [after(purpose, rows, NEW) for rows in old]
        for row in zip(participants, moments, before, expected, strict=True):
            self._is_true(driver, *row)
        outcomes = recovered(participants, fresh_process)
        for path, moment, rows, reported in zip(paths, moments, expected, outcomes, strict=True):
            assert reported[1:] == ["published", "published"], _where(moment)
            assert driver.state(path) == rows, _where(moment)
        left = driver.left_in_store(*(participant.transaction_id for participant in participants))
        assert left == []

    @each_kind
    @quick
    def test_a_task_that_runs_again_counts_once(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> None:
        """Before the publish, and after it: a late attempt does not know that its statement has ended."""
        runner = driver.catalog.environment.partition_runner
        if not self.declares(driver, path, purpose) or not isinstance(runner, LocalRunner):
            return
        old = driver.ready(path, purpose)
        runner.run_stragglers()
        participant = driver.staged(path, purpose)
        assert runner.run_stragglers(), "The rows were not written by tasks."
        participant.commit()
        assert driver.state(path) == after(purpose, old, NEW), "What an attempt wrote that does not count is there."
        again = ObjectPath.of(path.database, "again")
        driver.ready(again, purpose)
        runner.run_stragglers()
        published = driver.published(again, purpose)
        expected = driver.state(again)
        assert runner.run_stragglers()
        assert driver.state(again) == expected, "A straggler has changed what is published."
        assert driver.left_in_store(published.transaction_id) == [], "A straggler has left something."

    def _moments(self, driver: Driver, database: str, purpose: Purpose) -> list[Moment]:
        path = ObjectPath.of(database, "undisturbed")
        if not self.declares(driver, path, purpose):
            return []
        driver.ready(path, purpose)
        participant = driver.staged(path, purpose)
        found = passed(folders_of(driver.catalog, participant), participant.commit)
        assert found, "A publish runs no line of the catalog's own."
        return some_of(found, self.moments)

    def _is_true(
        self, driver: Driver, participant: Participant, moment: Moment, before: Rows | None, then: Rows
    ) -> None:
        """Assert that the reported outcome matches what all readers see, without an intermediate state."""
        reported = driver.outcome_elsewhere(participant)
        if participant.level is not Level.ATOMIC or reported is Outcome.UNKNOWN:
            return
        expected = then if reported is Outcome.PUBLISHED else before
        assert driver.state(participant.path) == expected, f"It says {reported.value}. {_where(moment)}"


def _cut() -> None:
    raise ConnectionError("The connection to the store was cut (conformance suite).")


def _where(moment: Moment | Sequence[object]) -> str:
    return f"Interrupted before {moment[0]}:{moment[1]}"

"""The suite finds each broken catalog, by the test whose promise is broken."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import pytest

from tests.kit import mutants
from twophase.testing._participant import ChaosTable

#: Which test must find which mutant.
FINDERS = {
    mutants.DropsTheTargetOnAbort: "test_a_loser_that_aborts_late_touches_nothing",
    mutants.DropsItsPublishedTableOnAbort: "test_abort_after_commit_keeps_what_is_published",
    mutants.RemovesAllStagingOnAbort: "test_a_loser_that_aborts_late_touches_nothing",
    mutants.LeavesItsStagingOnAbort: "test_abort_leaves_nothing",
    mutants.AbortsOnlyOnce: "test_abort_leaves_nothing",
    mutants.CommitsOnlyOnce: "test_each_method_twice_is_as_once",
    mutants.CommitsAgain: "test_each_method_twice_is_as_once",
    mutants.IsVisibleBeforeCommit: "test_nothing_is_visible_before_commit",
    mutants.OverwritesWhatOthersMade: "test_a_table_made_by_an_outsider_is_not_overwritten",
    mutants.ReplacesOnInsert: "test_an_existing_target_is_written_or_told",
    mutants.LosesAnEmptyResult: "test_an_empty_result_is_a_result",
    mutants.SaysAlwaysPublished: "test_the_outcome_is_true_in_every_state",
    mutants.SaysNeverPublished: "test_the_outcome_is_true_in_every_state",
    mutants.JudgesByTheNameOnly: "test_of_two_writers_one_wins_wholly",
    mutants.JudgesByTheLastStampOnly: "test_a_publish_is_not_denied_after_a_later_one",
    mutants.RemembersInMemoryOnly: "test_the_outcome_is_true_in_every_state",
    mutants.KeepsOptionsInItsDocument: "test_no_secret_is_told",
    mutants.KeepsTheCatalogsPasswordInItsDocument: "test_no_secret_is_told",
    mutants.TellsSecretsInItsRepr: "test_no_secret_is_told",
    mutants.KeepsStateOutsideItsDocument: "test_it_survives_into_a_fresh_process",
    mutants.HasALevelWithoutAReason: "test_the_level_is_told_with_its_reason",
    mutants.IsWorseThanDeclared: "test_the_best_level_is_the_declared_one",
    mutants.NeverUndoes: "test_what_is_declared_can_be_undone",
    mutants.OffersDeletionsUndeclared: "test_rows_are_deleted_only_where_that_is_declared",
    mutants.MindsTheFormat: "test_a_provider_is_declared_or_refused",
    mutants.UndoesUnderALaterWriter: "test_a_publish_is_not_undone_under_a_later_writer",
    mutants.ClaimsToHaveUndone: "test_a_publish_is_undone_only_where_that_is_declared",
    mutants.UndoesAGroupHalf: "test_several_that_were_published_in_one_step_are_undone_in_one",
    mutants.UndoesOneByOne: "test_of_several_none_is_undone_under_a_later_writer_of_one",
    mutants.DeniesThatItCanBeUndone: "test_a_publish_is_undone_only_where_that_is_declared",
    mutants.PublishesHalfAgain: "test_what_was_undone_is_published_again_wholly_or_not_at_all",
    mutants.IgnoresTheScopeOfAnOverwrite: "test_an_overwrite_replaces_its_scope_and_no_more",
    mutants.StagesOnOffer: "test_an_offer_changes_nothing",
    mutants.OffersForStreams: "test_an_unbounded_query_gets_none",
    mutants.CreatesOverAnExistingTable: "test_an_existing_target_is_written_or_told",
    mutants.TellsAWrongErrorForAnExistingTable: "test_an_existing_target_is_written_or_told",
    mutants.FindsNoResidue: "test_what_the_dead_left_is_found_and_removed",
    mutants.FindsWhatTheLivingStage: "test_what_the_living_stage_is_no_residue",
    mutants.TakesBadDefinitions: "test_a_bad_definition_is_refused_before_anything",
    mutants.MangledNames: "test_an_odd_name_is_taken_exactly_or_refused",
    mutants.PublishesAGroupHalf: "test_several_are_published_in_one_step_only_where_that_is_declared",
    mutants.TellsItsPasswordInItsRepr: "test_its_repr_and_its_check_tell_no_secret",
}

SUITE = """
import pytest
from tests.kit import mutants
from tests.kit.test_chaos_conforms import TestChaosInAFile as _Suite
from twophase.catalog import Environment


class _MutantSuite(_Suite):
    made = participant = None

    def make(self, options):
        catalog = self.made("chaos", options, Environment())
        catalog.participant = self.participant or catalog.participant
        return catalog

    @pytest.fixture
    def catalog(self, options):
        return self.make(options)

    @pytest.fixture
    def fresh_catalog(self, options):
        return lambda: self.make(options)

    @pytest.fixture
    def fresh_process(self):
        return None
"""

CLASS = """

class Test{name}(_MutantSuite):
    made, participant = {made}, {participant}
"""

#: Breaks nothing: shows that the others fail for what they break.
CONTROL = mutants.Mutant


class Results:
    """A plugin that remembers how each test of the inner run ended."""

    def __init__(self) -> None:
        self.ended: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            ended = report.outcome if report.when == "call" else "broken"
            self.ended.setdefault(report.nodeid.split("::")[1], set()).add(ended)


def _class(mutant: type) -> str:
    name = mutant.__name__
    if issubclass(mutant, ChaosTable):
        return CLASS.format(name=name, made="mutants.Mutant", participant=f"mutants.{name}")
    return CLASS.format(name=name, made=f"mutants.{name}", participant="None")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """How the finders ended: one inner run for all mutants."""
    file = tmp_path_factory.mktemp("mutants") / "test_inner.py"
    file.write_text(SUITE + "".join(_class(mutant) for mutant in [*FINDERS, CONTROL]))
    finders = {f"{file}::Test{mutant.__name__}::{test}" for mutant, test in FINDERS.items()}
    control = {f"{file}::Test{CONTROL.__name__}::{test}" for test in FINDERS.values()}
    results = Results()
    with redirect_stdout(StringIO()):  # These failures are what we want.
        pytest.main(["-q", "-p", "no:cacheprovider", *sorted(finders | control)], plugins=[results])
    return results.ended


@pytest.mark.parametrize("mutant", FINDERS, ids=lambda mutant: mutant.__name__)
def test_the_suite_finds(mutant: type, ended: dict[str, set[str]]) -> None:
    found = ended[f"Test{mutant.__name__}"]
    assert "failed" in found, f"{FINDERS[mutant]} did not find {mutant.__name__}."
    assert "broken" not in found, "A fixture failed: that finds nothing."


def test_a_catalog_that_breaks_nothing_passes_the_same_tests(ended: dict[str, set[str]]) -> None:
    assert ended[f"Test{CONTROL.__name__}"] == {"passed"}


def test_every_mutant_is_looked_for() -> None:
    made = {
        thing
        for thing in vars(mutants).values()
        if isinstance(thing, type)
        and issubclass(thing, (ChaosTable, mutants.Mutant))
        and thing.__module__ == mutants.__name__
    }
    assert made - {CONTROL} == set(FINDERS)

"""The suite finds each broken catalog, by the test whose promise is broken."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import pytest

from tests.kit import alter_mutants, database_mutants, mutants, plugin_mutants
from twophase.testing._participant import ChaosTable

#: Which test must find which mutant.
FINDERS = {
    mutants.DropsTheTargetOnAbort: "test_a_loser_that_aborts_late_touches_nothing",
    mutants.DropsItsPublishedTableOnAbort: "test_abort_after_commit_keeps_what_is_published",
    mutants.RemovesAllStagingOnAbort: "test_a_loser_that_aborts_late_touches_nothing",
    mutants.LeavesItsStagingOnAbort: "test_abort_leaves_nothing",
    mutants.AbortsOnlyOnce: "test_abort_leaves_nothing",
    mutants.DropsBeforeTheCommit: "test_a_dropped_table_is_there_until_the_publish_and_gone_after_it",
    mutants.DropsWhatOthersHaveChanged: "test_a_table_that_others_have_changed_is_not_dropped",
    mutants.CreatesWhatOthersHaveChangedSinceTheDrop: (
        "test_rows_that_others_have_added_since_a_drop_are_not_lost_by_a_create"
    ),
    mutants.DropsOnAbort: "test_a_drop_that_is_rolled_back_leaves_the_table",
    mutants.DropsTheNextTableOfTheName: "test_a_dropped_table_is_there_until_the_publish_and_gone_after_it",
    mutants.CommitsOnlyOnce: "test_each_method_twice_is_as_once",
    mutants.CommitsAgain: "test_each_method_twice_is_as_once",
    mutants.IsVisibleBeforeCommit: "test_nothing_is_visible_before_commit",
    mutants.OverwritesWhatOthersMade: "test_a_table_made_by_another_writer_is_not_overwritten",
    mutants.AsksOnlyTheFirstStatement: "test_a_second_statement_replaces_no_rows_that_others_add_meanwhile",
    mutants.ReplacesOnInsert: "test_an_existing_target_is_written_or_refused",
    mutants.LosesAnEmptyResult: "test_an_empty_result_is_a_result",
    mutants.SaysAlwaysPublished: "test_the_outcome_is_true_in_every_state",
    mutants.SaysNeverPublished: "test_the_outcome_is_true_in_every_state",
    mutants.JudgesByTheNameOnly: "test_of_two_writers_one_wins_wholly",
    mutants.JudgesByTheLastStampOnly: "test_a_publish_is_not_denied_after_a_later_one",
    mutants.RemembersInMemoryOnly: "test_the_outcome_is_true_in_every_state",
    mutants.KeepsOptionsInItsDocument: "test_no_secret_is_shown",
    mutants.KeepsTheCatalogsPasswordInItsDocument: "test_no_secret_is_shown",
    mutants.TellsSecretsInItsRepr: "test_no_secret_is_shown",
    mutants.KeepsStateOutsideItsDocument: "test_it_survives_into_a_fresh_process",
    mutants.HasALevelWithoutAReason: "test_the_level_is_reported_with_its_reason",
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
    mutants.CreatesOverAnExistingTable: "test_an_existing_target_is_written_or_refused",
    mutants.TellsAWrongErrorForAnExistingTable: "test_an_existing_target_is_written_or_refused",
    mutants.FindsNoLeftover: "test_what_the_dead_left_is_found_and_removed",
    mutants.FindsWhatTheLivingStage: "test_what_the_living_stage_is_no_leftover",
    mutants.TakesBadDefinitions: "test_a_bad_definition_is_refused_before_anything",
    mutants.MangledNames: "test_an_odd_name_is_taken_exactly_or_refused",
    mutants.PublishesAGroupHalf: "test_several_are_published_in_one_step_only_where_that_is_declared",
    mutants.TellsItsPasswordInItsRepr: "test_its_repr_and_its_check_show_no_secret",
}

#: The same for those of a catalog whose ALTER TABLE is staged.
ALTER_FINDERS: dict[type, str] = {
    alter_mutants.AltersBeforeTheCommit: "test_an_altered_table_is_as_before_until_the_publish",
    alter_mutants.LosesTheRowsOfAnAlteredTable: "test_an_altered_table_is_as_before_until_the_publish",
    alter_mutants.AltersOnAbort: "test_an_alter_that_is_rolled_back_leaves_the_definition",
    alter_mutants.LeavesAnAlterStaged: "test_an_alter_that_is_rolled_back_leaves_the_definition",
    alter_mutants.ForgetsTheAlterBefore: "test_an_alter_builds_on_the_one_before_it",
    alter_mutants.PutsBackTheDefinitionThatItHasSeen: "test_of_two_alters_none_is_lost_in_silence",
    alter_mutants.ClaimsToHaveUndoneAnAlter: "test_a_published_alter_is_undone_where_the_catalog_says_so",
    alter_mutants.DropsWhatItHasAltered: "test_a_published_alter_is_undone_where_the_catalog_says_so",
    alter_mutants.AltersAMissingTable: "test_a_missing_table_is_not_altered",
}

#: The same for those of a catalog that stages databases.
DATABASE_FINDERS: dict[type, str] = {
    database_mutants.LosesWhatOthersHavePutIntoADatabase: "test_a_created_database_that_others_use_is_not_lost",
    database_mutants.KeepsADatabaseAfterARollback: "test_a_created_database_is_gone_after_a_rollback",
    database_mutants.NeverPublishesADatabase: "test_a_created_database_is_published_and_stays",
    database_mutants.DropsADatabaseByItsMark: "test_a_dropped_database_is_there_until_the_transaction_has_ended",
    database_mutants.KnowsADatabaseByItsName: "test_a_dropped_database_is_there_until_the_transaction_has_ended",
    database_mutants.KeepsTheMarkOfADrop: "test_a_drop_of_a_database_is_undone",
}

#: The same for those of the plugin, whose publish is interrupted and whose tasks run twice.
PLUGIN_FINDERS: dict[type, tuple[str, ...]] = {
    plugin_mutants.PublishesAgain: ("test_each_method_twice_is_as_once",),
    plugin_mutants.DropsWhatItPublished: ("test_abort_after_commit_keeps_what_is_published",),
    plugin_mutants.LoadsEveryFile: ("test_a_task_that_runs_again_counts_once",),
    plugin_mutants.RecordsInATransactionOfItsOwn: (
        "test_a_publish_whose_connection_is_cut_is_carried_through",
        "test_a_publish_whose_process_is_killed_is_carried_through_by_a_fresh_one",
    ),
}

MUTANTS = [*FINDERS, *ALTER_FINDERS, *DATABASE_FINDERS, *PLUGIN_FINDERS]

SUITE = """
import pytest
from tests.kit import alter_mutants, database_mutants, mutants
from tests.kit.plugin_mutants import open_mutant
from tests.kit.test_chaos_conforms import TestChaosInAFile as _Suite
from tests.kit.test_plugin_conforms import TestSqlitePlugin as _Plugin
from twophase.catalog import Environment
from twophase.testing import FreshProcess


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


class _PluginMutantSuite(_Plugin):
    moments = 100
    table = None

    @pytest.fixture
    def facts(self, tmp_path):
        return {"file": str(tmp_path / "tables.db"), "table": self.table}

    @pytest.fixture
    def catalog(self, facts):
        return open_mutant(**facts)

    @pytest.fixture
    def fresh_catalog(self, facts):
        return lambda: open_mutant(**facts)

    @pytest.fixture
    def fresh_process(self, facts):
        return FreshProcess("tests.kit.plugin_mutants:open_mutant", facts)
"""

CLASS = """

class Test{name}(_MutantSuite):
    made, participant = {made}, {participant}
"""

PLUGIN_CLASS = """

class Test{name}(_PluginMutantSuite):
    table = "{name}"
"""

#: They break nothing: they show that the others fail for what they break.
CONTROLS: dict[type, dict[type, str]] = {
    mutants.Mutant: FINDERS,
    alter_mutants.Altering: ALTER_FINDERS,
    database_mutants.StagingDatabases: DATABASE_FINDERS,
}


class Results:
    """A plugin that remembers how each test of the inner run ended."""

    def __init__(self) -> None:
        self.ended: dict[str, dict[str, set[str]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            ended = report.outcome if report.when == "call" else "broken"
            _, name, test = report.nodeid.split("::")
            self.ended.setdefault(name, {}).setdefault(test.partition("[")[0], set()).add(ended)


def _class(mutant: type) -> str:
    name = mutant.__name__
    if mutant in PLUGIN_FINDERS:
        return PLUGIN_CLASS.format(name=name)
    if issubclass(mutant, alter_mutants.AlteringTable):
        return CLASS.format(name=name, made="alter_mutants.Altering", participant=f"alter_mutants.{name}")
    if issubclass(mutant, alter_mutants.Altering):
        return CLASS.format(name=name, made=f"alter_mutants.{name}", participant="None")
    if issubclass(mutant, database_mutants.StagingDatabases):
        return CLASS.format(name=name, made=f"database_mutants.{name}", participant="None")
    if issubclass(mutant, ChaosTable):
        return CLASS.format(name=name, made="mutants.Mutant", participant=f"mutants.{name}")
    return CLASS.format(name=name, made=f"mutants.{name}", participant="None")


def _finders(mutant: type) -> tuple[str, ...]:
    return (
        PLUGIN_FINDERS[mutant] if mutant in PLUGIN_FINDERS else ((FINDERS | ALTER_FINDERS | DATABASE_FINDERS)[mutant],)
    )


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    """How the finders ended: one inner run for all mutants."""
    file = tmp_path_factory.mktemp("mutants") / "test_inner.py"
    file.write_text(SUITE + "".join(_class(mutant) for mutant in [*CONTROLS, *MUTANTS]))
    wanted = {f"{file}::Test{mutant.__name__}::{test}" for mutant in MUTANTS for test in _finders(mutant)}
    controls = [(made.__name__, test) for made, finders in CONTROLS.items() for test in finders.values()]
    control = {f"{file}::Test{name}::{test}" for name, test in controls}
    results = Results()
    with redirect_stdout(StringIO()):  # These failures are what we want.
        pytest.main(["-q", "-p", "no:cacheprovider", "--tb=no", *sorted(wanted | control)], plugins=[results])
    return results.ended


@pytest.mark.parametrize(
    ("mutant", "test"),
    [(mutant, test) for mutant in MUTANTS for test in _finders(mutant)],
    ids=lambda thing: "" if isinstance(thing, str) else thing.__name__,
)
def test_the_suite_finds(mutant: type, test: str, ended: dict[str, dict[str, set[str]]]) -> None:
    found = ended[f"Test{mutant.__name__}"][test]
    assert "failed" in found, f"{test} did not find {mutant.__name__}."
    assert "broken" not in found, "A fixture failed: that finds nothing."


@pytest.mark.parametrize("control", CONTROLS)
def test_a_catalog_that_breaks_nothing_passes_the_same_tests(
    control: type, ended: dict[str, dict[str, set[str]]]
) -> None:
    """The plugin as it is passes them in its own conformance suite."""
    assert set.union(*ended[f"Test{control.__name__}"].values()) == {"passed"}


def test_every_mutant_is_looked_for() -> None:
    made = {
        thing
        for thing in vars(mutants).values()
        if isinstance(thing, type)
        and issubclass(thing, (ChaosTable, mutants.Mutant))
        and thing.__module__ == mutants.__name__
    }
    assert made - set(CONTROLS) == set(FINDERS)
    assert set(alter_mutants.MUTANTS) == set(ALTER_FINDERS)
    assert set(database_mutants.MUTANTS) == set(DATABASE_FINDERS)
    bugs = {thing for thing in vars(plugin_mutants).values() if isinstance(thing, type)}
    assert {bug for bug in bugs if bug.__module__ == plugin_mutants.__name__} == set(PLUGIN_FINDERS)

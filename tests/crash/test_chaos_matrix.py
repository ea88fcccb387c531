"""The crash matrix over three chaos catalogs whose stores are files: no Spark, hundreds of deaths.

The first test dies at every step of every scenario, and loses the reply where a reply matters; the last ones try all
actions everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.matrix import ACTIONS, ERRORS, KILLS, Case, Crew, Report, main_actions, rest_of
from tests.crash.scenarios import CHAOS

#: Where the first test tries all actions.
THOROUGH = "create"
#: Ends in doubt whatever happens: tried on its own.
HOPELESS = "another writer comes and nobody can undo"
TWO_BLOCKS = [name for name, scenario in CHAOS.items() if scenario.rival]

#: Where a driver died; its recovery dies then at each of its own steps.
DEATHS = [
    Case("create", "core.write=exit_after"),
    Case("create", "core.publish=exit_after"),
    Case("two catalogs", "core.record_committing=exit_after"),
    Case("two catalogs", "core.publish=exit_after"),
    Case("one group", "core.publish=exit"),
    Case("one group", "core.finish=exit_after"),
    Case("another writer comes before the second publish", "core.publish=exit_after"),
    Case("another writer comes after a group", "core.publish=exit_after"),
]
#: Those whose recovery fails in every way.
FAILING_RECOVERIES = (DEATHS[0], DEATHS[2], DEATHS[4], DEATHS[7])

#: Where a publish was tried, and no store answers any more.
SILENCES = [
    Case("create", "core.publish=lost_reply,chaos.outcome=error"),
    Case("create", "core.publish=error,core.outcome=error"),
    Case("one group", "chaos.publish_group=lost_reply,chaos.outcome=error"),
    Case("two catalogs", "chaos.publish=lost_reply@1,chaos.outcome=error"),
    Case("two catalogs", "chaos.publish=error@2,chaos.outcome=error"),
]


#: Whose every kind of failure others have tried: three catalogs are as two, and take three times as long; whoever is
#: conflicted with takes the steps of the conflict at the first publish; a statement that fails inside a block or is
#: rolled back, and what is inserted into what the block has made, take those of two catalogs; other purposes those of
#: ``THOROUGH``. Two blocks fail as one does, once one pair has.
LIKE_OTHERS = {
    "replace",
    "insert",
    "overwrite",
    "drop then create",
    "rolled back to a savepoint",
    "three catalogs",
    "another writer comes before the second publish",
    "one statement fails inside",
    "create then insert",
}


@pytest.fixture(scope="module")
def crew(fast_directory: Path, report_of: Callable[[str], Report]) -> Iterator[Crew]:
    with Crew("chaos", fast_directory / "chaos", report_of("chaos")) as crew:
        yield crew


@pytest.mark.parametrize("scenario", [name for name in CHAOS if name != HOPELESS])
def test_after_any_failure_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    actions = (lambda _: ACTIONS) if scenario == THOROUGH else main_actions
    assert not crew.run(crew.planner.cases(scenario, actions))


@pytest.mark.parametrize("death", DEATHS, ids=str)
def test_a_recovery_that_dies_is_recovered_from(crew: Crew, death: Case) -> None:
    assert not crew.run(crew.planner.recovery_cases(death, ("exit_after",)))


@pytest.mark.parametrize("death", DEATHS, ids=str)
def test_two_recoveries_at_once_do_no_harm(crew: Crew, death: Case) -> None:
    assert not crew.run(Case(death.scenario, death.work, at_once=True) for _ in range(4))


@pytest.mark.promise("in-doubt", "what no store can tell is `IN_DOUBT` until one can, and nothing is removed")
@pytest.mark.parametrize("silence", SILENCES, ids=str)
def test_what_no_store_answers_is_in_doubt_until_one_does(crew: Crew, silence: Case) -> None:
    told = crew.planner.tell(silence)
    assert told["told"] == "in doubt"
    assert not crew.run([silence, Case(silence.scenario, silence.work, "chaos.outcome=error")])


def test_what_cannot_be_undone_stays_in_doubt_and_is_named(crew: Crew) -> None:
    told = crew.planner.tell(Case(HOPELESS, ""))
    assert told["told"] == "in doubt"
    assert "three.default.t" in told["error"]
    looked = crew.planner.look(HOPELESS)
    assert [row[1] for row in looked["timeline"]] == ["IN_DOUBT"]
    assert looked["reservations"], "A table in doubt must stay reserved."
    assert looked["tables"] == {"three.t": [[3, "b"], [4, "c"]], "tied.t": [[1, "a"], [2, "b"]]}


@pytest.mark.parametrize("scenario", TWO_BLOCKS)
def test_of_two_blocks_both_are_published_or_the_first_one_where_they_conflict(crew: Crew, scenario: str) -> None:
    told = crew.planner.tell(Case(scenario, ""))
    assert (told["rival"]["told"], told["told"]) == ("success", "failed" if CHAOS[scenario].conflicts else "success")
    assert CHAOS[scenario].conflicts == ("WriteConflictError" in told.get("error", ""))


def test_deaths_are_one_only_where_they_leave_the_same(crew: Crew) -> None:
    deaths = {case.work for case in crew.planner.cases(THOROUGH, lambda _: KILLS)}
    assert {"chaos.publish=exit_after@1", "core.record_completed=exit_after@1"} <= deaths
    # Nothing happens between the end of the store's step and the end of the coordinator's around it.
    assert "core.publish=exit_after@1" not in deaths


#: The steps of savepoints, which are no transactions: they fail in ``hive/test_named_savepoints.py``.
OF_SAVEPOINTS = {"core.keep", "core.forget_kept", "core.record_savepoint"}
#: Of a publish that has shown a part and cannot be undone: its store has none. See ``core/test_undo_refused.py``.
OF_A_REFUSED_UNDO = {"core.suspend"}
#: Those of changes outside transactions: they fail in ``core/test_isolation.py``.
OUTSIDE = {"core.record_immediate", "core.record_immediate_end"}


def test_every_failpoint_is_reached(crew: Crew) -> None:
    # The last ones reach most.
    elsewhere = OF_SAVEPOINTS | OF_A_REFUSED_UNDO | OUTSIDE
    assert not crew.unreached(("core.", "chaos."), reversed(CHAOS), elsewhere=elsewhere)


def test_a_run_without_a_case_fails(crew: Crew) -> None:
    with pytest.raises(AssertionError, match="nothing was tried"):
        crew.run(crew.planner.cases(THOROUGH, lambda step: ("exit",) if step == "core.pubish" else ()))


def test_a_case_whose_failure_never_comes_is_a_violation(crew: Crew) -> None:
    for never in ("core.publish=exit@9", "core.publish=error@9", "core.compensate=exit"):
        assert "was not reached" in crew.run([Case(THOROUGH, never)])[0]
    assert "was not reached" in crew.run([Case(THOROUGH, "core.publish=exit_after", "core.begin=exit")])[0]
    crew.report.violations.clear()


def test_a_mistyped_failpoint_is_refused(crew: Crew) -> None:
    with pytest.raises(RuntimeError, match=r"No failpoint 'core\.pubish'"):
        crew.run([Case(THOROUGH, "core.pubish=exit")])


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if name in LIKE_OTHERS or name in TWO_BLOCKS[1:] else ())
        for name in CHAOS
        if name not in (THOROUGH, HOPELESS)
    ],
)
def test_after_any_failure_of_any_kind_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    wanted = rest_of(lambda _: (*ERRORS, *KILLS), main_actions)
    assert not crew.run(crew.planner.cases(scenario, wanted, main_actions))


@pytest.mark.exhaustive
@pytest.mark.parametrize("scenario", [name for name in CHAOS if name not in (THOROUGH, HOPELESS)])
def test_after_any_other_error_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    assert not crew.run(crew.planner.cases(scenario, lambda _: ("error_after",)))


@pytest.mark.parametrize(
    "death",
    [pytest.param(death, marks=() if death in FAILING_RECOVERIES else pytest.mark.exhaustive) for death in DEATHS],
    ids=str,
)
def test_a_recovery_that_fails_in_any_way_is_recovered_from(crew: Crew, death: Case) -> None:
    assert not crew.run(crew.planner.recovery_cases(death, (*ERRORS, "exit")))

"""The crash matrix over the Hive catalog with both recipes: each metastore call, each change of a file, each step.

Here the metastore is a file and Arrow writes the rows as Spark would, so that a death costs milliseconds; a smaller
number of real Spark drivers is killed in ``test_spark_deaths.py``. Rows are staged the same way whatever becomes of
them: what fails while they are written is tried in all ways in the scenarios of ``THOROUGH``, and elsewhere as a death.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.matrix import (
    ACTIONS,
    COORDINATOR_ONLY,
    KILLS,
    Actions,
    Case,
    Crew,
    first_actions,
    first_of_any_kind,
    main_actions,
    other_actions,
    rest_of,
)
from tests.crash.scenarios import HIVE, HIVE_ALTERS, HIVE_DATABASES, HIVE_POINTER, HIVE_RENAMES

RECIPES = ("pointer", "rename")

#: Only for SerDe tables, which Spark's own insert writes: real drivers die there in ``test_spark_deaths.py``. And for
#: HiveServer2 and metastore servers: in tests/hive, the withdrawal and the fence as errors in ``test_late_calls.py``.
#: And for object stores, in ``test_storage_matrix.py``.
ELSEWHERE = (
    {f"hive.{recipe}.{step}" for recipe in RECIPES for step in ("hidden_table", "fence")}
    | {f"hive.pointer.{step}" for step in ("own", "back_up_name", "quarantine", "place")}
    | {"hive.append.hidden_table", "hive.append.fence", "hive.append.back_up_file"}
)

#: Where the first test dies at every step, and the one of any kind of failure fails in every way; elsewhere the first
#: one dies in the publish, the other at every step, and errors are left to ``make test-exhaustive``.
THOROUGH = {
    "pointer": {
        "create",
        "create partitioned",
        "replace",
        "replace foreign",
        "replace partitioned with other columns",
        "insert",
        "insert several files",
        "insert a directory",
        "insert partitioned",
        "overwrite dynamic partitions",
        "two tables",
        "another writer comes after partitions",
    },
    "rename": {
        "create partitioned",
        "replace",
        "replace partitioned",
        "insert partitioned",
        "overwrite dynamic partitions",
        "another writer comes after partitions",
        # It comes before the first publish here, which is that of the other table: no death is in a publish.
        "another writer comes before the second publish",
    },
}

#: The thorough scenarios whose errors are left to ``make test-exhaustive``, too: others of them take the same steps.
LIKE_OTHERS = {
    "pointer": {
        "create",
        "replace",
        "replace foreign",
        "two tables",
        "insert",
        "insert several files",
        "create partitioned",
        "overwrite dynamic partitions",
    },
    "rename": {"create partitioned", "replace", "insert partitioned", "another writer comes before the second publish"},
}

#: Where an ALTER TABLE is published by a call of its own, and that is undone; elsewhere it comes with rows.
ALTERED_ALONE = {"alter", "another writer comes after an alter"}

#: The renames that are tried first: in a cycle, which takes each step of a single one, too, and after a drop, which is
#: rolled back alone.
FIRST_RENAMES = ("exchange names", "drop then rename")

#: The steps that write rows, where nothing is visible yet.
WRITING = {"core.write", "hive.pointer.write", "hive.rename.write", "rows.file", "rows.success"}

DEATHS = [
    Case("create partitioned", "core.publish=exit_after"),
    Case("replace partitioned", "core.publish=exit_after"),
    Case("replace partitioned with other columns", "core.publish=exit_after"),
    Case("overwrite dynamic partitions", "core.write=exit_after"),
    Case("insert external partitioned", "core.publish=exit_after"),
    Case("two tables", "core.record_committing=exit_after"),
]


@pytest.fixture(params=RECIPES)
def crew(request: pytest.FixtureRequest, crew_of: Callable[[str], Crew]) -> Crew:
    return crew_of(f"hive-{request.param}")


def is_thorough(crew: Crew, scenario: str) -> bool:
    return scenario in THOROUGH[crew.world.removeprefix("hive-")]


#: What takes by the recipe ``pointer`` the steps of others, thorough ones or of an external table.
REPEATING = {
    "create external",
    "create empty partitioned",
    "replace with other columns",
    "insert foreign",
    "insert external",
    "insert foreign partitioned",
    "insert new partition",
    "overwrite",
    "overwrite static partition",
    "overwrite foreign dynamic",
    "overwrite external dynamic",
    "create then insert",
    "insert then drop",
    "drop partitioned",
    "drop foreign",
}


def _repeats(recipe: str, scenario: str) -> bool:
    """Whether a scenario takes by this recipe the steps of others, and its publish is tried anyhow."""
    return scenario in REPEATING if recipe == "pointer" else scenario not in THOROUGH[recipe]


def first_at(crew: Crew, scenario: str) -> Actions:
    return first_actions(thorough=is_thorough(crew, scenario))


def others_at(crew: Crew, scenario: str) -> Actions:
    every = other_actions(first_at(crew, scenario))
    if is_thorough(crew, scenario):
        return every
    return lambda step: tuple(a for a in every(step) if a in KILLS or step not in WRITING)


def any_kind_at(crew: Crew, scenario: str) -> Actions:
    recipe = crew.world.removeprefix("hive-")
    return first_of_any_kind(others_at(crew, scenario), errors=scenario in THOROUGH[recipe] - LIKE_OTHERS[recipe])


@pytest.mark.promise(
    "killed-driver",
    "a session table is wholly old or wholly new after a failure at any step, with any recipe",
)
@pytest.mark.parametrize("scenario", HIVE)
def test_after_any_failure_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    assert not crew.run(crew.planner.cases(scenario, first_at(crew, scenario)))


@pytest.mark.parametrize("scenario", HIVE_POINTER)
def test_after_any_death_of_what_only_pointer_can_everything_is_old_or_new(
    crew_of: Callable[[str], Crew], scenario: str
) -> None:
    crew = crew_of("hive-pointer")
    assert not crew.run(crew.planner.cases(scenario, lambda step: KILLS))


#: Publishes by renames of files that fail between two of them, by their scenario.
IN_STEPS = {
    "insert files that bring a column": "hive.append.file_in=error@2",
    "overwrite external": "hive.rename.file_in=error@1",
}


@pytest.mark.promise(
    "in-doubt", "a publish that fails between two renames, and whose undo is refused, is undone by a recovery"
)
@pytest.mark.parametrize("scenario", IN_STEPS)
def test_a_publish_whose_undo_is_refused_is_undone_by_a_recovery(crew_of: Callable[[str], Crew], scenario: str) -> None:
    crew = crew_of("hive-pointer")
    refused = Case(scenario, f"{IN_STEPS[scenario]},core.abort=error")
    told = crew.planner.tell(refused)
    assert (told["told"], "in part" in told["error"]) == ("in doubt", True)
    assert not crew.run([refused, Case(scenario, refused.work, "core.abort=error")])


@pytest.mark.promise("ddl-in-blocks", "after a failure at any step of a block that alters a table, all is old or new")
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(name, marks=() if name in ALTERED_ALONE else pytest.mark.exhaustive) for name in HIVE_ALTERS],
)
def test_after_any_failure_of_an_alter_everything_is_old_or_new(crew_of: Callable[[str], Crew], scenario: str) -> None:
    crew = crew_of("hive-pointer")
    assert not crew.run(crew.planner.cases(scenario, main_actions))


@pytest.mark.promise("ddl-in-blocks", "after a failure at any step of a block that renames a table, all is old or new")
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(name, marks=() if name in FIRST_RENAMES else pytest.mark.exhaustive) for name in HIVE_RENAMES],
)
def test_after_any_failure_of_a_rename_everything_is_old_or_new(crew_of: Callable[[str], Crew], scenario: str) -> None:
    crew = crew_of("hive-pointer")
    assert not crew.run(crew.planner.cases(scenario, main_actions))


@pytest.mark.promise(
    "ddl-in-blocks", "after a failure around a database that a block creates or drops, all is old or new", detail=True
)
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(name, marks=pytest.mark.exhaustive if "another writer" in name else ()) for name in HIVE_DATABASES],
)
def test_after_any_failure_around_a_database_everything_is_old_or_new(
    crew_of: Callable[[str], Crew], scenario: str
) -> None:
    crew = crew_of("hive-pointer")
    tried_elsewhere = COORDINATOR_ONLY | WRITING
    assert not crew.run(crew.planner.cases(scenario, lambda step: KILLS if step in tried_elsewhere else ACTIONS))


@pytest.mark.promise("in-doubt", "a database that its store refuses to drop at the end is dropped by a recovery")
def test_a_database_whose_drop_is_refused_is_dropped_by_a_recovery(crew_of: Callable[[str], Crew]) -> None:
    crew = crew_of("hive-pointer")
    refused = Case("drop a database", "metastore.drop_database=error")
    told = crew.planner.tell(refused)
    assert (told["told"], "Dropped, but still there: hive.a" in told["error"]) == ("in doubt", True)
    assert not crew.run([refused, Case(refused.scenario, refused.work, refused.work)])


@pytest.mark.promise("restore", "after a death at any step of an undo, all of its tables are old or new")
def test_after_any_death_of_an_undo_everything_is_old_or_new(crew_of: Callable[[str], Crew]) -> None:
    crew = crew_of("hive-undo")
    assert not crew.run(crew.planner.cases("undo", lambda step: KILLS))


@pytest.mark.exhaustive
@pytest.mark.parametrize("scenario", HIVE_ALTERS)
def test_after_an_alter_that_fails_in_any_way_everything_is_old_or_new(
    crew_of: Callable[[str], Crew], scenario: str
) -> None:
    """What the test before leaves out."""
    crew = crew_of("hive-pointer")
    assert not crew.run(crew.planner.cases(scenario, other_actions(main_actions)))


@pytest.mark.promise("killed-driver", "a recovery that is killed is recovered from")
@pytest.mark.parametrize("death", DEATHS, ids=str)
def test_a_recovery_that_dies_is_recovered_from(crew: Crew, death: Case) -> None:
    assert not crew.run(crew.planner.recovery_cases(death, ("exit_after",)))


@pytest.mark.promise("killed-driver", "two concurrent recoveries are safe")
@pytest.mark.parametrize("death", DEATHS, ids=str)
def test_two_recoveries_at_once_do_no_harm(crew: Crew, death: Case) -> None:
    assert not crew.run(Case(death.scenario, death.work, at_once=True) for _ in range(3))


def test_every_failpoint_of_the_recipe_is_reached(crew: Crew) -> None:
    if crew.world == "hive-pointer":
        missing = crew.unreached(("hive.pointer.", "hive.append."), [*HIVE_POINTER, *HIVE], elsewhere=ELSEWHERE)
    else:
        missing = crew.unreached("hive.rename.", HIVE, elsewhere=ELSEWHERE)
    assert not missing


@pytest.mark.parametrize(
    ("crew", "scenario"),
    [
        pytest.param(recipe, scenario, marks=pytest.mark.exhaustive if _repeats(recipe, scenario) else ())
        for recipe in RECIPES
        for scenario in HIVE
    ],
    indirect=["crew"],
)
def test_after_any_failure_of_any_kind_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    """An error before and after each step in one thorough scenario of each kind, every death in the others."""
    assert not crew.run(crew.planner.cases(scenario, any_kind_at(crew, scenario), first_at(crew, scenario)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("scenario", HIVE)
def test_after_any_error_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    """What the test before leaves out."""
    assert not crew.run(crew.planner.cases(scenario, rest_of(others_at(crew, scenario), any_kind_at(crew, scenario))))


@pytest.mark.parametrize(
    "death", [*DEATHS[:2], *(pytest.param(death, marks=pytest.mark.exhaustive) for death in DEATHS[2:])], ids=str
)
def test_a_recovery_that_fails_in_any_way_is_recovered_from(crew: Crew, death: Case) -> None:
    assert not crew.run(crew.planner.recovery_cases(death, ("error", "lost_reply", "exit")))

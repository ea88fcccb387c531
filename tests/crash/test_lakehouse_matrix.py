"""The crash matrix over the lakehouse catalog: its Iceberg catalog in a SQLite file, on a PostgreSQL server, in a Hive
Metastore, and behind a REST server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.crash.lakehouse_worlds import LakehouseWorld
from tests.crash.matrix import (
    ACTIONS,
    COORDINATOR_ONLY,
    Actions,
    Case,
    Crew,
    first_of,
    first_of_any_kind,
    main_actions,
    other_actions,
    rest_of,
    with_rest,
)
from tests.crash.scenarios import (
    LAKEHOUSE,
    LAKEHOUSE_ALTERS,
    LAKEHOUSE_DATABASES,
    LAKEHOUSE_DROPS,
    LAKEHOUSE_RENAMES,
    LAKEHOUSE_SAVEPOINTS,
    TWO_LAKES,
)
from tests.crash.worlds import world_of
from tests.lakehouse.readers import Readers
from tests.lakehouse.rest_server import rest_catalog

DATABASES = ("sqlite", "postgresql", "hive_metastore", "rest")

#: What nothing publishes in one step is undone.
OTHER_WRITER = "another writer comes before the publish of two"

#: What several catalogs publish is undone, of one catalog in one step.
UNDONE = "another writer comes after three tables"
FROM_THE_DECISION = {
    "core.record_committing",
    "core.publish",
    "core.outcome",
    "core.save_participant",
    "core.compensate",
    "core.abort",
    "core.record_rolled_back",
    "core.record_completed",
    "core.record_finished",
    "lakehouse.publish",
    "lakehouse.write_metadata",
    "lakehouse.swap",
    "lakehouse.outcome",
    "lakehouse.compensate",
    "lakehouse.mark_aborted",
    "lakehouse.remove_files",
    "lakehouse.forget",
    "lakehouse.clean_up",
}

#: Only plain DDL takes the first step, and savepoints the others, in ``lakehouse/test_named_savepoints.py``.
ELSEWHERE = {"lakehouse.alter", "lakehouse.tag", "lakehouse.untag"}

#: The test of any kind of failure tries every way in the thorough scenarios on SQLite, and in this one on a server,
#: which publishes several in one step. ``make test-exhaustive`` tries everything everywhere.
WHOLE_ON_SERVER = ("postgresql", "two tables")

#: Where the first test tries every step; in the other scenarios it dies in the publish only.
THOROUGH = {
    "sqlite": {"create", "overwrite partitions", "create then insert"},
    "postgresql": {"create"},
    "hive_metastore": set(),
    "rest": {"create"},
}

#: The scenarios of SQLite in which the errors, which are most of the cases, are left to ``make test-exhaustive``:
#: others take the same steps.
WITHOUT_ERRORS = [name for name in LAKEHOUSE if name not in THOROUGH["sqlite"] - {"create"}]

#: A case takes up to a second on a server: there are those scenarios that differ in what they publish.
SERVERS = ("postgresql", "hive_metastore", "rest")
ON_SERVERS = ("insert", "create", "create then insert", "replace", "overwrite partitions", "two tables", OTHER_WRITER)
ALL_SCENARIOS = [
    *(("sqlite", name) for name in LAKEHOUSE),
    *(
        pytest.param(server, name, marks=[] if name in ON_SERVERS else pytest.mark.exhaustive)
        for server in SERVERS
        for name in LAKEHOUSE
    ),
]

DEATHS = [
    Case("create", "core.publish=exit_after"),
    Case("replace", "core.publish=exit"),
    Case("replace", "core.publish=exit_after"),
    Case("insert", "core.publish=exit_after"),
    Case("insert", "lakehouse.swap=exit"),
    Case("overwrite partitions", "lakehouse.swap=exit_after"),
    Case("two tables", "core.record_committing=exit_after"),
    Case("create and insert", "core.publish=exit_after"),
]
#: Those whose recovery fails in every way, and the one that is tried on the servers, too.
FIRST_DEATHS = (DEATHS[0], DEATHS[5], DEATHS[6])
ALL_DEATHS = [
    *(("sqlite", death) for death in DEATHS),
    *((server, FIRST_DEATHS[-1]) for server in SERVERS),
]


@pytest.fixture(scope="module")
def rest(fast_directory: Path) -> Iterator[str]:
    """A REST catalog and its file for each of the two workers of a crew, as one cannot show tables of a world that is
    gone.
    """
    homes = [fast_directory / name for name in ("rest0", "rest1")]
    with rest_catalog(homes[0]) as one, rest_catalog(homes[1]) as other:
        yield f"{one} {homes[0]}/rest.db {other} {homes[1]}/rest.db"


@pytest.fixture(params=DATABASES)
def crew(request: pytest.FixtureRequest, crew_of: Callable[[str], Crew]) -> Crew:
    if request.param not in ("sqlite", "one_file", "two_lakes"):
        # The children of the matrix find the server by it.
        kind = request.param.removeprefix("two_lakes_on_")
        server = request.getfixturevalue(kind)
        os.environ[f"TWOPHASE_CRASH_{kind.upper()}"] = server if kind == "rest" else server.url
    return crew_of(f"lakehouse-{request.param}")


@pytest.fixture(autouse=True)
def the_last_worlds_are_read_alike(
    request: pytest.FixtureRequest, fast_directory: Path, readers: Readers
) -> Iterator[None]:
    """Each case reads its tables by PyIceberg and iceberg-rust. Spark, for which a case would take twice as long, reads
    those of the last case of each worker.
    """
    crew = request.getfixturevalue("crew") if "crew" in request.fixturenames else None
    yield
    directories = sorted((fast_directory / crew.world).glob("*/world")) if crew else []
    assert directories or not crew
    for directory in directories:
        world = world_of(crew.world)(directory)
        assert isinstance(world, LakehouseWorld)
        readers.assert_alike(world.lake)
        world.close()


def first_at(crew: Crew, scenario: str) -> Actions:
    return first_of(scenario, THOROUGH[crew.world.removeprefix("lakehouse-")])


def any_kind_at(crew: Crew, scenario: str) -> Actions:
    has_errors = crew.world != "lakehouse-sqlite" or scenario not in WITHOUT_ERRORS
    return first_of_any_kind(other_actions(first_at(crew, scenario)), errors=has_errors)


@pytest.mark.promise(
    "killed-driver", "an Iceberg table is wholly old or wholly new after a failure at any step; no file is left"
)
@pytest.mark.parametrize(("crew", "scenario"), ALL_SCENARIOS, indirect=["crew"])
def test_after_any_failure_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    assert not crew.run(crew.planner.cases(scenario, first_at(crew, scenario)))


@pytest.mark.promise("ddl-in-blocks", "after a failure at any step of a block that drops a table, all is old or new")
@pytest.mark.parametrize(
    ("crew", "scenario"),
    with_rest(
        ("sqlite", "postgresql"),
        LAKEHOUSE_DROPS,
        lambda database, name: database == "sqlite" or name.startswith(OTHER_WRITER),
    ),
    indirect=["crew"],
)
def test_after_any_failure_of_a_drop_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    actions = main_actions if crew.world == "lakehouse-sqlite" else first_at(crew, scenario)
    assert not crew.run(crew.planner.cases(scenario, actions))


@pytest.mark.promise(
    "ddl-in-blocks", "after a failure at any step of a block that alters a table, all is old or new", detail=True
)
@pytest.mark.parametrize(
    ("crew", "scenario"),
    [
        *(("sqlite", name) for name in LAKEHOUSE_ALTERS),
        *(
            pytest.param(server, name, marks=[] if name == "create then alter" else pytest.mark.exhaustive)
            for server in SERVERS
            for name in LAKEHOUSE_ALTERS
        ),
    ],
    indirect=["crew"],
)
def test_after_any_failure_of_an_alter_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    actions = main_actions if crew.world == "lakehouse-sqlite" else first_at(crew, scenario)
    assert not crew.run(crew.planner.cases(scenario, actions))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("crew", "scenario"),
    [(database, name) for database in DATABASES for name in LAKEHOUSE_SAVEPOINTS],
    indirect=["crew"],
)
def test_after_any_failure_of_a_block_with_a_savepoint_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    actions = main_actions if crew.world == "lakehouse-sqlite" else first_at(crew, scenario)
    assert not crew.run(crew.planner.cases(scenario, actions))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("crew", "scenario"), [("sqlite", name) for name in LAKEHOUSE_RENAMES], indirect=["crew"])
def test_after_any_failure_of_a_rename_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    assert not crew.run(crew.planner.cases(scenario, main_actions))


@pytest.mark.promise(
    "ddl-in-blocks", "after a failure around a database that a block creates or drops, all is old or new", detail=True
)
@pytest.mark.parametrize(
    ("crew", "scenario"),
    [
        pytest.param(
            database,
            name,
            marks=() if (database, name) == ("sqlite", "drop a database") else pytest.mark.exhaustive,
        )
        for database in ("sqlite", "postgresql")
        for name in LAKEHOUSE_DATABASES
    ],
    indirect=["crew"],
)
def test_after_any_failure_around_a_database_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    wanted = crew.planner.cases(scenario, lambda step: () if step in COORDINATOR_ONLY else main_actions(step))
    assert not crew.run(wanted)


@pytest.mark.promise("several-catalogs", "after any failure of two catalogs both are old or new")
@pytest.mark.parametrize(
    ("crew", "scenario"),
    [
        *(("two_lakes", name) for name in TWO_LAKES),
        *(pytest.param("two_lakes_on_postgresql", name, marks=pytest.mark.exhaustive) for name in TWO_LAKES),
    ],
    indirect=["crew"],
)
def test_after_any_failure_of_two_catalogs_both_are_old_or_new(crew: Crew, scenario: str) -> None:
    """Every step from the decision on."""
    assert not crew.run(
        crew.planner.cases(scenario, lambda step: main_actions(step) if step in FROM_THE_DECISION else ())
    )


@pytest.mark.parametrize("crew", ["two_lakes"], indirect=True)
@pytest.mark.parametrize(
    "died",
    [
        "core.compensate=exit",
        pytest.param("lakehouse.compensate=exit_after", marks=pytest.mark.exhaustive),
        pytest.param("core.publish=exit@2", marks=pytest.mark.exhaustive),
    ],
)
def test_a_recovery_that_dies_while_it_undoes_is_recovered_from(crew: Crew, died: str) -> None:
    assert not crew.run(crew.planner.recovery_cases(Case(UNDONE, died), ("exit_after", "lost_reply")))


@pytest.mark.parametrize(("crew", "death"), ALL_DEATHS, indirect=["crew"], ids=str)
def test_a_recovery_that_dies_is_recovered_from(crew: Crew, death: Case) -> None:
    assert not crew.run(crew.planner.recovery_cases(death, ("exit_after",)))


@pytest.mark.parametrize(("crew", "death"), ALL_DEATHS, indirect=["crew"], ids=str)
def test_two_recoveries_at_once_do_no_harm(crew: Crew, death: Case) -> None:
    assert not crew.run(Case(death.scenario, death.work, at_once=True) for _ in range(2))


def test_every_failpoint_of_the_catalog_is_reached(crew_of: Callable[[str], Crew]) -> None:
    undone = "lakehouse.compensate"
    assert undone in crew_of("lakehouse-two_lakes").planner.reached(UNDONE, "")
    assert not crew_of("lakehouse-sqlite").unreached(
        "lakehouse.", LAKEHOUSE | LAKEHOUSE_DROPS, elsewhere={*ELSEWHERE, undone}
    )


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("crew", "scenario"),
    with_rest(DATABASES, LAKEHOUSE, lambda database, name: database == "sqlite" or (database, name) == WHOLE_ON_SERVER),
    indirect=["crew"],
)
def test_after_any_failure_of_any_kind_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    """An error before and after each step; of SQLite's other scenarios every death."""
    assert not crew.run(crew.planner.cases(scenario, any_kind_at(crew, scenario), first_at(crew, scenario)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("crew", "scenario"), list(product(DATABASES, LAKEHOUSE)), indirect=["crew"])
def test_after_any_error_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    """What the test before leaves out."""
    assert not crew.run(
        crew.planner.cases(scenario, rest_of(other_actions(first_at(crew, scenario)), any_kind_at(crew, scenario)))
    )


@pytest.mark.parametrize(
    ("crew", "death"),
    with_rest(DATABASES, DEATHS, lambda database, death: database == "sqlite" and death in FIRST_DEATHS),
    ids=str,
    indirect=["crew"],
)
def test_a_recovery_that_fails_in_any_way_is_recovered_from(crew: Crew, death: Case) -> None:
    assert not crew.run(crew.planner.recovery_cases(death, ("error", "lost_reply", "exit")))


@pytest.mark.parametrize(
    ("crew", "scenario"), [("one_file", name) for name in ("create", "insert", "two tables")], indirect=["crew"]
)
def test_after_any_failure_with_the_timeline_in_the_same_file_everything_is_old_or_new(
    crew: Crew, scenario: str
) -> None:
    """What is published is completed: no recovery may find the one without the other."""
    steps = {"core.publish", "core.outcome", "core.record_committing", "core.record_completed", "core.finish"}
    published = {"lakehouse.publish", "lakehouse.write_metadata", "lakehouse.swap"}
    assert not crew.run(crew.planner.cases(scenario, lambda step: ACTIONS if step in steps | published else ()))

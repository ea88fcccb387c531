"""The crash matrix over the JDBC catalog: SQLite in a file, PostgreSQL and MariaDB servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.crash.matrix import (
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
    JDBC,
    JDBC_ALTERS,
    JDBC_BRINGING,
    JDBC_DATABASES,
    JDBC_DROPS,
    JDBC_RENAMES,
    JDBC_RENAMES_WITH_ROWS,
    JDBC_SAVEPOINTS,
)
from tests.crash.worlds import variable
from tests.jdbc.conftest import make_place

DATABASES = ("sqlite", "postgresql", "mariadb")

#: Those of a publish in steps, for databases that are known by their SQLAlchemy dialects only.
IN_STEPS = {"jdbc.mark", "jdbc.back_up", "jdbc.move_in", "jdbc.move_back", "jdbc.unmark"}

WIDER = "replace with other columns"
BRINGS_A_COLUMN = "insert that brings a column"

#: Steps that only some databases take: what MariaDB moves aside, and what others drop inside the publish.
ELSEWHERE = {
    "sqlite": {"jdbc.record", "jdbc.drop_backup", "jdbc.drop_done", "jdbc.alter_copy", *IN_STEPS},
    "postgresql": {"jdbc.record", "jdbc.drop_backup", "jdbc.drop_done", "jdbc.alter_copy", *IN_STEPS},
    "mariadb": {"jdbc.try_alter", *IN_STEPS},
}

#: Where the first test tries every step; in the other scenarios it dies in the publish only. The one
#: of any kind of failure tries every way to fail at every step: in these on SQLite, and in one on MariaDB, whose
#: publish is no transaction. The rest of the servers takes a quarter of an hour, and is a command of its own
#: (``make test-exhaustive``).
THOROUGH = {
    "sqlite": {"create", WIDER, "insert", "two tables", "another writer comes before the publish of two"},
    "postgresql": {"create"},
    "mariadb": {"replace"},
}
WHOLE_ON_SERVER = ("mariadb", "two tables")

#: A case takes up to a second on a server: there are those scenarios that differ in what they publish.
ON_SERVERS = {
    "create",
    "insert",
    "replace",
    "overwrite",
    "two tables",
    "drop",
    "drop and create",
    "another writer comes before the publish",
    "another writer comes before the publish of two",
}


def on_servers_some(scenarios: Iterable[str]) -> list[Any]:
    """Each scenario on SQLite, some on the servers; the others are left to ``make test-exhaustive``."""
    return with_rest(DATABASES, scenarios, lambda database, name: database == "sqlite" or name in ON_SERVERS)


#: The scenarios of SQLite in which the errors, which are most of the cases, are left to ``make test-exhaustive``:
#: others take the same steps.
WITHOUT_ERRORS = [name for name in JDBC if name not in THOROUGH["sqlite"] - {"create", "insert"}]

DEATHS = [
    Case("create", "core.publish=exit_after"),
    Case("replace", "core.publish=exit"),
    Case("replace", "core.publish=exit_after"),
    Case("insert", "core.publish=exit_after"),
    Case("two tables", "core.record_committing=exit_after"),
    Case("create and insert", "core.publish=exit_after"),
]

#: The other scenarios of renames are a command of their own.
FIRST_RENAMES = ("sqlite", "exchange names")

DDL_DEATHS = {
    "mariadb": [
        Case("exchange names", "core.publish=exit_after@1"),
        Case("drop then rename", "core.publish=lost_reply@1"),
    ],
    "mariadb-databases": [
        Case("create a database", "core.publish=exit_after@2"),
        Case("drop a database", "core.publish=exit_after@1"),
        Case("drop a database", "core.finish=exit_after@1"),
    ],
}

#: Those whose recovery fails in every way.
FAILING_RECOVERIES = (("sqlite", DEATHS[4]), ("sqlite", DEATHS[5]), ("mariadb", DEATHS[4]))
#: On the servers recoveries of one death die.
ALL_DEATHS = with_rest(DATABASES, DEATHS, lambda database, death: database == "sqlite" or death is DEATHS[4])


@pytest.fixture(params=DATABASES)
def crew(request: pytest.FixtureRequest, fast_directory: Path, crew_of: Callable[[str], Crew]) -> Crew:
    kind = request.param.removesuffix("-databases")
    if kind != "sqlite":
        os.environ[variable(kind)] = make_place(kind, request, fast_directory).url
    return crew_of(f"jdbc-{request.param}")


def first_at(crew: Crew, scenario: str) -> Actions:
    return first_of(scenario, THOROUGH.get(crew.world.removeprefix("jdbc-"), ()))


def any_kind_at(crew: Crew, scenario: str) -> Actions:
    has_errors = crew.world != "jdbc-sqlite" or scenario not in WITHOUT_ERRORS
    return first_of_any_kind(other_actions(first_at(crew, scenario)), errors=has_errors)


@pytest.mark.promise("killed-driver", "a table of a database is wholly old or wholly new after a failure at any step")
@pytest.mark.parametrize(("crew", "scenario"), on_servers_some(JDBC), indirect=["crew"])
def test_after_any_failure_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    assert not crew.run(crew.planner.cases(scenario, first_at(crew, scenario)))


@pytest.mark.promise("ddl-in-blocks", "after a failure at any step of a block that drops a table, all is old or new")
@pytest.mark.parametrize(("crew", "scenario"), on_servers_some(JDBC_DROPS), indirect=["crew"])
def test_after_any_failure_of_a_drop_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    actions = first_at(crew, scenario) if crew.world == "jdbc-postgresql" else main_actions
    assert not crew.run(crew.planner.cases(scenario, actions))


@pytest.mark.promise("ddl-in-blocks", "after a failure at any step of a block that alters a table, all is old or new")
@pytest.mark.parametrize(
    ("crew", "scenario"),
    [
        pytest.param(
            database,
            name,
            marks=() if (database, name) in (("sqlite", "alter"), ("mariadb", "alter")) else pytest.mark.exhaustive,
        )
        for database, name in product(DATABASES, JDBC_ALTERS)
    ],
    indirect=["crew"],
)
def test_after_any_failure_of_an_alter_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    assert not crew.run(crew.planner.cases(scenario, main_actions))


@pytest.mark.promise(
    "evolution",
    "a write that brings a column to a table of a database leaves all old or new after a failure at any step",
)
@pytest.mark.parametrize(
    ("crew", "scenario"),
    [
        pytest.param(
            database, name, marks=() if (database, name) == ("sqlite", BRINGS_A_COLUMN) else pytest.mark.exhaustive
        )
        for database, name in product(("sqlite", "postgresql"), JDBC_BRINGING)
    ],
    indirect=["crew"],
)
def test_after_any_failure_of_a_write_that_brings_a_column_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    assert not crew.run(crew.planner.cases(scenario, main_actions))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("crew", "scenario"), list(product(("sqlite", "postgresql"), JDBC_BRINGING)), indirect=["crew"]
)
def test_after_a_write_that_brings_a_column_and_fails_in_any_way_everything_is_old_or_new(
    crew: Crew, scenario: str
) -> None:
    """What the test before leaves out."""
    assert not crew.run(crew.planner.cases(scenario, other_actions(main_actions)))


@pytest.mark.promise(
    "ddl-in-blocks", "after a failure at any step of a block that renames a table, all is old or new", detail=True
)
@pytest.mark.parametrize(
    ("crew", "scenario"),
    [
        pytest.param(database, name, marks=() if (database, name) == FIRST_RENAMES else pytest.mark.exhaustive)
        for database, name in [
            *product(DATABASES, JDBC_RENAMES),
            *product(("sqlite", "postgresql"), JDBC_RENAMES_WITH_ROWS),
        ]
    ],
    indirect=["crew"],
)
def test_after_any_failure_of_a_rename_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    assert not crew.run(crew.planner.cases(scenario, main_actions))


@pytest.mark.promise(
    "ddl-in-blocks",
    "a block of MariaDB that renames a table, or creates or drops a database, survives a death at its publish",
    detail=True,
)
@pytest.mark.parametrize(("crew", "cases"), DDL_DEATHS.items(), indirect=["crew"])
def test_after_a_death_at_the_publish_of_ddl_everything_is_old_or_new(crew: Crew, cases: list[Case]) -> None:
    """Of the two tests around it, which try every step."""
    assert not crew.run(cases)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("crew", "scenario"),
    [(f"{server}-databases", name) for server, name in product(("postgresql", "mariadb"), JDBC_DATABASES)],
    indirect=["crew"],
)
def test_after_any_failure_around_a_database_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    wanted = crew.planner.cases(scenario, lambda step: () if step in COORDINATOR_ONLY else main_actions(step))
    assert not crew.run(wanted)


@pytest.mark.parametrize(
    ("crew", "scenario"),
    [
        pytest.param(database, name, marks=() if database == "sqlite" else pytest.mark.exhaustive)
        for database, name in product(DATABASES, JDBC_SAVEPOINTS)
    ],
    indirect=["crew"],
)
def test_after_any_failure_of_a_block_with_a_savepoint_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    assert not crew.run(crew.planner.cases(scenario, first_at(crew, scenario)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("crew", "scenario"), list(product(DATABASES, JDBC_ALTERS)), indirect=["crew"])
def test_after_an_alter_that_fails_in_any_way_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    """What the test before leaves out."""
    assert not crew.run(crew.planner.cases(scenario, other_actions(main_actions)))


@pytest.mark.parametrize(("crew", "death"), ALL_DEATHS, ids=str, indirect=["crew"])
def test_a_recovery_that_dies_is_recovered_from(crew: Crew, death: Case) -> None:
    assert not crew.run(crew.planner.recovery_cases(death, ("exit_after",)))


@pytest.mark.parametrize(("crew", "death"), ALL_DEATHS, ids=str, indirect=["crew"])
def test_two_recoveries_at_once_do_no_harm(crew: Crew, death: Case) -> None:
    assert not crew.run(Case(death.scenario, death.work, at_once=True) for _ in range(2))


@pytest.mark.parametrize(
    "crew",
    [  # Those of PostgreSQL are SQLite's.
        pytest.param(database, marks=pytest.mark.exhaustive if database == "postgresql" else ())
        for database in DATABASES
    ],
    indirect=True,
)
def test_every_failpoint_of_the_catalog_is_reached(crew: Crew) -> None:
    scenarios = ("create then insert", "alter", "drop and create", WIDER, "two tables", "insert", "overwrite")
    assert not crew.unreached("jdbc.", scenarios, elsewhere=ELSEWHERE[crew.world.removeprefix("jdbc-")])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("crew", "scenario"),
    with_rest(DATABASES, JDBC, lambda database, name: database == "sqlite" or (database, name) == WHOLE_ON_SERVER),
    indirect=["crew"],
)
def test_after_any_failure_of_any_kind_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    """An error before and after each step; of SQLite's other scenarios every death."""
    assert not crew.run(crew.planner.cases(scenario, any_kind_at(crew, scenario), first_at(crew, scenario)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("crew", "scenario"), list(product(DATABASES, JDBC)), indirect=["crew"])
def test_after_any_error_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    """What the test before leaves out."""
    assert not crew.run(
        crew.planner.cases(scenario, rest_of(other_actions(first_at(crew, scenario)), any_kind_at(crew, scenario)))
    )


@pytest.mark.parametrize(
    ("crew", "death"),
    with_rest(DATABASES, DEATHS, lambda *of: of in FAILING_RECOVERIES),
    ids=str,
    indirect=["crew"],
)
def test_a_recovery_that_fails_in_any_way_is_recovered_from(crew: Crew, death: Case) -> None:
    assert not crew.run(crew.planner.recovery_cases(death, ("error", "lost_reply", "exit")))


@pytest.mark.promise(
    "committing-ddl",
    "create, and replace with other columns: reversible, old or new after any failure",
)
@pytest.mark.parametrize(("crew", "scenario"), [("plain-mariadb", n) for n in ("create", WIDER)], indirect=["crew"])
def test_after_any_failure_of_a_publish_in_steps_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    steps = {*IN_STEPS, "jdbc.record", "jdbc.drop_backup", "jdbc.drop_staging", "jdbc.drop_ledger", "core.publish"}
    assert not crew.run(crew.planner.cases(scenario, lambda step: main_actions(step) if step in steps else ()))


@pytest.mark.parametrize(
    ("crew", "death"), [("plain-mariadb", Case(WIDER, "jdbc.back_up=exit_after"))], ids=str, indirect=["crew"]
)
def test_a_recovery_that_dies_between_the_steps_of_a_publish_is_recovered_from(crew: Crew, death: Case) -> None:
    assert not crew.run(crew.planner.recovery_cases(death, ("exit_after",)))

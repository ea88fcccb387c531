"""The crash matrix over the Hive catalog through a HiveServer2: a driver dies at each statement of SQL of a publish."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.crash.hive_server_worlds import HiveServer2World
from tests.crash.matrix import Case, Crew
from tests.crash.worlds import variable
from tests.servers import Server

pytestmark = pytest.mark.timeout(900)

#: A case takes seconds here: the steps in which something becomes visible, and not those that stage.
STEPS = ("hiveserver2.sql", "core.publish", "core.record_committing", "hive.pointer.publish")

#: Steps that only a recovery takes, and a death that it takes them after: between the two statements that make a
#: managed table, and before one that may still be carried out.
RECOVERY = {
    "hive.pointer.own": Case("create", "hiveserver2.sql=exit_after@2"),
    "hive.pointer.quarantine": Case("replace", "core.record_committing=exit_after@1"),
    "hive.pointer.fence": Case("replace", "core.record_committing=exit_after@1"),
}

#: One of each kind of publish; ``make test-exhaustive`` tries the others.
EACH_KIND = ("create partitioned", "replace partitioned")


@pytest.fixture(scope="module")
def crew(hive_metastore: Server, hive_server2: Server, crew_of: Callable[..., Crew]) -> Crew:
    # The children of the matrix find the servers by these.
    os.environ[variable("hive_metastore")] = hive_metastore.url
    os.environ[variable("hiveserver2")] = f"{hive_server2.host}:{hive_server2.port}"
    return crew_of("hive-hiveserver2", size=1)  # Two wait for each other on the server, and take longer.


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(name, marks=[] if name in EACH_KIND else pytest.mark.exhaustive)
        for name in HiveServer2World.scenarios
    ],
)
def test_after_any_death_everything_is_old_or_new(crew: Crew, scenario: str) -> None:
    assert not set(STEPS) - crew.planner.reached(scenario, "")
    assert not crew.run(crew.planner.cases(scenario, lambda step: ("exit_after",) if step in STEPS else ()))


@pytest.mark.parametrize("step", RECOVERY)
def test_a_recovery_that_dies_in_a_step_of_its_own_is_recovered_from(crew: Crew, step: str) -> None:
    assert not crew.run(crew.planner.recovery_cases(RECOVERY[step], only=step))


@pytest.mark.exhaustive
def test_a_recovery_that_dies_is_recovered_from(crew: Crew) -> None:
    death = Case("insert partitioned", "core.record_committing=exit_after")
    assert not crew.run(crew.planner.recovery_cases(death, ("exit_after",)))

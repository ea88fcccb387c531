"""The crash matrix on other storage: the scenarios of a local disk, but for what is refused there.

The Hive catalog's clients are those of ``remote_files.py``: each request that changes something is a step to die at.
Hadoop's own client dies in ``tests/storage``. A lake's client is PyIceberg's, and its store a server.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.crash.hive_worlds import HiveHdfsWorld, HiveObjectStoreWorld
from tests.crash.lakehouse_worlds import BUCKET
from tests.crash.matrix import KILLS, Actions, Case, Crew, other_actions, rest_of
from tests.crash.scenarios import HIVE_DATABASES
from tests.crash.test_hive_matrix import DEATHS
from tests.crash.worlds import variable
from tests.servers import Server
from tests.storage.objects import Objects

SCENARIOS = {"object_store": HiveObjectStoreWorld.scenarios, "hdfs": HiveHdfsWorld.scenarios}
CASES = [(storage, scenario) for storage, scenarios in SCENARIOS.items() for scenario in scenarios]
#: Tried every time: appends, which are renames of files, and a partition whose directory is renamed.
TRIED = [
    ("object_store", "insert external"),
    ("object_store", "insert new partition"),
    ("hdfs", "insert several files"),
]


def deaths(step: str) -> tuple[str, ...]:
    return KILLS


@pytest.mark.promise(
    "killed-driver",
    "on an object store, or one like HDFS, a session table is wholly old or wholly new after a death at any step",
)
@pytest.mark.parametrize(
    ("storage", "scenario"),
    [pytest.param(*case, marks=() if case in TRIED else pytest.mark.exhaustive) for case in CASES],
)
def test_after_any_death_on_other_storage_everything_is_old_or_new(
    crew_of: Callable[[str], Crew], storage: str, scenario: str
) -> None:
    crew = crew_of(f"hive-{storage}")
    assert not crew.run(crew.planner.cases(scenario, deaths))


def test_the_step_of_object_stores_alone_is_reached(crew_of: Callable[[str], Crew]) -> None:
    assert not crew_of("hive-object_store").unreached("hive.pointer.place", ["insert new partition"])


@pytest.mark.promise(
    "killed-driver", "on an object store, a death between the copy and the delete of a rename loses or doubles no row"
)
@pytest.mark.parametrize("scenario", ["insert", pytest.param("overwrite external", marks=pytest.mark.exhaustive)])
def test_a_death_between_the_copy_and_the_delete_of_a_rename_is_recovered_from(
    crew_of: Callable[[str], Crew], scenario: str
) -> None:
    crew = crew_of("hive-object_store")
    assert not crew.run(crew.planner.cases(scenario, lambda step: KILLS if step == "remote.copied" else ()))


# A database that a block drops is gone with the end of the transaction, which a recovery repeats after an error.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("storage", "scenario"), [case for case in CASES if case[1] not in HIVE_DATABASES])
def test_after_any_error_on_other_storage_everything_is_old_or_new(
    crew_of: Callable[[str], Crew], storage: str, scenario: str
) -> None:
    crew = crew_of(f"hive-{storage}")
    assert not crew.run(crew.planner.cases(scenario, rest_of(other_actions(deaths), lambda _: KILLS)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("storage", SCENARIOS)
@pytest.mark.parametrize("death", [*DEATHS, Case("insert several files", "core.publish=exit_after")], ids=str)
def test_a_recovery_on_other_storage_that_fails_in_any_way_is_recovered_from(
    crew_of: Callable[[str], Crew], storage: str, death: Case
) -> None:
    crew = crew_of(f"hive-{storage}")
    failures = crew.planner.recovery_cases(death, ("error", "lost_reply", "exit", "exit_after"))
    concurrent = (Case(death.scenario, death.work, at_once=True) for _ in range(3))
    assert not crew.run([*failures, *concurrent])


# -- lakes -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lakes(s3: Server, crew_of: Callable[[str], Crew]) -> Crew:
    os.environ[variable("s3")] = s3.url
    Objects(s3, BUCKET)
    return crew_of("lakehouse-object_store")


def around_the_publish(step: str) -> tuple[str, ...]:
    return KILLS if step in ("core.publish", "lakehouse.write_metadata", "lakehouse.swap") else ()


@pytest.mark.promise(
    "killed-driver",
    "an Iceberg table on an S3 server is wholly old or wholly new after a death at any step",
    detail=True,
)
@pytest.mark.parametrize(
    ("scenario", "died"),
    [
        ("overwrite partitions", around_the_publish),
        *(
            pytest.param(scenario, deaths, marks=pytest.mark.exhaustive)
            for scenario in ("insert", "overwrite partitions", "replace", "create empty", "two tables", "create")
        ),
    ],
)
def test_after_any_death_a_lake_in_an_object_store_is_old_or_new(lakes: Crew, scenario: str, died: Actions) -> None:
    assert not lakes.run(lakes.planner.cases(scenario, died))

"""What the crash matrices share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.crash.matrix import Crew, Report
from tests.numbers import NUMBERS

#: The longest cases whose steps others take, by the test and its parameters: left to ``make test-exhaustive``.
LIKE_OTHERS = {
    "test_a_killed_driver_leaves_the_table_wholly_old_or_new": {"rename"},
    "test_after_any_death_everything_is_old_or_new": {"create partitioned"},
    "test_after_any_failure_everything_is_old_or_new": {
        "rest-another writer comes before the publish of two",
        "hive_metastore-another writer comes before the publish of two",
    },
    "test_after_any_failure_of_any_kind_everything_is_old_or_new": {
        "mariadb-two tables",
        "postgresql-two tables",
        "another writer comes after a drop",
        "another writer comes before the publish of a drop",
        "another writer comes after a group",
        "rename-another writer comes after partitions",
        "drop",
        "insert then drop",
        "create then drop",
    },
    "test_after_any_failure_of_two_catalogs_both_are_old_or_new": {
        "two_lakes-another writer comes after three tables",
        "two_lakes-another writer comes after create then insert",
        "two_lakes-another writer comes after an overwrite",
        "two_lakes-another writer comes after a drop and a rename",
    },
    "test_after_any_failure_of_an_alter_everything_is_old_or_new": {"hive_metastore-create then alter"},
    "test_after_any_failure_of_a_drop_everything_is_old_or_new": {
        "mariadb-create then drop",
        "mariadb-drop then create",
        "mariadb-another writer comes before the publish of a drop",
    },
    "test_a_recovery_that_dies_while_it_undoes_is_recovered_from": {"core.compensate=exit-two_lakes"},
    "test_a_recovery_that_fails_in_any_way_is_recovered_from": {
        "mariadb-[two tables] core.record_committing=exit_after"
    },
}


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    name, _, parameters = item.name.partition("[")
    if parameters.removesuffix("]") in LIKE_OTHERS.get(name, ()):
        item.add_marker(pytest.mark.exhaustive)


@pytest.fixture(scope="session")
def report_of(pytestconfig: pytest.Config) -> Callable[[str], Report]:
    """Where the matrix of a name puts its numbers."""
    reports: dict[str, Report] = {}

    def report(name: str) -> Report:
        if name not in reports:
            reports[name] = Report(name)
            pytestconfig.stash[NUMBERS].append(reports[name])
        return reports[name]

    return report


@pytest.fixture(scope="session")
def fast_directory() -> Iterator[Path]:
    """A directory in memory where there is one: thousands of durable commits need no disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="twophase-", dir=memory if memory.is_dir() else None) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def crew_of(fast_directory: Path, report_of: Callable[[str], Report]) -> Iterator[Callable[..., Crew]]:
    """The crew of a world (and of a size, if told), opened when first asked for, and kept for the module.

    A fixture with parameters would not keep it: pytest makes it anew for each test that is given its parameter together
    with others.
    """
    with ExitStack() as opened:

        @cache
        def crew(world: str, **size: int) -> Crew:
            return opened.enter_context(Crew(world, fast_directory / world, report_of(world), **size))

        yield crew

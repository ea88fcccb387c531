"""Several drivers at once: of writers of one name one wins wholly, and a reader never sees anything in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.forks import Forks
from tests.crash.matrix import Matrix, Report
from tests.crash.scenario import OLD

WORLDS = ("chaos", "hive-pointer", "hive-rename")
WRITERS = 4
ROUNDS = 4


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks(*WORLDS) as running:
        yield running


@pytest.fixture(params=WORLDS)
def matrix(request: pytest.FixtureRequest, forks: Forks, fast_directory: Path) -> Matrix:
    return Matrix(request.param, forks, fast_directory / f"races-{request.param}", Report(request.param))


def _race(matrix: Matrix, scenario: str) -> tuple[set[int], list[list[object]]]:
    """Who was told success, and the rows afterwards."""
    *told, looked, cleaned = matrix.at_once(
        scenario, *(("race", {"who": who, "of": WRITERS}) for who in range(WRITERS))
    )
    assert not [answer for answer in told if answer["told"] == "in doubt"]
    assert cleaned["left"] == []
    assert looked["reservations"] == []
    ((rows),) = looked["tables"].values()
    return {who for who, answer in enumerate(told) if answer["told"] == "success"}, rows


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_of_many_creators_one_wins_and_no_loser_touches_it(matrix: Matrix, turn: int) -> None:
    winners, rows = _race(matrix, "create")
    assert len(winners) == 1
    assert {row[0] for row in rows} == winners
    assert len(rows) == 2


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_many_replacers_leave_the_rows_of_one_that_was_told_success(matrix: Matrix, turn: int) -> None:
    winners, rows = _race(matrix, "replace")
    assert winners
    assert len(rows) == 2
    assert {row[0] for row in rows} <= winners
    assert len({row[0] for row in rows}) == 1


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_many_inserters_add_the_rows_of_those_that_were_told_success(matrix: Matrix, turn: int) -> None:
    winners, rows = _race(matrix, "insert")
    expected = [*OLD, *((who, part) for who in winners for part in "ab")]
    assert sorted(map(tuple, rows), key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("scenario", ["replace", "replace partitioned", "replace partitioned with other columns"])
def test_a_reader_sees_a_hundred_replaces_one_by_one_and_nothing_between(
    forks: Forks, fast_directory: Path, scenario: str
) -> None:
    matrix = Matrix("hive-pointer", forks, fast_directory / "readers", Report("readers"))
    wrote, read, *_ = matrix.at_once(scenario, ("replaces", {"times": 100}), ("reads", {}))
    assert wrote["told"] == "success"
    assert read["times"] > 0
    whole = [state for state in read["seen"] if state is not None and state[:2] == [1, 10]]
    first = [state for state in read["seen"] if state is not None and state[:2] == [2, 2]]  # what was there before
    assert len(whole) + len(first) == len(read["seen"]), read["seen"]
    assert len(whole) > 1

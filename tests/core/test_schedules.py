"""The protocol in every schedule of two transactions, a recovery and an external writer, with a fault anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

import pytest

from tests.core.schedule_model import Violation, Write
from tests.core.schedule_mutants import MUTANTS
from tests.core.schedules import Bounds, Explored, Explorer
from tests.numbers import NUMBERS
from twophase.protocol import machine

#: They take half a minute.
quick_first_cases = True

Transactions = Sequence[Sequence[Write]]

K, L, M, N = Write("k", "one"), Write("l", "two"), Write("m", "one"), Write("n", "two")


def append(write: Write) -> Write:
    return Write(write.table, write.catalog, appends=True)


def fixed(write: Write) -> Write:
    return Write(write.table, write.catalog, can_undo=False)


def grouped(write: Write) -> Write:
    return Write(write.table, write.catalog, group="g")


def recorded(write: Write) -> Write:
    return Write(write.table, write.catalog, records=True)


#: What they write: tables that they share, and others. On each schedule one thing may go wrong, a recovery may begin,
#: and an external writer may change a table.
SHAPES: dict[str, Transactions] = {
    "one of two": ((K, L), (L,)),
    "one table": ((K,), (K,)),
    "one table, one appends": ((K,), (append(K),)),
    "one table, both append": ((append(K),), (append(K),)),
    "one table, in the timeline's database": ((recorded(K),), (recorded(K),)),
    "other tables": ((K,), (M,)),
    "two in another order": ((K, L), (L, K)),
    "two, of which the first cannot be undone": ((fixed(K), L), (L,)),
    "two that cannot be undone": ((fixed(K), fixed(L)), (L,)),
    "two in one step and one alone": ((grouped(K), grouped(M), L), (L,)),
    "three": ((K, L, M), (L,)),
}
#: Others in which more goes wrong, or less.
FURTHER: dict[str, tuple[Transactions, Bounds]] = {
    "appends to one of two, without an external writer": (((append(K), L), (append(K),)), Bounds(external=0)),
    "one table, and wounds": (((K,), (K,)), Bounds(external=0, wounds=True)),
    "one of two, and wounds": (((K, L), (L,)), Bounds(external=0, wounds=True)),
    "one table alone, three things": (((K,),), Bounds(3, 2)),
    "two tables alone, two things": (((K, L),), Bounds(2, 2)),
}
#: More of each, and more that goes wrong.
LARGE: dict[str, tuple[Transactions, Bounds]] = {
    "one table, two things": (SHAPES["one table"], Bounds(2, 2)),
    "one table, one appends, two things": (SHAPES["one table, one appends"], Bounds(2, 2)),
    "one of two, two things": (SHAPES["one of two"], Bounds(2, 2)),
    "one of two, two external changes": (SHAPES["one of two"], Bounds(1, 2, 2)),
    "appends to one of two": (((append(K), L), (append(K),)), Bounds()),
    "two alone that cannot be undone, two things": (((fixed(K), fixed(L)),), Bounds(2, 2)),
    "two alone in one step, three things": (((grouped(K), grouped(M)),), Bounds(3, 2)),
    "one alone, in the timeline's database, three things": (((recorded(K),),), Bounds(3, 2)),
    "two alone, one appends, three things": (((append(K), L),), Bounds(3, 2)),
    "two alone, three things": (((K, L),), Bounds(3, 2)),
    "three alone, two things": (((K, L, fixed(M)),), Bounds(2, 2)),
    "two alone, two attempts": (((K, L),), Bounds(2, 2, attempts=2)),
    "two and two others": (((K, L), (M, N)), Bounds()),
    "three and three": (((K, L, M), (M, N, K)), Bounds()),
}


@pytest.fixture(scope="module")
def total(pytestconfig: pytest.Config) -> Iterator[Explored]:
    """All that the tests of this file have explored."""
    explored, start = Explored(), perf_counter()
    yield explored
    pytestconfig.stash[NUMBERS].append(f"{explored} in {perf_counter() - start:.0f} s")


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.promise(
    "killed-driver", "in no schedule of two transactions, a recovery and an external writer is it half"
)
def test_what_is_promised_holds_in_every_schedule(name: str, total: Explored) -> None:
    total += Explorer(SHAPES[name], Bounds()).run()


@pytest.mark.parametrize("name", FURTHER)
def test_what_is_promised_holds_where_more_goes_wrong_and_two_recover(name: str, total: Explored) -> None:
    transactions, bounds = FURTHER[name]
    total += Explorer(transactions, bounds).run()


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LARGE)
def test_what_is_promised_holds_in_every_longer_schedule(name: str, total: Explored) -> None:
    transactions, bounds = LARGE[name]
    total += Explorer(transactions, bounds).run()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_protocol_that_is_wrong_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    for function, wrong in mutant.functions.items():
        monkeypatch.setattr(machine, function, wrong)
    with pytest.raises(Violation) as found:
        Explorer(mutant.transactions, mutant.bounds, model=mutant.model, job=mutant.job).run()
    assert found.value.name == mutant.found_by
    assert found.value.trace

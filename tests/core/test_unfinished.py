"""A published transaction whose store refuses for a while to remove what readers see until the end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.bench import DEFINITION, Bench, OtherTables, path, write
from twophase import failpoints
from twophase.errors import TransactionInDoubt, WriteConflictError
from twophase.model import Isolation, Purpose
from twophase.protocol.states import TransactionState
from twophase.testing._participant import ChaosTable
from twophase.testing.chaos import ChaosCatalog
from twophase.transactions.observer import Ended, Observer
from twophase.transactions.transaction import Transaction

REPLACE = Purpose.CREATE_OR_REPLACE_TABLE_AS
COMPLETED, IN_DOUBT = TransactionState.COMPLETED, TransactionState.IN_DOUBT


class SeenToTheEnd(ChaosTable):
    """As a dropped database, which readers see until it is cleaned up."""

    drop_is_seen = True


class SeenCatalog(OtherTables):
    def participant_class(self, participant: ChaosTable) -> type[ChaosTable]:
        return SeenToTheEnd if self.name == "two" else ChaosTable


class SeenBench(Bench):
    def new_catalog(self, name: str) -> ChaosCatalog:
        return SeenCatalog(name, {"file": str(self.directory / f"{name}.json"), **self.options})

    def ids(self) -> list[int]:
        return [row["id"] for row in self.catalogs["one"].rows(path("t"))]


class Told(Observer):
    def __init__(self) -> None:
        self.states: list[TransactionState] = []

    def ended(self, end: Ended) -> None:
        self.states.append(end.state)


@pytest.fixture
def bench(bench: Bench) -> Any:
    found = SeenBench(bench.url, bench.directory)
    for catalog in found.catalogs.values():
        catalog.create_table(path("t"), DEFINITION)
    yield found
    found.catalogs["two"].faults.clear()
    found.close()


def append(bench: SeenBench, *catalogs: str, **arguments: Any) -> Transaction:
    tx = bench.coordinator(**arguments).begin()
    for catalog in catalogs:
        write(tx, bench.catalogs[catalog], "t", Purpose.INSERT_INTO)
    return tx


def unfinished(bench: SeenBench, **arguments: Any) -> Transaction:
    bench.catalogs["two"].faults.add("finish", "error")
    tx = append(bench, "one", "two", **arguments)
    with pytest.raises(TransactionInDoubt, match=r"Dropped, but still there: two.*; published: one"):
        tx.commit()
    return tx


def test_each_observer_is_told_once_that_it_is_in_doubt_and_once_how_it_ends(bench: SeenBench) -> None:
    told = Told()
    tx = unfinished(bench, observers=[told])
    coordinator = bench.coordinator(observers=[told])
    before = coordinator.timeline.last_number()
    for _ in range(2):
        (still,) = coordinator.recover()
        assert (still.state, still.account.unfinished) == (IN_DOUBT, ("two.default.t",))
    assert told.states == [IN_DOUBT]
    bench.catalogs["two"].faults.clear()
    coordinator.recover()
    assert told.states == [IN_DOUBT, COMPLETED]
    record = coordinator.timeline.transaction(tx.id)
    assert record is not None
    assert (record.state, record.is_open, record.number) == (COMPLETED, False, before)
    assert coordinator.timeline.last_number() == before


@pytest.mark.quick
@pytest.mark.promise("in-doubt", "while a store refuses to drop a database, the other tables of its block are free")
def test_only_what_is_unfinished_stays_reserved(bench: SeenBench) -> None:
    tx = unfinished(bench)
    timeline = bench.coordinator().timeline
    assert [(held.transaction_id, held.catalog) for held in timeline.locks()] == [(tx.id, "two")]
    for isolation in ("read_committed", "serializable"):
        other = bench.coordinator(name="another").begin(Isolation(isolation))
        write(other, bench.catalogs["one"], "t", REPLACE)
        other.commit()
    with pytest.raises(WriteConflictError, match=f"held by transaction {tx.id}"):
        append(bench, "two", name="another").commit()
    replaced = bench.catalogs["one"].rows(path("t"))
    bench.catalogs["two"].faults.clear()
    (recovered,) = bench.coordinator().recover()
    assert (recovered.state, recovered.left_behind) == (COMPLETED, ())
    assert bench.catalogs["one"].rows(path("t")) == replaced
    assert not timeline.locks() and not timeline.transactions(open_only=True)


def test_what_a_savepoint_has_taken_back_is_not_told_to_be_dropped(bench: SeenBench) -> None:
    tx = append(bench, "one")
    savepoint = tx.savepoint()
    write(tx, bench.catalogs["two"], "t", Purpose.INSERT_INTO)
    tx.rollback_to(savepoint)
    failpoints.arm("core.record_completed", "error")
    tx.commit()
    failpoints.disarm()
    assert (tx.state, bench.ids()) == (COMPLETED, [1, 2])

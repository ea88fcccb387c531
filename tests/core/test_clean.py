"""Clean removes what the dead left, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.bench import DEFINITION, Bench, path, run_shape, stage, write
from twophase.clean import Cleaned, clean
from twophase.errors import CatalogError, TimelineError
from twophase.model import Purpose, WriteContext
from twophase.states import TransactionState


def cleaned(bench: Bench, *, dry_run: bool = False) -> list[Cleaned]:
    return clean(bench.coordinator(), bench.catalogs.values(), dry_run)


def leave_something(bench: Bench) -> str:
    """A rolled back transaction that could not remove what it had staged."""
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "left")
    bench.catalogs["one"].faults.add("abort", "error", 1)
    tx.abort()
    return tx.id


def orphan(bench: Bench, transaction_id: str) -> None:
    """Something staged, without the participant's transaction knowing."""
    table = bench.catalogs["one"].two_phase_create_table(
        path("orphan"), DEFINITION, purpose=Purpose.CREATE_TABLE_AS, context=WriteContext(transaction_id, 7)
    )
    assert table is not None
    table.begin()


def test_a_dry_run_lists_with_sizes_and_removes_nothing(bench: Bench) -> None:
    transaction_id = leave_something(bench)
    (found,) = cleaned(bench, dry_run=True)
    assert (found.removed, found.reason) == (False, None)
    assert found.residue.transaction_id == transaction_id
    assert found.residue.size > 0
    assert bench.staged() != []


def test_what_a_transaction_could_not_remove_is_removed_and_no_longer_told_as_left(bench: Bench) -> None:
    transaction_id = leave_something(bench)
    cleaned(bench)
    assert bench.staged() == []
    record = bench.coordinator().timeline.transaction(transaction_id)
    assert record is not None
    assert (record.state, record.left_behind) == (TransactionState.ROLLED_BACK, ())


def test_what_ended_transactions_made_is_removed(bench: Bench) -> None:
    tx = run_shape(bench, "single")
    orphan(bench, tx.id)
    (found,) = cleaned(bench)
    assert found.removed
    assert bench.staged() == []
    assert bench.tables() == ["one.t"]
    assert cleaned(bench) == []


def test_what_the_living_stage_is_kept(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    assert cleaned(bench) == []
    tx.commit()
    assert bench.tables() == ["one.t"]


def test_dead_transactions_are_recovered_first(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    del tx
    cleaned(bench)
    assert bench.staged() == []


def test_the_dead_of_other_applications_are_listed_and_removed(bench: Bench) -> None:
    tx = bench.coordinator("etl").begin()
    write(tx, bench.catalogs["one"], "t")
    transaction_id = tx.id
    del tx

    listed = cleaned(bench, dry_run=True)
    assert {found.residue.transaction_id for found in listed} == {transaction_id}
    assert [(found.removed, found.reason) for found in listed] == [(False, None)] * len(listed)
    assert bench.staged() != []
    cleaned(bench)
    assert bench.staged() == []


def test_the_dead_that_cannot_be_recovered_are_listed_with_what_to_do(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = bench.coordinator("etl").begin()
    write(tx, bench.catalogs["one"], "t")
    transaction_id = tx.id
    del tx

    def refuse(_: Any) -> Any:
        raise CatalogError("The store is away.")

    monkeypatch.setattr(bench.catalogs["one"], "restore", refuse)

    listed = cleaned(bench)
    assert listed
    assert all(f"twophase recover {transaction_id}" in str(kept.reason) for kept in listed)
    assert bench.staged() != []


def test_what_another_timeline_s_transactions_made_is_listed_and_kept(bench: Bench) -> None:
    orphan(bench, "foreign-20260101t000000-00000000")
    (found,) = cleaned(bench)
    assert not found.removed
    assert "not on this timeline" in (found.reason or "")
    assert bench.staged() != []


def test_a_transaction_that_began_while_the_store_was_listed_is_kept(bench: Bench) -> None:
    catalog = bench.catalogs["one"]
    tx = bench.coordinator().begin()
    listed = catalog.residues

    def slow_listing(**arguments: Any) -> Any:
        participant = stage(tx, catalog, "t")
        tx.begin_participant(participant)
        return listed(**arguments)

    catalog.residues = slow_listing  # type: ignore[method-assign]
    (found,) = cleaned(bench)
    catalog.residues = listed  # type: ignore[method-assign]
    assert (found.removed, found.reason) == (False, "its transaction is INFLIGHT")
    assert bench.staged() != []
    tx.abort()


def test_what_cannot_be_removed_is_told_and_the_rest_is_removed(bench: Bench) -> None:
    tx = run_shape(bench, "several")
    orphan(bench, tx.id)
    bench.catalogs["one"].faults.add("remove_residue", "error")
    (found,) = cleaned(bench)
    assert (found.removed, found.failed) == (False, True)
    assert "ChaosError" in (found.reason or "")


def test_nothing_is_removed_when_nobody_knows_what_is_alive(bench: Bench) -> None:
    tx = run_shape(bench, "single")
    orphan(bench, tx.id)
    coordinator = bench.coordinator()
    coordinator.timeline._engine.dispose()
    for file in bench.directory.glob("timeline.db*"):
        file.unlink()
    with pytest.raises(TimelineError):
        clean(coordinator, bench.catalogs.values())
    assert bench.staged() != []

"""Clean removes what the dead left, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.bench import DEFINITION, Bench, in_doubt, path, run_shape, stage, write
from twophase.catalog import Leftover
from twophase.errors import CatalogError, TimelineError
from twophase.model import Purpose, WriteContext
from twophase.protocol.states import TransactionState
from twophase.testing.chaos import ChaosCatalog
from twophase.timeline.tables import transactions
from twophase.transactions.clean import Cleaned, clean
from twophase.transactions.transaction import Transaction


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
    assert found.leftover.transaction_id == transaction_id
    assert found.leftover.size > 0
    assert bench.staged() != []


def test_what_a_transaction_could_not_remove_is_removed_and_no_longer_reported_as_leftover(bench: Bench) -> None:
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


@pytest.mark.promise("clean", "what a live transaction stages is kept")
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
    assert {found.leftover.transaction_id for found in listed} == {transaction_id}
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
    listed = catalog.leftovers

    def slow_listing(**arguments: Any) -> Any:
        participant = stage(tx, catalog, "t")
        tx.begin_participant(participant)
        return listed(**arguments)

    catalog.leftovers = slow_listing  # type: ignore[method-assign]
    (found,) = cleaned(bench)
    catalog.leftovers = listed  # type: ignore[method-assign]
    assert (found.removed, found.reason) == (False, "its transaction is INFLIGHT")
    assert bench.staged() != []
    tx.abort()


def test_what_cannot_be_removed_is_reported_and_the_rest_is_removed(bench: Bench) -> None:
    tx = run_shape(bench, "several")
    orphan(bench, tx.id)
    bench.catalogs["one"].faults.add("remove_leftover", "error")
    (found,) = cleaned(bench)
    assert (found.removed, found.failed) == (False, True)
    assert "ChaosError" in (found.reason or "")


# -- what the timeline forgets ----------------------------------------------------------------------------------------


def age(bench: Bench, days: int) -> None:
    """Let all that happened so far have happened so many days ago."""
    with bench.coordinator().timeline._engine.begin() as connection:
        for column in ("created", "decided", "finished"):
            connection.exec_driver_sql(f"UPDATE twophase_transactions SET {column} = {column} - {days * 86_400}")


def completed_one(bench: Bench, name: str) -> Transaction:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["two"], name)
    tx.commit()
    return tx


def check_pruning(bench: Bench) -> None:
    """Also on PostgreSQL."""
    left = leave_something(bench)
    completed, rolled_back = completed_one(bench, "a"), bench.coordinator().begin()
    write(rolled_back, bench.catalogs["one"], "gone")
    rolled_back.abort()
    bench.catalogs["one"].faults.add("abort", "error")
    doubtful = in_doubt(bench)
    age(bench, 40)
    young = completed_one(bench, "b")
    coordinator = bench.coordinator(retention_seconds=30 * 86_400)
    line = coordinator.timeline

    assert coordinator.prune() == 2
    assert {record.id for record in line.transactions()} == {left, doubtful.id, young.id}
    assert line.how_ended(completed.id) is TransactionState.COMPLETED
    assert line.how_ended(rolled_back.id) is TransactionState.ROLLED_BACK
    assert line.how_ended(left) is line.how_ended("app-20260101t000000-00000000") is line.how_ended("any") is None
    assert coordinator.prune() == 0
    (told,) = coordinator.recover(transaction_id=completed.id)
    assert told.state is TransactionState.COMPLETED


def test_what_ended_long_ago_is_forgotten_but_for_how_it_ended(bench: Bench) -> None:
    check_pruning(bench)


@pytest.mark.promise("clean", "what a forgotten transaction made is removed, what an unknown one made is kept")
def test_what_a_forgotten_transaction_made_is_removed_and_that_of_an_unknown_one_kept(bench: Bench) -> None:
    tx = run_shape(bench, "single")
    orphan(bench, tx.id)
    orphan(bench, f"{tx.id[:-8]}{int(tx.id[-8:], 16) ^ 1:08x}")  # Of the same coordinator and second.
    age(bench, 40)
    assert bench.coordinator().prune() == 1
    kept, removed = sorted(cleaned(bench), key=lambda one: one.removed)
    assert (removed.removed, removed.leftover.transaction_id) == (True, tx.id)
    assert "not on this timeline" in (kept.reason or "")


def test_clean_forgets_what_ended_long_ago_and_a_dry_run_does_not(bench: Bench) -> None:
    tx = run_shape(bench, "single")
    age(bench, 40)
    line = bench.coordinator().timeline
    cleaned(bench, dry_run=True)
    assert line.transaction(tx.id) is not None
    cleaned(bench)
    assert line.transaction(tx.id) is None
    assert bench.tables() == ["one.t"]


def test_a_day_s_thousands_are_forgotten_in_steps_and_all_known(bench: Bench) -> None:
    run_shape(bench, "single")
    line = bench.coordinator().timeline
    ids = [f"app-20260101t{number % 24:02}5959-{number:08x}" for number in range(1201)]
    with line._engine.begin() as connection:
        row = dict(connection.execute(transactions.select()).mappings().one())
        connection.execute(transactions.insert(), [{**row, "id": key} for key in ids])
    age(bench, 40)
    assert bench.coordinator().prune(limit=1) == 500
    assert bench.coordinator().prune() == 702
    assert line.transactions() == []
    assert {line.how_ended(key) for key in ids} == {TransactionState.COMPLETED}


class Unlisted(ChaosCatalog):
    """A catalog whose store does not answer when it is asked for leftovers."""

    def leftovers(self, *, live_transactions: frozenset[str] = frozenset()) -> list[Leftover]:
        raise OSError("the store does not answer")


@pytest.mark.promise("clean", "a catalog whose store does not answer is reported, and the others are cleaned")
def test_a_catalog_that_cannot_list_its_leftovers_is_reported_and_the_others_are_cleaned(bench: Bench) -> None:
    orphan(bench, run_shape(bench, "single").id)
    unlisted = Unlisted("unlisted", {"file": str(bench.directory / "unlisted.json")})
    failed, *others = clean(bench.coordinator(), [unlisted, *bench.catalogs.values()])
    assert (failed.catalog, failed.leftover.kind, failed.removed, failed.failed) == ("unlisted", "catalog", False, True)
    assert "the store does not answer" in str(failed.reason)
    assert [one.removed for one in others] == [True]
    assert bench.staged() == []


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

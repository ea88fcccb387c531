"""Several publishes, of which one is refused: the published ones are undone, or the transaction is in doubt in part."""

from __future__ import annotations

import pytest

from tests.core.bench import DEFINITION, Bench, path, recorded, write
from twophase import failpoints
from twophase.errors import TransactionInDoubt, WriteConflictError
from twophase.model import Level
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.testing.chaos import ChaosError
from twophase.transactions.transaction import Transaction


def other_writer(bench: Bench, catalog: str, name: str) -> None:
    """Another writer makes a table of that name as soon as everything is prepared, and the decision is made."""
    failpoints.arm("core.record_committing", lambda _: bench.catalogs[catalog].create_table(path(name), DEFINITION))


def test_a_later_refusal_undoes_what_was_published(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    write(tx, bench.catalogs["two"], "u")
    other_writer(bench, "two", "u")
    with pytest.raises(WriteConflictError):
        tx.commit()
    assert bench.tables() == ["two.u"]
    assert tx.state is TransactionState.ROLLED_BACK


@pytest.mark.parametrize("fixed", ["one", "two"])
@pytest.mark.parametrize("refused", ["one", "two"])
def test_one_store_that_cannot_undo_is_published_last_whatever_its_name(bench: Bench, fixed: str, refused: str) -> None:
    bench.options["compensate"] = "false"
    bench.catalogs[fixed] = bench.new_catalog(fixed)
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    write(tx, bench.catalogs["two"], "t")
    assert tx.level is Level.REVERSIBLE
    other_writer(bench, refused, "t")
    with pytest.raises(WriteConflictError):
        tx.commit()
    assert bench.tables() == [f"{refused}.t"]
    assert bench.staged() == []


def half(bench: Bench) -> Transaction:
    """A transaction over two stores that cannot undo, of which the second has refused."""
    bench.options["compensate"] = "false"
    bench.catalogs = {name: bench.new_catalog(name) for name in ("one", "two")}
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    write(tx, bench.catalogs["two"], "u")
    other_writer(bench, "two", "u")
    with pytest.raises(TransactionInDoubt):
        tx.commit()
    return tx


def test_two_stores_that_cannot_undo_are_level_one_and_the_reason_names_them(bench: Bench) -> None:
    tx = half(bench)
    assert tx.level is recorded(bench.coordinator(), tx).level is Level.BEST_EFFORT
    assert "cannot be undone" in tx.level_reasons[-1]
    assert tx.level_reasons[-1].endswith("one.default.t, two.default.u")


def test_a_half_transaction_says_what_is_published_what_is_not_and_what_to_do(bench: Bench) -> None:
    tx = half(bench)
    with pytest.raises(TransactionInDoubt) as caught:
        tx.commit()
    text = str(caught.value)
    assert "published in part and cannot be undone (WriteConflictError" in text
    assert "Published: one.default.t; not published: two.default.u." in text
    assert f"in the way of two.default.u, and carry it through with: twophase recover {tx.id}" in text
    assert "It is not known" not in text
    (still,) = bench.coordinator().recover()
    assert "; published: one.default.t; not published: two.default.u; " in str(still)
    assert "once nothing is in the way of two.default.u" in str(still)


def test_a_half_transaction_is_completed_by_the_recovery_after_the_other_writer_has_gone(bench: Bench) -> None:
    tx = half(bench)
    bench.catalogs["two"].drop_table(path("u"))
    (recovered,) = bench.coordinator().recover()
    assert (recovered.state, recovered.account.words()) == (TransactionState.COMPLETED, [])
    assert bench.tables() == ["one.t", "two.u"]
    assert bench.staged() == []
    assert {p.state for p in recorded(bench.coordinator(), tx).participants} == {ParticipantState.PUBLISHED}


@pytest.mark.parametrize("state", [TransactionState.COMPLETED, TransactionState.ROLLED_BACK])
def test_an_operator_s_decision_about_a_half_tells_how_each_table_is(bench: Bench, state: TransactionState) -> None:
    tx = half(bench)
    coordinator = bench.coordinator()
    (ended,) = coordinator.recover(transaction_id=tx.id, assume=state)
    assert ended.state is state
    assert ended.account.words() == ["published: one.default.t", "not published: two.default.u"]
    record = recorded(coordinator, tx)
    states = [participant.state for participant in record.participants]
    assert states == [ParticipantState.PUBLISHED, ParticipantState.ABORTED]
    assert record.finished
    assert bench.staged() == []


def test_a_group_is_undone_in_one_step_or_not_at_all(bench: Bench) -> None:
    bench.options["group_publish"] = "true"
    bench.catalogs = {name: bench.new_catalog(name) for name in ("one", "two")}
    tx = bench.coordinator().begin()
    for name in ("t", "u"):
        write(tx, bench.catalogs["one"], name)
    write(tx, bench.catalogs["two"], "v")
    other_writer(bench, "two", "v")
    with pytest.raises(WriteConflictError):
        tx.commit()
    assert bench.tables() == ["two.v"]
    assert bench.staged() == []


@pytest.mark.parametrize(("step", "told_with_id"), [("begin", False), ("write", True), ("prepare", True)])
def test_what_a_store_that_knows_no_tables_says_is_raised_with_the_table(
    bench: Bench, step: str, told_with_id: bool
) -> None:
    tx = bench.coordinator().begin()
    bench.catalogs["one"].faults.add(step, "error")
    with pytest.raises(ChaosError) as caught:
        write(tx, bench.catalogs["one"], "t")
    assert "Table: default.t." in str(caught.value)
    assert (caught.value.transaction_id == tx.id) is told_with_id

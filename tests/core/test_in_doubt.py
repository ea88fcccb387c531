"""A publish whose outcome is unknown: it is in doubt, until the store or an operator answers."""

from __future__ import annotations

import pickle

import pytest

from tests.core.bench import Bench, in_doubt, recorded, run_shape, write
from twophase import failpoints
from twophase.errors import ConfigurationError, TimelineError, TransactionAborted, TransactionInDoubt
from twophase.protocol.states import TransactionState


def test_an_unknown_outcome_is_in_doubt_and_names_the_commands_that_resolve_it(bench: Bench) -> None:
    tx = in_doubt(bench)
    with pytest.raises(TransactionInDoubt) as caught:
        tx.commit()
    text = str(caught.value)
    assert f"twophase recover {tx.id}" in text
    assert f"twophase recover {tx.id} --assume committed|rolled-back" in text
    assert "one.default.t" in text
    assert caught.value.path == "one.default.t"
    assert not isinstance(caught.value, TransactionAborted)
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_what_a_transaction_in_doubt_has_in_its_stores_is_on_the_timeline(bench: Bench) -> None:
    tx = in_doubt(bench, "error")
    record = bench.coordinator().timeline.transaction(tx.id)
    assert record is not None
    assert record.left_behind == tx.left_behind != ()
    bench.catalogs["one"].faults.clear()
    (resolved,) = bench.coordinator().recover()
    assert (resolved.state.is_final, resolved.left_behind) == (True, ())
    after = bench.coordinator().timeline.transaction(tx.id)
    assert after is not None
    assert after.left_behind == ()


def test_what_became_of_a_transaction_is_told_in_words_with_the_next_command(bench: Bench) -> None:
    tx = in_doubt(bench)
    (still,) = bench.coordinator().recover()
    assert str(still).startswith(f"transaction {tx.id} was IN_DOUBT and is IN_DOUBT; ")
    assert "in doubt: one.default.t" in str(still)
    assert f"twophase recover {tx.id}" in str(still)


def test_abort_after_an_unknown_outcome_touches_nothing(bench: Bench) -> None:
    tx = in_doubt(bench)
    tx.abort(ValueError("Spark calls abort although commit threw"))
    assert tx.state is TransactionState.IN_DOUBT
    assert bench.tables() == ["one.t"]


def test_a_doubt_is_resolved_when_the_store_answers_again(bench: Bench) -> None:
    tx = in_doubt(bench)
    coordinator = bench.coordinator()
    (still,) = coordinator.recover()
    assert (still.state, still.unknown) == (TransactionState.IN_DOUBT, ("one.default.t",))
    bench.catalogs["one"].faults.clear()
    (resolved,) = coordinator.recover()
    assert (resolved.transaction_id, resolved.state) == (tx.id, TransactionState.COMPLETED)
    assert coordinator.recover() == []


@pytest.mark.parametrize("state", [TransactionState.COMPLETED, TransactionState.ROLLED_BACK])
def test_an_operator_s_decision_ends_a_doubt_and_removes_nothing_that_may_be_published(
    bench: Bench, state: TransactionState
) -> None:
    tx = in_doubt(bench)
    (ended,) = bench.coordinator().recover(transaction_id=tx.id, assume=state)
    assert ended.state is state
    assert recorded(bench.coordinator(), tx).finished
    assert bench.tables() == ["one.t"]


def test_there_is_nothing_to_assume_where_the_outcome_is_not_in_doubt(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    transaction_id = tx.id
    del tx
    with pytest.raises(ConfigurationError, match="nothing to assume"):
        bench.coordinator().recover(transaction_id=transaction_id, assume=TransactionState.COMPLETED)
    with pytest.raises(ConfigurationError, match="no transaction"):
        bench.coordinator().recover(transaction_id="app-20200101t000000-00000000")


def test_a_decision_against_an_outcome_that_is_known_is_refused(bench: Bench) -> None:
    """It came too late: whoever gave it must hear that, and not that nothing is left to do."""
    tx = in_doubt(bench)
    coordinator = bench.coordinator()
    coordinator.recover(transaction_id=tx.id, assume=TransactionState.ROLLED_BACK)
    with pytest.raises(ConfigurationError, match="is ROLLED_BACK: there is nothing to assume"):
        coordinator.recover(transaction_id=tx.id, assume=TransactionState.COMPLETED)
    (again,) = coordinator.recover(transaction_id=tx.id, assume=TransactionState.ROLLED_BACK)
    assert again.is_resolved


def test_a_transaction_over_a_catalog_that_is_not_configured_here_stays_as_it_is(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    del tx
    catalog = bench.catalogs.pop("one")
    (left,) = bench.coordinator().recover()
    assert (left.state, "one" in (left.note or "")) == (TransactionState.INFLIGHT, True)
    bench.catalogs["one"] = catalog
    assert [r.state for r in bench.coordinator().recover()] == [TransactionState.ROLLED_BACK]


def test_a_refusal_that_could_not_be_recorded_undoes_nothing(bench: Bench) -> None:
    """Another process that takes the transaction over does not know of it, and publishes the rest."""
    publishes = bench.catalogs["two"].faults
    for attempt in (1, 2, 3):
        publishes.add("publish", "error", attempt)
    failed: list[str] = []

    def fail_once(name: str) -> None:
        if len(publishes.happened) == 3 and not failed:
            failed.append(name)
            raise ConnectionError("the timeline is away")

    failpoints.arm("core.save_participant", fail_once)
    with pytest.raises(TimelineError) as caught:
        run_shape(bench, "several")
    assert failed
    assert failpoints.reached()["core.compensate"] == 0
    assert "COMPLETED" in "".join(caught.value.__notes__)
    assert bench.tables() == ["one.t", "two.u"]

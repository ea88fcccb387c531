"""Faults on demand: scripted or seeded, and what a transaction makes of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from twophase.catalog import Environment
from twophase.errors import ConfigurationError, TransactionAborted, TransactionInDoubt
from twophase.model import ObjectPath, Outcome, Purpose, TableDefinition
from twophase.testing import ChaosCatalog, ChaosError, Faults
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.transaction import Transaction, TransactionState

PATH = ObjectPath.of("default", "t")
ROWS = pa.table({"id": [1, 2]})


def chaos(tmp_path: Path, **options: str) -> ChaosCatalog:
    return ChaosCatalog("chaos", {"store": str(tmp_path), **options}, Environment())


def coordinator(tmp_path: Path, catalog: ChaosCatalog) -> Coordinator:
    return Coordinator(Timeline(f"sqlite:///{tmp_path / 'timeline.db'}"), lambda _: catalog, name="faults")


def create(transaction: Transaction, catalog: ChaosCatalog) -> None:
    participant = transaction.stage(catalog, PATH, TableDefinition(ROWS.schema), purpose=Purpose.CREATE_TABLE_AS)
    assert participant is not None
    transaction.begin_participant(participant)
    transaction.write(participant, ROWS)
    transaction.commit()


def effects(faults: Faults, times: int) -> list[str]:
    """What each call of a step came to."""
    seen = []
    for _ in range(times):
        happened = False
        try:
            with faults.step("publish"):
                happened = True
        except (ChaosError, ConnectionError) as error:
            seen.append(f"{type(error).__name__} {'after' if happened else 'before'}")
        else:
            seen.append("done")
    return seen


def test_a_script_fails_the_step_it_names_the_time_it_names() -> None:
    faults = Faults("publish=error@1, publish=lost_reply@3,publish=error_after@4, abort=error")
    assert effects(faults, 5) == ["ChaosError before", "done", "ConnectionError after", "ChaosError after", "done"]
    assert faults.happened == [("publish", 1, "error"), ("publish", 3, "lost_reply"), ("publish", 4, "error_after")]


def test_a_seed_repeats_itself_and_another_one_differs() -> None:
    runs = [effects(Faults(seed=seed, rate=0.5), 40) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert "done" in runs[0]
    assert len(set(runs[0])) > 1


def test_cleared_faults_do_not_happen() -> None:
    faults = Faults("publish=error", seed=1, rate=1.0)
    faults.clear()
    assert effects(faults, 3) == ["done"] * 3


@pytest.mark.parametrize(
    "options",
    [
        {"faults": "publish"},
        {"faults": "publish=explode"},
        {"faults": "publish=error@x"},
        {"seed": "x"},
        {"purposes": "truncate"},
        {"fault": "publish=error"},
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_immediately(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        chaos(tmp_path, **options)


def test_an_outcome_that_cannot_be_learned_is_unknown(tmp_path: Path) -> None:
    catalog = chaos(tmp_path, faults="outcome=error@1,outcome=lost_reply@2")
    participant = catalog.two_phase_create_table(PATH, TableDefinition(ROWS.schema), purpose=Purpose.CREATE_TABLE_AS)
    assert participant is not None
    assert [participant.outcome() for _ in range(3)] == [Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.NOT_PUBLISHED]


def test_a_publish_whose_reply_was_lost_is_a_success(tmp_path: Path) -> None:
    catalog = chaos(tmp_path, faults="publish=lost_reply@1")
    home = coordinator(tmp_path, catalog)
    create(home.begin(), catalog)
    assert catalog.rows(PATH) == [{"id": 1}, {"id": 2}]
    assert catalog.faults.happened == [("publish", 1, "lost_reply")]
    home.close()


@pytest.mark.parametrize("seed", range(25))
def test_whatever_the_dice_say_the_caller_is_told_the_truth(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    catalog = chaos(tmp_path, seed=str(seed), rate="0.3")
    home = coordinator(tmp_path, catalog)
    transaction = home.begin()
    told: BaseException | None = None
    try:
        create(transaction, catalog)
    except Exception as error:
        told = error
        transaction.abort(error)
    catalog.faults.clear()
    if isinstance(told, TransactionInDoubt):
        (recovered,) = home.recover(transaction_id=transaction.id)
        assert catalog.table_exists(PATH) == (recovered.state is TransactionState.COMPLETED)
    else:
        assert catalog.table_exists(PATH) == (told is None), told
    for leftover in catalog.leftovers():
        catalog.remove_leftover(leftover)
    if catalog.table_exists(PATH):
        assert catalog.rows(PATH) == [{"id": 1}, {"id": 2}]
    else:
        create(home.begin(), catalog)  # It can be run again at once.
    home.close()


def test_a_definite_refusal_leaves_nothing(tmp_path: Path) -> None:
    catalog = chaos(tmp_path)
    home = coordinator(tmp_path, catalog)
    catalog.faults.add("publish", "error")
    with pytest.raises(TransactionAborted):
        create(home.begin(), catalog)
    assert catalog.leftovers() == []
    assert not catalog.table_exists(PATH)
    home.close()

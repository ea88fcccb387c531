"""Live transactions over stores that fail on demand: what is published, what is told, what is left."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.core.bench import (
    DEFINITION,
    ROWS,
    Bench,
    child,
    in_doubt,
    path,
    recorded,
    report_in,
    run_shape,
    run_shape_in,
    stage,
    write,
)
from twophase import failpoints
from twophase.catalog import TwoPhaseCatalogTable
from twophase.errors import (
    CatalogError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TimelineError,
    TransactionAborted,
    WriteConflictError,
)
from twophase.model import Level, ObjectPath, Purpose
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.testing.chaos import ChaosCatalog, ChaosError
from twophase.timeline.ids import coordinator_name, new_transaction_id, parts_of

MORE = pa.table({"id": [3]})


# -- one statement, several statements --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["single", "several"])
def test_nothing_is_seen_before_the_commit_and_all_of_it_after(bench: Bench, shape: str) -> None:
    coordinator = bench.coordinator()
    tx = coordinator.begin()
    write(tx, bench.catalogs["one"], "t")
    if shape == "several":
        write(tx, bench.catalogs["two"], "u")
    assert bench.tables() == []
    assert tx.state is TransactionState.INFLIGHT
    tx.commit()
    assert len(bench.tables()) == (1 if shape == "single" else 2)
    assert tx.state is recorded(coordinator, tx).state is TransactionState.COMPLETED


@pytest.mark.parametrize("shape", ["single", "several"])
def test_what_preparing_found_is_durable_with_the_decision(bench: Bench, shape: str) -> None:
    """A recovery publishes by it."""
    process = child(run_shape_in, bench.url, bench.directory, shape, failpoint="core.record_committing=exit_after")
    process.join(60)
    (record,) = bench.coordinator().timeline.transactions()
    assert record.state is TransactionState.COMMITTING
    for participant in record.participants:
        assert participant.state is ParticipantState.PREPARED
        assert participant.level is Level.ATOMIC
        assert (participant.document or {}).get("prepared")


def test_the_id_names_the_coordinator(bench: Bench) -> None:
    tx = bench.coordinator(name="Nightly ETL (Miller)").begin()
    parts = parts_of(tx.id)
    assert parts is not None and parts.coordinator == "nightly_etl_miller"
    assert parts_of("no id of ours") is None


def test_two_long_names_that_begin_alike_are_two_coordinators() -> None:
    names = {coordinator_name(f"nightly_revenue_pipeline_{region}") for region in ("eu", "us")}
    assert len(names) == 2
    parts = [parts_of(new_transaction_id(name)) for name in names]
    assert {found and found.coordinator for found in parts} == names and all(len(name) <= 24 for name in names)


def test_applications_whose_names_differ_outside_ascii_are_different_coordinators() -> None:
    """They would take over each other's transactions."""
    texts = ["日次バッチ", "отчёт", "ETL 日次", "ETL 月次", "etl", "twophase", "Zürich", "Zörich", "ü" * 30]
    names = [coordinator_name(text) for text in texts]
    assert len(set(names)) == len(texts)
    assert all(parts_of(new_transaction_id(name)) for name in names)
    assert [coordinator_name(name) for name in names] == names
    assert coordinator_name("Отчёт") == coordinator_name("отчёт")


def test_a_single_publish_reaches_level_three_and_several_reach_two(bench: Bench) -> None:
    coordinator = bench.coordinator()
    single, several = coordinator.begin(), coordinator.begin()
    write(single, bench.catalogs["one"], "t")
    write(several, bench.catalogs["one"], "v")
    write(several, bench.catalogs["two"], "w")
    assert (single.level, single.level_reasons) == (Level.ATOMIC, [])
    assert several.level is Level.REVERSIBLE
    assert several.level_reasons == ["several publishes, one after the other"]
    single.commit()
    several.commit()
    assert recorded(coordinator, single).level is Level.ATOMIC
    assert recorded(coordinator, several).level is Level.REVERSIBLE


def test_tables_of_one_store_are_published_in_one_step_at_level_three(bench: Bench) -> None:
    bench.options["group_publish"] = "true"
    bench.catalogs["one"] = bench.new_catalog("one")
    tx = bench.coordinator().begin()
    for name in ("t", "u", "v"):
        write(tx, bench.catalogs["one"], name)
    assert tx.level is Level.ATOMIC
    tx.commit()
    assert bench.tables() == ["one.t", "one.u", "one.v"]


def test_a_level_below_three_says_why(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    participant = stage(tx, bench.catalogs["one"], "t")
    participant.document |= {"level": 2, "level_reason": "files are moved one by one"}
    assert tx.level is Level.REVERSIBLE
    assert tx.level_reasons == ["one.default.t: files are moved one by one"]
    tx.abort()


def test_a_statement_that_a_catalog_refuses_or_does_not_offer_leaves_no_row(bench: Bench) -> None:
    coordinator = bench.coordinator()
    tx = coordinator.begin()
    with pytest.raises(DatabaseNotExistError):
        tx.stage(bench.catalogs["one"], ObjectPath.of("nowhere", "t"), DEFINITION, purpose=Purpose.CREATE_TABLE_AS)
    arguments: dict[str, Any] = {"purpose": Purpose.CREATE_TABLE_AS, "is_streaming_mode": True}
    assert tx.stage(bench.catalogs["one"], path("t"), DEFINITION, **arguments) is None
    tx.commit()
    assert coordinator.timeline.transactions() == []


def test_a_plugin_that_returns_no_participant_is_reported_and_leaves_no_row(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = bench.catalogs["one"]
    monkeypatch.setattr(catalog, "two_phase_create_table", lambda *_, **__: "t")
    coordinator = bench.coordinator()

    with pytest.raises(CatalogError, match=r"answered str for default\.t"):
        coordinator.begin().stage(catalog, path("t"), DEFINITION, purpose=Purpose.CREATE_TABLE_AS)

    assert coordinator.timeline.transactions() == []


def test_commit_and_abort_may_be_repeated(bench: Bench) -> None:
    tx = run_shape(bench, "single")
    tx.commit()
    tx.abort()
    assert tx.state is TransactionState.COMPLETED
    assert bench.tables() == ["one.t"]
    other = bench.coordinator().begin()
    other.abort()
    other.abort()
    with pytest.raises(TransactionAborted, match="has ended"):
        other.commit()
    with pytest.raises(TransactionAborted, match="has ended"):
        stage(other, bench.catalogs["one"], "u")


def test_a_transaction_of_many_threads_ends_once(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    barrier, ends = threading.Barrier(6), []

    def end(method: Callable[[], None]) -> None:
        barrier.wait()
        try:
            method()
            ends.append(tx.state)
        except TransactionAborted:
            ends.append(TransactionState.ROLLED_BACK)

    threads = [threading.Thread(target=end, args=(m,)) for m in (tx.commit, tx.abort) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(ends) == {tx.state}
    assert bench.tables() == (["one.t"] if tx.state is TransactionState.COMPLETED else [])
    assert bench.staged() == []


# -- statements on one table ------------------------------------------------------------------------------------------


def test_a_second_statement_builds_on_what_the_first_staged(bench: Bench) -> None:
    coordinator = bench.coordinator()
    tx = coordinator.begin()
    first = write(tx, bench.catalogs["one"], "t")
    second = write(tx, bench.catalogs["one"], "t", Purpose.INSERT_INTO, MORE)
    assert tx.find("one", path("t")) is second
    assert tx.participants == [second]
    assert first.document == second.document["base"]
    tx.commit()
    assert [row["id"] for row in bench.catalogs["one"].rows(path("t"))] == [1, 2, 3]
    assert bench.staged() == []
    states = [p.state for p in recorded(coordinator, tx).participants]
    assert states == [ParticipantState.SUPERSEDED, ParticipantState.PUBLISHED]


def test_a_statement_that_fails_can_be_taken_out_of_a_transaction_that_goes_on(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    failed = write(tx, bench.catalogs["one"], "t", Purpose.INSERT_INTO, MORE)
    other = write(tx, bench.catalogs["two"], "u")
    tx.discard(failed)
    tx.discard(failed)
    tx.discard(other)
    tx.commit()
    assert bench.tables() == ["one.t"]
    assert [row["id"] for row in bench.catalogs["one"].rows(path("t"))] == [1, 2]
    assert bench.staged() == []


def test_a_discarded_table_is_free_for_others(bench: Bench) -> None:
    coordinator = bench.coordinator()
    tx = coordinator.begin()
    tx.discard(write(tx, bench.catalogs["one"], "t"))
    run_shape(bench, "single")
    write(tx, bench.catalogs["two"], "u")
    tx.commit()
    assert bench.tables() == ["one.t", "two.u"]


def test_what_could_not_be_discarded_is_removed_at_the_end(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    failed = write(tx, bench.catalogs["one"], "t")
    write(tx, bench.catalogs["two"], "u")
    bench.catalogs["one"].faults.add("abort", "error", 1)
    tx.discard(failed)
    tx.commit()
    assert bench.tables() == ["two.u"]
    assert bench.staged() == []


def test_a_discard_that_cannot_be_recorded_lets_the_whole_transaction_end(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    failed = write(tx, bench.catalogs["one"], "t")
    write(tx, bench.catalogs["two"], "u")
    failpoints.arm("core.save_participant", "error")
    tx.discard(failed)
    failpoints.disarm()
    with pytest.raises(TimelineError):
        tx.commit()
    assert bench.tables() == []
    assert bench.staged() == []


# -- conflicts --------------------------------------------------------------------------------------------------------


def test_of_two_writers_of_one_name_one_wins_and_the_other_touches_nothing_of_it(bench: Bench) -> None:
    winner, loser = bench.coordinator().begin(), bench.coordinator().begin()
    write(loser, bench.catalogs["one"], "t", rows=MORE)
    write(winner, bench.catalogs["one"], "t")
    winner.commit()
    with pytest.raises(WriteConflictError, match=loser.id):
        loser.commit()
    assert loser.state is TransactionState.ROLLED_BACK
    assert [row["id"] for row in bench.catalogs["one"].rows(path("t"))] == [1, 2]
    assert bench.staged() == []


@pytest.mark.parametrize("shape", ["single", "several"])
def test_of_many_processes_that_write_one_name_one_wins(bench: Bench, shape: str) -> None:
    names = [f"told{number}" for number in range(5)]
    children = [child(report_in, bench.url, bench.directory, shape, 60.0, name) for name in names]
    for process in children:
        process.join(120)
    told = sorted((bench.directory / name).read_text() for name in names)
    assert told[0] == "COMPLETED"
    assert set(told[1:]) <= {"WriteConflictError", "TableAlreadyExistsError"}
    assert len(bench.tables()) == (1 if shape == "single" else 2)
    assert bench.staged() == []
    assert not bench.coordinator().timeline.transactions(open_only=True)


def test_many_appends_to_one_table_all_succeed_one_after_the_other(bench: Bench) -> None:
    run_shape(bench, "single")
    failed: list[BaseException] = []

    def append(number: int) -> None:
        try:
            tx = bench.coordinator().begin()
            write(tx, bench.catalogs["one"], "t", Purpose.INSERT_INTO, pa.table({"id": [number]}))
            tx.commit()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(10, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(row["id"] for row in bench.catalogs["one"].rows(path("t"))) == [1, 2, *range(10, 16)]


def test_a_table_held_by_a_transaction_in_doubt_is_refused_and_names_it(bench: Bench) -> None:
    doubtful = in_doubt(bench)
    with pytest.raises(WriteConflictError, match=doubtful.id):
        write(bench.coordinator().begin(), bench.catalogs["one"], "t")
    bench.catalogs["one"].faults.clear()
    with pytest.raises(TableAlreadyExistsError):  # It is asked again on the way, and turns out to be published.
        write(bench.coordinator().begin(), bench.catalogs["one"], "t")


# -- errors -----------------------------------------------------------------------------------------------------------


def test_the_original_error_reaches_the_user_with_what_went_wrong_while_cleaning_up(bench: Bench) -> None:
    coordinator = bench.coordinator()
    tx = coordinator.begin()
    participant = stage(tx, bench.catalogs["one"], "t")
    tx.begin_participant(participant)
    bench.catalogs["one"].faults.add("abort", "error")
    original = ValueError("the user's own mistake; password=hunter2")
    tx.abort(original)
    notes = "\n".join(original.__notes__)
    assert "ChaosError" in notes
    assert "Left behind" in notes
    record = recorded(coordinator, tx)
    assert record.state is tx.state is TransactionState.ROLLED_BACK
    assert record.left_behind == tx.left_behind == tuple(bench.staged())
    assert record.error == "ValueError: the user's own mistake; password=***"


def test_what_an_abort_left_behind_is_removed_by_a_recovery_of_that_transaction(bench: Bench) -> None:
    coordinator = bench.coordinator()
    tx = coordinator.begin()
    write(tx, bench.catalogs["one"], "t")
    bench.catalogs["one"].faults.add("abort", "error", 1)
    tx.abort()
    assert bench.staged() != []
    (recovered,) = bench.coordinator().recover(transaction_id=tx.id)
    assert (recovered.state, recovered.left_behind) == (TransactionState.ROLLED_BACK, ())
    assert bench.staged() == []


def test_a_refusing_store_s_own_error_is_raised(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    bench.catalogs["one"].create_table(path("t"), DEFINITION)  # By somebody who does not use twophase.
    with pytest.raises(WriteConflictError) as caught:
        tx.commit()
    assert caught.value.transaction_id == tx.id
    assert tx.state is TransactionState.ROLLED_BACK
    assert bench.tables() == ["one.t"]
    assert bench.catalogs["one"].rows(path("t")) == []
    assert bench.staged() == []


def test_a_publish_that_failed_for_another_reason_is_raised_as_aborted_with_its_cause(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    bench.catalogs["one"].faults.add("publish", "error")
    with pytest.raises(TransactionAborted, match="nothing was published") as caught:
        tx.commit()
    assert isinstance(caught.value.__cause__, ChaosError)
    assert bench.tables() == []


def test_an_error_of_a_java_store_is_raised_in_its_own_words_without_its_stack(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "java.net.ConnectException: refused, password=hunter2"
    said = f"An error occurred while calling o42.alterTable.\n: {why}\n\tat org.apache.hadoop.hive.Client.alter(C:7)\n"

    def publish(_: object) -> None:
        raise RuntimeError(said)

    coordinator = bench.coordinator()
    tx = coordinator.begin()
    monkeypatch.setattr(type(write(tx, bench.catalogs["one"], "t")), "commit", publish)
    with pytest.raises(TransactionAborted) as caught:
        tx.commit()
    assert caught.value.message.endswith("nothing was published: java.net.ConnectException: refused, password=***")
    assert recorded(coordinator, tx).error == "RuntimeError: java.net.ConnectException: refused, password=***"


# -- in doubt ---------------------------------------------------------------------------------------------------------


# -- interrupts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step", ["core.record_committing", "core.publish", "core.record_completed", "core.finish", "core.record_finished"]
)
@pytest.mark.parametrize("shape", ["single", "several"])
def test_ctrl_c_during_the_commit_ends_it_one_way_or_the_other(bench: Bench, step: str, shape: str) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    failpoints.arm(step, interrupt, nth=1)
    with pytest.raises(KeyboardInterrupt) as caught:
        run_shape(bench, shape)
    failpoints.disarm()
    told = "\n".join(caught.value.__notes__)
    bench.coordinator().recover()
    assert len(bench.tables()) == (0 if "ROLLED_BACK" in told else 1 if shape == "single" else 2)
    assert bench.staged() == []


# -- secrets, policies ------------------------------------------------------------------------------------------------


def test_options_of_a_catalog_are_nowhere_on_the_timeline(bench: Bench) -> None:
    bench.options["password"] = "hunter2"
    bench.catalogs["one"] = bench.new_catalog("one")
    tx = run_shape(bench, "single")
    assert "hunter2" not in repr(tx.participants)
    assert b"hunter2" not in pickle.dumps(tx.participants)
    for file in bench.directory.glob("timeline.db*"):
        assert b"hunter2" not in file.read_bytes()


def test_a_participant_of_another_transaction_is_refused(bench: Bench) -> None:
    coordinator = bench.coordinator()
    one, other = coordinator.begin(), coordinator.begin()
    participant: TwoPhaseCatalogTable = stage(one, bench.catalogs["one"], "t")
    with pytest.raises(ValueError, match=other.id):
        other.write(participant, ROWS)
    one.abort()


def test_a_participant_is_on_the_timeline_before_anything_is_staged(bench: Bench) -> None:
    coordinator = bench.coordinator()
    tx = coordinator.begin()
    participant = stage(tx, bench.catalogs["one"], "t")
    record = recorded(coordinator, tx)
    assert record.state is TransactionState.INFLIGHT
    assert record.participants[0].document == participant.document
    assert bench.staged() == []
    tx.abort()


def test_what_is_still_live_when_its_coordinator_closes_is_given_up(bench: Bench) -> None:
    coordinator = bench.coordinator()
    tx = coordinator.begin()
    write(tx, bench.catalogs["one"], "t")
    coordinator.close()
    assert tx.state is TransactionState.ROLLED_BACK
    assert bench.staged() == []
    with pytest.raises(TransactionAborted):
        tx.commit()


class FoldingCatalog(ChaosCatalog):
    """A store that does not tell upper from lower case."""

    def canonical(self, path: ObjectPath) -> ObjectPath:
        return ObjectPath(path.namespace, path.name.lower())

    def two_phase_create_table(self, path: ObjectPath, *arguments: Any, **more: Any) -> TwoPhaseCatalogTable | None:
        return super().two_phase_create_table(self.canonical(path), *arguments, **more)


def test_two_spellings_of_one_table_are_one_table(bench: Bench) -> None:
    bench.catalogs["one"] = FoldingCatalog("one", bench.catalogs["one"].options)
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "Sales")
    second = write(tx, bench.catalogs["one"], "SALES", Purpose.INSERT_INTO, MORE)
    assert second.document["base"] is not None
    assert tx.find("one", path("sALES")) is second
    other = bench.coordinator().begin()
    write(other, bench.catalogs["one"], "sales")
    tx.commit()
    assert bench.tables() == ["one.sales"]
    with pytest.raises(WriteConflictError):
        other.commit()

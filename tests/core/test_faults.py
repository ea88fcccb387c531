"""A real timeline and stores: every step of the core fails, or its process ends there; then a recovery."""

from __future__ import annotations

import pytest

from tests.core.bench import SHAPES, Bench, child, path, recover_in, run_shape, run_shape_in
from twophase import failpoints
from twophase.errors import TransactionInDoubt, TwoPhaseError
from twophase.failpoints import EXIT_CODE, FailpointError
from twophase.protocol.states import TransactionState

quick_first_cases = True

#: Steps of a live transaction; those of a recovery stand below.
LIVE = [
    "core.record_inflight",
    "core.begin",
    "core.write",
    "core.reserve",
    "core.prepare",
    "core.persist",
    "core.save_participant",
    "core.record_committing",
    "core.publish",
    "core.record_completed",
    "core.finish",
    "core.record_finished",
]
RECOVERY = ["core.take_over", "core.record_rolled_back", "core.abort", "core.outcome", "core.record_finished"]
#: Reached only when a store refuses or does not answer, or time passes: tested by name elsewhere in this folder.
ELSEWHERE = {"core.compensate", "core.suspend", "core.record_in_doubt", "core.heartbeat", "core.record_snapshot"}
#: Of named savepoints: tried by ``tests/hive/test_named_savepoints.py`` and the crash matrices' scenarios of a restore.
ELSEWHERE |= {"core.record_savepoint", "core.keep", "core.forget_kept"}
#: Of changes outside transactions: tried by ``tests/spark/isolation``.
ELSEWHERE |= {"core.record_immediate", "core.record_immediate_end"}

shapes = pytest.mark.parametrize("shape", SHAPES)


def check(bench: Bench, shape: str) -> TransactionState | None:
    """Recover from a fresh coordinator; then all tables are there, or none, and nothing is left."""
    coordinator = bench.coordinator()
    coordinator.recover()
    records = coordinator.timeline.transactions()
    assert not [record for record in records if record.is_open]
    state = records[0].state if records else None
    everything = [f"{catalog}.{name}" for catalog, name in SHAPES[shape]]
    assert bench.tables() == (everything if state is TransactionState.COMPLETED else [])
    assert bench.staged() == []
    return state


def test_every_step_of_the_core_is_tried() -> None:
    declared = {name for name in failpoints.declared() if name.startswith("core.")}
    assert declared <= {*LIVE, *RECOVERY, *ELSEWHERE}


@shapes
@pytest.mark.parametrize("step", LIVE)
@pytest.mark.parametrize("action", ["error", "error_after", "lost_reply"])
def test_an_error_at_any_step_ends_in_all_or_nothing(bench: Bench, shape: str, step: str, action: str) -> None:
    failpoints.arm(step, action, nth=1)
    told = None
    try:
        told = run_shape(bench, shape).state
    except TransactionInDoubt:
        told = TransactionState.IN_DOUBT
    except Exception:
        told = TransactionState.ROLLED_BACK
    failpoints.disarm()
    ended = check(bench, shape)
    if told is not TransactionState.IN_DOUBT:
        assert ended in (told, None)


@shapes
@pytest.mark.parametrize("step", LIVE)
@pytest.mark.parametrize("action", ["error", "error_after"])
def test_an_error_that_stays_does_not_lead_to_half_a_transaction(
    bench: Bench, shape: str, step: str, action: str
) -> None:
    failpoints.arm(step, action)
    try:
        run_shape(bench, shape)
    except (TwoPhaseError, FailpointError) as error:
        assert "core." in f"{error} {error.__cause__}", "another error than the first one came out"
    failpoints.disarm()
    check(bench, shape)


@shapes
@pytest.mark.parametrize("step", LIVE)
@pytest.mark.parametrize("action", ["exit", "exit_after"])
def test_a_process_killed_at_any_step_is_recovered_by_a_fresh_one(
    bench: Bench, shape: str, step: str, action: str
) -> None:
    process = child(run_shape_in, bench.url, bench.directory, shape, failpoint=f"{step}={action}@1")
    process.join(60)
    assert process.exitcode == EXIT_CODE
    check(bench, shape)


@shapes
@pytest.mark.parametrize("step", RECOVERY)
@pytest.mark.parametrize("action", ["exit", "exit_after"])
@pytest.mark.parametrize("found", ["core.prepare", "core.publish"])
def test_a_recovery_killed_at_any_step_is_carried_on_by_the_next(
    bench: Bench, shape: str, step: str, action: str, found: str
) -> None:
    first = child(run_shape_in, bench.url, bench.directory, shape, failpoint=f"{found}=exit_after@1")
    first.join(60)
    assert first.exitcode == EXIT_CODE
    second = child(recover_in, bench.url, bench.directory, failpoint=f"{step}={action}@1")
    second.join(60)
    assert second.exitcode in (EXIT_CODE, 0)  # 0: this recovery had no such step.
    check(bench, shape)


def test_a_killed_statement_can_be_run_again_at_once(bench: Bench) -> None:
    for step in LIVE[: LIVE.index("core.publish")]:
        process = child(run_shape_in, bench.url, bench.directory, "single", failpoint=f"{step}=exit_after@1")
        process.join(60)
        assert process.exitcode == EXIT_CODE
        # No recovery was asked for: what is in the way is recovered on the way.
        run_shape(bench, "single")
        assert bench.tables() == ["one.t"]
        bench.catalogs["one"].drop_table(path("t"))
    coordinator = bench.coordinator()
    coordinator.recover()
    assert not coordinator.timeline.transactions(open_only=True)
    assert bench.staged() == []


def test_an_error_of_the_test_double_is_what_the_user_sees(bench: Bench) -> None:
    failpoints.arm("core.write", "error")
    with pytest.raises(FailpointError):
        run_shape(bench, "single")

"""Leases: a live transaction is never recovered, a silent one is, and a zombie cannot publish."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.core.bench import ROWS, Bench, child, path, report_in, run_shape, stage, write
from twophase import failpoints
from twophase.errors import LeaseLostError, TransactionAborted, TwoPhaseError
from twophase.protocol.states import TransactionState
from twophase.timeline import engines, owners
from twophase.timeline.heartbeat import Heartbeat
from twophase.timeline.owners import Lease, Owner, this_process
from twophase.timeline.records import TransactionRecord
from twophase.transactions import lifecycle
from twophase.transactions.coordinator import Coordinator

LEASE = 1.0


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Poll for something that another process does."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


class Sleeper:
    """A child that reached a step, and is stopped there with all its threads, as by a long pause of its machine."""

    def __init__(self, bench: Bench, step: str, shape: str) -> None:
        self._step = step
        self._directory = bench.directory
        arguments = (bench.url, bench.directory, shape, LEASE)
        self.process = child(report_in, *arguments, failpoint=f"{step}=pause@1", directory=bench.directory)
        wait_until((bench.directory / f"{step}.reached").exists)
        os.kill(self.process.pid, signal.SIGSTOP)

    def wake(self) -> str:
        """Let it go on; what its user was told."""
        (self._directory / f"{self._step}.go").touch()
        os.kill(self.process.pid, signal.SIGCONT)
        self.process.join(60)
        return (self._directory / "told").read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(60)


@pytest.fixture
def sleeper(bench: Bench) -> Iterator[Callable[[str, str], Sleeper]]:
    started: list[Sleeper] = []

    def start(step: str, shape: str = "single") -> Sleeper:
        started.append(Sleeper(bench, step, shape))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def only(coordinator: Coordinator) -> TransactionRecord:
    (record,) = coordinator.timeline.transactions()
    return record


def wait_for_silence(coordinator: Coordinator) -> None:
    wait_until(lambda: only(coordinator).is_dead(coordinator.timeline.now()))


@pytest.mark.promise("leases", "a driver that lost its lease cannot publish")
@pytest.mark.parametrize("step", ["core.begin", "core.write", "core.prepare", "core.record_committing"])
def test_a_zombie_that_lost_its_lease_cannot_publish(bench: Bench, sleeper: Callable[..., Sleeper], step: str) -> None:
    zombie = sleeper(step)
    coordinator = bench.coordinator()
    wait_for_silence(coordinator)
    (recovered,) = coordinator.recover()
    assert recovered.state is TransactionState.ROLLED_BACK
    assert zombie.wake() == "LeaseLostError"
    assert bench.tables() == []
    assert only(coordinator).state is TransactionState.ROLLED_BACK


@pytest.mark.parametrize("shape", ["single", "several"])
def test_a_zombie_in_the_middle_of_its_publish_is_rolled_forward_and_told_so(
    bench: Bench, sleeper: Callable[..., Sleeper], shape: str
) -> None:
    """Its owner may go on at any moment, so that only an outcome that both bring about is safe."""
    zombie = sleeper("core.publish", shape)
    coordinator = bench.coordinator()
    wait_for_silence(coordinator)
    (recovered,) = coordinator.recover()
    assert recovered.state is TransactionState.COMPLETED
    published = bench.tables()
    assert zombie.wake() == "COMPLETED"
    assert bench.tables() == published
    assert bench.staged() == []


def test_a_zombie_in_the_middle_of_its_publish_is_not_rolled_back_by_a_second_recovery_either(
    bench: Bench, sleeper: Callable[..., Sleeper]
) -> None:
    zombie = sleeper("core.publish")
    bench.catalogs["one"].faults.add("publish", "error", 1)
    coordinator = bench.coordinator()
    wait_for_silence(coordinator)
    assert [r.state for r in coordinator.recover()] == [TransactionState.IN_DOUBT]
    assert [r.state for r in coordinator.recover()] == [TransactionState.COMPLETED]
    assert zombie.wake() == "COMPLETED"
    assert bench.tables() == ["one.t"]


def test_a_killed_process_is_recovered_without_waiting_for_its_lease(
    bench: Bench, sleeper: Callable[..., Sleeper]
) -> None:
    dead = sleeper("core.prepare")
    dead.kill()
    coordinator = bench.coordinator()
    assert only(coordinator).is_certainly_dead(coordinator.timeline.now())
    (recovered,) = coordinator.recover()
    assert recovered.state is TransactionState.ROLLED_BACK


@pytest.mark.promise("leases", "a live transaction is never recovered by others, however long it takes")
def test_a_live_transaction_is_never_recovered_however_long_it_takes(bench: Bench) -> None:
    coordinator = bench.coordinator(lease_seconds=0.4)
    tx = coordinator.begin()
    write(tx, bench.catalogs["one"], "t")
    other = bench.coordinator()
    first = only(other).lease_until
    wait_until(lambda: other.timeline.now() > first)  # Its first lease alone would have run out.
    wait_until(lambda: only(other).lease_until > first)
    assert other.recover() == []
    (left_alone,) = other.recover(transaction_id=tx.id)
    assert "alive" in (left_alone.note or "")
    tx.commit()
    assert bench.tables() == ["one.t"]


def test_a_writer_that_was_silent_while_it_prepared_removes_what_it_made_after_the_recovery(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, catalog = bench.coordinator(lease_seconds=0.2), bench.catalogs["one"]
    tx = coordinator.begin()
    participant = stage(tx, catalog, "t")
    tx.begin_participant(participant)
    tx.write(participant, ROWS)
    prepare = participant.prepare

    def slowly() -> None:
        prepare()
        coordinator._heartbeat.stop()
        other = bench.coordinator()
        monkeypatch.setattr(TransactionRecord, "is_dead", lambda *_: True)
        wait_until(lambda: other.timeline.now() > only(other).lease_until)
        (recovered,) = other.recover()
        assert recovered.state is TransactionState.ROLLED_BACK
        assert bench.staged() == []
        participant.begin()  # As a store that makes one more thing to publish with.

    monkeypatch.setattr(participant, "prepare", slowly)
    with pytest.raises(LeaseLostError):
        tx.commit()
    assert bench.staged() == []
    assert bench.tables() == []


def test_a_writer_whose_publish_was_taken_back_before_its_end_is_told_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, other = bench.coordinator(), bench.coordinator()
    tx = coordinator.begin()
    participant = write(tx, bench.catalogs["one"], "t")
    # As a store that was paused in the middle, and skips what the one that took over has removed meanwhile.
    monkeypatch.setattr(participant, "commit", lambda: None)

    def take_over(_: str) -> None:
        failpoints.disarm()
        coordinator._heartbeat.stop()
        other.timeline.give_up(_stolen(coordinator, tx.id))
        (recovered,) = other.recover()
        assert recovered.state is TransactionState.ROLLED_BACK

    failpoints.arm("core.record_completed", take_over)
    with pytest.raises(TransactionAborted):
        tx.commit()
    assert tx.state is TransactionState.ROLLED_BACK
    assert bench.tables() == []


# -- the clock --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("leases", "a clock that is set takes no live transaction from a process of this machine")
@pytest.mark.parametrize("step", [-7200.0, 7200.0])
def test_a_clock_that_is_set_takes_no_live_transaction_from_a_process_of_this_machine(
    bench: Bench, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    other = bench.coordinator()
    set_clock(monkeypatch, step)
    # As another process of this machine sees it; in a container it would not see the process itself.
    monkeypatch.setattr(TransactionRecord, "is_abandoned", lambda record: not record.is_open)
    assert other.recover() == []
    assert other.timeline.take_over(only(other), this_process(), 60) is None
    tx.commit()
    assert bench.tables() == ["one.t"]


@pytest.mark.promise("leases", "a clock that is set back keeps no table for a dead one")
def test_a_clock_that_is_set_back_keeps_no_table_for_one_that_is_dead(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = bench.coordinator(lease_seconds=60)
    tx = coordinator.begin()
    write(tx, bench.catalogs["one"], "t")
    coordinator._heartbeat.stop()
    # From before the machine's last start, whose process nobody can look for.
    execute(coordinator, "UPDATE twophase_transactions SET boot_id = 'an earlier start'")
    set_clock(monkeypatch, -30 * 86_400)
    other = bench.coordinator()
    assert other.recover() == []  # It may live: its owner has a lease's time to say so.
    set_clock(monkeypatch, -30 * 86_400 + 30)
    assert other.recover() == []
    set_clock(monkeypatch, -30 * 86_400 + 61)
    assert [found.state for found in other.recover()] == [TransactionState.ROLLED_BACK]


def test_a_heartbeat_that_is_stopped_while_it_is_at_work_ends_with_that(bench: Bench) -> None:
    def stop(_: str) -> None:
        stopping.start()
        wait_until(lambda: heartbeat._thread is None)

    heartbeat = Heartbeat(bench.coordinator().timeline, 60, on_timeout=stop)
    stopping = threading.Thread(target=heartbeat.stop)
    heartbeat.add(Lease("t", 1, 240), ends_at=0)
    beating = heartbeat._thread
    assert beating is not None
    beating.join(4)
    assert not beating.is_alive()
    stopping.join()


def set_clock(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    real = time.time
    monkeypatch.setattr(engines, "time", SimpleNamespace(time=lambda: real() + step, monotonic=time.monotonic))


def execute(coordinator: Coordinator, statement: str) -> None:
    with coordinator.timeline._engine.begin() as connection:
        connection.exec_driver_sql(statement)


# -- a process that forks ---------------------------------------------------------------------------------------------


forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.mark.promise("contexts", "a forked child changes nothing of its parent's transaction")
@forks
@pytest.mark.parametrize("way", ["abort", "commit", "statement", "close", "collected"])
def test_a_forked_child_changes_nothing_of_its_parent_s_transaction(bench: Bench, way: str) -> None:
    coordinator = bench.coordinator(lease_seconds=0.8)
    tx = coordinator.begin()
    write(tx, bench.catalogs["one"], "t")
    # A thread of the parent may have them at the fork; no thread of the child ever gives them back.
    taken, forked = threading.Event(), threading.Event()

    def hold_locks() -> None:
        with coordinator._heartbeat._changed, owners._held_lock, tx._life.lock:
            taken.set()
            assert forked.wait(60)

    holder = threading.Thread(target=hold_locks)
    holder.start()
    assert taken.wait(60)
    pid = os.fork()
    if pid == 0:
        os._exit(in_the_child(coordinator, bench, way))
    forked.set()
    holder.join()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert only(coordinator).state is TransactionState.INFLIGHT
    tx.commit()
    assert bench.tables() == ["one.t"]


def in_the_child(coordinator: Coordinator, bench: Bench, way: str) -> int:
    """What a child may do that leaves its parent's block; 0 where it was refused with words, or did nothing."""
    signal.alarm(30)  # A child that waits for a lock is killed.
    (transaction_id,) = coordinator._live
    tx = coordinator.find(transaction_id)
    assert tx is not None
    try:
        if way == "abort":
            tx.abort(SystemExit(0))
            return 0
        if way == "close":
            coordinator.close()
            return 0
        if way == "collected":
            coordinator.ended(tx.id)
            return 0
        if way == "commit":
            tx.commit()
        else:
            stage(tx, bench.catalogs["two"], "u")
    except TwoPhaseError as error:
        return 0 if "fork" in str(error) and str(os.getppid()) in str(error) else 2
    return 3


@forks
def test_a_forked_child_writes_nothing_with_its_parent_s_lease(bench: Bench) -> None:
    coordinator = bench.coordinator()
    tx = coordinator.begin()
    write(tx, bench.catalogs["one"], "t")
    lease = _stolen(coordinator, tx.id)
    pid = os.fork()
    if pid == 0:
        try:
            coordinator.timeline.give_up(lease)
        except TwoPhaseError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    tx.commit()


@pytest.mark.parametrize("where", ["heartbeat", "finalizer"])
def test_an_interrupt_while_a_transaction_is_recorded_leaves_it_to_be_rolled_back(
    bench: Bench, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    coordinator = bench.coordinator()
    tx = coordinator.begin()
    if where == "heartbeat":
        monkeypatch.setattr(coordinator._heartbeat, "add", interrupt)
    else:
        monkeypatch.setattr(lifecycle, "weakref", SimpleNamespace(finalize=interrupt))
    with pytest.raises(KeyboardInterrupt) as caught:
        stage(tx, bench.catalogs["one"], "t")
    monkeypatch.undo()
    if where == "heartbeat":
        tx.abort(caught.value)
        assert [found.state for found in coordinator.recover()] == [TransactionState.ROLLED_BACK]
    else:
        with pytest.raises(KeyboardInterrupt):
            tx.commit()
    assert only(coordinator).state is TransactionState.ROLLED_BACK
    assert bench.tables() == []


def test_a_transaction_that_nobody_refers_to_any_more_is_recovered(bench: Bench) -> None:
    coordinator = bench.coordinator()
    tx = coordinator.begin()
    write(tx, bench.catalogs["one"], "t")
    assert coordinator.recover() == []
    del tx
    (recovered,) = coordinator.recover()
    assert recovered.state is TransactionState.ROLLED_BACK
    assert bench.staged() == []


def test_transactions_of_other_coordinators_are_left_alone(bench: Bench) -> None:
    tx = bench.coordinator(name="theirs").begin()
    stage(tx, bench.catalogs["one"], "t")
    del tx
    ours = bench.coordinator(name="ours")
    assert ours.recover() == []
    assert only(ours).state is TransactionState.INFLIGHT
    assert [r.state for r in ours.recover(own_only=False)] == [TransactionState.ROLLED_BACK]


def test_a_lease_lost_to_another_process_fences_every_write(bench: Bench) -> None:
    coordinator = bench.coordinator()
    tx = coordinator.begin()
    participant = write(tx, bench.catalogs["one"], "t")
    line = bench.coordinator().timeline
    record = line.transaction(tx.id)
    assert record is not None
    line.give_up(_stolen(coordinator, tx.id))
    abandoned = line.transaction(tx.id)
    assert abandoned is not None
    assert line.take_over(abandoned, this_process(), 60) is not None
    with pytest.raises(LeaseLostError):
        stage(tx, bench.catalogs["two"], "u")
    tx.discard(participant)
    with pytest.raises(LeaseLostError):
        tx.commit()
    assert bench.tables() == []


def _stolen(coordinator: Coordinator, transaction_id: str) -> Any:
    tx = coordinator.find(transaction_id)
    assert tx is not None
    return tx._life.lease


def test_an_owner_that_goes_on_after_an_interrupt_is_not_taken_for_dead(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C right after IN_DOUBT was recorded, with which a lease is given up."""
    coordinator, other = bench.coordinator(), bench.coordinator()
    tx = coordinator.begin()
    write(tx, bench.catalogs["one"], "t")
    faults, record = bench.catalogs["one"].faults, coordinator.timeline.record
    faults.add("publish", "error", 1)
    faults.add("outcome", "error")
    recovered: list[Any] = []

    def interrupted(lease: Lease, state: TransactionState, **facts: Any) -> None:
        record(lease, state, **facts)
        if state is TransactionState.IN_DOUBT:
            faults.clear()
            failpoints.arm("core.outcome", lambda _: recovered.extend(other.recover()), nth=1)
            raise KeyboardInterrupt

    monkeypatch.setattr(coordinator.timeline, "record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    assert failpoints.reached()["core.outcome"] >= 1
    assert recovered == []
    assert tx.state is TransactionState.ROLLED_BACK


def test_a_lease_that_was_given_up_and_taken_up_again_is_not_taken_over(bench: Bench) -> None:
    coordinator, other = bench.coordinator(), bench.coordinator()
    tx = coordinator.begin()
    write(tx, bench.catalogs["one"], "t")
    lease = _stolen(coordinator, tx.id)
    coordinator.timeline.give_up(lease)
    found = other.timeline.transaction(tx.id)
    assert found is not None
    coordinator.timeline.renew(lease)
    assert other.timeline.take_over(found, this_process(), 60) is None
    tx.commit()
    assert bench.tables() == ["one.t"]


def test_only_one_of_many_recoveries_takes_a_transaction(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    transaction_id = tx.id
    del tx
    coordinators = [bench.coordinator() for _ in range(6)]
    barrier = threading.Barrier(len(coordinators))
    taken: list[Any] = []

    def take(coordinator: Coordinator) -> None:
        record = coordinator.timeline.transaction(transaction_id)
        assert record is not None
        barrier.wait()
        taken.append(coordinator.timeline.take_over(record, this_process(), 60))

    threads = [threading.Thread(target=take, args=(c,)) for c in coordinators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([lease for lease in taken if lease]) == 1


def test_a_timeline_that_is_away_for_a_while_does_not_end_a_transaction(bench: Bench) -> None:
    beats = threading.Event()
    failpoints.arm("core.heartbeat", lambda _: _fail(beats), nth=1)
    coordinator = bench.coordinator(lease_seconds=0.4)
    tx = coordinator.begin()
    write(tx, bench.catalogs["one"], "t")
    assert beats.wait(30)
    tx.commit()
    assert bench.tables() == ["one.t"]


def _fail(beats: threading.Event) -> None:
    beats.set()
    raise ConnectionError("the timeline is away")


def test_two_recoveries_at_once_leave_one_outcome(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    write(tx, bench.catalogs["two"], "u")
    del tx
    threads = [threading.Thread(target=bench.coordinator().recover) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert only(bench.coordinator()).state is TransactionState.ROLLED_BACK
    assert bench.staged() == []


# -- who is gone ------------------------------------------------------------------------------------------------------


def test_this_process_is_not_gone() -> None:
    assert not this_process().is_gone()


def test_clones_of_one_machine_are_distinguished(bench: Bench) -> None:
    """They share the machine's name and start, and all numbers of their processes."""
    me = this_process()
    clone = replace(me, token="another")
    coordinator = bench.coordinator()
    tx = coordinator.begin()
    write(tx, bench.catalogs["one"], "t")
    execute(coordinator, "UPDATE twophase_transactions SET token = 'another', id = 'a-clone-s'")
    assert only(coordinator).owner == clone != me
    assert coordinator.recover() == []  # Else it would be this very process's, and nobody would work on it.


@forks
def test_a_forked_child_is_another_process() -> None:
    before = this_process().token
    assert before == this_process().token != ""
    pid = os.fork()
    if pid == 0:
        os._exit(1 if this_process().token == before else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_process_number_that_another_process_has_now_is_gone() -> None:
    me = this_process()
    assert Owner(me.host, me.boot_id, me.pid, "ticks:1").is_gone()


def test_a_process_that_cannot_be_seen_from_here_is_not_taken_for_gone() -> None:
    me = this_process()
    assert not Owner("elsewhere", me.boot_id, 999_999_999, "ticks:1").is_gone()
    assert not Owner(me.host, "another boot or container", 999_999_999, "ticks:1").is_gone()


#: Judges the process that started it, as somebody else if it can: alive, or gone.
_JUDGE = """
import os, sys
import psutil
from twophase.timeline.owners import Owner, this_process
here = this_process()
owner = Owner(here.host, here.boot_id, int(sys.argv[1]), sys.argv[2])
if len(sys.argv) > 3:
    psutil.PROCFS_PATH = sys.argv[3]
elif os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    psutil.Process(owner.pid)
except psutil.NoSuchProcess:
    print("hidden", "gone" if owner.is_gone() else "alive")
"""


def judged(*words: str, before: Iterable[str] = ()) -> str:
    me = this_process()
    command = [*before, sys.executable, "-c", _JUDGE, str(me.pid), me.pid_started, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_a_live_process_that_cannot_be_looked_at_is_not_gone(tmp_path: Path) -> None:
    assert judged(str(tmp_path)) == "hidden alive"


def test_a_live_process_that_proc_hides_from_other_users_is_not_gone() -> None:
    """The real thing (``hidepid=2``), wherever the kernel lets this test mount something."""
    hiding = ("unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh")
    if subprocess.run([*hiding, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here; the test before this one tests the same decision")
    assert judged(before=hiding) == "hidden alive"


def test_a_start_that_is_told_in_another_unit_proves_nothing() -> None:
    me = this_process()
    assert not Owner(me.host, me.boot_id, me.pid, "seconds:1").is_gone()
    assert not Owner(me.host, me.boot_id, me.pid, "").is_gone()


def test_a_killed_child_is_gone_before_its_parent_asked_for_it(tmp_path: Path) -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    try:
        me = this_process()
        from twophase.timeline.owners import _started

        owner = Owner(me.host, me.boot_id, pid, _started(pid) or "")
        assert not owner.is_gone()
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_until(owner.is_gone)
    os.waitpid(pid, 0)


def test_a_finished_transaction_is_distinguished_from_an_unknown_one(bench: Bench) -> None:
    tx = run_shape(bench, "single")
    coordinator = bench.coordinator()
    (untouched,) = coordinator.recover(transaction_id=tx.id)
    assert untouched.state is TransactionState.COMPLETED
    assert "nothing is left" in (untouched.note or "")
    assert bench.catalogs["one"].table_exists(path("t"))

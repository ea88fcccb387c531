"""Metrics: what an OpenTelemetry SDK reads of transactions that are published, refused, wait, or are in doubt."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.core.bench import Bench, in_doubt, path, write
from tests.core.test_conflicts import in_thread, waits
from twophase import failpoints, monitoring
from twophase.errors import WriteConflictError
from twophase.model import Isolation, Purpose
from twophase.monitoring.metrics import INSTRUMENTS, Metrics
from twophase.timeline.owners import clock
from twophase.timeline.timeline import Timeline
from twophase.transactions.conflict_policy import WoundWait
from twophase.transactions.observer import Observer


class Watched:
    """Coordinators of a bench whose metrics are read in memory."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader])
        self.metrics = Metrics(self._provider)

    def coordinator(self, **arguments: Any) -> Any:
        return self.bench.coordinator(observers=[self.metrics], **arguments)

    def read(self, name: str) -> dict[tuple[tuple[str, Any], ...], Any]:
        """The points of one metric, by their attributes."""
        data = self._reader.get_metrics_data()
        resources = [] if data is None else data.resource_metrics
        found = [m for resource in resources for scope in resource.scope_metrics for m in scope.metrics]
        return {
            tuple(sorted(point.attributes.items())): point
            for metric in found
            if metric.name == name
            for point in metric.data.data_points
        }

    def transactions(self) -> list[tuple[Any, ...]]:
        """The attributes of the transactions that were counted, and their number."""
        points = self.read("twophase.transaction.duration")
        return sorted((*(str(value) for _, value in key), point.count) for key, point in points.items())

    def close(self) -> None:
        self._provider.shutdown()


@pytest.fixture
def watched(bench: Bench) -> Iterator[Watched]:
    watched = Watched(bench)
    yield watched
    watched.close()


def test_transactions_are_counted_by_state_store_and_purpose(watched: Watched) -> None:
    coordinator, (one, two) = watched.coordinator(), watched.bench.catalogs.values()
    tx = coordinator.begin()
    write(tx, one, "t")
    tx.commit()
    tx.commit()
    block = coordinator.begin(Isolation.SNAPSHOT)
    write(block, one, "t", Purpose.INSERT_INTO)
    write(block, two, "u")
    block.commit()
    failing = coordinator.begin()
    write(failing, one, "v")
    failing.abort(ValueError("token=hidden"))
    undone = coordinator.begin()
    write(undone, one, "w")
    undone.abort()
    coordinator.begin(Isolation.SNAPSHOT, read_only=True).commit()

    # The error, the recovery, the purpose, the store and the state.
    assert watched.transactions() == [
        ("False", "create_table_as", "ChaosCatalog", "COMPLETED", 1),
        ("False", "create_table_as", "ChaosCatalog", "ROLLED_BACK", 1),
        ("False", "read", "read", "COMPLETED", 1),
        ("False", "several", "ChaosCatalog", "COMPLETED", 1),
        ("ValueError", "False", "create_table_as", "ChaosCatalog", "ROLLED_BACK", 1),
    ]
    durations = watched.read("twophase.transaction.duration").values()
    assert all(0 <= point.sum < 60 for point in durations)


def test_a_conflict_is_counted_once_however_it_is_found(watched: Watched) -> None:
    coordinator, one = watched.coordinator(wait_seconds=0.0), watched.bench.catalogs["one"]
    write(tx := coordinator.begin(), one, "t")
    tx.commit()
    # At the decision: another transaction was faster.
    first, second = coordinator.begin(Isolation.SNAPSHOT), coordinator.begin(Isolation.SNAPSHOT)
    for block in (first, second):
        write(block, one, "t", Purpose.INSERT_OVERWRITE)
    first.commit()
    with pytest.raises(WriteConflictError):
        second.commit()
    # At a lock, after which the transaction goes on.
    holder, other = coordinator.begin(), coordinator.begin()
    holder.lock((one, path("t")))
    with pytest.raises(WriteConflictError):
        other.lock((one, path("t")))
    assert [point.value for point in watched.read("twophase.transaction.conflicts").values()] == [2]
    holder.abort()
    other.abort()

    # By an older transaction: two processes report one end.
    old, young = [coordinator.begin(conflict=WoundWait(), first_begun=clock() - age) for age in (9, 1)]
    young.lock((one, path("t")))
    old.lock((one, path("t")))
    for _ in range(2):
        with pytest.raises(Exception, match="rolled back by another one"):
            write(young, one, "u")
    with pytest.raises(Exception, match="rolled back by another one"):
        young.commit()
    found = {dict(key)["error.type"]: p.value for key, p in watched.read("twophase.transaction.conflicts").items()}
    assert found == {"WriteConflictError": 2, "WoundedError": 1}
    (wounded,) = [row for row in watched.transactions() if row[0] == "WoundedError"]
    assert wounded[-2:] == ("ROLLED_BACK", 1)


def test_waits_are_measured_also_those_in_vain(watched: Watched) -> None:
    coordinator, table = watched.coordinator(), (watched.bench.catalogs["one"], path("t"))
    holder, waiting, third = (coordinator.begin(Isolation.SNAPSHOT) for _ in range(3))
    holder.lock(table)
    ended = in_thread(lambda: waiting.lock(table))
    waits(coordinator.timeline, waiting)
    holder.abort()
    assert ended() is None
    with pytest.raises(WriteConflictError):
        third.lock(table, wait=0.01)

    found = watched.read("twophase.transaction.wait.duration")
    assert {key: point.count for key, point in found.items()} == {(): 1, (("error.type", "WriteConflictError"),): 1}
    assert all(point.sum > 0 for point in found.values())


def test_what_is_open_is_asked_of_the_timeline_only_when_the_metrics_are_read(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = Timeline.transactions
    monkeypatch.setattr(
        Timeline, "transactions", lambda self, **options: asked.append("asked") or real(self, **options)
    )
    coordinator = watched.coordinator()
    write(coordinator.begin(), watched.bench.catalogs["one"], "t")
    write(kept := coordinator.begin(), watched.bench.catalogs["two"], "u")
    in_doubt(watched.bench)
    assert asked == []

    found = watched.read("twophase.timeline.transactions")
    states = {dict(key)["twophase.transaction.state"]: point.value for key, point in found.items()}
    assert states == {"INFLIGHT": 2, "COMMITTING": 0, "IN_DOUBT": 1}
    (age,) = watched.read("twophase.timeline.oldest.age").values()
    assert 0 < age.value < 300
    kept.abort()
    coordinator.close()
    assert watched.read("twophase.timeline.transactions") == {}


def test_the_end_that_a_recovery_brings_is_counted_as_such(watched: Watched) -> None:
    doubtful = in_doubt(watched.bench)
    watched.bench.catalogs["one"].faults.clear()
    write(watched.bench.coordinator().begin(), watched.bench.catalogs["one"], "left")  # It is not referenced.
    watched.coordinator().recover(own_only=False)

    rows = watched.transactions()
    assert doubtful.id not in str(rows)
    assert sorted(row[-2] for row in rows) == ["COMPLETED", "ROLLED_BACK"]
    assert all("True" in row for row in rows)
    assert rows[-1][0] in ("True", "process_gone")


@pytest.mark.parametrize("step", ["core.record_completed", "core.record_finished"])
def test_an_end_that_the_timeline_did_not_take_is_counted_again_as_that_of_a_recovery(
    watched: Watched, step: str
) -> None:
    coordinator = watched.coordinator()
    write(tx := coordinator.begin(), watched.bench.catalogs["one"], "t")
    failpoints.arm(step, "error")
    tx.commit()
    failpoints.disarm()
    (recovered,) = watched.coordinator().recover(own_only=False)
    assert recovered.transaction_id == tx.id
    assert [row[-2:] for row in watched.transactions()] == [("COMPLETED", 1)] * 2
    assert [row[0] for row in watched.transactions()] == ["False", "True"]


def test_an_observer_that_fails_changes_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Observer):
        def ended(self, end: Any) -> None:
            raise RuntimeError("password=hidden")

    coordinator = bench.coordinator(observers=[Failing()])
    write(tx := coordinator.begin(), bench.catalogs["one"], "t")
    tx.commit()
    assert bench.tables() == ["one.t"]
    assert "Failing failed in ended" in caplog.text
    assert "hidden" not in caplog.text


def test_names_and_units_are_as_opentelemetry_has_them(watched: Watched) -> None:
    coordinator = watched.coordinator()
    tx = coordinator.begin()
    tx.abort()
    for instrument in INSTRUMENTS:
        assert instrument.name.startswith("twophase.")
        assert instrument.name == instrument.name.lower()
        assert not instrument.name.endswith((".total", "_total", ".seconds"))
        assert instrument.unit in ("s", "{transaction}", "{conflict}")


def test_without_the_package_nothing_is_loaded(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "real = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *rest: None if 'opentelemetry' in name else real(name, *rest)\n"
        "import twophase.monitoring\n"
        "assert twophase.monitoring.observers() == ()\n"
        "assert not [name for name in sys.modules if 'opentelemetry' in name]\n"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_with_the_package_the_metrics_are_those_of_the_process() -> None:
    (found,) = monitoring.observers()
    assert monitoring.observers() == (found,)

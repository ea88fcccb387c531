"""OpenLineage events of transactions: they tell the truth, and no transport affects a transaction."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.transport import Config, Transport
from openlineage.client.transport.file import FileConfig, FileTransport

from tests.core.bench import Bench, in_doubt, path, write
from tests.project.source import ROOT
from twophase import failpoints
from twophase.catalog.services import Environment
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.errors import WriteConflictError
from twophase.model import Isolation, ObjectPath, Purpose
from twophase.monitoring.datasets import dataset_name
from twophase.monitoring.lineage import Lineage, run_id


class Reported:
    """The events of a bench's coordinators, which the library's own transport writes into a file."""

    def __init__(self, bench: Bench, directory: Path) -> None:
        self.bench = bench
        self._file = directory / "events.json"
        transport = FileTransport(FileConfig(log_file_path=str(self._file), append=True))
        self.lineage = Lineage(OpenLineageClient(transport=transport))

    def coordinator(self, **arguments: Any) -> Any:
        return self.bench.coordinator(observers=[self.lineage], **arguments)

    def events(self) -> list[dict[str, Any]]:
        assert self.lineage.flush()
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []

    def kinds(self) -> list[str]:
        return [event["eventType"] for event in self.events()]


@pytest.fixture
def reported(bench: Bench, tmp_path: Path) -> Reported:
    return Reported(bench, tmp_path)


def names(datasets: list[dict[str, Any]]) -> list[str]:
    return sorted(dataset["name"] for dataset in datasets)


@pytest.mark.parametrize("password", ["p@hunter2", "p?hunter2", "p/hunter2", "p#hunter2@", "hunter2?x=/@", "hunter2"])
@pytest.mark.parametrize(
    ("url", "namespace"),
    [
        ("postgresql://ann:{}@host/d", "postgres://host:5432"),
        ("postgresql+psycopg://ann:{}@host:99/d?sslmode=require", "postgres://host:99"),
        ("postgresql://host:99/d?user=ann&password={}", "postgres://host:99"),
        ("jdbc:postgresql://ann:{}@host/d", "jdbc:postgresql://host/d"),
        ("jdbc:sqlserver://host:99;user=ann;password={}", "jdbc:sqlserver://host:99"),
        ("https://ann:{}@host/rest", "https://host"),
        ("thrift://ann:{}@host:9083", "hive://host:9083"),
        ("sqlite:////tmp/a@b.db?key={}", "sqlite:/tmp/a@b.db"),
    ],
)
def test_no_part_of_a_password_is_in_the_name_of_a_table(url: str, namespace: str, password: str) -> None:
    catalog: Any = SimpleNamespace(options={"url": url.format(password)})
    found = dataset_name(catalog, path("t"))
    assert "hunter2" not in str(found)
    assert "ann" not in str(found)
    assert found[0] == namespace or found[0].removesuffix(":5432").endswith("***")


def test_no_part_of_a_password_is_in_the_name_of_a_warehouse() -> None:
    def name(warehouse: str) -> str:
        environment = SimpleNamespace(conf={}, warehouse=warehouse)
        catalog: Any = SimpleNamespace(name="one", options={}, environment=environment)
        return dataset_name(catalog, path("t"))[0]

    assert name("s3a://KEY:abc/def@bucket/wh?x=1") == "s3a://bucket/wh"
    assert name("s3a://KEY:1234/def@bucket/wh") == "s3a://bucket/wh"
    assert name("s3a://bucket/a@b") == "s3a://bucket/a@b"
    assert name("file:/tmp/wh") == "file:/tmp/wh"


def version(dataset: dict[str, Any]) -> Any:
    return dataset["facets"].get("version", {}).get("datasetVersion")


def test_a_run_is_complete_only_when_all_its_tables_are_published(reported: Reported) -> None:
    (one, two), coordinator = reported.bench.catalogs.values(), reported.coordinator()
    block = coordinator.begin(Isolation.SNAPSHOT)
    write(block, one, "t")
    write(block, two, "u")
    assert reported.kinds() == ["START"]
    block.commit()

    start, complete = reported.events()
    assert complete["eventType"] == "COMPLETE"
    assert names(complete["outputs"]) == ["default.t", "default.u"]
    assert {version(output) for output in complete["outputs"]} == {
        one.table_version(path("t")),
        two.table_version(path("u")),
    }
    assert start["run"]["runId"] == complete["run"]["runId"] == run_id(block.id)
    assert start["job"]["name"] == complete["job"]["name"] == "app.create_table_as.one.default.t"
    assert complete["run"]["facets"]["twophase_transaction"]["transactionId"] == block.id
    changes = [output["facets"]["lifecycleStateChange"]["lifecycleStateChange"] for output in complete["outputs"]]
    assert changes == ["CREATE", "CREATE"]


def test_what_one_run_has_published_is_what_the_next_one_reads(reported: Reported) -> None:
    (one, two), coordinator = reported.bench.catalogs.values(), reported.coordinator()
    write(first := coordinator.begin(), one, "t")
    first.commit()
    second = coordinator.begin(Isolation.SNAPSHOT)
    second.note_read(one, path("t"), one.table_version(path("t")))
    write(second, two, "u")
    second.commit()
    coordinator.begin(Isolation.SNAPSHOT, read_only=True).commit()

    _, published, _, complete = reported.events()
    (read,) = complete["inputs"]
    assert version(read) == version(published["outputs"][0]) is not None
    assert (read["namespace"], read["name"]) == tuple(published["outputs"][0][key] for key in ("namespace", "name"))


def test_a_rollback_on_request_is_abort_and_one_for_an_error_is_fail(reported: Reported) -> None:
    one, coordinator = reported.bench.catalogs["one"], reported.coordinator(wait_seconds=0.0)
    write(undone := coordinator.begin(), one, "t")
    undone.abort()
    write(cancelled := coordinator.begin(), one, "t")
    cancelled.abort(KeyboardInterrupt())
    write(failing := coordinator.begin(), one, "t")
    failing.abort(ValueError("password=hidden"))
    write(beaten := coordinator.begin(), one, "t")
    write(faster := coordinator.begin(), one, "t")
    faster.commit()
    with pytest.raises(Exception, match="t"):
        beaten.commit()

    ends = {event["run"]["runId"]: event for event in reported.events() if event["eventType"] != "START"}
    kinds = [ends[run_id(tx.id)]["eventType"] for tx in (undone, cancelled, failing, beaten, faster)]
    assert kinds == ["ABORT", "ABORT", "FAIL", "FAIL", "COMPLETE"]
    assert "hidden" not in json.dumps(list(ends.values()))
    assert "ValueError" in ends[run_id(failing.id)]["run"]["facets"]["errorMessage"]["message"]
    assert version(ends[run_id(beaten.id)]["outputs"][0]) is None


def test_a_run_in_doubt_has_no_end_until_a_recovery_reports_it(bench: Bench, reported: Reported) -> None:
    doubtful = in_doubt(bench, observers=[reported.lineage])
    assert reported.kinds() == ["START", "OTHER"]
    bench.catalogs["one"].faults.clear()
    reported.coordinator().recover(own_only=False)

    start, _, complete = reported.events()
    assert complete["eventType"] == "COMPLETE"
    assert start["run"]["runId"] == complete["run"]["runId"] == run_id(doubtful.id)
    assert start["job"] == complete["job"]
    assert version(complete["outputs"][0]) == bench.catalogs["one"].table_version(path("t"))


@pytest.mark.parametrize("step", ["core.record_completed", "core.record_finished"])
def test_the_end_of_a_run_that_the_timeline_did_not_take_comes_again_and_is_the_same(
    bench: Bench, reported: Reported, step: str
) -> None:
    write(tx := reported.coordinator().begin(), bench.catalogs["one"], "t")
    failpoints.arm(step, "error")
    tx.commit()
    failpoints.disarm()
    reported.coordinator().recover(own_only=False)
    _, end, again = reported.events()
    assert end["eventType"] == again["eventType"] == "COMPLETE"
    assert end["run"]["runId"] == again["run"]["runId"] == run_id(tx.id)
    assert names(end["outputs"]) == names(again["outputs"]) == ["default.t"]
    assert version(again["outputs"][0]) == bench.catalogs["one"].table_version(path("t"))


def test_a_version_that_another_transaction_has_replaced_is_not_reported_as_published(
    bench: Bench, reported: Reported
) -> None:
    one, coordinator = bench.catalogs["one"], reported.coordinator()
    write(tx := coordinator.begin(), one, "t")

    def overtake() -> None:
        write(other := bench.coordinator().begin(), one, "t", Purpose.INSERT_OVERWRITE)
        other.commit()

    tx._end_reports._waiting.insert(0, overtake)  # Between the publish and the report.
    tx.commit()
    assert [version(output) for output in reported.events()[-1]["outputs"]] == [None]


def test_a_transport_that_fails_or_hangs_affects_no_transaction(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    hangs, go_on = threading.Event(), threading.Event()

    class Broken(Transport):
        kind = "broken"
        config_class = Config

        def __init__(self) -> None:
            pass

        def emit(self, event: Any) -> Any:
            hangs.set()
            assert go_on.wait(60)
            raise OSError("token=hidden")

    lineage = Lineage(OpenLineageClient(transport=Broken()))
    coordinator = bench.coordinator(observers=[lineage])
    write(tx := coordinator.begin(), bench.catalogs["one"], "t")
    tx.commit()
    assert hangs.wait(60)
    assert bench.tables() == ["one.t"]
    assert not lineage.flush(0.01)
    go_on.set()
    assert lineage.flush()
    assert caplog.text.count("could not be sent") == 2
    assert "hidden" not in caplog.text


def test_what_has_not_been_sent_at_the_end_of_the_process_is_sent_then(tmp_path: Path) -> None:
    """A job need not detach."""
    script = (
        "import atexit, sys, threading\n"
        "from pathlib import Path\n"
        "from openlineage.client import OpenLineageClient\n"
        "from openlineage.client.transport.file import FileConfig, FileTransport\n"
        "from tests.core.bench import Bench, write\n"
        "from twophase.monitoring.lineage import Lineage\n"
        "here, go_on = Path(sys.argv[1]), threading.Event()\n"
        "class Late(FileTransport):\n"
        "    def emit(self, event):\n"
        "        go_on.wait()\n"
        "        return super().emit(event)\n"
        "transport = Late(FileConfig(log_file_path=str(here / 'events.json'), append=True))\n"
        "lineage = Lineage(OpenLineageClient(transport=transport))\n"
        "bench = Bench(f'sqlite:///{here}/timeline.db', here)\n"
        "write(tx := bench.coordinator(observers=[lineage]).begin(), bench.catalogs['one'], 't')\n"
        "for _ in range(2000): lineage.began(tx.id, 'more')\n"
        "atexit.register(go_on.set)\n"
        "tx.commit()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True, timeout=120)
    events = [json.loads(line) for line in (tmp_path / "events.json").read_text().splitlines()]
    assert [event["eventType"] for event in events] == ["START"] * 2001 + ["COMPLETE"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql+psycopg://ann:hidden@db/shop", ("postgres://db:5432", "shop.default.t")),
        ("mysql+pymysql://ann:hidden@db:3307", ("mysql://db:3307", "default.t")),
        ("sqlite:////data/shop.db", ("sqlite:/data/shop.db", "default.t")),
    ],
)
def test_tables_are_named_as_openlineage_does_and_without_secrets(url: str, expected: tuple[str, str]) -> None:
    catalog = JdbcCatalog("pg", {"url": url}, Environment())
    assert dataset_name(catalog, ObjectPath.of("default", "t")) == expected


def test_what_is_refused_at_once_starts_no_run(reported: Reported) -> None:
    one, coordinator = reported.bench.catalogs["one"], reported.coordinator(wait_seconds=0.0)
    holder, other = coordinator.begin(), coordinator.begin()
    holder.lock((one, path("t")))
    with pytest.raises(WriteConflictError):
        other.lock((one, path("t")))
    holder.abort()
    other.abort()
    assert reported.kinds() == []

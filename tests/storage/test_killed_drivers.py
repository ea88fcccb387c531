"""Real Spark drivers are killed with their JVM (kill -9) over an S3 server, which holds the request they die in.

Each driver recovers what the one before it left, cleans, tells what it finds, and dies in a statement of its own.
PyArrow reads what is stored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.crash.drivers import Driver, wait_for
from tests.servers import Server
from tests.storage import filesystems
from tests.storage.objects import Objects
from tests.storage.s3_server import Fault

#: Each starts four Spark sessions; that a death at any step is recovered from, other tests say in one.
pytestmark = [pytest.mark.timeout(900), pytest.mark.exhaustive]

TABLE = "d.t"


@dataclass(frozen=True)
class Death:
    """A statement, the request that its driver dies in, and the rows of the table afterwards.

    Parameters
    ----------
    statement : str
    fault : Fault
    rows : list or None
        None: there is no table.
    in_recovery : Fault, optional
        The request that the next driver dies in, which recovers.
    """

    statement: str
    fault: Fault
    rows: list[list[int]] | None
    in_recovery: Fault | None = None


#: Between the copy of a staged file to its place and the removal of where it was.
BETWEEN_COPY_AND_REMOVAL = Fault("hold", "^REMOVE .*/.twophase/t/[^/]*/k=1/part-", after="_twophase_manifest.json")
CREATE = "CREATE TABLE d.t USING parquet PARTITIONED BY (k) AS SELECT 1 AS a, 1 AS k"
APPEND = "INSERT INTO d.t SELECT /*+ REPARTITION(2) */ CAST(id AS INT), 1 FROM range(2)"
DEATHS = [
    Death(
        APPEND,
        BETWEEN_COPY_AND_REMOVAL,
        [[1, 1]],
        in_recovery=Fault("hold after", "^REMOVE .*/part-"),
    ),
    # After the partitions were switched, while the old one is marked.
    Death("INSERT OVERWRITE d.t PARTITION (k = 1) SELECT 5", Fault("hold", "^PUT .*_twophase_retired.json"), [[5, 1]]),
]
OTHER_DEATHS = [
    # While the tasks of the job are committed.
    Death(CREATE, Fault("hold after", "^COPY .*/part-"), None),
    Death(CREATE, Fault("hold after", "^PUT .*_twophase"), None),
    # After the job was committed.
    Death(CREATE, Fault("hold after", "^REMOVE /[^/]*/$"), None),
]


@pytest.mark.parametrize(
    ("before", "deaths"),
    [
        pytest.param([CREATE], DEATHS, id="inserts"),
        pytest.param([], OTHER_DEATHS, id="creates"),
    ],
)
def test_a_driver_killed_in_a_request_leaves_the_table_wholly_old_or_new(
    before: list[str], deaths: list[Death], s3: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    drivers = Drivers(s3, f"deaths.{request.node.callspec.id}", tmp_path, before)
    rows = [[1, 1]] if before else None
    for death in deaths:
        assert drivers.kill(death) == rows, f"before {death}"
        rows = death.rows
        if death.in_recovery:
            drivers.kill_in_recovery(death.in_recovery)
    assert drivers.look() == rows


class Drivers:
    """One driver after the other on one table, whose metastore is on the local disk.

    Parameters
    ----------
    server : Server
    bucket : str
    directory : Path
    before : list of str
        Statements of the first one.
    """

    def __init__(self, server: Server, bucket: str, directory: Path, before: list[str]) -> None:
        self._objects = Objects(server, bucket)
        self._bucket = bucket
        self._directory = directory
        (directory / "failpoints").mkdir()
        self._before = [f"CREATE DATABASE d LOCATION 's3a://{bucket}/warehouse/'", *before]
        derby = f"jdbc:derby:;databaseName={directory / 'metastore'};create=true"
        self._conf = {
            **filesystems.conf_of(server),
            "spark.jars": str(filesystems.make_jar(directory)),
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.log.level": "OFF",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.javax.jdo.option.ConnectionURL": derby,
            "spark.sql.warehouse.dir": f"file:{directory / 'warehouse'}",
            "spark.twophase.timeline": f"sqlite:///{directory / 'timeline.db'}",
            "spark.twophase.storage.untested": "allow",
            "spark.twophase.timeline.local": "allow",
        }

    def kill(self, death: Death) -> Any:
        """Let a driver look, and then die in a request of its statement; return the rows that it had found."""
        reached, go = (self._directory / "failpoints" / f"core.begin.{end}" for end in ("reached", "go"))
        with self._driver(statement=death.statement, arm="core.begin=pause") as (driver, told):
            wait_for(reached.exists, driver)
            rows = self._judged(told)
            self._objects.set(death.fault)
            go.touch()
            self._objects.wait()
        for file in (reached, go):
            file.unlink()
        self._objects.set()
        return rows

    def kill_in_recovery(self, fault: Fault) -> None:
        """Let a driver die in a request of its recovery."""
        self._objects.set(fault)
        with self._driver():
            self._objects.wait()
        self._objects.set()

    def look(self) -> Any:
        """Let a driver recover and look."""
        with self._driver() as (driver, told):
            wait_for(told.exists, driver)
            return self._judged(told)

    def _judged(self, told: Path) -> Any:
        """The rows that a driver has found: they are the stored ones, and no others are stored."""
        found = json.loads(told.read_text())
        assert (found["open"], found["leftovers"]) == ([], [])
        assert self._objects.rows(found["files"]) == [tuple(row) for row in found["rows"] or ()]
        data = [key for key in self._objects.keys(self._bucket) if key.endswith(".parquet")]
        assert len(data) == len(found["files"]), data
        return found["rows"]

    def _driver(self, **facts: Any) -> Driver:
        before, self._before = self._before, []
        facts = {"conf": self._conf, "table": TABLE, "before": before, "cleans": True, **facts}
        return Driver(facts, self._directory)

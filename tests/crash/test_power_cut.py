"""What was acknowledged survives a power cut on a local file system, not only a killed process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash import loop_device
from tests.crash.forks import ROOT
from tests.servers import FORGETFUL_METASTORE
from twophase.catalogs.hive import layout

pytestmark = pytest.mark.timeout(600)

#: Each ends with another way to publish: a new version, new and old partitions, files renamed in, a metadata pointer.
STATEMENTS = {
    "append": ["INSERT INTO t SELECT 2"],
    "overwrite": ["INSERT OVERWRITE t SELECT id FROM range(10, 13)"],
    "partitions": ["INSERT INTO p SELECT id, id % 2 + 1 FROM range(10)"],
    "renames": ["INSERT INTO e SELECT /*+ REPARTITION(3) */ id FROM range(30)"],
    "lake": ["INSERT INTO lake.d.i SELECT 7"],
    "block": [
        "INSERT INTO t SELECT 3",
        "INSERT INTO lake.d.i SELECT 8",
        "INSERT INTO lake.d.i SELECT 9",
        "INSERT OVERWRITE p PARTITION (k = 1) SELECT 4",
    ],
}
#: Where renames publish, the files that have moved say so until the end is recorded: the mark need not survive, and one
#: in pieces is none. What a recovery and ``clean`` make of that is tried by test_cuts_inside.py.
_READ_AS_NONE = (layout.PUBLISHED_FILE,)


class Driver:
    """A driver in a process of its own, whose metastore waits for the disk as it does by default."""

    def __init__(self, root: Path) -> None:
        java = os.environ.get("SPARK_SUBMIT_OPTS", "").replace(FORGETFUL_METASTORE, "")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.power_driver", str(root)],
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": java},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._told() == "ready"

    def run(self, statements: list[str], *, fsync: str = "true") -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"statements": statements, "fsync": fsync}) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = self._told()
        return found

    def _told(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("TOLD "):
                return json.loads(line[5:])
        raise AssertionError("the driver ended")

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    loop_device.make(tmp_path / "disk.img")
    with loop_device.mounted(tmp_path / "disk.img", tmp_path / "disk") as root:
        yield root


def lost_after_a_cut(tmp_path: Path, root: Path, stored: dict[str, Any]) -> list[str]:
    """Files of the acknowledged state that the disk does not hold; the image is mounted again, as after a new start."""
    loop_device.cut(tmp_path / "disk.img", tmp_path / "cut.img")
    lost = []
    with loop_device.mounted(tmp_path / "cut.img", tmp_path / "cut") as after:
        for table, found in stored.items():
            for name, digest in found["files"].items():
                file = after / Path(name).relative_to(root)
                if not file.exists():
                    lost.append(f"{table}: {file.name} is missing")
                elif hashlib.sha256(file.read_bytes()).hexdigest() != digest:
                    lost.append(f"{table}: {file.name} has {file.stat().st_size} bytes")
        documents = [file for file in after.rglob("_twophase*.json") if file.name not in _READ_AS_NONE]
        lost += [f"{file.name} is in pieces" for file in documents if not is_whole(file)]
        assert open_transactions(after) == []
    return lost


def is_whole(document: Path) -> bool:
    try:
        return bool(json.loads(document.read_text()))
    except ValueError:
        return False


def open_transactions(after: Path) -> list[Any]:
    with contextlib.closing(sqlite3.connect(after / "warehouse" / ".twophase" / "timeline.db")) as timeline:
        finals = "SELECT id, state FROM twophase_transactions WHERE state NOT IN ('COMPLETED', 'ROLLED_BACK')"
        return timeline.execute(finals).fetchall()


def read_by_another_driver(tmp_path: Path) -> dict[str, Any]:
    """What a new driver reads after the last cut, on the same path as before."""
    with loop_device.mounted(tmp_path / "last.img", tmp_path / "disk") as root:
        done = subprocess.run(
            [sys.executable, "-c", f"from tests.crash import power_driver as d; d.read({str(root)!r})"],
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=True,
        )
    told = next(line for line in done.stdout.splitlines() if line.startswith("TOLD "))
    found: dict[str, Any] = json.loads(told[5:])
    return found


if loop_device.can_mount():  # Elsewhere there is test_durability.py: each file is synced before the decision.

    @pytest.mark.promise(
        "power-cut",
        "rows, files, metadata and partitions of an acknowledged statement are there after a power cut",
        detail=True,
    )
    @pytest.mark.parametrize("names", [["renames", "block"], ["append", "overwrite", "partitions", "lake"]], ids=str)
    def test_what_was_acknowledged_is_there_after_a_power_cut(place: Path, tmp_path: Path, names: list[str]) -> None:
        stored = {}
        with contextlib.closing(Driver(place)) as driver:
            for name in names:
                stored = driver.run(STATEMENTS[name])
                assert lost_after_a_cut(tmp_path, place, stored) == [], name
            (tmp_path / "cut.img").rename(tmp_path / "last.img")
            without = driver.run(STATEMENTS["block"], fsync="false")
            lost = lost_after_a_cut(tmp_path, place, without)
            assert lost != [], "the disk keeps all by itself: this test proves nothing"
        assert read_by_another_driver(tmp_path) == {table: found["rows"] for table, found in stored.items()}

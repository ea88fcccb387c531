"""Spark drivers in processes of their own, which are killed (kill -9)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.forks import ROOT

PATIENCE = 180.0


class Driver:
    """A driver process with its JVM in a group of their own; killed at the end of the block.

    Parameters
    ----------
    facts : dict
        See ``tests/crash/spark_driver.py``; without the file that it tells what it finds in.
    directory : Path
        Its log and failpoints, and what it tells.
    """

    def __init__(self, facts: dict[str, Any], directory: Path) -> None:
        self._told = directory / "told.json"
        self._told.unlink(missing_ok=True)
        self._facts = directory / "facts.json"
        self._facts.write_text(json.dumps({**facts, "tell": str(self._told)}))
        self._log = directory / "driver.log"
        self._directory = directory

    def __enter__(self) -> tuple[Driver, Path]:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.spark_driver", str(self._facts)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, "TWOPHASE_FAILPOINT_DIR": str(self._directory / "failpoints")},
                start_new_session=True,
            )
        return self, self._told

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def check(self) -> None:
        """Fail with its log when it ended by itself."""
        if (code := self._process.poll()) is not None:
            raise AssertionError(f"The driver ended with {code}:\n{self._log.read_text()[-6000:]}")


def wait_for(reached: Callable[[], object], driver: Driver) -> None:
    """Wait until a driver has got somewhere."""
    gate, until = threading.Event(), time.monotonic() + PATIENCE
    while not reached():
        driver.check()
        assert time.monotonic() < until, "The driver did not get there."
        gate.wait(0.05)

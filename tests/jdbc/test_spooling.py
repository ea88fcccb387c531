"""What tasks keep in files meanwhile: nothing of it stays."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from twophase.catalogs.jdbc.spooling import own_directory

#: A task that has rows in its directory, until its input ends.
TASK = """
import sys
from twophase.catalogs.jdbc.spooling import own_directory
with own_directory() as directory:
    (directory / "rows").write_text("many")
    print(directory, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_task_left_goes_with_the_next_one_and_what_a_living_one_has_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    living, killed = (
        subprocess.Popen([sys.executable, "-c", TASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    with living, killed:
        directories = [Path(task.stdout.readline().strip()) for task in (living, killed) if task.stdout]
        killed.kill()
        killed.wait()
        for directory in directories:
            assert (directory / "rows").exists()
            os.utime(directory, (0, 0))
        foreign = tmp_path / "twophase-demo"
        foreign.mkdir()
        os.utime(foreign, (0, 0))
        with own_directory() as own:
            assert set(tmp_path.iterdir()) == {own, directories[0], foreign}
            assert (directories[0] / "rows").exists()
        living.communicate("")
        assert set(tmp_path.iterdir()) == {foreign}

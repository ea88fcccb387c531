"""What tasks keep in files meanwhile: nothing of it stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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


def test_what_a_killed_task_left_goes_with_the_next_one_and_all_else_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    living, killed = (
        subprocess.Popen([sys.executable, "-c", TASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    with living, killed:
        kept, left = (Path(task.stdout.readline().strip()) for task in (living, killed) if task.stdout)
        killed.kill()
        killed.wait()
        others = foreign(tmp_path, json.loads((left / "twophase.json").read_text()))
        assert (left / "rows").exists()
        with own_directory() as own:
            assert set(tmp_path.iterdir()) == {own, kept, *others}
            assert (kept / "rows").exists()
        living.communicate("")
        assert set(tmp_path.iterdir()) == set(others)


def foreign(directory: Path, dead: dict[str, Any]) -> list[Path]:
    """What a task finds besides, and cannot know for left: of another machine, of nobody, and what is no directory."""
    elsewhere, unstamped, harmed, file, pipe = (
        directory / f"twophase-rows-{name}" for name in ("elsewhere", "unstamped", "harmed", "file", "pipe")
    )
    for made in (elsewhere, unstamped, harmed):
        made.mkdir()
        (made / "mine.csv").touch()
    (elsewhere / "twophase.json").write_text(json.dumps({**dead, "host": "another"}))
    (harmed / "twophase.json").write_text('{"pid": 1}')
    file.touch()
    os.mkfifo(pipe)
    os.mkfifo(unstamped / "twophase.json")
    return [elsewhere, unstamped, harmed, file, pipe]

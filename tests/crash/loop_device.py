"""A file system in a file, whose power can be cut: a copy of the file is what the disk held at that moment."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Bytes of a disk for a metastore, and of one for a few small tables.
LARGE, SMALL = 160 * 1024 * 1024, 16 * 1024 * 1024


def can_mount() -> bool:
    """Whether this user may mount a file (root, with loop devices)."""
    return os.geteuid() == 0 and Path("/dev/loop-control").exists() and shutil.which("mkfs.ext4") is not None


def make(image: Path, size: int = LARGE) -> None:
    """Make an empty file system in a file."""
    with open(image, "wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-F", str(image))


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    """Mount a file system; mounting one that was cut off replays its journal, as a machine does at its next start."""
    at.mkdir(exist_ok=True)
    _run("mount", "-o", "loop", str(image), str(at))
    try:
        yield at
    finally:
        _run("umount", "--lazy", str(at))


def cut(image: Path, to: Path) -> None:
    """Copy what the disk holds at this moment; what only its file system's cache holds is lost."""
    shutil.copyfile(image, to)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"

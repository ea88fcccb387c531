"""Rows that a task keeps in files of its own until it is their turn to be written."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa

if sys.platform != "win32":  # Which has no such locks, and removes no file that is open.
    import fcntl

_PREFIX = "twophase-rows-"
#: Seconds in which a directory that was just made has its lock.
_NEW = 60.0


@contextmanager
def own_directory() -> Iterator[Path]:
    """A directory of the task's own, which goes with its end. What killed tasks left on this machine goes before.

    A living task holds a lock on its directory, whatever container it runs in, and a dead one holds none.
    """
    _remove_what_the_dead_left()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as made, _locked(made):
        yield Path(made)


@contextmanager
def spooled(batches: Iterable[pa.RecordBatch]) -> Iterator[Iterable[pa.RecordBatch]]:
    """Batches by way of a file: all are computed, and memory holds one."""
    with own_directory() as directory:
        file, writer = str(directory / "rows.arrow"), None
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_stream(file, batch.schema)
            writer.write_batch(batch)
        if writer is None:
            yield []
            return
        writer.close()
        with closing(pa.OSFile(file)) as source:
            yield pa.ipc.open_stream(source)


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    held = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _remove_what_the_dead_left() -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            is_dead = time.time() - left.stat().st_mtime > _NEW and not _is_locked(left)
        except OSError:  # It goes at this moment, or belongs to another user.
            continue
        if is_dead:
            shutil.rmtree(left, ignore_errors=True)


def _is_locked(directory: Path) -> bool:
    if sys.platform == "win32":
        return False
    tried = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(tried, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(tried)
    return False

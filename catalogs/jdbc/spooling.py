"""Rows that a task keeps in files of its own until it is their turn to be written."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from twophase.liveness import Owner, this_process

_PREFIX = "twophase-rows-"
#: In each of these directories: whose it is.
_STAMP = "twophase.json"


@contextmanager
def own_directory() -> Iterator[Path]:
    """A directory of the task's own, which goes with its end. What killed tasks left goes before.

    That is removed where its process has certainly ended, which can be seen on its own machine and in its own
    container only: whoever shares the directory for temporary files from elsewhere leaves it.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _is_left(left):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as made:
        directory = Path(made)
        (directory / _STAMP).write_text(json.dumps(asdict(this_process())))
        yield directory


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


def _is_left(directory: Path) -> bool:
    stamp = directory / _STAMP
    try:
        # Anybody may make files there; reading one that is none may wait for ever.
        return stamp.is_file() and Owner(**json.loads(stamp.read_text())).is_gone()
    except (OSError, TypeError, ValueError):  # It goes at this moment, belongs to another user, or is none of ours.
        return False

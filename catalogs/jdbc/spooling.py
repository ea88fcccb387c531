"""Spooling of a task's rows to local files until it is their turn to be written."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from twophase.timeline.owners import Owner, this_process

_PREFIX = "twophase-rows-"
#: File in each of these directories that identifies its owner.
_STAMP = "twophase.json"


@contextmanager
def own_directory() -> Iterator[Path]:
    """A temporary directory of the task, removed when the task ends. First, leftovers of killed tasks are removed.

    A leftover is removed only if its process has certainly ended, which can be determined only on the same machine and
    in the same container: processes elsewhere that share the temporary directory do not remove it.
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
    """Spool batches to a file: all are computed first, and memory holds only one of them."""
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
        # Any user may create files there; reading one that is not a regular file could block for ever.
        return stamp.is_file() and Owner(**json.loads(stamp.read_text())).is_gone()
    except (OSError, TypeError, ValueError):  # Being removed, or of another user, or not written by twophase.
        return False

"""Batches of a partition in a file of the executor's, until it is their turn to be written."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

import pyarrow as pa


@contextmanager
def spooled(batches: Iterable[pa.RecordBatch]) -> Iterator[Iterable[pa.RecordBatch]]:
    """Batches by way of a file: all are computed, and memory holds one."""
    with tempfile.TemporaryDirectory(prefix="twophase-") as directory:
        file, writer = f"{directory}/rows.arrow", None
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

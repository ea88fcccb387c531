"""Tables of the chaos catalog as Parquet files, for Spark to read."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from twophase.catalog.reading import ReadSource
from twophase.model import TableDefinition
from twophase.testing import _rows
from twophase.testing._store import Document


def as_files(directory: str | None, table: Document) -> ReadSource | None:
    """Return the source from which Spark reads a table document; None without a directory to write to.

    Each version of a table has its own directory, which is written on first use.
    """
    if directory is None:
        return None
    definition = TableDefinition.from_document(table["definition"])
    version = Path(directory).absolute() / table["version"]
    if not version.exists():
        new = version.with_name(f"{version.name}.{uuid.uuid4().hex}.new")
        new.mkdir(parents=True)
        pq.write_table(_rows.decode(table["rows"]), new / "rows.parquet")
        _move(new, version)
    # The rows are in one file, whatever the partitioning.
    return ReadSource(
        "files", provider="parquet", location=str(version), definition=replace(definition, partitioning=())
    )


def _move(new: Path, version: Path) -> None:
    try:
        os.rename(new, version)
    except OSError:
        if not version.exists():  # Otherwise another reader was faster, with the same rows.
            raise

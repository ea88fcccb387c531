"""Tables of the chaos catalog as Parquet files, for Spark to read."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from twophase.model import TableDefinition
from twophase.reading import ReadSource
from twophase.testing import _rows
from twophase.testing._store import Document


def as_files(directory: str | None, table: Document) -> ReadSource | None:
    """How Spark reads a table document; None without a directory to write to.

    Each version of a table has a directory of its own, written when first asked for.
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
        if not version.exists():  # Else another reader was faster, with the same rows.
            raise

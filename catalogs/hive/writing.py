"""Spark writes the rows into a version's directory: its own executors, its own writers."""

from __future__ import annotations

from typing import Any

from twophase.catalogs.files import UNMARKED
from twophase.catalogs.hive.definitions import FILE_PROVIDERS
from twophase.model import TableDefinition


def written_as_files(definition: TableDefinition) -> bool:
    """Whether ``DataFrameWriter.save`` writes this; bucketed tables and SerDes need Spark's own insert."""
    return definition.provider in FILE_PROVIDERS and definition.bucketing is None


def save(df: Any, definition: TableDefinition, location: str, *, marked: bool) -> None:
    """Append the rows to a directory as files of the definition's format; marked: with Hadoop's ``_SUCCESS``."""
    options = {**({} if marked else UNMARKED), **definition.options}
    writer = df.write.format(definition.provider).options(**options).mode("append")
    if definition.partition_columns:
        writer = writer.partitionBy(*definition.partition_columns)
    writer.save(location)

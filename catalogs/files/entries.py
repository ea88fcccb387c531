"""Entries of a listing, and which of them hold rows."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A file or directory below a location.

    Attributes
    ----------
    name : str
        Path relative to the listed location, with ``/``.
    is_file : bool
    size : int
        Bytes; 0 for a directory.
    modified : int
        When it was last written, in milliseconds since the epoch; 0 if that was not looked up.
    """

    name: str
    is_file: bool
    size: int
    modified: int = 0

    @property
    def base(self) -> str:
        """Last part of the name."""
        return posixpath.basename(self.name)


def data_entries(entries: list[Entry]) -> Iterator[Entry]:
    """Files that hold (or belong to) rows, without our stamps, and without markers and staging of Spark and Hive."""
    for entry in entries:
        if entry.is_file and not any(map(is_hidden, entry.name.split("/"))):
            yield entry


def data_files(entries: list[Entry]) -> list[Entry]:
    """Files that hold rows, without their checksums: the files that a metastore counts."""
    return [entry for entry in data_entries(entries) if not entry.name.endswith(".crc")]


def is_hidden(part: str) -> bool:
    """Whether a name is bookkeeping of twophase, Spark or Hive. A checksum ``.x.crc`` belongs to its data file."""
    if part.endswith(".crc"):
        return part.startswith(("._", ".."))
    return part.startswith(".") or (part.startswith("_") and "=" not in part)

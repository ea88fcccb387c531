"""ORC files of Hive before 2.0, whose columns have no names: every reader finds them by their position."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import orc

from twophase.catalogs.files import Files, data_files, is_hidden, join
from twophase.catalogs.hive.readers import NAMELESS


def nameless(files: Files, location: str) -> str | None:
    """Return a file without names of columns, if the oldest file of a table's first directory with any is one.

    Parameters
    ----------
    files : Files
    location : str
        Of the table.
    """
    for place in _oldest_first(files, location):
        names = _names(files, place)
        if names:
            return place if all(name.startswith(NAMELESS) for name in names) else None
    return None


def _names(files: Files, place: str) -> list[str]:
    """The names of a file's columns; none of a file without rows, as Hive writes them for empty buckets."""
    store, name = files.find(place)
    try:
        with store.open(name) as stream:
            return list(orc.ORCFile(stream).schema.names)
    except (OSError, pa.ArrowException):  # Removed meanwhile, or not an ORC file.
        return []


def _oldest_first(files: Files, location: str) -> Iterator[str]:
    """The data files of a directory, and then of those below it: an emptied partition comes before full ones."""
    entries = files.list(location, recursive=False)
    for entry in sorted(data_files(entries), key=lambda entry: entry.modified):
        yield join(location, entry.name)
    for entry in entries:
        if not entry.is_file and not is_hidden(entry.base):
            yield from _oldest_first(files, join(location, entry.name))

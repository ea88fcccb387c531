"""ORC files of Hive before 2.0, whose columns have no names: every reader finds them by their position."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import orc

from twophase.catalogs.files import Files, data_files, is_hidden, join
from twophase.catalogs.hive.readers import NAMELESS


def nameless(files: Files, location: str) -> str | None:
    """Return a file without names of columns, if the oldest file of a table's first directory is one.

    Parameters
    ----------
    files : Files
    location : str
        Of the table.
    """
    place = _oldest(files, location)
    if place is None:
        return None
    store, name = files.find(place)
    try:
        with store.open(name) as stream:
            names = orc.ORCFile(stream).schema.names
    except (OSError, pa.ArrowException):  # Removed meanwhile, or not an ORC file.
        return None
    return place if names and all(one.startswith(NAMELESS) for one in names) else None


def _oldest(files: Files, location: str) -> str | None:
    """The oldest data file of a directory, or of the first one below it."""
    entries = files.list(location, recursive=False)
    found = data_files(entries)
    if found:
        return join(location, min(found, key=lambda entry: entry.modified).name)
    below = [entry.name for entry in entries if not entry.is_file and not is_hidden(entry.base)]
    return _oldest(files, join(location, below[0])) if below else None

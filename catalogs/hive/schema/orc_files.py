"""ORC files of Hive before 2.0, whose columns have no names: every reader finds them by their position."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyarrow import orc

from twophase.catalogs.files import Files, Root, data_files, join
from twophase.catalogs.hive.schema.readers import NAMELESS

#: Part of the names of files that Spark writes, behind that of a directory which an append has flattened; Hive numbers
#: them.
_OF_SPARK = "part-"


def nameless(files: Files, location: str, partitions: Iterable[str] = ()) -> str | None:
    """Return a file without names of columns, if the oldest file of a table that Hive has named, or Spark, is one.

    Whether Hive writes names changes with its release, so that its oldest file has none if any has none. Spark may have
    written others before.

    Parameters
    ----------
    files : Files
    location : str
        Of the table.
    partitions : iterable of str
        The locations of its partitions, of which some may be elsewhere.
    """
    root = Root(location)
    places = [location, *(place for place in partitions if not root.holds(place))]
    found = [(place, entry) for place in places for entry in data_files(files.list(place))]
    entries = sorted(found, key=lambda each: each[1].modified)
    for is_sparks in (False, True):
        for directory, entry in entries:
            if (_OF_SPARK in entry.base) is not is_sparks:
                continue
            place = join(directory, entry.name)
            if names := _names(files, place):
                if all(name.startswith(NAMELESS) for name in names):
                    return place
                break
    return None


def _names(files: Files, place: str) -> list[str]:
    """The names of a file's columns; none of a file without rows, as Hive writes them for empty buckets."""
    store, name = files.find(place)
    try:
        with store.open(name) as stream:
            return list(orc.ORCFile(stream).schema.names)
    except (OSError, pa.ArrowException):  # Removed meanwhile, or not an ORC file.
        return []

"""ORC files of Hive before 2.0, whose columns have no names: every reader finds them by their position."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import orc

from twophase.catalogs.files import Files, data_files, join
from twophase.catalogs.hive.readers import NAMELESS

#: How the names of files begin that Spark writes; Hive numbers them.
_OF_SPARK = "part-"


def nameless(files: Files, location: str) -> str | None:
    """Return a file without names of columns, if the oldest file of a table that Hive has named, or Spark, is one.

    Whether Hive writes names changes with its release, so that its oldest file has none if any has none. Spark may have
    written others before.

    Parameters
    ----------
    files : Files
    location : str
        Of the table.
    """
    entries = sorted(data_files(files.list(location)), key=lambda entry: entry.modified)
    for is_sparks in (False, True):
        for entry in entries:
            if entry.base.startswith(_OF_SPARK) is not is_sparks:
                continue
            place = join(location, entry.name)
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

"""Directories of appends that have come together: now and then an append brings all files into one directory again.

Each read lists every directory of a table. So an append that finds a hundred directories more publishes a new version
with all files side by side, by one more name each, where these are not so many that it would cost each of those appends
more than a few names.
"""

from __future__ import annotations

import posixpath

from twophase.catalogs.files import Files, data_files

#: How many directories come between two looks.
DIRECTORIES = 100
#: How many files may be linked for each directory that goes.
_FILES_A_DIRECTORY = 10


def is_due(files: Files, location: str) -> bool:
    """Whether the next append is to bring a table's files into one directory."""
    directories = files.count_directories(location)
    if directories == 0 or directories % DIRECTORIES:
        return False
    return len(data_files(files.list(location))) <= directories * _FILES_A_DIRECTORY


def flat_name(name: str) -> str:
    """What a file of a subdirectory is called beside all others; its checksum is called after it."""
    directory, base = posixpath.split(name)
    if not directory:
        return name
    front = directory.replace("/", "-")
    return f".{front}-{base[1:]}" if base.startswith(".") else f"{front}-{base}"

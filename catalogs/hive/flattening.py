"""Flatten the directories of earlier appends: from time to time an append links all files into one directory.

Each read lists every directory of a table. Therefore, after every hundred directories, an append publishes a new
version with all files hard-linked into one directory, unless there are so many files that this would cost more than a
few links for each of those appends.
"""

from __future__ import annotations

import posixpath

from twophase.catalogs.files import Files, data_files

#: Number of new directories between two checks.
DIRECTORIES = 100
#: Maximum number of files to link for each directory that is flattened.
_FILES_A_DIRECTORY = 10


def is_due(files: Files, location: str) -> bool:
    """Whether the next append should link a table's files into one directory."""
    directories = files.count_directories(location)
    if directories == 0 or directories % DIRECTORIES:
        return False
    return len(data_files(files.list(location))) <= directories * _FILES_A_DIRECTORY


def flat_name(name: str) -> str:
    """Unique name in the flat directory for a file of a subdirectory; its checksum file is named after it."""
    directory, base = posixpath.split(name)
    if not directory:
        return name
    front = directory.replace("/", "-")
    return f".{front}-{base[1:]}" if base.startswith(".") else f"{front}-{base}"

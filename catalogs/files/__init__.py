"""Files and directories of tables, addressed by Hadoop path strings.

Only the operations that the recipes need: list, stamp, move, link, remove. A *location* is a Hadoop path string
(``file:/a/b``, ``s3a://bucket/a``, ``/a/b``), never percent-encoded. :class:`Files` sends each operation to the
:class:`FileStore` of the location's scheme.
"""

from twophase.catalogs.files.entries import Entry, data_entries, data_files, is_hidden
from twophase.catalogs.files.files import UNMARKED, Files
from twophase.catalogs.files.hadoop import HadoopFiles
from twophase.catalogs.files.interface import FileStore
from twophase.catalogs.files.kinds import KINDS, StorageKind
from twophase.catalogs.files.parts import is_part
from twophase.catalogs.files.paths import (
    Root,
    base_name,
    file_system_of,
    is_below,
    join,
    normal,
    parent,
    same,
    shown_file_system,
)
from twophase.catalogs.files.untested import LOCAL_TIMELINE, UNTRIED, refuse_untried, requirements

__all__ = [
    "KINDS",
    "LOCAL_TIMELINE",
    "UNMARKED",
    "UNTRIED",
    "Entry",
    "FileStore",
    "Files",
    "HadoopFiles",
    "Root",
    "StorageKind",
    "base_name",
    "data_entries",
    "data_files",
    "file_system_of",
    "is_below",
    "is_hidden",
    "is_part",
    "join",
    "normal",
    "parent",
    "refuse_untried",
    "requirements",
    "same",
    "shown_file_system",
]

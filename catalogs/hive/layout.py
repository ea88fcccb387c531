"""Where versions of a table live, and the stamps that say who made them.

::

    <database location>/.twophase/<table>/<transaction id>-<ordinal>/        a version, never inside a live one
                                              _twophase.json                 owner stamp
                                              part-00000-...                 Spark's own files
                                              _twophase_manifest.json        what the publish does, for recovery
                                              _twophase_own.json             which files its own statement wrote
                                              _twophase_withdrawn.json       rolled back; a server may still point at it
    <database location>/.twophase/<table>/<transaction id>-<ordinal>.root/   a table's own directory, where the
                                              partitions that twophase wrote lie elsewhere
    any directory that was replaced           _twophase_retired.json         by whom, when, and which files it held

Names that begin with an underscore are no data to Spark, Hive and Trino.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from twophase.catalogs.files import Entry, Files, base_name, data_entries, join, normal, parent
from twophase.catalogs.hive.metastore import NULL_PARTITION
from twophase.errors import CatalogError

ROOT = ".twophase"
STAMP_FILE = "_twophase.json"
RETIRED_FILE = "_twophase_retired.json"
PUBLISHED_FILE = "_twophase_published.json"
MANIFEST_FILE = "_twophase_manifest.json"
WITHDRAWN_FILE = "_twophase_withdrawn.json"
OWN_FILE = "_twophase_own.json"
_ROOT_SUFFIX = ".root"
#: Where Spark's and Hive's tasks write before their job commits.
_UNCOMMITTED = ("_temporary", ".spark-staging", ".hive-staging")
_MARKS = frozenset({STAMP_FILE, RETIRED_FILE, PUBLISHED_FILE, MANIFEST_FILE, WITHDRAWN_FILE, OWN_FILE})
#: Why a directory is kept that somebody else has marked.
UNTRUSTED = "its mark is neither of the user who owns the directory nor of this one"
#: Tables with this prefix are staging: never listed, never a user's.
HIDDEN_PREFIX = "__twophase_"
#: Role of a hidden table that holds what is being replaced.
ASIDE = "aside"
#: Role of one that holds the definition which an undone replace brings back.
BEFORE = "before"
#: Roles of those that are of use only until the publish is settled.
HELPERS = ("write", "table", "read", BEFORE)


@dataclass(frozen=True)
class Retired:
    """What a retired mark says."""

    transaction_id: str
    since: float
    files: tuple[str, ...]


@dataclass(frozen=True)
class Published:
    """Who said that a version was published, and when: its own transaction, or a later one that took the table away."""

    transaction_id: str
    since: float


def tables_root(database_location: str) -> str:
    """The directory that holds the versions of all tables of a database."""
    return join(database_location, ROOT)


def version_name(transaction_id: str, ordinal: int) -> str:
    """Directory name of the version that a participant stages."""
    return f"{transaction_id}-{ordinal}"


def version_of(home: str, transaction_id: str, ordinal: int) -> str:
    """Where a participant stages: beside the other versions of the table whose default location is ``home``."""
    return join(tables_root(parent(home)), base_name(home), version_name(transaction_id, ordinal))


def version_beside(location: str, transaction_id: str, ordinal: int) -> str:
    """Staging for a table whose files must end at ``location``: beside it, on the same filesystem."""
    return join(parent(location), ROOT, base_name(location), version_name(transaction_id, ordinal))


def empty_beside(version: str) -> str:
    """The directory without rows beside a version."""
    return version + ".empty"


def is_version_place(location: str) -> bool:
    """Whether a directory lies where only versions of ours do."""
    return base_name(parent(parent(location))) == ROOT


def is_in_version(location: str) -> bool:
    """Whether a directory is a version of ours or lies in one."""
    return f"/{ROOT}/" in normal(location)


def tail_of(location: str) -> tuple[str, ...] | None:
    """Table, version and what is below, of a directory that is a version or lies in one; None for any other.

    A version's name holds its transaction: the same tail is the same version, by whatever way it was reached.
    """
    _, found, tail = normal(location).rpartition(f"/{ROOT}/")
    parts = tuple(tail.split("/"))
    return parts if found and len(parts) > 1 else None


def root_of(version: str) -> str:
    """The directory beside a version that is a partitioned table's own, and holds no partition of ours."""
    return version + _ROOT_SUFFIX


def is_root(location: str) -> bool:
    """Whether a table's directory is one of :func:`root_of`."""
    return is_version_place(location) and base_name(location).endswith(_ROOT_SUFFIX)


def hidden_name(role: str, transaction_id: str, ordinal: int) -> str:
    """Name of a hidden table; short enough for any metastore, and the same at every call."""
    digest = hashlib.sha256(f"{transaction_id}-{ordinal}".encode()).hexdigest()[:24]
    return f"{HIDDEN_PREFIX}{role}_{digest}"


def is_aside(name: str) -> bool:
    """Whether a hidden table is a user's table that a replace has set aside."""
    return name.startswith(f"{HIDDEN_PREFIX}{ASIDE}_")


# -- stamps ------------------------------------------------------------------------------------------------------------


def write_stamp(files: Files, version: str, facts: dict[str, Any]) -> None:
    """Make a version's directory with its owner stamp; ours already: nothing happens."""
    files.make_directory(version)
    if files.read_json(join(version, STAMP_FILE)) is None:
        files.write_json(join(version, STAMP_FILE), {**facts, "created": time.time()})


def read_stamp(files: Files, directory: str) -> dict[str, Any] | None:
    """The owner stamp of a directory; None for a foreign one."""
    stamp = files.read_json(join(directory, STAMP_FILE))
    return stamp if isinstance(stamp, dict) and "transaction_id" in stamp else None


def owned_by(files: Files, directory: str, transaction_id: str) -> bool:
    """Whether this very transaction made the directory."""
    stamp = read_stamp(files, directory)
    return stamp is not None and stamp["transaction_id"] == transaction_id


def late_writer(files: Files, directory: str) -> str | None:
    """The transaction of a version that a task has made anew after it was removed, which holds nothing to publish.

    Spark does not wait for the tasks of a job that failed. Whoever stages for real writes the owner stamp first.

    Parameters
    ----------
    files : Files
    directory : str
        A directory without an owner stamp.

    Returns
    -------
    str or None
        The transaction by the directory's name; None for anything else.
    """
    transaction_id, _, ordinal = base_name(directory).rpartition("-")
    if not is_version_place(directory) or not transaction_id or not ordinal.isdigit():
        return None
    entries = files.list(directory)
    is_late = entries and all(entry.name.startswith(_UNCOMMITTED) for entry in entries)
    return transaction_id if is_late else None


def retire(files: Files, directory: str, transaction_id: str) -> None:
    """Mark a replaced directory, so that it goes when its readers have ended; the first mark stays."""
    mark = join(directory, RETIRED_FILE)
    if not files.exists(directory) or files.read_json(mark) is not None:
        return
    held = [entry.name for entry in files.list(directory) if entry.is_file]
    files.write_json(mark, {"transaction_id": transaction_id, "since": time.time(), "files": held})


def mark_published(files: Files, version: str, transaction_id: str) -> None:
    """Say beside a version's files that they were published; the first mark stays."""
    if read_published(files, version) is None:
        files.write_json(join(version, PUBLISHED_FILE), {"transaction_id": transaction_id, "since": time.time()})


def read_published(files: Files, version: str) -> Published | None:
    """What is said of a version's publish; None where nothing is."""
    mark = files.read_json(join(version, PUBLISHED_FILE))
    if not isinstance(mark, dict) or "transaction_id" not in mark:
        return None
    return Published(str(mark["transaction_id"]), float(mark.get("since", 0)))


def is_spent(files: Files, version: str) -> bool:
    """Whether each row of a version that was published is in a directory of it that was replaced since."""
    entries = files.list(version, links=False)
    held = {join(part, name) for part in _retired_parts(entries) for name in _retired_files(files, version, part)}
    rows = {f"/{entry.name}" for entry in data_entries(entries)}
    return rows <= held and (bool(held) or not _is_a_tables(files, version))


def _is_a_tables(files: Files, version: str) -> bool:
    """Whether a version may be the directory of a table, which needs it without rows, too."""
    stamp, published = read_stamp(files, version), read_published(files, version)
    if stamp is None or published is None:
        return True
    left = published.transaction_id != stamp["transaction_id"]  # The table was given another one.
    return not left and "insert" not in str(stamp.get("purpose"))


def _retired_parts(entries: list[Entry]) -> list[str]:
    return [f"/{entry.name}".rpartition("/")[0] for entry in entries if entry.base == RETIRED_FILE]


def _retired_files(files: Files, version: str, part: str) -> tuple[str, ...]:
    mark = read_retired(files, version + part)
    return mark.files if mark is not None and is_trusted(files, version + part, RETIRED_FILE) else ()


def stamp_above(files: Files, directory: str) -> dict[str, Any] | None:
    """The owner stamp of the version that a directory is or lies in; None for a foreign one."""
    head, found, tail = normal(directory).rpartition(f"/{ROOT}/")
    parts = tail.split("/")
    return read_stamp(files, join(head, ROOT, *parts[:2])) if found and len(parts) > 1 else None


def withdraw(files: Files, version: str, transaction_id: str) -> None:
    """Mark a version that was rolled back and is kept for a while; the first mark stays."""
    mark = join(version, WITHDRAWN_FILE)
    if files.exists(version) and files.read_json(mark) is None:
        files.write_json(mark, {"transaction_id": transaction_id, "since": time.time()})


def withdrawn_since(files: Files, version: str) -> float | None:
    """When a version was rolled back and kept, in seconds since the epoch; None where it was not."""
    mark = files.read_json(join(version, WITHDRAWN_FILE))
    return float(mark["since"]) if isinstance(mark, dict) and "since" in mark else None


def is_withdrawn(files: Files, version: str) -> bool:
    """Whether a version was rolled back and kept."""
    return withdrawn_since(files, version) is not None


def read_retired(files: Files, directory: str) -> Retired | None:
    """The retired mark of a directory; None where it carries none."""
    mark = files.read_json(join(directory, RETIRED_FILE))
    if not isinstance(mark, dict) or "transaction_id" not in mark:
        return None
    return Retired(mark["transaction_id"], float(mark["since"]), tuple(mark["files"]))


def is_trusted(files: Files, directory: str, mark: str) -> bool:
    """Whether a mark of a directory may say what of it is removed: its owner's, or one that this user wrote.

    Others may write to a directory of many users, and what they write there is no word of ours.
    """
    owner = files.owner(join(directory, mark))
    return owner is None or owner in (files.owner(directory), os.geteuid())


def unretire(files: Files, directory: str, transaction_id: str) -> None:
    """Take back a retired mark of this transaction."""
    mark = read_retired(files, directory)
    if mark is not None and mark.transaction_id == transaction_id:
        files.remove_file(join(directory, RETIRED_FILE))


def remove_retired(files: Files, directory: str) -> None:
    """Remove what a retired directory held when it was marked; a file that came later is not ours to remove.

    Raises
    ------
    CatalogError
        Another user than the directory's owner marked it; nothing was removed.
    """
    mark = read_retired(files, directory)
    if mark is None:
        return
    if not is_trusted(files, directory, RETIRED_FILE):
        raise CatalogError(f"{directory} was kept: {UNTRUSTED}.", hint="Run it as the owner of the mark.")
    # Our own marks may be younger than the list; the directory's own one goes last.
    marks = [e.name for e in files.list(directory, links=False) if e.is_file and e.base in _MARKS]
    files.remove_files(directory, {*mark.files, *marks} - {RETIRED_FILE})
    files.remove_files(directory, [RETIRED_FILE])
    directories = [entry.name for entry in files.list(directory, links=False) if not entry.is_file]
    for name in sorted(directories, key=lambda name: -name.count("/")):
        files.remove_if_empty(join(directory, name))
    files.remove_if_empty(directory)


# -- partitions --------------------------------------------------------------------------------------------------------


def partition_values(name: str, columns: tuple[str, ...]) -> dict[str, str] | None:
    """Column to value of a directory name ``a=1/b=x%3Ay``; None where it is no full partition of these columns."""
    parts = name.split("/")
    if len(parts) != len(columns) or any("=" not in part for part in parts):
        return None
    pairs = [part.split("=", 1) for part in parts]
    if [unquote(key).lower() for key, _ in pairs] != [column.lower() for column in columns]:
        return None
    return {column: unquote(value) for column, (_, value) in zip(columns, pairs, strict=True)}


def partition_key(values: dict[str, str], columns: tuple[str, ...]) -> tuple[str, ...]:
    """What identifies a partition, whatever the case of the column names in ``values``."""
    lowered = {key.lower(): value for key, value in values.items()}
    return tuple(lowered[column.lower()] for column in columns)


def partition_name(key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """Directory name of a partition, escaped as Hive and Spark do."""
    return "/".join(f"{escape(column)}={escape(value)}" for column, value in zip(columns, key, strict=True))


_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | {chr(code) for code in range(1, 32)}


def escape(text: str) -> str:
    """Hive's escaping of a partition column's name or value."""
    if text in ("", NULL_PARTITION):
        return NULL_PARTITION
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)


def partition_directories(entries: list[Entry], columns: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    """Partitions found in a listing that hold at least one data file: key to directory name."""
    found: dict[tuple[str, ...], str] = {}
    for entry in data_entries(entries):
        directory = posixpath.dirname(entry.name)
        values = partition_values(directory, columns)
        if values is not None:
            found[partition_key(values, columns)] = directory
    return found

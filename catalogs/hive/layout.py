"""Paths of the versions of a table, and the stamps that name their owners.

::

    <database location>/.twophase/<table>/<transaction id>-<ordinal>/        a version, never inside a live one
                                              _twophase.json                 owner stamp
                                              part-00000-...                 Spark's own files
                                              _temporary/part-00000-...      the same, of a job that renames none
                                              _twophase_written.json         which of these hold its rows
                                              _twophase_manifest.json        changes of the publish, for recovery
                                              _twophase_own.json             names of the files its statement wrote
                                              _twophase_staged.json          names of all its files before the publish
                                              _twophase_replaced.json        former partitions, for snapshot reads
                                              _twophase_withdrawn.json       rolled back; a delayed call may need it
    <database location>/.twophase/<table>/<transaction id>-<ordinal>.root/   a partitioned table's own directory, if
                                              the partitions that twophase wrote are elsewhere
    <database location>/.twophase/<table>/<transaction id>-<ordinal>.empty/  new partitions: without rows until the
                                              publish, or where their own directory still holds replaced rows
    .twophase/.savepoints/<savepoint>/<database>/<table>/   beside the databases: what a named savepoint keeps
        _twophase_savepoint.json              of which savepoint, and the table's definition
    any directory that was replaced           _twophase_retired.json         by whom, when, and which files it held

Spark, Hive and Trino ignore files whose names begin with an underscore.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from twophase.catalogs.files import (
    Entry,
    Files,
    base_name,
    data_entries,
    data_files,
    is_hidden,
    is_part,
    join,
    normal,
    parent,
)
from twophase.catalogs.hive.tables import NULL_PARTITION, partition_key
from twophase.errors import CatalogError

ROOT = ".twophase"
STAMP_FILE = "_twophase.json"
SUPERSEDED_FILE = "_twophase_retired.json"
PUBLISHED_FILE = "_twophase_published.json"
MANIFEST_FILE = "_twophase_manifest.json"
QUARANTINED_FILE = "_twophase_withdrawn.json"
OWN_FILE = "_twophase_own.json"
STAGED_FILE = "_twophase_staged.json"
WRITTEN_FILE = "_twophase_written.json"
REPLACED_FILE = "_twophase_replaced.json"
#: Directory of what savepoints keep, and the file that says of which savepoint a kept table is.
SAVEPOINTS = ".savepoints"
SAVEPOINT_FILE = "_twophase_savepoint.json"
_ROOT_SUFFIX = ".root"
#: Directories to which Spark's and Hive's tasks write before their job commits.
_UNCOMMITTED = ("_temporary", ".spark-staging", ".hive-staging")
#: The same, of a job without a committer: its files stay there until they are published.
TASK_FILES = "_temporary"
#: All files that are written beside rows, as documents.
DOCUMENTS = frozenset(
    {
        *(STAMP_FILE, SUPERSEDED_FILE, PUBLISHED_FILE, MANIFEST_FILE, QUARANTINED_FILE, OWN_FILE, REPLACED_FILE),
        *(WRITTEN_FILE, STAGED_FILE),
    }
)
#: Removed after all other files of a version, in this order: an interrupted removal is completed by its owner, who is
#: known by the stamp, and knows by the mark that its files were published.
REMOVED_LAST = (PUBLISHED_FILE, STAMP_FILE)
#: Reason to keep a directory that another user has marked.
UNTRUSTED = "its mark is neither of the user who owns the directory nor of this one"
#: Ending of the directory of the new partitions that are not in the version itself.
_EMPTY = ".empty"
#: Prefix of hidden tables, which are never listed and never a user's.
HIDDEN_PREFIX = "__twophase_"
#: Role of the hidden table that is the backup of a replaced table, or a table that is being dropped.
BACKUP = "aside"
#: Role of the hidden table that is being dropped by a write that gives its name to another one.
DROPPED = f"{BACKUP}_dropped"
#: Role of the hidden table with the old definition, restored when a replace is undone.
BEFORE = "before"
#: Roles of the hidden tables that are needed only until the publish has ended.
HELPERS = ("write", "table", "read", BEFORE)


@dataclass(frozen=True)
class SupersededMark:
    """Contents of a superseded mark."""

    transaction_id: str
    since: float
    files: tuple[str, ...]


@dataclass(frozen=True)
class Published:
    """Contents of a published mark, written by the version's transaction or by a later one that moved the table."""

    transaction_id: str
    since: float


def tables_root(database_location: str) -> str:
    """Directory of the versions of all tables of a database."""
    return join(database_location, ROOT)


def version_name(transaction_id: str, ordinal: int) -> str:
    """Directory name of the version that a participant stages."""
    return f"{transaction_id}-{ordinal}"


def version_of(home: str, transaction_id: str, ordinal: int) -> str:
    """Staging path of a participant: beside the other versions of the table whose default location is ``home``."""
    return join(tables_root(parent(home)), base_name(home), version_name(transaction_id, ordinal))


def version_beside(location: str, transaction_id: str, ordinal: int) -> str:
    """Staging path for a table whose files are moved to ``location``: beside it, on the same filesystem."""
    return join(parent(location), ROOT, base_name(location), version_name(transaction_id, ordinal))


def empty_beside(version: str) -> str:
    """The empty directory beside a version."""
    return version + _EMPTY


def is_emptied_by(location: str, transaction_id: str) -> bool:
    """Whether a partition is where a statement of a transaction has added it without rows."""
    names = normal(location).split("/")
    return any(name.startswith(f"{transaction_id}-") and name.endswith(_EMPTY) for name in names)


def is_version_place(location: str) -> bool:
    """Whether a directory is at a path that only versions of ours have."""
    return base_name(parent(parent(location))) == ROOT


def is_in_version(location: str) -> bool:
    """Whether a directory is a version of ours, or is inside one."""
    return f"/{ROOT}/" in normal(location)


def tail_of(location: str) -> tuple[str, ...] | None:
    """Path components from the table on, of a directory that is a version or inside one; None for any other.

    As a version's name contains its transaction, the same tail means the same version, however its path is spelled.
    """
    _, found, tail = normal(location).rpartition(f"/{ROOT}/")
    parts = tuple(tail.split("/"))
    return parts if found and len(parts) > 1 else None


def root_of(version: str) -> str:
    """The empty root beside a version: a partitioned table's own directory, which holds no partition of ours."""
    return version + _ROOT_SUFFIX


def is_root(location: str) -> bool:
    """Whether a table's directory is a result of :func:`root_of`."""
    return is_version_place(location) and base_name(location).endswith(_ROOT_SUFFIX)


def hidden_name(role: str, transaction_id: str, ordinal: int) -> str:
    """Name of a hidden table; short enough for any metastore, and deterministic."""
    digest = hashlib.sha256(f"{transaction_id}-{ordinal}".encode()).hexdigest()[:24]
    return f"{HIDDEN_PREFIX}{role}_{digest}"


def is_backup(name: str) -> bool:
    """Whether a hidden table is the backup of a user's table, made by a replace or a drop."""
    return name.startswith(f"{HIDDEN_PREFIX}{BACKUP}_")


# -- stamps ------------------------------------------------------------------------------------------------------------


def write_stamp(files: Files, version: str, facts: dict[str, Any]) -> None:
    """Create a version's directory with its owner stamp. Idempotent."""
    files.make_directory(version)
    if files.read_json(join(version, STAMP_FILE)) is None:
        files.write_json(join(version, STAMP_FILE), {**facts, "created": time.time()})


def read_stamp(files: Files, directory: str) -> dict[str, Any] | None:
    """Read the owner stamp of a directory; None for a foreign directory."""
    return files.read_document(join(directory, STAMP_FILE), "transaction_id")


def owned_by(files: Files, directory: str, transaction_id: str) -> bool:
    """Whether this transaction made the directory."""
    stamp = read_stamp(files, directory)
    return stamp is not None and stamp["transaction_id"] == transaction_id


def late_writer(files: Files, directory: str) -> str | None:
    """Transaction of a version that a late task has recreated after its removal, and that holds nothing to publish.

    Spark does not wait for the tasks of a failed job. A participant writes the owner stamp before any task starts.

    Parameters
    ----------
    files : Files
    directory : str
        A directory without an owner stamp.

    Returns
    -------
    str or None
        The transaction, from the directory's name; None for any other directory.
    """
    transaction_id, _, ordinal = base_name(directory).rpartition("-")
    if not is_version_place(directory) or not transaction_id or not ordinal.isdigit():
        return None
    # An aborted task may have removed its own file again, and left the directory; a removal may have left directories.
    is_late = all(not entry.is_file or entry.name.startswith(_UNCOMMITTED) for entry in files.list(directory))
    return transaction_id if is_late else None


def supersede(files: Files, directory: str, transaction_id: str) -> None:
    """Mark a replaced directory for removal after its readers have finished.

    The mark of another transaction is of an earlier life of the directory: it knows neither its files nor its readers.
    """
    entries = files.list(directory)
    if not (entries or files.exists(directory)):
        return
    mark, held = join(directory, SUPERSEDED_FILE), [entry.name for entry in entries if entry.is_file]
    found = files.read_document(mark, "transaction_id") if SUPERSEDED_FILE in held else None
    if found is None or found["transaction_id"] != transaction_id:
        files.write_json(mark, {"transaction_id": transaction_id, "since": time.time(), "files": held})


def mark_published(files: Files, version: str, transaction_id: str, *, waits: bool = True) -> None:
    """Record beside a version's files that they were published; an existing mark is kept."""
    if read_published(files, version) is None:
        mark = {"transaction_id": transaction_id, "since": time.time()}
        files.write_json(join(version, PUBLISHED_FILE), mark, waits=waits)


def read_published(files: Files, version: str) -> Published | None:
    """Read the published mark of a version; None if it has none."""
    mark = files.read_document(join(version, PUBLISHED_FILE), "transaction_id")
    return None if mark is None else Published(str(mark["transaction_id"]), float(mark.get("since", 0)))


def is_spent(files: Files, version: str) -> bool:
    """Whether all rows of a published version are in directories of it that have been replaced since."""
    entries = files.list(version, links=False)
    held = {join(part, name) for part in _superseded_parts(entries) for name in _superseded_files(files, version, part)}
    rows = {f"/{entry.name}" for entry in data_entries(entries)}
    return rows <= held and (bool(held) or not _is_a_tables(files, version))


def _is_a_tables(files: Files, version: str) -> bool:
    """Whether a version may be the directory of a table, which needs the directory even without rows."""
    stamp, published = read_stamp(files, version), read_published(files, version)
    if stamp is None or published is None:
        return True
    left = published.transaction_id != stamp["transaction_id"]  # The table was given another directory.
    return not left and not any(word in str(stamp.get("purpose")) for word in ("insert", "drop", "alter", "rename"))


def _superseded_parts(entries: list[Entry]) -> list[str]:
    return [f"/{entry.name}".rpartition("/")[0] for entry in entries if entry.base == SUPERSEDED_FILE]


def _superseded_files(files: Files, version: str, part: str) -> tuple[str, ...]:
    mark = read_superseded(files, version + part)
    return mark.files if mark is not None and is_trusted(files, version + part, SUPERSEDED_FILE) else ()


def version_above(directory: str) -> str | None:
    """The version that a directory is, or is inside of, by its path; None for one at any other path."""
    head, found, tail = normal(directory).rpartition(f"/{ROOT}/")
    parts = tail.split("/")
    return join(head, ROOT, *parts[:2]) if found and len(parts) > 1 else None


def stamp_above(files: Files, directory: str) -> dict[str, Any] | None:
    """Read the owner stamp of the version that a directory is, or is inside of; None for a foreign directory."""
    version = version_above(directory)
    return None if version is None else read_stamp(files, version)


def quarantine(files: Files, version: str, transaction_id: str) -> None:
    """Mark a version that was rolled back but is kept for a while; an existing mark is kept."""
    mark = join(version, QUARANTINED_FILE)
    if files.exists(version) and files.read_json(mark) is None:
        files.write_json(mark, {"transaction_id": transaction_id, "since": time.time()})


def quarantined_since(files: Files, version: str) -> float | None:
    """Time when a version was rolled back and kept, in seconds since the epoch; None if it was not."""
    mark = files.read_document(join(version, QUARANTINED_FILE), "since")
    return None if mark is None else float(mark["since"])


def read_superseded(files: Files, directory: str) -> SupersededMark | None:
    """Read the superseded mark of a directory; None if it has none."""
    mark = files.read_document(join(directory, SUPERSEDED_FILE), "transaction_id")
    if mark is None:
        return None
    return SupersededMark(mark["transaction_id"], float(mark["since"]), tuple(mark["files"]))


def is_trusted(files: Files, directory: str, mark: str) -> bool:
    """Whether a mark may decide what is removed from a directory: it was written by the directory's owner or this user.

    Other users may be able to write to a shared directory; their marks are not trusted.
    """
    owner = files.owner(join(directory, mark))
    return owner is None or owner in (files.owner(directory), os.geteuid())


def clear_superseded(files: Files, directory: str, transaction_id: str) -> None:
    """Remove a superseded mark of this transaction."""
    mark = read_superseded(files, directory)
    if mark is not None and mark.transaction_id == transaction_id:
        files.remove_file(join(directory, SUPERSEDED_FILE))


def remove_superseded(files: Files, directory: str) -> None:
    """Remove the files that a superseded directory held when it was marked; files added later are kept.

    Raises
    ------
    CatalogError
        A user other than the directory's owner marked it; nothing was removed.
    """
    mark = read_superseded(files, directory)
    if mark is None:
        return
    if not is_trusted(files, directory, SUPERSEDED_FILE):
        raise CatalogError(f"{directory} was kept: {UNTRUSTED}.", hint="Run it as the owner of the mark.")
    # Our own marks, and what a killed process wrote of one, may be younger than the list; its own is removed last.
    entries = files.list(directory, links=False)
    marks = [e.name for e in entries if e.is_file and (e.base in DOCUMENTS or is_part(e.base))]
    files.remove_files(directory, {*mark.files, *marks} - {SUPERSEDED_FILE})
    directories = [entry.name for entry in files.list(directory, links=False) if not entry.is_file]
    for name in sorted(directories, key=lambda name: -name.count("/")):
        files.remove_if_empty(join(directory, name))
    files.remove_files(directory, [SUPERSEDED_FILE])
    files.remove_if_empty(directory)


# -- partitions --------------------------------------------------------------------------------------------------------


def partition_values(name: str, columns: tuple[str, ...]) -> dict[str, str] | None:
    """Parse a directory name ``a=1/b=x%3Ay`` to column values; None if it is not a full partition of these columns."""
    parts = name.split("/")
    if len(parts) != len(columns) or any("=" not in part for part in parts):
        return None
    pairs = [part.split("=", 1) for part in parts]
    if [unquote(key).lower() for key, _ in pairs] != [column.lower() for column in columns]:
        return None
    return {column: unquote(value) for column, (_, value) in zip(columns, pairs, strict=True)}


def partition_name(key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """Directory name of a partition, escaped like in Hive and Spark."""
    return "/".join(f"{escape(column)}={escape(value)}" for column, value in zip(columns, key, strict=True))


_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | {chr(code) for code in range(1, 32)}


def escape(text: str) -> str:
    """Escape a partition column's name or value like Hive."""
    if text in ("", NULL_PARTITION):
        return NULL_PARTITION
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)


def partition_files(entries: list[Entry]) -> dict[str, tuple[int, int]]:
    """Directory names in a listing: to the number of data files directly in each, and their bytes."""
    found: dict[str, tuple[int, int]] = {}
    for entry in data_files(entries):
        directory = posixpath.dirname(entry.name)
        number, size = found.get(directory, (0, 0))
        found[directory] = (number + 1, size + entry.size)
    return found


def partition_directories(entries: list[Entry], columns: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    """Partitions in a listing with at least one data file: key to directory name."""
    found: dict[tuple[str, ...], str] = {}
    for entry in data_entries(entries):
        directory = posixpath.dirname(entry.name)
        values = partition_values(directory, columns)
        if values is not None:
            found[partition_key(values, columns)] = directory
    return found


def outside_partitions(entries: list[Entry], partitions: Iterable[str]) -> str | None:
    """The first directory in a listing that is named like a partition, and holds files, but is in none of these."""
    known = set(partitions)
    places = {posixpath.dirname(entry.name) for entry in entries if entry.is_file and not is_hidden(entry.base)}
    for place in sorted(places - known):
        above = place
        while above and above not in known:
            above = posixpath.dirname(above)
        if not above and "=" in place.partition("/")[0]:
            return place
    return None

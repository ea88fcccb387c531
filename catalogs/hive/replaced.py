"""The state of a table that a publish replaces, as recorded for readers whose snapshot does not contain the publish."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from twophase.catalogs.files import Entry, Files, Root, data_files, is_hidden, join, normal
from twophase.catalogs.hive.layout import REPLACED_FILE
from twophase.catalogs.hive.partition_plan import Key
from twophase.model import TableDefinition

#: Maximum number of partitions that are recorded on the timeline itself, not beside the version.
FEW_PARTITIONS = 50
#: Maximum number of files that an append may add one by one and still be left out of a read.
MOST_FILES = 1000

#: Of a document: the :func:`content` that the publish leaves in the directories that it makes the table's.
LEFT = "left"
#: Of a document: the :func:`~twophase.catalogs.hive.definitions.fingerprint` of the table's definition after a publish
#: that defines it.
LEFT_DEFINITION = "left_definition"


@dataclass(frozen=True)
class Nothing:
    """The publish creates the table."""


@dataclass(frozen=True)
class Directory:
    """All rows were in one directory, where they stay until ``clean`` removes them.

    Attributes
    ----------
    location : str
    stamp : str or None
        The transaction that had published it, as recorded in the metastore.
    content : str
        From :func:`content`, of all files in the directory.
    definition : TableDefinition or None
        The table's definition if the publish changes it; without secrets.
    """

    location: str
    stamp: str | None
    content: str
    definition: TableDefinition | None = None


@dataclass(frozen=True)
class Added:
    """The publish only adds files and partitions, to what others may add at the same time.

    Attributes
    ----------
    location : str
        The table's directory.
    stamp : str or None
    files : mapping of str to tuple of str
        Names of the files, or of the directories with all files, by the directory that they are added to.
    keys : tuple
        New partitions; others may add the same ones.
    unlisted : mapping of str to tuple of str
        Names of the files that were in the directories of new partitions before, where no reader saw them.
    definition : TableDefinition or None
        As in :class:`Directory`.
    """

    location: str
    stamp: str | None
    files: Mapping[str, tuple[str, ...]]
    keys: tuple[Key, ...] = ()
    unlisted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    definition: TableDefinition | None = None


@dataclass(frozen=True)
class Partitions:
    """The publish switches partitions.

    Attributes
    ----------
    location : str
        The table's directory.
    stamp : str or None
    partitions : mapping
        For each changed partition its former directory, with the :func:`content` of that; None for a new one.
    complete : bool
        Whether these are all partitions that the table had.
    definition : TableDefinition or None
        As in :class:`Directory`.
    """

    location: str
    stamp: str | None
    partitions: Mapping[Key, tuple[str, str] | None] = field(repr=False)
    complete: bool = False
    definition: TableDefinition | None = None


@dataclass(frozen=True)
class Defined:
    """The publish only gives the table another definition: all its files stay, to be read by that.

    Attributes
    ----------
    location : str
        The table's directory.
    stamp : str or None
    definition : TableDefinition
        The former definition; without secrets.
    """

    location: str
    stamp: str | None
    definition: TableDefinition


Replaced = Nothing | Directory | Added | Partitions | Defined


def content(entries: Iterable[Entry]) -> str:
    """Hash the names and sizes of data files: it changes if one is missing."""
    found = sorted([entry.name, entry.size] for entry in data_files(list(entries)))
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def content_of(files: Files, location: str, *, recursive: bool = True) -> str:
    """Same as :func:`content`, for a directory."""
    return content(files.list(location, recursive=recursive))


def contents_below(files: Files, root: str) -> Callable[[str], str]:
    """List everything below a directory; return :func:`content` for each one in it, without those below that."""
    found: dict[str, list[Entry]] = {}
    for entry in files.list(root):
        directory, _, name = entry.name.rpartition("/")
        found.setdefault(directory, []).append(replace(entry, name=name))
    top = Root(root)
    return lambda place: content(found.get(top.name_of(place) or "", ()))


def names(entries: Iterable[Entry]) -> str | None:
    """Hash the names directly in a table's directory; None if there are partitions, which may be many."""
    found = []
    for entry in entries:
        if "=" in entry.name and not entry.is_file:
            return None
        if not is_hidden(entry.name) and not entry.name.endswith(".crc"):
            found.append(entry.name)
    return hashlib.sha256(json.dumps(sorted(found)).encode()).hexdigest()


def names_in(files: Files, location: str) -> str | None:
    """Same as :func:`names`, for a local directory; None for any other."""
    return names(files.each(location)) if files.is_local(location) else None


# -- documents ---------------------------------------------------------------------------------------------------------


def to_document(state: Replaced, files: Files, version: str) -> dict[str, Any]:
    """Convert a state to a small JSON document; many partitions are stored in a file in the version's directory."""
    if isinstance(state, Nothing):
        return {"kind": "nothing"}
    definition = state.definition and state.definition.to_document()
    common: dict[str, Any] = {"location": state.location, "stamp": state.stamp, "definition": definition}
    if isinstance(state, Added):
        added, unlisted = (
            {place: list(names) for place, names in found.items()} for found in (state.files, state.unlisted)
        )
        keys = [list(key) for key in state.keys]
        return {"kind": "added", **common, "files": added, "keys": keys, "unlisted": unlisted}
    if isinstance(state, Defined):
        return {"kind": "defined", **common}
    if isinstance(state, Directory):
        return {"kind": "directory", **common, "content": state.content}
    held: Any = [[list(key), old and list(old)] for key, old in state.partitions.items()]
    if len(held) > FEW_PARTITIONS:
        place = join(version, REPLACED_FILE)
        files.write_json(place, held)
        held = place
    return {"kind": "partitions", **common, "partitions": held, "complete": state.complete}


def unknown(definition: TableDefinition | None) -> dict[str, Any]:
    """Make the document of a change that keeps former rows of a table, which nothing distinguishes from others.

    Parameters
    ----------
    definition : TableDefinition or None
        The former one, if the change makes another one.
    """
    return {"kind": "unknown", "definition": definition and definition.to_document()}


def from_document(document: Any, files: Files) -> Replaced | None:
    """Restore from the result of :func:`to_document`; None if there is none, or its file is missing."""
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind == "nothing":
        return Nothing()
    if kind not in ("added", "defined", "directory", "partitions"):
        return None
    common = (str(document["location"]), document["stamp"])
    definition = definition_in(document)
    if kind == "added":
        keys = tuple(tuple(key) for key in document["keys"])
        added, unlisted = (
            {place: tuple(names) for place, names in found.items()}
            for found in (document["files"], document.get("unlisted", {}))
        )
        return Added(*common, added, keys, unlisted, definition)
    if kind == "defined":
        return None if definition is None else Defined(*common, definition)
    if kind == "directory":
        return Directory(*common, document["content"], definition)
    held = document["partitions"]
    held = files.read_json(held) if isinstance(held, str) else held
    if not isinstance(held, list):
        return None
    partitions = {tuple(key): old and (old[0], old[1]) for key, old in held}
    return Partitions(*common, partitions, bool(document["complete"]), definition)


def is_of_table(document: Any) -> bool:
    """Return whether a document is of a table that was there before and after the change."""
    return isinstance(document, dict) and document.get("kind") != "nothing"


def definition_in(document: dict[str, Any]) -> TableDefinition | None:
    """Return the former definition of a table, from the result of :func:`to_document`; None if it was not changed."""
    stored = document.get("definition")
    return None if stored is None else TableDefinition.from_document(stored)


def added_files(targets: Iterable[str]) -> dict[str, tuple[str, ...]] | None:
    """Group the final paths of files, or of directories, by their directory; None if there are too many to record."""
    found: dict[str, list[str]] = {}
    for count, target in enumerate(targets):
        if count == MOST_FILES:
            return None
        directory, name = posixpath.split(normal(target))
        found.setdefault(directory, []).append(name)
    return {directory: tuple(names) for directory, names in found.items()}

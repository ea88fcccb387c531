"""Kept states of session tables, for named savepoints: hard links of the files, the partitions, and the definition.

They are stored beside the databases, so that they outlive the table, and even its database. No reader sees them there,
no byte is copied, and a link keeps the content of a file that is removed or replaced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from twophase.catalog.reading import ReadSource
from twophase.catalogs.files import Entry, base_name, data_files, is_below, join, normal, parent
from twophase.catalogs.hive import hard_links, identity, layout, replaced
from twophase.catalogs.hive.definitions import is_redacted, redacted, to_definition
from twophase.catalogs.hive.partition_plan import Key
from twophase.catalogs.hive.planning import plan_write
from twophase.catalogs.hive.snapshots import SnapshotRead, TableState, read_format
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import EXTERNAL, HiveTable
from twophase.catalogs.hive.write import TableWrite
from twophase.errors import AtomicityNotSupportedError, CatalogError
from twophase.failpoints import Failpoint, step
from twophase.model import Capabilities, ObjectPath, Purpose, TableDefinition, WriteContext

KEEP_FILES = Failpoint("hive.keep_files")
MARK_KEPT = Failpoint("hive.mark_kept")
FORGET_FILES = Failpoint("hive.forget_files")

Document = Mapping[str, Any]


@dataclass(frozen=True)
class _Kept:
    """A kept state of a table: its definition, its partitions, and a hash of its files."""

    definition: TableDefinition
    partitions: tuple[tuple[str, ...], ...]
    content: str


class KeptTables:
    """The kept states of the tables of one store."""

    def __init__(self, store: HiveStore) -> None:
        self._store = store
        self._files = store.files

    # -- keeping -------------------------------------------------------------------------------------------------

    def plan(
        self, table: HiveTable, path: ObjectPath, savepoint: str, capabilities: Capabilities, *, copies: bool
    ) -> Document:
        """Return the document of the present state of a table, before anything is kept.

        Raises
        ------
        AtomicityNotSupportedError
            Its files cannot be linked, and must not be copied; or its options hold secrets, which are not recorded; or
            it could not be restored.
        """
        if is_redacted(redacted(to_definition(table), self._store.conf)):
            raise AtomicityNotSupportedError(
                f"No savepoint can keep {path}: its options hold secrets, which are never written down.", path=path
            )
        self._require_restorable(table, path, capabilities)
        directory = self._directory(path, savepoint)
        if not copies and not self._files.can_link(str(table.location), directory):
            raise self._cannot_link(path, f"{table.location} is not on the file system of {directory}")
        return {
            "path": path.to_document(),
            identity.STORE: self._store.metastore.identity,
            "savepoint": savepoint,
            "directory": directory,
            "copies": copies,
        }

    def _require_restorable(self, table: HiveTable, path: ObjectPath, capabilities: Capabilities) -> None:
        """Plan now what a restore will do, to refuse what it could not."""
        purpose, alone = Purpose.CREATE_OR_REPLACE_TABLE_AS, WriteContext.alone(self._store.name)
        if plan_write(self._store, capabilities, path, _to_create(table), purpose, alone) is None:
            raise AtomicityNotSupportedError(
                f"No savepoint can keep {self._store.name}.{path}: a table of format {table.provider} has no rows of "
                "its own that could be restored. Nothing was changed.",
                path=path,
                hint="Name the other tables: CREATE SAVEPOINT ... FOR TABLE a, b.",
            )

    def _directory(self, path: ObjectPath, savepoint: str) -> str:
        """Beside the database, not in it: DROP DATABASE removes everything in it."""
        home, warehouse = self._store.database_location(path.database), self._store.environment.warehouse
        top = normal(warehouse) if warehouse and is_below(home, warehouse) else normal(parent(home))
        return join(top, layout.ROOT, layout.SAVEPOINTS, savepoint, path.database, path.name)

    def _cannot_link(self, path: ObjectPath, why: object) -> AtomicityNotSupportedError:
        return AtomicityNotSupportedError(
            f"No savepoint can keep {self._store.name}.{path} without copying its rows: {why}.",
            path=path,
            hint="Allow copies: CREATE SAVEPOINT ... WITH COPIES, or twophase.create_savepoint(..., copies=True).",
        )

    def keep(self, document: Document) -> Document:
        """Link, or copy, the files of a table, and record its definition. Idempotent."""
        path, directory = _path(document), str(document["directory"])
        self._check(document)
        state = SnapshotRead(self._store, path, ()).state()
        table = self._store.find(path)
        assert table is not None
        with step(KEEP_FILES):
            self.forget(document)
            self._files.make_directory(directory)
            stamp = {"savepoint": document["savepoint"], "path": path.to_document(), "catalog": self._store.name}
            self._files.write_json(join(directory, layout.SAVEPOINT_FILE), stamp)
            names = self._link_all(state, document)
        files = data_files(self._files.list(directory))
        kept = {
            "definition": _to_create(table).to_document(),
            "partitions": sorted(list(key) for key in state.partitions or {}),
            "content": replaced.content(files),
            "times": _times(files),
        }
        with step(MARK_KEPT):
            self._files.write_json(join(directory, layout.SAVEPOINT_FILE), {**stamp, **kept})
            if document["copies"]:
                self._files.persist(directory)
            places = {parent(join(directory, name)) for name in names} | {directory}
            top = directory.partition(f"/{layout.ROOT}/")[0]
            self._files.persist_names(*(join(place, "_") for place in places), below=top)
        return document

    def _link_all(self, state: TableState, document: Document) -> list[str]:
        directory = str(document["directory"])
        named = list(_named(state))
        links: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for place, name in named:
            target = join(directory, name)
            links.setdefault((parent(place), parent(target)), []).append((base_name(place), base_name(target)))
        for (source, target), names in links.items():
            self._files.make_directory(target)
            self._link_names(source, target, names, document)
        return [name for _, name in named]

    def _link_names(self, source: str, target: str, names: list[tuple[str, str]], document: Document) -> None:
        if document["copies"]:
            for name, new_name in names:
                self._link(join(source, name), join(target, new_name), document)
            return
        try:
            hard_links.link_names(self._files, source, target, names)
        except hard_links.CannotLinkError as error:
            raise self._cannot_link(_path(document), error.message.rstrip(".")) from error

    def _link(self, source: str, target: str, document: Document) -> None:
        try:
            hard_links.link_as(self._files, source, target)
        except hard_links.CannotLinkError as error:
            if not document["copies"]:
                raise self._cannot_link(_path(document), error.message.rstrip(".")) from error
            self._files.copy(source, target)

    # -- forgetting ----------------------------------------------------------------------------------------------

    def forget(self, document: Document) -> None:
        """Remove what is kept, if it is of this savepoint. Idempotent.

        Raises
        ------
        CatalogError
            It cannot be removed.
        """
        directory = str(document["directory"])
        if not self._files.exists(directory):
            return
        if not self._is_of(document):
            if _is_named_for(document):
                self._files.remove_parts(directory)  # It died while it wrote its first stamp.
            # It may have died at the end of a removal, which had left empty directories of partitions.
            if any(entry.is_file for entry in self._files.list(directory, links=False)):
                raise CatalogError(
                    f"{directory} was kept: it does not say that savepoint {document['savepoint']} has made it.",
                    path=_path(document),
                )
        with step(FORGET_FILES):
            self._remove(directory)

    def _is_of(self, document: Document) -> bool:
        place = join(str(document["directory"]), layout.SAVEPOINT_FILE)
        stamp = self._files.read_json(place)
        if isinstance(stamp, dict):
            return bool(stamp.get("savepoint") == document["savepoint"])
        return _is_named_for(document) and self._files.exists(place)  # A power cut has left a part of it.

    def _remove(self, directory: str) -> None:
        self._files.remove_tree(directory, [layout.SAVEPOINT_FILE])
        above = parent(directory)
        while f"/{layout.SAVEPOINTS}" in above and self._files.remove_if_empty(above):
            above = parent(above)

    # -- using ---------------------------------------------------------------------------------------------------

    def definition(self, document: Document) -> TableDefinition:
        """Return the definition of a kept table."""
        return self._kept(document).definition

    def source(self, document: Document) -> ReadSource:
        """Return the source of the rows of a kept table.

        Raises
        ------
        CatalogError
            Spark reads such files only through the metastore.
        """
        (kept, entries), directory = self._found(document), str(document["directory"])
        provider = read_format(kept.definition, self._store.conf)
        if provider is None:
            raise CatalogError(
                f"What a savepoint keeps of {_path(document)} can be read only through the metastore.",
                path=_path(document),
                hint="Restore it, to another time if need be: a restore keeps the files as they are.",
            )
        files = [(join(directory, entry.name), entry) for entry in entries]
        columns = tuple(kept.definition.partition_columns)
        partitions = {key: join(directory, layout.partition_name(key, columns)) for key in kept.partitions}
        return TableState(directory, None, kept.definition, files, partitions or None).source(provider)

    def stage(self, write: TableWrite, document: Document) -> None:
        """Link the files of a kept table into the version of a write that replaces or creates the table.

        Raises
        ------
        CatalogError
            Not all of them are there any more, or they can be neither linked nor copied.
        """
        (kept, entries), version = self._found(document), write.state.version
        with write.step("link"):
            for entry in entries:
                self._link_into(version, entry.name, document)
            if replaced.content_of(self._files, version) != kept.content:
                raise _lost(document)

    def _link_into(self, version: str, name: str, document: Document) -> None:
        source, target = join(str(document["directory"]), name), join(version, name)
        self._files.make_directory(parent(target))
        try:
            self._link(source, target, document)
        except FileNotFoundError as error:
            if self._files.exists(source):
                raise
            raise _lost(document) from error

    def _kept(self, document: Document) -> _Kept:
        return self._found(document)[0]

    def _found(self, document: Document) -> tuple[_Kept, list[Entry]]:
        """The kept state and its files: listed once, so that what is used is what was checked."""
        self._check(document)
        directory = str(document["directory"])
        facts = self._files.read_json(join(directory, layout.SAVEPOINT_FILE))
        kept = facts if isinstance(facts, dict) and facts.get("savepoint") == document["savepoint"] else {}
        entries = data_files(self._files.list(directory))
        if kept.get("content") != replaced.content(entries):
            raise _lost(document)
        if kept.get("times", now := _times(entries)) != now:
            raise CatalogError(
                f"What a savepoint kept of {_path(document)} was changed in place, in {document['directory']}.",
                path=_path(document),
                hint="A program has written into a file of the table, instead of replacing it: these are other rows.",
            )
        keys = tuple(tuple(key) for key in kept["partitions"])
        return _Kept(TableDefinition.from_document(kept["definition"]), keys, kept["content"]), entries

    def _check(self, document: Document) -> None:
        """Refuse what is kept of another metastore.

        Raises
        ------
        ConfigurationError
        """
        theirs, ours = document.get(identity.STORE), self._store.metastore.identity
        if identity.is_other(theirs, ours):
            raise identity.refusal(f"What a savepoint keeps of {_path(document)}", str(theirs), ours)


def _is_named_for(document: Document) -> bool:
    """Whether the path has the savepoint's random id, which the timeline records: no one else has it."""
    return f"/{layout.SAVEPOINTS}/{document['savepoint']}/" in str(document["directory"])


def _path(document: Document) -> ObjectPath:
    return ObjectPath.from_document(document["path"])


def _times(entries: list[Entry]) -> str:
    """Hash when files were last written: a program that rewrites a file in place rewrites its links."""
    found = sorted([entry.name, entry.modified] for entry in entries)
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _lost(document: Document) -> CatalogError:
    return CatalogError(
        f"What a savepoint kept of {_path(document)} is not, or not all, in {document['directory']} any more.",
        path=_path(document),
        hint="The savepoint was dropped meanwhile, or something other than twophase has removed it.",
    )


def _to_create(table: HiveTable) -> TableDefinition:
    """The definition by which a table is created again: with its location only if the user has chosen that."""
    definition = to_definition(table)
    if table.kind == EXTERNAL and not layout.is_in_version(str(table.location)):
        return definition
    return replace(definition, location=None, external=False)


def _named(state: TableState) -> Iterator[tuple[str, str]]:
    """The files of a table, each with its name below one directory: partitions may be anywhere, two in one place."""
    columns, top = tuple(state.definition.partition_columns), normal(state.location) + "/"
    keys: dict[str, list[Key]] = {}
    for key, directory in (state.partitions or {}).items():
        keys.setdefault(normal(directory), []).append(key)
    for place, entry in dict(state.files).items():
        found = keys.get(normal(parent(place)))
        if found is None:
            yield place, normal(place).removeprefix(top)
        for key in found or ():
            yield place, f"{layout.partition_name(key, columns)}/{entry.base}"

"""Reads of the state that a table had before the changes of some transactions.

An old version's directory, and the directories of replaced partitions, stay until ``clean`` removes them; an append is
left out by the names of its files. Everything is listed once, so that the result is not affected by later changes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twophase.catalog import Change
from twophase.catalog.reading import FileList, ReadSource
from twophase.catalogs.files import Entry, base_name, data_files, join, normal, parent
from twophase.catalogs.hive import layout, replaced
from twophase.catalogs.hive.definitions import (
    FILE_PROVIDERS,
    SERDE_PROVIDER,
    fingerprint,
    is_recursive,
    is_redacted,
    redacted,
    to_definition,
)
from twophase.catalogs.hive.partition_plan import Key, by_key
from twophase.catalogs.hive.replaced import Added, Defined, Directory, Nothing, Partitions, Replaced
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import VIEW, HiveTable
from twophase.errors import SnapshotTooOldError, TableNotExistError
from twophase.model import ObjectPath, Purpose, TableDefinition

#: Formats of SerDe tables that Spark reads by its own readers, and the setting that turns that off.
_CONVERTED = {"parquet": "spark.sql.hive.convertMetastoreParquet", "orc": "spark.sql.hive.convertMetastoreOrc"}
_UNLISTED = "files that were in the directory of a new partition before may have become rows only with it"
_GONE = "its files have been removed, or others have been added to them"


def version_text(location: str, stamp: str | None, mark: int | None, names: str | None) -> str:
    """A version of a table: its directory, stamp, the change mark of the directory, and a hash of the names in it."""
    return json.dumps([normal(location), stamp, mark, names])


def read_format(definition: TableDefinition, conf: Mapping[str, str]) -> str | None:
    """Return the format in which Spark's own file readers read a table; None if they do not."""
    if definition.provider in FILE_PROVIDERS:
        return definition.provider
    serde = str(definition.serde.get("serde", "")).lower()
    for name, setting in _CONVERTED.items():
        if definition.provider == SERDE_PROVIDER and name in serde:
            return name if conf.get(setting, "true").lower() == "true" else None
    return None


def state_before(store: HiveStore, path: ObjectPath, purpose: Purpose) -> dict[str, Any] | None:
    """Return the document of a table's present state, for a change of its definition without a transaction.

    Parameters
    ----------
    store : HiveStore
    path : ObjectPath
        As the metastore stores it.
    purpose : Purpose
        The files of a table that is dropped are gone.
    """
    if purpose.creates:
        return replaced.to_document(Nothing(), store.files, "")
    table = None if purpose.drops else store.find(path)
    if table is None or table.kind == VIEW or table.location is None:
        return None
    definition = redacted(to_definition(table), store.conf)
    return replaced.to_document(Defined(table.location, table.stamp, definition), store.files, "")


@dataclass(frozen=True)
class TableState:
    """A state of a table.

    Attributes
    ----------
    location : str
    stamp : str or None
    definition : TableDefinition
    files : list of tuple
        Location and entry of each file.
    partitions : dict or None
        Directories by key; None for a table without partitions.
    names : str or None
        From :func:`replaced.names`, of the table's directory.
    """

    location: str
    stamp: str | None
    definition: TableDefinition
    files: list[tuple[str, Entry]] = field(repr=False)
    partitions: Mapping[Key, str] | None = None
    names: str | None = None

    def source(self, provider: str) -> ReadSource:
        listed = FileList(
            tuple((place, entry.size, entry.modified) for place, entry in self.files),
            tuple(self.definition.partition_columns),
            tuple((key, normal(place)) for key, place in sorted((self.partitions or {}).items())),
        )
        version = version_text(self.location, self.stamp, None, self.names)
        return ReadSource(
            "files",
            provider=provider,
            location=self.location,
            definition=self.definition,
            listed=listed,
            version=version,
        )

    def is_version(self, version: str) -> bool:
        """Whether this is a version of the table, as far as files and metastore show it."""
        location, stamp, mark, names = json.loads(version)
        if (normal(self.location), self.stamp) != (location, stamp):
            return False
        if self.names is not None:
            return bool(self.names == names)
        # Files in partitions change no name in the table's directory; but those added since are younger.
        return mark is None or all(entry.modified * 1_000_000 <= mark for _, entry in self.files)


class SnapshotRead:
    """A read of one table without the changes of some transactions.

    Parameters
    ----------
    store : HiveStore
    path : ObjectPath
        As the metastore stores it.
    changes : sequence of Change
    """

    def __init__(self, store: HiveStore, path: ObjectPath, changes: Sequence[Change]) -> None:
        self._store = store
        self._path = path
        self._changes = changes
        self._table: HiveTable | None = None

    def source(self, version: str | None) -> ReadSource:
        """Return the source of the table's rows.

        Parameters
        ----------
        version : str or None
            The version that it must be.

        Raises
        ------
        TableNotExistError
            One of the changes has created the table.
        SnapshotTooOldError
            The state is not available, or it is not that version.
        """
        state = self.state()
        if version is not None and not state.is_version(version):
            raise self._too_old("it has also changed outside twophase, or its earlier version is no longer there")
        return state.source(self._provider(state.definition))

    def state(self) -> TableState:
        """Return the table's state: its files as they are now, without those that the changes have added.

        Raises
        ------
        TableNotExistError
            One of the changes has created the table.
        SnapshotTooOldError
            The state is not available.
        """
        states = list(self._replaced())
        return self._state(states, self._definition(states))

    def is_as_left(self, change: Change) -> bool:
        """Return whether files and definition are those that a change has left, but for the changes of this read.

        What it has only added is distinct from the rest: that must still be there, and others may have added more.
        """
        former = replaced.from_document(change.before, self._store.files)
        try:
            state = None if former is None else self.state()
        except (SnapshotTooOldError, TableNotExistError):
            return False
        if former is None or state is None:
            return False
        before = change.before
        if before.get(replaced.LEFT_DEFINITION) not in (None, self._defined(state.definition)):
            return False
        if isinstance(former, Added):
            return _holds(state, former)
        if isinstance(former, Defined):
            return replaced.LEFT_DEFINITION in before
        if replaced.LEFT not in before:
            # A table that was created without a transaction had no rows, unless its name or files were there before.
            return isinstance(former, Nothing) and not state.files
        keys = former.partitions if isinstance(former, Partitions) and not former.complete else None
        return bool(replaced.content(_named_entries(state, keys)) == before[replaced.LEFT])

    def _defined(self, definition: TableDefinition) -> str:
        return fingerprint(redacted(definition, self._store.conf))

    # -- what the changes have replaced --------------------------------------------------------------------------

    def _replaced(self) -> Iterator[Replaced]:
        """The replaced states, up to the first one of the whole table: what follows has changed other directories."""
        for change in self._changes:
            state = replaced.from_document(change.before, self._store.files)
            if isinstance(state, Nothing):
                raise TableNotExistError(f"Table {self._path} did not exist when this block began.", path=self._path)
            if state is None:
                raise self._too_old(_unknown_since(change))
            yield state
            if _is_whole(state):
                return

    def _definition(self, states: Sequence[Replaced]) -> TableDefinition | None:
        """The former definition, from the first change that has made another one; None if there was none."""
        found = next((found for state in states if (found := getattr(state, "definition", None))), None)
        for change in self._changes[len(states) :]:
            if found is not None:
                break
            if not replaced.is_of_table(change.before):  # What has the name now is another table.
                raise self._too_old(_unknown_since(change))
            found = replaced.definition_in(change.before)
        return found

    def _state(self, states: Sequence[Replaced], definition: TableDefinition | None) -> TableState:
        whole = states[-1] if states and _is_whole(states[-1]) else None
        if definition is None or whole is None:
            table = self._now()
            definition = definition or to_definition(table)
        if is_redacted(definition):
            raise self._too_old("the options that it was read with hold secrets, which are not recorded")
        if isinstance(whole, Directory):
            return self._of_directory(whole.location, whole.stamp, definition, states, whole)
        if isinstance(whole, Partitions) or self._now().partitioned:
            return self._of_partitions(definition, states)
        first = next((state for state in states if isinstance(state, Defined)), None) or self._now()
        return self._of_directory(str(self._now().location), first.stamp, definition, states)

    def _now(self) -> HiveTable:
        if self._table is None:
            self._table = self._store.find(self._path)
        if self._table is None or self._table.kind == VIEW or self._table.location is None:
            raise self._too_old("it has been dropped")
        return self._table

    # -- one directory -------------------------------------------------------------------------------------------

    def _of_directory(
        self,
        location: str,
        stamp: str | None,
        definition: TableDefinition,
        states: Sequence[Replaced],
        former: Directory | None = None,
    ) -> TableState:
        entries = self._store.files.list(location)
        if former is not None and replaced.content(entries) != former.content:
            raise self._too_old(_GONE)
        added = _Added(states)
        if not definition.partition_columns and not is_recursive(definition.options):
            entries = [entry for entry in entries if "/" not in entry.name]  # Spark reads no subdirectories.
        kept = [(place, entry) for place, entry in _files(location, entries) if not added(place, location)]
        top = (entry for entry in entries if "/" not in entry.name)
        left = (entry for entry in top if not added(join(normal(location), entry.name), location))
        shown = replaced.names(left) if self._store.files.is_local(location) else None
        partitions = None
        if columns := tuple(definition.partition_columns):
            there = layout.partition_directories([entry for _, entry in kept], columns)
            partitions = {key: join(location, name) for key, name in there.items()}
        return TableState(location, stamp, definition, kept, partitions, shown)

    # -- partitions ----------------------------------------------------------------------------------------------

    def _of_partitions(self, definition: TableDefinition, states: Sequence[Replaced]) -> TableState:
        whole = states[-1] if states and _is_whole(states[-1]) else None
        held: dict[Key, tuple[str, str | None]] = {}
        if whole is None:
            table = self._now()
            listed = by_key(table, self._store.metastore.list_partitions(table))
            held = {key: (part.location, None) for key, part in listed.items()}
        for state in reversed(states):
            _put_back(held, state)
        added = _Added(states)
        files: list[tuple[str, Entry]] = []
        for key, (location, content) in list(held.items()):
            entries = self._store.files.list(location, recursive=False)
            if content is not None and replaced.content(entries) != content:
                raise self._too_old(_GONE)
            kept = [(place, entry) for place, entry in _files(location, entries) if not added(place, location)]
            if key in added.keys and not kept:
                del held[key]
            if any(place in added.unlisted for place, _ in kept):
                raise self._too_old(_UNLISTED)
            files += kept
        first = next((state for state in states if not isinstance(state, Nothing)), None) or self._now()
        location, stamp = str(first.location), first.stamp
        return TableState(location, stamp, definition, files, {key: place for key, (place, _) in held.items()})

    # -- refusals ------------------------------------------------------------------------------------------------

    def _provider(self, definition: TableDefinition) -> str:
        found = read_format(definition, self._store.conf)
        if found is None:
            raise self._too_old("its earlier files can be read only through the metastore")
        return found

    def _too_old(self, why: str) -> SnapshotTooOldError:
        others = sorted({change.transaction_id for change in self._changes})
        by = f" by transaction {', '.join(others)}" if others else ""
        return SnapshotTooOldError(
            f"Table {self._store.name}.{self._path} was changed{by} since this block began, and its earlier state can "
            f"no longer be read: {why}.",
            path=self._path,
            hint="Run the block again: it will see the new state.",
        )


def _unknown_since(change: Change) -> str:
    if change.alters:
        return f"transaction {change.transaction_id} has altered it while others were publishing to it"
    return f"transaction {change.transaction_id} has changed its files in place, or dropped it"


def _is_whole(state: Replaced) -> bool:
    """Whether a replaced state is that of the whole table."""
    return isinstance(state, Directory) or (isinstance(state, Partitions) and state.complete)


def _holds(state: TableState, added: Added) -> bool:
    """Whether all files that were added, or directories with files, are among those of a state."""
    held: set[str] = set()
    for place, _ in state.files:
        while place not in held and place != "/" and (above := parent(place)) != place:
            held.add(place)
            place = above
    return all(join(place, name) in held for place, names in added.files.items() for name in names)


def _named_entries(state: TableState, keys: Collection[Key] | None) -> Iterator[Entry]:
    """The files of a state, or of some of its partitions, each with its name below a version's directory."""
    columns = tuple(state.definition.partition_columns)
    wanted = {key: place for key, place in (state.partitions or {}).items() if keys is None or key in keys}
    names = {normal(place): layout.partition_name(key, columns) for key, place in wanted.items()}
    for place, entry in state.files:
        if (name := names.get(parent(place))) is not None:
            yield dataclasses.replace(entry, name=f"{name}/{base_name(place)}")
        elif keys is None:
            yield entry


def _files(location: str, entries: list[Entry]) -> Iterator[tuple[str, Entry]]:
    top = normal(location)
    return ((join(top, entry.name), entry) for entry in data_files(entries))


def _put_back(held: dict[Key, tuple[str, str | None]], state: Replaced) -> None:
    """Undo a switch of partitions; others may have files in those that an append has added."""
    if isinstance(state, Partitions):
        for key, old in state.partitions.items():
            held.pop(key, None)
            if old is not None:
                held[key] = old


def _paths(named: Iterable[Mapping[str, tuple[str, ...]]]) -> set[str]:
    return {join(place, name) for found in named for place, names in found.items() for name in names}


class _Added:
    """The files that some changes have added, the partitions, and the files that were in those before."""

    def __init__(self, states: Sequence[Replaced]) -> None:
        added = [state for state in states if isinstance(state, Added)]
        self._paths = _paths(state.files for state in added)
        self.keys = {key for state in added for key in state.keys}
        self.unlisted = _paths(state.unlisted for state in added)

    def __call__(self, place: str, top: str) -> bool:
        """Whether a path, or a directory above it below ``top``, was added."""
        if not self._paths:
            return False
        top = normal(top)
        while place != top:
            if place in self._paths:
                return True
            place = parent(place)
        return False

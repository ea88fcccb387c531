"""Reads of a table as it was before the changes of some transactions.

Each metadata file is one whole state of the table, with its schema, partitioning and properties, and names the file
before it. The snapshots in it name the transactions of twophase that have made them. So the state without some changes
is that of the newest metadata file before the first of them. If that lacks others that must be in it, because appends
were published in another order than that of their commit numbers, the files of unwanted appends are left out instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from twophase.catalog.reading import ReadSource
from twophase.catalog.snapshots import Change
from twophase.catalogs.lakehouse.errors import UnreadableMetadataError
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.planning import state_version
from twophase.catalogs.lakehouse.reading import State, WithoutAppends
from twophase.catalogs.lakehouse.snapshots import (
    TRANSACTION_ID,
    current_id,
    iceberg_document,
    is_ancestor,
    line_of,
)
from twophase.catalogs.lakehouse.sources import source_of
from twophase.catalogs.lakehouse.store import Loaded, Store
from twophase.errors import CatalogError, SnapshotTooOldError, TableNotExistError
from twophase.model import ObjectPath, Purpose
from twophase.transactions import failures

_LOCATION = "metadata_location"
#: Of a document: whether the change makes a snapshot that names its transaction.
_NAMED = "named"
#: Of the document of a rename: the metadata file of the table that gets the name.
_LEFT = "left"


def replaced_state(current: Loaded | None, *, named: bool = True, left: str | None = None) -> dict[str, Any]:
    """The document of the state that a publish replaces; None if it creates the table.

    Parameters
    ----------
    current : Loaded or None
    named : bool
        Whether the publish makes a snapshot that names its transaction.
    left : str, optional
        The metadata file at which the publish points, if it makes none of its own.
    """
    place: dict[str, Any] = {_LOCATION: None if current is None else current.location}
    if left is not None:
        place[_LEFT] = left
    return place if named else {**place, _NAMED: False}


def state_before(lakehouse: Lakehouse, path: ObjectPath, purpose: Purpose) -> dict[str, Any] | None:
    """Return the document of a table's present state, for a change of its definition without a transaction.

    Such a change makes no snapshot that names it. The files of a table that is dropped are gone.
    """
    if purpose.drops:
        return None
    current = None if purpose.creates else lakehouse.store.load(path)
    return replaced_state(current, named=False)


def source_before(lakehouse: Lakehouse, path: ObjectPath, changes: Sequence[Change], version: str | None) -> ReadSource:
    """Return the source of a table's newest state without some changes, or of the state with a version.

    Raises
    ------
    TableNotExistError
        One of the changes has created the table.
    SnapshotTooOldError
        There is no such state, or it has expired.
    """
    current = lakehouse.store.load(path) if len(path.namespace) == 1 else None
    if current is None:
        if version is None and (not changes or any(map(_creates, changes))):
            raise lakehouse.no_table(path)
        raise _too_old(lakehouse, path, "it was dropped since")
    if version is None:
        return _source(lakehouse, path, current, _before(lakehouse, path, current, changes))
    return _source(lakehouse, path, current, _with_version(lakehouse, path, current, version))


def is_as_left(lakehouse: Lakehouse, path: ObjectPath, change: Change, later: Sequence[Change]) -> bool:
    """Return whether no writer has committed to a table between a transaction and later ones, or now if there are none.

    Neither rows nor a definition.
    """
    current = lakehouse.store.load(path) if len(path.namespace) == 1 else None
    now = None if current is None else current_id(current.metadata)
    if current is not None and later:
        current = _loaded_before(lakehouse, path, current, later)
    if current is None:
        return False
    if isinstance(change.before, dict) and (left := change.before.get(_LEFT)) is not None:
        return current.metadata == lakehouse.store.metadata(path, left)
    if current_id(current.metadata) != now and all(change.alters for change in later):
        return False  # An ALTER TABLE commits no snapshot: that is another writer's.
    snapshot = current.metadata.current_snapshot()
    if snapshot is None:
        is_its = _creates(change)
    else:
        is_its = snapshot.summary is not None and snapshot.summary.get(TRANSACTION_ID) == change.transaction_id
    return is_its and _definition(current.metadata) == _defined_with_snapshot(lakehouse.store, path, current)


def _loaded_before(lakehouse: Lakehouse, path: ObjectPath, current: Loaded, changes: Sequence[Change]) -> Loaded | None:
    """The table at its newest metadata file before some changes; None if there is no such file."""
    try:
        found = _before(lakehouse, path, current, changes)
    except (SnapshotTooOldError, TableNotExistError):
        return None
    return None if found.left_out else Loaded(current.location, found.metadata)


def _defined_with_snapshot(store: Store, path: ObjectPath, current: Loaded) -> list[Any] | None:
    """The definition of a table when its current snapshot was committed; None if that is unknown."""
    oldest = current.metadata
    for loaded in history(store, path, current):
        if current_id(loaded.metadata) != current_id(current.metadata):
            return _definition(oldest)
        oldest = loaded.metadata
    return None if oldest.metadata_log else _definition(oldest)


def _definition(metadata: TableMetadata) -> list[Any]:
    schema, spec, order = metadata.schema(), metadata.spec(), metadata.sort_order()
    return [iceberg_document(schema), iceberg_document(spec), iceberg_document(order), metadata.properties]


@dataclass(frozen=True)
class _State:
    """A state of a table: a snapshot with one of the table's schemas, without the files that some snapshots added."""

    metadata: TableMetadata
    snapshot_id: int | None
    schema_id: int
    left_out: frozenset[int] = frozenset()

    @classmethod
    def of(cls, metadata: TableMetadata, left_out: frozenset[int] = frozenset()) -> _State:
        """The state of a metadata file."""
        return cls(metadata, current_id(metadata), metadata.current_schema_id, left_out)

    @property
    def version(self) -> str:
        """As :func:`.planning.state_version`; that of a state without some files is no state of the table itself."""
        numbers = "-".join(map(str, [self.snapshot_id, *sorted(self.left_out)]))
        return f"{self.metadata.table_uuid}/{numbers}/{self.schema_id}"


def _source(lakehouse: Lakehouse, path: ObjectPath, current: Loaded, found: _State) -> ReadSource:
    if found.snapshot_id is not None and current.metadata.snapshot_by_id(found.snapshot_id) is None:
        # Its files may be removed at any time, or have been.
        raise _too_old(lakehouse, path, f"its snapshot {found.snapshot_id} of then has expired")
    io = lakehouse.store.io(found.metadata.location)
    source = source_of(io, path, found.metadata, found.snapshot_id, found.schema_id)
    if found.left_out:
        if source.files is None:
            raise _too_old(lakehouse, path, "files of other engines cannot be distinguished")
        schema = found.metadata.schema_by_id(found.schema_id)
        assert schema is not None
        state = replace(State.of(io, path, found.metadata, found.snapshot_id, schema), version=found.version)
        source = replace(source, files=WithoutAppends(state, found.left_out))
    return replace(source, version=found.version)


def _too_old(lakehouse: Lakehouse, path: ObjectPath, why: str) -> SnapshotTooOldError:
    return failures.snapshot_too_old(f"{lakehouse.name}.{path}", why)


def history(store: Store, path: ObjectPath, loaded: Loaded) -> Iterator[Loaded]:
    """A table at each of its metadata files that still exists without a gap, newest first."""
    yield loaded
    while log := loaded.metadata.metadata_log:
        try:
            earlier = store.metadata(path, log[-1].metadata_file)
        except UnreadableMetadataError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return
            raise
        loaded = Loaded(log[-1].metadata_file, earlier)
        yield loaded


# -- by version --------------------------------------------------------------------------------------------------------


def _with_version(lakehouse: Lakehouse, path: ObjectPath, current: Loaded, version: str) -> _State:
    """The state with a version."""
    table, numbers, schema = version.split("/")
    number, *left_out = numbers.split("-")
    without = frozenset(map(int, left_out))
    for loaded in history(lakehouse.store, path, current):
        if state_version(loaded.metadata) == f"{table}/{number}/{schema}":
            return _State.of(loaded.metadata, without)
    metadata = current.metadata
    is_there = table == str(metadata.table_uuid) and number != "None" and is_ancestor(metadata, int(number))
    if not is_there or metadata.schema_by_id(int(schema)) is None:
        raise _too_old(lakehouse, path, "it was replaced since, and the metadata of then is gone")
    return _State(metadata, int(number), int(schema), without)


# -- by transaction ----------------------------------------------------------------------------------------------------


def _before(lakehouse: Lakehouse, path: ObjectPath, current: Loaded, changes: Sequence[Change]) -> _State:
    """The newest state without some changes."""
    for change in changes:
        if change.before is None:
            raise _too_old(lakehouse, path, f"transaction {change.transaction_id} has altered it, or made it anew")
    if changes and not _is_named(changes[0]):
        return _as_recorded(lakehouse, path, current, changes)
    unwanted = {change.transaction_id for change in changes}
    # One that is pending may not have been published; any other one must be found, or it would be in the result. One
    # that no snapshot names has come after the first one.
    sought = {change.transaction_id for change in changes if change.number is not None and _is_named(change)}
    later: list[TableMetadata] = []
    oldest = current
    for oldest in history(lakehouse.store, path, current):
        made = set(_transactions(oldest.metadata).values())
        sought -= made
        if not sought and not unwanted & made:
            return _with_others(lakehouse, path, oldest.metadata, later, unwanted)
        later.append(oldest.metadata)
    if not sought and not oldest.metadata.metadata_log:
        raise lakehouse.no_table(path)
    return _as_recorded(lakehouse, path, current, changes)


def _transactions(metadata: TableMetadata) -> dict[int, str | None]:
    """The transactions of twophase by the snapshots that they have made; None for a snapshot of another engine."""
    return {s.snapshot_id: s.summary.get(TRANSACTION_ID) if s.summary else None for s in metadata.snapshots}


def _with_others(
    lakehouse: Lakehouse, path: ObjectPath, before: TableMetadata, later: Sequence[TableMetadata], unwanted: set[str]
) -> _State:
    """The state before the unwanted transactions, with those that were published after one of them but belong to it.

    Parameters
    ----------
    lakehouse : Lakehouse
    path : ObjectPath
    before : pyiceberg.table.metadata.TableMetadata
        The newest one before the unwanted transactions.
    later : sequence of pyiceberg.table.metadata.TableMetadata
        The ones after it, newest first.
    unwanted : set of str
    """
    old = _transactions(before).keys()
    new = {n: t for metadata in later for n, t in _transactions(metadata).items() if n not in old}
    others = {number: t for number, t in new.items() if t is not None and t not in unwanted}
    if not others:
        return _State.of(before)
    # The newest that one of them has made.
    last = next((metadata for metadata in later if current_id(metadata) in others), None)
    if last is not None and others.keys() <= _transactions(last).keys() and _only_appended(before, last):
        return _State.of(last, frozenset(n for n, t in _transactions(last).items() if t in unwanted))
    name = min(others.values())
    raise _too_old(lakehouse, path, f"it never was so: transaction {name} was published after a later one")


def _only_appended(before: TableMetadata, after: TableMetadata) -> bool:
    """Return True if all commits between two states have only added files, each its own."""
    start = current_id(before)
    added = list(takewhile(lambda snapshot: snapshot.snapshot_id != start, line_of(after, current_id(after))))
    parent = added[-1].parent_snapshot_id if added else start
    is_append = (s.summary is not None and s.summary.operation == Operation.APPEND for s in added)
    same = (before.current_schema_id, before.table_uuid) == (after.current_schema_id, after.table_uuid)
    return parent == start and all(is_append) and same


def _as_recorded(lakehouse: Lakehouse, path: ObjectPath, current: Loaded, changes: Sequence[Change]) -> _State:
    """The state that the first change recorded with its decision, if no other one could be published in between."""
    first = changes[0]
    location = first.before.get(_LOCATION) if isinstance(first.before, dict) else None
    if location is not None and not first.appends and first.scope is None:
        try:
            found = lakehouse.store.metadata(path, location)
        except CatalogError as error:
            raise _too_old(lakehouse, path, "the metadata of then is gone") from error
        if found.table_uuid != current.metadata.table_uuid:
            raise _too_old(
                lakehouse,
                path,
                f"another table had this name before transaction {first.transaction_id}, which renamed it",
            )
        unwanted = {change.transaction_id for change in changes}
        if not unwanted & set(_transactions(found).values()):
            return _State.of(found)
    if _creates(first):
        raise lakehouse.no_table(path)
    raise _too_old(lakehouse, path, f"its history no longer shows what transaction {first.transaction_id} replaced")


def _creates(change: Change) -> bool:
    return isinstance(change.before, dict) and change.before.get(_LOCATION, "") is None


def _is_named(change: Change) -> bool:
    return bool(change.before.get(_NAMED, True))

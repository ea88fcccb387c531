"""Options of a read, named as in Iceberg's own library: another state, or an incremental read of appended rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from twophase.catalog.reading import ReadSource
from twophase.catalogs.lakehouse import manifests
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.reading import ListedFiles, State
from twophase.catalogs.lakehouse.snapshots import current_id
from twophase.catalogs.lakehouse.sources import nullable_in_any, snapshot_at, source_of
from twophase.config.settings import nearest
from twophase.errors import CatalogError
from twophase.model import ObjectPath

_SNAPSHOT, _TIME, _BRANCH, _TAG = "snapshot-id", "as-of-timestamp", "branch", "tag"
_START, _END = "start-snapshot-id", "end-snapshot-id"
_STATES = (_SNAPSHOT, _TIME, _BRANCH, _TAG)
#: Options that only tune Iceberg's own reader; they have no effect on Spark's Parquet reader, which is used here.
IDLE = frozenset(
    {
        *("split-size", "lookback", "file-open-cost", "vectorization-enabled", "batch-size", "locality"),
        *("aggregate-push-down-enabled", "executor-cache-locality-enabled"),
    }
)
_KNOWN = (*_STATES, _START, _END)


def source(lakehouse: Lakehouse, path: ObjectPath, options: Mapping[str, str]) -> ReadSource:
    """Return the source for a read with options; always with the current schema, as in Iceberg's own library.

    Raises
    ------
    CatalogError
        An option is unknown, has a wrong value or contradicts another one, or the table does not have that state.
    """
    asked = {name.lower(): value for name, value in options.items()}
    for name in asked:
        if name not in _KNOWN:
            raise CatalogError(
                f"There is no option {name} for a read of {path}.", path=path, hint=nearest(name, _KNOWN)
            )
    chosen = [name for name in (*_STATES, _START) if name in asked]
    if len(chosen) != 1 or (_END in asked and chosen != [_START]):
        raise _wrong(
            path, " and ".join(sorted({*chosen, *({_END} & asked.keys())})), "one state, or a start and an end"
        )
    metadata = lakehouse.require(path).metadata
    if chosen == [_START]:
        return _appended(lakehouse, path, metadata, asked)
    number = _state(path, metadata, chosen[0], asked[chosen[0]])
    io = lakehouse.store.io(metadata.location)
    if number != current_id(metadata):
        found = [m for m in manifests.manifests_of(io, metadata, number) if manifests.is_data(m)]
        _refuse_nulls(path, metadata, lambda: manifests.all_entries(io, found))
    return source_of(io, path, metadata, number, metadata.current_schema_id)


def _refuse_nulls(path: ObjectPath, metadata: TableMetadata, entries: Callable[[], Iterable[ManifestEntry]]) -> None:
    """Refuse files that may hold NULL in a column that is NOT NULL now: Spark has the table's schema of now for them.

    Raises
    ------
    CatalogError
    """
    schema = metadata.schema()
    strict = [n for n in nullable_in_any(metadata) if n in schema.field_ids and schema.find_field(n).required]
    counts = [entry.data_file.null_value_counts or {} for entry in entries()] if strict else []
    if held := next((n for n in strict if any(count.get(n) != 0 for count in counts)), None):
        raise CatalogError(
            f"{path} cannot be read with these options: that state may hold NULL in {schema.find_column_name(held)}, "
            "which is NOT NULL now.",
            path=path,
            hint="Read it with VERSION AS OF or TIMESTAMP AS OF.",
        )


def _state(path: ObjectPath, metadata: TableMetadata, name: str, value: str) -> int:
    """The snapshot that an option names."""
    if name == _SNAPSHOT:
        return _snapshot(path, metadata, name, value).snapshot_id
    if name == _TIME:
        return snapshot_at(path, metadata, _number(path, name, value) * 1000)
    ref = metadata.refs.get(value)
    if ref is None or ref.snapshot_ref_type != SnapshotRefType(name):
        raise CatalogError(f"{path} has no {name} {value!r}.", path=path, hint=f"See: SELECT name FROM {path}.refs")
    return ref.snapshot_id


def _number(path: ObjectPath, name: str, value: str) -> int:
    if not value.strip().lstrip("-").isdigit():
        raise _wrong(path, f"{name} = {value!r}", "a number")
    return int(value)


def _snapshot(path: ObjectPath, metadata: TableMetadata, name: str, value: str) -> Snapshot:
    found = metadata.snapshot_by_id(_number(path, name, value))
    if found is None:
        raise CatalogError(f"{path} has no snapshot {value} ({name}).", path=path)
    return found


def _wrong(path: ObjectPath, what: str, wanted: str) -> CatalogError:
    return CatalogError(f"{path} cannot be read with {what}: {wanted} is to be named.", path=path)


# -- incremental reads -------------------------------------------------------------------------------------------------


def _appended(lakehouse: Lakehouse, path: ObjectPath, metadata: TableMetadata, asked: Mapping[str, str]) -> ReadSource:
    """The rows of appends after one snapshot and up to another; other changes between them are ignored."""
    current = metadata.current_snapshot()
    end = _snapshot(path, metadata, _END, asked[_END]) if _END in asked else current
    start = _number(path, _START, asked[_START])
    if end is None:
        raise CatalogError(f"{path} has no snapshots.", path=path)
    appends = {one.snapshot_id: one for one in _between(path, metadata, start, end) if _appends(one)}
    io = lakehouse.store.io(metadata.location)
    shown = source_of(io, path, metadata, end.snapshot_id, metadata.current_schema_id)
    if shown.kind != "parquet":
        raise CatalogError(
            f"What was appended to {path} cannot be determined here: another engine has deleted rows, or files have no "
            "ids.",
            path=path,
        )
    found = {
        manifest.manifest_path: manifest
        for snapshot in appends
        for manifest in manifests.manifests_of(io, metadata, snapshot)
        if manifests.is_data(manifest) and manifest.added_snapshot_id == snapshot
    }
    added = [
        entry
        for entry in manifests.all_entries(io, found.values())
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id in appends
    ]
    _refuse_nulls(path, metadata, lambda: added)
    state = State.of(io, path, metadata, end.snapshot_id, metadata.schema(), tuple(found.values()))
    names = [entry.data_file.file_path for entry in added]
    return ReadSource("parquet", definition=shown.definition, files=ListedFiles(state, names))


def _appends(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND


def _between(path: ObjectPath, metadata: TableMetadata, start: int, end: Snapshot) -> Iterator[Snapshot]:
    """The snapshots from an end back to a start, exclusive."""
    found: Snapshot | None = end
    while found is not None and found.snapshot_id != start:
        yield found
        parent = found.parent_snapshot_id
        if parent == start:
            return  # The start itself may have expired.
        found = None if parent is None else metadata.snapshot_by_id(parent)
    if found is None:
        raise CatalogError(f"Snapshot {start} of {path} is no ancestor of snapshot {end.snapshot_id}.", path=path)

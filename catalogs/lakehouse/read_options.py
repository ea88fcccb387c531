"""The options of a read, by the names that Iceberg's own library gives them: another state, or what was appended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from twophase.catalogs.lakehouse import manifests
from twophase.catalogs.lakehouse.options import nearest
from twophase.catalogs.lakehouse.reading import ListedFiles, State
from twophase.errors import CatalogError
from twophase.model import ObjectPath
from twophase.reading import ReadSource

if TYPE_CHECKING:
    from twophase.catalogs.lakehouse.catalog import LakehouseCatalog

_SNAPSHOT, _TIME, _BRANCH, _TAG = "snapshot-id", "as-of-timestamp", "branch", "tag"
_START, _END = "start-snapshot-id", "end-snapshot-id"
_STATES = (_SNAPSHOT, _TIME, _BRANCH, _TAG)
#: What sets how fast Iceberg's own library reads, and not what; here it is Spark's Parquet reader that reads.
IDLE = frozenset(
    {
        *("split-size", "lookback", "file-open-cost", "vectorization-enabled", "batch-size", "locality"),
        *("aggregate-push-down-enabled", "executor-cache-locality-enabled"),
    }
)
_KNOWN = (*_STATES, _START, _END)


def source(catalog: LakehouseCatalog, path: ObjectPath, options: Mapping[str, str]) -> ReadSource:
    """How a table is read with options; always in its present schema, as by Iceberg's own library.

    Raises
    ------
    CatalogError
        An option that does not exist, has a wrong value or no sense beside another; a state that the table lacks.
    """
    told = {name.lower(): value for name, value in options.items()}
    for name in told:
        if name not in _KNOWN:
            raise CatalogError(
                f"There is no option {name} for a read of {path}.", path=path, hint=nearest(name, _KNOWN)
            )
    chosen = [name for name in (*_STATES, _START) if name in told]
    if len(chosen) != 1 or (_END in told and chosen != [_START]):
        raise _wrong(path, " and ".join(sorted({*chosen, *({_END} & told.keys())})), "one state, or a start and an end")
    metadata = catalog.require(path).metadata
    if chosen == [_START]:
        return _appended(catalog, path, metadata, told)
    number = _state(catalog, path, metadata, chosen[0], told[chosen[0]])
    return catalog.source_of(path, metadata, number, metadata.current_schema_id)


def _state(catalog: LakehouseCatalog, path: ObjectPath, metadata: TableMetadata, name: str, value: str) -> int:
    """The snapshot that an option names."""
    if name == _SNAPSHOT:
        return _snapshot(path, metadata, name, value).snapshot_id
    if name == _TIME:
        return catalog.snapshot_at(path, metadata, _number(path, name, value) * 1000)
    ref = metadata.refs.get(value)
    if ref is None or ref.snapshot_ref_type != SnapshotRefType(name):
        raise CatalogError(f"{path} has no {name} {value!r}.", path=path, hint=f"SELECT name FROM {path}.refs tells.")
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


# -- what was appended -------------------------------------------------------------------------------------------------


def _appended(
    catalog: LakehouseCatalog, path: ObjectPath, metadata: TableMetadata, told: Mapping[str, str]
) -> ReadSource:
    """The rows of appends after one snapshot and up to another; other changes between them are left out."""
    current = metadata.current_snapshot()
    end = _snapshot(path, metadata, _END, told[_END]) if _END in told else current
    start = _number(path, _START, told[_START])
    if end is None:
        raise CatalogError(f"{path} has no snapshots.", path=path)
    appends = {one.snapshot_id: one for one in _between(path, metadata, start, end) if _appends(one)}
    shown = catalog.source_of(path, metadata, end.snapshot_id, metadata.current_schema_id)
    if shown.kind != "parquet":
        raise CatalogError(
            f"What was appended to {path} cannot be told here: another engine has deleted rows, or files have no ids.",
            path=path,
        )
    found = {
        manifest.manifest_path: manifest
        for snapshot in appends
        for manifest in manifests.manifests_of(metadata, snapshot)
        if manifests.is_data(manifest) and manifest.added_snapshot_id == snapshot
    }
    added = [
        entry.data_file.file_path
        for entry in manifests.all_entries(found.values())
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id in appends
    ]
    state = State.of(path, metadata, end.snapshot_id, metadata.schema(), tuple(found.values()))
    return ReadSource("parquet", definition=shown.definition, files=ListedFiles(state, added))


def _appends(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND


def _between(path: ObjectPath, metadata: TableMetadata, start: int, end: Snapshot) -> Iterator[Snapshot]:
    """The snapshots from an end back to a start, which is not among them."""
    found: Snapshot | None = end
    while found is not None and found.snapshot_id != start:
        yield found
        parent = found.parent_snapshot_id
        if parent == start:
            return  # It may be no longer there itself.
        found = None if parent is None else metadata.snapshot_by_id(parent)
    if found is None:
        raise CatalogError(f"Snapshot {start} of {path} is no ancestor of snapshot {end.snapshot_id}.", path=path)

"""What dead transactions left, what dropped tables and old snapshots hold, and who was published long ago."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.table.update import RemoveSnapshotsUpdate, update_table_metadata

from twophase.catalog import Residue
from twophase.catalogs.files import is_below
from twophase.catalogs.lakehouse import manifests, publishing
from twophase.catalogs.lakehouse.errors import UnreadableMetadataError
from twophase.catalogs.lakehouse.layout import Place, remove_file, version_of
from twophase.catalogs.lakehouse.snapshots import TRANSACTION_ID
from twophase.catalogs.lakehouse.store import ABORTED, PUBLISHED, STAGED, Loaded, Staged
from twophase.errors import CatalogError
from twophase.failpoints import step
from twophase.model import ObjectPath

if TYPE_CHECKING:
    from twophase.catalogs.lakehouse.catalog import LakehouseCatalog

STAGING, VERSION, METADATA = "staging", "version", "metadata"
#: Between what a residue is about and the rest of its name.
_MARK = "#"
_DROPPED = "dropped"


def residues(catalog: LakehouseCatalog, live: frozenset[str]) -> list[Residue]:
    """Staged participants of dead transactions; snapshots and dropped tables past retention; old records."""
    found = [*_staged(catalog), *_old_records(catalog), *_dropped(catalog), *_old_snapshots(catalog)]
    return [residue for residue in found if residue.transaction_id not in live]


def _staged(catalog: LakehouseCatalog) -> Iterator[Residue]:
    for record in catalog.store.records((STAGED, ABORTED), time.time() + 1):
        if record.document.get("catalog") == catalog.name:
            place = _place(record)
            location = f"{place.data}{_MARK}{record.participant}"
            yield Residue(STAGING, location, catalog.files.size(place.data), record.transaction_id, record.since)


def _place(record: Staged) -> Place:
    return Place(record.document["location"], record.document["key"])


def _old_records(catalog: LakehouseCatalog) -> Iterator[Residue]:
    before = time.time() - catalog.environment.retention
    for record in catalog.store.records((PUBLISHED,), before):
        location = f"twophase_staged{_MARK}{record.participant}"
        yield Residue(METADATA, location, -1, record.transaction_id, record.since)


def _dropped(catalog: LakehouseCatalog) -> Iterator[Residue]:
    before = time.time() - catalog.environment.retention
    for location, path, since in catalog.store.dropped():
        if since < before:
            yield Residue(
                VERSION,
                f"{location}{_MARK}{_DROPPED}",
                catalog.files.size(location),
                f"{_DROPPED}/{path}",
                since,
                holds_rows=True,
            )


def _old_snapshots(catalog: LakehouseCatalog) -> Iterator[Residue]:
    """Snapshots of ours that no branch or tag needs, and that were replaced before the retention."""
    before = int((time.time() - catalog.environment.retention) * 1000)
    for path in catalog.store.paths():
        try:
            loaded = catalog.store.load(path)
        except UnreadableMetadataError:
            continue  # The doctor tells of it.
        if loaded is None:
            continue
        metadata = loaded.metadata
        for snapshot_id, since in expirable(metadata, before).items():
            snapshot = metadata.snapshot_by_id(snapshot_id)
            summary = snapshot.summary if snapshot else None
            transaction = summary.get(TRANSACTION_ID) if summary else None
            if transaction is not None:
                name = f"{json.dumps(path.to_document())}{_MARK}{snapshot_id}"
                yield Residue(VERSION, name, -1, transaction, since / 1000, holds_rows=True)


def expirable(metadata: TableMetadata, before: int) -> dict[int, int]:
    """Snapshots that may go, and when each was replaced.

    Parameters
    ----------
    metadata : pyiceberg.table.metadata.TableMetadata
    before : int
        Milliseconds since the epoch; what was current since stays.
    """
    kept = {ref.snapshot_id for ref in metadata.refs.values()}
    for ref in metadata.refs.values():
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            # What follows a snapshot tells when it was replaced.
            line = list(ancestors_of(metadata.snapshot_by_id(ref.snapshot_id), metadata))
            kept |= {s.snapshot_id for s, newer in zip(line[1:], line, strict=False) if newer.timestamp_ms >= before}
    by_time = sorted(metadata.snapshots, key=lambda s: s.timestamp_ms)
    until = {s.snapshot_id: newer.timestamp_ms for s, newer in pairwise(by_time)}
    return {i: since for i, since in until.items() if i not in kept and since < before}


# -- removing ----------------------------------------------------------------------------------------------------------


def remove(catalog: LakehouseCatalog, residue: Residue) -> None:
    """Remove one residue, after it was looked at again. Idempotent."""
    what, _, name = residue.location.rpartition(_MARK)
    if residue.kind == STAGING:
        if name.rpartition("/")[0] != residue.transaction_id:
            raise CatalogError(f"{what} is not what transaction {residue.transaction_id} made: it was kept.")
        remove_staged(catalog, name)
    elif residue.kind == METADATA:
        catalog.store.forget(name)
    elif name == _DROPPED:
        _remove_dropped(catalog, what)
    else:
        _expire(catalog, ObjectPath.from_document(json.loads(what)), int(name))


def remove_staged(catalog: LakehouseCatalog, participant: str) -> None:
    """Make sure that a participant is never published, and remove what it staged. Idempotent."""
    with step("lakehouse.mark_aborted"):
        record = catalog.store.record_aborted(participant)
    if record is None:
        return
    with step("lakehouse.remove_files"):
        _place(record).remove(catalog.files)
    with step("lakehouse.forget"):
        catalog.store.forget(participant)


def _remove_dropped(catalog: LakehouseCatalog, location: str) -> None:
    if any(is_below(pointer, location) for pointer in catalog.store.all_tables().values()):
        raise CatalogError(f"{location} is a table's again: it was kept.")
    if any(found == location for found, _, _ in catalog.store.dropped()):
        catalog.files.remove_tree(location)
        catalog.store.forget_dropped(location)


def _expire(catalog: LakehouseCatalog, path: ObjectPath, snapshot_id: int) -> None:
    """Take a snapshot out of the table's history, and remove the files that only it needed."""
    gone: list[str] = []

    def without(loaded: Loaded) -> tuple[str, TableMetadata] | None:
        gone.clear()
        metadata = loaded.metadata
        before = int((time.time() - catalog.environment.retention) * 1000)
        if snapshot_id not in expirable(metadata, before):
            return None
        update = RemoveSnapshotsUpdate(snapshot_ids=[snapshot_id])
        found = update_table_metadata(metadata, (update,), metadata_location=loaded.location)
        gone.extend(_only_in(metadata, found))
        place = Place(metadata.location, catalog.own_key())
        return place.metadata_file(version_of(loaded.location) + 1), found

    if catalog.store.pointer(path) is None:
        return
    publishing.change(catalog.store, catalog.files, path, without)
    for file in gone:
        remove_file(catalog.files, file)


def _only_in(before: TableMetadata, after: TableMetadata) -> set[str]:
    """Files that the table had before and has no more, as far as they lie below its location."""
    lost = _reached(before) - _reached(after)
    return {file for file in lost if is_below(file, before.location)}


def _reached(metadata: TableMetadata) -> set[str]:
    found: set[str] = set()
    for snapshot in metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in manifests.manifests_of(metadata, snapshot.snapshot_id):
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                found |= {entry.data_file.file_path for entry in manifests.entries_of(manifest)}
    return found


# -- the doctor --------------------------------------------------------------------------------------------------------


def problems(catalog: LakehouseCatalog) -> list[str]:
    """What ``twophase doctor`` tells: whether tasks can write, the catalog answers, and all metadata can be read."""
    needed = catalog.environment.executor_problems((__name__,))
    found = [f"Catalog {catalog.name}: {problem}" for problem in needed]
    try:
        paths = catalog.store.paths()
    except CatalogError as error:
        return [*found, f"Catalog {catalog.name}: {error}"]
    for path in paths:
        try:
            catalog.store.load(path)
        except CatalogError as error:
            found.append(f"Catalog {catalog.name}: {error}")
    return found

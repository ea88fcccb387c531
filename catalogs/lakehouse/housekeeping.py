"""What dead transactions left, what dropped tables and old snapshots hold, and who was published long ago."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotsUpdate, update_table_metadata

from twophase.catalog import Residue
from twophase.catalogs.files import parent
from twophase.catalogs.lakehouse import publishing, reachable
from twophase.catalogs.lakehouse.errors import UnreadableMetadataError
from twophase.catalogs.lakehouse.layout import Place, version_of
from twophase.catalogs.lakehouse.snapshots import TRANSACTION_ID, line_of
from twophase.catalogs.lakehouse.store import ABORTED, PUBLISHED, STAGED, Loaded
from twophase.catalogs.lakehouse.traces import own_place, place_of
from twophase.errors import CatalogError
from twophase.failpoints import step
from twophase.model import ObjectPath
from twophase.redaction import logger

if TYPE_CHECKING:
    from twophase.catalogs.lakehouse.catalog import LakehouseCatalog

STAGING, VERSION, METADATA = "staging", "version", "metadata"
#: Between what a residue is about and the rest of its name.
_MARK = "#"
_DROPPED = "dropped"
_KEPT = (
    "its table was dropped without PURGE, and another catalog may have registered it; to remove its files register it "
    "again, and drop it with PURGE"
)
_log = logger("twophase")


def residues(catalog: LakehouseCatalog, live: frozenset[str]) -> list[Residue]:
    """Staged participants of dead transactions; snapshots and dropped tables past retention; old records."""
    found = [*_staged(catalog), *_old_records(catalog), *_dropped(catalog), *_old_snapshots(catalog)]
    return [residue for residue in found if residue.transaction_id not in live]


def _staged(catalog: LakehouseCatalog) -> Iterator[Residue]:
    for record in catalog.store.records((STAGED, ABORTED), time.time() + 1):
        if record.document.get("catalog") == catalog.name:
            place = place_of(record)
            location = f"{place.data}{_MARK}{record.participant}"
            yield Residue(STAGING, location, catalog.files.size(place.data), record.transaction_id, record.since)


def _old_records(catalog: LakehouseCatalog) -> Iterator[Residue]:
    before = time.time() - catalog.environment.retention
    for record in catalog.store.records((PUBLISHED,), before):
        location = f"twophase_staged{_MARK}{record.participant}"
        yield Residue(METADATA, location, -1, record.transaction_id, record.since)


def _dropped(catalog: LakehouseCatalog) -> Iterator[Residue]:
    """Tables that were dropped without PURGE: whether another catalog has registered one cannot be told from here."""
    before = time.time() - catalog.environment.retention
    found = [(location, path, since) for location, path, since in catalog.store.dropped() if since < before]
    used = {parent(parent(pointer)) for pointer in catalog.store.all_tables().values()} if found else set()
    for location, path, since in found:
        if location not in used and catalog.files.exists(location):
            yield Residue(VERSION, f"{location}{_MARK}{_DROPPED}", -1, f"{_DROPPED}/{path}", since, kept=_KEPT)


def _old_snapshots(catalog: LakehouseCatalog) -> Iterator[Residue]:
    """Snapshots of ours that no branch or tag needs, and that were replaced before the retention."""
    before = int((time.time() - catalog.environment.retention) * 1000)
    for path in catalog.store.paths():
        try:
            loaded = catalog.store.load(path)
        except UnreadableMetadataError:
            continue  # The doctor tells of it.
        if loaded is None or not reachable.collects_garbage(loaded.metadata):
            continue
        known = {snapshot.snapshot_id: snapshot.summary for snapshot in loaded.metadata.snapshots}
        for snapshot_id, since in expirable(loaded.metadata, before).items():
            summary = known[snapshot_id]
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
            line = list(line_of(metadata, ref.snapshot_id))
            kept |= {s.snapshot_id for s, newer in zip(line[1:], line, strict=False) if newer.timestamp_ms >= before}
    by_time = sorted(metadata.snapshots, key=lambda s: s.timestamp_ms)
    until = {s.snapshot_id: newer.timestamp_ms for s, newer in pairwise(by_time)}
    return {i: since for i, since in until.items() if i not in kept and since < before}


# -- removing ----------------------------------------------------------------------------------------------------------


def remove(catalog: LakehouseCatalog, residues: Sequence[Residue]) -> list[Exception | None]:
    """Remove residues, each after it was looked at again: all old snapshots of one table together. Idempotent.

    Returns
    -------
    list of Exception or None
        For each, why it is still there.
    """
    failed: dict[int, Exception] = {}
    expired: dict[str, list[int]] = {}
    for number, residue in enumerate(residues):
        what, _, name = residue.location.rpartition(_MARK)
        if residue.kind == VERSION and name != _DROPPED:
            expired.setdefault(what, []).append(number)
            continue
        try:
            _remove_one(catalog, residue, what, name)
        except Exception as error:
            failed[number] = error
    for what, numbers in expired.items():
        snapshots = {int(residues[number].location.rpartition(_MARK)[2]) for number in numbers}
        try:
            _expire(catalog, ObjectPath.from_document(json.loads(what)), snapshots)
        except Exception as error:
            failed |= dict.fromkeys(numbers, error)
    return [failed.get(number) for number in range(len(residues))]


def _remove_one(catalog: LakehouseCatalog, residue: Residue, what: str, name: str) -> None:
    if residue.kind == STAGING:
        if name.rpartition("/")[0] != residue.transaction_id:
            raise CatalogError(f"{what} is not what transaction {residue.transaction_id} made: it was kept.")
        remove_staged(catalog, name)
    elif residue.kind == METADATA:
        catalog.store.forget(name)
    else:
        raise CatalogError(f"{what} was kept: {_KEPT}.")


def remove_staged(catalog: LakehouseCatalog, participant: str) -> None:
    """Make sure that a participant is never published, and remove what it staged. Idempotent."""
    with step("lakehouse.mark_aborted"):
        record = catalog.store.record_aborted(participant)
    if record is None:
        return
    with step("lakehouse.remove_files"):
        own_place(record).remove(catalog.files)
    with step("lakehouse.forget"):
        catalog.store.forget(participant)


def _expire(catalog: LakehouseCatalog, path: ObjectPath, snapshots: set[int]) -> None:
    """Take snapshots out of a table's history in one commit, and remove the files that only they needed."""
    changed: list[tuple[TableMetadata, TableMetadata]] = []

    def without(loaded: Loaded) -> tuple[str, TableMetadata] | None:
        changed.clear()
        metadata = loaded.metadata
        before = int((time.time() - catalog.environment.retention) * 1000)
        gone = sorted(snapshots & expirable(metadata, before).keys())
        if not gone or not reachable.collects_garbage(metadata):
            return None
        update = RemoveSnapshotsUpdate(snapshot_ids=gone)
        found = update_table_metadata(metadata, (update,), metadata_location=loaded.location)
        changed.append((metadata, found))
        place = Place(metadata.location, catalog.own_key())
        return place.metadata_file(version_of(loaded.location) + 1), found

    if catalog.store.pointer(path) is None:
        return
    publishing.change(catalog.store, catalog.files, path, without)
    # Not before: while that is worked out, others commit.
    for metadata, found in changed:
        gone = reachable.files_only_in(path, metadata, found)
        reachable.remove_below(catalog.files, Place.roots(metadata.location), gone)


def purge(catalog: LakehouseCatalog, path: ObjectPath, loaded: Loaded) -> Callable[[], None]:
    """What removes the files of a table, once it is dropped.

    Parameters
    ----------
    catalog : LakehouseCatalog
    path : ObjectPath
    loaded : Loaded
        The table.

    Raises
    ------
    CatalogError
        The table does not allow it, or its files cannot be told: it must not be dropped then.
    """
    if not reachable.collects_garbage(loaded.metadata):
        raise CatalogError(
            f"{path} was not dropped: it says gc.enabled = false, so other tables may use its files, and PURGE would "
            "remove them.",
            path=path,
            hint="Drop it without PURGE: its files stay then. Or set gc.enabled to true first.",
        )
    location = loaded.metadata.location
    found = reachable.files_of(catalog.store, path, loaded)

    def remove_files() -> None:
        kept = reachable.remove_below(catalog.files, [location], found)
        if kept:
            _log.warning("%s was dropped; %s files are not below %s and stay: %s.", path, len(kept), location, kept[0])
        catalog.store.forget_dropped(location)

    return remove_files


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

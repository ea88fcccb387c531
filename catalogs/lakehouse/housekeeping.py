"""Housekeeping: leftovers of dead transactions, dropped tables, expired snapshots, and old records."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableUpdate

from twophase.catalog import Leftover
from twophase.catalogs.files import parent
from twophase.catalogs.lakehouse import dropped, publishing, reachable, rollback
from twophase.catalogs.lakehouse.errors import UnreadableMetadataError
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.layout import Place
from twophase.catalogs.lakehouse.publish_lookup import place_of
from twophase.catalogs.lakehouse.snapshots import TRANSACTION_ID, line_of
from twophase.catalogs.lakehouse.store import ABORTED, PUBLISHED, STAGED, Loaded
from twophase.errors import AtomicityNotSupportedError, CatalogError
from twophase.model import ObjectPath

STAGING, VERSION, METADATA = "staging", "version", "metadata"
#: Separator between the object of a leftover and the rest of its name.
_MARK = "#"
_DROPPED = "dropped"
_KEPT = (
    "its table was dropped without PURGE, and another catalog may have registered it; if none has, remove its files "
    "with: twophase clean --purge-dropped"
)


def leftovers(lakehouse: Lakehouse, live: frozenset[str]) -> list[Leftover]:
    """List staged participants of dead transactions, snapshots and dropped tables past retention, and old records."""
    found = [*_staged(lakehouse), *_old_records(lakehouse), *_dropped(lakehouse), *_old_snapshots(lakehouse)]
    return [leftover for leftover in found if leftover.transaction_id not in live]


def _staged(lakehouse: Lakehouse) -> Iterator[Leftover]:
    for record in lakehouse.store.records((STAGED, ABORTED), time.time() + 1):
        if record.document.get("catalog") == lakehouse.name:
            place = place_of(record)
            location = f"{place.data}{_MARK}{record.participant}"
            yield Leftover(STAGING, location, lakehouse.files.size(place.data), record.transaction_id, record.since)


def _old_records(lakehouse: Lakehouse) -> Iterator[Leftover]:
    before = time.time() - lakehouse.environment.retention
    for record in lakehouse.store.records((PUBLISHED,), before):
        location = f"twophase_staged{_MARK}{record.participant}"
        yield Leftover(METADATA, location, -1, record.transaction_id, record.since)


def _dropped(lakehouse: Lakehouse) -> Iterator[Leftover]:
    """Tables that were dropped without PURGE; it cannot be detected here if another catalog has registered one."""
    before = time.time() - lakehouse.environment.retention
    found = [table for table in lakehouse.store.dropped() if table.since < before]
    used = {parent(parent(pointer)) for pointer in lakehouse.store.all_tables().values()} if found else set()
    for table in found:
        if table.location not in used and lakehouse.files.exists(table.location):
            name = f"{lakehouse.name}.{table.path}"
            kept = f"{_KEPT} {name}"
            where, made = f"{table.location}{_MARK}{_DROPPED}", f"{_DROPPED}/{table.path}"
            yield Leftover(VERSION, where, -1, made, table.since, kept=kept, dropped=name, uuid=table.uuid)


def _old_snapshots(lakehouse: Lakehouse) -> Iterator[Leftover]:
    """Snapshots written by twophase that no branch or tag needs, and that were superseded before the retention."""
    before = int((time.time() - lakehouse.environment.retention) * 1000)
    for path in lakehouse.store.paths():
        try:
            loaded = lakehouse.load_to_write(path)
        except (UnreadableMetadataError, AtomicityNotSupportedError):
            continue  # The doctor reports it; or the table is on an untested file system.
        if loaded is None or not reachable.collects_garbage(loaded.metadata):
            continue
        known = {snapshot.snapshot_id: snapshot.summary for snapshot in loaded.metadata.snapshots}
        for snapshot_id, since in expirable(loaded.metadata, before).items():
            summary = known[snapshot_id]
            transaction = summary.get(TRANSACTION_ID) if summary else None
            if transaction is not None:
                name = f"{json.dumps(path.to_document())}{_MARK}{snapshot_id}"
                yield Leftover(VERSION, name, -1, transaction, since / 1000, holds_rows=True)


def expirable(metadata: TableMetadata, before: int) -> dict[int, int]:
    """Snapshots that may expire, and when each was superseded.

    Parameters
    ----------
    metadata : pyiceberg.table.metadata.TableMetadata
    before : int
        Milliseconds since the epoch; snapshots that were current after it are kept.
    """
    kept = {ref.snapshot_id for ref in metadata.refs.values()}
    for ref in metadata.refs.values():
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            # The successor of a snapshot shows when it was superseded.
            line = list(line_of(metadata, ref.snapshot_id))
            kept |= {s.snapshot_id for s, newer in zip(line[1:], line, strict=False) if newer.timestamp_ms >= before}
    by_time = sorted(metadata.snapshots, key=lambda s: s.timestamp_ms)
    until = {s.snapshot_id: newer.timestamp_ms for s, newer in pairwise(by_time)}
    return {i: since for i, since in until.items() if i not in kept and since < before}


# -- removing ----------------------------------------------------------------------------------------------------------


def remove(lakehouse: Lakehouse, leftovers: Sequence[Leftover]) -> list[Exception | None]:
    """Remove leftovers, after checking each again; all old snapshots of one table go together. Idempotent.

    Returns
    -------
    list of Exception or None
        For each, the error if it was not removed.
    """
    failed: dict[int, Exception] = {}
    expired: dict[str, list[int]] = {}
    for number, leftover in enumerate(leftovers):
        what, _, name = leftover.location.rpartition(_MARK)
        if leftover.kind == VERSION and name != _DROPPED:
            expired.setdefault(what, []).append(number)
            continue
        try:
            _remove_one(lakehouse, leftover, what, name)
        except Exception as error:
            failed[number] = error
    for what, numbers in expired.items():
        snapshots = {int(leftovers[number].location.rpartition(_MARK)[2]) for number in numbers}
        try:
            _expire(lakehouse, ObjectPath.from_document(json.loads(what)), snapshots)
        except Exception as error:
            failed |= dict.fromkeys(numbers, error)
    return [failed.get(number) for number in range(len(leftovers))]


def _remove_one(lakehouse: Lakehouse, leftover: Leftover, what: str, name: str) -> None:
    if leftover.kind == STAGING:
        if name.rpartition("/")[0] != leftover.transaction_id:
            raise CatalogError(f"{what} is not what transaction {leftover.transaction_id} made: it was kept.")
        rollback.remove_staged(lakehouse, name)
    elif leftover.kind == METADATA:
        lakehouse.store.forget(name)
    elif leftover.kept is not None:
        raise CatalogError(f"{what} was kept: {leftover.kept}.")
    else:
        dropped.purge(lakehouse, what)


def _expire(lakehouse: Lakehouse, path: ObjectPath, snapshots: set[int]) -> None:
    """Expire snapshots of a table in one commit, and remove the files that only they needed."""

    def without(loaded: Loaded) -> list[TableUpdate]:
        metadata = loaded.metadata
        before = int((time.time() - lakehouse.environment.retention) * 1000)
        gone = sorted(snapshots & expirable(metadata, before).keys())
        is_possible = gone and reachable.collects_garbage(metadata)
        return [RemoveSnapshotsUpdate(snapshot_ids=gone)] if is_possible else []

    if lakehouse.store.pointer(path) is None:
        return
    changed = publishing.change(lakehouse, path, without)
    if changed is not None:
        # Only after the commit: working this out takes time, in which others commit.
        before, after = (loaded.metadata for loaded in changed)
        gone = reachable.files_only_in(lakehouse.store.io(before.location), path, before, after)
        reachable.remove_below(lakehouse.files, Place.roots(before.location), gone)


def purge(lakehouse: Lakehouse, path: ObjectPath, loaded: Loaded) -> Callable[[], None]:
    """Return a callback that removes the files of a table once it is dropped.

    Parameters
    ----------
    lakehouse : Lakehouse
    path : ObjectPath
    loaded : Loaded
        The table.

    Raises
    ------
    CatalogError
        The table does not allow it, or its files cannot be determined; then it must not be dropped.
    """
    reachable.require_own_files(path, loaded)
    found = reachable.files_of(lakehouse.store, path, loaded)

    def remove_files() -> None:
        reachable.remove_table(lakehouse.files, path, loaded.metadata.location, found)
        lakehouse.store.forget_dropped(loaded.metadata.location)

    return remove_files


# -- the doctor --------------------------------------------------------------------------------------------------------


def problems(lakehouse: Lakehouse) -> list[str]:
    """List problems for ``twophase doctor``: who cannot write, no answer of the catalog, unreadable metadata."""
    needed = lakehouse.environment.executor_problems((__name__,))
    found = [f"Catalog {lakehouse.name}: {problem}" for problem in needed]
    if (problem := lakehouse.files.write_problem(lakehouse.store.settings.warehouse)) is not None:
        found.append(f"Catalog {lakehouse.name}: {problem}")
    try:
        paths = lakehouse.store.paths()
    except CatalogError as error:
        return [*found, f"Catalog {lakehouse.name}: {error}"]
    for path in paths:
        try:
            lakehouse.store.load(path)
        except CatalogError as error:
            found.append(f"Catalog {lakehouse.name}: {error}")
    return found

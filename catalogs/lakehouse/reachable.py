"""Files that a table's metadata reaches, and their removal; directory listings are never used to decide.

A directory may hold other tables and foreign files, so only files are removed that the metadata of the table names and
that are below its location. If ``gc.enabled`` is false, another table may use the same files, and none is removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata

from twophase.catalogs.files import Files, is_below, parent
from twophase.catalogs.lakehouse import manifests
from twophase.catalogs.lakehouse.errors import reading_metadata
from twophase.catalogs.lakehouse.layout import remove_file
from twophase.catalogs.lakehouse.store import Loaded, Store
from twophase.errors import CatalogError
from twophase.model import ObjectPath
from twophase.redaction import logger

_log = logger("twophase")
#: The name of a tag that keeps a snapshot for a savepoint.
SAVEPOINT_TAG = re.compile(r"_sp[0-9a-f]{20}$")
_GC_ENABLED = "gc.enabled"
_THREADS = 8
_DELETE_OLD = "write.metadata.delete-after-commit.enabled"


def collects_garbage(metadata: TableMetadata) -> bool:
    """Return True if files of a table may be removed at all: Iceberg's ``gc.enabled``."""
    return str(metadata.properties.get(_GC_ENABLED, "true")).lower() == "true"


# -- what is reached ---------------------------------------------------------------------------------------------------


def require_own_files(path: ObjectPath, loaded: Loaded) -> None:
    """Refuse to drop a table with its files if other tables may use them.

    Raises
    ------
    CatalogError
    """
    if not collects_garbage(loaded.metadata):
        raise CatalogError(
            f"{path} was not dropped: it says gc.enabled = false, so other tables may use its files, and PURGE would "
            "remove them.",
            path=path,
            hint="Drop it without PURGE: its files stay then. Or set gc.enabled to true first.",
        )
    if kept := sorted(name for name in loaded.metadata.refs if SAVEPOINT_TAG.search(name)):
        raise CatalogError(
            f"{path} was not dropped: a savepoint keeps a state of it (tag {kept[0]}), and PURGE would remove it.",
            path=path,
            hint="Drop it without PURGE: its files stay then. Or drop the savepoint first: SHOW SAVEPOINTS.",
        )


def files_of(store: Store, path: object, loaded: Loaded, *, rest: bool = False) -> list[set[str]]:
    """All files that a table's metadata names, including the metadata files themselves and earlier versions.

    Parameters
    ----------
    store : Store
    path : ObjectPath
    loaded : Loaded
    rest : bool
        Whether an earlier removal in this order may have been interrupted; missing files are skipped then.

    Returns
    -------
    list of set of str
        No file is named by those before it, so that a removal in this order can be resumed at any point.

    Raises
    ------
    UnreadableMetadataError
        A manifest list or a manifest is missing or damaged.
    """
    metadata = loaded.metadata
    io = store.io(metadata.location)
    lists = {snapshot.manifest_list: snapshot.snapshot_id for snapshot in metadata.snapshots}
    with reading_metadata(path, metadata.location):
        there = [number for file, number in lists.items() if not rest or _exists(store, file)]
        listed = _manifests(io, metadata, there)
        data = _data_files(io, (m for m in listed.values() if not rest or _exists(store, m.manifest_path)))
    return [data | _statistics(metadata), set(listed), set(lists), *reversed(versions_of(store, path, loaded))]


def _exists(store: Store, location: str) -> bool:
    return store.io(location).new_input(location).exists()


def files_only_in(io: FileIO, path: object, before: TableMetadata, after: TableMetadata) -> set[str]:
    """Files that only the removed snapshots of a table needed; each manifest is read once.

    Raises
    ------
    UnreadableMetadataError
    """
    left = [snapshot.snapshot_id for snapshot in after.snapshots]
    gone = [snapshot for snapshot in before.snapshots if snapshot.snapshot_id not in set(left)]
    lists = {snapshot.manifest_list for snapshot in gone} - {snapshot.manifest_list for snapshot in after.snapshots}
    with reading_metadata(path, before.location):
        kept = _manifests(io, after, left)
        # Most manifests of a snapshot are also in the next one; these need not be read.
        lost = _manifests(io, before, [snapshot.snapshot_id for snapshot in gone], but=kept)
        data = _without(io, _data_files(io, lost.values()), kept.values())
    return lists | lost.keys() | data | (_statistics(before) - _statistics(after))


def _manifests(
    io: FileIO, metadata: TableMetadata, snapshots: Iterable[int], *, but: Container[str] = ()
) -> dict[str, ManifestFile]:
    """The manifests of some snapshots by their location."""
    found = (manifest for number in snapshots for manifest in manifests.manifests_of(io, metadata, number))
    return {manifest.manifest_path: manifest for manifest in found if manifest.manifest_path not in but}


def _data_files(io: FileIO, found: Iterable[ManifestFile]) -> set[str]:
    return {entry.data_file.file_path for entry in manifests.all_entries(io, found)}


def _without(io: FileIO, files: set[str], kept: Iterable[ManifestFile]) -> set[str]:
    """The files that no kept manifest lists; the search stops when none is left."""
    for manifest in kept:
        if not files:
            break
        files -= {entry.data_file.file_path for entry in manifests.entries_of(io, manifest)}
    return files


def _statistics(metadata: TableMetadata) -> set[str]:
    return {file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)}


def versions_of(store: Store, path: object, loaded: Loaded) -> list[set[str]]:
    """The metadata files of a table: the last one, those in its log, those in the log of the oldest one, and so on."""
    found = [{loaded.location}]
    log = [entry.metadata_file for entry in loaded.metadata.metadata_log]
    while new := set(log).difference(*found):
        found.append(new)
        try:
            log = [entry.metadata_file for entry in store.metadata(path, log[0]).metadata_log]
        except CatalogError:
            break  # It has already been removed, with those before it.
    return found


# -- removal -----------------------------------------------------------------------------------------------------------


def remove_below(files: Files, roots: Sequence[str], gone: Iterable[str]) -> list[str]:
    """Remove files below the given directories, and the subdirectories that become empty.

    Parameters
    ----------
    files : Files
    roots : sequence of str
        Directories of the table.
    gone : iterable of str
        Files that the table does not need.

    Returns
    -------
    list of str
        Files in other places, which were kept.
    """
    every, inside = sorted(gone), _Inside(files, roots)
    going = [file for file in every if inside(parent(file))]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda file: remove_file(files, file), going))
    # Deepest first. A directory that is not empty is kept.
    for directory in sorted(inside.directories(), key=lambda found: found.count("/"), reverse=True):
        if files.exists(directory):
            files.remove_if_empty(directory)
    return sorted(set(every) - set(going))


def remove_table(files: Files, path: object, location: str, found: Iterable[Iterable[str]]) -> None:
    """Remove the files of a table below its location, in the order of :func:`files_of`. Idempotent."""
    kept = [file for group in found for file in remove_below(files, [location], group)]
    if kept:
        _log.warning("%s was dropped; %s files are not below %s and stay: %s.", path, len(kept), location, kept[0])


class _Inside:
    """A test if directories are below some roots; neither ``..`` nor a symbolic link can lead out of these."""

    def __init__(self, files: Files, roots: Iterable[str]) -> None:
        self._files = files
        self._roots = [self._real(root) for root in roots]
        self._known: dict[str, bool] = {}

    def __call__(self, directory: str) -> bool:
        if directory not in self._known:
            real = None if ".." in directory.split("/") else self._real(directory)
            self._known[directory] = real is not None and any(is_below(real, root) for root in self._roots)
        return self._known[directory]

    def directories(self) -> set[str]:
        """All directories that were found to be inside, and those between them and the root."""
        found: set[str] = set()
        for directory in [known for known, is_inside in self._known.items() if is_inside]:
            while directory not in found and self(directory):
                found.add(directory)
                directory = parent(directory)
        return found

    def _real(self, location: str) -> str:
        if not self._files.is_local(location):
            return location
        return os.path.realpath(self._files.find(location)[1])


def remove_old_metadata(store: Store, files: Files, path: ObjectPath, metadata: TableMetadata) -> None:
    """Remove metadata files that the last commit dropped from a table's log, if the table is set to. Idempotent.

    The properties are Iceberg's: ``write.metadata.delete-after-commit.enabled`` and
    ``write.metadata.previous-versions-max``.
    """
    wanted = metadata.properties.get(_DELETE_OLD, "false").lower() == "true" and collects_garbage(metadata)
    if not wanted or not metadata.metadata_log:
        return
    log = [entry.metadata_file for entry in metadata.metadata_log]
    try:
        before = store.metadata(path, log[-1])
    except CatalogError:
        return  # A later commit has removed it, and done this work.
    for entry in before.metadata_log:
        if entry.metadata_file not in log:
            remove_file(files, entry.metadata_file)

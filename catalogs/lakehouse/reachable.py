"""Files that a table's metadata reaches, and their removal: what a listing shows decides nothing.

A directory may hold other tables, and files of other people; so only files go that the metadata of the table names,
and that lie below its location. Where ``gc.enabled`` is false, another table may use the same files, and none goes.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata

from twophase.catalogs.files import Files, is_below, parent
from twophase.catalogs.lakehouse import manifests
from twophase.catalogs.lakehouse.errors import reading_metadata
from twophase.catalogs.lakehouse.layout import remove_file
from twophase.catalogs.lakehouse.store import Loaded, Store
from twophase.errors import CatalogError

_GC_ENABLED = "gc.enabled"
_THREADS = 8


def collects_garbage(metadata: TableMetadata) -> bool:
    """Whether files of a table may be removed at all: Iceberg's ``gc.enabled``."""
    return str(metadata.properties.get(_GC_ENABLED, "true")).lower() == "true"


# -- what is reached ---------------------------------------------------------------------------------------------------


def files_of(store: Store, path: object, loaded: Loaded) -> set[str]:
    """All files that a table's metadata names, itself and its earlier versions included.

    Raises
    ------
    UnreadableMetadataError
        A manifest list or a manifest is missing or damaged.
    """
    metadata = loaded.metadata
    with reading_metadata(path, metadata.location):
        listed = _manifests(metadata, [snapshot.snapshot_id for snapshot in metadata.snapshots])
        data = _data_files(listed.values())
    lists = {snapshot.manifest_list for snapshot in metadata.snapshots}
    return _earlier_metadata(store, path, loaded) | _statistics(metadata) | lists | listed.keys() | data


def files_only_in(path: object, before: TableMetadata, after: TableMetadata) -> set[str]:
    """Files that only those snapshots needed which a table has no more; each manifest is read once.

    Raises
    ------
    UnreadableMetadataError
    """
    left = [snapshot.snapshot_id for snapshot in after.snapshots]
    gone = [snapshot for snapshot in before.snapshots if snapshot.snapshot_id not in set(left)]
    lists = {snapshot.manifest_list for snapshot in gone} - {snapshot.manifest_list for snapshot in after.snapshots}
    with reading_metadata(path, before.location):
        kept = _manifests(after, left)
        # Most manifests of a snapshot are those of the next one, too: of them nothing has to be read.
        lost = _manifests(before, [snapshot.snapshot_id for snapshot in gone], but=kept)
        data = _without(_data_files(lost.values()), kept.values())
    return lists | lost.keys() | data | (_statistics(before) - _statistics(after))


def _manifests(
    metadata: TableMetadata, snapshots: Iterable[int], *, but: Container[str] = ()
) -> dict[str, ManifestFile]:
    """The manifests of some snapshots by their location."""
    found = (manifest for number in snapshots for manifest in manifests.manifests_of(metadata, number))
    return {manifest.manifest_path: manifest for manifest in found if manifest.manifest_path not in but}


def _data_files(found: Iterable[ManifestFile]) -> set[str]:
    return {entry.data_file.file_path for entry in manifests.all_entries(found)}


def _without(files: set[str], kept: Iterable[ManifestFile]) -> set[str]:
    """Those of some files that no kept manifest lists; the search ends with the last of them."""
    for manifest in kept:
        if not files:
            break
        files -= {entry.data_file.file_path for entry in manifests.entries_of(manifest)}
    return files


def _statistics(metadata: TableMetadata) -> set[str]:
    return {file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)}


def _earlier_metadata(store: Store, path: object, loaded: Loaded) -> set[str]:
    """A metadata file and those before it: each names a number of them, the oldest of which names more."""
    found = {loaded.location}
    log = [entry.metadata_file for entry in loaded.metadata.metadata_log]
    while not found.issuperset(log):
        found |= set(log)
        try:
            log = [entry.metadata_file for entry in store.metadata(path, log[0]).metadata_log]
        except CatalogError:
            break  # It is gone already, with those before it.
    return found


# -- what goes ---------------------------------------------------------------------------------------------------------


def remove_below(files: Files, roots: Sequence[str], gone: Iterable[str]) -> list[str]:
    """Remove files that lie below one of some directories, and the directories in there that are empty then.

    Parameters
    ----------
    files : Files
    roots : sequence of str
        Directories of the table.
    gone : iterable of str
        Files that nothing of the table needs.

    Returns
    -------
    list of str
        Those that lie elsewhere, and were kept.
    """
    every, inside = sorted(gone), _Inside(files, roots)
    going = [file for file in every if inside(parent(file))]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda file: remove_file(files, file), going))
    # The deepest first. Where anything is left in it, a directory stays.
    for directory in sorted(inside.directories(), key=lambda found: found.count("/"), reverse=True):
        if files.exists(directory):
            files.remove_if_empty(directory)
    return sorted(set(every) - set(going))


class _Inside:
    """Whether directories lie below some others; neither ``..`` nor a symbolic link leads out of these."""

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
        """All that were found to be inside, with those between them and the root."""
        found: set[str] = set()
        for directory in [known for known, is_inside in self._known.items() if is_inside]:
            while directory not in found and self(directory):
                found.add(directory)
                directory = parent(directory)
        return found

    def _real(self, location: str) -> str:
        if not self._files.is_local(location):
            return location
        return os.path.realpath(self._files.resolve(location)[1])

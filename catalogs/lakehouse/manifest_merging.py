"""Merging of small manifests, as in Iceberg's own writers; otherwise each read and commit would go through all of them.

The properties are Iceberg's: ``commit.manifest-merge.enabled``, ``commit.manifest.min-count-to-merge``,
``commit.manifest.target-size-bytes``. PyIceberg selects the manifests to merge, in a private class.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.manifest import ManifestEntry, ManifestFile, ManifestWriter
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import TableProperties
from pyiceberg.table.update.snapshot import _ManifestMergeManager

from twophase.catalogs.lakehouse.manifests import Work, entries_of, is_data


def merged(work: Work, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
    """The manifests of a snapshot, with small ones merged if there are many; together they list the same files.

    Those that list only what older snapshots have removed are left out, as in Iceberg's own writers.

    Parameters
    ----------
    work : Work
        The settings for writing manifests.
    manifests : sequence of pyiceberg.manifest.ManifestFile
        Newest first.
    """
    properties = work.properties
    manifests = [m for m in manifests if m.added_snapshot_id == work.snapshot_id or _has_files(m)]
    count = TableProperties.MANIFEST_MIN_MERGE_COUNT, TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT
    least = _number(properties, *count)
    # PyIceberg merges only if enabled; Iceberg's other writers merge unless disabled.
    wanted = properties.get(TableProperties.MANIFEST_MERGE_ENABLED, "true").lower() == "true"
    if not wanted or len(manifests) < least:
        return manifests
    size = TableProperties.MANIFEST_TARGET_SIZE_BYTES, TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
    producer = _Producer(work)
    mine = [manifest for manifest in manifests if is_data(manifest) and producer.can_write(manifest)]
    others = [manifest for manifest in manifests if manifest not in mine]
    manager: _ManifestMergeManager[Any] = _ManifestMergeManager(
        target_size_bytes=_number(properties, *size),
        min_count_to_merge=least,
        merge_enabled=True,
        snapshot_producer=producer,  # type: ignore[arg-type]
    )
    return [*manager.merge_manifests(mine), *others]


def _has_files(manifest: ManifestFile) -> bool:
    return bool(manifest.has_added_files() or manifest.has_existing_files())


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    found = properties.get(name, "")
    return int(found) if found.isdigit() else default


class _Producer:
    """The part of a commit that PyIceberg's merging needs."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._numbers = itertools.count()
        self.snapshot_id = work.snapshot_id

    def can_write(self, manifest: ManifestFile) -> bool:
        """Return True if the source columns of the manifest's partition spec are known."""
        spec = self._work.specs.get(manifest.partition_spec_id)
        if spec is None:
            return False
        known = self._work.schema_of(spec.spec_id).field_ids
        return all(field.source_id in known for field in spec.fields)

    def spec(self, spec_id: int) -> PartitionSpec:
        return self._work.specs[spec_id]

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        location = self._work.place.manifest(self._work.kept, next(self._numbers))
        return self._work.writer(spec.spec_id, location)

    def fetch_manifest_entry(self, manifest: ManifestFile, discard_deleted: bool = True) -> list[ManifestEntry]:
        return entries_of(self._work.io, manifest, discard_deleted=discard_deleted)

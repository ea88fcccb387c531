"""Small manifests become one, as Iceberg's own writers do it: else each read and each commit would go through all.

The properties are Iceberg's: ``commit.manifest-merge.enabled``, ``commit.manifest.min-count-to-merge``,
``commit.manifest.target-size-bytes``. Which ones are merged is decided by PyIceberg, on what it keeps to itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.io import load_file_io
from pyiceberg.manifest import ManifestEntry, ManifestFile, ManifestWriter
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import TableProperties
from pyiceberg.table.update.snapshot import _ManifestMergeManager

from twophase.catalogs.lakehouse.manifests import Work, is_data


def merged(work: Work, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
    """The manifests of a snapshot, with small ones merged where there are many; all of them list the same files.

    Parameters
    ----------
    work : Work
        What writing manifests takes.
    manifests : sequence of pyiceberg.manifest.ManifestFile
        The newest first.
    """
    properties = work.properties
    count = TableProperties.MANIFEST_MIN_MERGE_COUNT, TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT
    least = _number(properties, *count)
    # PyIceberg itself merges only where that is asked for; Iceberg's other writers do it unless they are told not to.
    wanted = properties.get(TableProperties.MANIFEST_MERGE_ENABLED, "true").lower() == "true"
    if not wanted or len(manifests) < least:
        return list(manifests)
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


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    found = properties.get(name, "")
    return int(found) if found.isdigit() else default


class _Producer:
    """What PyIceberg's merging asks of a commit."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._numbers = itertools.count()
        self.snapshot_id = work.snapshot_id

    def can_write(self, manifest: ManifestFile) -> bool:
        """Whether the columns that files were partitioned by are still there."""
        spec = self._work.specs.get(manifest.partition_spec_id)
        return spec is not None and all(field.source_id in self._work.schema.field_ids for field in spec.fields)

    def spec(self, spec_id: int) -> PartitionSpec:
        return self._work.specs[spec_id]

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        location = self._work.place.manifest(self._work.kept, next(self._numbers))
        return self._work.writer(spec.spec_id, location)

    def fetch_manifest_entry(self, manifest: ManifestFile, discard_deleted: bool = True) -> list[ManifestEntry]:
        return manifest.fetch_manifest_entry(load_file_io({}, manifest.manifest_path), discard_deleted)

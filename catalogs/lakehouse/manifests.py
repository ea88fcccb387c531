"""Manifests of the files that a participant adds to a table, and of those that it keeps."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    PartitionFieldSummary,
    write_manifest,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import TOTAL_DATA_FILES, TOTAL_DELETE_FILES, Snapshot
from pyiceberg.types import NestedField
from pyiceberg.utils.concurrent import ExecutorFactory

from twophase.catalogs.lakehouse.errors import reading_manifests
from twophase.catalogs.lakehouse.layout import Place
from twophase.catalogs.lakehouse.manifest_lists import FORMAT_VERSION
from twophase.lru import LruCache

_COUNTS = (
    "added_files_count",
    "existing_files_count",
    "deleted_files_count",
    "added_rows_count",
    "existing_rows_count",
    "deleted_rows_count",
)
_FACTS = (
    "manifest_path",
    "manifest_length",
    "partition_spec_id",
    "sequence_number",
    "min_sequence_number",
    "added_snapshot_id",
    *_COUNTS,
)
_LONGEST_LIST = 200
Document = dict[str, Any]
#: A predicate: whether a file's rows are kept.
Keeps = Callable[[DataFile], bool]


def to_document(manifest: ManifestFile) -> Document:
    """A manifest's entry in a manifest list as plain JSON."""
    summaries = None if manifest.partitions is None else [_summary_document(part) for part in manifest.partitions]
    return {
        **{name: getattr(manifest, name) for name in _FACTS},
        "content": int(manifest.content),
        "partitions": summaries,
    }


def from_document(document: Mapping[str, Any]) -> ManifestFile:
    """Read a manifest from the result of :func:`to_document`."""
    facts = {name: document[name] for name in _FACTS}
    summaries = document["partitions"]
    partitions = None if summaries is None else [_summary(part) for part in summaries]
    content = ManifestContent(document["content"])
    return ManifestFile.from_args(**facts, content=content, partitions=partitions, key_metadata=None)


def _summary_document(part: PartitionFieldSummary) -> list[Any]:
    bounds = [None if b is None else base64.b64encode(b).decode() for b in (part.lower_bound, part.upper_bound)]
    return [part.contains_null, part.contains_nan, *bounds]


def _summary(facts: Sequence[Any]) -> PartitionFieldSummary:
    lower, upper = (None if text is None else base64.b64decode(text) for text in facts[2:])
    return PartitionFieldSummary.from_args(
        contains_null=facts[0], contains_nan=facts[1], lower_bound=lower, upper_bound=upper
    )


#: Short manifest lists, which are immutable.
_lists: LruCache[str, tuple[ManifestFile, ...]] = LruCache(512)


# -- reading -----------------------------------------------------------------------------------------------------------


def manifests_of(io: FileIO, metadata: TableMetadata, snapshot_id: int | None) -> list[ManifestFile]:
    """All manifests of a snapshot; none for an empty table, whose snapshot id is None."""
    snapshot = None if snapshot_id is None else metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return []
    found = _lists.get(snapshot.manifest_list)
    if found is None:
        with reading_manifests(snapshot.manifest_list):
            found = tuple(snapshot.manifests(io))
            if _is_cut(io, snapshot, found):
                raise EOFError(f"it ends after {len(found)} manifests, without all files of its snapshot")
        if len(found) <= _LONGEST_LIST:
            _lists.put(snapshot.manifest_list, found)
    return list(found)


def _is_cut(io: FileIO, snapshot: Snapshot, listed: Iterable[ManifestFile]) -> bool:
    """Whether a manifest list has lost its end: where a block is not whole, PyIceberg takes it for the end.

    A snapshot's summary need not count its files, nor count them well: it alone proves nothing, but of an empty list.
    """
    summary: Mapping[str, str] = snapshot.summary or {}
    told = int(summary.get(TOTAL_DATA_FILES) or 0) + int(summary.get(TOTAL_DELETE_FILES) or 0)
    if 0 < told <= sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in listed):
        return False
    with AvroFile[Any](io.new_input(snapshot.manifest_list)) as avro:
        marker = avro.header.sync
    with io.new_input(snapshot.manifest_list).open() as file:
        content = file.read()
    # The marker follows the header and each block.
    return not content.endswith(marker) or (told > 0 and content.count(marker) == 1)


def entries_of(io: FileIO, manifest: ManifestFile, *, discard_deleted: bool = True) -> list[ManifestEntry]:
    """The live files of a manifest, or also those that its snapshot has removed."""
    with reading_manifests(manifest.manifest_path):
        found = manifest.fetch_manifest_entry(io, discard_deleted=False)
        # Lists of format version 1 need not have the counts.
        counts = (manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count)
        if len(found) < sum(count or 0 for count in counts):
            raise EOFError(f"it ends after {len(found)} of {counts} files (added, kept, removed)")
    return [entry for entry in found if not discard_deleted or entry.status != ManifestEntryStatus.DELETED]


def check_lengths(io: FileIO, listed: Iterable[ManifestFile]) -> None:
    """Refuse manifests that have lost their ends, before PyIceberg reads them: it would not notice."""
    list(ExecutorFactory.get_or_create().map(partial(_check_length, io), list(listed)))


def _check_length(io: FileIO, manifest: ManifestFile) -> None:
    with reading_manifests(manifest.manifest_path):
        if (length := len(io.new_input(manifest.manifest_path))) < manifest.manifest_length:
            raise EOFError(f"it has {length} of {manifest.manifest_length} bytes")


def removed_in(io: FileIO, manifest: ManifestFile, snapshot_id: int) -> list[str]:
    """The files that a snapshot has removed, according to one of its manifests."""
    found = entries_of(io, manifest, discard_deleted=False)
    gone = (e for e in found if e.status == ManifestEntryStatus.DELETED and e.snapshot_id == snapshot_id)
    return [entry.data_file.file_path for entry in gone]


def all_entries(io: FileIO, manifests: Iterable[ManifestFile]) -> list[ManifestEntry]:
    """The live files of several manifests, read in parallel."""
    found = ExecutorFactory.get_or_create().map(partial(entries_of, io), list(manifests))
    return [entry for entries in found for entry in entries]


def is_data(manifest: ManifestFile) -> bool:
    """Return True if a manifest lists data files, False if it lists delete files."""
    return bool(manifest.content == ManifestContent.DATA)


def has_deletes(manifests: Iterable[ManifestFile]) -> bool:
    """Return True if another engine has deleted single rows without rewriting their files."""
    return any(
        m.content == ManifestContent.DELETES and (m.has_added_files() or m.has_existing_files()) for m in manifests
    )


def last_seen(schemas: Sequence[IcebergSchema], source: int) -> NestedField | None:
    """A column or nested field as the last schema that has it defines it, as a top-level column named by its id."""
    found = [schema.find_type(source) for schema in schemas if source in schema.field_ids]
    return NestedField(source, f"_{source}", found[-1], required=False) if found else None


# -- writing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """The settings for writing manifests.

    Attributes
    ----------
    io : pyiceberg.io.FileIO
        Access to the files of the table.
    place : Place
    schema : pyiceberg.schema.Schema
    specs : mapping of int to pyiceberg.partitioning.PartitionSpec
    earlier : sequence of pyiceberg.schema.Schema
        Schemas that the table has had, oldest first: an older partitioning may be by a column that it has lost.
    snapshot_id : int
        Id of the snapshot that will refer to them.
    properties : mapping of str to str
    kept : str
        Prefix for the names of manifests of kept files.
    """

    io: FileIO
    place: Place
    schema: IcebergSchema
    specs: Mapping[int, PartitionSpec]
    earlier: Sequence[IcebergSchema]
    snapshot_id: int
    properties: Mapping[str, str]
    kept: str = "k"

    def writer(self, spec_id: int, location: str) -> ManifestWriter:
        output, schema = self.io.new_output(location), self.schema_of(spec_id)
        return write_manifest(
            FORMAT_VERSION, self.specs[spec_id], schema, output, self.snapshot_id, codec(self.properties)
        )

    def schema_of(self, spec_id: int) -> IcebergSchema:
        """The schema, with the columns of a partitioning that the table has lost, as far as they are known."""
        sources = {field.source_id for field in self.specs[spec_id].fields}
        found = [last_seen(self.earlier, source) for source in sorted(sources - set(self.schema.field_ids))]
        lost = [column for column in found if column is not None]
        return IcebergSchema(*self.schema.fields, *lost, schema_id=self.schema.schema_id) if lost else self.schema

    def add(self, spec_id: int, files: Sequence[DataFile]) -> list[ManifestFile]:
        """Write a manifest of new files."""
        if not files:
            return []
        with self.writer(spec_id, self.place.manifest("m", 0)) as writer:
            for file in files:
                writer.add(_entry(ManifestEntryStatus.ADDED, self.snapshot_id, file))
        return [writer.to_manifest_file()]

    def keep(self, manifests: Sequence[ManifestFile], keeps: Keeps) -> tuple[list[ManifestFile], list[DataFile]]:
        """Filter the files of manifests; return the resulting manifests, and the removed files of the table.

        A manifest that loses no file is kept as it is. Another engine's deletes in kept files stay in effect. Files
        that the transaction itself has added are dropped without a delete entry.
        """
        kept: list[ManifestFile] = []
        removed: list[DataFile] = []
        for number, manifest in enumerate(manifests):
            entries = entries_of(self.io, manifest) if is_data(manifest) else []
            gone = {entry.data_file.file_path for entry in entries if not keeps(entry.data_file)}
            if not gone:
                kept.append(manifest)
                continue
            removed += [e.data_file for e in entries if e.data_file.file_path in gone and not self._is_own(e)]
            kept += self._rewrite(number, manifest, entries, gone)
        return kept, removed

    def _is_own(self, entry: ManifestEntry) -> bool:
        """Return True if an earlier statement of the same transaction has added the file."""
        return entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == self.snapshot_id

    def _rewrite(
        self, number: int, manifest: ManifestFile, entries: Sequence[ManifestEntry], gone: set[str]
    ) -> list[ManifestFile]:
        if all(self._is_own(entry) and entry.data_file.file_path in gone for entry in entries):
            return []
        with self.writer(manifest.partition_spec_id, self.place.manifest(self.kept, number)) as writer:
            for entry in entries:
                is_gone = entry.data_file.file_path in gone
                if self._is_own(entry):
                    if not is_gone:
                        writer.add(_entry(ManifestEntryStatus.ADDED, self.snapshot_id, entry.data_file))
                elif is_gone:
                    writer.delete(entry)
                else:
                    writer.existing(entry)
        return [writer.to_manifest_file()]


def codec(properties: Mapping[str, str]) -> Any:
    """Iceberg's name of the Avro codec."""
    return properties.get(TableProperties.WRITE_AVRO_COMPRESSION, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT)


def _entry(status: ManifestEntryStatus, snapshot_id: int, file: DataFile) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status, snapshot_id=snapshot_id, sequence_number=None, file_sequence_number=None, data_file=file
    )


def counts(added: Sequence[DataFile], removed: Sequence[DataFile]) -> dict[str, str]:
    """The counts for a snapshot's summary, under Iceberg's names."""
    found = {
        "added-data-files": len(added),
        "added-records": sum(file.record_count for file in added),
        "added-files-size": sum(file.file_size_in_bytes for file in added),
        "deleted-data-files": len(removed),
        "deleted-records": sum(file.record_count for file in removed),
        "removed-files-size": sum(file.file_size_in_bytes for file in removed),
    }
    return {key: str(value) for key, value in found.items() if value}

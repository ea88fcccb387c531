"""Lookup of a participant's publish in the table itself, for catalogs whose records do not change with the pointer.

A publish leaves several traces, which later commits and other engines' housekeeping remove one by one: the name of the
metadata file contains the participant's key and stays in the table's metadata log for a while; the snapshot names the
participant until it expires; and as long as any of its files is needed, some manifest lists it.
"""

from __future__ import annotations

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata

from twophase.catalogs.files import is_below
from twophase.catalogs.lakehouse import manifests
from twophase.catalogs.lakehouse.errors import reading_metadata
from twophase.catalogs.lakehouse.layout import Place, key_of
from twophase.catalogs.lakehouse.snapshots import find_published
from twophase.catalogs.lakehouse.store import Loaded, Staged
from twophase.errors import CatalogError


def place_of(record: Staged) -> Place:
    """The place in which a participant works, as recorded."""
    return Place(record.document["location"], record.document["key"])


def own_place(record: Staged) -> Place:
    """The place in which a participant works, verified, so that a record cannot lead to the files of another one.

    Raises
    ------
    CatalogError
        The record names a place that its participant cannot have created.
    """
    place, ordinal = place_of(record), record.participant.rpartition("/")[2]
    made = key_of(record.target, record.transaction_id, int(ordinal)) if ordinal.isdigit() else None
    if place.key != made or ".." in place.location.split("/"):
        raise CatalogError(
            f"The record of {record.participant} names {place.data}, which that statement cannot have made: "
            "nothing was removed.",
            path=record.target,
            transaction_id=record.transaction_id,
            hint="The record was changed by hand. If nothing needs that directory, remove it and the record.",
        )
    return place


def published_as(io: FileIO, loaded: Loaded, record: Staged, *, thorough: bool) -> str | None:
    """The metadata file that published a participant, or a later one; None if it was not published.

    Parameters
    ----------
    io : pyiceberg.io.FileIO
        Access to its files.
    loaded : Loaded
        The current table.
    record : Staged
    thorough : bool
        Search the manifests, too; needed before its files are removed.

    Raises
    ------
    UnreadableMetadataError
        A manifest is missing or damaged.
    """
    place = place_of(record)
    metadata = loaded.metadata
    log = [loaded.location, *(entry.metadata_file for entry in reversed(metadata.metadata_log))]
    named = next((file for file in log if place.is_own(file)), None)
    if named is not None:
        return named
    if find_published(metadata, record.participant) is not None:
        return loaded.location
    return loaded.location if thorough and _is_needed(io, metadata, place, record) else None


def _is_needed(io: FileIO, metadata: TableMetadata, place: Place, record: Staged) -> bool:
    """Return True if any snapshot of a table needs a file of the participant: a branch or a tag may name it."""
    # Snapshots and manifests older than the participant cannot list its files.
    since = record.document["last_sequence_number"]
    seen: set[str] = set()
    with reading_metadata(record.target, metadata.location):
        for snapshot in reversed(metadata.snapshots):
            if (snapshot.sequence_number or 0) <= since:
                continue
            for manifest in manifests.manifests_of(io, metadata, snapshot.snapshot_id):
                if manifest.sequence_number > since and manifest.manifest_path not in seen:
                    if _lists(io, manifest, place):
                        return True
                    seen.add(manifest.manifest_path)
    return False


def _lists(io: FileIO, manifest: ManifestFile, place: Place) -> bool:
    if place.is_own(manifest.manifest_path):
        return True
    return any(is_below(entry.data_file.file_path, place.data) for entry in manifests.entries_of(io, manifest))

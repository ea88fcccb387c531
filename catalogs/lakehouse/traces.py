"""Whether a participant was published, told by the table alone: where no record changes together with the pointer.

A publish leaves several traces, and later commits and other engines' housekeeping take them away one after the other:
the metadata file is named by the participant, and stays in the table's log of metadata files for a while; its snapshot
names the participant, until it expires; and as long as any file of it is needed, some manifest lists that.
"""

from __future__ import annotations

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
    """Where a participant works."""
    return Place(record.document["location"], record.document["key"])


def own_place(record: Staged) -> Place:
    """Where a participant works: of what a record says, nothing leads to the files of another one.

    Raises
    ------
    CatalogError
        The record names a place that its participant cannot have made.
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


def published_as(loaded: Loaded, record: Staged, *, thorough: bool) -> str | None:
    """The metadata file by which a participant was published, or one after it; None where it was not.

    Parameters
    ----------
    loaded : Loaded
        The table now.
    record : Staged
    thorough : bool
        Look into the manifests, too: for whoever would remove its files.

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
    return loaded.location if thorough and _is_needed(metadata, place, record) else None


def _is_needed(metadata: TableMetadata, place: Place, record: Staged) -> bool:
    """Whether any manifest of the table as it is lists a file of a participant."""
    current = metadata.current_snapshot()
    if current is None:
        return False
    # What was there before the participant cannot list a file of it.
    since = record.document["last_sequence_number"]
    with reading_metadata(record.target, current.manifest_list):
        listed = manifests.manifests_of(metadata, current.snapshot_id)
        return any(_lists(manifest, place) for manifest in listed if manifest.sequence_number > since)


def _lists(manifest: ManifestFile, place: Place) -> bool:
    if place.is_own(manifest.manifest_path):
        return True
    return any(is_below(entry.data_file.file_path, place.data) for entry in manifests.entries_of(manifest))

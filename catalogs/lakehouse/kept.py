"""Kept states of Iceberg tables, for named savepoints: a tag on the snapshot, with which no engine lets it expire.

The tag's name says for which savepoint it is. The definition of the table is recorded on the timeline, since a snapshot
names only its schema. A restore replaces the table by a new snapshot of the kept manifests: no row is written. Where
the table is no longer the one that was kept, because it was dropped since, the kept rows are written anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetSnapshotRefUpdate, TableUpdate

from twophase.catalog.reading import ReadSource
from twophase.catalogs.lakehouse import definitions, manifests, publishing
from twophase.catalogs.lakehouse.errors import UnreadableMetadataError
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.participant import LakehouseParticipant
from twophase.catalogs.lakehouse.planning import check_writable
from twophase.catalogs.lakehouse.snapshots import REPLACE, current_id, iceberg_document
from twophase.catalogs.lakehouse.sources import source_of
from twophase.catalogs.lakehouse.store import Loaded
from twophase.errors import AtomicityNotSupportedError, CatalogError, ConfigurationError
from twophase.failpoints import Failpoint, step
from twophase.model import ObjectPath, TableDefinition
from twophase.redaction import is_secret, redact

TAG = Failpoint("lakehouse.tag")
UNTAG = Failpoint("lakehouse.untag")

Document = Mapping[str, Any]

_LONGEST = 80
#: The age at which an engine's expiry removes the tag, in milliseconds, whatever the table's own limit for refs.
_FOR_EVER = 2**63 - 1
#: Counts of a snapshot's summary: what its files add to an empty table.
_COUNTS = {
    "added-data-files": "total-data-files",
    "added-delete-files": "total-delete-files",
    "added-records": "total-records",
    "added-files-size": "total-files-size",
    "added-position-deletes": "total-position-deletes",
    "added-equality-deletes": "total-equality-deletes",
}


class KeptTables:
    """The kept states of the tables of one lakehouse."""

    def __init__(self, lakehouse: Lakehouse) -> None:
        self._lakehouse = lakehouse
        self._store = lakehouse.store

    # -- keeping -------------------------------------------------------------------------------------------------

    def plan(self, path: ObjectPath, savepoint: str, name: str) -> Document:
        """Return the document of the present state of a table, before anything is kept.

        Raises
        ------
        TableNotExistError
        CatalogError
            The table is one that only other engines write.
        AtomicityNotSupportedError
            Its properties hold secrets, which are not recorded.
        ConfigurationError
            The table has a branch or a tag of the savepoint's name, which ``VERSION AS OF`` reads.
        """
        loaded = self._lakehouse.load_to_write(path)
        if loaded is None:
            raise self._lakehouse.no_table(path)
        check_writable(path, loaded.metadata)
        _refuse_secrets(path, loaded.metadata)
        if name == MAIN_BRANCH or name in loaded.metadata.refs:
            raise ConfigurationError(
                f"No savepoint of {path} can be named {name}: the table has a branch or tag of this name, which "
                "VERSION AS OF reads. Nothing was changed.",
                path=path,
                hint="Give it another name.",
            )
        plain = re.sub(r"\W+", "_", name, flags=re.ASCII)[:_LONGEST]
        return {
            "path": path.to_document(),
            "store": self._store.identity(),
            "tag": f"{plain}_{savepoint}",
            "uuid": str(loaded.metadata.table_uuid),
        }

    def keep(self, document: Document) -> Document:
        """Tag the current snapshot of a table, and describe the table. Idempotent."""
        path, tag = _path(document), str(document["tag"])
        self._check(document)
        kept: dict[str, Any] = {}

        def tagged(loaded: Loaded) -> list[TableUpdate]:
            _refuse_secrets(path, loaded.metadata)  # They may have been set since.
            kept.update(_described(loaded))
            number, ref = current_id(loaded.metadata), loaded.metadata.refs.get(tag)
            if number is None or (ref is not None and ref.snapshot_id == number):
                return []  # A table that never had a row has no snapshot, and nothing that could expire.
            return [
                SetSnapshotRefUpdate(
                    ref_name=tag, type=SnapshotRefType.TAG, snapshot_id=number, max_ref_age_ms=_FOR_EVER
                )
            ]

        with step(TAG):
            changed = publishing.change(self._lakehouse, path, tagged)
        if changed is not None:
            kept["metadata_location"] = changed[1].location
        return {**document, **kept}

    # -- forgetting ----------------------------------------------------------------------------------------------

    def forget(self, document: Document) -> None:
        """Remove the tag, wherever the table is now. Idempotent."""
        self._check(document)
        tag = str(document["tag"])
        path = next((path for path, loaded in self._candidates(document) if tag in loaded.metadata.refs), None)
        if path is None:
            return

        def untagged(loaded: Loaded) -> list[TableUpdate]:
            return [RemoveSnapshotRefUpdate(ref_name=tag)] if tag in loaded.metadata.refs else []

        with step(UNTAG):
            publishing.change(self._lakehouse, path, untagged)

    def _candidates(self, document: Document) -> Iterator[tuple[ObjectPath, Loaded]]:
        """The table of the kept name, and if it is another one now, that to which it was renamed."""
        path = _path(document)
        found = self._store.load(path)
        if found is not None:
            yield path, found
            if str(found.metadata.table_uuid) == document["uuid"]:
                return
        for other, pointer in _nearest_first(self._store.all_tables(), document.get("metadata_location")):
            try:
                loaded = Loaded(pointer, self._store.metadata(other, pointer))
            except UnreadableMetadataError:
                continue
            if other != path and str(loaded.metadata.table_uuid) == document["uuid"]:
                yield other, loaded
                return

    # -- using ---------------------------------------------------------------------------------------------------

    def definition(self, document: Document) -> TableDefinition:
        """Return the definition of a kept table."""
        return TableDefinition.from_document(document["definition"])

    def source(self, document: Document) -> ReadSource:
        """Return the source of the rows of a kept table.

        Raises
        ------
        CatalogError
            Its snapshot is gone.
        """
        metadata = self._metadata(document)
        io = self._store.io(metadata.location)
        return source_of(io, _path(document), metadata, document["snapshot_id"], document["schema"]["schema-id"])

    def _metadata(self, document: Document) -> TableMetadata:
        """A metadata of the table that still has the kept snapshot."""
        self._check(document)
        for metadata in self._metadata_files(document):
            number, schema = document["snapshot_id"], document["schema"]["schema-id"]
            is_there = number is None or metadata.snapshot_by_id(number) is not None
            is_same = str(metadata.table_uuid) == document["uuid"]
            if (
                is_there
                and is_same
                and metadata.schema_by_id(schema) is not None
                and self._has_manifests(metadata, number)
            ):
                return metadata
        raise CatalogError(
            f"What a savepoint kept of {_path(document)} is no longer there: the tag {document['tag']} was removed, or "
            "the files of the dropped table.",
            path=_path(document),
        )

    def _has_manifests(self, metadata: TableMetadata, number: int | None) -> bool:
        """Whether the files that list the rows are there: metadata may be cached, and outlive them."""
        try:
            found = manifests.manifests_of(self._store.io(metadata.location), metadata, number)
        except UnreadableMetadataError:
            return False
        return all(self._lakehouse.files.exists(manifest.manifest_path) for manifest in found)

    def _metadata_files(self, document: Document) -> Iterator[TableMetadata]:
        living = [loaded.metadata for _, loaded in self._candidates(document)]
        yield from living
        if any(str(metadata.table_uuid) == document["uuid"] for metadata in living):
            return  # A snapshot that it no longer has may have lost its files.
        dropped = [table.pointer for table in self._store.dropped() if table.uuid == document["uuid"]]
        for pointer in (*dropped, document["metadata_location"]):
            try:
                if pointer is not None:
                    yield self._store.metadata(_path(document), pointer)
            except UnreadableMetadataError:
                continue

    def stage(self, participant: LakehouseParticipant, document: Document) -> bool:
        """Stage the kept manifests for a participant that replaces the very table that was kept; False for others."""
        self._check(document)
        seen, number = participant.seen, document["snapshot_id"]
        if participant.effect != REPLACE or seen is None or seen.document["uuid"] != document["uuid"]:
            return False
        metadata = self._store.metadata(participant.path, seen.document["metadata_location"])
        if number is None or metadata.snapshot_by_id(number) is None or document["tag"] not in metadata.refs:
            return False
        participant.adopt(
            schema=document["schema"],
            highest_field_id=metadata.last_column_id,
            spec=document["spec"],
            sort_order=document["sort_order"],
            properties=document["properties"],
            kept=manifests.manifests_of(participant.io, metadata, number),
            counts=document["counts"],
        )
        return True

    def _check(self, document: Document) -> None:
        """Refuse what is kept in another Iceberg catalog.

        Raises
        ------
        ConfigurationError
        """
        theirs, ours = document.get("store"), self._store.identity()
        if theirs is not None and ours not in (None, theirs):
            raise ConfigurationError(
                f"What a savepoint keeps of {_path(document)} belongs to another Iceberg catalog than "
                f"{self._store.settings.display_uri}. Nothing was touched.",
                path=_path(document),
                hint="Run it with the options uri, warehouse and catalog_name of then.",
            )


def _refuse_secrets(path: ObjectPath, metadata: TableMetadata) -> None:
    """Refuse to record properties that hold secrets: without them a restore would not give the table back.

    Raises
    ------
    AtomicityNotSupportedError
    """
    if hidden := sorted(key for key, value in metadata.properties.items() if is_secret(key, value)):
        raise AtomicityNotSupportedError(
            f"{path} cannot be kept by a savepoint: some of its properties hold secrets, which are never written down: "
            f"{', '.join(map(redact, hidden))}. Nothing was changed.",
            path=path,
            hint="Move them out of the table's properties.",
        )


def _described(loaded: Loaded) -> dict[str, Any]:
    metadata = loaded.metadata
    snapshot = metadata.current_snapshot()
    summary = None if snapshot is None else snapshot.summary
    totals = {name: summary.get(total) if summary else None for name, total in _COUNTS.items()}
    return {
        "snapshot_id": current_id(metadata),
        "metadata_location": loaded.location,
        # Where a table is created anew, the catalog chooses its location.
        "definition": replace(definitions.to_definition(metadata), location=None).to_document(),
        "schema": iceberg_document(metadata.schema()),
        "spec": iceberg_document(metadata.spec()),
        "sort_order": iceberg_document(metadata.sort_order()),
        "properties": dict(metadata.properties),
        "counts": {name: total for name, total in totals.items() if total not in (None, "0")},
    }


def _nearest_first(tables: Mapping[ObjectPath, str], kept: str | None) -> list[tuple[ObjectPath, str]]:
    """Tables with their metadata files: first those beside a kept one, as a renamed table stays where it was."""
    directory = None if kept is None else kept.rpartition("/")[0]
    return sorted(tables.items(), key=lambda table: table[1].rpartition("/")[0] != directory)


def _path(document: Document) -> ObjectPath:
    return ObjectPath.from_document(document["path"])

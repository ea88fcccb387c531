"""The facts of a participant, and the checks before its publish."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder

from twophase.catalog import TwoPhaseCatalogTable
from twophase.catalogs.lakehouse import manifests
from twophase.catalogs.lakehouse.changes import Changes
from twophase.catalogs.lakehouse.lakehouse import Lakehouse, LakehouseBase
from twophase.catalogs.lakehouse.layout import Place
from twophase.catalogs.lakehouse.manifests import Work
from twophase.catalogs.lakehouse.snapshots import APPEND, DROP, OVERWRITE, REPLACE, Seen, is_ancestor
from twophase.catalogs.lakehouse.store import Loaded, Store
from twophase.errors import TransactionAborted, WriteConflictError
from twophase.model import OverwriteScope
from twophase.schema import Schema, from_iceberg, to_iceberg
from twophase.transactions import failures

#: Of documents: the tables that are dropped with the publish, as their statements have seen them.
DROPS = "drops"


class Member(TwoPhaseCatalogTable):
    """One statement on one Iceberg table, as its document describes it: see :mod:`.participant`."""

    #: Whether an earlier try may have left files.
    left_tries = False

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def lakehouse(self) -> Lakehouse:
        """The lakehouse behind the live catalog."""
        catalog = self.catalog
        assert isinstance(catalog, LakehouseBase)
        return catalog.lakehouse

    @property
    def store(self) -> Store:
        return self.lakehouse.store

    @property
    def io(self) -> FileIO:
        """PyIceberg's access to the files of the table."""
        return self.store.io(self.place.location)

    @property
    def name(self) -> str:
        """The unique name of the participant."""
        return f"{self.transaction_id}/{self.document['ordinal']}"

    @property
    def names(self) -> list[str]:
        """This participant and those whose files it takes over; they are published together."""
        return [self.name, *self.document["carries"]]

    @property
    def effect(self) -> str:
        """``create``, ``replace``, ``append``, ``overwrite``, ``drop`` or ``rename``."""
        return str(self.document["effect"])

    @cached_property
    def place(self) -> Place:
        """The place in which it works."""
        return Place(str(self.document["location"]), str(self.document["key"]))

    @property
    def snapshot_id(self) -> int:
        return int(self.document["snapshot_id"])

    @property
    def seen(self) -> Seen | None:
        """The table when the statement began; None if it did not exist."""
        return None if self.document["seen"] is None else Seen(self.document["seen"])

    @property
    def dropped(self) -> list[Loaded]:
        """The tables that are dropped with its publish."""
        return [Seen(found).loaded(self.store, self.path) for found in self.document.get(DROPS, ())]

    @cached_property
    def schema(self) -> Schema:
        """The schema with which its files are written."""
        document = IcebergSchema.model_validate(self.document["schema"])
        return from_iceberg(document, highest_field_id=self.document["highest_field_id"])

    @property
    def earlier_schemas(self) -> list[IcebergSchema]:
        """The schemas with which its transaction may have written rows before it altered the table."""
        return [IcebergSchema.model_validate(found) for found in self.document.get("earlier_schemas", ())]

    @property
    def property_changes(self) -> Mapping[str, str | None]:
        """Changes of the table's properties by an ALTER TABLE of its transaction; None removes one."""
        return self.document.get("property_changes", {})

    @cached_property
    def spec(self) -> PartitionSpec:
        """The partition spec of its files."""
        return PartitionSpec.model_validate(self.document["spec"])

    @cached_property
    def sort_order(self) -> SortOrder:
        """The sort order of the rows in each of its files."""
        return SortOrder.model_validate(self.document["sort_order"])

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties of the table that is created or replaced; for an insert, those of the target."""
        return self.document["properties"]

    @property
    def codec(self) -> str | None:
        """Spark's name of the compression codec of its files; None for the default."""
        return self.document.get("codec") or self.properties.get("write.parquet.compression-codec")

    @property
    def scope(self) -> OverwriteScope | None:
        """The rows that an INSERT OVERWRITE replaces."""
        found = self.document["overwrite"]
        return None if found is None else OverwriteScope.from_document(found)

    @property
    def prior(self) -> list[ManifestFile] | None:
        """Manifests staged by an earlier statement of the transaction, without the table's; None if there was none."""
        return manifests_in(self.document["prior"])

    @property
    def added(self) -> list[ManifestFile]:
        """Manifests of the files that this publish adds, including those of earlier statements."""
        return manifests_in(self.document["added"]) or []

    @property
    def kept(self) -> list[ManifestFile]:
        """Manifests that are kept by an overwrite or a replace."""
        return manifests_in(self.document["kept"]) or []

    @property
    def counts(self) -> Mapping[str, str]:
        """Counts for the snapshot's summary."""
        return self.document["counts"]

    def work(self, metadata: TableMetadata | None = None, *, rebased: bool = False) -> Work:
        """The settings for writing manifests; with ``rebased``, under names that no earlier try has used."""
        specs = {self.spec.spec_id: self.spec} | (dict(metadata.specs()) if metadata else {})
        kept = f"k{secrets.token_hex(4)}-" if rebased else "k"
        schema, earlier = to_iceberg(self.schema), metadata.schemas if metadata else ()
        return Work(self.io, self.place, schema, specs, earlier, self.snapshot_id, self.properties, kept)

    # -- what it changes -----------------------------------------------------------------------------------------

    @property
    def changes(self) -> Changes:
        """Changes to the partitions of the table by this statement and the earlier ones of its transaction."""
        earlier = Changes.from_document(self.document.get("base_changes"))
        return earlier.joined(Changes.from_document(self.document.get("changes")))

    def reservation_scope(self) -> frozenset[str] | None:
        return self.changes.keys() if self.effect in (APPEND, OVERWRITE) else None

    def removed_files(self) -> frozenset[str]:
        """The data files of the table that an overwrite removes."""
        own = [m for m in self.kept if m.added_snapshot_id == self.snapshot_id and manifests.is_data(m)]
        return frozenset(path for manifest in own for path in manifests.removed_in(self.io, manifest, self.snapshot_id))

    # -- what it can be published on -----------------------------------------------------------------------------

    def check_target(self, current: Loaded | None) -> None:
        """Refuse a table on which this statement can no longer be published.

        Raises
        ------
        WriteConflictError
        """
        seen = self.seen
        self._check_name(current, seen, as_seen=self.effect in (REPLACE, DROP))
        if current is None or seen is None:
            return
        if not is_ancestor(current.metadata, seen.snapshot_id):
            raise self.conflict("it was replaced or rolled back meanwhile")
        if self.effect in (APPEND, OVERWRITE):
            self._check_layout(current.metadata)

    def _check_name(self, current: Loaded | None, seen: Seen | None, *, as_seen: bool) -> None:
        """Refuse another table than the one that was seen by the name; with ``as_seen`` also one that was changed."""
        if seen is None:
            if current is not None:
                raise self.conflict("another writer created it meanwhile")
            return
        if current is None:
            raise self.conflict("it was dropped meanwhile")
        if str(current.metadata.table_uuid) != seen.document["uuid"]:
            raise self.conflict("it was dropped and created anew meanwhile")
        if as_seen and current.location != seen.document["metadata_location"]:
            raise self.conflict("another writer committed to it meanwhile, which this would undo")

    def _check_layout(self, metadata: TableMetadata) -> None:
        if metadata.specs().get(self.spec.spec_id) != self.spec:
            raise self.conflict("its partitioning was changed meanwhile")
        if not any(field.id in metadata.schema().field_ids for field in self.schema):
            raise self.conflict("none of the columns that were written is there any more")

    def conflict(self, why: str) -> WriteConflictError:
        """The error of a lost race."""
        return failures.changed_meanwhile(self.path, self.transaction_id, why)

    def gone(self) -> TransactionAborted:
        """The error for a participant that an abort or ``clean`` has removed."""
        return failures.staging_gone(self.path, self.transaction_id)


def manifests_in(documents: Any) -> list[ManifestFile] | None:
    """Read manifests from a document."""
    return None if documents is None else [manifests.from_document(document) for document in documents]

"""The participant of a lakehouse catalog: staged files and manifests, and what the Iceberg catalog says of its publish.

Its document holds::

    path, purpose, transaction_id, ordinal, since        who and what
    effect                                               create, replace, append or overwrite
    key, location, uuid                                  where it stages, and for a new table its identity
    snapshot_id                                          of the snapshot that it will be
    last_sequence_number                                 of the table as the statement found it
    seen                                                 the table as the statement found it; None: there was none
    schema, highest_field_id, spec, sort_order           what its files are written with
    seen_size                                            bytes and rows of the table as the statement found it
    by_name                                              whether columns of the rows are found by name
    properties                                           of the table that is made or replaced
    overwrite                                            scope of an INSERT OVERWRITE
    prior                                                manifests that an earlier statement of the transaction left
    base_kept, base_counts, base_changes                 what it has taken away, and what it did to partitions
    changes                                              what the statement does to partitions, from the write on
    carries                                              participants whose files become part of this one's snapshot
    store                                                identity of the Iceberg catalog, from the staging on
    added, kept, counts, null_columns                    manifests and numbers, from the write on
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder

from twophase.catalog import TwoPhaseCatalogTable
from twophase.catalogs.lakehouse import evolving, manifests, merging, scopes, writing
from twophase.catalogs.lakehouse.layout import Place, remove_file
from twophase.catalogs.lakehouse.manifests import Work
from twophase.catalogs.lakehouse.offers import is_whole
from twophase.catalogs.lakehouse.overwriting import kept_files
from twophase.catalogs.lakehouse.publishing import remove_old_metadata
from twophase.catalogs.lakehouse.snapshots import (
    APPEND,
    CREATE,
    OVERWRITE,
    REPLACE,
    Plan,
    Seen,
    find_published,
    is_ancestor,
)
from twophase.catalogs.lakehouse.store import PUBLISHED, Loaded, Move, Store
from twophase.catalogs.lakehouse.traces import own_place
from twophase.errors import (
    CatalogError,
    ConfigurationError,
    TableAlreadyExistsError,
    TransactionAborted,
    WriteConflictError,
)
from twophase.failpoints import declare, step
from twophase.model import Outcome, OverwriteScope
from twophase.reading import ReadSource
from twophase.schema import Schema, from_iceberg, to_iceberg

if TYPE_CHECKING:
    from twophase.catalogs.lakehouse.catalog import LakehouseCatalog

declare(
    "lakehouse.stage",
    "lakehouse.write",
    "lakehouse.write_manifest",
    "lakehouse.keep",
    "lakehouse.merge",
    "lakehouse.publish",
    "lakehouse.write_list",
    "lakehouse.write_metadata",
    "lakehouse.swap",
    "lakehouse.compensate",
    "lakehouse.outcome",
    "lakehouse.mark_aborted",
    "lakehouse.remove_files",
    "lakehouse.forget",
    "lakehouse.tidy",
    "lakehouse.alter",
)


class LakehouseParticipant(TwoPhaseCatalogTable):
    """One statement on one Iceberg table."""

    #: What this very object published.
    _published: Loaded | None = None
    #: Whether an earlier try of it left files, as far as it knows.
    _left_tries = False
    #: Whether this is the Iceberg catalog in which it was staged, as far as anybody has looked.
    _is_at_home = False
    #: How it is published, as last worked out.
    _plan: Plan | None = None

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def lakehouse(self) -> LakehouseCatalog:
        """The live catalog."""
        from twophase.catalogs.lakehouse.catalog import LakehouseCatalog

        catalog = self.catalog
        assert isinstance(catalog, LakehouseCatalog)
        return catalog

    @property
    def store(self) -> Store:
        return self.lakehouse.store

    @property
    def name(self) -> str:
        """The participant among all."""
        return f"{self.transaction_id}/{self.document['ordinal']}"

    @property
    def names(self) -> list[str]:
        """This participant and those whose files it takes over: they are published together."""
        return [self.name, *self.document["carries"]]

    @property
    def effect(self) -> str:
        """``create``, ``replace``, ``append`` or ``overwrite``."""
        return str(self.document["effect"])

    @cached_property
    def place(self) -> Place:
        """Where it works."""
        return Place(str(self.document["location"]), str(self.document["key"]))

    @property
    def snapshot_id(self) -> int:
        return int(self.document["snapshot_id"])

    @property
    def seen(self) -> Seen | None:
        """The table as the statement found it."""
        return None if self.document["seen"] is None else Seen(self.document["seen"])

    @cached_property
    def schema(self) -> Schema:
        """What its files are written with."""
        document = IcebergSchema.model_validate(self.document["schema"])
        return from_iceberg(document, highest_field_id=self.document["highest_field_id"])

    @cached_property
    def spec(self) -> PartitionSpec:
        """How its files are partitioned."""
        return PartitionSpec.model_validate(self.document["spec"])

    @cached_property
    def sort_order(self) -> SortOrder:
        """How the rows of each of its files are sorted."""
        return SortOrder.model_validate(self.document["sort_order"])

    @property
    def properties(self) -> Mapping[str, str]:
        """Of the table that is made or replaced; for an insert those of the table."""
        found: Mapping[str, str] = self.document["properties"]
        return found

    @property
    def scope(self) -> OverwriteScope | None:
        """Which rows an INSERT OVERWRITE replaces."""
        found = self.document["overwrite"]
        return None if found is None else OverwriteScope.from_document(found)

    @property
    def prior(self) -> list[ManifestFile] | None:
        """What an earlier statement of the transaction left, beside what the table holds; None: there was none."""
        return _manifests(self.document["prior"])

    @property
    def added(self) -> list[ManifestFile]:
        """Manifests of files that come with this publish, those of earlier statements among them."""
        return _manifests(self.document["added"]) or []

    @property
    def kept(self) -> list[ManifestFile]:
        """For an overwrite or a replace: manifests of what stays."""
        return _manifests(self.document["kept"]) or []

    @property
    def counts(self) -> Mapping[str, str]:
        """Numbers for the snapshot's summary."""
        found: Mapping[str, str] = self.document["counts"]
        return found

    def merged(self, found: list[ManifestFile], metadata: TableMetadata) -> list[ManifestFile]:
        """The manifests of its snapshot, with small ones merged; for a table as it is before that snapshot."""
        if self.effect not in (APPEND, OVERWRITE):
            return found
        work = replace(self.work(metadata, rebased=True), schema=metadata.schema())
        with step("lakehouse.merge"):
            merged = merging.merged(work, found)
        # What was merged into another one is listed no more.
        self._left_tries = self._left_tries or len(merged) < len(found)
        return merged

    def work(self, metadata: TableMetadata | None = None, *, rebased: bool = False) -> Work:
        """What writing manifests takes; ``rebased``: of names that no earlier try has given."""
        specs = {self.spec.spec_id: self.spec} | (dict(metadata.specs()) if metadata else {})
        kept = f"k{secrets.token_hex(4)}-" if rebased else "k"
        return Work(self.place, to_iceberg(self.schema), specs, self.snapshot_id, self.properties, kept)

    # -- what it changes -----------------------------------------------------------------------------------------

    @property
    def changes(self) -> scopes.Changes:
        """What this statement and those before it in its transaction do to the partitions of the table."""
        earlier = scopes.Changes.from_document(self.document.get("base_changes"))
        return earlier.joined(scopes.Changes.from_document(self.document.get("changes")))

    def reservation_scope(self) -> frozenset[str] | None:
        return self.changes.keys() if self.effect in (APPEND, OVERWRITE) else None

    def removed_files(self) -> frozenset[str]:
        """The data files of the table that an overwrite takes away."""
        own = [m for m in self.kept if m.added_snapshot_id == self.snapshot_id and manifests.is_data(m)]
        return frozenset(path for manifest in own for path in manifests.removed_in(manifest, self.snapshot_id))

    def kept_on(self, metadata: TableMetadata) -> list[ManifestFile]:
        """Manifests of what stays of a table; of partitions that it leaves alone, others may have written some.

        Raises
        ------
        WriteConflictError
            Others wrote rows that the statement replaces, and has not seen.
        """
        seen, snapshot = self.seen, metadata.current_snapshot()
        if self.effect != OVERWRITE or seen is None:
            return self.kept
        if (snapshot.snapshot_id if snapshot else None) == seen.snapshot_id:
            return self.kept
        scope = self.changes.replaced
        if scope is None:
            raise self.conflict("another writer wrote rows meanwhile that this statement has not seen")
        # What was kept of the table as it was is no more than a try now.
        self._left_tries = True
        with step("lakehouse.keep"):
            return scopes.Rebase(self, scope, metadata).kept()

    # -- staging -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        with step("lakehouse.stage"):
            if self.effect == CREATE and self.store.pointer(self.path) is not None and not self._is_known():
                raise TableAlreadyExistsError(
                    f"Table {self.path} exists already.", path=self.path, transaction_id=self.transaction_id
                )
            facts = {
                "catalog": self.catalog.name,
                "location": self.place.location,
                "key": self.place.key,
                "last_sequence_number": self.document["last_sequence_number"],
            }
            since = float(self.document["since"])
            self.document["store"] = self.store.record_staged(self.name, self.path, facts, since)
            self._is_at_home = True

    def _is_known(self) -> bool:
        return self.store.staged(self.name) is not None

    def write(self, df: Any) -> None:
        with step("lakehouse.write"):
            files = writing.write(self, evolving.fitted(self, df) if self.document["by_name"] else df)
        with step("lakehouse.write_manifest"):
            own = self.work().add(self.spec.spec_id, files)
        nulls = {number for file in files for number, count in (file.null_value_counts or {}).items() if count}
        self.document["null_columns"] = sorted(nulls & {field.id for field in self.schema})
        self.document["counts"] = manifests.counts(files, [])
        self.document["added"] = [manifests.to_document(manifest) for manifest in own]
        self.document["changes"] = scopes.changes_of(self, self.scope, files).to_document()

    # -- preparing -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        if self.outcome() is Outcome.PUBLISHED:
            return
        if not self._is_known():
            raise self.gone()
        current = self.store.load(self.path)
        self._expect_tries()
        if "prepared" not in self.document:
            self._combine()
            self.document["prepared"] = True
        # All that can refuse it is asked now, before the decision; and what the publish needs is made now.
        with step("lakehouse.write_list"):
            self._plan_on(current)

    def persist(self) -> None:
        carried = [own_place(record) for name in self.document["carries"] if (record := self.store.staged(name))]
        data = [place.data for place in (self.place, *carried)]
        own = [m.manifest_path for m in self.added]
        own += [m.manifest_path for m in self.kept if self.place.is_own(m.manifest_path)]
        if self._plan is not None and self._plan.manifest_list is not None:
            own.append(self._plan.manifest_list)
        self.lakehouse.files.persist(*data, *own, below=self.store.settings.warehouse)

    def _expect_tries(self) -> None:
        """What another object of this participant prepared, in another process perhaps, is not known to this one."""
        if self._plan is None and "prepared" in self.document:
            self._left_tries = True

    def plan(self, current: Loaded | None) -> Plan:
        """How it is published on what its table is now: as prepared, unless another writer has come meanwhile.

        Raises
        ------
        WriteConflictError
        """
        self._expect_tries()
        return self._plan_on(current)

    def _plan_on(self, current: Loaded | None) -> Plan:
        if self._plan is None or not self._plan.is_for(current):
            self.drop_plan()
            self._plan = Plan(self, current)
            self._plan.write_list()
        return self._plan

    def drop_plan(self) -> None:
        """What was planned will surely not be published."""
        plan, self._plan = self._plan, None
        for file in [] if plan is None else plan.written():
            remove_file(self.lakehouse.files, file)

    def _combine(self) -> None:
        """What earlier statements of the transaction staged, and for an overwrite what stays of the table."""
        if self.scope is not None:
            with step("lakehouse.keep"):
                self._keep(self.scope)
        else:
            self.document["added"] += self.document["prior"] or []
            self.document["kept"] = self.document["base_kept"]
        files = [entry.data_file for entry in manifests.all_entries(self.added)]
        removed = {k: v for k, v in self.counts.items() if k.startswith(("deleted-", "removed-"))}
        self.document["counts"] = {**self.document["base_counts"], **removed, **manifests.counts(files, [])}

    def _keep(self, scope: OverwriteScope) -> None:
        """Leave out the files whose rows are replaced: of the table, and of what the transaction staged before."""
        seen = self.seen
        metadata = self.store.metadata(self.path, seen.document["metadata_location"]) if seen else None
        left, removed = self.work(metadata).keep(self._before(metadata), kept_files(self, scope))
        own = [m for m in left if m.added_snapshot_id == self.snapshot_id and m.added_files_count]
        kept = [m for m in left if m not in own]
        if is_whole(scope):
            # Nothing is left that another engine's deletes could speak of.
            kept = [m for m in kept if manifests.is_data(m)]
        self.document["added"] += [manifests.to_document(m) for m in own]
        self.document["kept"] = [manifests.to_document(m) for m in kept]
        self.document["counts"] = manifests.counts([], removed)

    def _before(self, metadata: TableMetadata | None) -> list[ManifestFile]:
        """Manifests of the state that the statement sees."""
        prior = self.prior or []
        kept = _manifests(self.document["base_kept"])
        if kept is not None:
            return [*prior, *kept]
        if metadata is None or self.effect in (CREATE, REPLACE):
            return prior
        assert self.seen is not None
        return [*prior, *manifests.manifests_of(metadata, self.seen.snapshot_id)]

    # -- what it can be published on -----------------------------------------------------------------------------

    def check_target(self, current: Loaded | None) -> None:
        """Refuse a table that is no longer what this statement can be published on.

        Raises
        ------
        WriteConflictError
        """
        seen = self.seen
        if seen is None:
            if current is not None:
                raise self.conflict("another writer created it meanwhile")
            return
        if current is None:
            raise self.conflict("it was dropped meanwhile")
        if str(current.metadata.table_uuid) != seen.document["uuid"]:
            raise self.conflict("it was dropped and created anew meanwhile")
        if self.effect == REPLACE and current.location != seen.document["metadata_location"]:
            raise self.conflict("another writer committed to it meanwhile, which this would undo")
        if not is_ancestor(current.metadata, seen.snapshot_id):
            raise self.conflict("it was replaced or rolled back meanwhile")
        if self.effect in (APPEND, OVERWRITE):
            self._check_layout(current.metadata)

    def _check_layout(self, metadata: TableMetadata) -> None:
        if metadata.specs().get(self.spec.spec_id) != self.spec:
            raise self.conflict("its partitioning was changed meanwhile")
        if not any(field.id in metadata.schema().field_ids for field in self.schema):
            raise self.conflict("none of the columns that were written is there any more")

    def conflict(self, why: str) -> WriteConflictError:
        """The error of a lost race."""
        return WriteConflictError(
            f"{self.path} was not written: {why}.",
            path=self.path,
            transaction_id=self.transaction_id,
            hint="Run the statement again: it will see the new state.",
        )

    def gone(self) -> TransactionAborted:
        """The error for what an abort or ``clean`` has removed."""
        return TransactionAborted(
            f"What was staged for {self.path} is gone: the statement was rolled back meanwhile.",
            path=self.path,
            transaction_id=self.transaction_id,
        )

    # -- after the decision --------------------------------------------------------------------------------------

    def commit(self) -> None:
        self.lakehouse.publish_group([self])

    def published_as(self, after: Loaded) -> None:
        """Remember that this very object has published."""
        self._published, self._plan = after, None

    def leave_tries(self) -> None:
        """Remember that a try has left files: whether it went through is not known yet."""
        self._left_tries, self._plan = True, None

    def outcome(self) -> Outcome:
        # Where the record of a prepared one is gone, this may be an older copy of the catalog.
        return self._told() or (Outcome.UNKNOWN if "prepared" in self.document else Outcome.NOT_PUBLISHED)

    def _told(self) -> Outcome | None:
        """What the Iceberg catalog says; None where it knows nothing of this participant."""
        try:
            self.check_identity()
            with step("lakehouse.outcome"):
                found = self.store.staged(self.name, settled=True)
            if found is not None:
                return Outcome.PUBLISHED if found.state == PUBLISHED else Outcome.NOT_PUBLISHED
            return Outcome.PUBLISHED if self._is_in_history() else None
        except (CatalogError, ConfigurationError, OSError, RuntimeError):
            return Outcome.UNKNOWN

    def check_identity(self) -> None:
        """Refuse to work on what was staged in another Iceberg catalog than the one that is open here.

        Raises
        ------
        ConfigurationError
        """
        theirs = self.document.get("store")
        if theirs is None or self._is_at_home:
            return
        ours = self.store.identity()
        if ours not in (None, theirs):
            raise ConfigurationError(
                f"Transaction {self.transaction_id} wrote {self.path} in another Iceberg catalog ({theirs}) than that "
                f"of {self.store.settings.display_uri} ({ours}). Nothing was touched.",
                path=self.path,
                transaction_id=self.transaction_id,
                hint=f"Run it with the uri, warehouse and catalog_name of {self.catalog.name} in the job.",
            )
        self._is_at_home = True

    def _is_in_history(self) -> bool:
        """Whether a snapshot of the table is this participant's; records end with their retention."""
        current = self.store.load(self.path)
        return current is not None and find_published(current.metadata, self.name) is not None

    def abort(self) -> None:
        outcome = self._told()  # Nothing: an earlier abort has removed it all.
        if outcome is Outcome.PUBLISHED:
            return
        if outcome is Outcome.UNKNOWN:
            raise CatalogError(
                f"The Iceberg catalog {self.store.settings.display_uri} does not say if {self.path} was published: "
                "nothing was removed.",
                path=self.path,
                transaction_id=self.transaction_id,
                left_behind=[self.place.data],
            )
        self.drop_plan()
        self.lakehouse.remove_staged(self.name)
        self.document.pop("prepared", None)

    def finish(self) -> None:
        with step("lakehouse.tidy"):
            self._remove_tries()
            for name in self.names:
                self.store.settle(name)
            self._remove_old_metadata()

    def _remove_old_metadata(self) -> None:
        published = self._published_as()
        if published is not None:
            remove_old_metadata(self.store, self.lakehouse.files, self.path, published.metadata)

    def _published_as(self) -> Loaded | None:
        """The table as this participant left it; None where later commits have removed that metadata file."""
        if self._published is not None:
            return self._published
        record = self.store.staged(self.name)
        location = record.metadata_location if record else None
        try:
            return None if location is None else Loaded(location, self.store.metadata(self.path, location))
        except CatalogError:
            return None

    def _remove_tries(self) -> None:
        """Metadata of tries that did not go through; those of this object's own were removed at once.

        Where it took the files of earlier statements over, what those had planned for themselves is left.
        """
        carried = [self.store.staged(name) for name in self.document["carries"]]
        places = [own_place(record) for record in carried if record is not None]
        if self._published is None or self._left_tries:
            places.append(self.place)
        if not places:
            return
        found = self._published_as()
        snapshot = None if found is None else found.metadata.snapshot_by_id(self.snapshot_id)
        if found is None or snapshot is None:
            return
        listed = snapshot.manifests(self.store.io(snapshot.manifest_list))
        published = {found.location, snapshot.manifest_list, *(m.manifest_path for m in listed)}
        for place in places:
            place.remove_tries(self.lakehouse.files, published)

    def compensate(self) -> bool:
        return self.lakehouse.compensate_group([self])

    def published_move(self) -> Move | None:
        """How it was published, to be undone; None where the table was changed since."""
        current = self.store.load(self.path)
        snapshot = None if current is None else current.metadata.current_snapshot()
        if current is None or snapshot is None or snapshot.snapshot_id != self.snapshot_id:
            return None
        if self.effect == CREATE:
            return Move(self.path, self.names, None, current)
        location = current.metadata.metadata_log[-1].metadata_file
        before = self.store.metadata(self.path, location)
        if before.snapshot_by_id(self.snapshot_id) is not None:
            return None  # It was altered since.
        return Move(self.path, self.names, Loaded(location, before), current)

    def undone(self) -> None:
        """What it published is no more than a try now."""
        self._published = None
        self.leave_tries()

    def left_behind(self) -> list[str]:
        found = self.store.staged(self.name)
        left = self.place.left(self.lakehouse.files)
        return left or ([self.place.data] if found is not None and found.state != PUBLISHED else [])

    # -- reading inside the transaction --------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        return self.lakehouse.staged_source(self)

    def staged_manifests(self) -> tuple[TableMetadata | None, list[ManifestFile]]:
        """The table as this statement has left it: its metadata at the start, and all manifests."""
        seen = self.seen
        metadata = self.store.metadata(self.path, seen.document["metadata_location"]) if seen else None
        if self.effect == APPEND and metadata is not None and seen is not None:
            return metadata, [*self.added, *manifests.manifests_of(metadata, seen.snapshot_id)]
        return metadata, [*self.added, *self.kept]


def _manifests(documents: Any) -> list[ManifestFile] | None:
    return None if documents is None else [manifests.from_document(document) for document in documents]

"""The participant of a lakehouse catalog: its staged files and manifests, and the outcome of its publish.

Its document holds::

    path, purpose, transaction_id, ordinal, since        target and identity of the statement
    effect                                               create, replace, append or overwrite
    key, location, uuid                                  where it stages; for a new table also the table's identity
    snapshot_id                                          id of the snapshot that it will publish
    last_sequence_number                                 of the table when the statement began
    seen                                                 the table when the statement began; None if there was none
    schema, highest_field_id, spec, sort_order           definition with which its files are written
    seen_size                                            bytes and rows of the table when the statement began
    anew                                                 whether its transaction has dropped the table before
    earlier_schemas                                      with which the transaction has written rows, before it altered
    property_changes                                     the table; and what that does to properties, None removes one
    by_name                                              whether columns of the rows are matched by name
    properties                                           of the table that is created or replaced
    overwrite                                            scope of an INSERT OVERWRITE
    prior                                                manifests staged by an earlier statement of the transaction
    base_kept, base_counts, base_changes                 what that statement kept, removed and did to partitions
    changes                                              what this statement does to partitions; set by the write
    carries                                              participants whose files become part of this snapshot
    store                                                identity of the Iceberg catalog; set by the staging
    added, kept, counts                                  manifests and counts; set by the write
    null_columns                                         ids of the fields that have NULL in rows, or may have
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata

from twophase.catalog import SupportsGroupPublish, TwoPhaseCatalogTable
from twophase.catalog.reading import ReadSource
from twophase.catalogs.lakehouse import definitions, earlier_states, manifests, schema_on_write, scopes, writing
from twophase.catalogs.lakehouse.layout import remove_file
from twophase.catalogs.lakehouse.member import Member, manifests_in
from twophase.catalogs.lakehouse.overwriting import kept_files
from twophase.catalogs.lakehouse.plan import KEEP, Plan
from twophase.catalogs.lakehouse.planning import is_whole
from twophase.catalogs.lakehouse.publish_lookup import own_place
from twophase.catalogs.lakehouse.reachable import remove_old_metadata
from twophase.catalogs.lakehouse.reading import ManifestReader, State
from twophase.catalogs.lakehouse.rollback import remove_staged
from twophase.catalogs.lakehouse.snapshots import (
    APPEND,
    CREATE,
    REPLACE,
    find_published,
)
from twophase.catalogs.lakehouse.store import PUBLISHED, Loaded, Move, Store
from twophase.errors import (
    CatalogError,
    ConfigurationError,
    TableAlreadyExistsError,
)
from twophase.failpoints import Failpoint, step
from twophase.model import Outcome, OverwriteScope
from twophase.schema import to_iceberg
from twophase.transactions.failures import of_another_store

STAGE = Failpoint("lakehouse.stage")
WRITE = Failpoint("lakehouse.write")
WRITE_MANIFEST = Failpoint("lakehouse.write_manifest")
WRITE_LIST = Failpoint("lakehouse.write_list")
OUTCOME = Failpoint("lakehouse.outcome")
CLEAN_UP = Failpoint("lakehouse.clean_up")


class LakehouseParticipant(Member):
    """The participant for one statement on one Iceberg table."""

    #: The table as published by this object.
    _published: Loaded | None = None
    #: Whether the open Iceberg catalog was verified to be the one in which it was staged.
    _is_at_home = False
    #: The most recent publish plan.
    _plan: Plan | None = None

    # -- staging -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        with step(STAGE):
            if self.effect == CREATE and self.store.pointer(self.path) is not None and not self._is_known():
                raise TableAlreadyExistsError(
                    f"Table {self.path} already exists.", path=self.path, transaction_id=self.transaction_id
                )
            facts = {
                "catalog": self.catalog.name,
                "location": self.place.location,
                "key": self.place.key,
                "uuid": self.document.get("uuid"),
                "is_new": self.effect == CREATE,
                "last_sequence_number": self.document["last_sequence_number"],
            }
            since = float(self.document["since"])
            self.document["store"] = self.store.record_staged(self.name, self.path, facts, since)
            self._is_at_home = True

    def _is_known(self) -> bool:
        return self.store.staged(self.name) is not None

    def write(self, df: Any) -> None:
        with step(WRITE):
            files = writing.write(self, schema_on_write.fitted(self, df) if self.document["by_name"] else df)
        with step(WRITE_MANIFEST):
            seen = self._metadata_seen()
            work = replace(self.work(), earlier=seen.schemas if seen else ())
            own = work.add(self.spec.spec_id, files)
        counts = [file.null_value_counts or {} for file in files]  # Of values, and as far as the table wants any.
        nulls = {node.id for node in self.schema.walk() if node.nullable and any(c.get(node.id) != 0 for c in counts)}
        self.document["null_columns"] = sorted(nulls.union(self.document["null_columns"]))
        self.document["counts"] = manifests.counts(files, [])
        self.document["added"] = [manifests.to_document(manifest) for manifest in own]
        self.document["changes"] = scopes.changes_of(self, self.scope, files).to_document()

    def adopt(self, *, kept: list[ManifestFile], counts: Mapping[str, str], **definition: Any) -> None:
        """Stage existing manifests as the rows of a table that is replaced, instead of :meth:`write`.

        Parameters
        ----------
        kept : list of pyiceberg.manifest.ManifestFile
        counts : mapping of str to str
            For the snapshot's summary.
        **definition
            ``schema``, ``highest_field_id``, ``spec``, ``sort_order`` and ``properties``, as in the document; the table
            has no other properties then.
        """
        with step(WRITE):
            self.document.update(definition)
            self.document["anew"] = True
            self.document["base_kept"] = [manifests.to_document(manifest) for manifest in kept]
            self.document["base_counts"] = dict(counts)
        for name in ("schema", "spec", "sort_order"):
            self.__dict__.pop(name, None)  # Cached from the document of before.

    # -- preparing -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        if self.outcome() is Outcome.PUBLISHED:
            return
        if not self._is_known():
            raise self.gone()
        current = self.built_on(self.store.load(self.path))
        self._expect_tries()
        if "prepared" not in self.document:
            self._combine()
            self.document["prepared"] = True
        # Everything that can refuse the publish is checked, and its files are written, before the decision.
        with step(WRITE_LIST):
            self._plan_on(current)

    def persist(self) -> None:
        carried = [own_place(record) for name in self.document["carries"] if (record := self.store.staged(name))]
        data = [place.data for place in (self.place, *carried)]
        own = self.own_manifests()
        if self._plan is not None and self._plan.manifest_list is not None:
            own.append(self._plan.manifest_list)
        self.lakehouse.files.persist(*data, *own, below=self.store.settings.warehouse)

    def own_manifests(self) -> list[str]:
        """The manifests that its transaction has written, of what is added and of what is kept."""
        kept = (m.manifest_path for m in self.kept if self.place.is_own(m.manifest_path))
        return [*(m.manifest_path for m in self.added), *kept]

    def _expect_tries(self) -> None:
        """Expect files of earlier tries if another object, perhaps in another process, has prepared it."""
        if self._plan is None and "prepared" in self.document:
            self.left_tries = True

    def built_on(self, current: Loaded | None) -> Loaded | None:
        """The table on which it is published, given the one that has its name: as a rule that is the one.

        Raises
        ------
        WriteConflictError
            It has another table than the statement saw.
        """
        return current

    def plan(self, current: Loaded | None) -> Plan:
        """Return the plan to publish on the current table: the prepared one, unless another writer has committed since.

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
        """Discard the plan, which will certainly not be published, and remove its files."""
        plan, self._plan = self._plan, None
        for file in [] if plan is None else plan.written():
            remove_file(self.lakehouse.files, file)

    def _combine(self) -> None:
        """Take over what earlier statements staged; for an overwrite, determine what is kept of the table."""
        if self.scope is not None:
            with step(KEEP):
                self._keep(self.scope)
        else:
            self.document["added"] += self.document["prior"] or []
            self.document["kept"] = self.document["base_kept"]
        files = [entry.data_file for entry in manifests.all_entries(self.io, self.added)]
        removed = {k: v for k, v in self.counts.items() if k.startswith(("deleted-", "removed-"))}
        self.document["counts"] = {**self.document["base_counts"], **removed, **manifests.counts(files, [])}

    def _keep(self, scope: OverwriteScope) -> None:
        """Leave out the files that are replaced, both of the table and of earlier statements of the transaction."""
        metadata = self._metadata_seen()
        work = self.work(metadata)
        left, removed = work.keep(self._before(metadata), kept_files(self, scope, work.specs))
        own = [m for m in left if m.added_snapshot_id == self.snapshot_id and m.added_files_count]
        kept = [m for m in left if m not in own]
        if is_whole(scope):
            # No files are left to which another engine's delete files could apply.
            kept = [m for m in kept if manifests.is_data(m)]
        self.document["added"] += [manifests.to_document(m) for m in own]
        self.document["kept"] = [manifests.to_document(m) for m in kept]
        self.document["counts"] = manifests.counts([], removed)

    def _metadata_seen(self) -> TableMetadata | None:
        """The metadata of the table when the statement began; None if it did not exist."""
        return self.store.metadata(self.path, self.seen.document["metadata_location"]) if self.seen else None

    def _before(self, metadata: TableMetadata | None) -> list[ManifestFile]:
        """Manifests of the state that is visible to the statement."""
        prior = self.prior or []
        kept = manifests_in(self.document["base_kept"])
        if kept is not None:
            return [*prior, *kept]
        if metadata is None or self.effect in (CREATE, REPLACE):
            return prior
        assert self.seen is not None
        return [*prior, *manifests.manifests_of(self.io, metadata, self.seen.snapshot_id)]

    def replaced_state(self) -> dict[str, Any]:
        # For an append it is only what was there lately: others may still be published in between.
        assert self._plan is not None
        return earlier_states.replaced_state(self._plan.current)

    # -- after the decision --------------------------------------------------------------------------------------

    def commit(self) -> None:
        assert isinstance(self.catalog, SupportsGroupPublish)
        self.catalog.publish_group([self])

    def published_as(self, after: Loaded) -> None:
        """Note that this object has published."""
        self._published, self._plan = after, None

    def leave_tries(self) -> None:
        """Note that a try with an unknown outcome has left files."""
        self.left_tries, self._plan = True, None

    def outcome(self) -> Outcome:
        # If the record of a prepared participant is gone, this may be an older copy of the catalog.
        return self._recorded_outcome() or (Outcome.UNKNOWN if "prepared" in self.document else Outcome.NOT_PUBLISHED)

    def _recorded_outcome(self) -> Outcome | None:
        """The outcome according to the Iceberg catalog; None if it has no trace of this participant."""
        try:
            self.check_identity()
            with step(OUTCOME):
                found = self.store.staged(self.name, settled=True)
            if found is not None:
                return Outcome.PUBLISHED if found.state == PUBLISHED else Outcome.NOT_PUBLISHED
            return Outcome.PUBLISHED if self._is_in_history() else None
        except (CatalogError, ConfigurationError, OSError, RuntimeError):
            return Outcome.UNKNOWN

    def check_identity(self) -> None:
        """Refuse to continue if the open Iceberg catalog is not the one in which this was staged.

        Raises
        ------
        ConfigurationError
        """
        if self.document.get("store") is None or self._is_at_home:
            return
        check_store(self, self.store)
        self._is_at_home = True

    def _is_in_history(self) -> bool:
        """Return True if the table has a snapshot of this participant; records are removed after their retention."""
        current = self.store.load(self.path)
        return current is not None and find_published(current.metadata, self.name) is not None

    def abort(self) -> None:
        outcome = self._recorded_outcome()  # None: an earlier abort has removed everything.
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
        remove_staged(self.lakehouse, self.name)
        self.document.pop("prepared", None)

    def finish(self) -> None:
        with step(CLEAN_UP):
            self._remove_tries()
            for name in self.names:
                self.store.settle(name)
            if (published := self._published_as()) is not None:
                remove_old_metadata(self.store, self.lakehouse.files, self.path, published.metadata)

    def _published_as(self) -> Loaded | None:
        """The table as this participant published it; None if later commits have removed that metadata file."""
        if self._published is not None:
            return self._published
        record = self.store.staged(self.name)
        location = record.metadata_location if record else None
        try:
            return None if location is None else Loaded(location, self.store.metadata(self.path, location))
        except CatalogError:
            return None

    def _remove_tries(self) -> None:
        """Remove the metadata files of failed tries; those of this object itself were removed immediately.

        If it has taken over the files of earlier statements, the metadata that those had planned is removed, too.
        """
        carried = [self.store.staged(name) for name in self.document["carries"]]
        places = [own_place(record) for record in carried if record is not None]
        if self._published is None or self.left_tries:
            places.append(self.place)
        if not places:
            return
        found = self._published_as()
        snapshot = None if found is None else found.metadata.snapshot_by_id(self.snapshot_id)
        if found is None or snapshot is None:
            return
        listed = manifests.manifests_of(self.io, found.metadata, self.snapshot_id)
        published = {found.location, snapshot.manifest_list, *(m.manifest_path for m in listed)}
        for place in places:
            place.remove_tries(self.lakehouse.files, published)

    def compensate(self) -> bool:
        assert isinstance(self.catalog, SupportsGroupPublish)
        return self.catalog.compensate_group([self])

    def published_move(self) -> Move | None:
        """The move that undoes its publish; None if the table has changed since."""
        current = self.store.load(self.path)
        snapshot = None if current is None else current.metadata.current_snapshot()
        if current is None or snapshot is None or snapshot.snapshot_id != self.snapshot_id:
            return None
        if self.effect == CREATE:
            # With a log it has been altered since, or got a branch.
            return None if current.metadata.metadata_log else Move(self.path, self.names, None, current)
        location = current.metadata.metadata_log[-1].metadata_file
        before = self.store.metadata(self.path, location)
        if before.snapshot_by_id(self.snapshot_id) is not None:
            return None  # It has been altered since.
        return Move(self.path, self.names, Loaded(location, before), current)

    def undone(self) -> None:
        """Note that its publish was undone, so its published files are leftovers of a try."""
        self._published = None
        self.leave_tries()

    def left_behind(self) -> list[str]:
        found = self.store.staged(self.name)
        left = self.place.left(self.lakehouse.files)
        return left or ([self.place.data] if found is not None and found.state != PUBLISHED else [])

    # -- reading inside the transaction --------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        metadata, found = self.staged_manifests()
        if manifests.has_deletes(found):
            return None
        schema = to_iceberg(self.schema)
        specs = {self.spec.spec_id: self.spec} | (dict(metadata.specs()) if metadata else {})
        schemas = (schema, *self.earlier_schemas, *(metadata.schemas if metadata else ()))
        state = State(
            self.io,
            self.path,
            self.name,
            self.place.location,
            schema,
            specs,
            schemas,
            tuple(found),
            self.schema.highest_field_id,
        )
        facts = (schema, state.highest_field_id, self.spec, self.sort_order, self.properties)
        shown = definitions.described(*facts)
        return ReadSource("parquet", definition=shown, files=ManifestReader(state))

    def staged_manifests(self) -> tuple[TableMetadata | None, list[ManifestFile]]:
        """The staged state of the table: its metadata at the start of the statement, and all manifests."""
        seen = self.seen
        metadata = self.store.metadata(self.path, seen.document["metadata_location"]) if seen else None
        if self.effect == APPEND and metadata is not None and seen is not None:
            return metadata, [*self.added, *manifests.manifests_of(self.io, metadata, seen.snapshot_id)]
        return metadata, [*self.added, *self.kept]


def check_store(participant: TwoPhaseCatalogTable, store: Store) -> None:
    """Refuse to continue with a participant that was staged in another Iceberg catalog.

    Parameters
    ----------
    participant : TwoPhaseCatalogTable
    store : Store
        The open one.

    Raises
    ------
    ConfigurationError
    """
    theirs, ours = participant.document.get("store"), store.identity()
    if theirs is not None and ours not in (None, theirs):
        raise of_another_store(
            participant,
            theirs=theirs,
            ours=str(ours),
            where=store.settings.display_uri,
            options="uri, warehouse and catalog_name",
        )

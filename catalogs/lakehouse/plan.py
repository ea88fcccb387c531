"""The next metadata of a table: the effect of one participant on the current table at the publish.

A plan is not final: a publish may be tried several times, each time on the then current table. An append is rebased on
concurrent commits; everything else is refused if the table's rows, or the table itself, have changed. RFC-82 decides on
the schema at each try.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from pyiceberg.manifest import ManifestFile
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)

from twophase.catalogs.lakehouse import (
    alterations,
    definitions,
    manifest_lists,
    manifest_merging,
    manifests,
    scopes,
    sorting,
)
from twophase.catalogs.lakehouse.member import Member
from twophase.catalogs.lakehouse.snapshots import (
    APPEND,
    CARRIED,
    CREATE,
    OVERWRITE,
    PARTICIPANT,
    REPLACE,
    TRANSACTION_ID,
    current_id,
    new_metadata,
)
from twophase.catalogs.lakehouse.store import Loaded
from twophase.errors import ConcurrentSchemaEvolutionError
from twophase.failpoints import Failpoint, step
from twophase.schema import Field, Schema, to_iceberg

KEEP = Failpoint("lakehouse.keep")
MERGE = Failpoint("lakehouse.merge")
_OPERATIONS = {
    CREATE: Operation.APPEND,
    REPLACE: Operation.OVERWRITE,
    APPEND: Operation.APPEND,
    OVERWRITE: Operation.OVERWRITE,
}


class Plan:
    """One try to publish: the next metadata, and the files that it needs.

    Parameters
    ----------
    participant : Member
    current : Loaded or None
        The current table.

    Raises
    ------
    WriteConflictError
        The statement can no longer be published on the table.
    """

    def __init__(self, participant: Member, current: Loaded | None) -> None:
        self.participant = participant
        self.current = current
        #: The manifests in the manifest list, once it is written.
        self._listed: list[ManifestFile] = []
        #: Location of the manifest list, once it is written.
        self.manifest_list: str | None = None
        participant.check_target(current)
        self._resolve()
        self._kept = _kept_on(participant, self._base)

    # -- the base metadata ---------------------------------------------------------------------------------------

    def _resolve(self) -> None:
        """Determine the metadata before the snapshot: definition and schema."""
        member = self.participant
        if member.effect == CREATE:
            self._base: TableMetadata = _new_metadata(member)
            self._updates: list[TableUpdate] = _with_earlier(member, self._base, to_iceberg(member.schema))
            return
        assert self.current is not None
        self._base = self.current.metadata
        self._updates = _replaced(member, self._base) if member.effect == REPLACE else self._evolved(member)

    def _evolved(self, member: Member) -> list[TableUpdate]:
        """The schema changes by RFC-82, from the schema at the start, the one at validation, and the writer's."""
        assert member.seen is not None
        now = definitions.schema_of(self._base)
        resolution = member.lakehouse.store.settings.strategy.resolve(
            member.seen.schema, now, member.schema, table=str(member.path)
        )
        _refuse_other_ids(member, resolution.writer_ids)
        _refuse_reused_ids(member, self._base)
        _refuse_nulls(member, resolution.schema)
        properties = alterations.property_updates(self._base, member.property_changes)
        if resolution.schema.same_as(now) and not member.earlier_schemas:
            return properties
        _refuse_unsorted(member, self._base, resolution.schema)
        return [*_with_earlier(member, self._base, to_iceberg(resolution.schema)), *properties]

    def is_for(self, current: Loaded | None) -> bool:
        """Return True if the table is still the one for which the plan was made; metadata files are immutable."""
        if current is None or self.current is None:
            return current is self.current
        return current.location == self.current.location

    # -- the result ----------------------------------------------------------------------------------------------

    def write_list(self) -> None:
        """Write the manifest list, once: it depends only on the table for which the plan was made."""
        if self.manifest_list is not None:
            return
        member, parent = self.participant, self._parent(self._prepared)
        location = member.place.manifest_list(member.snapshot_id)
        self._listed = _merged(member, self._manifests(), self._prepared)
        manifest_lists.write(
            member.io.new_output(location),
            self._listed,
            snapshot_id=member.snapshot_id,
            parent_id=None if parent is None else parent.snapshot_id,
            sequence_number=self._prepared.next_sequence_number(),
            compression=manifests.codec(member.properties),
        )
        self.manifest_list = location

    def written(self) -> list[str]:
        """Files of this plan that no other plan needs."""
        member = self.participant
        prepared = {manifest.manifest_path for manifest in (*member.added, *member.kept)}
        made = {manifest.manifest_path for manifest in (*self._kept, *self._listed)}
        own = sorted(path for path in made if member.place.is_own(path))
        lists = [] if self.manifest_list is None else [self.manifest_list]
        return [*(path for path in own if path not in prepared), *lists]

    def updates(self) -> list[TableUpdate]:
        """The changes to the table; the last ones add the snapshot, with the current time."""
        assert self.manifest_list is not None
        snapshot = self._snapshot(self._prepared, self.manifest_list)
        ref = SetSnapshotRefUpdate(ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=snapshot.snapshot_id)
        return [*self._updates, AddSnapshotUpdate(snapshot=snapshot), ref]

    @cached_property
    def _prepared(self) -> TableMetadata:
        """The metadata before the snapshot."""
        return self.apply(self._updates)

    def apply(self, updates: list[TableUpdate]) -> TableMetadata:
        """Apply changes to the table as PyIceberg's ``update_table_metadata`` does, without its deep copy.

        Metadata is never changed in place, so old and new may share unchanged parts.
        """
        if not updates:
            return self._base
        found, context = self._base, _TableMetadataUpdateContext()
        for update in updates:
            found = _apply_table_update(update, found, context)
        found.spec().check_compatible(found.schema())
        found.sort_order().check_compatible(found.schema())
        if self.current is None:
            return found
        return _update_table_metadata_log(found, self.current.location, self._base.last_updated_ms)

    def _manifests(self) -> list[ManifestFile]:
        member = self.participant
        appends = member.effect == APPEND
        # Newest first, as in Iceberg.
        return [
            *member.added,
            *(manifests.manifests_of(member.io, self._base, current_id(self._base)) if appends else self._kept),
        ]

    def _parent(self, metadata: TableMetadata) -> Snapshot | None:
        """The parent snapshot; None for a replaced table, whose history continues with a new lineage of snapshots."""
        return None if self.participant.effect == REPLACE else metadata.current_snapshot()

    def _snapshot(self, metadata: TableMetadata, manifest_list: str) -> Snapshot:
        member = self.participant
        parent = self._parent(metadata)
        stamps = {TRANSACTION_ID: member.transaction_id, PARTICIPANT: member.name}
        if carried := member.document["carries"]:
            stamps[CARRIED] = ",".join(carried)
        summary = Summary(operation=_OPERATIONS[member.effect], **member.counts, **stamps)
        return Snapshot(
            snapshot_id=member.snapshot_id,
            parent_snapshot_id=None if parent is None else parent.snapshot_id,
            sequence_number=metadata.next_sequence_number(),
            manifest_list=manifest_list,
            summary=update_snapshot_summaries(summary, parent.summary if parent else None),
            schema_id=metadata.current_schema_id,
        )


def _merged(member: Member, found: list[ManifestFile], metadata: TableMetadata) -> list[ManifestFile]:
    """The manifests of its snapshot, with small ones merged; ``metadata`` is that before the snapshot."""
    if member.effect not in (APPEND, OVERWRITE):
        return found
    work = replace(member.work(metadata, rebased=True), schema=metadata.schema())
    with step(MERGE):
        merged = manifest_merging.merged(work, found)
    # Merged manifests are no longer listed, so their files are leftovers.
    member.left_tries = member.left_tries or len(merged) < len(found)
    return merged


def _kept_on(member: Member, metadata: TableMetadata) -> list[ManifestFile]:
    """The manifests that are kept, including those of concurrent writes to partitions that are not replaced.

    Raises
    ------
    WriteConflictError
        Others wrote rows that the statement replaces and has not seen.
    """
    seen = member.seen
    if member.effect != OVERWRITE or seen is None or current_id(metadata) == seen.snapshot_id:
        return member.kept
    scope = member.changes.replaced
    if scope is None:
        raise member.conflict("another writer wrote rows meanwhile that this statement has not seen")
    # The manifests that were kept of the earlier state are leftovers of a try now.
    member.left_tries = True
    with step(KEEP):
        return scopes.Rebase(member, scope, metadata).kept()


def _new_metadata(member: Member) -> TableMetadata:
    return new_metadata(
        member.place.location,
        next(iter(member.earlier_schemas), to_iceberg(member.schema)),
        member.spec,
        member.properties,
        str(member.document["uuid"]),
        member.sort_order,
    )


def _replaced(member: Member, base: TableMetadata) -> list[TableUpdate]:
    """A new definition for a replaced table; properties that the statement does not set are kept."""
    updates: list[TableUpdate] = _with_earlier(member, base, to_iceberg(member.schema))
    if member.spec.spec_id not in base.specs():
        updates.append(AddPartitionSpecUpdate(spec=member.spec))
    if member.spec.spec_id != base.default_spec_id:
        updates.append(SetDefaultSpecUpdate(spec_id=member.spec.spec_id))
    updates += sorting.updates(base, to_iceberg(member.schema), member.sort_order)
    if member.properties:
        updates.append(SetPropertiesUpdate(updates=dict(member.properties)))
    if removed := _removed(member, base):
        updates.append(RemovePropertiesUpdate(removals=removed))
    if MAIN_BRANCH in base.refs:
        updates.append(RemoveSnapshotRefUpdate(ref_name=MAIN_BRANCH))
    return updates


def _removed(member: Member, base: TableMetadata) -> list[str]:
    """Properties that a replaced table does not keep: all, if its transaction has dropped the table, or restores it."""
    if member.document.get("anew"):
        return sorted(base.properties.keys() - member.properties.keys())
    unset = [key for key, value in member.property_changes.items() if value is None]
    # It maps fields of the old schema.
    return sorted(key for key in {definitions.NAME_MAPPING, *unset} if key in base.properties)


def _with_earlier(member: Member, base: TableMetadata, schema: IcebergSchema) -> list[TableUpdate]:
    """Make a schema the current one, and add those with which its transaction has written rows before.

    A reader finds in them under which names the columns of a file may be stored.
    """
    known, updates = list(base.schemas), list[TableUpdate]()
    number = base.current_schema_id
    for wanted in (*member.earlier_schemas, schema):
        same = next((old for old in known if old == wanted), None)
        number = max(old.schema_id for old in known) + 1 if same is None else same.schema_id
        if same is None:
            known.append(wanted.model_copy(update={"schema_id": number}))
            updates.append(AddSchemaUpdate(schema_=known[-1]))
    return updates if number == base.current_schema_id else [*updates, SetCurrentSchemaUpdate(schema_id=number)]


def _refuse_other_ids(member: Member, writer_ids: Mapping[int, int]) -> None:
    if writer_ids:
        raise ConcurrentSchemaEvolutionError(
            f"{member.path} was not written: another writer added the same columns under other ids.",
            path=member.path,
            transaction_id=member.transaction_id,
            hint="Run the statement again: its files will carry the table's ids.",
        )


def _refuse_reused_ids(member: Member, base: TableMetadata) -> None:
    """Refuse files with a column that the transaction has added and dropped, under an id that another writer has taken.

    The strategy sees the last schema only, in which the column is not; readers would find its values in the other's.
    """
    assert member.seen is not None
    known = member.seen.schema.highest_field_id
    written = {number for schema in member.earlier_schemas for number in schema.field_ids}
    if any(known < number <= base.last_column_id for number in written - member.schema.field_ids):
        raise member.conflict("another writer has added columns, under the ids of columns that this added and dropped")


def _refuse_unsorted(member: Member, base: TableMetadata, schema: Schema) -> None:
    """Refuse to drop a column by which the files have been sorted since."""
    lost = alterations.lost_key(base.schema(), base.sort_order(), schema)
    if lost is not None:
        raise member.conflict(f"its files are sorted by {lost} now, which this drops")


def _refuse_nulls(member: Member, schema: Schema) -> None:
    """Refuse rows that have NULL, or may have it, in a field that has become NOT NULL after they were written."""
    for node in schema.walk() if member.added else ():
        if not node.nullable and _may_be_null(member, schema, node):
            raise ConcurrentSchemaEvolutionError(
                f"{member.path} was not written: {schema.name_of(node.id)} became NOT NULL meanwhile, and the rows "
                "have NULL there, or may have.",
                path=member.path,
                transaction_id=member.transaction_id,
                hint="Run the statement again: its rows will be checked.",
            )


def _may_be_null(member: Member, schema: Schema, node: Field) -> bool:
    if node.id in member.schema:
        return node.id in member.document["null_columns"]
    # Where something around it is new and may be NULL, the rows have NULL there.
    around = schema.ancestors(node.id)
    return all(above.id in member.schema or not above.nullable for above in around)

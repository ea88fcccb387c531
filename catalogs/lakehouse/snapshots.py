"""The next metadata of a table: what one participant makes of the table as it stands at the publish.

Nothing here is final: a publish may be tried several times, each time on what the table has become. An append goes
on what others committed meanwhile; all else is refused when the table's rows, or the table itself, changed. RFC-82
decides on the schema at each try.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries
from pyiceberg.table.sorting import SortOrder
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

from twophase.catalogs.lakehouse import definitions, manifests, sorting
from twophase.errors import ConcurrentSchemaEvolutionError
from twophase.schema import Schema, from_iceberg, to_iceberg

if TYPE_CHECKING:
    from twophase.catalogs.lakehouse.participant import LakehouseParticipant
    from twophase.catalogs.lakehouse.store import Loaded

CREATE, REPLACE, APPEND, OVERWRITE = "create", "replace", "append", "overwrite"
TRANSACTION_ID = "twophase.transaction-id"
PARTICIPANT = "twophase.participant"
#: Participants of the same transaction whose files came with it, with commas.
CARRIED = "twophase.carried-participants"
_OPERATIONS = {
    CREATE: Operation.APPEND,
    REPLACE: Operation.OVERWRITE,
    APPEND: Operation.APPEND,
    OVERWRITE: Operation.OVERWRITE,
}


@dataclass(frozen=True)
class Seen:
    """A table as a statement found it."""

    document: Mapping[str, Any]

    @classmethod
    def document_of(cls, loaded: Loaded) -> dict[str, Any]:
        """What a statement remembers of its target."""
        metadata = loaded.metadata
        snapshot = metadata.current_snapshot()
        return {
            "uuid": str(metadata.table_uuid),
            "metadata_location": loaded.location,
            "snapshot_id": snapshot.snapshot_id if snapshot else None,
            "schema": iceberg_document(metadata.schema()),
            "last_column_id": metadata.last_column_id,
        }

    @property
    def snapshot_id(self) -> int | None:
        found: int | None = self.document["snapshot_id"]
        return found

    @cached_property
    def schema(self) -> Schema:
        return from_iceberg(
            IcebergSchema.model_validate(self.document["schema"]), highest_field_id=self.document["last_column_id"]
        )


def iceberg_document(schema: IcebergSchema | PartitionSpec | SortOrder) -> dict[str, Any]:
    """A schema, a spec or a sort order as plain JSON."""
    found: dict[str, Any] = json.loads(schema.model_dump_json(by_alias=True))
    return found


class Plan:
    """One try: the metadata that would follow, and the files that it needs.

    Parameters
    ----------
    participant : LakehouseParticipant
    current : Loaded or None
        The table now.

    Raises
    ------
    WriteConflictError
        The table is no longer what the statement can be published on.
    """

    def __init__(self, participant: LakehouseParticipant, current: Loaded | None) -> None:
        self.participant = participant
        self.current = current
        #: What it lists, from the writing on.
        self._listed: list[ManifestFile] = []
        #: Where it is written, from then on.
        self.manifest_list: str | None = None
        participant.check_target(current)
        self._resolve()
        self._kept = participant.kept_on(self._base)

    # -- what it is built on -------------------------------------------------------------------------------------

    def _resolve(self) -> None:
        """The metadata before the snapshot: definition and schema settled."""
        member = self.participant
        if member.effect == CREATE:
            self._base: TableMetadata = _new_metadata(member)
            self._updates: list[TableUpdate] = []
            return
        assert self.current is not None
        self._base = self.current.metadata
        self._updates = _replaced(member, self._base) if member.effect == REPLACE else self._evolved(member)

    def _evolved(self, member: LakehouseParticipant) -> list[TableUpdate]:
        """RFC-82: the schema to commit, from that at the start, that at validation, and the writer's."""
        assert member.seen is not None
        now = definitions.schema_of(self._base)
        resolution = member.lakehouse.store.settings.strategy.resolve(
            member.seen.schema, now, member.schema, table=str(member.path)
        )
        _refuse_other_ids(member, resolution.writer_ids)
        _refuse_nulls(member, resolution.schema)
        if resolution.schema.same_as(now):
            return []
        return _new_schema(self._base, to_iceberg(resolution.schema))

    def is_for(self, current: Loaded | None) -> bool:
        """Whether the table is still the one that it was made for: a metadata file never changes."""
        if current is None or self.current is None:
            return current is self.current
        return current.location == self.current.location

    # -- the result ----------------------------------------------------------------------------------------------

    def write_list(self) -> None:
        """Write the manifest list, once: it depends on nothing but the table that it was made for."""
        if self.manifest_list is not None:
            return
        member, parent = self.participant, self._parent(self._prepared)
        location = member.place.manifest_list(member.snapshot_id)
        self._listed = member.merged(self._manifests(), self._prepared)
        manifests.write_list(
            location,
            self._listed,
            snapshot_id=member.snapshot_id,
            parent_id=None if parent is None else parent.snapshot_id,
            sequence_number=self._prepared.next_sequence_number(),
            properties=member.properties,
        )
        self.manifest_list = location

    def written(self) -> list[str]:
        """Files that no other plan needs."""
        member = self.participant
        prepared = {manifest.manifest_path for manifest in (*member.added, *member.kept)}
        made = {manifest.manifest_path for manifest in (*self._kept, *self._listed)}
        own = sorted(path for path in made if member.place.is_own(path))
        lists = [] if self.manifest_list is None else [self.manifest_list]
        return [*(path for path in own if path not in prepared), *lists]

    def metadata(self) -> TableMetadata:
        """The metadata that refers to the manifest list, with the time of now."""
        assert self.manifest_list is not None
        snapshot = self._snapshot(self._prepared, self.manifest_list)
        ref = SetSnapshotRefUpdate(ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=snapshot.snapshot_id)
        return self._updated([*self._updates, AddSnapshotUpdate(snapshot=snapshot), ref])

    @cached_property
    def _prepared(self) -> TableMetadata:
        """The metadata before the snapshot."""
        return self._updated(self._updates)

    def _updated(self, updates: list[TableUpdate]) -> TableMetadata:
        """What PyIceberg's ``update_table_metadata`` makes, without its deep copy of the table's whole history.

        Metadata is never changed in place, so old and new may share what stays.
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
        # The newest first, as Iceberg has them.
        return [
            *member.added,
            *(manifests.manifests_of(self._base, current_id(self._base)) if appends else self._kept),
        ]

    def _parent(self, metadata: TableMetadata) -> Snapshot | None:
        """None for a replaced table: its history goes on, its line of snapshots begins anew."""
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


def current_id(metadata: TableMetadata) -> int | None:
    snapshot = metadata.current_snapshot()
    return None if snapshot is None else snapshot.snapshot_id


def _new_metadata(member: LakehouseParticipant) -> TableMetadata:
    return new_metadata(
        member.place.location,
        to_iceberg(member.schema),
        member.spec,
        member.properties,
        str(member.document["uuid"]),
        member.sort_order,
    )


def new_metadata(
    location: str,
    schema: IcebergSchema,
    spec: PartitionSpec,
    properties: Mapping[str, str],
    table_uuid: str,
    sort_order: SortOrder,
) -> TableMetadata:
    """The metadata of a new table without rows; the ids of its fields are taken as they are."""
    return TableMetadataV2(
        location=location,
        table_uuid=uuid.UUID(table_uuid),
        schemas=[schema],
        current_schema_id=schema.schema_id,
        last_column_id=schema.highest_field_id,
        partition_specs=[spec],
        default_spec_id=spec.spec_id,
        last_partition_id=max([field.field_id for field in spec.fields], default=999),
        sort_orders=[sort_order],
        default_sort_order_id=sort_order.order_id,
        properties=dict(properties),
    )


def _replaced(member: LakehouseParticipant, base: TableMetadata) -> list[TableUpdate]:
    """A new definition for a table that goes on: properties that the statement does not name stay."""
    updates: list[TableUpdate] = _new_schema(base, to_iceberg(member.schema))
    if member.spec.spec_id not in base.specs():
        updates.append(AddPartitionSpecUpdate(spec=member.spec))
    if member.spec.spec_id != base.default_spec_id:
        updates.append(SetDefaultSpecUpdate(spec_id=member.spec.spec_id))
    updates += sorting.updates(base, to_iceberg(member.schema), member.sort_order)
    if member.properties:
        updates.append(SetPropertiesUpdate(updates=dict(member.properties)))
    if definitions.NAME_MAPPING in base.properties:
        # It names fields of the old schema.
        updates.append(RemovePropertiesUpdate(removals=[definitions.NAME_MAPPING]))
    if MAIN_BRANCH in base.refs:
        updates.append(RemoveSnapshotRefUpdate(ref_name=MAIN_BRANCH))
    return updates


def _new_schema(base: TableMetadata, schema: IcebergSchema) -> list[TableUpdate]:
    """Make a schema the current one: an old one where it is the same, else a new one."""
    same = next((old for old in base.schemas if old == schema), None)
    if same is not None:
        return [] if same.schema_id == base.current_schema_id else [SetCurrentSchemaUpdate(schema_id=same.schema_id)]
    number = max(old.schema_id for old in base.schemas) + 1
    return [
        AddSchemaUpdate(schema_=schema.model_copy(update={"schema_id": number})),
        SetCurrentSchemaUpdate(schema_id=number),
    ]


def _refuse_other_ids(member: LakehouseParticipant, writer_ids: Mapping[int, int]) -> None:
    if writer_ids:
        raise ConcurrentSchemaEvolutionError(
            f"{member.path} was not written: another writer added the same columns under other ids.",
            path=member.path,
            transaction_id=member.transaction_id,
            hint="Run the statement again: its files will carry the table's ids.",
        )


def _refuse_nulls(member: LakehouseParticipant, schema: Schema) -> None:
    """A column may have become NOT NULL after the rows were written."""
    for number in member.document["null_columns"]:
        found = schema.get(number)
        if found is not None and not found.nullable:
            raise ConcurrentSchemaEvolutionError(
                f"{member.path} was not written: {found.name} became NOT NULL meanwhile, and the rows hold NULL.",
                path=member.path,
                transaction_id=member.transaction_id,
            )


def line_of(metadata: TableMetadata, snapshot_id: int | None) -> Iterator[Snapshot]:
    """A snapshot and those that it has grown from, the newest first."""
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    while snapshot_id is not None and (snapshot := known.pop(snapshot_id, None)) is not None:
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def is_ancestor(metadata: TableMetadata, snapshot_id: int | None) -> bool:
    """Whether a table has grown from a snapshot: it was neither replaced nor rolled back since."""
    if snapshot_id is None:
        return True
    return any(snapshot.snapshot_id == snapshot_id for snapshot in line_of(metadata, current_id(metadata)))


def find_published(metadata: TableMetadata, participant: str) -> Snapshot | None:
    """The snapshot that holds what a participant staged, as far as the table still has it."""
    return next((s for s in reversed(metadata.snapshots) if participant in _stamped(s)), None)


def _stamped(snapshot: Snapshot) -> list[str]:
    summary = snapshot.summary
    return [] if summary is None else [summary.get(PARTICIPANT) or "", *(summary.get(CARRIED) or "").split(",")]

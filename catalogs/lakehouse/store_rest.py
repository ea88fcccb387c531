"""An Iceberg REST catalog: one table changes in one request, which the server refuses where the table has changed.

The server writes the metadata files of changes; only the first one of a new table is ours, and is registered there.
What a change is, and what it rests on, is told by the difference of two metadata. There is no request for several
tables that all servers have. Records of participants are files, and the tables tell who was published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from pydantic import ValidationError
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    ServerError,
    TableAlreadyExistsError,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from twophase.catalogs.lakehouse.errors import UnreadableMetadataError, reason
from twophase.catalogs.lakehouse.store import Loaded
from twophase.catalogs.lakehouse.store_records import RecordingStore
from twophase.errors import CatalogError
from twophase.model import ObjectPath

#: How a server, or the client, answers where it cannot read a table's metadata, or may not show it.
_NOT_SHOWN = (ServerError, BadRequestError, ForbiddenError, ValidationError)


class RestStore(RecordingStore):
    """A REST catalog."""

    def close(self) -> None:
        if "catalog" in self.__dict__:
            self.__dict__.pop("catalog").close()

    @cached_property
    def catalog(self) -> RestCatalog:
        with self.speaking():
            return RestCatalog(self.settings.catalog_name, uri=self.settings.uri, **self.settings.rest_properties)

    # -- databases -----------------------------------------------------------------------------------------------

    def drop_namespace(self, database: str, places: Mapping[ObjectPath, str | None]) -> None:
        for path, place in places.items():
            pointer = self.pointer(path)
            if pointer is not None:
                self.drop(path, pointer, place)
        try:
            with self.speaking(path=database):
                self.catalog.drop_namespace((database,))
        except NamespaceNotEmptyError as error:
            raise CatalogError(
                f"Database {database} is not empty: it holds what is no table.",
                path=database,
                hint="Drop its views with the engine that made them.",
            ) from error
        except NoSuchNamespaceError:
            pass

    # -- pointers ------------------------------------------------------------------------------------------------

    def load(self, path: ObjectPath) -> Loaded | None:
        with self.speaking(path=path):
            try:
                found = self.catalog.load_table((*path.namespace, path.name))
            except NoSuchTableError:
                return None
            except _NOT_SHOWN as error:
                raise UnreadableMetadataError(
                    f"The Iceberg catalog {self.settings.display_uri} does not show {path}: {reason(error)}.",
                    path=path,
                    hint="Its metadata may be missing or damaged, or not for this user; the server's log tells more.",
                ) from error
        self._remember(found.metadata_location, found.metadata)
        return Loaded(found.metadata_location, found.metadata)

    def pointer(self, path: ObjectPath) -> str | None:
        found = self.load(path)
        return None if found is None else found.location

    def pointers(self, paths: Sequence[ObjectPath]) -> dict[ObjectPath, str]:
        found = {path: self.pointer(path) for path in paths}
        return {path: pointer for path, pointer in found.items() if pointer is not None}

    def all_tables(self, database: str | None = None) -> dict[ObjectPath, str]:
        return self.pointers(self.paths(database))

    def paths(self, database: str | None = None) -> list[ObjectPath]:
        with self.speaking(path=database):
            names = self.catalog.list_namespaces() if database is None else [(database,)]
            return [ObjectPath.of(*name) for levels in names for name in self._names_in(levels)]

    def _names_in(self, levels: tuple[str, ...]) -> list[tuple[str, ...]]:
        try:
            return self.catalog.list_tables(levels)
        except NoSuchNamespaceError:  # It was dropped since it was listed.
            return []

    def stage_metadata(self, before: Loaded | None, after: Loaded) -> None:
        if before is None:
            super().stage_metadata(before, after)

    def swap(self, path: ObjectPath, before: Loaded | None, after: Loaded) -> bool:
        identifier = (*path.namespace, path.name)
        with self.speaking(path=path):
            if before is None:
                try:
                    self.catalog.register_table(identifier, after.location)
                except TableAlreadyExistsError:
                    return self.pointer(path) == after.location
                return True
            table = self.iceberg_table(path, before)
            try:
                self.catalog.commit_table(
                    table, requirements(before.metadata), changes(before.metadata, after.metadata)
                )
            except (CommitFailedException, NoSuchTableError):
                return False
            return True

    def rename(self, path: ObjectPath, new: ObjectPath) -> bool:
        try:
            with self.speaking(path=path):
                self.catalog.rename_table((*path.namespace, path.name), (*new.namespace, new.name))
        except (NoSuchTableError, NoSuchNamespaceError, TableAlreadyExistsError):
            return False
        return True

    def _drop(self, path: ObjectPath, pointer: str) -> bool:
        # No request drops a table only where it still is as expected.
        return self.pointer(path) == pointer and self.drop_unreadable(path)

    def drop_unreadable(self, path: ObjectPath) -> bool:
        try:
            with self.speaking(path=path):
                self.catalog.drop_table((*path.namespace, path.name))
        except NoSuchTableError:
            return False
        return True


# -- one metadata, and the next one ------------------------------------------------------------------------------------


def requirements(metadata: TableMetadata) -> tuple[TableRequirement, ...]:
    """What must still hold of a table for a change of it: all that our checks have looked at."""
    snapshot = metadata.current_snapshot()
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=snapshot.snapshot_id if snapshot else None),
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        AssertLastAssignedFieldId(last_assigned_field_id=metadata.last_column_id),
        AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
        AssertDefaultSortOrderId(default_sort_order_id=metadata.default_sort_order_id),
    )


def changes(before: TableMetadata, after: TableMetadata) -> tuple[TableUpdate, ...]:
    """What makes one metadata of another one."""
    return (*_definition(before, after), *_properties(before, after), *_snapshots(before, after))


def _definition(before: TableMetadata, after: TableMetadata) -> list[TableUpdate]:
    schemas = {schema.schema_id for schema in before.schemas}
    specs, orders = before.specs(), {order.order_id for order in before.sort_orders}
    found: list[TableUpdate] = []
    found += [AddSchemaUpdate(schema_=schema) for schema in after.schemas if schema.schema_id not in schemas]
    if after.current_schema_id != before.current_schema_id:
        found.append(SetCurrentSchemaUpdate(schema_id=after.current_schema_id))
    found += [AddPartitionSpecUpdate(spec=spec) for number, spec in after.specs().items() if number not in specs]
    if after.default_spec_id != before.default_spec_id:
        found.append(SetDefaultSpecUpdate(spec_id=after.default_spec_id))
    found += [AddSortOrderUpdate(sort_order=order) for order in after.sort_orders if order.order_id not in orders]
    if after.default_sort_order_id != before.default_sort_order_id:
        found.append(SetDefaultSortOrderUpdate(sort_order_id=after.default_sort_order_id))
    return found


def _properties(before: TableMetadata, after: TableMetadata) -> list[TableUpdate]:
    changed = {key: value for key, value in after.properties.items() if before.properties.get(key) != value}
    gone = [key for key in before.properties if key not in after.properties]
    found: list[TableUpdate] = [SetPropertiesUpdate(updates=changed)] if changed else []
    return [*found, RemovePropertiesUpdate(removals=gone)] if gone else found


def _snapshots(before: TableMetadata, after: TableMetadata) -> list[TableUpdate]:
    old = {snapshot.snapshot_id for snapshot in before.snapshots}
    new = {snapshot.snapshot_id for snapshot in after.snapshots}
    found: list[TableUpdate] = [
        RemoveSnapshotRefUpdate(ref_name=name) for name in before.refs if name not in after.refs
    ]
    if MAIN_BRANCH in before.refs and _parents_begin_anew(before, after, old):
        # A replaced table's line of snapshots begins anew.
        found.append(RemoveSnapshotRefUpdate(ref_name=MAIN_BRANCH))
    found += [AddSnapshotUpdate(snapshot=snapshot) for snapshot in after.snapshots if snapshot.snapshot_id not in old]
    found += [
        SetSnapshotRefUpdate(
            ref_name=name,
            type=ref.snapshot_ref_type,
            snapshot_id=ref.snapshot_id,
            max_ref_age_ms=ref.max_ref_age_ms,
            max_snapshot_age_ms=ref.max_snapshot_age_ms,
            min_snapshots_to_keep=ref.min_snapshots_to_keep,
        )
        for name, ref in after.refs.items()
        if before.refs.get(name) != ref
    ]
    gone = sorted(old - new)
    return [*found, RemoveSnapshotsUpdate(snapshot_ids=gone)] if gone else found


def _parents_begin_anew(before: TableMetadata, after: TableMetadata, old: set[int]) -> bool:
    current = after.current_snapshot()
    return current is not None and current.snapshot_id not in old and current.parent_snapshot_id is None

"""An Iceberg REST catalog: each request changes one table, and the server refuses it if the table has changed.

The server writes the metadata files of changes; twophase writes only the first one of a new table, and registers it.
No request for several tables is supported by all servers. Records of participants are files, and the tables themselves
show which participants were published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

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
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
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
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

from twophase.catalogs.keepalive import keepalive_options
from twophase.catalogs.lakehouse.errors import UnreadableMetadataError, reason
from twophase.catalogs.lakehouse.snapshots import current_id
from twophase.catalogs.lakehouse.store import Loaded, Move
from twophase.catalogs.lakehouse.store_records import RecordingStore
from twophase.errors import CatalogError
from twophase.model import ObjectPath

#: Seconds to wait for a connection, and for an answer: PyIceberg would wait for ever.
CONNECT_SECONDS, ANSWER_SECONDS = 10, 600
#: Errors of a server, or of the client, if it cannot read a table's metadata or must not show it.
_NOT_SHOWN = (ServerError, BadRequestError, ForbiddenError, ValidationError)


class _Adapter(HTTPAdapter):
    """Requests that do not wait for ever for a server that says nothing."""

    def init_poolmanager(self, *arguments: Any, **facts: Any) -> None:
        options = [*HTTPConnection.default_socket_options, *keepalive_options()]
        super().init_poolmanager(*arguments, **facts, socket_options=options)

    def send(self, request: PreparedRequest, *arguments: Any, **facts: Any) -> Response:
        facts["timeout"] = facts.get("timeout") or (CONNECT_SECONDS, ANSWER_SECONDS)
        return super().send(request, *arguments, **facts)


class _Catalog(RestCatalog):
    """PyIceberg's catalog with our connections."""

    def _config_headers(self, session: Session) -> None:
        # Before the session asks for a token.
        for scheme in ("https://", "http://"):
            session.mount(scheme, _Adapter())
        super()._config_headers(session)


class RestStore(RecordingStore):
    """A REST catalog."""

    def close(self) -> None:
        if "catalog" in self.__dict__:
            self.__dict__.pop("catalog").close()

    @cached_property
    def catalog(self) -> RestCatalog:
        with self.speaking():
            properties = {**self.settings.file_properties, **self.settings.rest_properties}
            found = _Catalog(self.settings.catalog_name, uri=self.settings.uri, **properties)
        self.access.configure(found.properties)  # The server may add to them, or override them.
        return found

    # -- databases -----------------------------------------------------------------------------------------------

    def drop_namespace(self, database: str, tables: Mapping[ObjectPath, Loaded | None]) -> None:
        for path, table in tables.items():
            pointer = self.pointer(path)
            if pointer is not None:
                self.drop(path, pointer, table)
        try:
            with self.speaking(path=database):
                self.catalog.drop_namespace((database,))
        except NamespaceNotEmptyError as error:
            raise CatalogError(
                f"Database {database} is not empty: it holds what is no table, or was created meanwhile.",
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
                    hint="Its metadata may be missing or damaged, or not for this user; see the server's log.",
                ) from error
        self.access.lend(found.metadata.location, self._lent(found))
        self._metadata.put(found.metadata_location, found.metadata)
        return Loaded(found.metadata_location, found.metadata)

    def _lent(self, table: Table) -> dict[str, Any]:
        """The credentials that the server lends, with the properties of the catalog; PyIceberg adds those of the table.

        The latter are not used: whoever may set them would direct the credentials to another server.
        """
        known = table.metadata.properties
        return {**table.config, **{k: v for k, v in table.io.properties.items() if known.get(k) != v}}

    def pointer(self, path: ObjectPath) -> str | None:
        found = self.load(path)
        return None if found is None else found.location

    def all_tables(self, database: str | None = None) -> dict[ObjectPath, str]:
        return self.pointers(self.paths(database))

    def paths(self, database: str | None = None) -> list[ObjectPath]:
        with self.speaking(path=database):
            names = self.catalog.list_namespaces() if database is None else [(database,)]
            return [ObjectPath.of(*name) for levels in names for name in self._names_in(levels)]

    def _names_in(self, levels: tuple[str, ...]) -> list[tuple[str, ...]]:
        try:
            return self.catalog.list_tables(levels)
        except NoSuchNamespaceError:  # It was dropped after the listing.
            return []

    def stage_metadata(self, before: Loaded | None, after: Loaded) -> None:
        if before is None:
            super().stage_metadata(before, after)

    def swap(self, path: ObjectPath, before: Loaded | None, after: Loaded, updates: Sequence[TableUpdate]) -> bool:
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
                self.catalog.commit_table(table, requirements(before.metadata), tuple(updates))
            except (CommitFailedException, NoSuchTableError):
                return False
            return True

    def undo(self, moves: Sequence[Move]) -> bool:
        (move,) = moves
        if move.before is None:
            return super().undo(moves)
        assert move.after is not None
        updates = restoring(move.after.metadata, move.before.metadata)
        return self.swap(move.path, move.after, move.before, updates)

    def _drop(self, path: ObjectPath, pointer: str) -> bool:
        # There is no conditional drop; so check first.
        return self.pointer(path) == pointer and self.drop_unreadable(path)

    def drop_unreadable(self, path: ObjectPath) -> bool:
        try:
            with self.speaking(path=path):
                self.catalog.drop_table((*path.namespace, path.name))
        except NoSuchTableError:
            return False
        return True


# -- requests ----------------------------------------------------------------------------------------------------------


def requirements(metadata: TableMetadata) -> tuple[TableRequirement, ...]:
    """The requirements of a change to a table: everything that was checked must still hold."""
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=current_id(metadata)),
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        AssertLastAssignedFieldId(last_assigned_field_id=metadata.last_column_id),
        AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
        AssertDefaultSortOrderId(default_sort_order_id=metadata.default_sort_order_id),
    )


def restoring(now: TableMetadata, before: TableMetadata) -> tuple[TableUpdate, ...]:
    """The changes that undo the last publish; ``before`` is the metadata on which it was published."""
    found: list[TableUpdate] = []
    if now.current_schema_id != before.current_schema_id:
        found.append(SetCurrentSchemaUpdate(schema_id=before.current_schema_id))
    if now.default_spec_id != before.default_spec_id:
        found.append(SetDefaultSpecUpdate(spec_id=before.default_spec_id))
    if now.default_sort_order_id != before.default_sort_order_id:
        found.append(SetDefaultSortOrderUpdate(sort_order_id=before.default_sort_order_id))
    if gone := [key for key in now.properties if key not in before.properties]:
        found.append(RemovePropertiesUpdate(removals=gone))
    if changed := {key: value for key, value in before.properties.items() if now.properties.get(key) != value}:
        found.append(SetPropertiesUpdate(updates=changed))
    found.append(_main_of(before))
    old = {snapshot.snapshot_id for snapshot in before.snapshots}
    new = [snapshot.snapshot_id for snapshot in now.snapshots if snapshot.snapshot_id not in old]
    return (*found, RemoveSnapshotsUpdate(snapshot_ids=new))


def _main_of(metadata: TableMetadata) -> TableUpdate:
    """The change that sets a table to the current snapshot of this metadata."""
    ref = metadata.refs.get(MAIN_BRANCH)
    if ref is None:
        return RemoveSnapshotRefUpdate(ref_name=MAIN_BRANCH)
    return SetSnapshotRefUpdate(
        ref_name=MAIN_BRANCH, type=ref.snapshot_ref_type, **ref.model_dump(exclude={"snapshot_ref_type"})
    )

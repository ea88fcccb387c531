"""An Iceberg catalog in a Hive Metastore: one call moves one table's pointer, if it is still as expected.

The metastore stores a table's pointer in its parameters. As in Iceberg's own Java library, there are two ways to make
sure that no other writer moves it between the check and the call, and all writers of a catalog must use the same one:

- a metastore lock around both (the default there, and the only way in PyIceberg);
- a comparison of the parameter by the metastore itself (HIVE-26882, since Hive 2.3.10 and 4.0). It is always requested;
  an older metastore ignores the request.

There is no call for several tables. Records of participants are files, and the tables themselves show which
participants were published. It depends on private parts of PyIceberg: its client, and its description of an Iceberg
table for a metastore.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from hive_metastore.ttypes import (
    AlreadyExistsException,
    CheckLockRequest,
    EnvironmentContext,
    InvalidOperationException,
    LockState,
    MetaException,
    NoSuchObjectException,
    UnlockRequest,
)
from pyiceberg.catalog import ICEBERG, METADATA_LOCATION, TABLE_TYPE
from pyiceberg.catalog.hive import (
    DO_NOT_UPDATE_STATS,
    DO_NOT_UPDATE_STATS_DEFAULT,
    HiveCatalog,
    _construct_parameters,
    _HiveClient,
)
from pyiceberg.table import StagedTable
from pyiceberg.table.update import TableUpdate
from tenacity import (
    Retrying,
    retry,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
    stop_after_delay,
    wait_random,
)
from thrift.Thrift import TApplicationException
from thrift.transport.TTransport import TTransportException

from twophase.catalogs import metastore_names
from twophase.catalogs.lakehouse.metastore_connections import MetastoreClient, MetastoreConnections
from twophase.catalogs.lakehouse.store import Loaded
from twophase.catalogs.lakehouse.store_records import RecordingStore
from twophase.errors import CatalogError
from twophase.model import ObjectPath

_LONGEST_NAME = 128
_LOCK_SECONDS = 60


class _Catalog(HiveCatalog):
    """PyIceberg's catalog, but each use has its own connection instead of a single one for all threads."""

    def __init__(self, name: str, **properties: str) -> None:
        self.connections = MetastoreConnections(lambda: self._create_hive_client(properties))
        super().__init__(name, **properties)

    @staticmethod
    def _create_hive_client(properties: dict[str, str]) -> _HiveClient:
        return MetastoreClient(properties["uri"].split(",")[0])  # PyIceberg uses the first one only, too.

    @property
    def _client(self) -> Any:
        return self.connections.use()

    @_client.setter
    def _client(self, _: _HiveClient) -> None:
        pass


class HiveStore(RecordingStore):
    """An Iceberg catalog in a Hive Metastore."""

    def close(self) -> None:
        if "catalog" in self.__dict__:
            self.catalog.connections.close()

    @cached_property
    def catalog(self) -> _Catalog:
        with self.speaking():
            return _Catalog(self.settings.catalog_name, uri=self.settings.uri, warehouse=self.settings.warehouse)

    # -- names ---------------------------------------------------------------------------------------------------

    def check_name(self, name: str, what: str, path: object) -> None:
        metastore_names.check_name(name, what, "a metastore", _LONGEST_NAME, path)

    def canonical(self, path: ObjectPath) -> ObjectPath:
        return ObjectPath.of(*(part.lower() for part in (*path.namespace, path.name)))

    # -- databases -----------------------------------------------------------------------------------------------

    def drop_namespace(self, database: str, tables: Mapping[ObjectPath, Loaded | None]) -> None:
        ours = {path.name for path in tables}
        with self.speaking(path=database), self.catalog._client as client:
            others = sorted(set(client.get_all_tables(database)) - ours)
        if others:
            raise CatalogError(
                f"Database {database} is not empty: {', '.join(others[:5])} is no Iceberg table, or was created "
                "meanwhile.",
                path=database,
                hint="Drop it with the engine that made it, and the database again.",
            )
        for path, table in tables.items():
            pointer = self.pointer(path)
            if pointer is not None:
                self.drop(path, pointer, table)
        with self.speaking(path=database):
            try:
                self.catalog.drop_namespace((database,))
            except TTransportException:
                # Possibly only the reply is lost: a metastore without locks drops it, and then closes the connection.
                if self.catalog.namespace_exists((database,)):
                    raise

    def contents(self, database: str) -> list[str]:
        with self.speaking(path=database), self.catalog._client as client:
            functions = client.get_functions(database, "*")
            return [*client.get_all_tables(database), *(f"function {name}" for name in functions)]

    # -- pointers ------------------------------------------------------------------------------------------------

    def pointer(self, path: ObjectPath) -> str | None:
        if not all(metastore_names.is_plain(part) for part in (*path.namespace, path.name)):
            return None
        with self.speaking(path=path), self.catalog._client as client:
            found = self._table(client, path)
        return None if found is None else self._pointer(path, found)

    def _table(self, client: Any, path: ObjectPath) -> Any | None:
        try:
            return client.get_table(path.database, path.name)
        except NoSuchObjectException:
            return None

    def _pointer(self, path: ObjectPath, found: Any) -> str:
        if not _is_iceberg(found):
            raise CatalogError(f"{path} is in the metastore, but it is no Iceberg table.", path=path)
        return str(found.parameters[METADATA_LOCATION])

    def all_tables(self, database: str | None = None) -> dict[ObjectPath, str]:
        found: dict[ObjectPath, str] = {}
        with self.speaking(path=database), self.catalog._client as client:
            for name in client.get_all_databases() if database is None else [database]:
                for table in _tables_of(client, name):
                    if _is_iceberg(table):
                        path = ObjectPath.of(table.dbName, table.tableName)
                        found[path] = str(table.parameters[METADATA_LOCATION])
        return found

    def swap(self, path: ObjectPath, before: Loaded | None, after: Loaded, updates: Sequence[TableUpdate]) -> bool:
        with self._locked(path) as client:
            if before is None:
                return self._create(client, path, after)
            return self._alter(client, path, before, after)

    def _create(self, client: Any, path: ObjectPath, after: Loaded) -> bool:
        try:
            client.create_table(self._described(path, after))
        except AlreadyExistsException:
            # The client itself retries a call whose reply was lost, so the table may be the one of the first try.
            found = self._table(client, path)
            return found is not None and self._pointer(path, found) == after.location
        return True

    def _alter(self, client: Any, path: ObjectPath, before: Loaded, after: Loaded) -> bool:
        table = self._table(client, path)
        if table is None or self._pointer(path, table) != before.location:
            return False
        # Keep parameters that others have set in addition to Iceberg's.
        gone = before.metadata.properties.keys() - after.metadata.properties.keys()
        kept = {key: value for key, value in table.parameters.items() if key not in gone}
        table.parameters = kept | _construct_parameters(after.location, before.location, after.metadata.properties)
        columns, table.sd = table.sd.cols, self._described(path, after).sd
        try:
            self._alter_if_unchanged(client, path, table, before.location)
        except InvalidOperationException:
            # It refuses a change of a column's type. Its columns are only informative: readers use the metadata file.
            table.sd.cols = columns
            self._alter_if_unchanged(client, path, table, before.location)
        except MetaException:
            found = self._table(client, path)
            now = None if found is None else self._pointer(path, found)
            if now == before.location:
                raise
            return now == after.location
        return True

    def _alter_if_unchanged(self, client: Any, path: ObjectPath, table: Any, pointer: str) -> None:
        properties = {
            DO_NOT_UPDATE_STATS: DO_NOT_UPDATE_STATS_DEFAULT,
            "expected_parameter_key": METADATA_LOCATION,
            "expected_parameter_value": pointer,
        }
        context = EnvironmentContext(properties=properties)
        client.alter_table_with_environment_context(path.database, path.name, table, context)

    def _described(self, path: ObjectPath, loaded: Loaded) -> Any:
        """The metastore's description of a table."""
        table = StagedTable(
            identifier=(path.database, path.name),
            metadata=loaded.metadata,
            metadata_location=loaded.location,
            io=self.io(loaded.location),
            catalog=self.catalog,
        )
        return self.catalog._convert_iceberg_into_hive(table)

    @contextmanager
    def _locked(self, path: ObjectPath) -> Iterator[Any]:
        """Open a connection, and take the table's lock if locks are enabled.

        It converts the metastore's errors itself: Thrift's exceptions are immutable, so they cannot pass through a
        generator context manager.
        """
        with self.speaking(path=path), self.catalog._client as client:
            if not self.settings.hive_locks:
                yield client
                return
            lock = client.lock(self.catalog._create_lock_request(path.database, path.name))
            try:
                self._wait(client, path, lock)
                yield client
            finally:
                client.unlock(UnlockRequest(lockid=lock.lockid))

    def _wait(self, client: Any, path: ObjectPath, lock: Any) -> None:
        if lock.state == LockState.WAITING:
            waiting = Retrying(
                retry=retry_if_result(lambda found: found.state == LockState.WAITING),
                wait=wait_random(0.02, 0.2),
                stop=stop_after_delay(_LOCK_SECONDS),
                retry_error_callback=lambda _: lock,
            )
            lock = waiting(client.check_lock, CheckLockRequest(lockid=lock.lockid))
        if lock.state != LockState.ACQUIRED:
            raise CatalogError(
                f"{path} is locked by another writer in the metastore.",
                path=path,
                hint="Run the statement again. The lock of a writer that was killed ends with hive.txn.timeout there.",
            )

    def _drop(self, path: ObjectPath, pointer: str) -> bool:
        with self._locked(path) as client:
            table = self._table(client, path)
            if table is None or self._pointer(path, table) != pointer:
                return False
            client.drop_table(path.database, path.name, False)
        return True


@retry(retry=retry_if_exception_type(TApplicationException), stop=stop_after_attempt(3), reraise=True)
def _tables_of(client: Any, database: str) -> list[Any]:
    """All tables of a database; none if it was dropped meanwhile, when the second call fails with an unclear error."""
    names = client.get_all_tables(database)
    return client.get_table_objects_by_name(database, names) if names else []


def _is_iceberg(table: Any) -> bool:
    parameters = table.parameters or {}
    return parameters.get(TABLE_TYPE, "").lower() == ICEBERG and METADATA_LOCATION in parameters

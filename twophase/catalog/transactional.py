"""A base class for catalogs of transactional stores: a plugin implements a few small methods, this class the rest.

The author defines how to connect to the store, and how to create, fill and read a table. The hard parts of a two-phase
write are implemented here: planning, staging by Spark's executors, conflicts, the record that makes a repeated publish
happen only once, publishing several tables in one step, recovery and cleanup.
``examples/sqlite_plugin.py`` is a complete plugin; docs/plugins.md explains it.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from twophase.catalog.base import TwoPhaseCatalogTable
from twophase.catalog.reading import ReadSource
from twophase.catalog.services import Leftover
from twophase.catalog.staged_rows import RowsReader, StagedRows, require_parquet
from twophase.catalog.transactional_store import StoredTable, TransactionalStore
from twophase.catalog.transactional_table import PREFIX, TransactionalTable
from twophase.errors import (
    CatalogError,
    DatabaseAlreadyExistsError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition, WriteContext

__all__ = ["StagedRows", "StoredTable", "TransactionalCatalog"]

#: Prefix of the location of a leftover that is a record of a publish, not a directory.
_RECORD = "record "


class TransactionalCatalog(TransactionalStore):
    """A catalog over a transactional store; a plugin author overrides the methods that are abstract in its base.

    Attributes
    ----------
    table : type of TransactionalTable
        The class of its participants.
    """

    table: type[TransactionalTable] = TransactionalTable

    # -- databases -----------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        with self.transaction() as db:
            return sorted(self.databases(db))

    def database_exists(self, database: str) -> bool:
        with self.transaction() as db:
            return self._has(db, database)

    def create_database(
        self, database: str, *, ignore_if_exists: bool = False, properties: Mapping[str, str] | None = None
    ) -> None:
        # Spark always sets an owner, even if the user has not specified one.
        if other := sorted(set(properties or ()) - {"owner"}):
            raise CatalogError(f"Catalog {self.name} keeps no {other[0]} of a database.", path=database)
        if not database:
            raise CatalogError("A database needs a name.")
        with self.transaction() as db:
            if not self._has(db, database):
                self.add_database(db, self._folded(database))
            elif not ignore_if_exists:
                raise DatabaseAlreadyExistsError(f"Database {database} exists in catalog {self.name}.", path=database)

    def drop_database(self, database: str, *, ignore_if_not_exists: bool = False, cascade: bool = False) -> None:
        with self.transaction() as db:
            if ignore_if_not_exists and not self._has(db, database):
                return
            self.require_database(db, database)
            tables = list(self.tables(db, self._folded(database)))
            if tables and not cascade:
                raise CatalogError(f"Database {database} is not empty.", path=database)
            for table in tables:
                self.remove(db, self.canonical(ObjectPath.of(database, table)))
            self.remove_database(db, self._folded(database))

    # -- tables --------------------------------------------------------------------------------------------------

    def list_tables(self, database: str) -> list[str]:
        with self.transaction() as db:
            self.require_database(db, database)
            return sorted(self.tables(db, self._folded(database)))

    def table_exists(self, path: ObjectPath) -> bool:
        return self._found(path) is not None

    def load_table(self, path: ObjectPath) -> TableDefinition:
        if (found := self._found(path)) is None:
            raise TableNotExistError.of(path, self.name)
        return found.definition

    def table_version(self, path: ObjectPath) -> Any:
        found = self._found(path)
        return None if found is None else found.version

    def create_table(self, path: ObjectPath, definition: TableDefinition, *, ignore_if_exists: bool = False) -> None:
        self._require_possible(path, definition)
        target = self.canonical(path)
        with self.transaction() as db:
            self.require_database(db, path.database)
            if self.find(db, target) is None:
                self.make(db, target, replace(definition, options={}))
                self.stamp(db, target, uuid.uuid4().hex)
            elif not ignore_if_exists:
                raise TableAlreadyExistsError.of(path, self.name)

    def drop_table(self, path: ObjectPath, *, ignore_if_not_exists: bool = False, purge: bool = False) -> None:
        with self.transaction() as db:
            if self._look(db, path) is not None:
                self.remove(db, self.canonical(path))
            elif not ignore_if_not_exists:
                raise TableNotExistError.of(path, self.name)

    def read_source(self, path: ObjectPath) -> ReadSource:
        definition = self.load_table(path)
        reader = RowsReader(definition.schema, [partial(self.scan, self.canonical(path))])
        return ReadSource("batches", definition=definition, reader=reader)

    def _look(self, db: Any, path: ObjectPath) -> StoredTable | None:
        return self.find(db, self.canonical(path)) if self._has(db, path.database) else None

    def _found(self, path: ObjectPath) -> StoredTable | None:
        with self.transaction() as db:
            return self._look(db, path)

    def _require_possible(self, path: ObjectPath, definition: TableDefinition) -> None:
        """Refuse a statement without a declared capability, or a table that cannot be staged or stored, up front."""
        names = [self._folded(name) for name in definition.schema.names]
        if len(path.namespace) != 1:
            raise CatalogError(f"A table of catalog {self.name} has a name of the form database.table.", path=path)
        if not names or "" in names or len(set(names)) < len(names):
            raise CatalogError(f"Table {path} needs columns, each with a name of its own.", path=path)
        if definition.partitioning or definition.bucketing or definition.location:
            raise CatalogError(f"Catalog {self.name} has no partitions, no buckets and no LOCATION.", path=path)
        require_parquet(path, definition.schema)
        self.validate(self.canonical(path), definition)

    # -- the two-phase write -------------------------------------------------------------------------------------

    def two_phase_create_table(
        self,
        path: ObjectPath,
        definition: TableDefinition,
        *,
        purpose: Purpose,
        ignore_if_exists: bool = False,
        is_streaming_mode: bool = False,
        context: WriteContext | None = None,
    ) -> TwoPhaseCatalogTable | None:
        if is_streaming_mode or purpose not in self.capabilities.purposes:
            return None
        context = context or WriteContext.alone(self.name)
        self._require_possible(path, definition)
        _require_whole(context.overwrite, path)
        with self.transaction() as db:
            self.require_database(db, path.database)
            found = self._look(db, path)
        current = found.definition if found else None
        if context.base is not None:
            current = TableDefinition.from_document(context.base["definition"])
        tolerant = ignore_if_exists or purpose is Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS
        if current is None and not purpose.creates:
            raise TableNotExistError.of(path, self.name)
        if current is not None and purpose is Purpose.CREATE_TABLE_AS and not tolerant:
            raise TableAlreadyExistsError.of(path, self.name)
        if current is not None and purpose.inserts:
            context.require_columns(path, current.schema.names)
            _require_as_many(path, definition, current)
            definition = current
        seen = found.version if found else None
        return self.table.planned(self, path, definition, purpose, context, seen=seen, tolerant=tolerant)

    def restore(self, document: Mapping[str, Any]) -> TwoPhaseCatalogTable:
        return self.table(self, document)

    def group_key(self, participant: TwoPhaseCatalogTable) -> str | None:
        return self.staging if self.capabilities.group_publish else None

    def publish_group(self, participants: list[TwoPhaseCatalogTable]) -> None:
        with self.transaction() as db:
            for participant in participants:
                assert isinstance(participant, TransactionalTable)
                participant.publish(db)

    # -- housekeeping --------------------------------------------------------------------------------------------

    def leftovers(self, *, live_transactions: frozenset[str] = frozenset()) -> list[Leftover]:
        found = [*self._staged(), *self._unneeded_records()]
        return [leftover for leftover in found if leftover.transaction_id not in live_transactions]

    def _staged(self) -> Iterator[Leftover]:
        names = os.listdir(self.staging) if os.path.isdir(self.staging) else []
        for name in names:
            if name.startswith(PREFIX):
                place = os.path.join(self.staging, name)
                size, since = _size_and_time(place)
                yield Leftover("staging", place, size, name.removeprefix(PREFIX).rpartition(".")[0], since)

    def _unneeded_records(self) -> Iterator[Leftover]:
        with self.transaction() as db:
            keys = list(self.records(db))
        for key in keys:
            transaction_id = key.rpartition(".")[0]
            if self.environment.has_ended(transaction_id):
                # Where the timeline was restored from a backup, recovery has nothing else to go by: it is kept for the
                # retention, if it was committed.
                yield Leftover("metadata", _RECORD + key, -1, transaction_id, 0.0, holds_rows=True)

    def remove_leftover(self, leftover: Leftover) -> None:
        if leftover.kind == "metadata":
            with self.transaction() as db:
                self.forget(db, leftover.location.removeprefix(_RECORD))
        elif not self._is_staged(leftover.location):
            raise CatalogError(f"{leftover.location} is not below {self.staging}: it was not removed.")
        elif os.path.isdir(leftover.location):
            shutil.rmtree(leftover.location)

    def _is_staged(self, location: str) -> bool:
        parent, name = os.path.split(os.path.normpath(location))
        return parent == os.path.normpath(self.staging) and name.startswith(PREFIX)

    def check(self) -> list[str]:
        return self.environment.executor_problems(["twophase", type(self).__module__])


def _require_whole(scope: OverwriteScope | None, path: ObjectPath) -> None:
    if scope is not None and (scope.static_partition or scope.files is not None):
        raise CatalogError(f"Table {path} has no partitions: all its rows are overwritten, or none.", path=path)


def _require_as_many(path: ObjectPath, rows: TableDefinition, table: TableDefinition) -> None:
    if len(rows.schema) != len(table.schema):
        raise CatalogError(
            f"Table {path} has {len(table.schema)} columns, and the rows have {len(rows.schema)}.", path=path
        )


def _size_and_time(place: str) -> tuple[int, float]:
    try:
        size = sum(os.path.getsize(os.path.join(place, name)) for name in os.listdir(place))
        return size, os.path.getmtime(place)
    except FileNotFoundError:
        return -1, 0.0

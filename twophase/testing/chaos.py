"""A complete in-memory catalog that fails on demand, to test a job, a hook or a coordinator.

It is configured by its dotted path, without an entry point::

    spark.sql.catalog.chaos            twophase.testing.chaos:ChaosCatalog
    spark.sql.catalog.chaos.faults     publish=lost_reply@1

or created directly: ``ChaosCatalog("chaos", {}, Environment())``. As a test double, it collects the rows on the driver;
a real catalog must never do that.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from twophase.catalog import (
    Leftover,
    SupportsAlter,
    SupportsAlterDatabase,
    SupportsCleaning,
    SupportsRename,
    SupportsStagedDrop,
    TableChange,
)
from twophase.catalog import TwoPhaseCatalogTable as Participant
from twophase.catalog.reading import ReadSource
from twophase.errors import (
    CatalogError,
    DatabaseAlreadyExistsError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.model import ObjectPath, Purpose, TableDefinition, WriteContext
from twophase.testing import _alter, _rows
from twophase.testing._files import as_files
from twophase.testing._home import ChaosHome
from twophase.testing._participant import ChaosTable
from twophase.testing._store import Document
from twophase.testing.faults import ChaosError, Faults

__all__ = ["ChaosCatalog", "ChaosError", "ChaosTable", "Faults"]


class ChaosCatalog(
    SupportsAlterDatabase,
    SupportsRename,
    SupportsAlter,
    SupportsStagedDrop,
    SupportsCleaning,
    ChaosHome,
):
    """An in-memory catalog with all capabilities that are possible in memory, and with faults.

    Parameters
    ----------
    name : str
        The name under which it is registered in the session.
    options : mapping of str to str
        See :attr:`known_options`.
    environment : Environment, optional

    Attributes
    ----------
    faults : Faults
        The faults; more can be added at any time. Steps: ``begin``, ``write``, ``prepare``, ``publish``,
        ``publish_group``, ``outcome``, ``abort``, ``finish``, ``compensate``, ``create_table``, ``drop_table``,
        ``rename_table``, ``alter_table``, ``remove_leftover``. With a fault, ``outcome`` returns ``UNKNOWN``.
    """

    # -- databases -----------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        return sorted(self.store.read()["databases"])

    def database_exists(self, database: str) -> bool:
        return database in self.store.read()["databases"]

    def create_database(
        self, database: str, *, ignore_if_exists: bool = False, properties: Mapping[str, str] | None = None
    ) -> None:
        if not database:
            raise CatalogError("A database needs a name.")
        with self.store.change() as document:
            if database in document["databases"]:
                if ignore_if_exists:
                    return
                raise DatabaseAlreadyExistsError(f"Database {database} exists in catalog {self.name}.", path=database)
            document["databases"][database] = {"properties": dict(properties or {}), "tables": {}}

    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        with self.store.change() as document:
            known = self.database_of(document, database)["properties"]
            for key, value in changes.items():
                if value is None:
                    known.pop(key, None)
                else:
                    known[key] = value

    def drop_database(self, database: str, *, ignore_if_not_exists: bool = False, cascade: bool = False) -> None:
        with self.store.change() as document:
            if ignore_if_not_exists and database not in document["databases"]:
                return
            if self.database_of(document, database)["tables"] and not cascade:
                raise CatalogError(f"Database {database} is not empty.", path=database)
            del document["databases"][database]

    def load_database(self, database: str) -> dict[str, str]:
        return dict(self.database_of(self.store.read(), database)["properties"])

    def _table(self, document: Document, path: ObjectPath) -> Document:
        try:
            found: Document = self.tables_of(document, path)[path.name]
        except (KeyError, DatabaseNotExistError):
            raise TableNotExistError.of(path, self.name) from None
        return found

    # -- tables --------------------------------------------------------------------------------------------------

    def list_tables(self, database: str) -> list[str]:
        return sorted(self.database_of(self.store.read(), database)["tables"])

    def table_exists(self, path: ObjectPath) -> bool:
        try:
            return path.name in self.tables_of(self.store.read(), path)
        except CatalogError:
            return False

    def load_table(self, path: ObjectPath) -> TableDefinition:
        return TableDefinition.from_document(self._table(self.store.read(), path)["definition"])

    def table_version(self, path: ObjectPath) -> Any:
        document = self.store.read()
        found = self.tables_of(document, path).get(path.name) if self.database_exists(path.database) else None
        return found and found["version"]

    def rows(self, path: ObjectPath) -> list[dict[str, Any]]:
        """Return the rows of a published table, for assertions in tests.

        Parameters
        ----------
        path : ObjectPath

        Returns
        -------
        list of dict
            One per row, values by column.
        """
        return _rows.decode(self._table(self.store.read(), path)["rows"]).to_pylist()

    def create_table(self, path: ObjectPath, definition: TableDefinition, *, ignore_if_exists: bool = False) -> None:
        self._check(path, definition)
        with self.step("create_table"), self.store.change() as document:
            tables = self.tables_of(document, path)
            if path.name in tables:
                if ignore_if_exists:
                    return
                raise TableAlreadyExistsError.of(path, self.name)
            rows = _rows.encode(definition.schema.empty_table())
            tables[path.name] = {"definition": definition.to_document(), "rows": rows, "version": uuid.uuid4().hex}

    def drop_table(self, path: ObjectPath, *, ignore_if_not_exists: bool = False, purge: bool = False) -> None:
        with self.step("drop_table"), self.store.change() as document:
            try:
                self._table(document, path)
            except TableNotExistError:
                if ignore_if_not_exists:
                    return
                raise
            del self.tables_of(document, path)[path.name]

    def rename_table(self, path: ObjectPath, new_path: ObjectPath) -> None:
        with self.step("rename_table"), self.store.change() as document:
            table = self._table(document, path)
            new_tables = self.tables_of(document, new_path)
            if new_path.name in new_tables:
                raise TableAlreadyExistsError.of(new_path, self.name)
            del self.tables_of(document, path)[path.name]
            new_tables[new_path.name] = table

    def alter_table(self, path: ObjectPath, changes: Iterable[TableChange]) -> None:
        with self.step("alter_table"), self.store.change() as document:
            _alter.apply(self._table(document, path), list(changes), path)

    def read_source(self, path: ObjectPath) -> ReadSource:
        table = self._table(self.store.read(), path)
        return as_files(self.directory, table) or super().read_source(path)

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
    ) -> Participant | None:
        if is_streaming_mode or purpose not in self.capabilities.purposes:
            return None
        self._check(path, definition)
        context = context or WriteContext.alone(self.name)
        target = self._target(path, context)
        if target is None and not purpose.creates:
            raise TableNotExistError.of(path, self.name)
        if target is not None and purpose.inserts:
            context.require_columns(path, target.schema.names)
        tolerant = purpose is Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS
        if purpose is Purpose.CREATE_TABLE_AS:
            tolerant = ignore_if_exists
            if target is not None and not tolerant:
                raise TableAlreadyExistsError.of(path, self.name)
        return ChaosTable.offer(self, path, definition, purpose, context, target, tolerant)

    def two_phase_drop_table(
        self, path: ObjectPath, *, purge: bool = False, context: WriteContext | None = None
    ) -> Participant | None:
        context = context or WriteContext.alone(self.name)
        target = self._target(path, context)
        if target is None:
            raise TableNotExistError.of(path, self.name)
        return ChaosTable.offer(self, path, target, Purpose.DROP_TABLE, context, target, False)

    def _target(self, path: ObjectPath, context: WriteContext) -> TableDefinition | None:
        """Return the table that a statement sees: as staged by its own transaction, or else as published."""
        if context.base is not None:
            if Purpose(context.base["purpose"]).drops:
                return None
            return TableDefinition.from_document(context.base["definition"])
        published = self.tables_of(self.store.read(), path).get(path.name)
        return TableDefinition.from_document(published["definition"]) if published else None

    def restore(self, document: Mapping[str, Any]) -> Participant:
        return ChaosTable(self, document)

    def group_key(self, participant: Participant) -> str | None:
        return self.store.identity if self.capabilities.group_publish else None

    def publish_group(self, participants: list[Participant]) -> None:
        if not self.capabilities.group_publish:
            raise NotImplementedError(f"Catalog {self.name} publishes each table on its own.")
        with self.step("publish_group"), self.store.change() as document:
            for participant in participants:
                assert isinstance(participant, ChaosTable)
                participant.publish_into(document)

    def compensate_group(self, participants: list[Participant]) -> bool:
        if not self.capabilities.compensate:
            return False
        members = [participant for participant in participants if isinstance(participant, ChaosTable)]
        with self.step("compensate"), self.store.change() as document:
            if not all(member.is_undoable(document) for member in members):
                return False
            for member in members:
                member.undo_in(document)
            return True

    def _check(self, path: ObjectPath, definition: TableDefinition) -> None:
        """Refuse a definition that this store does not support, before anything happens."""
        names = definition.schema.names
        columns = definition.partition_columns
        problem = None
        if not names:
            problem = "A table needs a column."
        elif len(set(names)) != len(names) or "" in names:
            problem = f"Column names must be there and differ: {', '.join(map(repr, names))}."
        elif other := [t.name for t in definition.partitioning if t.name not in self.capabilities.partitioning]:
            problem = f"Catalog {self.name} cannot partition by {other[0]}."
        elif len(set(columns)) != len(columns) or set(columns) - set(names):
            problem = f"Partition columns must be columns, each once: {', '.join(columns)}."
        elif definition.bucketing:
            problem = f"Catalog {self.name} has no buckets."
        elif definition.location:
            problem = f"Catalog {self.name} takes no LOCATION."
        if problem:
            raise CatalogError(problem, path=path)

    # -- housekeeping --------------------------------------------------------------------------------------------

    def leftovers(self, *, live_transactions: frozenset[str] = frozenset()) -> list[Leftover]:
        return [
            Leftover("staging", key, len(staged["rows"] or ""), staged["transaction_id"], staged["since"])
            for key, staged in self.store.read()["staged"].items()
            if staged["transaction_id"] not in live_transactions
        ]

    def remove_leftover(self, leftover: Leftover) -> None:
        with self.step("remove_leftover"), self.store.change() as document:
            staged = document["staged"].get(leftover.location)
            if staged and staged["transaction_id"] == leftover.transaction_id:
                del document["staged"][leftover.location]

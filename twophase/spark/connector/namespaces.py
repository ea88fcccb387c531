"""Databases as Spark's namespaces."""

from __future__ import annotations

from typing import Any

from twophase.catalog import Catalog, SupportsAlterDatabase, SupportsStagedDatabases
from twophase.catalog.capabilities import required
from twophase.errors import DatabaseNotExistError
from twophase.spark import active
from twophase.spark.attached import AttachedSession
from twophase.spark.connector.definition import database_changes
from twophase.spark.ddl import databases
from twophase.spark.errors import thrown_to_spark
from twophase.spark.jvm import exceptions, values
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.options import hidden_database
from twophase.spark.schema_versions import dropping_all
from twophase.spark.statement import StatementContext
from twophase.transactions.immediate import changing

# ruff: noqa: N802


class NamespacesMixin:
    """``SupportsNamespaces`` over a catalog's databases; the levels of a database's name are joined by dots."""

    _jvm: Jvm
    _catalog: Catalog
    _session: AttachedSession

    def _database(self, namespace: Any) -> str:
        return ".".join(values.parts(self._jvm, namespace))

    def defaultNamespace(self) -> Any:
        return values.strings(self._jvm, ["default"])

    def listNamespaces(self, parent: Any = None) -> Any:
        with thrown_to_spark(self._jvm, namespace=parent):
            databases = [name.split(".") for name in self._catalog.list_databases()]
            above = [] if parent is None else list(values.parts(self._jvm, parent))
            depth = len(above)
            if above and not self._known(above, databases):
                raise DatabaseNotExistError(f"Database {'.'.join(above)} does not exist.", path=above[-1])
            below = {tuple(parts[: depth + 1]) for parts in databases if parts[:depth] == above and len(parts) > depth}
            return values.string_arrays(self._jvm, sorted(below))

    @staticmethod
    def _known(levels: list[str], databases: list[list[str]]) -> bool:
        return any(parts[: len(levels)] == levels for parts in databases)

    def namespaceExists(self, namespace: Any) -> bool:
        with thrown_to_spark(self._jvm, namespace=namespace):
            database = self._database(namespace)
            return bool(database) and not self._is_dropped(database) and self._catalog.database_exists(database)

    def _is_dropped(self, database: str) -> bool:
        transaction = active.current_transaction(self._session) if active.any_open() else None
        return transaction is not None and transaction.drops_database(self._catalog, database)

    def loadNamespaceMetadata(self, namespace: Any) -> Any:
        with thrown_to_spark(self._jvm, namespace=namespace):
            database = self._database(namespace)
            return values.java_map(self._jvm, self._catalog.load_database(database) if database else {})

    def createNamespace(self, namespace: Any, properties: Any) -> None:
        with thrown_to_spark(self._jvm, namespace=namespace):
            database = self._database(namespace)
            if not database:  # CREATE DATABASE with only this catalog's name
                raise hidden_database(self._session.catalogs.name_of(self._catalog))
            given = values.entries(self._jvm, properties)
            if (staging := self._staging(database)) is not None:
                databases.create(*staging, database, given)
                return
            databases.refuse(self._session, self._catalog, "CREATE DATABASE", database)
            self._catalog.create_database(database, properties=given)

    def _staging(self, database: str) -> tuple[StatementContext, SupportsStagedDatabases] | None:
        """The surrounding transaction, and the catalog that creates and drops databases in it; None if it does not."""
        context, catalog = StatementContext.of(self._session), self._catalog
        if context.joined is None or not databases.is_staged_by(catalog, database):
            return None
        assert isinstance(catalog, SupportsStagedDatabases)
        return context, catalog

    def alterNamespace(self, namespace: Any, changes: Any) -> None:
        with thrown_to_spark(self._jvm, namespace=namespace):
            database = self._database(namespace)
            active.refuse_in_transaction(self._session, f"ALTER DATABASE {database}", database)
            required(self._catalog, SupportsAlterDatabase, "cannot alter databases", database).alter_database(
                database, database_changes(changes)
            )

    def dropNamespace(self, namespace: Any, cascade: bool) -> bool:
        with thrown_to_spark(self._jvm, namespace=namespace):
            database = self._database(namespace)
            if (staging := self._staging(database)) is not None:
                if not self._catalog.database_exists(database):
                    return False
                databases.drop(*staging, database, cascade=cascade)
                return True
            databases.refuse(self._session, self._catalog, "DROP DATABASE", database)
            if not self._catalog.database_exists(database):
                return False
            if not cascade and self._catalog.list_tables(database):
                self._raise_not_empty(namespace)
            tables = dropping_all(self._catalog, database) if cascade else []
            with changing(self._session.coordinator, *tables):
                self._catalog.drop_database(database, cascade=cascade)
            return True

    def _raise_not_empty(self, namespace: Any) -> None:
        from py4j.protocol import Py4JJavaError

        raise Py4JJavaError("", exceptions.exception(self._jvm, "NonEmptyNamespaceException", namespace))

"""Databases as Spark's namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twophase.catalog import Catalog
from twophase.errors import DatabaseNotExistError
from twophase.spark.errors import thrown_to_spark
from twophase.spark.jvm.bridge import Jvm
from twophase.spark.native.definition import database_changes
from twophase.spark.options import hidden_database

if TYPE_CHECKING:
    from twophase.spark.session import Handle

# ruff: noqa: N802


class NamespacesMixin:
    """``SupportsNamespaces`` over a catalog's databases; a database of several levels has them joined by dots."""

    _jvm: Jvm
    _catalog: Catalog
    _handle: Handle

    def _database(self, namespace: Any) -> str:
        return ".".join(self._jvm.parts(namespace))

    def defaultNamespace(self) -> Any:
        return self._jvm.strings(["default"])

    def listNamespaces(self, parent: Any = None) -> Any:
        with thrown_to_spark(self._jvm, namespace=parent):
            databases = [name.split(".") for name in self._catalog.list_databases()]
            above = [] if parent is None else list(self._jvm.parts(parent))
            depth = len(above)
            if above and not self._known(above, databases):
                raise DatabaseNotExistError(f"Database {'.'.join(above)} does not exist.", path=above[-1])
            below = {tuple(parts[: depth + 1]) for parts in databases if parts[:depth] == above and len(parts) > depth}
            return self._jvm.string_arrays(sorted(below))

    @staticmethod
    def _known(levels: list[str], databases: list[list[str]]) -> bool:
        return any(parts[: len(levels)] == levels for parts in databases)

    def namespaceExists(self, namespace: Any) -> bool:
        with thrown_to_spark(self._jvm, namespace=namespace):
            database = self._database(namespace)
            return bool(database) and self._catalog.database_exists(database)

    def loadNamespaceMetadata(self, namespace: Any) -> Any:
        with thrown_to_spark(self._jvm, namespace=namespace):
            database = self._database(namespace)
            return self._jvm.map(self._catalog.load_database(database) if database else {})

    def createNamespace(self, namespace: Any, properties: Any) -> None:
        with thrown_to_spark(self._jvm, namespace=namespace):
            database = self._database(namespace)
            if not database:  # CREATE DATABASE with no name but this catalog's
                raise hidden_database(self._handle.name_of(self._catalog))
            self._handle.refuse_in_transaction(f"CREATE DATABASE {database}", database)
            self._catalog.create_database(database, properties=self._jvm.entries(properties))

    def alterNamespace(self, namespace: Any, changes: Any) -> None:
        with thrown_to_spark(self._jvm, namespace=namespace):
            database = self._database(namespace)
            self._handle.refuse_in_transaction(f"ALTER DATABASE {database}", database)
            self._catalog.alter_database(database, database_changes(changes))

    def dropNamespace(self, namespace: Any, cascade: bool) -> bool:
        with thrown_to_spark(self._jvm, namespace=namespace):
            database = self._database(namespace)
            self._handle.refuse_in_transaction(f"DROP DATABASE {database}", database)
            if not self._catalog.database_exists(database):
                return False
            if not cascade and self._catalog.list_tables(database):
                self._raise_not_empty(namespace)
            self._catalog.drop_database(database, cascade=cascade)
            return True

    def _raise_not_empty(self, namespace: Any) -> None:
        from py4j.protocol import Py4JJavaError

        raise Py4JJavaError("", self._jvm.exception("NonEmptyNamespaceException", namespace))

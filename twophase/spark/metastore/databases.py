"""The databases of the session's metastore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twophase.errors import CatalogError, DatabaseAlreadyExistsError, DatabaseNotExistError
from twophase.spark.jvm import session_state, values
from twophase.spark.jvm.partitions import path_of
from twophase.spark.metastore.base import SessionStore, mentions, spark_errors, strings, words

_CATALOG = "org.apache.spark.sql.catalyst.catalog."


class SessionDatabases(SessionStore):
    """The part of :class:`.SessionMetastore` for databases."""

    def list_databases(self) -> list[str]:
        return sorted(strings(self._catalog.listDatabases()))

    def get_database(self, database: str) -> dict[str, str] | None:
        found = self._database(database)
        if found is None:
            return None
        facts = {"location": path_of(found["locationUri"]), "comment": found["description"] or ""}
        return {**found["properties"], **facts}

    def database_exists(self, database: str) -> bool:
        return bool(self._catalog.databaseExists(database))

    def database_location(self, database: str) -> str | None:
        found = self._database(database)
        return None if found is None else path_of(found["locationUri"])

    def new_database_location(self, database: str) -> str | None:
        uri = self._session_catalog().getDefaultDBPath(database)
        return str(self._jvm.static(_CATALOG + "CatalogUtils", "URIToString")(uri))

    def list_functions(self, database: str) -> list[str]:
        return [f"function {name}" for name in strings(self._catalog.listFunctions(database, "*"))]

    def _database(self, database: str) -> dict[str, Any] | None:
        """Each field of a ``CatalogDatabase``."""
        try:
            return values.to_json(self._jvm, self._catalog.getDatabase(database))
        except spark_errors() as error:
            if mentions(error, "SCHEMA_NOT_FOUND", "NoSuchDatabase"):
                return None
            raise

    def create_database(self, database: str, properties: Mapping[str, str], *, ignore_if_exists: bool) -> None:
        if not ignore_if_exists and self._catalog.databaseExists(database):
            raise DatabaseAlreadyExistsError(f"Database {database} already exists.", path=database)
        facts = dict(properties)
        location = facts.pop("location", None)
        default = self._session_catalog().getDefaultDBPath(database)
        uri = self._uri(location) if location else default
        definition = self._jvm.kind(_CATALOG + "CatalogDatabase")(
            database, facts.pop("comment", ""), uri, self._map(facts)
        )
        # The session's catalog resolves a relative location against the warehouse.
        self._session_catalog().createDatabase(definition, ignore_if_exists)

    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        if self.is_hive and "comment" in changes:
            raise CatalogError(
                f"Database {database} was not altered: a Hive metastore keeps the comment that it was created with.",
                path=database,
            )
        found = self._catalog.getDatabase(database)
        facts = {**values.entries(self._jvm, found.properties()), "comment": str(found.description() or "")}
        uri = self._uri(changes["location"]) if changes.get("location") else found.locationUri()
        for key, value in changes.items():
            facts[key] = value or ""
            if value is None:
                del facts[key]
        facts.pop("location", None)
        make, comment = self._jvm.kind(_CATALOG + "CatalogDatabase"), facts.pop("comment", "")
        self._catalog.alterDatabase(make(database, comment, uri, self._map(facts)))

    def drop_database(self, database: str, *, ignore_if_not_exists: bool, cascade: bool) -> None:
        if not self._catalog.databaseExists(database):
            if ignore_if_not_exists:
                return
            raise DatabaseNotExistError(f"Database {database} does not exist.", path=database)
        tables = list(strings(self._catalog.listTables(database))) if cascade else []
        try:
            self._own.drop_database(database, cascade=cascade)
        except spark_errors() as error:
            raise CatalogError(f"Database {database} cannot be dropped: {words(error)}", path=database) from error
        for table in tables:
            session_state.forget_relation(self._jvm, database, table)

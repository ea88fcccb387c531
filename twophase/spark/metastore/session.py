"""The Spark session's own metastore, behind the interface of the Hive catalog.

Calls go to Spark's ``ExternalCatalog``, so that schemas of data source tables are kept in table properties as Spark
itself keeps them. What it does not have in one step (a rename with the kind, the whole definition at once) goes to the
Hive metastore below it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from twophase.catalogs.files import same
from twophase.catalogs.hive import identity as identities
from twophase.catalogs.hive.metastore import (
    EXTERNAL,
    MANAGED,
    STAMP,
    HiveTable,
    Located,
    unfenced,
)
from twophase.errors import (
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.model import BucketSpec
from twophase.spark import types
from twophase.spark.jvm import hive as jvm_hive
from twophase.spark.jvm.formats import short_name
from twophase.spark.jvm.partitions import path_of
from twophase.spark.metastore.base import SERDE_FIELDS, spark_errors, strings, tells
from twophase.spark.metastore.create import SessionCreation
from twophase.spark.metastore.databases import SessionDatabases
from twophase.spark.metastore.partitions import SessionPartitions

#: How many tables are asked for in one call: a metastore's answer has a largest size.
_TABLES_AT_ONCE = 1000


class SessionMetastore(SessionDatabases, SessionCreation, SessionPartitions):
    """Databases, tables and partitions of the session catalog, in memory or in a Hive metastore.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A classic session.
    jvm : Jvm, optional
        Its JVM, where it is at hand.
    """

    @property
    def read_by_session(self) -> bool:
        return True

    @functools.cached_property
    def identity(self) -> str:
        if self._hive is None:
            return identities.of_memory()
        facts = self._settings
        if facts["hive.metastore.uris"]:
            return identities.of_services(facts["hive.metastore.uris"])
        return identities.of_database(facts["javax.jdo.option.ConnectionURL"], facts["derby.system.home"])

    @property
    def ends_with_driver(self) -> bool:
        # A database that is a server, or a service that a client of its own stands for, may go on with a call.
        foreign = self._hive is not None and self._settings["hive.metastore.client.factory.class"]
        return not foreign and identities.is_embedded(self.identity)

    @functools.cached_property
    def _settings(self) -> dict[str, str]:
        assert self._hive is not None
        return jvm_hive.hive_settings(self._spark, self._hive.client)

    @property
    def longest_name(self) -> int:
        return 128 if self.is_hive else 200

    @property
    def changes_partition_columns(self) -> bool:
        return not self.is_hive

    def canonical(self, name: str) -> str:
        if not self.is_hive and self._spark.conf.get("spark.sql.caseSensitive", "false").lower() == "true":
            return name
        return name.lower()

    # -- tables --------------------------------------------------------------------------------------------------

    def list_tables(self, database: str) -> list[str]:
        return sorted(strings(self._catalog.listTables(database)))

    def get_table(self, database: str, name: str) -> HiveTable | None:
        # Asked first, because an exception costs dozens of calls over Py4J; it may still be dropped in between.
        if not self._catalog.tableExists(database, name):
            return None
        try:
            return self._from_spark(self._catalog.getTable(database, name))
        except spark_errors() as error:
            if tells(error, "TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "NoSuchTable", "NoSuchDatabase"):
                return None
            raise

    def located_tables(self, database: str) -> list[Located]:
        names = self._catalog.listTables(database)
        found: list[Located] = []
        for start in range(0, names.size(), _TABLES_AT_ONCE):
            tables = self._catalog.getTablesByName(database, names.slice(start, start + _TABLES_AT_ONCE))
            found += map(_located, self._texts.tables(tables))
        return found

    def alter_table(self, table: HiveTable) -> None:
        self._catalog.alterTable(self._changed(table))

    def point_table(self, table: HiveTable, files: int, size: int, *, instead_of: str | None = None) -> None:
        if self._hive is None:
            self.alter_table(table)
        else:
            self._hive.point(table, files, size, expected=instead_of)

    def place_table(self, table: HiveTable, *, instead_of: str | None = None) -> None:
        if self._hive is None:
            self.alter_table(table)
        else:
            self._hive.place(table.database, table.name, str(table.location), expected=instead_of)

    def set_option(self, database: str, name: str, key: str, value: str) -> None:
        found = self._catalog.getTable(database, name)
        settings = {**self._texts.storage(found.storage())["properties"], key: value}
        storage = self._case.copy(found.storage(), properties=self._map(settings))
        self._catalog.alterTable(self._case.copy(found, storage=storage))
        self._jvm.forget_relation(database, name)

    def fence_table(self, database: str, name: str, stamp: str) -> None:
        if self._hive is not None and self._catalog.tableExists(database, name):
            self._hive.fence(database, name, stamp)

    def alter_columns(self, table: HiveTable) -> None:
        width = len(table.schema) - len(table.partition_columns)
        self._catalog.alterTableDataSchema(table.database, table.name, self._struct(_first(table.schema, width)))

    def replace_in_one_step(self, table: HiveTable, template: str) -> bool:
        if self._hive is None:
            return True
        old = self._hive.client.getTable(table.database, table.name)
        return self._columns_fit(old, self._hive.client.getTable(table.database, template))

    def replace_table(
        self, table: HiveTable, template: str, *, same_files: bool = True, instead_of: str | None = None
    ) -> None:
        if self._hive is None:
            self._replace_in_memory(table, template)
            return
        # Where the columns do not fit, Spark still sees one step: it reads a data source table's from the properties.
        at_once = self.replace_in_one_step(table, template)
        self._hive.replace(table, template, at_once=at_once, look=not same_files, expected=instead_of)

    def _replace_in_memory(self, table: HiveTable, template: str) -> None:
        old = self._catalog.getTable(table.database, table.name)
        new = self._catalog.getTable(table.database, template)
        changes = {"identifier": old.identifier(), "tableType": self._kind(table.kind)}
        self._catalog.alterTable(self._case.copy(new, tracksPartitionsInCatalog=table.tracked, **changes))

    def _columns_fit(self, old: Any, new: Any) -> bool:
        before, after = (_types(raw) for raw in (old, new))
        return all(one == other for one, other in zip(before, after, strict=False))

    def rename_table(self, database: str, name: str, new_name: str, *, kind: str | None = None) -> None:
        rename = self._rename_in_memory if self._hive is None else self._hive.rename
        try:
            rename(database, name, new_name, kind)
        except spark_errors() as error:
            if self.get_table(database, name) is None:
                path = f"{database}.{name}"
                raise TableNotExistError(f"Table {path} does not exist.", path=path) from error
            if self.get_table(database, new_name) is not None:
                path = f"{database}.{new_name}"
                raise TableAlreadyExistsError(f"Table {path} exists already.", path=path) from error
            raise

    def _rename_in_memory(self, database: str, name: str, new_name: str, kind: str | None) -> None:
        table = self._catalog.getTable(database, name)
        before = str(table.tableType().name())
        if before == MANAGED:
            # The catalog in memory moves the files of a managed table, never those of an external one.
            self._catalog.alterTable(self._case.copy(table, tableType=self._kind(EXTERNAL)))
        self._catalog.renameTable(database, name, new_name)
        if (kind or before) == MANAGED:
            renamed = self._catalog.getTable(database, new_name)
            self._catalog.alterTable(self._case.copy(renamed, tableType=self._kind(MANAGED)))

    def rename_with_files(self, database: str, name: str, new_name: str) -> None:
        self._catalog.renameTable(database, name, new_name)

    def lost_location(self, database: str, name: str) -> str | None:
        if self._hive is None:
            return None
        storage = self._hive.client.getTable(database, name).storage()
        facts = self._texts.storage(storage)
        path, uri = facts["properties"].get("path"), facts["locationUri"]
        if path is None or uri is None:
            return None
        location = path_of(uri)
        return None if same(location, path) else location

    def drop_table(self, database: str, name: str) -> None:
        self._catalog.dropTable(database, name, True, False)
        self._jvm.forget_relation(database, name)  # Or the next table of this name is read as this one.

    # -- the session ---------------------------------------------------------------------------------------------

    def changed(self, database: str, name: str, *, written: bool = False, fresh: bool = False) -> None:
        if written:
            self._caches.follow(database, name, statistics=not fresh or self._sizes_tables())
        else:
            self._jvm.forget_relation(database, name)

    def _sizes_tables(self) -> bool:
        return self._spark.conf.get("spark.sql.statistics.size.autoUpdate.enabled", "false").lower() == "true"

    # -- to Spark and back ---------------------------------------------------------------------------------------

    def _from_spark(self, found: Any) -> HiveTable:
        storage = self._texts.storage(found.storage())
        location = storage["locationUri"]
        bucketing = found.bucketSpec()
        provider = found.provider()
        serde = self._is_serde(provider)
        return HiveTable(
            database=str(found.identifier().database().get()),
            name=str(found.identifier().table()),
            kind=str(found.tableType().name()),
            schema=types.to_arrow(str(found.schema().json())),
            provider=short_name(self._spark, str(provider.get())) if provider.isDefined() else None,
            location=None if location is None else path_of(location),
            partition_columns=tuple(strings(found.partitionColumnNames())),
            bucketing=_bucketing(bucketing.get()) if bucketing.isDefined() else None,
            serde=self._serde(storage) if serde else {},
            options={k: v for k, v in storage["properties"].items() if k.lower() != "path"},
            properties=self._jvm.entries(found.properties()),
            comment=str(found.comment().get()) if found.comment().isDefined() else None,
            tracked=serde or bool(found.tracksPartitionsInCatalog()),
            extra={"spark": found},
        )

    def _is_serde(self, provider: Any) -> bool:
        return bool(provider.isDefined()) and str(provider.get()).lower() == "hive"

    @staticmethod
    def _serde(storage: Mapping[str, Any]) -> dict[str, str]:
        found = {key: storage[name] for key, name in SERDE_FIELDS.items()}
        return {key: value for key, value in found.items() if value is not None}

    def _changed(self, table: HiveTable) -> Any:
        """The table as it was read, with what :meth:`alter_table` may set."""
        found = table.extra.get("spark") or self._catalog.getTable(table.database, table.name)
        storage = self._case.copy(found.storage(), locationUri=self._option(self._uri(table.location)))
        return self._case.copy(
            found,
            storage=storage,
            tableType=self._kind(table.kind),
            properties=self._map(table.properties),
            comment=self._option(table.comment),
            tracksPartitionsInCatalog=table.tracked,
            stats=self._none(),
            ignoredProperties=self._map({}),
        )


def _located(facts: Mapping[str, Any]) -> Located:
    """Where a table lies, by what Spark's catalog says of it."""
    names, place, stamp = facts["identifier"], facts["storage"]["locationUri"], facts["properties"].get(STAMP)
    tracked = str(facts["provider"]).lower() == "hive" or facts["tracksPartitionsInCatalog"]
    return Located(
        database=names["database"],
        name=names["table"],
        kind=facts["tableType"]["name"],
        location=None if place is None else path_of(place),
        partition_columns=tuple(facts["partitionColumnNames"]) if tracked else (),
        stamp=None if stamp is None else unfenced(stamp),
    )


def _first(schema: Any, width: int) -> Any:
    import pyarrow as pa

    return pa.schema([schema.field(index) for index in range(width)])


def _bucketing(spec: Any) -> BucketSpec:
    return BucketSpec(
        int(spec.numBuckets()), tuple(strings(spec.bucketColumnNames())), tuple(strings(spec.sortColumnNames()))
    )


def _types(raw: Any) -> list[str]:
    fields = raw.schema().fields()
    width = len(fields) - int(raw.partitionColumnNames().length())
    return [str(fields[index].dataType().json()) for index in range(width)]

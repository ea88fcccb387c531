"""The Spark session's own metastore, behind the interface of the Hive catalog.

Calls go to Spark's ``ExternalCatalog``, so that schemas of data source tables are stored in table properties as by
Spark itself. Operations that it does not support in one step (a rename that sets the kind, replacing the whole
definition) go to the Hive metastore below it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from twophase.catalogs.files import same
from twophase.catalogs.hive import identity as identities
from twophase.catalogs.hive.definitions import SERDE_PROVIDER
from twophase.catalogs.hive.schema.columns import Columns
from twophase.catalogs.hive.schema.readers import EVOLVING
from twophase.catalogs.hive.stamps import STAMP, StampChangedError, unfenced
from twophase.catalogs.hive.tables import EXTERNAL, MANAGED, HiveTable, Located
from twophase.errors import (
    CatalogError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.model import BucketSpec
from twophase.spark import types
from twophase.spark.jvm import hive as jvm_hive
from twophase.spark.jvm import session_state
from twophase.spark.jvm.formats import short_name
from twophase.spark.jvm.partitions import path_of
from twophase.spark.metastore import columns as spark_columns
from twophase.spark.metastore.base import SERDE_FIELDS, spark_errors, strings
from twophase.spark.metastore.create import COLLATION, SessionCreation
from twophase.spark.metastore.databases import SessionDatabases
from twophase.spark.metastore.partitions import SessionPartitions

#: Number of tables fetched in one call: the size of a metastore's response is limited.
_TABLES_AT_ONCE = 1000
#: From this number on, tables are read together: a Hive metastore finds a single one three times as fast by its name.
_FEW_TABLES = 4
#: Setting of the ORC reader.
_BY_POSITION = "orc.force.positional.evolution"
#: The parameter of a table in a Hive metastore with its comment.
_COMMENT = "comment"


class SessionMetastore(SessionDatabases, SessionCreation, SessionPartitions):
    """Databases, tables and partitions of the session catalog, in memory or in a Hive metastore.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A classic session.
    jvm : Jvm, optional
        Its JVM, if available.
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
        # A remote database, or a service behind a client of its own, may continue with a call after the driver's crash.
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

    def get_table(self, database: str, name: str, *, as_analyzed: bool = False) -> HiveTable | None:
        # The metastore is asked each time: only facts that have not changed are not transferred again.
        key = ("table read", database, name)
        before: HiveTable | None = self._jvm.remembered.get(key)
        known = None if before is None else (before.extra["found"], before.extra["facts"])
        found = self._texts.table(self._catalog, database, name, known, as_analyzed=as_analyzed)
        if found is None or found is known:
            return None if found is None else before
        return self._jvm.remembered.put(key, self._from_spark(*found))

    def located_tables(self, database: str) -> list[Located]:
        names = self._catalog.listTables(database)
        found: list[Located] = []
        for start in range(0, names.size(), _TABLES_AT_ONCE):
            tables = self._catalog.getTablesByName(database, names.slice(start, start + _TABLES_AT_ONCE))
            found += map(_located, self._texts.tables(tables))
        return found

    def find_located(self, database: str, names: Sequence[str]) -> list[Located]:
        if len(names) < _FEW_TABLES:
            return super().find_located(database, names)
        each = (names[start : start + _TABLES_AT_ONCE] for start in range(0, len(names), _TABLES_AT_ONCE))
        return [_located(facts) for some in each for facts in self._texts.tables_named(self._catalog, database, some)]

    def alter_table(self, table: HiveTable) -> None:
        self._catalog.alterTable(self._changed(table))

    def point_table(
        self, table: HiveTable, files: int, size: int, *, instead_of: str | None = None, redefined: bool = False
    ) -> None:
        seen, now = self._as_seen(table) if redefined else (None, table)
        if self._hive is None:
            latest, stamp = self._latest(table, instead_of), table.stored_stamp
            noted = {key: value for key, value in latest.properties.items() if key != STAMP}
            properties = noted if stamp is None else {**noted, STAMP: stamp}
            pointed = replace(latest, location=table.location, properties=properties)
            fields = {"schema": self._struct(table.schema)} if redefined else {}
            self._catalog.alterTable(self._case.copy(self._changed(pointed), **fields))
        else:
            columns = (seen, self._described(now, table)) if redefined else None
            self._hive.point(table, files, size, expected=instead_of, redefined=columns)

    @property
    def points_as_read(self) -> bool:
        return self.is_hive

    def point_as_read(self, table: HiveTable, files: int, size: int) -> HiveTable | None:
        if self._hive is None:
            return None
        found = self._hive.point_as_read(self._texts.reader(self._catalog), table, files, size)
        facts = {**table.extra["facts"], "stats": False}
        return None if found is None else replace(table, extra={"found": found, "facts": facts})

    def place_table(self, table: HiveTable, *, instead_of: str | None = None) -> None:
        if self._hive is None:
            self.alter_table(replace(self._latest(table, instead_of), location=table.location))
        else:
            self._hive.place(table.database, table.name, str(table.location), expected=instead_of)

    def set_option(self, database: str, name: str, key: str, value: str) -> None:
        if self._hive is None:
            self._set_in_memory(database, name, key, value)
        else:
            self._hive.set_option(database, name, key, value)
        session_state.forget_relation(self._jvm, database, name)

    def _set_in_memory(self, database: str, name: str, key: str, value: str) -> None:
        found = self._catalog.getTable(database, name)
        settings = {**self._texts.storage(found.storage())["properties"], key: value}
        storage = self._case.copy(found.storage(), properties=self._map(settings))
        self._catalog.alterTable(self._case.copy(found, storage=storage))

    def fence_table(self, database: str, name: str, stamp: str) -> None:
        if self._hive is not None and self._catalog.tableExists(database, name):
            self._hive.fence(database, name, stamp)

    def alter_definition(self, table: HiveTable) -> None:
        seen, now = self._as_seen(table)
        changed = not table.schema.equals(now.schema, check_metadata=True)
        # Spark could not read the minimum of a date as that of a timestamp.
        has_others = not _columns(now) <= _columns(table)
        if self._hive is None:
            fields = {"schema": self._struct(table.schema)} if changed else {}
            if has_others:
                fields["stats"] = self._option(None)
            facts = {"properties": self._properties(table.properties), "comment": self._option(table.comment)}
            self._catalog.alterTable(self._case.copy(now.extra["found"].table(), **fields, **facts))
            return
        needs = table.provider == SERDE_PROVIDER
        described = self._described(now, table) if changed else None
        self._hive.redefine(seen, _noted(now, table), described, needs=needs, has_others=has_others)

    def _as_seen(self, table: HiveTable) -> tuple[Any, HiveTable]:
        """The table as the Hive metastore has it, and as Spark reads it, if it has not changed since it was read."""
        name = f"{table.database}.{table.name}"
        if not self._catalog.tableExists(table.database, table.name):
            raise StampChangedError(name)
        seen = None if self._hive is None else self._hive.stored(table.database, table.name)
        now = self.get_table(table.database, table.name)
        if now is None or _as_read(now) != _as_read(table):
            raise StampChangedError(name)
        return seen, now

    def _described(self, now: HiveTable, table: HiveTable) -> Any:
        """Spark's own table with other columns."""
        return self._case.copy(now.extra["found"].table(), schema=self._struct(table.schema))

    @property
    def reads_by_ids(self) -> bool:
        return self._spark.conf.get("spark.sql.parquet.fieldId.read.enabled", "false").lower() == "true"

    @property
    def writes_ids(self) -> bool:
        return self._spark.conf.get("spark.sql.parquet.fieldId.write.enabled", "true").lower() == "true"

    def reads_by_position(self, table: HiveTable) -> str | None:
        given = {key.lower(): value for key, value in table.options.items()}
        setting = given.get(_BY_POSITION) or session_state.hadoop_setting(self._jvm, _BY_POSITION)
        if setting is not None and setting.lower() == "true":
            return f"{_BY_POSITION} is true"
        return "spark.sql.orc.impl is hive" if self._spark.conf.get("spark.sql.orc.impl") == "hive" else None

    def columns_of(self, table: HiveTable) -> Columns | None:
        if table.provider not in EVOLVING or not table.schema.names:
            return None
        name, can_have_ids = f"{table.database}.{table.name}", table.provider == "parquet"
        described = types.from_arrow(table.schema)
        return spark_columns.read(name, described, table.partition_columns, can_have_ids=can_have_ids)

    def schema_of_file(self, schema: pa.Schema) -> pa.Schema:
        return spark_columns.of_file(schema)

    def has_marks(self, schema: pa.Schema) -> bool:
        return spark_columns.has_ids(schema)

    def has_former_columns(self, table: HiveTable) -> bool:
        if self._hive is None:
            return False
        return self._hive.has_former_columns(table.database, table.name, table.extra["found"].table())

    def with_columns(self, table: HiveTable, columns: Columns) -> HiveTable:
        return replace(table, schema=spark_columns.write(columns))

    def numbered(self, schema: pa.Schema, partition_columns: Sequence[str], *, with_ids: bool) -> pa.Schema:
        return spark_columns.numbered(schema, partition_columns) if with_ids else spark_columns.plain(schema)

    def rows_for(self, df: Any, schema: pa.Schema) -> Any:
        return spark_columns.rows_for(df, schema)

    def replace_in_one_step(self, table: HiveTable, template: str) -> bool:
        if self._hive is None:
            return True
        old = self._hive.client.getTable(table.database, table.name)
        return self._columns_fit(old, self._hive.client.getTable(table.database, template))

    def replace_table(
        self, table: HiveTable, template: str, *, same_files: bool = True, instead_of: str | None = None
    ) -> None:
        if self._hive is None:
            self._require_stamp(table.database, table.name, instead_of)
            self._replace_in_memory(table, template)
            return
        # If columns do not fit, it is one step for Spark: it reads a data source table's from the properties.
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

    def rename_table(
        self,
        database: str,
        name: str,
        new_name: str,
        *,
        kind: str | None = None,
        stamp: str | None = None,
        instead_of: str | None = None,
    ) -> None:
        rename = self._rename_in_memory if self._hive is None else self._hive.rename
        try:
            rename(database, name, new_name, kind, stamp=stamp, expected=instead_of)
        except spark_errors() as error:
            if self.get_table(database, name) is None:
                path = f"{database}.{name}"
                raise TableNotExistError(f"Table {path} does not exist.", path=path) from error
            if self.get_table(database, new_name) is not None:
                path = f"{database}.{new_name}"
                raise TableAlreadyExistsError(f"Table {path} already exists.", path=path) from error
            raise

    def _rename_in_memory(
        self, database: str, name: str, new_name: str, kind: str | None, *, stamp: str | None, expected: str | None
    ) -> None:
        table = self._catalog.getTable(database, name)
        before = str(table.tableType().name())
        seen = self._require_stamp(database, name, expected)
        properties = {} if seen is None else dict(seen.properties)
        if before == MANAGED:
            # The in-memory catalog moves the files of a managed table, never those of an external one.
            self._catalog.alterTable(self._case.copy(table, tableType=self._kind(EXTERNAL)))
        self._own.rename(database, name, new_name)
        changes: dict[str, Any] = {"tableType": self._kind(MANAGED)} if (kind or before) == MANAGED else {}
        if stamp is not None:
            noted = {key: value for key, value in properties.items() if key != STAMP}
            changes["properties"] = self._properties({**noted, **({STAMP: stamp} if stamp else {})})
        if changes:
            self._catalog.alterTable(self._case.copy(self._catalog.getTable(database, new_name), **changes))

    def _require_stamp(self, database: str, name: str, expected: str | None) -> HiveTable | None:
        """Look up a table just before a change: the in-memory catalog takes no conditions."""
        seen = self.get_table(database, name)
        if expected is not None and (seen is None or seen.expected_stamp != expected):
            raise StampChangedError(f"{database}.{name}")
        return seen

    def _latest(self, table: HiveTable, expected: str | None) -> HiveTable:
        """The table as it is just before a change, which then undoes nothing that another session has altered."""
        return self._require_stamp(table.database, table.name, expected) or table

    def rename_with_files(self, database: str, name: str, new_name: str) -> None:
        self._own.rename(database, name, new_name)

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
        self._own.drop(database, name)
        session_state.forget_relation(self._jvm, database, name)  # Or the next table of this name is read as this one.

    # -- the session ---------------------------------------------------------------------------------------------

    def changed(
        self, database: str, name: str, *, written: bool = False, counted: bool = True, seen: HiveTable | None = None
    ) -> None:
        if not written:
            session_state.forget_relation(self._jvm, database, name)
            return
        counted = counted and (seen is None or seen.extra["facts"]["stats"])
        if seen is not None and not counted and self._caches.follow_files(database, name, seen.extra["found"]):
            return
        table = seen.extra["found"].table() if seen else None
        self._caches.follow(database, name, statistics=counted or self._sizes_tables(), table=table)

    def _sizes_tables(self) -> bool:
        return self._spark.conf.get("spark.sql.statistics.size.autoUpdate.enabled", "false").lower() == "true"

    # -- to Spark and back ---------------------------------------------------------------------------------------

    def _from_spark(self, found: Any, facts: Mapping[str, Any]) -> HiveTable:
        """Convert a Spark table from its JSON facts; ``found`` holds the table itself."""
        storage, provider, bucketing = facts["storage"], facts["provider"], facts["bucketSpec"]
        location = storage["locationUri"]
        serde = str(provider).lower() == SERDE_PROVIDER
        return HiveTable(
            database=facts["identifier"]["database"],
            name=facts["identifier"]["table"],
            kind=facts["tableType"]["name"],
            schema=types.to_arrow(facts["schema"]),
            provider=None if provider is None else short_name(self._spark, provider),
            location=None if location is None else path_of(location),
            partition_columns=tuple(facts["partitionColumnNames"]),
            bucketing=None if bucketing is None else _bucketing(bucketing),
            serde=self._serde(storage) if serde else {},
            options={k: v for k, v in storage["properties"].items() if k.lower() != "path"},
            properties=facts["properties"] | ({COLLATION: facts[COLLATION]} if facts.get(COLLATION) else {}),
            comment=facts["comment"],
            tracked=serde or facts["tracksPartitionsInCatalog"],
            created=facts["createTime"],
            extra={"found": found, "facts": facts},
        )

    @staticmethod
    def _serde(storage: Mapping[str, Any]) -> dict[str, str]:
        found = {key: storage[name] for key, name in SERDE_FIELDS.items()}
        return {key: value for key, value in found.items() if value is not None}

    def _changed(self, table: HiveTable) -> Any:
        """The table as it was read, with the fields that :meth:`alter_table` may set."""
        known = table.extra.get("found")
        found = known.table() if known else self._catalog.getTable(table.database, table.name)
        storage = self._case.copy(found.storage(), locationUri=self._option(self._uri(table.location)))
        return self._case.copy(
            found,
            storage=storage,
            tableType=self._kind(table.kind),
            properties=self._properties(table.properties),
            comment=self._option(table.comment),
            tracksPartitionsInCatalog=table.tracked,
            stats=self._none(),
            ignoredProperties=self._map({}),
        )


def _located(facts: Mapping[str, Any]) -> Located:
    """The location of a table, from the facts of Spark's catalog."""
    names, place, stamp = facts["identifier"], facts["storage"]["locationUri"], facts["properties"].get(STAMP)
    tracked = str(facts["provider"]).lower() == SERDE_PROVIDER or facts["tracksPartitionsInCatalog"]
    return Located(
        database=names["database"],
        name=names["table"],
        kind=facts["tableType"]["name"],
        location=None if place is None else path_of(place),
        partition_columns=tuple(facts["partitionColumnNames"]) if tracked else (),
        stamp=None if stamp is None else unfenced(stamp),
    )


def _as_read(table: HiveTable) -> list[Any]:
    """The state of a table on which an ``ALTER TABLE`` is based."""
    facts = table.extra["facts"]
    return [facts[key] for key in ("tableType", "provider", "storage", "schema", "properties", "comment")]


def _columns(table: HiveTable) -> set[tuple[str, str]]:
    """Names and types of the columns."""
    return {(field.name, str(field.type)) for field in table.schema}


def _noted(now: HiveTable, table: HiveTable) -> dict[str, str | None]:
    """The changed parameters of a table in a Hive metastore."""
    before, wanted = ({**one.properties, _COMMENT: one.comment} for one in (now, table))
    changed = {key: wanted.get(key) for key in {*before, *wanted} if before.get(key) != wanted.get(key)}
    for key in changed:
        if key == "EXTERNAL" or key.startswith("spark.sql."):
            path = f"{table.database}.{table.name}"
            raise CatalogError(f"{path} was not altered: the property {key} is Spark's own.", path=path)
    return changed


def _bucketing(spec: Mapping[str, Any]) -> BucketSpec:
    return BucketSpec(spec["numBuckets"], tuple(spec["bucketColumnNames"]), tuple(spec["sortColumnNames"]))


def _types(raw: Any) -> list[Any]:
    """Types of the columns of a ``CatalogTable``, but of those that it is partitioned by."""
    fields = json.loads(str(raw.schema().json()))["fields"]
    return [field["type"] for field in fields[: len(fields) - int(raw.partitionColumnNames().length())]]

"""New tables in the session's metastore."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from twophase.catalogs.hive.tables import EXTERNAL, MANAGED, HiveTable
from twophase.errors import DatabaseNotExistError, TableAlreadyExistsError
from twophase.model import BucketSpec
from twophase.spark import types
from twophase.spark.jvm.formats import hive_format
from twophase.spark.jvm.metastore import Draft
from twophase.spark.jvm.partitions import uri_of
from twophase.spark.metastore.base import SERDE_FIELDS, SessionStore, mentions, spark_errors

#: A table's DEFAULT COLLATION: the field of Spark's table, and its property in Spark's catalog interface and in Hive.
COLLATION = "collation"
_CATALOG = "org.apache.spark.sql.catalyst.catalog."
#: Types that are the same in Hive and in Spark: a table of only these has its columns in the metastore, too.
_HIVE_TYPES = frozenset("boolean byte short integer long float double string binary date timestamp".split())
_HIVE_FORMATS = ("parquet", "orc")
#: Spark's option for a table that Hive must not read.
_NOT_FOR_HIVE = "skiphivemetadata"


class SessionCreation(SessionStore):
    """The part of :class:`.SessionMetastore` that creates tables."""

    def creates_in_one_step(self, provider: str) -> bool:
        # Spark would not pass the location of a managed data source table to Hive, which then uses the default one.
        return self._hive is None or provider == "hive"

    def creates_at_once(self, table: HiveTable) -> bool:
        return self.creates_in_one_step(str(table.provider)) or self._is_plain(table)

    @staticmethod
    def _is_plain(table: HiveTable) -> bool:
        """Return whether Spark would certainly store a table in Hive's own way, and not in its own or refuse it."""
        if str(table.provider).lower() not in _HIVE_FORMATS or table.partition_columns or table.bucketing is not None:
            return False
        if any(key == "EXTERNAL" or key.startswith("spark.sql.") for key in table.properties):
            return False
        if any(key.lower() == _NOT_FOR_HIVE for key in table.options):
            return False
        fields = json.loads(types.from_arrow(table.schema))["fields"]
        return all(
            isinstance(field["type"], str)
            and (field["type"] in _HIVE_TYPES or field["type"].startswith("decimal("))
            and set(field["metadata"]) <= {"comment"}
            for field in fields
        )

    def create_table(self, table: HiveTable) -> None:
        in_two = table.kind == MANAGED and not self.creates_in_one_step(str(table.provider))
        if in_two and self._is_plain(table) and self._created_at_once(table):
            return
        try:
            self._own.create(self._to_spark(replace(table, kind=EXTERNAL) if in_two else table))
        except spark_errors() as error:
            self._refuse(error, table)
            raise
        if in_two:
            self.make_managed(table.database, table.name)

    def _created_at_once(self, table: HiveTable) -> bool:
        """Create a managed table whose location Hive knows; False if Hive does not accept it in its own way."""
        assert self._hive is not None
        try:
            self._hive.create(self._as_kept(table))
        except spark_errors() as error:
            self._refuse(error, table)
            return False  # Spark itself then stores it in its own way.
        return True

    def _as_kept(self, table: HiveTable) -> Any:
        """The table as Spark stores a data source table in Hive, except that its location is Hive's as well."""
        assert self._hive is not None
        options = {**table.options, "path": str(table.location)}
        draft = self._draft(replace(table, options=options, serde=hive_format(self._jvm, str(table.provider))))
        spark = self._hive.properties_of(draft.make(), str(table.provider))
        return draft.make(properties=self._map({**table.properties, **spark}))

    def make_managed(self, database: str, name: str) -> None:
        if self._hive is None:
            found = self._catalog.getTable(database, name)
            self._catalog.alterTable(self._case.copy(found, tableType=self._kind(MANAGED)))
        else:
            self._hive.make_managed(database, name)

    def _refuse(self, error: Exception, table: HiveTable) -> None:
        path = f"{table.database}.{table.name}"
        if mentions(error, "TABLE_OR_VIEW_ALREADY_EXISTS", "TableAlreadyExists", "AlreadyExistsException"):
            raise TableAlreadyExistsError(f"Table {path} already exists.", path=path) from error
        if mentions(error, "SCHEMA_NOT_FOUND", "NoSuchDatabase"):
            raise DatabaseNotExistError(f"Database {table.database} does not exist.", path=path) from error

    # -- to Spark ------------------------------------------------------------------------------------------------

    def _to_spark(self, table: HiveTable) -> Any:
        return self._draft(table).make()

    def _draft(self, table: HiveTable) -> Draft:
        storage = {
            **{name: table.serde.get(key) for key, name in SERDE_FIELDS.items()},
            "locationUri": None if table.location is None else uri_of(table.location),
            "properties": dict(table.options),
        }
        collation = table.properties.get(COLLATION)
        more = {} if collation is None else {COLLATION: self._option(collation)}
        return self._case.draft(
            _CATALOG + "CatalogTable",
            self._identifier(table.database, table.name),
            self._kind(table.kind),
            self._texts.make_storage(storage),
            self._struct(table.schema),
            provider=self._option(table.provider),
            partitionColumnNames=self._seq(table.partition_columns),
            bucketSpec=self._option(self._bucket_spec(table.bucketing)),
            createTime=time.time_ns() // 1_000_000,
            createVersion=self._version,
            properties=self._properties(table.properties),
            comment=self._option(table.comment),
            tracksPartitionsInCatalog=table.tracked and bool(table.partition_columns),
            **more,
        )

    def _properties(self, properties: Mapping[str, str]) -> Any:
        """The properties as Spark has them, which keeps the collation apart, unlike Hive and twophase."""
        return self._map({key: value for key, value in properties.items() if key != COLLATION})

    def _bucket_spec(self, bucketing: BucketSpec | None) -> Any | None:
        if bucketing is None:
            return None
        return self._jvm.kind(_CATALOG + "BucketSpec")(
            bucketing.count, self._seq(bucketing.columns), self._seq(bucketing.sort_columns)
        )

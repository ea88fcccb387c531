"""A metastore reached through HiveServer2 with PyHive: every change is an SQL statement.

No SQL statement sets location, columns and properties together, or the locations of several partitions. This metastore
reports these limits, and publishes then have a lower level. Tables with a LOCATION are EXTERNAL in SQL: dropping one
leaves its files, which ``clean`` removes.

The server must support Spark SQL (Spark's Thrift server, Kyuubi, or a managed Spark service).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from twophase.catalog.spark_columns import SPARK_FIELD
from twophase.catalogs.hive import ddl
from twophase.catalogs.hive.hiveserver2_client import SqlClient
from twophase.catalogs.hive.layout import HIDDEN_PREFIX, partition_values
from twophase.catalogs.hive.metastore import Metastore
from twophase.catalogs.hive.options import Settings
from twophase.catalogs.hive.schema.columns import DEFAULTS
from twophase.catalogs.hive.stamps import STAMP, StampChangedError, unfenced
from twophase.catalogs.hive.tables import EXTERNAL, MANAGED, VIEW, HivePartition, HiveTable, Located, partition_key
from twophase.errors import (
    CatalogError,
    DatabaseAlreadyExistsError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.model import BucketSpec, quote

#: The stamp of a table, in the text of SHOW TABLE EXTENDED.
_STAMP = re.compile(rf"[\[ ]{re.escape(STAMP)}=([^],\n]+)")


def open_metastore(settings: Settings) -> Metastore:
    """Return the metastore that a catalog's settings name; it connects on first use."""
    return HiveServer2Metastore(SqlClient(settings))


class HiveServer2Metastore(Metastore):
    """Databases, tables and partitions through SQL."""

    #: Size of the batches in which Spark's server adds partitions.
    ADD_BATCH = 100

    def __init__(self, client: SqlClient) -> None:
        self._client = client
        self._lock = threading.RLock()

    def canonical(self, name: str) -> str:
        return name.lower()

    @property
    def identity(self) -> str:
        return f"hiveserver2:{self._client.address}"

    @property
    def replaces_tables(self) -> bool:
        return False

    @property
    def altered_in_one_step(self) -> int:
        return 1

    @property
    def added_in_one_step(self) -> int:
        return self.ADD_BATCH

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        if ddl.VARIABLE in sql:
            raise CatalogError(
                f"HiveServer2 was not asked: a name in the statement holds {ddl.VARIABLE}, for which a server puts a "
                "value of its own.",
                hint="Rename the column.",
            )
        with self._lock:
            return self._client.run(sql)

    def close(self) -> None:
        self._client.close()

    # -- databases -----------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        return sorted(str(row[0]) for row in self._run("SHOW DATABASES"))

    def get_database(self, database: str) -> dict[str, str] | None:
        if database not in self.list_databases():
            return None
        # Of a database Spark tells the location as a URI, of tables and partitions as a path, where a % is just that.
        rows = {str(row[0]): str(row[1]) for row in self._run(f"DESCRIBE DATABASE EXTENDED {quote(database)}")}
        return {"location": unquote(rows.get("Location", "")), "comment": rows.get("Comment", "")}

    def create_database(self, database: str, properties: Mapping[str, str], *, ignore_if_exists: bool) -> None:
        if database in self.list_databases():
            if ignore_if_exists:
                return
            raise DatabaseAlreadyExistsError(f"Database {database} already exists.", path=database)
        # Spark names an owner, but a server takes none: it is the user that it knows.
        facts = {key: value for key, value in properties.items() if key != "owner"}
        comment, location = facts.pop("comment", None), facts.pop("location", None)
        sql = f"CREATE DATABASE {quote(database)}"
        sql += f" COMMENT {ddl.literal(comment)}" if comment else ""
        sql += f" LOCATION {ddl.literal(location)}" if location else ""
        sql += f" WITH DBPROPERTIES {ddl.pairs(facts)}" if facts else ""
        self._run(sql)

    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        kept = {key: value for key, value in changes.items() if value is not None}
        if len(kept) < len(changes) or {"comment", "location"} & set(kept):
            raise CatalogError(
                f"Database {database} was not altered: HiveServer2 can only set its properties.", path=database
            )
        self._run(f"ALTER DATABASE {quote(database)} SET DBPROPERTIES {ddl.pairs(kept)}")

    def drop_database(self, database: str, *, ignore_if_not_exists: bool, cascade: bool) -> None:
        if database not in self.list_databases():
            if ignore_if_not_exists:
                return
            raise DatabaseNotExistError(f"Database {database} does not exist.", path=database)
        try:
            self._run(f"DROP DATABASE {quote(database)} {'CASCADE' if cascade else 'RESTRICT'}")
        except CatalogError:
            # A server may call its metastore twice, and the second call finds no such database.
            if database in self.list_databases():
                raise

    # -- tables --------------------------------------------------------------------------------------------------

    def list_tables(self, database: str) -> list[str]:
        return sorted(str(row[1]) for row in self._run(f"SHOW TABLES IN {quote(database)}") if not _temporary(row))

    def get_table(self, database: str, name: str, *, as_analyzed: bool = False) -> HiveTable | None:
        facts = self._facts(database, name)
        return None if facts is None else _table(database, name, facts)

    def _facts(self, database: str, name: str) -> dict[str, Any] | None:
        try:
            rows = self._run(f"DESCRIBE TABLE EXTENDED {ddl.table_name(database, name)} AS JSON")
        except CatalogError as error:
            if _is(error, "TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"):
                return None
            raise
        return dict(json.loads(rows[0][0]))

    def located_tables(self, database: str) -> list[Located]:
        found = []
        for _, name, _, text in self._described_tables(database):
            table = _located(database, name, text)
            if table is None:
                facts = self._facts(database, name)
                # Without its columns, whose types may be unknown here.
                table = None if facts is None else Located.of(_table(database, name, {**facts, "columns": []}))
            found += [] if table is None else [table]
        return found

    def _described_tables(self, database: str) -> list[tuple[Any, ...]]:
        """Describe all tables by one statement, with a text for each."""
        return [row for row in self._run(f"SHOW TABLE EXTENDED IN {quote(database)} LIKE '*'") if not _temporary(row)]

    def create_table(self, table: HiveTable) -> None:
        try:
            self._run(ddl.create_table(table))
        except CatalogError as error:
            path = f"{table.database}.{table.name}"
            if _is(error, "TABLE_OR_VIEW_ALREADY_EXISTS"):
                raise TableAlreadyExistsError(f"Table {path} already exists.", path=path) from error
            raise

    def alter_table(self, table: HiveTable) -> None:
        name = ddl.table_name(table.database, table.name)
        now = self.get_table(table.database, table.name)
        if now is None:
            raise TableNotExistError(f"Table {name} does not exist.", path=name)
        # The location first: setting it is the publish.
        if table.location and table.location != now.location:
            self._run(f"ALTER TABLE {name} SET LOCATION {ddl.literal(table.location)}")
        self._set_facts(now, table)

    def _set_facts(self, now: HiveTable, table: HiveTable) -> None:
        """Set the properties and the comment; nothing else, so that a publish meanwhile stays."""
        name = ddl.table_name(table.database, table.name)
        self._set_properties(name, now, table)
        if (table.comment or "") != (now.comment or ""):
            self._run(f"COMMENT ON TABLE {name} IS {ddl.literal(table.comment or '')}")

    def _set_properties(self, name: str, now: HiveTable, table: HiveTable) -> None:
        changed = {key: value for key, value in table.properties.items() if now.properties.get(key) != value}
        if changed:
            self._run(f"ALTER TABLE {name} SET TBLPROPERTIES {ddl.pairs(changed)}")
        if gone := sorted(set(now.properties) - set(table.properties)):
            keys = ", ".join(ddl.literal(key) for key in gone)
            self._run(f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ({keys})")

    def alter_definition(self, table: HiveTable) -> None:
        now = self.get_table(table.database, table.name)
        if now is None or now.stored_stamp != table.stored_stamp:
            raise StampChangedError(f"{table.database}.{table.name}")
        if not now.schema.equals(table.schema, check_metadata=True):
            raise CatalogError("Through HiveServer2 the columns of a table cannot be set in one statement.")
        self._set_facts(now, table)

    def replace_in_one_step(self, table: HiveTable, template: str) -> bool:
        return False

    def replace_table(
        self, table: HiveTable, template: str, *, same_files: bool = True, instead_of: str | None = None
    ) -> None:
        now = self.get_table(table.database, table.name)
        if now is None:
            raise TableNotExistError(f"Table {table.database}.{table.name} does not exist.")
        self.alter_table(replace(now, location=table.location, properties=table.properties, comment=table.comment))

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
        assert stamp is None  # No statement of a transaction renames a table here.
        path = f"{database}.{new_name}"
        if instead_of is not None:
            now = self.get_table(database, name)
            if now is not None and now.expected_stamp != instead_of:
                raise StampChangedError(f"{database}.{name}")
        try:
            self._run(f"ALTER TABLE {ddl.table_name(database, name)} RENAME TO {ddl.table_name(database, new_name)}")
        except CatalogError as error:
            if _is(error, "ALREADY_EXISTS", "already exists"):
                raise TableAlreadyExistsError(f"Table {path} already exists.", path=path) from error
            if _is(error, "TABLE_OR_VIEW_NOT_FOUND"):
                raise TableNotExistError(f"Table {database}.{name} does not exist.", path=path) from error
            raise

    def drop_table(self, database: str, name: str) -> None:
        self._run(f"DROP TABLE IF EXISTS {ddl.table_name(database, name)}")

    def forget_table(self, database: str, name: str) -> None:
        # SQL cannot change the kind. Tables of ours have a LOCATION and are external here; a managed table with a
        # backup was replaced, and its files may be removed.
        self.drop_table(database, name)

    def changed(
        self, database: str, name: str, *, written: bool = False, counted: bool = True, seen: HiveTable | None = None
    ) -> None:
        # The server's session caches the file listing of a table.
        if self.get_table(database, name) is not None:
            self._run(f"REFRESH TABLE {ddl.table_name(database, name)}")

    # -- partitions ----------------------------------------------------------------------------------------------

    def list_partitions(self, table: HiveTable) -> list[HivePartition]:
        return self._located_where(table, lambda values: True)

    def get_partitions(self, table: HiveTable, keys: Collection[tuple[str, ...]]) -> list[HivePartition]:
        wanted = set(keys)
        return self._located_where(table, lambda values: partition_key(values, table.partition_columns) in wanted)

    def partitions_within(self, table: HiveTable, values: Mapping[str, str]) -> list[HivePartition]:
        wanted = {column.lower(): value for column, value in values.items()}
        return self._located_where(
            table, lambda found: wanted.items() <= {column.lower(): value for column, value in found.items()}.items()
        )

    def _located_where(self, table: HiveTable, wanted: Callable[[dict[str, str]], bool]) -> list[HivePartition]:
        """Load partitions by their values: one statement for all names, and one for each location."""
        name = ddl.table_name(table.database, table.name)
        named = (partition_values(str(row[0]), table.partition_columns) for row in self._run(f"SHOW PARTITIONS {name}"))
        return [self._located(name, HivePartition(v, "")) for v in named if v is not None and wanted(v)]

    def _located(self, name: str, partition: HivePartition) -> HivePartition:
        rows = self._run(f"DESCRIBE TABLE EXTENDED {name} {ddl.partition_spec(partition)} AS JSON")
        facts = json.loads(rows[0][0])
        location = (facts.get("partition_location") or facts.get("location") or "") or _nested(facts, "location")
        return replace(partition, location=str(location))

    def add_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        for start in range(0, len(partitions), self.ADD_BATCH):
            self._run(ddl.add_partitions(table, partitions[start : start + self.ADD_BATCH]))

    def alter_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        name = ddl.table_name(table.database, table.name)
        for part in partitions:
            self._run(f"ALTER TABLE {name} {ddl.partition_spec(part)} SET LOCATION {ddl.literal(part.location)}")

    def drop_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        if partitions:
            specs = ", ".join(ddl.partition_spec(part) for part in partitions)
            self._run(f"ALTER TABLE {ddl.table_name(table.database, table.name)} DROP IF EXISTS {specs}")


def _table(database: str, name: str, facts: Mapping[str, Any]) -> HiveTable:
    kind = str(facts.get("type", EXTERNAL)).upper()
    keys = tuple(facts.get("partition_columns") or ())
    columns = [_field(column) for column in facts.get("columns", [])]
    data = [field for field in columns if field.name not in keys]
    ordered = [*data, *(field for key in keys for field in columns if field.name == key)]
    properties = {str(k): str(v) for k, v in (facts.get("table_properties") or {}).items()}
    options = {str(k): str(v) for k, v in (facts.get("storage_properties") or {}).items() if k.lower() != "path"}
    return HiveTable(
        database=database,
        name=name,
        kind=kind if kind in (MANAGED, EXTERNAL, VIEW) else EXTERNAL,
        schema=pa.schema(ordered),
        provider=str(facts["provider"]).lower() if facts.get("provider") else None,
        location=str(facts["location"]) if facts.get("location") else None,
        partition_columns=keys,
        bucketing=_buckets(facts),
        options=options,
        properties=properties,
        comment=facts.get("comment"),
        tracked=str(facts.get("partition_provider", "")).lower() == "catalog",
    )


def _located(database: str, name: str, text: str) -> Located | None:
    """Parse a table's location from a text description; None if the text is ambiguous, as a multi-line comment may be.

    Also None for partitioned and hidden tables, which must be described in detail anyway.
    """
    lines = [line.partition(": ") for line in text.splitlines()]
    facts = {key: [value for word, _, value in lines if word == key] for key in ("Type", "Location", "Database")}
    if any(len(values) != 1 for values in facts.values()) or name.startswith(HIDDEN_PREFIX):
        return None
    if facts["Type"][0] not in (MANAGED, EXTERNAL) or any(word == "Partition Columns" for word, _, _ in lines):
        return None
    stamp = _STAMP.search(text)
    kind, location = facts["Type"][0], facts["Location"][0]
    return Located(database, name, kind, location, stamp=None if stamp is None else unfenced(stamp[1]))


def _buckets(facts: Mapping[str, Any]) -> BucketSpec | None:
    if not facts.get("num_buckets"):
        return None
    sorting = tuple(facts.get("sort_columns") or ())
    return BucketSpec(int(facts["num_buckets"]), tuple(facts.get("bucket_columns") or ()), sorting)


def _field(column: Mapping[str, Any]) -> pa.Field:
    name, comment, default = str(column["name"]), column.get("comment"), column.get("default")
    arrow = ddl.arrow_type(_type_text(column["type"]))
    metadata = {} if comment is None else {b"comment": str(comment).encode()}
    if default is not None and (kind := ddl.spark_atom(arrow)) is not None:
        described = {"name": name, "type": kind, "nullable": True, "metadata": dict.fromkeys(DEFAULTS, str(default))}
        metadata[SPARK_FIELD] = json.dumps(described).encode()
    return pa.field(name, arrow, True, metadata or None)


def _type_text(kind: Mapping[str, Any]) -> str:
    name = str(kind["name"])
    if name == "decimal" and "precision" in kind:
        return f"decimal({kind['precision']},{kind['scale']})"
    if name in ("char", "varchar"):
        return f"{name}({kind.get('length', 255)})"
    if name == "array":
        return f"array<{_type_text(kind['element_type'])}>"
    if name == "map":
        return f"map<{_type_text(kind['key_type'])},{_type_text(kind['value_type'])}>"
    if name == "struct":
        return "struct<" + ",".join(f"{quote(f['name'])}:{_type_text(f['type'])}" for f in kind["fields"]) + ">"
    return {"timestamp_ltz": "timestamp"}.get(name, name)


def _nested(facts: Any, key: str) -> str:
    """Find a value anywhere in a nested description."""
    if isinstance(facts, dict):
        if isinstance(facts.get(key), str):
            return str(facts[key])
        return next((found for value in facts.values() if (found := _nested(value, key))), "")
    return ""


def _temporary(row: tuple[Any, ...]) -> bool:
    return len(row) > 2 and str(row[2]).lower() == "true"


def _is(error: Exception, *marks: str) -> bool:
    return any(mark in str(error) for mark in marks)

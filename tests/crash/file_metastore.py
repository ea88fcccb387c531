"""A Hive metastore in one JSON file: it outlives a killed driver and starts in no time.

Each changing call is one atomic step with a failpoint of its own, as a call to a real metastore is.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.crash.frames import read
from tests.crash.remote_files import local
from twophase import failpoints
from twophase.catalogs.files import Files
from twophase.catalogs.hive.definitions import is_recursive
from twophase.catalogs.hive.metastore import Metastore
from twophase.catalogs.hive.schema.columns import Columns
from twophase.catalogs.hive.stamps import STAMP, StampChangedError
from twophase.catalogs.hive.tables import MANAGED, HivePartition, HiveTable
from twophase.errors import (
    CatalogError,
    DatabaseAlreadyExistsError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.model import BucketSpec
from twophase.schema import assign_ids
from twophase.schema.convert_arrow import plain_type
from twophase.testing._store import Document, FileStore

CALLS = (
    *("create_table", "alter_table", "alter_definition", "replace_table", "rename_table", "drop_table"),
    *("add_partitions", "alter_partitions", "drop_partitions"),
    *("create_database", "alter_database", "drop_database"),
)
CHANGES = ("write_json", "make_directory", "move", "link", "remove_file", "remove_tree", "remove_if_empty")

POINTS = {
    name: failpoints.Failpoint(name)
    for name in (*(f"metastore.{call}" for call in CALLS), *(f"files.{change}" for change in CHANGES))
}


class ProbedFiles(Files):
    """The catalog's files, with a failpoint around each change."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name == "linking":
            return lambda *directories: _probed("link", found(*directories))
        return _probed(name, found) if name in CHANGES else found


def _probed(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
    def probed(*args: Any, **options: Any) -> Any:
        with failpoints.step(POINTS[f"files.{name}"]):
            return change(*args, **options)

    return probed


class FileMetastore(Metastore):
    """A metastore.

    Parameters
    ----------
    directory : Path
        Holds the JSON file and the warehouse.
    name : str
        Of the JSON file.
    scheme : str
        Of the warehouse's file system.
    """

    def __init__(self, directory: Path, name: str = "metastore.json", *, scheme: str = "file") -> None:
        self._scheme = scheme
        self._store = FileStore(str(directory / name))
        self._warehouse = directory / "warehouse"

    @property
    def ends_with_driver(self) -> bool:
        return True

    def canonical(self, name: str) -> str:
        return name.lower()

    @contextmanager
    def _change(self, call: str) -> Iterator[Document]:
        with failpoints.step(POINTS[f"metastore.{call}"]), self._store.change() as document:
            yield document

    # -- databases -----------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        return sorted(self._store.read()["databases"])

    def get_database(self, database: str) -> dict[str, str] | None:
        found = self._store.read()["databases"].get(database)
        if found is None:
            return None
        return {"location": f"{self._scheme}:{self._warehouse / database}.db", "comment": "", **found["properties"]}

    def create_database(self, database: str, properties: Mapping[str, str], *, ignore_if_exists: bool) -> None:
        with self._change("create_database") as document:
            if database in document["databases"]:
                if ignore_if_exists:
                    return
                raise DatabaseAlreadyExistsError(f"Database {database} already exists.", path=database)
            document["databases"][database] = {"properties": dict(properties), "tables": {}}

    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        with self._change("alter_database") as document:
            known = document["databases"][database]["properties"]
            known.update(changes)
            for key in [key for key, value in known.items() if value is None]:
                del known[key]

    def drop_database(self, database: str, *, ignore_if_not_exists: bool, cascade: bool) -> None:
        with self._change("drop_database") as document:
            if database not in document["databases"]:
                if ignore_if_not_exists:
                    return
                raise DatabaseNotExistError(f"Database {database} does not exist.", path=database)
            if document["databases"][database]["tables"] and not cascade:
                raise CatalogError(f"Database {database} is not empty.", path=database)
            shutil.rmtree(self._warehouse / f"{database}.db", ignore_errors=True)
            del document["databases"][database]

    # -- tables --------------------------------------------------------------------------------------------------

    def list_tables(self, database: str) -> list[str]:
        return sorted(self._tables(self._store.read(), database))

    def get_table(self, database: str, name: str, *, as_analyzed: bool = False) -> HiveTable | None:
        found = self._store.read()["databases"].get(database, {"tables": {}})["tables"].get(name)
        if found is None:
            return None
        table = _table(database, name, found["table"])
        return replace(table, extra={"stamp": table.stored_stamp})

    def create_table(self, table: HiveTable) -> None:
        with self._change("create_table") as document:
            tables = self._tables(document, table.database)
            if table.name in tables:
                raise self._taken(table.database, table.name)
            tables[table.name] = {"table": _document(table), "partitions": []}
        assert table.location
        local(table.location).mkdir(parents=True, exist_ok=True)

    def alter_table(self, table: HiveTable) -> None:
        self._alter_table(table)

    def point_table(
        self, table: HiveTable, files: int, size: int, *, instead_of: str | None = None, redefined: bool = False
    ) -> None:
        self._alter_table(table, **({"schema": table.schema} if redefined else {}))

    def _alter_table(self, table: HiveTable, **changes: Any) -> None:
        with self._change("alter_table") as document:
            entry = self._entry(document, table.database, table.name)
            now = _table(table.database, table.name, entry["table"])
            changed = replace(
                now,
                location=table.location,
                kind=table.kind,
                properties=table.properties,
                comment=table.comment,
                tracked=table.tracked,
                options=table.options,
                **changes,
            )
            entry["table"] = _document(changed)

    def alter_definition(self, table: HiveTable) -> None:
        with self._change("alter_definition") as document:
            entry = self._entry(document, table.database, table.name)
            now = _table(table.database, table.name, entry["table"])
            if now.stored_stamp != table.extra["stamp"]:
                raise StampChangedError(f"{table.database}.{table.name}")
            changed = replace(now, schema=table.schema, properties=table.properties, comment=table.comment)
            entry["table"] = _document(changed)

    def columns_of(self, table: HiveTable) -> Columns | None:
        return Columns(assign_ids(table.schema, partition_keys=list(table.partition_columns)), has_ids=False)

    def with_columns(self, table: HiveTable, columns: Columns) -> HiveTable:
        known = {field.name: field for field in table.schema}
        fields = [known.get(node.name) or pa.field(node.name, plain_type(node)) for node in columns.schema]
        return replace(table, schema=pa.schema(fields))

    def replace_in_one_step(self, table: HiveTable, template: str) -> bool:
        return True

    def replace_table(
        self, table: HiveTable, template: str, *, same_files: bool = True, instead_of: str | None = None
    ) -> None:
        with self._change("replace_table") as document:
            entry = self._entry(document, table.database, table.name)
            new = _table(table.database, table.name, self._entry(document, table.database, template)["table"])
            entry["table"] = _document(replace(new, kind=table.kind, tracked=table.tracked))

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
        with self._change("rename_table") as document:
            entry = self._entry(document, database, name)
            noted = entry["table"]["properties"]
            if instead_of is not None and noted.get(STAMP, "") != instead_of:
                raise StampChangedError(f"{database}.{name}")
            tables = self._tables(document, database)
            if new_name in tables:
                raise self._taken(database, new_name)
            entry["table"]["kind"] = kind or entry["table"]["kind"]
            if stamp is not None:
                noted[STAMP] = stamp
            if stamp == "":
                del noted[STAMP]
            tables[new_name] = tables.pop(name)

    def drop_table(self, database: str, name: str) -> None:
        with self._change("drop_table") as document:
            found = self._tables(document, database).pop(name, None)
        if found and found["table"]["kind"] == MANAGED:
            shutil.rmtree(local(found["table"]["location"]), ignore_errors=True)

    # -- partitions ----------------------------------------------------------------------------------------------

    def list_partitions(self, table: HiveTable) -> list[HivePartition]:
        entry = self._entry(self._store.read(), table.database, table.name)
        return [HivePartition(*partition) for partition in entry["partitions"]]

    def add_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        if not partitions:
            return
        with self._change("add_partitions") as document:
            entry = self._entry(document, table.database, table.name)
            there = [partition[0] for partition in entry["partitions"]]
            if taken := [dict(p.values) for p in partitions if dict(p.values) in there]:
                raise CatalogError(f"Partitions exist already: {taken}.")
            entry["partitions"] += [_partition(partition) for partition in partitions]

    def alter_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        if not partitions:
            return
        with self._change("alter_partitions") as document:
            entry = self._entry(document, table.database, table.name)
            places = {repr(sorted(p[0].items())): i for i, p in enumerate(entry["partitions"])}
            for partition in partitions:
                key = repr(sorted(partition.values.items()))
                if key not in places:
                    raise CatalogError(f"There is no partition {dict(partition.values)}.")
                entry["partitions"][places[key]] = _partition(partition)

    def drop_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        if not partitions:
            return
        with self._change("drop_partitions") as document:
            entry = self._entry(document, table.database, table.name)
            gone = [dict(partition.values) for partition in partitions]
            entry["partitions"] = [p for p in entry["partitions"] if p[0] not in gone]

    # -- as a reader sees it -------------------------------------------------------------------------------------

    def rows(self, database: str, name: str) -> list[tuple[Any, ...]] | None:
        """The rows of a table, read as Spark does: tracked partitions from the metastore, else by directory."""
        entry = self._store.read()["databases"][database]["tables"].get(name)
        if entry is None:
            return None
        table = _table(database, name, entry["table"])
        assert table.location
        if not table.partitioned:
            return read(table.location, table.schema, {}, recursive=is_recursive(table.options))
        return [row for spec, location, _ in entry["partitions"] for row in read(location, table.schema, spec)]

    # -- helpers -------------------------------------------------------------------------------------------------

    def _tables(self, document: Document, database: str) -> Document:
        if database not in document["databases"]:
            raise DatabaseNotExistError(f"Database {database} does not exist.", path=database)
        tables: Document = document["databases"][database]["tables"]
        return tables

    def _entry(self, document: Document, database: str, name: str) -> Document:
        tables = self._tables(document, database)
        if name not in tables:
            raise TableNotExistError(f"Table {database}.{name} does not exist.", path=f"{database}.{name}")
        entry: Document = tables[name]
        return entry

    def _taken(self, database: str, name: str) -> TableAlreadyExistsError:
        return TableAlreadyExistsError(f"Table {database}.{name} already exists.", path=f"{database}.{name}")


def _document(table: HiveTable) -> Document:
    bucketing = table.bucketing
    return {
        "kind": table.kind,
        "schema": base64.b64encode(table.schema.serialize().to_pybytes()).decode(),
        "provider": table.provider,
        "location": table.location,
        "partition_columns": list(table.partition_columns),
        "bucketing": bucketing and [bucketing.count, list(bucketing.columns), list(bucketing.sort_columns)],
        "serde": dict(table.serde),
        "options": dict(table.options),
        "properties": dict(table.properties),
        "comment": table.comment,
        "tracked": table.tracked,
    }


def _table(database: str, name: str, document: Document) -> HiveTable:
    facts = dict(document)
    facts["schema"] = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts["schema"])))
    facts["partition_columns"] = tuple(facts["partition_columns"])
    if facts["bucketing"]:
        count, columns, sort_columns = facts["bucketing"]
        facts["bucketing"] = BucketSpec(count, tuple(columns), tuple(sort_columns))
    return HiveTable(database=database, name=name, **facts)


def _partition(partition: HivePartition) -> list[Any]:
    return [dict(partition.values), partition.location, dict(partition.parameters)]

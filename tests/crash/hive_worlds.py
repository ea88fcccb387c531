"""The worlds of the Hive catalog, one for each recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.crash.file_metastore import FileMetastore, ProbedFiles
from tests.crash.frames import ArrowFrame, TaskFiles
from tests.crash.remote_files import LikeHdfs, ObjectStore, RemoteFiles, local
from tests.crash.scenario import Row, Rows, Statement
from tests.crash.scenarios import HIVE, HIVE_ALTERS, HIVE_DATABASES, HIVE_POINTER, HIVE_RENAMES, HIVE_UNDOES
from tests.crash.worlds import DATABASE, SCHEMA, World
from twophase.catalog import Catalog, Environment
from twophase.catalogs.files import is_part
from twophase.catalogs.hive import HiveCatalog
from twophase.catalogs.hive.definitions import to_table
from twophase.catalogs.hive.layout import SAVEPOINTS
from twophase.catalogs.hive.metastore import Metastore
from twophase.catalogs.hive.tables import EXTERNAL, MANAGED, HivePartition
from twophase.model import Purpose, TableDefinition

#: Where there are no links, a second statement on a table is refused before any work.
WRITTEN_TWICE = {
    "create then insert",
    "insert twice",
    "rolled back to a savepoint",
    "alter then insert",
    "another writer comes before the publish of an alter",
}


class HiveWorld(World):
    """A Hive catalog over a metastore in a file; a table of the stock kind has its files where Spark would put them."""

    scenarios = HIVE | HIVE_POINTER | HIVE_ALTERS | HIVE_DATABASES | HIVE_RENAMES
    recipe = "pointer"
    database = DATABASE
    retention = 0.0
    #: Of the file system.
    scheme = "file"
    #: Whether a table is created at a LOCATION.
    locates = True
    metastore: Metastore

    def open_catalogs(self) -> dict[str, Catalog]:
        environment = self.environment()
        environment.session_metastore = self.metastore = self.file = FileMetastore(self.directory, scheme=self.scheme)
        environment.warehouse = f"{self.scheme}:{self.directory}/warehouse"
        environment.retention = self.retention
        return {"hive": self.open_catalog(environment)}

    def environment(self) -> Environment:
        return Environment()

    def open_catalog(self, environment: Environment) -> HiveCatalog:
        catalog = HiveCatalog("hive", {"recipe": self.recipe}, environment)
        catalog.store.files = ProbedFiles()
        return catalog

    def rows(self, table: str) -> Rows | None:
        path = self.path(table)
        if path.name == "*" or not self.file.database_exists(path.database):
            return [] if self.file.database_exists(path.database) else None
        rows = self.file.rows(path.database, path.name)
        return None if rows is None else sorted(rows, key=repr)

    def frame(self, rows: Rows, schema: pa.Schema, *, scattered: bool = False) -> Any:
        return ArrowFrame(super().frame(rows, schema), scattered=scattered)

    def definition(self, statement: Statement) -> TableDefinition:
        properties = {"twophase.append": statement.append} if statement.append else {}
        made = replace(super().definition(statement), provider="parquet", properties=properties)
        if statement.external and statement.purpose.creates:
            return replace(made, location=f"{self.scheme}:{self.directory}/elsewhere/{statement.name}", external=True)
        return made

    def make(self, statement: Statement, rows: Rows) -> None:
        if statement.foreign or (statement.external and not self.locates):
            self._make_as_spark_does(statement, rows)
        else:
            of_table = Purpose.CREATE_TABLE_AS
            super().make(statement if statement.purpose.of_database else replace(statement, purpose=of_table), rows)

    def change(self, statement: Statement, rows: tuple[Row, ...] | None) -> None:
        # Dropped and made anew: no transaction of the timeline would explain a replaced version.
        super().change(statement, None)
        if rows is not None:
            self.make(replace(statement, partitioned=False), list(rows))

    def _make_as_spark_does(self, statement: Statement, rows: Rows) -> None:
        definition = self.definition(replace(statement, purpose=Purpose.CREATE_TABLE_AS))
        kind = EXTERNAL if definition.external else MANAGED
        location = definition.location
        location = location or f"{self.catalogs['hive'].load_database(DATABASE)['location']}/{statement.name}"
        table = to_table(self.path(statement.table), definition, kind=kind, location=location)
        self.metastore.create_table(table)
        writer = self.frame(rows, SCHEMA).write.format("parquet").mode("append")
        keys = table.partition_columns
        (writer.partitionBy(*keys) if keys else writer).save(location)
        parts = sorted({str(row[1]) for row in rows}) if keys else []
        found = [HivePartition({"part": part}, f"{location}/part={part}") for part in parts]
        self.metastore.add_partitions(table, found)

    def leftovers(self) -> list[str]:
        held = self._held()
        files = [file for file in self.directory.rglob("*") if file.is_file() and file.parent != self.directory]
        lost = [str(file.relative_to(self.directory)) for file in files if not self._is_held(file, held)]
        tables = [name for _, name in self._tables() if name.startswith("__")]
        return [*super().leftovers(), *lost, *tables]

    def _tables(self) -> list[tuple[str, str]]:
        databases = [self.database] if self.database != DATABASE else self.metastore.list_databases()
        return [(database, name) for database in databases for name in self.metastore.list_tables(database)]

    def _held(self) -> list[Path]:
        held = []
        for database, name in self._tables():
            table = self.metastore.get_table(database, name)
            assert table
            assert table.location
            partitions = self.metastore.list_partitions(table) if table.partitioned else []
            held += [local(table.location), *(local(partition.location) for partition in partitions)]
        return held

    def _is_held(self, file: Path, held: list[Path]) -> bool:
        if any(file.is_relative_to(directory) for directory in held) or SAVEPOINTS in file.parts:
            return True
        # Stamps of a version, also partly written ones, are removed with it: they are above the partitions in it.
        is_stamp = file.name.startswith("_") or is_part(file.name)
        return is_stamp and any(directory.is_relative_to(file.parent) for directory in held)


class HiveUndoWorld(HiveWorld):
    """The same, with former versions: an undo reads them."""

    scenarios = HIVE_UNDOES
    warmed_as = "hive-pointer"
    retention = 3600.0

    def leftovers(self) -> list[str]:
        return World.leftovers(self)


class HiveRenameWorld(HiveWorld):
    """The same with the recipe ``rename``."""

    recipe = "rename"
    undoes = False


class HiveRemoteWorld(HiveWorld):
    """The same on a file system without links, reached by a client that is asked for each file."""

    scenarios = {name: scenario for name, scenario in HiveWorld.scenarios.items() if name not in WRITTEN_TWICE}
    kind: type[RemoteFiles]

    def environment(self) -> Environment:
        environment = super().environment()
        environment.allows_untested_storage = True
        environment.hadoop_files = self.kind(self.directory)
        return environment

    def open_catalog(self, environment: Environment) -> HiveCatalog:
        return HiveCatalog("hive", {"recipe": self.recipe}, environment)


class HiveObjectStoreWorld(HiveRemoteWorld):
    """On an object store."""

    scenarios = {
        name: scenario
        for name, scenario in HiveRemoteWorld.scenarios.items()
        if name != "create external"  # Refused.
    }
    kind = ObjectStore
    scheme = "s3a"
    locates = False

    def environment(self) -> Environment:
        environment = super().environment()
        environment.file_writer = TaskFiles()
        return environment


class HiveHdfsWorld(HiveRemoteWorld):
    """On a file system like HDFS."""

    kind = LikeHdfs
    scheme = "hdfs"

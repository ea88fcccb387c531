"""A world: stores, catalogs and a timeline in one directory, opened anew by every process."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from tests.crash.file_metastore import FileMetastore, ProbedFiles
from tests.crash.frames import ArrowFrame, local
from tests.crash.scenarios import CHAOS, HIVE, JDBC, LAKEHOUSE, OLD, Rows, Scenario, Statement
from tests.jdbc.places import Place
from tests.lakehouse.places import NAME as LAKE
from tests.lakehouse.places import Lake, MetastoreLake, RecordingLake, RestLake
from twophase.catalog import Catalog, Environment
from twophase.catalogs.hive import HiveCatalog
from twophase.catalogs.hive.definitions import to_table
from twophase.catalogs.hive.metastore import MANAGED, HivePartition
from twophase.coordinator import Coordinator
from twophase.model import ObjectPath, Purpose, TableDefinition, Transform
from twophase.testing.chaos import ChaosCatalog
from twophase.timeline import Timeline

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])
CHANGED = pa.schema([("id", pa.string()), ("part", pa.string())])
DATABASE = "default"


class World(ABC):
    """Everything that outlives a process, and how a process opens it.

    Parameters
    ----------
    directory : Path
    """

    scenarios: dict[str, Scenario]
    #: Whether a part of it lies outside its directory, and has to be made anew each time.
    outside = False
    #: Whether a publish can be undone when a later one is refused; else that ends in doubt, and is told.
    undoes = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.timeline_file = directory / "timeline.db"
        self.catalogs = self.open_catalogs()

    @abstractmethod
    def open_catalogs(self) -> dict[str, Catalog]:
        """The catalogs by name."""

    @abstractmethod
    def rows(self, table: str) -> Rows | None:
        """What a reader sees, past the catalog: rows, or None where there is no table."""

    def frame(self, rows: Rows, schema: pa.Schema) -> Any:
        """What ``write`` takes."""
        columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
        return pa.Table.from_arrays(columns, schema=schema)

    def leftovers(self) -> list[str]:
        """What lies in the stores and belongs to no table (no retained versions)."""
        return [
            f"{name}: {residue.kind} {residue.location}"
            for name, catalog in self.catalogs.items()
            for residue in catalog.residues()
            if residue.kind != "version"
        ]

    def coordinator(self) -> Coordinator:
        timeline = Timeline(f"sqlite:///{self.timeline_file}")
        return Coordinator(timeline, self.catalogs.__getitem__, name="crash", wait_seconds=0.0)

    def path(self, table: str) -> ObjectPath:
        return ObjectPath.of(DATABASE, table.split(".")[1])

    def definition(self, statement: Statement) -> TableDefinition:
        partitioning = (Transform.identity("part"),) if statement.partitioned else ()
        return TableDefinition(CHANGED if statement.schema_change else SCHEMA, partitioning=partitioning)

    def set_up(self, scenario: Scenario) -> None:
        """Make the tables that exist before, and the timeline."""
        by_table = {statement.table: statement for statement in scenario.statements}
        for table, rows in scenario.before.items():
            self.make(replace(by_table[table], schema_change=False), list(rows))
        self.coordinator().close()

    def make(self, statement: Statement, rows: Rows) -> None:
        """Make one table, with rows, without a coordinator."""
        participant = self.catalogs[statement.catalog].two_phase_create_table(
            self.path(statement.table), self.definition(statement), purpose=Purpose.CREATE_TABLE_AS
        )
        assert participant is not None
        participant.begin()
        participant.write(self.frame(rows, SCHEMA))
        participant.prepare()
        participant.commit()
        participant.finish()

    def interfere(self, table: str) -> None:
        """An outsider creates a table."""
        self.make(Statement(table, Purpose.CREATE_TABLE_AS), OLD)


class ChaosWorld(World):
    """Three chaos catalogs over three files; the third one cannot undo, the second and third do not group."""

    scenarios = CHAOS

    def open_catalogs(self) -> dict[str, Catalog]:
        options = {
            "one": {},
            "two": {"group_publish": "false"},
            "three": {"group_publish": "false", "compensate": "false"},
        }
        return {
            name: ChaosCatalog(name, {"file": str(self.directory / f"{name}.json"), **more}, Environment())
            for name, more in options.items()
        }

    def rows(self, table: str) -> Rows | None:
        catalog = self.catalogs[table.split(".")[0]]
        assert isinstance(catalog, ChaosCatalog)
        if not catalog.table_exists(self.path(table)):
            return None
        return sorted((tuple(row.values()) for row in catalog.rows(self.path(table))), key=repr)


class HiveWorld(World):
    """A Hive catalog over a metastore in a file; a table of the stock kind has its files where Spark would put them."""

    scenarios = HIVE
    recipe = "pointer"

    def open_catalogs(self) -> dict[str, Catalog]:
        environment = Environment()
        environment.session_metastore = self.metastore = FileMetastore(self.directory)
        environment.warehouse = str(self.directory / "warehouse")
        environment.retention = 0.0
        catalog = HiveCatalog("hive", {"recipe": self.recipe}, environment)
        catalog.files = ProbedFiles()
        return {"hive": catalog}

    def rows(self, table: str) -> Rows | None:
        rows = self.metastore.rows(DATABASE, table.split(".")[1])
        return None if rows is None else sorted(rows, key=repr)

    def frame(self, rows: Rows, schema: pa.Schema) -> Any:
        return ArrowFrame(super().frame(rows, schema))

    def definition(self, statement: Statement) -> TableDefinition:
        made = replace(super().definition(statement), provider="parquet")
        if statement.external and statement.purpose.creates:
            return replace(made, location=f"file:{self.directory}/elsewhere/{statement.name}", external=True)
        return made

    def make(self, statement: Statement, rows: Rows) -> None:
        if statement.foreign:
            self._make_as_spark_does(statement, rows)
        else:
            super().make(replace(statement, purpose=Purpose.CREATE_TABLE_AS), rows)

    def _make_as_spark_does(self, statement: Statement, rows: Rows) -> None:
        location = f"{self.catalogs['hive'].load_database(DATABASE)['location']}/{statement.name}"
        table = to_table(self.path(statement.table), self.definition(statement), kind=MANAGED, location=location)
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
        tables = [name for name in self.metastore.list_tables(DATABASE) if name.startswith("__")]
        return [*super().leftovers(), *lost, *tables]

    def _held(self) -> list[Path]:
        held = []
        for name in self.metastore.list_tables(DATABASE):
            table = self.metastore.get_table(DATABASE, name)
            assert table
            assert table.location
            held += [local(table.location), *(local(p.location) for p in self.metastore.list_partitions(table))]
        return held

    def _is_held(self, file: Path, held: list[Path]) -> bool:
        if any(file.is_relative_to(directory) for directory in held):
            return True
        # Stamps of a version stand above the partitions that live in it.
        return file.name.startswith("_") and any(directory.is_relative_to(file.parent) for directory in held)


class HiveRenameWorld(HiveWorld):
    """The same with the recipe ``rename``."""

    recipe = "rename"
    undoes = False


class JdbcWorld(World):
    """A JDBC catalog over a SQLite file."""

    scenarios = JDBC
    undoes = False
    database = "main"

    def open_catalogs(self) -> dict[str, Catalog]:
        self.place = self.open_place()
        return {"shop": self.place.catalog(pool_size="1")}

    def open_place(self) -> Place:
        """The database, past the catalog."""
        return Place("sqlite", f"sqlite:///{self.directory / 'shop.db'}")

    def path(self, table: str) -> ObjectPath:
        return ObjectPath.of(self.database, table.split(".")[1])

    def rows(self, table: str) -> Rows | None:
        found = self.path(table)
        if not self.place.has(found):
            return None
        return sorted(self.place.rows(found), key=repr)

    def leftovers(self) -> list[str]:
        # The server is shared by all workers of the matrix.
        mine = [left for left in super().leftovers() if f" {self.database}." in left]
        return [*mine, *self.place.hidden(self.database)]


def variable(kind: str) -> str:
    """The environment variable by which the children of the matrix find a server."""
    return f"TWOPHASE_CRASH_{kind.upper().replace('-', '_')}"


class JdbcServerWorld(JdbcWorld):
    """The same over a server; each directory has a database of its own there."""

    outside = True
    kind = "postgresql"

    def open_catalogs(self) -> dict[str, Catalog]:
        self.database = "crash_" + hashlib.sha256(str(self.directory).encode()).hexdigest()[:12]
        return super().open_catalogs()

    def open_place(self) -> Place:
        return Place(self.kind, os.environ[variable(self.kind)])

    def set_up(self, scenario: Scenario) -> None:
        catalog = self.catalogs["shop"]
        catalog.drop_database(self.database, ignore_if_not_exists=True, cascade=True)
        catalog.create_database(self.database)
        super().set_up(scenario)


class JdbcMariaDBWorld(JdbcServerWorld):
    """The same over MariaDB."""

    kind = "mariadb"


class JdbcPlainMariaDBWorld(JdbcServerWorld):
    """MariaDB as a database that only its SQLAlchemy dialect knows: it publishes in steps."""

    kind = "plain-mariadb"


class LakehouseWorld(World):
    """A lakehouse catalog over an Iceberg catalog in a SQLite file."""

    scenarios = LAKEHOUSE
    undoes = False

    def open_catalogs(self) -> dict[str, Catalog]:
        self.lake = Lake(self.open_uri(), self.directory / "warehouse")
        return {LAKE: self.lake.catalog()}

    def open_uri(self) -> str:
        return f"sqlite:///{self.directory / 'iceberg.db'}"

    def set_up(self, scenario: Scenario) -> None:
        self.catalogs[LAKE].create_database(DATABASE)
        super().set_up(scenario)

    def rows(self, table: str) -> Rows | None:
        found = self.lake.table(self.path(table))
        return None if found is None else sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)

    def leftovers(self) -> list[str]:
        return [*super().leftovers(), *sorted(self.lake.orphans())]


class LakehousePostgreSQLWorld(LakehouseWorld):
    """The same over PostgreSQL; each directory has a database of its own there."""

    outside = True

    def open_uri(self) -> str:
        name = "lake_" + hashlib.sha256(str(self.directory).encode()).hexdigest()[:12]
        url = sa.engine.make_url(os.environ["TWOPHASE_CRASH_POSTGRESQL"])
        self.server, self.name = url, name
        return url.set(database=name).render_as_string(hide_password=False)

    def set_up(self, scenario: Scenario) -> None:
        engine = sa.create_engine(self.server, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)")
            connection.exec_driver_sql(f"CREATE DATABASE {self.name}")
        super().set_up(scenario)


class LakehouseMetastoreWorld(LakehouseWorld):
    """The same over a Hive Metastore; each directory has a database of its own there."""

    outside = True
    undoes = True
    kind = "hive_metastore"
    lakes: type[RecordingLake] = MetastoreLake

    def open_catalogs(self) -> dict[str, Catalog]:
        self.lake = self.lakes(self.open_uri(), self.directory / "warehouse")
        self.database = "crash_" + hashlib.sha256(str(self.directory).encode()).hexdigest()[:12]
        return {LAKE: self.lake.catalog()}

    def open_uri(self) -> str:
        return os.environ[variable(self.kind)]

    def path(self, table: str) -> ObjectPath:
        return ObjectPath.of(self.database, table.split(".")[1])

    def set_up(self, scenario: Scenario) -> None:
        self.catalogs[LAKE].drop_database(self.database, ignore_if_not_exists=True, cascade=True)
        self.catalogs[LAKE].create_database(self.database)
        World.set_up(self, scenario)


class LakehouseRestWorld(LakehouseMetastoreWorld):
    """The same over a REST catalog."""

    kind = "rest"
    lakes = RestLake

    def open_uri(self) -> str:
        # Each worker has a directory by its number, and a server.
        return super().open_uri().split()[int(self.directory.parent.name)]

    def set_up(self, scenario: Scenario) -> None:
        # The files of the world before are gone, and the server cannot show its tables any more.
        with self.lake.iceberg() as server:
            if server.namespace_exists((self.database,)):
                for name in server.list_tables((self.database,)):
                    server.drop_table(name)
        super().set_up(scenario)


WORLDS: dict[str, type[World]] = {
    "chaos": ChaosWorld,
    "hive-pointer": HiveWorld,
    "hive-rename": HiveRenameWorld,
    "jdbc-sqlite": JdbcWorld,
    "jdbc-postgresql": JdbcServerWorld,
    "jdbc-mariadb": JdbcMariaDBWorld,
    "jdbc-plain-mariadb": JdbcPlainMariaDBWorld,
    "lakehouse-sqlite": LakehouseWorld,
    "lakehouse-postgresql": LakehousePostgreSQLWorld,
    "lakehouse-hive_metastore": LakehouseMetastoreWorld,
    "lakehouse-rest": LakehouseRestWorld,
}

"""The worlds of the lakehouse catalog, one for each kind of Iceberg catalog."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import datafusion  # noqa: F401  (imported before the forks; it starts threads only when it reads)
import sqlalchemy as sa
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg_core import datafusion as _  # noqa: F401
from sqlalchemy.exc import NoResultFound

from tests.crash.scenario import Rows, Scenario
from tests.crash.scenarios import (
    LAKEHOUSE,
    LAKEHOUSE_ALTERS,
    LAKEHOUSE_DATABASES,
    LAKEHOUSE_DROPS,
    LAKEHOUSE_RENAMES,
    LAKEHOUSE_SAVEPOINTS,
    TWO_LAKES,
)
from tests.crash.server_sides import MetastoreDatabase, ObjectsOfServer, PostgreSQLSchema, ServerSide, SQLiteFile
from tests.crash.worlds import DATABASE, World, name_of, variable
from tests.lakehouse.places import NAME as LAKE
from tests.lakehouse.places import Lake, MetastoreLake, RecordingLake, RestLake, in_schema
from twophase.catalog import Catalog, Environment
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.model import ObjectPath

POND = "pond"


class LakehouseWorld(World):
    """A lakehouse catalog over an Iceberg catalog in a SQLite file."""

    lake: Lake
    scenarios = (
        LAKEHOUSE | LAKEHOUSE_ALTERS | LAKEHOUSE_DROPS | LAKEHOUSE_RENAMES | LAKEHOUSE_DATABASES | LAKEHOUSE_SAVEPOINTS
    )

    def __init__(self, directory: Path) -> None:
        self.looks = ExitStack()
        super().__init__(directory)

    def open_catalogs(self) -> dict[str, Catalog]:
        self.lake = self.looks.enter_context(Lake(self.open_uri(), self.directory / "warehouse").kept_open())
        return {LAKE: self.lake.catalog()}

    def close(self) -> None:
        super().close()
        self.looks.close()

    def open_uri(self) -> str:
        return f"sqlite:///{self.directory / 'iceberg.db'}"

    def set_up(self, scenario: Scenario) -> None:
        self.catalogs[LAKE].create_database(DATABASE)
        super().set_up(scenario)

    def place(self, table: str) -> Lake:
        """The lake of a table."""
        return self.lake

    def rows(self, table: str) -> Rows | None:
        if table.endswith("*"):
            return self._database(table)
        found = self.place(table).table(self.path(table))
        return None if found is None else sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)

    def _database(self, table: str) -> Rows | None:
        with self.place(table).iceberg() as catalog:
            return [] if catalog.namespace_exists((self.path(table).database,)) else None

    def other_reader(self, table: str) -> Rows | None:
        if table.endswith("*"):
            return self._database(table)
        try:
            found = self.place(table).rust_table(self.path(table))
        except (NoSuchTableError, NoResultFound):
            return None
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)

    def leftovers(self) -> list[str]:
        # The files of a table that was dropped without PURGE stay, where the store has noted it.
        dropped = [table.location.removeprefix(f"{self.lake.root}/") for table in self.catalogs["lake"].store.dropped()]  # type: ignore[attr-defined]
        return [*super().leftovers(), *sorted(f for f in self.lake.orphans() if not f.startswith(tuple(dropped)))]


class LakehouseOneFileWorld(LakehouseWorld):
    """The timeline in the file of the Iceberg catalog: its row moves with the pointers."""

    def open_uri(self) -> str:
        return f"sqlite:///{self.timeline_file}"


class LakehousePostgreSQLWorld(LakehouseWorld):
    """The same over PostgreSQL; each directory has a schema of its own there."""

    @classmethod
    def server_side(cls, directory: Path) -> ServerSide:
        return PostgreSQLSchema(os.environ[variable("postgresql")], name_of(directory, "lake"))

    def open_uri(self) -> str:
        self.server, self.name = os.environ[variable("postgresql")], name_of(self.directory, "lake")
        return in_schema(self.server, self.name)

    def set_up(self, scenario: Scenario) -> None:
        engine = sa.create_engine(self.server, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS {self.name} CASCADE; CREATE SCHEMA {self.name}")
        super().set_up(scenario)


class _TwoLakes(LakehouseWorld):
    """With a second Iceberg catalog in a SQLite file of its own."""

    scenarios = {**LAKEHOUSE, **TWO_LAKES}
    pond: Lake

    def open_catalogs(self) -> dict[str, Catalog]:
        pond = Lake(f"sqlite:///{self.directory / 'pond.db'}", self.directory / "pond")
        self.pond = self.looks.enter_context(pond.kept_open())
        second = LakehouseCatalog(POND, self.pond.options(catalog_name=LAKE), Environment())
        return {**super().open_catalogs(), POND: second}

    def set_up(self, scenario: Scenario) -> None:
        self.catalogs[POND].create_database(DATABASE)
        super().set_up(scenario)

    def place(self, table: str) -> Lake:
        return self.pond if table.startswith(f"{POND}.") else self.lake

    def leftovers(self) -> list[str]:
        return [*super().leftovers(), *sorted(self.pond.orphans())]


class TwoLakesWorld(_TwoLakes):
    """Both in files."""


class TwoLakesOnPostgreSQLWorld(_TwoLakes, LakehousePostgreSQLWorld):
    """The first one on PostgreSQL."""


class LakehouseMetastoreWorld(LakehouseWorld):
    """The same over a Hive Metastore; each directory has a database of its own there."""

    kind = "hive_metastore"
    lakes: type[RecordingLake] = MetastoreLake

    @classmethod
    def server_side(cls, directory: Path) -> ServerSide:
        return MetastoreDatabase(os.environ[variable(cls.kind)], name_of(directory, "crash"))

    def open_catalogs(self) -> dict[str, Catalog]:
        self.lake = self.looks.enter_context(self.lakes(self.open_uri(), self.directory / "warehouse").kept_open())
        self.database = name_of(self.directory, "crash")
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
    warmed_as = "lakehouse-sqlite"

    @classmethod
    def server_side(cls, directory: Path) -> ServerSide:
        return SQLiteFile(Path(cls._server(directory)[1]))

    def open_uri(self) -> str:
        return self._server(self.directory)[0]

    @classmethod
    def _server(cls, directory: Path) -> list[str]:
        """The URI and the file of a server: each worker has a directory by its number, and one of them."""
        number = int(directory.parent.name)
        return os.environ[variable(cls.kind)].split()[2 * number : 2 * number + 2]

    def set_up(self, scenario: Scenario) -> None:
        # The files of the world before are gone, and the server cannot show its tables any more.
        with self.lake.iceberg() as server:
            if server.namespace_exists((self.database,)):
                for name in server.list_tables((self.database,)):
                    server.drop_table(name)
        super().set_up(scenario)


#: On the S3 server, of all worlds.
BUCKET = "crash.test"


@dataclass(frozen=True)
class LakeInBucket(Lake):
    """A lake whose files are on an S3 server; the warehouse is the path of a bucket and a directory in it."""

    server: str = ""

    @property
    def properties(self) -> dict[str, str]:
        own = {"endpoint": self.server, "region": "us-east-1", "path-style-access": "true"}
        own |= {"access-key-id": "tests", "secret-access-key": "tests"}
        return {f"s3.{name}": value for name, value in own.items()}

    @property
    def root(self) -> str:
        return f"s3://{self.warehouse}"

    def options(self, **more: str) -> dict[str, str]:
        return {**super().options(), "warehouse": self.root, **self.properties, **more}

    @property
    def objects(self) -> ObjectsOfServer:
        """The files, past all clients."""
        bucket, directory = self.warehouse.parts
        return ObjectsOfServer(f"{self.server}/{bucket}", directory)

    def read(self, location: str) -> bytes:
        return self.objects.read(location.removeprefix(f"s3://{self.warehouse.parent}/"))

    def files(self) -> set[str]:
        keys = (key.removeprefix(f"{self.warehouse.name}/") for key in self.objects.hashes())
        return {key for key in keys if not key.endswith("/")}  # What stands for a directory is no file.


class LakehouseObjectStoreWorld(LakehouseWorld):
    """The same with its files on an S3 server; each directory has one of its own there."""

    # PyArrow's client starts threads, which no fork has.
    warmed_as = "lakehouse-sqlite"
    lake: LakeInBucket

    @classmethod
    def server_side(cls, directory: Path) -> ServerSide:
        return cls._lake("", directory).objects

    @classmethod
    def _lake(cls, uri: str, directory: Path) -> LakeInBucket:
        return LakeInBucket(uri, Path(BUCKET) / name_of(directory, "lake"), os.environ[variable("s3")])

    def open_catalogs(self) -> dict[str, Catalog]:
        self.lake = self.looks.enter_context(self._lake(self.open_uri(), self.directory).kept_open())
        return {LAKE: self.lake.catalog()}

    def set_up(self, scenario: Scenario) -> None:
        self.lake.objects.remove()
        super().set_up(scenario)

"""The world of the Hive catalog over a HiveServer2, whose metastore is a server of its own.

Every statement of SQL that changes something is a step: where one publish takes several, a driver dies between them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.crash.file_metastore import ProbedFiles
from tests.crash.frames import read
from tests.crash.hive_worlds import HiveWorld
from tests.crash.scenario import Rows, Scenario, Statement
from tests.crash.scenarios import HIVE
from tests.crash.server_sides import MetastoreDatabase
from tests.crash.worlds import SCHEMA, World, name_of, variable
from twophase import failpoints
from twophase.catalog import Catalog, Environment
from twophase.catalogs.hive import HiveCatalog
from twophase.catalogs.hive.hiveserver2 import HiveServer2Metastore
from twophase.catalogs.hive.hiveserver2_client import SqlClient
from twophase.model import ObjectPath, Purpose

SQL = failpoints.Failpoint("hiveserver2.sql")

#: Statements that change nothing.
_QUESTIONS = ("SHOW", "DESCRIBE", "SELECT", "REFRESH")


class ProbedClient(SqlClient):
    """A connection with a failpoint around each statement that changes something."""

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        if sql.startswith(_QUESTIONS):
            return super().run(sql)
        with failpoints.step(SQL):
            return super().run(sql)


class HiveServer2World(HiveWorld):
    """Each directory has a database of its own on the server."""

    scenarios = {
        name: HIVE[name]
        for name in (
            "create",
            "create partitioned",
            "replace",
            "replace with other columns",
            "replace partitioned",
            "insert",
            "insert partitioned",
            "overwrite",
            "overwrite partitioned",
            "overwrite dynamic partitions",
            "two tables",
        )
    }

    @classmethod
    def server_side(cls, directory: Path) -> MetastoreDatabase:
        return MetastoreDatabase(os.environ[variable("hive_metastore")], name_of(directory, "crash"))

    def open_catalogs(self) -> dict[str, Catalog]:
        self.database = name_of(self.directory, "crash")
        host, _, port = os.environ[variable("hiveserver2")].partition(":")
        options = {"metastore": "hiveserver2", "host": host, "port": port, "recipe": self.recipe}
        environment = Environment()
        environment.retention = 0.0
        catalog = HiveCatalog("hive", options, environment)
        catalog.store.files = ProbedFiles()
        self.metastore = HiveServer2Metastore(ProbedClient(catalog.settings))  # type: ignore[assignment]
        catalog.store._metastore = self.metastore
        return {"hive": catalog}

    def path(self, table: str) -> ObjectPath:
        return ObjectPath.of(self.database, table.split(".")[1])

    def set_up(self, scenario: Scenario) -> None:
        catalog = self.catalogs["hive"]
        catalog.drop_database(self.database, ignore_if_not_exists=True, cascade=True)
        catalog.create_database(self.database, properties={"location": f"file:{self.directory}/warehouse"})
        World.set_up(self, scenario)

    def make(self, statement: Statement, rows: Rows) -> None:
        """By a transaction: replaced versions of a table that is EXTERNAL, as all are here, go by the timeline."""
        coordinator = self.coordinator("before")
        transaction = coordinator.begin()
        participant = transaction.stage(
            self.catalogs["hive"],
            self.path(statement.table),
            self.definition(statement),
            purpose=Purpose.CREATE_TABLE_AS,
        )
        assert participant is not None
        transaction.begin_participant(participant)
        transaction.write(participant, self.frame(rows, SCHEMA))
        transaction.prepare_participant(participant)
        transaction.commit()
        coordinator.close()

    def leftovers(self) -> list[str]:
        # Other workers have databases on the same server.
        mine = (str(self.directory), self.database)
        return [left for left in super().leftovers() if not left.startswith("hive:") or any(m in left for m in mine)]

    def rows(self, table: str) -> Rows | None:
        """By its files, where the metastore says that they are."""
        found = self.metastore.get_table(*self._names(table))
        if found is None:
            return None
        assert found.location
        places: list[tuple[str, Any]] = [(found.location, {})]
        if found.partitioned:
            places = [(p.location, p.values) for p in self.metastore.list_partitions(found)]
        rows = [row for location, spec in places for row in read(location, found.schema, spec)]
        return sorted(rows, key=repr)

    def other_reader(self, table: str) -> Rows | None:
        """By the server."""
        database, name = self._names(table)
        if self.metastore.get_table(database, name) is None:
            return None
        self.metastore._run(f"REFRESH TABLE {database}.{name}")
        return sorted(self.metastore._run(f"SELECT * FROM {database}.{name}"), key=repr)

    def _names(self, table: str) -> tuple[str, str]:
        return self.database, table.split(".")[1]

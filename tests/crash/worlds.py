"""A world: stores, catalogs and a timeline in one directory, opened anew by every process."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.crash.scenario import OLD, Row, Rows, Scenario, Statement
from tests.crash.server_sides import ServerSide
from twophase.catalog import Catalog
from twophase.catalog.schema_changes import MERGE_SCHEMA
from twophase.model import ObjectPath, Purpose, TableDefinition, Transform
from twophase.timeline.savepoints import KeptTable
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.named_savepoints import create_savepoint, kept_table

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])
CHANGED = pa.schema([("id", pa.string()), ("part", pa.string())])
BROUGHT = pa.field("more", pa.int64())
DATABASE = "default"
#: The savepoint to which a scenario restores.
SAVEPOINT = "before"

#: Where the world of a name is. Each is imported alone: a fork copies the page tables of all that its parent imported.
PLACES = {
    "chaos": "chaos_world:ChaosWorld",
    "hive-pointer": "hive_worlds:HiveWorld",
    "hive-undo": "hive_worlds:HiveUndoWorld",
    "hive-rename": "hive_worlds:HiveRenameWorld",
    "hive-object_store": "hive_worlds:HiveObjectStoreWorld",
    "hive-hdfs": "hive_worlds:HiveHdfsWorld",
    "hive-hiveserver2": "hive_server_worlds:HiveServer2World",
    "jdbc-sqlite": "jdbc_worlds:JdbcWorld",
    "jdbc-postgresql": "jdbc_worlds:JdbcServerWorld",
    "jdbc-mariadb": "jdbc_worlds:JdbcMariaDBWorld",
    "jdbc-postgresql-databases": "jdbc_worlds:JdbcDatabasesWorld",
    "jdbc-mariadb-databases": "jdbc_worlds:JdbcMariaDBDatabasesWorld",
    "jdbc-plain-mariadb": "jdbc_worlds:JdbcPlainMariaDBWorld",
    "lakehouse-sqlite": "lakehouse_worlds:LakehouseWorld",
    "lakehouse-two_lakes": "lakehouse_worlds:TwoLakesWorld",
    "lakehouse-two_lakes_on_postgresql": "lakehouse_worlds:TwoLakesOnPostgreSQLWorld",
    "lakehouse-one_file": "lakehouse_worlds:LakehouseOneFileWorld",
    "lakehouse-postgresql": "lakehouse_worlds:LakehousePostgreSQLWorld",
    "lakehouse-hive_metastore": "lakehouse_worlds:LakehouseMetastoreWorld",
    "lakehouse-rest": "lakehouse_worlds:LakehouseRestWorld",
    "lakehouse-object_store": "lakehouse_worlds:LakehouseObjectStoreWorld",
}


def world_of(name: str) -> type[World]:
    """The world of a name in ``PLACES``."""
    module, _, kind = PLACES[name].partition(":")
    found: type[World] = getattr(import_module(f"tests.crash.{module}"), kind)
    return found


def variable(kind: str) -> str:
    """The environment variable by which the children of the matrix find a server."""
    return f"TWOPHASE_CRASH_{kind.upper().replace('-', '_')}"


def name_of(directory: Path, kind: str) -> str:
    """The name of what belongs to a directory on a server that others use, too."""
    return f"{kind}_{hashlib.sha256(str(directory).encode()).hexdigest()[:12]}"


class World(ABC):
    """Everything that outlives a process, and how a process opens it.

    Parameters
    ----------
    directory : Path
    """

    scenarios: dict[str, Scenario]
    #: The world that imports the same, where this one cannot do without what it leaves on its server.
    warmed_as: str | None = None
    #: Whether tables are read by a second reader, too.
    reads_twice = True
    #: Whether a publish can be undone when a later one is refused; else that ends in doubt, and is told.
    undoes = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.timeline_file = directory / "timeline.db"
        self.catalogs = self.open_catalogs()

    @classmethod
    def server_side(cls, directory: Path) -> ServerSide | None:
        """The part of it that is on a server; None where all of it is in its directory."""
        return None

    @abstractmethod
    def open_catalogs(self) -> dict[str, Catalog]:
        """The catalogs by name."""

    @abstractmethod
    def rows(self, table: str) -> Rows | None:
        """What a reader sees, past the catalog: rows, or None where there is no table."""

    def other_reader(self, table: str) -> Rows | None:
        """What another reader sees, which shares nothing with the first: it must be the same."""
        return self.rows(table)

    def frame(self, rows: Rows, schema: pa.Schema, *, scattered: bool = False) -> Any:
        """What ``write`` takes; scattered: it makes a file for each row, where the store keeps files."""
        columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
        return pa.Table.from_arrays(columns, schema=schema)

    def leftovers(self) -> list[str]:
        """What lies in the stores and belongs to no table (no retained versions)."""
        return [
            f"{name}: {leftover.kind} {leftover.location}"
            for name, catalog in self.catalogs.items()
            for leftover in catalog.leftovers()
            if leftover.kind != "version"
        ]

    def close(self) -> None:
        """Release what the catalogs hold."""
        for catalog in self.catalogs.values():
            catalog.close()

    def coordinator(self, name: str = "crash") -> Coordinator:
        timeline = Timeline(f"sqlite:///{self.timeline_file}")
        return Coordinator(timeline, self.catalogs.__getitem__, name=name, wait_seconds=0.0)

    def path(self, table: str) -> ObjectPath:
        return ObjectPath.of(*(DATABASE, *table.split(".")[1:])[-2:])

    def definition(self, statement: Statement) -> TableDefinition:
        if statement.narrow:
            return TableDefinition(pa.schema([SCHEMA.field(0)]))
        partitioning = (Transform.identity("part"),) if statement.partitioned else ()
        schema = CHANGED if statement.schema_change else SCHEMA
        if statement.brings:
            schema = schema.insert(statement.brings, BROUGHT)
        options = {MERGE_SCHEMA: "true"} if statement.brings else {}
        return TableDefinition(schema, partitioning=partitioning, options=options)

    def set_up(self, scenario: Scenario) -> None:
        """Make the tables that exist before, and the timeline."""
        by_table = {s.table: s for s in (*([scenario.rival] if scenario.rival else []), *scenario.statements)}
        for table, rows in scenario.before.items():
            if not by_table[table].restores:
                self.make(replace(by_table[table], schema_change=False, narrow=False, brings=0), list(rows))
        if scenario.undoes:
            with closing(self.coordinator("earlier")) as coordinator:
                self._publish(coordinator, scenario.undoes)
        with closing(self.coordinator()) as coordinator:
            if kept := [statement for statement in scenario.statements if statement.restores]:
                self._keep(coordinator, kept, scenario)

    def _publish(self, coordinator: Coordinator, statements: Sequence[Statement]) -> None:
        """Run an earlier transaction."""
        transaction = coordinator.begin()
        for statement in statements:
            catalog, path, definition = self._target(statement)
            participant = transaction.stage(catalog, path, definition, purpose=statement.purpose)
            assert participant is not None
            transaction.begin_participant(participant)
            transaction.write(participant, self.frame(list(statement.rows), definition.schema))
        transaction.commit()

    def _target(self, statement: Statement) -> tuple[Catalog, ObjectPath, TableDefinition]:
        return self.catalogs[statement.catalog], self.path(statement.table), self.definition(statement)

    def _keep(self, coordinator: Coordinator, kept: Sequence[Statement], scenario: Scenario) -> None:
        """Make what a restore gives back, keep it under a savepoint, and then what there is before the restore."""
        for statement in kept:
            self.make(statement, list(statement.rows))
        tables = [(self.catalogs[statement.catalog], self.path(statement.table)) for statement in kept]
        copies = any(catalog.capabilities.copying_savepoints for catalog, _ in tables)
        create_savepoint(coordinator, SAVEPOINT, tables=tables, copies=copies)
        for statement in kept:
            self.change(statement, scenario.before.get(statement.table))

    def change(self, statement: Statement, rows: tuple[Row, ...] | None) -> None:
        """Replace a table that a savepoint keeps, or drop it, without a coordinator."""
        catalog, path = self.catalogs[statement.catalog], self.path(statement.table)
        if rows is None:
            catalog.drop_table(path)
        else:
            self._run(replace(statement, partitioned=False), list(rows), Purpose.REPLACE_TABLE_AS)

    def kept(self, timeline: Timeline, statement: Statement) -> KeptTable:
        """What the savepoint keeps of the table of a statement."""
        found = kept_table(timeline, SAVEPOINT, self.catalogs[statement.catalog], self.path(statement.table))
        assert found is not None
        return found

    def make(self, statement: Statement, rows: Rows) -> None:
        """Make one table with rows, or a database, without a coordinator."""
        if statement.purpose.of_database:
            self.catalogs[statement.catalog].create_database(self.path(statement.table).database)
            return
        self._run(statement, rows, Purpose.CREATE_TABLE_AS)

    def _run(self, statement: Statement, rows: Rows, purpose: Purpose) -> None:
        participant = self.catalogs[statement.catalog].two_phase_create_table(
            self.path(statement.table), self.definition(statement), purpose=purpose
        )
        assert participant is not None
        participant.begin()
        participant.write(self.frame(rows, SCHEMA))
        participant.prepare()
        participant.commit()
        participant.finish()

    def interfere(self, table: str) -> None:
        """Another writer creates a table."""
        self.make(Statement(table, Purpose.CREATE_TABLE_AS), OLD)

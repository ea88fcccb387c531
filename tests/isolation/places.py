"""Where the tables of the scenarios are: one session over all stores, or over some."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import twophase
from tests.isolation.schedules import Agent, Opens, Rows, Run, Step, Unit
from tests.isolation.verdicts import INITIAL
from tests.servers import Server

#: The database of each store, and how its tables are made.
STORES = {
    "session": ("default", " USING parquet"),
    "partitioned": ("parts", " USING parquet PARTITIONED BY (id)"),
    "lakehouse": ("ice.db", ""),
    "partitioned lakehouse": ("ice.parts", " PARTITIONED BY (id)"),
    "sqlite": ("lite.main", ""),
    "postgresql": ("pg.hermitage", ""),
    "mariadb": ("maria.hermitage", ""),
}
#: Those that keep the old states of a table, so that a block whose table has changed reads on.
WITH_OLD_STATES = frozenset({"session", "partitioned", "lakehouse", "partitioned lakehouse", "postgresql"})


@contextmanager
def session(directory: Path, servers: Mapping[str, Server]) -> Iterator[SparkSession]:
    """A session with a catalog for each store; the databases of servers only where they are given."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "1",
        "spark.log.level": "OFF",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={directory}/metastore;create=true",
        "spark.sql.sources.partitionOverwriteMode": "static",
        "spark.sql.catalog.ice": "twophase.lakehouse",
        "spark.sql.catalog.ice.warehouse": str(directory / "lake"),
        "spark.sql.catalog.lite": "twophase.jdbc",
        "spark.sql.catalog.lite.url": f"sqlite:///{directory}/lite.db",
    }
    for name, server in servers.items():
        # MariaDB's driver would read all certificates of the machine for each connection: twenty milliseconds.
        url = f"{server.url}?ssl_disabled=true" if server.name == "MariaDB" else server.url
        conf |= {f"spark.sql.catalog.{name}": "twophase.jdbc", f"spark.sql.catalog.{name}.url": url}
    builder: Any = SparkSession.builder.master("local[2]").appName("isolation")
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    handle = twophase.attach(spark)
    for catalog, database in [("ice", "db"), ("ice", "parts"), *((name, "hermitage") for name in servers)]:
        handle.catalog(catalog).create_database(database)
    spark.sql("CREATE DATABASE parts")
    yield spark
    for name in servers:  # Other modules use the same server.
        handle.catalog(name).drop_database("hermitage", cascade=True)
    spark.stop()


class World:
    """The session, three agents, and the tables that scenarios have left as they were or not."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.agents = {name: Agent(spark.newSession()) for name in ("T1", "T2", "T3")}
        self._fresh: set[str] = set()
        self._made: set[str] = set()

    def close(self) -> None:
        for agent in self.agents.values():
            agent.close()

    def run(self, steps: Sequence[Step], stores: Sequence[str], opens: Opens) -> tuple[list[Unit], dict[str, Rows]]:
        """Run a schedule; table ``b`` is in the last of the stores, the others in the first one."""
        tables = {table: stores[-1] if table == "b" else stores[0] for table in used(steps)}
        names = {table: self._fresh_table(store, table) for table, store in tables.items()}
        self._fresh -= set(names.values())
        units = Run(self.agents, names, opens).all(steps)
        final = {table: self._rows(name) for table, name in names.items()}
        self._fresh |= {names[table] for table, rows in final.items() if rows == INITIAL[table]}
        return units, final

    def one_table(self, store: str) -> str:
        """The name of a table with the rows with which each schedule begins; it is not the same afterwards."""
        name = self._fresh_table(store, "a")
        self._fresh.discard(name)
        return name

    def _fresh_table(self, store: str, table: str) -> str:
        database, clause = STORES[store]
        name = f"{database}.{table}"
        if name not in self._made:
            self._spark.sql(f"CREATE TABLE {name}{clause} AS SELECT 10 AS value, 1 AS id")
            self._made.add(name)
        if name not in self._fresh:
            values = ", ".join(map(str, INITIAL[table]))
            self._spark.sql(f"INSERT OVERWRITE {name} VALUES {values}")
        return name

    def _rows(self, name: str) -> Rows:
        return sorted((row.value, row.id) for row in self._spark.sql(f"SELECT value, id FROM {name}").collect())


def used(steps: Iterable[Step]) -> list[str]:
    """The tables of some steps."""
    words = {word.partition("[")[0] for step in steps for word in step.text.split()}
    return [table for table in INITIAL if table in words]

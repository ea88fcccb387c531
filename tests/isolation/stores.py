"""Where the tables of a history are, and how a session reaches them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests import servers
from tests.isolation.blocks import TABLES

#: The catalog and database of each kind of table, and the clause that its definition needs.
PREFIXES = {
    "session": ("hive.histories", "USING parquet"),
    "lakehouse": ("lake.histories", ""),
    "postgresql": ("pg.histories", ""),
    "mariadb": ("maria.histories", ""),
    "sqlite": ("file.main", ""),
}
#: Pairs of tables of one kind lie in different stores here.
MIXED = ("session", "lakehouse", "postgresql")
MIXED_WITHOUT_SPARK = ("lakehouse", "postgresql", "sqlite")
STORES = (*PREFIXES, "mixed")


def prefixes(kinds: Sequence[str]) -> dict[str, Sequence[str]]:
    """Deal the tables out to some kinds of stores."""
    return {table: PREFIXES[kinds[i % len(kinds)]] for i, table in enumerate(TABLES)}


class Stores:
    """What a history needs of servers, for as long as it runs; a context manager.

    Parameters
    ----------
    store : str
        One of :data:`STORES`.
    directory : Path
    has_spark : bool
        Whether the processes have a session.
    """

    def __init__(self, store: str, directory: Path, *, has_spark: bool = True) -> None:
        several = MIXED if has_spark else MIXED_WITHOUT_SPARK
        self._kinds = several if store == "mixed" else (store,)
        self._directory = directory
        self._stack = ExitStack()

    def __enter__(self) -> Stores:
        needs_database = {"postgresql", "lakehouse"} & {*self._kinds}
        database = _own_database(self._stack.enter_context(servers.postgresql()).url) if needs_database else None
        metastore = self._stack.enter_context(servers.hive_metastore()).url if "session" in self._kinds else None
        mariadb = self._stack.enter_context(servers.mariadb()).url if "mariadb" in self._kinds else None
        self.conf = {**base(self._directory), **conf(self._kinds, self._directory, database, mariadb)}
        self.conf["spark.sql.catalogImplementation"] = "hive" if metastore else "in-memory"
        if metastore:
            self.conf["spark.hadoop.hive.metastore.uris"] = metastore
        # A lake whose pointers lie where the timeline does is published in one SQL transaction with it.
        self.conf["spark.twophase.timeline"] = database or f"sqlite:///{self._directory / 'timeline.db'}"
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def prefixes(self) -> Mapping[str, Sequence[str]]:
        """Where the tables are."""
        return prefixes(self._kinds)


def base(directory: Path) -> dict[str, str]:
    """What each session is told."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": f"file:{directory / 'warehouse'}",
        "spark.twophase.fsync": "false",
    }


def conf(kinds: Sequence[str], directory: Path, database: str | None, mariadb: str | None = None) -> dict[str, str]:
    """The catalogs of some kinds of stores."""
    found: dict[str, str] = {}
    if "lakehouse" in kinds:
        found["spark.sql.catalog.lake"] = "twophase.lakehouse"
        found["spark.sql.catalog.lake.uri"] = database or f"sqlite:///{directory / 'lake.db'}"
        found["spark.sql.catalog.lake.warehouse"] = str(directory / "lake")
    if "postgresql" in kinds:
        assert database
        found["spark.sql.catalog.pg"] = "twophase.jdbc"
        found["spark.sql.catalog.pg.url"] = database
    if "mariadb" in kinds:
        assert mariadb
        found["spark.sql.catalog.maria"] = "twophase.jdbc"
        found["spark.sql.catalog.maria.url"] = mariadb
    if "sqlite" in kinds:
        found["spark.sql.catalog.file"] = "twophase.jdbc"
        found["spark.sql.catalog.file.url"] = f"sqlite:///{directory / 'file.db'}"
    return found


def _own_database(url: str) -> str:
    name = f"histories_{uuid.uuid4().hex[:12]}"
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    return sa.engine.make_url(url).set(database=name).render_as_string(hide_password=False)

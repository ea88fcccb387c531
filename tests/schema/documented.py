"""The table of ``docs/schema.md`` on how each store makes each change, and the statements for each of its rows."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.project import readme
from tests.servers import Server
from twophase.errors import TwoPhaseError

#: By the heading of its column, where the tables of a store are.
STORES = {
    "session tables": "",
    "PostgreSQL": "pg.public.",
    "MariaDB, MySQL": "maria.twophase.",
    "SQLite": "lite.main.",
    "lakehouse": "lake.changes.",
}
#: Catalogs of the same databases with ``promotion = wide``.
WIDE = {"pg.": "pg_wide.", "maria.": "maria_wide.", "lite.": "lite_wide."}
ROWS = (
    "SELECT 1 AS id, 'x' AS name, 5 AS gone, 2 AS k_exact, 3 AS k_wide, 4 AS k_other, 5 AS k_own, 6 AS moved, "
    "7 AS needed, X'C3' AS raw"
)
POLICY = "SET TBLPROPERTIES ('twophase.promotion' = '{}')"
NULL = "SET TBLPROPERTIES ('twophase.on_cast_failure' = 'null')"
NO_POLICY = "UNSET TBLPROPERTIES IF EXISTS ('twophase.promotion', 'twophase.on_cast_failure')"
#: By the first cell of its row, the changes, of which the last one is it.
CHANGES: dict[str, tuple[str, ...]] = {
    "`ADD COLUMN`": ("ADD COLUMN added INT",),
    "... `FIRST`, `AFTER`": ("ADD COLUMN placed INT AFTER id",),
    "... with `DEFAULT`": ("ADD COLUMN given INT DEFAULT 7",),
    "`DROP COLUMN`": ("DROP COLUMN gone",),
    "`RENAME COLUMN`": ("RENAME COLUMN name TO label",),
    "`ALTER COLUMN ... TYPE`, policy `exact`": ("ALTER COLUMN k_exact TYPE BIGINT",),
    "... policy `wide` (`promotion = wide`)": ("ALTER COLUMN k_wide TYPE DOUBLE",),
    "... other policies": (POLICY.format("hudi"), "ALTER COLUMN k_other TYPE STRING"),
    "... the policy of one table, `twophase.promotion`": (POLICY.format("wide"), "ALTER COLUMN k_own TYPE DOUBLE"),
    "... a value that does not fit, `twophase.on_cast_failure`": (
        POLICY.format("explicit"),
        NULL,
        "ALTER COLUMN raw TYPE STRING",
    ),
    "`ALTER COLUMN ... FIRST`, `AFTER`": ("ALTER COLUMN moved FIRST",),
    "`ALTER COLUMN ... SET DEFAULT`, `DROP DEFAULT`": ("ALTER COLUMN moved SET DEFAULT 8",),
    "`ALTER COLUMN ... SET NOT NULL`, after a look for NULL": ("ALTER COLUMN needed SET NOT NULL",),
    "`ALTER COLUMN ... DROP NOT NULL`": ("ALTER COLUMN needed DROP NOT NULL",),
    "`ALTER COLUMN ... COMMENT`": ("ALTER COLUMN moved COMMENT 'said'",),
    "`ADD`, `DROP`, `REPLACE PARTITION FIELD`": ("ADD PARTITION FIELD id",),
}
#: The same where no store but those of a session has another policy: alone it is refused, too.
ELSEWHERE = {"... a value that does not fit, `twophase.on_cast_failure`": (NULL, "ALTER COLUMN k_other TYPE BIGINT")}


def documented() -> dict[str, dict[str, str]]:
    """By the first cell of each row, what it says of each store."""
    table = readme.section("## In each store").partition("\n\n### ")[0]
    return {name: dict(zip(STORES, cells, strict=True)) for name, *cells in readme.rows(table)}


class StoredTable:
    """A table of a store.

    Parameters
    ----------
    spark : SparkSession
    store : str
        The heading of its column.
    postgresql : Server
    properties : str, optional
    """

    def __init__(self, spark: SparkSession, store: str, postgresql: Server, properties: str = "") -> None:
        self._spark, self._postgresql = spark, postgresql
        self.name, self.is_sessions = f"{STORES[store]}documented", store == "session tables"
        using = "USING parquet" if self.is_sessions else ""
        spark.sql(f"CREATE OR REPLACE TABLE {self.name} {using} {properties} AS {ROWS}")

    def take(self, change: str, *, wide: bool = False) -> None:
        name = self.name
        if wide:
            prefix = name.partition(".")[0] + "."
            name = name.replace(prefix, WIDE.get(prefix, prefix), 1)
        self._spark.sql(f"ALTER TABLE {name} {change}")

    def mark(self) -> Any:
        """What another one has if the rows of the table are written anew, as far as its store shows it."""
        kind, table = self.name.partition(".")[0], self.name.rpartition(".")[2]
        if self.is_sessions:
            return set(self._spark.table(self.name).inputFiles())
        if kind == "pg":
            server = self._postgresql
            address = f"host={server.host} port={server.port} user=twophase dbname=twophase"
            with psycopg.connect(address) as connection:
                return connection.execute("SELECT pg_relation_filenode(%s)", (f"public.{table}",)).fetchone()
        if kind == "lite":
            url = str(self._spark.conf.get("spark.sql.catalog.lite.url"))
            with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
                return connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        if kind == "lake":
            catalog = SqlCatalog("lake", uri=str(self._spark.conf.get("spark.sql.catalog.lake.uri")))
            found = [one.snapshot_id for one in catalog.load_table(("changes", table)).metadata.snapshots]
            catalog.close()
            return found
        return None  # MariaDB does not say how it has made a change.


def check(table: StoredTable, row: str, said: str) -> None:
    """Make the change of a row, and see that the store makes it as its cell says.

    Parameters
    ----------
    table : StoredTable
    row : str
        Its first cell.
    said : str
        The cell of the store.
    """
    *before, change = CHANGES[row] if table.is_sessions else ELSEWHERE.get(row, CHANGES[row])
    mark = table.mark()
    if said.startswith("refused"):
        with pytest.raises((TwoPhaseError, PySparkException)):
            for step in (*before, change):
                table.take(step)
        assert table.mark() == mark
    elif said.startswith("rewrite") and table.is_sessions:
        for step in before:
            table.take(step)
        with pytest.raises(TwoPhaseError, match=r"'twophase\.alter' = 'rewrite'"):
            table.take(change)
        table.take("SET TBLPROPERTIES ('twophase.alter' = 'rewrite')")
        table.take(change)
        table.take("UNSET TBLPROPERTIES ('twophase.alter')")
        assert table.mark().isdisjoint(mark)
    else:
        for step in before:
            table.take(step)
        table.take(change, wide="(`promotion = wide`)" in row)
        assert said.startswith(("natively", "[natively]", "rewrite", "by the database", "in the table's note")), said
        if not said.startswith("by the database"):
            assert (table.mark() != mark) == said.startswith("rewrite")
    if before:
        table.take(NO_POLICY)

"""Over real Spark Connect, whose client has no JVM: ``create_table_as``, as ``docs/spark.md`` says it is used.

Each script is a process of its own: a client cannot share one with the sessions of the other tests.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import readme, source

_CLIENT = """
from pyspark.sql import SparkSession
import twophase
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert not hasattr(spark, "_jsparkSession"), type(spark)
"""
_STATEMENTS = """
import pathlib
import pytest
from pyiceberg.table import StaticTable
from pyspark.errors import PySparkException
from twophase import ObjectPath, Purpose, TransactionState
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.transactions.coordinator import Coordinator
from twophase.errors import CatalogError, TableAlreadyExistsError
from twophase.spark.connect import ConnectEnvironment
from twophase.timeline.timeline import Timeline

here = pathlib.Path.cwd()
lake = LakehouseCatalog("lake", {}, ConnectEnvironment(warehouse=str(here / "warehouse")))
lake.create_database("db")
coordinator = Coordinator(Timeline(f"sqlite:///{here}/lake.timeline"), {"lake": lake}.__getitem__, name="connect")
PATH = ObjectPath.of("db", "t")

def write(query, purpose, **facts):
    return twophase.create_table_as(
        spark.sql(query), lake, PATH, purpose=purpose, coordinator=coordinator, **facts
    )

def rows():
    table = StaticTable.from_metadata(lake.lakehouse.require(PATH).location)
    return sorted(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())

made = write("SELECT id, CAST(id AS STRING) AS s FROM range(2)", Purpose.CREATE_TABLE_AS,
             properties={"write.target-file-size-bytes": "1000000"})
assert made.state is TransactionState.COMPLETED and made.level == 3
assert write("SELECT 1 AS id", Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS) is None
with pytest.raises(TableAlreadyExistsError):
    write("SELECT 1 AS id", Purpose.CREATE_TABLE_AS)
write("SELECT 'cast' AS S, 7 AS ID", Purpose.INSERT_INTO)
with pytest.raises(CatalogError, match="Column id of db.t is bigint, and the rows have string"):
    write("SELECT 'x' AS s, 'x' AS id", Purpose.INSERT_INTO)
with pytest.raises(PySparkException, match="wrong"):
    write("SELECT raise_error('wrong') AS s, 8 AS id", Purpose.INSERT_INTO)
assert rows() == [(0, "0"), (1, "1"), (7, "cast")], rows()

tx = coordinator.begin()
write("SELECT 5L AS id, 'new' AS s, 1 AS more", Purpose.REPLACE_TABLE_AS, transaction=tx)
write("SELECT 2 AS more, 'second' AS s, 6 AS id", Purpose.INSERT_INTO, transaction=tx)
with pytest.raises(CatalogError, match="missing"):
    write("SELECT 6 AS id, 'x' AS s", Purpose.INSERT_INTO, transaction=tx)
assert len(rows()) == 3
tx.commit()
assert rows() == [(5, "new", 1), (6, "second", 2)], rows()
assert not lake.leftovers()
coordinator.close()
lake.close()
"""


def run(directory: Path, *blocks: str) -> None:
    script = directory / "client.py"
    script.write_text("\n".join([*blocks, 'print("it ran")', "spark.stop()"]))
    facts = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(source.ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=directory,
        env={**os.environ, **facts},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0 and "it ran" in ended.stdout, ended.stdout[-2000:] + ended.stderr[-4000:]


def test_what_is_documented_of_spark_connect_runs(tmp_path: Path) -> None:
    (block,) = (block for block in readme.blocks("py") if "ConnectEnvironment" in block)
    run(
        tmp_path,
        _CLIENT,
        block.replace("/data/", f"{tmp_path}/"),
        "assert tx.state.name == 'COMPLETED' and tx.level == 3, tx",
    )
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        assert sorted(connection.execute("SELECT id FROM three").fetchall()) == [(0,), (1,), (2,)]
    connection.close()


@pytest.mark.promise("create-table-as", "`create_table_as` is atomic over Spark Connect, too")
def test_statements_are_all_or_nothing_over_spark_connect(tmp_path: Path) -> None:
    run(tmp_path, _CLIENT, _STATEMENTS)

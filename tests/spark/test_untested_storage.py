"""A table on a file system that was not tried is not written by mistake: refused before any work, or as stock Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import twophase
from tests.spark.conftest import Start
from tests.spark.routed import rows
from twophase.catalogs.files import Files
from twophase.catalogs.lakehouse.errors import UnreadableMetadataError
from twophase.errors import AtomicityNotSupportedError

spark40_first_cases = True

OPTION = "spark.twophase.storage.untested"
TIMELINE = "spark.twophase.timeline"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Hadoop knows as ``viewfs://far/``."""
    return tmp_path_factory.mktemp("far")


@pytest.fixture(scope="module")
def spark(start: Start, place: Path) -> SparkSession:
    return start(
        {
            "spark.hadoop.fs.viewfs.mounttable.far.linkFallback": f"file://{place}",
            "spark.sql.catalog.distant": "twophase.lakehouse",
            "spark.sql.catalog.distant.uri": f"sqlite:///{place}/lake.db",
            "spark.sql.catalog.distant.warehouse": "viewfs://far/lake",
        }
    )


@pytest.fixture(autouse=True)
def tables(spark: SparkSession, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tables of stock Spark that are stored there; nobody may ask Arrow for the place."""

    def asked(_: Files, scheme: str, authority: str) -> Any:
        raise LookupError(f"{scheme}://{authority} was asked for")

    monkeypatch.setattr(Files, "_open", asked)
    _register(place / "lake.db")
    twophase.attach(spark).detach()
    spark.sql("CREATE DATABASE away LOCATION 'viewfs://far/away'")
    spark.sql("CREATE TABLE t (id BIGINT) USING parquet LOCATION 'viewfs://far/t'")
    spark.sql("INSERT INTO t VALUES (1)")
    yield
    twophase.attach(spark).detach()
    spark.sql("DROP DATABASE away CASCADE")
    spark.sql("DROP TABLE t")
    shutil.rmtree(place / "t")
    for key in (OPTION, f"{TIMELINE}.local", "spark.twophase.atomicity"):
        spark.conf.unset(key)


def _register(lake: Path) -> None:
    """A table of a lake, whose metadata file is away: whoever looks at it fails otherwise."""
    with SqlCatalog("distant", uri=f"sqlite:///{lake}") as catalog, catalog.engine.begin() as connection:
        catalog.create_namespace_if_not_exists("d", {"exists": "true"})
        connection.exec_driver_sql("DELETE FROM iceberg_tables")
        row = {"name": "there", "place": "viewfs://far/lake/d/there/metadata/0.metadata.json"}
        connection.execute(_TABLE_ROW, row)


_TABLE_ROW = sa.text(
    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
    "VALUES ('distant', 'd', :name, :place, 'TABLE')"
)

REPLACE = "CREATE OR REPLACE TABLE distant.d.there AS SELECT 2 AS id"
WRITES = [
    "INSERT INTO t VALUES (2)",
    "INSERT OVERWRITE t VALUES (2)",
    "CREATE OR REPLACE TABLE t AS SELECT 2L AS id",
    "CREATE TABLE made LOCATION 'viewfs://far/made' AS SELECT 2 AS id",
    "CREATE TABLE away.made AS SELECT 2 AS id",
    "CREATE TABLE distant.d.made AS SELECT 2 AS id",
    "CREATE TABLE distant.d.made (id INT)",
    "INSERT INTO distant.d.there VALUES (2)",
    "INSERT OVERWRITE distant.d.there VALUES (2)",
    REPLACE,
    "DELETE FROM distant.d.there WHERE id = 2",
    "DROP TABLE distant.d.there PURGE",
]


def stored(place: Path) -> list[Path]:
    """All files there, but for those of the SQLite file."""
    return sorted(file for file in place.rglob("*") if not file.name.startswith("lake.db"))


@pytest.mark.promise("untested-storage", "a write of a table on an untested file system is refused before any work")
def test_a_write_of_a_table_there_is_refused_before_any_work(spark: SparkSession, place: Path) -> None:
    twophase.attach(spark)
    before = stored(place)
    refuse_all(spark, f"{OPTION}=allow")
    for name in ("t", "distant.d.there"):
        with pytest.raises(AtomicityNotSupportedError):
            spark.range(1).write.mode("append").saveAsTable(name)
        with pytest.raises(AtomicityNotSupportedError):
            spark.range(1).write.insertInto(name)
    with pytest.raises(AtomicityNotSupportedError), twophase.transaction(spark):
        spark.sql("INSERT INTO t VALUES (2)")

    assert stored(place) == before
    assert rows(spark, "SELECT * FROM t") == [(1,)]


@pytest.mark.promise(
    "untested-storage",
    "with a timeline of one machine, a table that other machines can write is refused before any work",
)
def test_with_a_timeline_of_one_machine_a_write_there_is_refused_before_any_work(
    spark: SparkSession, place: Path
) -> None:
    spark.conf.set(OPTION, "allow")
    twophase.attach(spark)
    before = stored(place)
    refuse_all(spark, f"{TIMELINE} = postgresql+psycopg://", f"{TIMELINE}.local=allow")
    assert stored(place) == before


def refuse_all(spark: SparkSession, *hints: str) -> None:
    """Each write there is refused, with the table, its place and these hints."""
    for text in WRITES:
        if text == REPLACE and spark.version < "4.1":
            # Spark reads the table before it asks for its replacement: its metadata is missed first.
            with pytest.raises(UnreadableMetadataError, match="viewfs://far/"):
                spark.sql(text)
            continue
        with pytest.raises(AtomicityNotSupportedError) as caught:
            spark.sql(text)
        message = str(caught.value)
        assert "viewfs://far/" in message
        assert all(hint in message for hint in hints)
        assert str(caught.value.path).rpartition(".")[2] in text


def test_reads_and_tables_without_rows_are_sparks_own(spark: SparkSession) -> None:
    twophase.attach(spark)
    spark.sql("CREATE TABLE away.empty (id INT)")
    assert rows(spark, "SELECT * FROM away.empty") == []
    assert rows(spark, "SELECT * FROM t") == [(1,)]
    spark.sql("ALTER TABLE t SET TBLPROPERTIES (k = 'v')")
    spark.sql("DROP TABLE away.empty")


def test_a_table_of_a_lake_is_dropped_there_without_a_look_at_it(spark: SparkSession) -> None:
    twophase.attach(spark)
    spark.sql("DROP TABLE distant.d.there")
    assert rows(spark, "SHOW TABLES IN distant.d") == []


def test_under_preferred_it_runs_as_in_stock_spark_with_one_warning(spark: SparkSession) -> None:
    spark.conf.set("spark.twophase.atomicity", "preferred")
    twophase.attach(spark)
    with pytest.warns(RuntimeWarning, match="viewfs://far/t") as told:
        spark.sql("INSERT INTO t VALUES (2)")
    assert len(told) == 1
    assert rows(spark, "SELECT * FROM t") == [(1,), (2,)]


def test_the_options_let_it_be_written_by_the_sessions_own_client(
    spark: SparkSession, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    spark.conf.set(OPTION, "allow")
    spark.conf.set(f"{TIMELINE}.local", "allow")
    twophase.attach(spark)
    spark.sql("INSERT INTO t VALUES (2)")
    assert rows(spark, "SELECT * FROM t") == [(1,), (2,)]
    assert len([file for file in stored(place) if file.match("t/*.parquet")]) == 2

"""Tables through HiveServer2 in statements of a Spark session: the server and the session read and write the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import start_session
from tests.servers import Server
from twophase.catalogs.hive.hiveserver2 import HiveServer2Metastore
from twophase.catalogs.hive.hiveserver2_client import SqlClient
from twophase.catalogs.hive.options import Settings
from twophase.errors import CatalogError

pytestmark = pytest.mark.timeout(900)

Rows = list[tuple[object, ...]]
Run = Callable[[str], Rows]


def _options(server: Server) -> dict[str, str]:
    return {"metastore": "hiveserver2", "host": server.host, "port": str(server.port)}


@pytest.fixture(scope="module")
def client(hive_server2: Server) -> Iterator[SqlClient]:
    found = SqlClient(Settings.read(_options(hive_server2), "hive"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def spark(hive_server2: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    catalog = {f"spark.sql.catalog.other.{key}": value for key, value in _options(hive_server2).items()}
    conf = {"spark.sql.catalog.other": "twophase.hive", **catalog}
    session = start_session(tmp_path_factory.mktemp("hs2"), hive=False, conf=conf)
    handle = twophase.attach(session)
    yield session
    handle.detach()
    session.stop()


@pytest.fixture
def on_server(client: SqlClient) -> Iterator[Run]:
    """Runs a statement on the server, where the database ``sold`` is dropped at the end."""
    client.run("CREATE DATABASE IF NOT EXISTS sold")
    yield client.run
    HiveServer2Metastore(client).drop_database("sold", ignore_if_not_exists=False, cascade=True)


def rows(spark: SparkSession, query: str) -> Rows:
    return sorted((tuple(row) for row in spark.sql(query).collect()), key=repr)


def test_a_select_reads_the_partitions_that_the_server_lists_and_no_others(spark: SparkSession, on_server: Run) -> None:
    on_server("CREATE TABLE sold.p (id INT, k INT) USING parquet PARTITIONED BY (k)")
    on_server("INSERT INTO sold.p VALUES (0, 0), (1, 1)")
    spark.sql("INSERT OVERWRITE other.sold.p PARTITION (k = 1) SELECT 9")
    expected: Rows = [(0, 0), (9, 1)]
    assert (rows(spark, "SELECT * FROM other.sold.p"), sorted(on_server("SELECT * FROM sold.p"))) == (expected,) * 2


def test_a_database_is_created_with_the_owner_that_spark_names(spark: SparkSession, on_server: Run) -> None:
    spark.sql("CREATE DATABASE other.made COMMENT 'x' WITH DBPROPERTIES (a = 'b')")
    assert ("made",) in on_server("SHOW DATABASES")
    spark.sql("DROP DATABASE other.made")


def test_a_table_with_a_type_that_is_not_known_is_in_nobodys_way(client: SqlClient, on_server: Run) -> None:
    on_server("CREATE VIEW sold.v AS SELECT NULL AS n, 1 AS id")
    on_server("CREATE TABLE sold.p (id INT, v VARIANT, k INT) USING parquet PARTITIONED BY (k)")
    on_server("CREATE TABLE sold.t (id INT) USING parquet")
    found = HiveServer2Metastore(client).located_tables("sold")
    assert {table.name: table.partition_columns for table in found} == {"v": (), "p": ("k",), "t": ()}


def test_a_session_that_the_server_has_ended_is_opened_anew(client: SqlClient, on_server: Run) -> None:
    from TCLIService import ttypes

    connection = client._connection
    connection._client.CloseSession(ttypes.TCloseSessionReq(sessionHandle=connection._sessionHandle))
    assert on_server("SELECT 1") == [(1,)]


def test_a_table_that_loses_its_comment_has_none(client: SqlClient, on_server: Run) -> None:
    on_server("CREATE TABLE sold.t (id INT) USING parquet COMMENT 'old'")
    store = HiveServer2Metastore(client)
    table = store.get_table("sold", "t")
    assert table is not None
    store.replace_table(replace(table, comment=None), "t")
    now = store.get_table("sold", "t")
    assert now is not None
    assert not now.comment


def test_a_table_with_field_ids_is_neither_read_nor_written_by_names(spark: SparkSession, on_server: Run) -> None:
    marked = "TBLPROPERTIES ('twophase.field_ids' = 'true')"
    on_server(f"CREATE TABLE sold.t USING parquet {marked} AS SELECT 1 AS id")
    for statement in (
        "INSERT INTO other.sold.t SELECT 2",
        "SELECT * FROM other.sold.t",
        f"CREATE TABLE other.sold.u {marked} AS SELECT 1 AS id",
    ):
        with pytest.raises(CatalogError, match="field ids"):
            spark.sql(statement).collect()
    assert on_server("SELECT * FROM sold.t") == [(1,)]


def test_a_collation_that_would_be_lost_is_refused(spark: SparkSession, on_server: Run) -> None:
    with pytest.raises(CatalogError, match="c has a collation"):
        spark.sql("CREATE TABLE other.sold.t AS SELECT array('x' COLLATE UTF8_LCASE) AS c")
    assert on_server("SHOW TABLES IN sold") == []


def test_a_column_that_an_insert_leaves_out_gets_the_default_of_the_server(spark: SparkSession, on_server: Run) -> None:
    on_server("CREATE TABLE sold.t (a INT, b INT DEFAULT 7, s STRING DEFAULT 'x') USING parquet")
    spark.sql("INSERT INTO other.sold.t (a) VALUES (1)")
    assert rows(spark, "SELECT * FROM other.sold.t") == on_server("SELECT * FROM sold.t") == [(1, 7, "x")]
    on_server("ALTER TABLE sold.t ADD COLUMN e INT DEFAULT 5")
    with pytest.raises(CatalogError, match="older than its column e"):
        spark.sql("SELECT * FROM other.sold.t").collect()
    assert on_server("SELECT e FROM sold.t") == [(5,)]

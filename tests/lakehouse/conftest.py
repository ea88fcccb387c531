"""What holds an Iceberg catalog: a file, and servers that are started once for the whole run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from tests.lakehouse.places import Lake, MetastoreLake, RestLake, in_schema
from tests.lakehouse.readers import not_read_by
from tests.lakehouse.rest_server import rest_catalog
from tests.servers import Server
from twophase import failpoints
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.model import ObjectPath

if TYPE_CHECKING:
    from tests.lakehouse.shop import Shop

KINDS = ("sqlite", "postgresql")


def make_lake(kind: str, request: pytest.FixtureRequest, directory: Path) -> Lake:
    """An Iceberg catalog of a kind; each call has a database of its own, or shares the one metastore."""
    warehouse = directory / "warehouse"
    if kind == "sqlite":
        return Lake(f"sqlite:///{directory / 'catalog.db'}", warehouse)
    if kind == "rest":
        return RestLake(request.getfixturevalue("rest"), warehouse)
    server: Server = request.getfixturevalue(kind)
    if kind == "hive_metastore":
        return MetastoreLake(server.url, warehouse)
    return Lake(own_database(server.url), warehouse)


def own_database(url: str) -> str:
    """The URL of a new database of a PostgreSQL server."""
    name = f"lake_{uuid.uuid4().hex[:12]}"
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    return sa.engine.make_url(url).set(database=name).render_as_string(hide_password=False)


def own_schema(url: str) -> str:
    """The same database with a schema of its own: a hundredth of the work, where no JDBC driver reads along."""
    name = f"lake_{uuid.uuid4().hex[:12]}"
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    return in_schema(url, name)


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[str]:
    """A REST catalog of its own: its URI."""
    with rest_catalog(tmp_path / "rest") as uri:
        yield uri


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """Each of the two."""
    return make_lake(request.param, request, tmp_path)


@pytest.fixture
def catalog(lake: Lake) -> Iterator[LakehouseCatalog]:
    made = lake.catalog()
    yield made
    failpoints.disarm()
    made.close()


@pytest.fixture
def path(catalog: LakehouseCatalog) -> ObjectPath:
    """A table that does not exist yet."""
    catalog.create_database("shop")
    return ObjectPath.of("shop", "daily")


# -- three readers -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def is_read_alike(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test all three read the same in what it leaves in its lake, unless it says why they cannot."""
    if "lake" not in request.fixturenames:
        yield
        return
    lake, readers = request.getfixturevalue("lake"), request.getfixturevalue("readers")
    yield
    readers.assert_alike(lake, but=not_read_by(request.node))


# -- through Spark -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Lake]]:
    """A session over a lake of the module's ``KIND``."""
    from tests.lakehouse.shop import session

    root = tmp_path_factory.mktemp("lakehouse")
    lake = make_lake(request.module.KIND, request, root)
    with session(root, lake) as spark:
        yield spark, lake


@pytest.fixture
def shop(opened: tuple[Any, Lake], request: pytest.FixtureRequest) -> Iterator[Shop]:
    """The session; afterwards all three read the same, and no file may be there that belongs to no table."""
    from tests.lakehouse.shop import DATABASE, Shop

    spark, lake = opened
    made = Shop(spark, lake)
    yield made
    failpoints.disarm()
    tables = [row.tableName for row in made.sql(f"SHOW TABLES IN lake.{DATABASE}").collect()]
    left = lake.orphans()
    try:
        made.assert_alike(tables, but=not_read_by(request.node))
    finally:
        for table in tables:
            made.sql(f"DROP TABLE @`{table}` PURGE")
    assert left == set()

"""Two sessions of one application, each with transactions of its own: one of each a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.spark.conftest import Start
from tests.spark.isolation.stores import Store
from twophase import (
    failpoints,
)


@pytest.fixture(scope="module")
def spark(start: Start, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    directory = tmp_path_factory.mktemp("isolation")
    session = start(
        {
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={directory}/meta;create=true",
            "spark.sql.catalog.ice": "twophase.lakehouse",
            "spark.sql.catalog.ice.warehouse": str(directory / "lake"),
            "spark.sql.catalog.lite": "twophase.jdbc",
            "spark.sql.catalog.lite.url": f"sqlite:///{directory}/lite.db",
            "spark.sql.sources.partitionOverwriteMode": "static",
        }
    )
    handle = twophase.attach(session)
    for name in ("ice", "lake"):
        handle.catalog(name).create_database("db")
    for name in ("parts", "serdes"):
        session.sql(f"CREATE DATABASE {name}")
    return session


@pytest.fixture(scope="module")
def other(spark: SparkSession) -> SparkSession:
    """Another session of the application, with transactions of its own."""
    session = spark.newSession()
    twophase.attach(session)
    return session


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
def store(spark: SparkSession, kind: str) -> Store:
    return Store(spark, kind)

"""Sessions for the tests of the Spark layer: one a module, on a warehouse of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.blocks import EACH_STORE, STORES

CHAOS = "twophase.testing.chaos:ChaosCatalog"

Start = Callable[..., SparkSession]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts the module's session; it is stopped after the module."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers of a user's function
    started: list[SparkSession] = []

    def make(conf: Mapping[str, str] | None = None) -> SparkSession:
        root = tmp_path_factory.mktemp("spark")
        builder: Any = SparkSession.builder.master("local[2]").appName("native tests")
        facts = {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "OFF",
            "spark.sql.warehouse.dir": str(root / "warehouse"),
            "spark.sql.catalog.lake": CHAOS,
            "spark.sql.catalog.lake.directory": str(root / "lake"),
            "spark.sql.catalog.lake.store": str(root),
        }
        for key, value in {**facts, **(conf or {})}.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        started.append(session)
        return session

    yield make
    for session in started:
        session.stop()


@pytest.fixture(params=EACH_STORE)
def store(request: pytest.FixtureRequest) -> str:
    """Each store in which a block changes tables."""
    return str(request.param)


@pytest.fixture
def named(store: str, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names of that store's tables, of this test only."""
    suffix = f"{abs(hash(request.node.name)) % 10**8}"
    return lambda name: f"{STORES[store][0]}.{name}_{suffix}"


def warehouse_of(spark: SparkSession) -> Path:
    """The session's warehouse directory."""
    return Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:"))

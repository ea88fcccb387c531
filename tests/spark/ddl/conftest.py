"""One session for the tests of this directory, and names of databases and tables in each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.isolation.places import session
from tests.spark.ddl.stores import DATABASES, RENAMING


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory, postgresql: Any, mariadb: Any) -> Iterator[SparkSession]:
    with session(tmp_path_factory.mktemp("ddl"), {"pg": postgresql, "maria": mariadb}) as found:
        yield found


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.exhaustive if name == "mariadb" else ()) for name in DATABASES]
)
def named(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names of a store's databases, of this test only."""
    suffix = f"{abs(hash(request.node.name)) % 10**8}"
    return lambda name: f"{DATABASES[request.param]}{name}_{suffix}"


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.exhaustive if name in ("sqlite", "mariadb") else ()) for name in RENAMING
    ]
)
def table(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names of a store's tables, of this test only."""
    suffix = f"{abs(hash(request.node.name)) % 10**8}"
    return lambda name: f"{RENAMING[request.param]}.{name}_{suffix}"

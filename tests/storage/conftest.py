"""A session with the tests' own file systems, one a module, and a database on each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.storage import counting


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def spark(root: Path) -> Iterator[SparkSession]:
    session = counting.session(root)
    for scheme in counting.SCHEMES:
        session.sql(f"CREATE DATABASE {scheme} LOCATION '{counting.place_of(root, scheme)}'")
    yield session
    session.stop()

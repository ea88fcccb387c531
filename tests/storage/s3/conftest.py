"""One session a module over the server with the API of S3, its buckets, and twophase attached for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.servers import Server
from tests.storage.objects import Objects
from tests.storage.s3 import session
from twophase.spark.handle import Handle


@pytest.fixture(scope="module")
def objects(s3: Server) -> Objects:
    return session.buckets(s3)


@pytest.fixture(scope="module")
def spark(root: Path, s3: Server, objects: Objects) -> Iterator[SparkSession]:
    found = session.start(root, s3)
    yield found
    found.stop()


@pytest.fixture
def attached(spark: SparkSession, objects: Objects) -> Iterator[Handle]:
    """Afterwards the server has no faults."""
    handle = twophase.attach(spark)
    yield handle
    objects.set()
    handle.detach()

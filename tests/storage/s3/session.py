"""A session with the tests' own file systems over a server with the API of S3, and a database on each."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.hive.conftest import start_session
from tests.servers import Server
from tests.storage import filesystems
from tests.storage.filesystems import IMPATIENT
from tests.storage.objects import Objects
from twophase.spark.handle import Handle
from twophase.transactions.clean import clean

#: The kinds of the schemes that twophase does not know.
KINDS = {"hdfslike": "hdfs"}
SCHEMES = ("s3a", "hdfslike")
#: Bucket names may have dots.
BUCKET = "tables.test"


def place_of(root: Path, scheme: str) -> str:
    """The directory of a database on one of the file systems."""
    return f"s3a://{BUCKET}/warehouse" if scheme == "s3a" else f"hdfslike:{root}/like"


def buckets(server: Server) -> Objects:
    """The buckets of the sessions, made here, without what the sessions of other modules have left in them."""
    found = Objects(server, BUCKET, IMPATIENT)
    for bucket in (BUCKET, IMPATIENT):
        found.files.delete_dir_contents(bucket)
    return found


def start(root: Path, server: Server) -> SparkSession:
    """A session with a database for each file system, and one in the bucket whose client sends no request twice."""
    filesystems.install(root / "classes")
    conf = {
        **filesystems.conf_of(server),
        "spark.twophase.storage": ",".join(f"{scheme}={kind}" for scheme, kind in KINDS.items()),
        "spark.twophase.storage.untested": "allow",
        "spark.twophase.timeline.local": "allow",
    }
    session = start_session(root, hive=True, conf=conf)
    for scheme in SCHEMES:
        session.sql(f"CREATE DATABASE {scheme} LOCATION '{place_of(root, scheme)}'")
    session.sql(f"CREATE DATABASE impatient LOCATION 's3a://{IMPATIENT}/warehouse'")
    return session


def tidy(handle: Handle) -> None:
    """Recover, and remove all that no table needs."""
    handle.recover()
    handle.environment.retention = 0.0
    assert not [done for done in clean(handle.coordinator, [handle.catalog("hive")]) if done.failed]

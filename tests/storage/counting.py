"""Sessions with an object store that counts its requests, and with a file system like HDFS: the tests' own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.hive.conftest import start_session
from tests.hive.world import World, jvm_of
from tests.storage import filesystems
from twophase.catalogs.hive import HiveCatalog
from twophase.spark.jvm.hadoop_files import SessionHadoopFiles

_PACKAGE = "twophasetests"
#: The schemes, and the kinds of those that twophase does not know.
SCHEMES = ("counted", "hdfslike")
_KINDS = {"counted": "object_store", "hdfslike": "hdfs"}


def place_of(root: Path, scheme: str) -> str:
    """A directory on one of the file systems, for a database; the bucket is named after a local directory."""
    return f"counted://{root.name}/warehouse" if scheme == "counted" else f"hdfslike:{root}/like"


def session(root: Path, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session with both file systems, over an embedded metastore."""
    filesystems.install(root / "classes")
    facts = {
        "spark.hadoop.fs.counted.impl": f"{_PACKAGE}.CountedObjects",
        "spark.hadoop.fs.counted.root": str(root / "objects"),
        "spark.hadoop.fs.hdfslike.impl": f"{_PACKAGE}.HdfsLike",
        "spark.twophase.storage": ",".join(f"{scheme}={kind}" for scheme, kind in _KINDS.items()),
        "spark.twophase.storage.untested": "allow",
        "spark.twophase.timeline.local": "allow",
    }
    return start_session(root, hive=True, conf={**facts, **(conf or {})})


def world_of(spark: SparkSession, warehouse: str, options: Mapping[str, str] | None = None) -> World:
    """A Hive catalog whose files are those of the session's Hadoop client."""
    found = World(spark, Path(warehouse), options)
    found.environment.warehouse = warehouse
    found.environment.allows_untested_storage = True
    found.environment.hadoop_files = SessionHadoopFiles(jvm_of(spark))
    found.environment.storage_kinds = _KINDS
    found.catalog = HiveCatalog("hive", options or {}, found.environment)
    return found


def requests() -> Counter[str]:
    """The requests to the object store since the last call, by their verb: HEAD, LIST, GET, PUT, COPY and DELETE."""
    return Counter(line.partition(" ")[0] for line in request_lines())


def request_lines() -> list[str]:
    """Same as :func:`requests`, each with its key."""
    jvm: Any = SparkContext._jvm
    return str(getattr(jvm, _PACKAGE).CountedObjects.takeRequests()).splitlines()


def limit(directory: str, most: int | None) -> None:
    """Limit the bytes below a local directory of the file system like HDFS.

    Parameters
    ----------
    directory : str
    most : int or None
        If negative, nothing in the directory may be changed; None removes the limit.
    """
    jvm: Any = SparkContext._jvm
    getattr(jvm, _PACKAGE).HdfsLike.limit(directory, None if most is None else jvm.java.lang.Long.valueOf(str(most)))

"""The Hive catalog passes the suite over a metastore in a file, by both recipes and on each kind of storage; no Spark.

Over Spark's own metastore it is run in ``tests/hive``, and there on other file systems in ``tests/storage``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.crash.file_metastore import FileMetastore
from tests.crash.frames import ArrowFrame
from tests.crash.remote_files import LikeHdfs, ObjectStore
from twophase.catalog import Catalog, Environment
from twophase.catalogs.hive import HiveCatalog
from twophase.catalogs.hive.definitions import PROVIDERS
from twophase.errors import CatalogError
from twophase.model import Capabilities, ObjectPath, Purpose, TableDefinition
from twophase.testing._suite_base import SCHEMA
from twophase.testing.conformance import CatalogConformance, Driver, FreshProcess

#: The clients of the file systems that are not local.
CLIENTS = {"s3a": ObjectStore, "hdfs": LikeHdfs}


def open_hive(directory: str, recipe: str, scheme: str) -> HiveCatalog:
    """A catalog that shares nothing in memory with another one over the same metastore."""
    environment = Environment()
    environment.session_metastore = FileMetastore(Path(directory), scheme=scheme)
    environment.warehouse = f"{scheme}:{directory}/warehouse"
    environment.allows_untested_storage = True
    if scheme in CLIENTS:
        environment.hadoop_files = CLIENTS[scheme](Path(directory))
    environment.conf = {"spark.sql.sources.default": "parquet"}
    return HiveCatalog("hive", {"recipe": recipe, "password": "the-password-of-hive"}, environment)


class TestHiveByPointer(CatalogConformance):
    recipe = "pointer"
    scheme = "file"
    moments = 4  # The crash matrix tries each step.
    capabilities = Capabilities(
        purposes=frozenset(Purpose),
        partitioning=frozenset({"identity", "cluster_by"}),
        bucketing=True,
        alter_database=True,
        rename_table=True,
        alter_table=True,
        read=True,
        external_location=True,
        compensate=True,
        column_defaults=True,
        partition_columns_last=True,
        providers=PROVIDERS,
    )

    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Catalog:
        return open_hive(str(tmp_path), self.recipe, self.scheme)

    @pytest.fixture
    def fresh_catalog(self, tmp_path: Path) -> Callable[[], Catalog]:
        return lambda: open_hive(str(tmp_path), self.recipe, self.scheme)

    @pytest.fixture
    def make_frame(self) -> Callable[[list[tuple[Any, ...]], pa.Schema], ArrowFrame]:
        return lambda rows, schema: ArrowFrame(
            pa.Table.from_arrays(
                [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)], schema=schema
            )
        )

    @pytest.fixture
    def read_rows(self, tmp_path: Path) -> Callable[[ObjectPath], list[tuple[Any, ...]]]:
        metastore = FileMetastore(tmp_path)
        return lambda path: metastore.rows(metastore.canonical(path.database), metastore.canonical(path.name)) or []

    @pytest.fixture
    def fresh_process(self, tmp_path: Path) -> FreshProcess | None:
        return FreshProcess(
            "tests.kit.test_hive_conforms:open_hive",
            {"directory": str(tmp_path), "recipe": self.recipe, "scheme": self.scheme},
        )


class TestHiveByRename(TestHiveByPointer):
    recipe = "rename"
    another_store = True

    def test_a_table_is_renamed_with_its_rows_or_not_at_all(self, driver: Driver, path: ObjectPath) -> None:
        """The files stay where they are, which is the default place of the old name: that is told, and kept."""
        old, new_path = driver.existing(path), ObjectPath.of(path.database, "renamed")
        driver.catalog.rename_table(path, new_path)
        assert (driver.state(path), driver.state(new_path)) == (None, old)
        with pytest.raises(CatalogError, match="not empty"):
            driver.catalog.create_table(path, TableDefinition(SCHEMA))
        assert (driver.state(path), driver.state(new_path)) == (None, old)


class TestHiveOnAnObjectStore(TestHiveByPointer):
    scheme = "s3a"
    capabilities = replace(TestHiveByPointer.capabilities, copying_savepoints=True, unseen_changes=True)


class TestHiveOnAFileSystemLikeHdfs(TestHiveOnAnObjectStore):
    scheme = "hdfs"

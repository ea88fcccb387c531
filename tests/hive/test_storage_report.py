"""What ``twophase doctor`` says of the file systems of a catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.file_metastore import FileMetastore
from tests.unwritable import unwritable
from twophase.catalog import Environment
from twophase.catalogs.files import shown_file_system
from twophase.catalogs.hive import HiveCatalog


@pytest.mark.promise("secrets", "the doctor names a file system without the user and the password in its URI")
@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("s3a://KEY:hunter2@bucket/warehouse", "s3a://***@bucket"),
        ("s3n://KEY:hun/ter@2@bucket/warehouse", "s3n://***@bucket"),
        ("s3a://bucket/warehouse", "s3a://bucket"),
        ("hdfs://namenode:8020/user/me@host", "hdfs://namenode:8020"),
        ("hdfs://namenode:8020", "hdfs://namenode:8020"),
        ("abfss://container@account.dfs.core.windows.net/a:b@c", "abfss://container@account.dfs.core.windows.net"),
        ("file:/data/a:b@c", "file:"),
    ],
)
def test_a_file_system_is_named_without_a_password(location: str, shown: str) -> None:
    assert shown_file_system(location) == shown


def test_a_warehouse_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    environment = Environment()
    environment.session_metastore = metastore = FileMetastore(tmp_path)
    catalog = HiveCatalog("hive", {}, environment)
    assert catalog.check() == []
    directory = Path(str(metastore.database_location("default")).removeprefix("file:"))
    directory.mkdir(parents=True)
    with unwritable():
        (told,) = catalog.check()
    assert f"{directory} cannot be written: File too large. Make room on the disk" in told
    assert catalog.check() == []
    assert list(directory.iterdir()) == []

"""What ``twophase doctor`` says of the file systems of a catalog."""

from __future__ import annotations

import pytest

from twophase.catalogs.files import shown_file_system


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

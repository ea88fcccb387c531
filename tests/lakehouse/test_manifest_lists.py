"""Promise: a manifest list of ours is, but for its random marker, byte for byte the one that PyIceberg writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io import load_file_io
from pyiceberg.manifest import (
    UNASSIGNED_SEQ,
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
    read_manifest_list,
    write_manifest_list,
)

from twophase.catalogs.lakehouse import manifest_lists

_SYNC_SIZE = 16


def _summary(null: bool, nan: bool | None, lower: bytes | None, upper: bytes | None) -> PartitionFieldSummary:
    return PartitionFieldSummary.from_args(contains_null=null, contains_nan=nan, lower_bound=lower, upper_bound=upper)


def _manifest(number: int, sequence_number: int, partitions: list[PartitionFieldSummary] | None) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=f"file:/somewhere/é/{number}.avro",
        manifest_length=1000 + number,
        partition_spec_id=number % 2,
        content=ManifestContent.DATA,
        sequence_number=sequence_number,
        min_sequence_number=sequence_number,
        added_snapshot_id=7,
        added_files_count=number,
        existing_files_count=0,
        deleted_files_count=2**31 - 1,
        added_rows_count=2**62,
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=partitions,
        key_metadata=None,
    )


MANIFESTS = [
    _manifest(0, UNASSIGNED_SEQ, None),
    _manifest(1, 3, [_summary(True, False, b"\x00", b"\xff" * 300)]),
    _manifest(2, 4, [_summary(False, None, None, None)]),
]


def _without_marker(file: Path) -> bytes:
    content = file.read_bytes()
    return content.replace(content[-_SYNC_SIZE:], b"")


@pytest.mark.parametrize("parent", [None, 6])
@pytest.mark.parametrize("codec", ["gzip", "deflate", "zstd", "null"])
@pytest.mark.parametrize("manifests", [[], MANIFESTS], ids=["none", "some"])
def test_it_is_what_pyiceberg_writes(
    tmp_path: Path, parent: int | None, codec: Any, manifests: list[ManifestFile]
) -> None:
    ours, theirs = tmp_path / "ours.avro", tmp_path / "theirs.avro"
    io = load_file_io({}, str(tmp_path))
    manifest_lists.write(
        io.new_output(str(ours)), manifests, snapshot_id=7, parent_id=parent, sequence_number=5, compression=codec
    )
    with write_manifest_list(2, io.new_output(str(theirs)), 7, parent, 5, codec) as writer:
        writer.add_manifests(manifests)
    assert _without_marker(ours) == _without_marker(theirs)
    found = list(read_manifest_list(io.new_input(str(ours))))
    assert [m.sequence_number for m in found] == [
        5 if m.sequence_number == UNASSIGNED_SEQ else m.sequence_number for m in manifests
    ]

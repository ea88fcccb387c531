"""Writing a manifest list, as PyIceberg does, but for what is the same in each: that is made once.

PyIceberg works out anew for each file how its schema is written, which takes longer than writing it: with many tables
in one transaction most of the commit would be that. This leans on what PyIceberg keeps to itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO
from pyiceberg.avro.file import _SCHEMA_KEY, MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_writer, resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestFile,
    ManifestListWriterV2,
)
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

FORMAT_VERSION: Final = 2
_NAME = "manifest_file"


@cache
def _rows() -> Writer:
    """How a manifest's row is written."""
    return resolve_writer(
        record_schema=MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION],
        file_schema=MANIFEST_LIST_FILE_SCHEMAS[FORMAT_VERSION],
    )


@cache
def _header() -> Writer:
    """How the head of an Avro file is written."""
    return construct_writer(META_SCHEMA)


@cache
def _schema() -> str:
    """The schema of a manifest list, in Avro's words."""
    found = AvroSchemaConversion().iceberg_to_avro(MANIFEST_LIST_FILE_SCHEMAS[FORMAT_VERSION], schema_name=_NAME)
    return json.dumps(found)


class _File(AvroOutputFile[ManifestFile]):
    def __init__(self, output_file: OutputFile, metadata: dict[str, str]) -> None:
        self.output_file = output_file
        self.file_schema = MANIFEST_LIST_FILE_SCHEMAS[FORMAT_VERSION]
        self.schema_name = _NAME
        self.sync_bytes = os.urandom(SYNC_SIZE)
        self.writer = _rows()
        self.metadata = metadata

    def _write_header(self) -> None:
        codec = self.metadata[AVRO_CODEC_KEY]
        codec = CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec, codec)
        about = {**self.metadata, _SCHEMA_KEY: _schema(), AVRO_CODEC_KEY: codec}
        _header().write(self.encoder, AvroFileHeader(MAGIC, about, self.sync_bytes))


class _Lists(ManifestListWriterV2):
    def __enter__(self) -> _Lists:
        self._writer = _File(self._output_file, self._meta)
        self._writer.__enter__()
        return self


def write(
    output: OutputFile,
    manifests: Sequence[ManifestFile],
    *,
    snapshot_id: int,
    parent_id: int | None,
    sequence_number: int,
    compression: Any,
) -> None:
    """Write the manifest list of a snapshot.

    Parameters
    ----------
    output : pyiceberg.io.OutputFile
    manifests : sequence of pyiceberg.manifest.ManifestFile
    snapshot_id : int
    parent_id : int or None
        Of the snapshot before it.
    sequence_number : int
        For the manifests that have none yet.
    compression : str
        Iceberg's name of Avro's codec.
    """
    with _Lists(output, snapshot_id, parent_id, sequence_number, compression) as writer:
        writer.add_manifests(list(manifests))

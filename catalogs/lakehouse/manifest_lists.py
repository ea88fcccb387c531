"""Writing of manifest lists as in PyIceberg, but with a cached writer and schema.

PyIceberg resolves the writer anew for each file, which takes longer than the writing itself; with many tables in one
transaction it would be most of the commit. This depends on private parts of PyIceberg.
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
    """The writer of a manifest's entry."""
    return resolve_writer(
        record_schema=MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION],
        file_schema=MANIFEST_LIST_FILE_SCHEMAS[FORMAT_VERSION],
    )


@cache
def _header() -> Writer:
    """The writer of an Avro file's header."""
    return construct_writer(META_SCHEMA)


@cache
def _schema() -> str:
    """The Avro schema of a manifest list, as JSON."""
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
        Id of the parent snapshot.
    sequence_number : int
        Sequence number for the manifests that have none yet.
    compression : str
        Iceberg's name of Avro's codec.
    """
    with _Lists(output, snapshot_id, parent_id, sequence_number, compression) as writer:
        writer.add_manifests(list(manifests))

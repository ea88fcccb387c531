"""Paths below a table's location, with names that identify the files of one participant.

::

    <location>/data/<key>/...                                         its data files
    <location>/metadata/<uuid>-m0.avro, -k0.avro                      manifests of the files that it adds and keeps
    <location>/metadata/snap-<snapshot>-0-<uuid>.avro                 manifest lists, one for each try to publish
    <location>/metadata/<version>-<uuid>.metadata.json                metadata files, one for each try to publish

The key is a hash of transaction, ordinal and table, and each uuid begins with it. To Iceberg itself only the version in
these names has a meaning.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import uuid
from dataclasses import dataclass

from twophase.catalogs.files import Files, join
from twophase.model import ObjectPath

_UNSAFE = re.compile(r"[^A-Za-z0-9_\-]")
_KEY_LENGTH = 24
#: Digits of a uuid after the key, random for each file.
_REST_LENGTH = 32 - _KEY_LENGTH


def key_of(path: ObjectPath, transaction_id: str, ordinal: int) -> str:
    """The unique key of a participant, in hexadecimal digits."""
    identity = json.dumps([transaction_id, ordinal, *path.to_document()])
    return hashlib.sha256(identity.encode()).hexdigest()[:_KEY_LENGTH]


def table_location(warehouse: str, path: ObjectPath, key: str) -> str:
    """A location for a new table that no other table has used: a dropped one of this name may still be read."""
    parts = [_UNSAFE.sub("_", part)[:80] for part in (*path.namespace, path.name)]
    return join(warehouse, *parts[:-1], f"{parts[-1]}-{key[:12]}")


@dataclass(frozen=True)
class Place:
    """The place in which one participant works.

    Attributes
    ----------
    location : str
        Location of the table.
    key : str
    """

    location: str
    key: str

    @property
    def data(self) -> str:
        """Directory of its data files."""
        return join(self.location, "data", self.key)

    @property
    def metadata(self) -> str:
        """Directory of the table's metadata."""
        return join(self.location, "metadata")

    @staticmethod
    def roots(location: str) -> list[str]:
        """The directories of a table's own files."""
        return [join(location, "data"), join(location, "metadata")]

    @property
    def _mark(self) -> str:
        """The prefix of its uuids."""
        return str(uuid.UUID(self.key + "0" * _REST_LENGTH))[:-_REST_LENGTH]

    def manifest(self, kind: str, number: int) -> str:
        """A manifest, with the same name at each try."""
        return join(self.metadata, f"{self._mark}{'0' * _REST_LENGTH}-{kind}{number}.avro")

    def manifest_list(self, snapshot_id: int) -> str:
        """A manifest list with a unique name."""
        return join(self.metadata, f"snap-{snapshot_id}-0-{self._mark}{secrets.token_hex(4)}.avro")

    def metadata_file(self, version: int) -> str:
        """A metadata file with a unique name."""
        return join(self.metadata, f"{version:05d}-{self._mark}{secrets.token_hex(4)}.metadata.json")

    # -- existing files ------------------------------------------------------------------------------------------

    def metadata_files(self, files: Files) -> list[str]:
        """Its files in the metadata directory."""
        found = files.list(self.metadata, recursive=False)
        return [join(self.metadata, entry.name) for entry in found if self.is_own(entry.name)]

    def left(self, files: Files) -> list[str]:
        """Its data directory and its metadata files, if they exist."""
        data = [self.data] if files.exists(self.data) else []
        return [*data, *self.metadata_files(files)]

    def is_own(self, file: str) -> bool:
        """Return True if a metadata file belongs to this participant."""
        return self._mark in file.rpartition("/")[2]

    def remove(self, files: Files) -> None:
        """Remove all of its files, and directories that become empty. Idempotent."""
        files.remove_tree(self.data)
        for file in self.metadata_files(files):
            remove_file(files, file)
        for directory in (join(self.location, "data"), self.metadata, self.location):
            if files.exists(directory):
                files.remove_if_empty(directory)

    def remove_tries(self, files: Files, published: set[str]) -> None:
        """Remove the leftovers of failed tries to publish. Idempotent."""
        for file in self.metadata_files(files):
            if file not in published:
                remove_file(files, file)


def remove_file(files: Files, location: str) -> None:
    """Remove a file, and on a local file system Hadoop's checksum file. Idempotent."""
    directory, _, name = location.rpartition("/")
    files.remove_file(location)
    if files.is_local(location):
        files.remove_file(f"{directory}/.{name}.crc")


def is_ours(table: str, file: str) -> bool:
    """Return True if twophase wrote a data file, judging by its path; its columns are named as in their schema then."""
    key = file.removeprefix(join(table, "data") + "/").partition("/")[0]
    return len(key) == _KEY_LENGTH and not set(key) - set("0123456789abcdef")


def version_of(metadata_location: str) -> int:
    """Version of a metadata file; 0 if its name has none."""
    digits = metadata_location.rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isdigit() else 0

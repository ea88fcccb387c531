"""PyIceberg's access to the files of a catalog, with the settings and credentials of a location.

They are those of the session's Hadoop client, so that PyIceberg talks to the same store as Spark's own writer, then
the catalog's own options, then what a REST catalog lends for a table: the later ones take precedence. They are never
shown; executors receive them with the tasks that read or write files.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pyarrow import fs
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO

from twophase.catalogs.files import HadoopFiles, file_system_of, normal, parent
from twophase.catalogs.lakehouse.file_settings import of_hadoop, with_region
from twophase.lru import LruCache

_MOST_OPEN = 64
_MOST_LENT = 1024
#: How settings of file systems begin; everything else, such as the token for the server, stays with the catalog.
_OF_FILES = ("s3.", "client.", "gcs.", "adls.")
#: Settings that are used together: one of another source would not fit to the others.
_CREDENTIALS = (
    frozenset(
        f"{start}.{name}"
        for start in ("s3", "client")
        for name in ("access-key-id", "secret-access-key", "session-token", "role-arn", "profile-name", "anonymous")
    ),
    frozenset(
        f"adls.{name}"
        for name in (
            "account-key", "sas-token", "client-id", "client-secret", "tenant-id", "connection-string", "token", "anon"
        )
    ),
)  # fmt: skip
_ARROWS_BUCKETS = ("s3", "s3a", "s3n", "gs")


class FileAccess:
    """Opens the files of one catalog.

    Parameters
    ----------
    options : mapping of str to str
        The catalog's own settings, under PyIceberg's names.
    hadoop : HadoopFiles or None
        The session's Hadoop client.
    """

    def __init__(self, options: Mapping[str, str], hadoop: HadoopFiles | None = None) -> None:
        self._options = dict(options)
        self._hadoop = hadoop
        self._lent: LruCache[str, dict[str, str]] = LruCache(_MOST_LENT)
        self._open: LruCache[tuple[object, ...], FileIO] = LruCache(_MOST_OPEN)
        self._lock = threading.RLock()

    def configure(self, options: Mapping[str, Any]) -> None:
        """Replace the catalog's own settings, by those that its server has completed."""
        with self._lock:
            self._options = layered(options)
            self._open.clear()

    def lend(self, location: str, properties: Mapping[str, Any]) -> None:
        """Use what a server lends for everything below the location of a table, from now on."""
        self._lent.put(normal(location), layered(properties))

    def io(self, location: str) -> FileIO:
        """PyIceberg's access to the files at, or below, a location. It can be sent to executors."""
        with self._lock:
            place, lent = file_system_of(location), self._lent_for(location)
            key = (place, *sorted(lent.items()))
            if (found := self._open.get(key)) is not None:
                return found
            own = layered(self._options, lent)
            properties = layered(self._of_session(place, not _CREDENTIALS[0].isdisjoint(own)), own)
            return self._open.put(key, load_file_io(with_region(properties), location))

    def _of_session(self, place: str, has_credentials: bool) -> dict[str, str]:
        return {} if self._hadoop is None else of_hadoop(place, self._hadoop, has_credentials=has_credentials)

    def _lent_for(self, location: str) -> dict[str, str]:
        below = normal(location) if self._lent else ""
        while below:
            if (found := self._lent.get(below)) is not None:
                return found
            below = parent(below)
        return {}

    def filesystem(self, location: str) -> fs.FileSystem | None:
        """Arrow's file system of a bucket, opened in the same way; None for any other kind of place."""
        scheme, _, rest = file_system_of(location).partition(":")
        io = self.io(location) if scheme in _ARROWS_BUCKETS else None
        return io.fs_by_scheme(scheme, rest.removeprefix("//")) if isinstance(io, PyArrowFileIO) else None


def layered(*layers: Mapping[str, Any]) -> dict[str, str]:
    """The settings of file systems in some mappings, of which the later ones take precedence.

    Credentials are taken from one of them, not mixed.
    """
    found: dict[str, str] = {}
    for layer in layers:
        own = {name: str(value) for name, value in layer.items() if name.startswith(_OF_FILES)}
        for group in _CREDENTIALS:
            if group & own.keys():
                found = {name: value for name, value in found.items() if name not in group}
        found |= own
    return found

"""Identity of directories: whether two locations are the same directory, however they are spelled.

A warehouse may be accessed through symbolic links, bind mounts, several schemes of one store, with and without a
default port. Compared as texts, a directory in use would seem to be another one; so local directories are compared by
device and inode, and remote ones by the store that scheme and authority denote. Aliases that cannot be detected (a name
service and its host, a disk mounted twice over a network) count as two places, so nothing may be removed merely because
two places differ.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

#: Identity of a directory: equal for two spellings of the same one.
Key = tuple[Any, ...]

_LOCAL = "file:"
#: Schemes that are other names of the same store.
_STORES = {
    "s3a": "s3",
    "s3n": "s3",
    "abfss": "abfs",
    "wasb": "abfs",
    "wasbs": "abfs",
    "webhdfs": "hdfs",
    "swebhdfs": "hdfs",
    "gcs": "gs",
}
#: Default ports of schemes, including those of Hadoop 2.
_PORTS = {"hdfs": ("8020",), "webhdfs": ("9870", "50070"), "swebhdfs": ("9871", "50470")}
#: Azure's two host names of an account, for its two interfaces.
_BLOB, _DFS = ".blob.core.", ".dfs.core."


class Identities:
    """Identities of directories, cached: the file system is asked once for each, so that checking many is cheap.

    Use an instance for one check only: cached identities may change afterwards.
    """

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        self._links: dict[str, str] = {}
        self._chains: dict[str, frozenset[Key]] = {}

    def key(self, uri: str) -> Key:
        """The identity of a directory, which need not exist.

        Parameters
        ----------
        uri : str
            A location as normalized by :func:`twophase.catalogs.files.normal`.
        """
        if uri not in self._keys:
            self._keys[uri] = self._local(uri) if uri.startswith(_LOCAL) else _remote(uri)
        return self._keys[uri]

    def chain(self, uri: str) -> frozenset[Key]:
        """The identities of a directory and of all that contain it, by its path and by its links' destinations."""
        if uri not in self._chains:
            self._chains[uri] = frozenset({self.key(uri)}.union(*map(self.chain, self._above(uri))))
        return self._chains[uri]

    def _above(self, uri: str) -> Iterator[str]:
        if (above := _parent(uri)) is not None:
            yield above
        if (real := self._links.get(uri, uri)) != uri:  # a link to itself has no other destination
            yield real

    def _local(self, uri: str) -> Key:
        path = uri.removeprefix(_LOCAL)
        try:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                self._links[uri] = _LOCAL + os.path.realpath(path)
                found = os.stat(path)
        except OSError:
            above = _parent(uri)
            return ("file", path) if above is None else (*self.key(above), posixpath.basename(path))
        return _number(found) or ("file", os.path.realpath(path))


def are_same(one: str, other: str) -> bool:
    """Whether two locations, normalized by :func:`twophase.catalogs.files.normal`, are the same directory."""
    if one == other:
        return True
    if one.startswith(_LOCAL) and other.startswith(_LOCAL):
        with suppress(OSError):  # does not exist
            numbers = [_number(os.stat(uri.removeprefix(_LOCAL))) for uri in (one, other)]
            if all(numbers):
                return numbers[0] == numbers[1]
    identities = Identities()
    return identities.key(one) == identities.key(other)


def _number(found: os.stat_result) -> Key | None:
    """Device and inode number of a file; None if the file system has no inode numbers, as some in user space."""
    return ("file", found.st_dev, found.st_ino) if found.st_ino else None


def _remote(uri: str) -> Key:
    scheme, _, rest = uri.partition(":")
    scheme = scheme.lower()
    authority, path = "", rest
    if rest.startswith("//"):
        authority, _, path = rest[2:].partition("/")
    return (_STORES.get(scheme, scheme), _authority(scheme, authority), posixpath.normpath("/" + path.lstrip("/")))


def _authority(scheme: str, authority: str) -> str:
    host, _, port = authority.rpartition(":")
    if host and port in _PORTS.get(scheme, ()):
        authority = host
    store = _STORES.get(scheme, scheme)
    if store == "abfs":
        return authority.lower().replace(_BLOB, _DFS)
    return authority.lower() if store == "hdfs" else authority


def _parent(uri: str) -> str | None:
    """The parent directory; None for the root of a file system."""
    head, slash, name = uri.rpartition("/")
    if uri.startswith(_LOCAL):
        return None if uri == "file:/" else head if head != _LOCAL else "file:/"
    return head if slash and name and not head.endswith("/") and "/" in head else None


__all__ = ["Identities", "Key", "are_same"]

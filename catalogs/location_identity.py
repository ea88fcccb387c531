"""Whether two locations are one directory, however they are spelled.

A warehouse is reached through symbolic links, bind mounts, several schemes of one store, with and without a default
port. Texts tell then that a directory in use is another one; so local directories are compared by device and inode, and
the rest by what a scheme and an authority stand for. What no look tells (a name service and its host, a disk that is
mounted twice over a network) stays two places: nothing may be removed because two places differ.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

#: What identifies a directory: equal for two spellings of one.
Key = tuple[Any, ...]

_LOCAL = "file:"
#: Schemes that are other names for a store.
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
#: Ports that a scheme has where none is named, those of Hadoop 2 too.
_PORTS = {"hdfs": ("8020",), "webhdfs": ("9870", "50070"), "swebhdfs": ("9871", "50470")}
#: Azure's names for one account, by its two interfaces.
_BLOB, _DFS = ".blob.core.", ".dfs.core."


class Identities:
    """Identities of directories; each is asked of the file system once, so that a look at many is cheap.

    One instance serves one look: what it remembers may change afterwards.
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
            A location as :func:`twophase.catalogs.files.normal` spells it.
        """
        if uri not in self._keys:
            self._keys[uri] = self._local(uri) if uri.startswith(_LOCAL) else _remote(uri)
        return self._keys[uri]

    def chain(self, uri: str) -> frozenset[Key]:
        """The identities of a directory and of all in which it lies, by its path and by where its links lead."""
        if uri not in self._chains:
            self._chains[uri] = frozenset({self.key(uri)}.union(*map(self.chain, self._above(uri))))
        return self._chains[uri]

    def _above(self, uri: str) -> Iterator[str]:
        if (above := _parent(uri)) is not None:
            yield above
        if (real := self._links.get(uri, uri)) != uri:  # a link that leads to itself stays as it is
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
    """Whether two locations, as :func:`twophase.catalogs.files.normal` spells them, are one directory."""
    if one == other:
        return True
    if one.startswith(_LOCAL) and other.startswith(_LOCAL):
        with suppress(OSError):  # not there
            numbers = [_number(os.stat(uri.removeprefix(_LOCAL))) for uri in (one, other)]
            if all(numbers):
                return numbers[0] == numbers[1]
    identities = Identities()
    return identities.key(one) == identities.key(other)


def _number(found: os.stat_result) -> Key | None:
    """What the system identifies a file by; None where it numbers nothing, as some file systems in user space."""
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
    """The directory above; None for the top of a file system."""
    head, slash, name = uri.rpartition("/")
    if uri.startswith(_LOCAL):
        return None if uri == "file:/" else head if head != _LOCAL else "file:/"
    return head if slash and name and not head.endswith("/") and "/" in head else None


__all__ = ["Identities", "Key", "are_same"]

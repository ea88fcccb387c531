"""A file system through :mod:`pyarrow.fs`, with credentials out of the environment."""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Collection
from typing import Any, BinaryIO, cast

from pyarrow import fs

from twophase.catalogs.files.entries import Entry
from twophase.catalogs.files.interface import FileStore
from twophase.catalogs.files.kinds import StorageKind
from twophase.errors import CatalogError

#: Arrow's names of Hadoop's schemes.
_SCHEMES = {"s3a": "s3", "s3n": "s3"}
#: Schemes whose paths begin with the bucket.
_BUCKETS = ("s3", "gs")


class ArrowStore(FileStore):
    """A file system of Arrow."""

    def __init__(self, filesystem: fs.FileSystem, kind: StorageKind) -> None:
        super().__init__(kind)
        self._filesystem = filesystem

    # -- reading -------------------------------------------------------------------------------------------------

    def status(self, path: str) -> Entry | None:
        info = self._filesystem.get_file_info(path)
        return None if info.type == fs.FileType.NotFound else _entry(info, posixpath.basename(path.rstrip("/")))

    def list(self, path: str, *, recursive: bool, links: bool) -> list[Entry]:
        selector = fs.FileSelector(path, recursive=recursive, allow_not_found=True)
        top = path.rstrip("/") + "/"
        return [
            _entry(info, info.path[len(top) :] if info.path.startswith(top) else posixpath.relpath(info.path, path))
            for info in self._filesystem.get_file_info(selector)
        ]

    def read(self, path: str) -> bytes | None:
        try:
            with self._filesystem.open_input_stream(path) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None
        except OSError:
            if self.status(path) is not None:
                raise
            return None

    def open(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._filesystem.open_input_file(path))

    # -- changing ------------------------------------------------------------------------------------------------

    def write(self, path: str, data: bytes, *, waits: bool = True) -> None:
        with self._filesystem.open_output_stream(path) as stream:
            stream.write(data)

    def put(self, path: str, content: BinaryIO) -> None:
        with self._filesystem.open_output_stream(path) as stream:
            shutil.copyfileobj(content, stream)

    def make_directory(self, path: str) -> None:
        self._filesystem.create_dir(path, recursive=True)

    def rename(self, path: str, new_path: str) -> None:
        self._filesystem.move(path, new_path)

    def copy(self, path: str, new_path: str) -> None:
        fs.copy_files(path, new_path, source_filesystem=self._filesystem, destination_filesystem=self._filesystem)

    def remove_file(self, path: str) -> None:
        self._filesystem.delete_file(path)

    def remove_files(self, path: str, names: Collection[str]) -> None:
        there = {entry.name for entry in self.list(path, recursive=True, links=True) if entry.is_file}
        for name in sorted(there & set(names)):
            self.remove_file(f"{path.rstrip('/')}/{name}")

    def remove_tree(self, path: str) -> None:
        self._filesystem.delete_dir(path)

    def remove_if_empty(self, path: str) -> bool:
        if self.list(path, recursive=False, links=True):
            return False
        self.remove_tree(path)
        return True


def _entry(info: Any, name: str) -> Entry:
    return Entry(name, info.type == fs.FileType.File, info.size or 0, (info.mtime_ns or 0) // 1_000_000)


def open_arrow(scheme: str, authority: str, kind: StorageKind) -> ArrowStore:
    """The file system of a scheme.

    Parameters
    ----------
    scheme, authority : str
        As in Hadoop's paths: ``s3a`` and a bucket, ``hdfs`` and a host.
    kind : StorageKind

    Raises
    ------
    CatalogError
        Arrow does not support the scheme, or the file system cannot be opened.
    """
    uri = f"{_SCHEMES.get(scheme, scheme)}://{authority}/"
    try:
        return ArrowStore(fs.FileSystem.from_uri(uri)[0], kind)
    except Exception as error:
        raise CatalogError(
            f"The filesystem of {scheme}://{authority} cannot be opened: {error}",
            hint="Is its scheme known to pyarrow.fs, and are its credentials in the environment?",
        ) from error


def arrow_path(scheme: str, authority: str, path: str) -> str:
    """Arrow's path of a file: with the bucket, where there is one.

    Parameters
    ----------
    scheme, authority : str
    path : str
        With a slash at the beginning.
    """
    return authority + path if _SCHEMES.get(scheme, scheme) in _BUCKETS else path

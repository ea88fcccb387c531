"""Clients of an object store and of a file system like HDFS, over a local directory: they die without a JVM.

They answer as ``java/HadoopFiles.java`` does with such a file system. Each change is one step with a failpoint of its
own; the rename of an object is two, a copy and a delete.
"""

from __future__ import annotations

import os
import re
import shutil
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from twophase import failpoints
from twophase.catalogs.files import HadoopFiles

_CHANGES = ("put", "write", "make_directory", "rename", "place", "copy", "remove_one", "remove_files", "remove_tree")
POINTS = {name: failpoints.Failpoint(f"remote.{name}") for name in (*_CHANGES, "copied")}
_SCHEME = re.compile(r"^[a-z0-9]+:")


def local(location: str) -> Path:
    """A Hadoop path string as a path; files of any scheme are local ones."""
    return Path("/" + _SCHEME.sub("", location).lstrip("/"))


class RemoteFiles(HadoopFiles):
    """What both have in common.

    Parameters
    ----------
    root : Path
        Holds everything.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def settings(
        self, names: Sequence[str], *, secret: bool = False, providers: str | None = None
    ) -> Sequence[str | None]:
        return [None for _ in names]

    # -- reading -------------------------------------------------------------------------------------------------

    def status(self, location: str) -> tuple[bool, int, int] | None:
        path = local(location)
        if path.is_file():
            return True, path.stat().st_size, int(path.stat().st_mtime * 1000)
        return (False, 0, 0) if path.is_dir() else None

    def list(self, location: str, *, recursive: bool, flat: bool) -> Sequence[tuple[str, bool, int, int]]:
        top = local(location)
        found = top.rglob("*") if recursive else top.glob("*")
        return [
            (str(path.relative_to(top)), *facts)
            for path in (found if top.is_dir() else ())
            if (facts := self.status(str(path)))
        ]

    def existing(self, location: str, names: Sequence[str]) -> Sequence[str]:
        return [name for name in names if (local(location) / name).exists()]

    def read(self, location: str) -> bytes | None:
        path = local(location)
        return path.read_bytes() if path.is_file() else None

    def open(self, location: str) -> BinaryIO:
        return local(location).open("rb")

    def equal(self, location: str, other: str) -> bool:
        return local(location).read_bytes() == local(other).read_bytes()

    # -- changing ------------------------------------------------------------------------------------------------

    def put(self, location: str, content: BinaryIO) -> None:
        with failpoints.step(POINTS["put"]):
            self._store(local(location), content.read())

    def _store(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def make_directory(self, location: str) -> None:
        with failpoints.step(POINTS["make_directory"]):
            local(location).mkdir(parents=True, exist_ok=True)

    def rename(self, location: str, target: str) -> None:
        with failpoints.step(POINTS["rename"]):
            self._rename(local(location), local(target))

    @abstractmethod
    def _rename(self, path: Path, target: Path) -> None:
        """Rename a file or directory, or raise :class:`FileNotFoundError` or :class:`FileExistsError`."""

    def place(self, location: str, target: str, *, copies: bool) -> None:
        with failpoints.step(POINTS["place"]):
            path, to = local(location), local(target)
            if not path.exists():
                return
            if not to.exists():
                to.parent.mkdir(parents=True, exist_ok=True)
                self._rename(path, to)
            elif copies and path.read_bytes() == to.read_bytes():
                self._gone(path)
            else:
                raise FileExistsError(target)

    def copy(self, location: str, target: str) -> None:
        with failpoints.step(POINTS["copy"]):
            self._store(local(target), local(location).read_bytes())

    def remove_one(self, location: str) -> bool:
        with failpoints.step(POINTS["remove_one"]):
            self._gone(local(location))
            return True

    def _gone(self, path: Path) -> None:
        """Remove a file or an empty directory, if it exists."""
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)

    def remove_files(self, location: str, names: Sequence[str]) -> None:
        with failpoints.step(POINTS["remove_files"]):
            for name in names:
                self._gone(local(location) / name)

    def remove_tree(self, location: str) -> None:
        with failpoints.step(POINTS["remove_tree"]):
            shutil.rmtree(local(location), ignore_errors=True)


class ObjectStore(RemoteFiles):
    """Objects by key: a directory is gone with its last object, and a rename copies and deletes each object."""

    def write(self, location: str, data: bytes, part: str | None) -> None:
        assert part is None, "An object appears as a whole."
        with failpoints.step(POINTS["write"]):
            self._store(local(location), data)

    def _rename(self, path: Path, target: Path) -> None:
        objects = sorted(path.rglob("*")) if path.is_dir() else [path]
        for found in objects:
            if found.is_file():
                with failpoints.step(POINTS["copied"]):
                    self._store(target / found.relative_to(path), found.read_bytes())
        for found in objects:
            self._gone(found)

    def _gone(self, path: Path) -> None:
        super()._gone(path)
        self._prune(path.parent)

    def remove_tree(self, location: str) -> None:
        super().remove_tree(location)
        self._prune(local(location).parent)

    def _prune(self, directory: Path) -> None:
        while directory.is_relative_to(self._root) and directory != self._root:
            if directory.exists() and any(directory.iterdir()):
                return
            shutil.rmtree(directory, ignore_errors=True)
            directory = directory.parent


class LikeHdfs(RemoteFiles):
    """Real directories, a rename in one step that replaces nothing, and no links."""

    def write(self, location: str, data: bytes, part: str | None) -> None:
        assert part is not None, "Readers see a file while it is written."
        with failpoints.step(POINTS["write"]):
            self._store(local(part), data)
            with failpoints.step(POINTS["rename"]):
                os.replace(local(part), local(location))

    def _rename(self, path: Path, target: Path) -> None:
        if target.exists():
            raise FileExistsError(target)
        os.rename(path, target)

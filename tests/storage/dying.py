"""The files of a session whose process dies at a change of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.hadoop_files import SessionHadoopFiles


class Killed(BaseException):
    """The process ends here: no handler of a catalog's own goes on."""


class DyingFiles(SessionHadoopFiles):
    """The session's files until the process dies: before a change or after it, or in the middle of a rename."""

    def __init__(self, jvm: Jvm) -> None:
        super().__init__(jvm)
        self.moment: str | None = None
        self.left = 0

    def _dies(self, moment: str) -> bool:
        if self.moment is None or moment != self.moment:
            return False
        self.left -= 1
        return self.left == 0

    def _change(self, change: Callable[[], Any]) -> Any:
        if self._dies("before"):
            raise Killed
        found = change()
        if self._dies("after"):
            raise Killed
        return found

    def write(self, location: str, data: bytes, part: str | None) -> None:
        self._change(lambda: super(DyingFiles, self).write(location, data, part))

    def make_directory(self, location: str) -> None:
        self._change(lambda: super(DyingFiles, self).make_directory(location))

    def remove_one(self, location: str) -> bool:
        return bool(self._change(lambda: super(DyingFiles, self).remove_one(location)))

    def remove_files(self, location: str, names: Sequence[str]) -> None:
        self._change(lambda: super(DyingFiles, self).remove_files(location, names))

    def remove_tree(self, location: str) -> None:
        self._change(lambda: super(DyingFiles, self).remove_tree(location))

    def rename(self, location: str, target: str) -> None:
        self._change(lambda: super(DyingFiles, self).rename(location, target))

    def place(self, location: str, target: str, *, copies: bool) -> None:
        if copies and self._dies("copied"):
            self.copy(location, target)
            raise Killed
        self._change(lambda: super(DyingFiles, self).place(location, target, copies=copies))

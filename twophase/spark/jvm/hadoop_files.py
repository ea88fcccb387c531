"""The file systems of the session's Hadoop configuration, by ``java/HadoopFiles.java``."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from py4j.protocol import Py4JJavaError

from twophase.redaction import redact
from twophase.spark.jvm.gateway import Jvm, private_name
from twophase.spark.jvm.java_sources import java_object

#: Bytes of a file in one call.
_CHUNK = 1 << 20
_TAKEN = ("org.apache.hadoop.fs.FileAlreadyExistsException", "java.nio.file.FileAlreadyExistsException")
_MISSING = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")


class SessionHadoopFiles:
    """Implements :class:`twophase.catalogs.files.hadoop.HadoopFiles` with the configuration of a session."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    @property
    def _java(self) -> Any:
        return self._jvm.once(("HadoopFiles",), self._make)

    def _make(self) -> Any:
        with private_name("SessionState.newHadoopConf", self._jvm.spark):
            conf = self._jvm.session.sessionState().newHadoopConf()
        return java_object(self._jvm, "HadoopFiles", conf)

    def settings(
        self, names: Sequence[str], *, secret: bool = False, providers: str | None = None
    ) -> Sequence[str | None]:
        with _errors():
            found: dict[str, str | None] = json.loads(self._java.settings(json.dumps(list(names)), secret, providers))
        return [found[name] for name in names]

    # -- reading -------------------------------------------------------------------------------------------------

    def status(self, location: str) -> tuple[bool, int, int] | None:
        with _errors():
            found = self._java.status(location)
        return None if found is None else tuple(json.loads(found))

    def list(self, location: str, *, recursive: bool, flat: bool) -> Sequence[tuple[str, bool, int, int]]:
        with _errors():
            return [tuple(facts) for facts in json.loads(self._java.list(location, recursive, flat))]

    def existing(self, location: str, names: Sequence[str]) -> Sequence[str]:
        with _errors():
            return [str(name) for name in json.loads(self._java.existing(location, json.dumps(list(names))))]

    def read(self, location: str) -> bytes | None:
        with _errors():
            found = self._java.read(location)
        return None if found is None else bytes(found)

    def open(self, location: str) -> BinaryIO:
        with _errors():
            return cast(BinaryIO, io.BufferedReader(_Input(self._java, self._java.open(location)), _CHUNK))

    def equal(self, location: str, other: str) -> bool:
        with _errors():
            return bool(self._java.equal(location, other))

    # -- changing ------------------------------------------------------------------------------------------------

    def put(self, location: str, content: BinaryIO) -> None:
        with _errors():
            out = self._java.create(location)
            shutil.copyfileobj(content, cast(BinaryIO, _Output(out)), _CHUNK)
            out.close()

    def write(self, location: str, data: bytes, part: str | None) -> None:
        with _errors():
            self._java.write(location, data, part)

    def make_directory(self, location: str) -> None:
        with _errors():
            self._java.makeDirectory(location)

    def rename(self, location: str, target: str) -> None:
        with _errors():
            self._java.rename(location, target)

    def place(self, location: str, target: str, *, copies: bool) -> None:
        with _errors():
            self._java.place(location, target, copies)

    def copy(self, location: str, target: str) -> None:
        with _errors():
            self._java.copy(location, target)

    def remove_one(self, location: str) -> bool:
        with _errors():
            return bool(self._java.removeOne(location))

    def remove_files(self, location: str, names: Sequence[str]) -> None:
        with _errors():
            self._java.removeFiles(location, json.dumps(list(names)))

    def remove_tree(self, location: str) -> None:
        with _errors():
            self._java.removeTree(location)


class _Input(io.RawIOBase):
    """A Java stream, read a chunk in each call."""

    def __init__(self, java: Any, stream: Any) -> None:
        super().__init__()
        self._java, self._stream = java, stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _errors():
            data = bytes(self._java.next(self._stream, len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._stream.close()


class _Output:
    """A Java stream, written a chunk in each call."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: bytes) -> None:
        self._stream.write(data)


@contextmanager
def _errors() -> Iterator[None]:
    """Raise what Hadoop's client throws as an :class:`OSError`."""
    try:
        yield
    except Py4JJavaError as error:
        thrown = error.java_exception
        name, text = str(thrown.getClass().getName()), redact(str(thrown.getMessage()))
        if name in _MISSING:
            raise FileNotFoundError(text) from None
        if name in _TAKEN:
            raise FileExistsError(text) from error
        raise OSError(f"{name.rpartition('.')[2]}: {text}") from error

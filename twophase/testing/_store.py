"""The stores of the chaos catalog's tables: in this process, or in a JSON file that outlives it.

Both contain one plain document. A change is made on a copy, under a lock, and becomes visible atomically.
"""

from __future__ import annotations

import copy
import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

Document = dict[str, Any]


def empty() -> Document:
    """A store with one empty database."""
    return {"databases": {"default": {"properties": {}, "tables": {}}}, "staged": {}, "published": {}}


class Store(ABC):
    """One document with atomic changes."""

    #: Equal for all catalogs over this store.
    identity: str

    @abstractmethod
    def read(self) -> Document:
        """Return a copy of the current document."""

    @abstractmethod
    def change(self) -> Any:
        """Return a context manager that yields the document, and saves it at the end unless an exception was raised."""


class MemoryStore(Store):
    """A store inside this process, shared by all instances with the same name."""

    _shared: ClassVar[dict[str, MemoryStore]] = {}

    def __init__(self, name: str) -> None:
        self.identity = f"memory:{name}"
        self._lock = threading.RLock()
        self._document = empty()

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        return cls._shared.setdefault(name, cls(name))

    def read(self) -> Document:
        with self._lock:
            return copy.deepcopy(self._document)

    @contextmanager
    def change(self) -> Iterator[Document]:
        with self._lock:
            document = copy.deepcopy(self._document)
            yield document
            self._document = document


class FileStore(Store):
    """A store in a JSON file: replaced atomically, changed by one process at a time (POSIX file locks)."""

    def __init__(self, file: str) -> None:
        self._file = Path(file).absolute()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self.identity = f"file:{self._file}"

    def read(self) -> Document:
        try:
            return dict(json.loads(self._file.read_bytes()))
        except FileNotFoundError:
            return empty()

    @contextmanager
    def change(self) -> Iterator[Document]:
        import fcntl  # Only here: the in-process store works on all platforms.

        with open(f"{self._file}.lock", "a") as lock:
            # The system releases the lock of a killed process; closing the file releases ours.
            fcntl.flock(lock, fcntl.LOCK_EX)
            document = self.read()
            yield document
            new = self._file.with_name(f"{self._file.name}.{os.getpid()}.new")
            new.write_text(json.dumps(document))
            os.replace(new, self._file)

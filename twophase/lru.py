"""A cache of the entries that were used last, for several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class LruCache(Generic[_Key, _Value]):
    """A cache that keeps the entries which were used last.

    Parameters
    ----------
    most : int
        How many it keeps.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()
        self._lock = threading.RLock()  # A signal handler or a finalizer may run inside of it.

    def get(self, key: _Key) -> _Value | None:
        """Return an entry; None if it is not there."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: _Key, value: _Value) -> _Value:
        """Add or replace an entry, and return it."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
        return value

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()

"""Settings that Spark reads from the session only, held for as long as some writer needs them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class HeldSettings:
    """Session settings that all writers of one kind need at the same values.

    Parameters
    ----------
    values : mapping of str to str
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._lock = threading.Lock()
        self._users: Counter[int] = Counter()
        #: By session, what the user has said of the settings that have other values now.
        self._before: dict[int, dict[str, str | None]] = {}

    @contextmanager
    def held(self, spark: Any) -> Iterator[None]:
        """Hold the settings in a session; the last writer gives back what is not the user's again."""
        key = id(spark)
        with self._lock:
            self._users[key] += 1
            self._take(spark, self._before.setdefault(key, {}))
        try:
            yield
        finally:
            with self._lock:
                self._users[key] -= 1
                if not self._users[key]:
                    del self._users[key]
                    self._give_back(spark, self._before.pop(key))

    def _take(self, spark: Any, before: dict[str, str | None]) -> None:
        for name, value in self._values.items():
            now = spark.conf.get(name, None)
            if now != value:
                before[name] = now
                spark.conf.set(name, value)

    def _give_back(self, spark: Any, before: Mapping[str, str | None]) -> None:
        for name, value in before.items():
            if spark.conf.get(name, None) != self._values[name]:
                continue  # The user has set it meanwhile.
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)

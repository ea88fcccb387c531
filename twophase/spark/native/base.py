"""What all Python objects behind Java interfaces share.

A proxy has no default methods: each method that Spark calls must be answered in Python. ``equals``, ``hashCode`` and
``toString`` are called too.
"""

from __future__ import annotations

from typing import Any

from twophase.spark.jvm.bridge import Jvm
from twophase.spark.jvm.callbacks import JavaCallable

# Method names in this package's proxies are Java's.
# ruff: noqa: N802


class Proxy(JavaCallable):
    """Base of the Python side of a Java interface."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def _identity(self) -> tuple[Any, ...]:
        """What makes two proxies equal to Spark; the object itself unless a subclass knows better."""
        return (id(self),)

    def equals(self, other: Any) -> bool:
        # Another proxy comes back as a Java object: its two answers stand for its identity.
        return (
            other is not None and str(other.toString()) == self.toString() and int(other.hashCode()) == self.hashCode()
        )

    def hashCode(self) -> int:
        return hash(self._identity()) & 0x7FFFFFFF

    def toString(self) -> str:
        return f"twophase {type(self).__name__}"

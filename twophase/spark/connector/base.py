"""Common base of all Python objects behind Java interfaces.

A proxy has no default methods: each method that Spark calls must be implemented in Python, including ``equals``,
``hashCode`` and ``toString``.
"""

from __future__ import annotations

from typing import Any

from twophase.spark.jvm import values
from twophase.spark.jvm.callbacks import JavaCallable
from twophase.spark.jvm.gateway import Jvm

# Method names in this package's proxies are Java's.
# ruff: noqa: N802


class Proxy(JavaCallable):
    """Base of the Python side of a Java interface."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def _identity(self) -> tuple[Any, ...]:
        """The identity by which Spark compares two proxies; that of the object itself unless overridden."""
        return (id(self),)

    def equals(self, other: Any) -> bool:
        # Another proxy arrives as a Java object: it is compared by these two results.
        return (
            other is not None and str(other.toString()) == self.toString() and int(other.hashCode()) == self.hashCode()
        )

    def hashCode(self) -> int:
        return hash(self._identity()) & 0x7FFFFFFF

    def toString(self) -> str:
        return f"twophase {type(self).__name__}"

    def supportedCustomMetrics(self) -> Any:
        return values.array(self._jvm, "org.apache.spark.sql.connector.metric.CustomMetric")

    def reportDriverMetrics(self) -> Any:
        return values.array(self._jvm, "org.apache.spark.sql.connector.metric.CustomTaskMetric")

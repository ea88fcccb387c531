"""The write side of a table: Spark passes the query as a DataFrame, on the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twophase.model import OverwriteScope, TableDefinition
from twophase.spark.connector.base import Proxy
from twophase.spark.connector.definition import static_partition
from twophase.spark.errors import thrown_to_spark
from twophase.spark.jvm import frames
from twophase.spark.jvm.gateway import WRITE, Jvm

# ruff: noqa: N802

#: Receives the rows, and for an overwrite the scope that they replace.
Insert = Callable[[Any, OverwriteScope | None], None]
#: Given Spark's conditions, returns the receiver of rows that replace those matching them all. It raises if it does
#: not support them.
Replacing = Callable[[Sequence[Any]], Insert]


class WriteBuilder(Proxy):
    """Receives the scope of a write.

    Parameters
    ----------
    jvm : Jvm
    definition : TableDefinition
        Definition of the table that is written.
    insert : callable
        Receives the rows.
    replacing : callable, optional
        Given conditions, returns the receiver of rows that replace those matching them.
    """

    def __init__(
        self, jvm: Jvm, definition: TableDefinition, insert: Insert, replacing: Replacing | None = None
    ) -> None:
        super().__init__(jvm)
        self._definition = definition
        self._insert = insert
        self._replacing = replacing
        self._scope: OverwriteScope | None = None

    def truncate(self) -> Any:
        self._scope = OverwriteScope()
        return self

    def canOverwrite(self, predicates: Any) -> bool:
        with thrown_to_spark(self._jvm):
            conditions = list(predicates)
            if self._static(conditions) is None and self._replacing:
                self._replacing(conditions)  # Spark's own error would be an internal one.
                return True
            return self._static(conditions) is not None

    def overwrite(self, predicates: Any) -> Any:
        with thrown_to_spark(self._jvm):
            conditions = list(predicates)
            static = self._static(conditions)
            if static is None and self._replacing:
                self._insert = self._replacing(conditions)
            self._scope = OverwriteScope(static or {})
            return self

    def _static(self, conditions: Sequence[Any]) -> dict[str, str | None] | None:
        return static_partition(self._jvm, conditions, self._definition)

    def build(self) -> Any:
        return Write(self._jvm, self._insert, self._scope)

    class Java:
        implements = [WRITE + "SupportsOverwriteV2"]


class Write(Proxy):
    """Receives the rows of a ``V1Write``, which is called only when the statement runs, never for EXPLAIN."""

    def __init__(self, jvm: Jvm, insert: Insert, scope: OverwriteScope | None) -> None:
        super().__init__(jvm)
        self._insert = insert
        self._scope = scope

    def description(self) -> str:
        return "twophase"

    def toInsertableRelation(self) -> Any:
        return self

    def insert(self, dataset: Any, _: bool) -> None:
        with thrown_to_spark(self._jvm):
            self._insert(frames.data_frame(self._jvm, dataset), self._scope)

    class Java:
        implements = [WRITE + "V1Write", "org.apache.spark.sql.sources.InsertableRelation"]

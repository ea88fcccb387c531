"""Read plans: how the rows of a file with an older schema become rows of the query, with PyArrow or with Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from twophase.schema.plan_arrow import project
from twophase.schema.plan_spark import expressions
from twophase.schema.read_field import ReadField
from twophase.schema.schema import Schema


@dataclass(frozen=True)
class ReadPlan:
    """The plan to convert rows of one file to rows of the query; created by :func:`plan_read`.

    Attributes
    ----------
    file, query : Schema
    fields : tuple of ReadField
        One for each field of the query, in order.
    """

    file: Schema
    query: Schema
    fields: tuple[ReadField, ...]

    @property
    def file_columns(self) -> list[str]:
        """Names of the file's top-level columns to read."""
        return [read.source.name for read in self.fields if read.source is not None]

    def project(self, table: pa.Table) -> pa.Table:
        """Convert rows of the file, as a PyArrow table, to rows of the query.

        Parameters
        ----------
        table : pyarrow.Table
            Rows with at least the :attr:`file_columns`.

        Raises
        ------
        CastError
            A value does not fit the type of one of its casts, and ``on_cast_failure`` of that cast is ``error``.
        NullabilityError
            A NOT NULL field would be NULL.
        """
        return project(self.query, self.fields, table)

    def spark_expressions(self) -> list[str]:
        """The projection for ``DataFrame.selectExpr``, applied to the file read with its own schema."""
        return expressions(self.query, self.fields)

    def find(self, field_id: int) -> ReadField | None:
        """The read plan of the field with an id; None if the query has no such field.

        Parameters
        ----------
        field_id : int
            Id of a field of the query, at any level.
        """
        if field_id not in self.query:
            return None
        above = [*reversed([parent.id for parent in self.query.ancestors(field_id)]), field_id]
        siblings: Iterable[ReadField] = self.fields
        read: ReadField | None = None
        for step in above:
            read = next((candidate for candidate in siblings if candidate.field.id == step), None)
            if read is None:
                return None
            siblings = read.children
        return read

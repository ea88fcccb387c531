"""The reading of one field of a query from a file with an older schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from twophase.schema.schema import Field


class Origin(Enum):
    """The relation of a query's field to the file."""

    #: The file has the field under the same name.
    SAME = "same"
    #: The file has the field under another name.
    RENAMED = "renamed"
    #: The file has another field with that name: the column was dropped and added again.
    READDED = "readded"
    #: The file has neither the field nor its name.
    ADDED = "added"
    #: The field is constant in the file (a partition value in the directory's name).
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class ReadField:
    """The read plan of one field of the query.

    Attributes
    ----------
    field : Field
        Field of the query.
    source : Field, optional
        Field of the file; None if there is nothing to read in the file.
    origin : Origin
    casts : tuple of pyarrow.DataType
        Successive types to which the file's value is cast, ending with the query's; empty if no cast is needed.
    on_cast_failure : tuple of str
        For each cast, the handling of a value that does not fit its type: ``error`` or ``null``.
    constant : pyarrow.Scalar, optional
        Value of all rows if there is no source; None is NULL.
    children : tuple of ReadField
    """

    field: Field
    source: Field | None
    origin: Origin
    casts: tuple[pa.DataType, ...] = ()
    on_cast_failure: tuple[str, ...] = ()
    constant: pa.Scalar | None = None
    children: tuple[ReadField, ...] = ()

    @property
    def steps(self) -> Iterator[tuple[pa.DataType, pa.DataType, str]]:
        """Each cast: its source type, its target type, and the handling of a value that does not fit."""
        if self.source is not None:
            yield from zip([self.source.leaf, *self.casts], self.casts, self.on_cast_failure, strict=False)

    @property
    def untouched(self) -> bool:
        """True if the file's value can be used unchanged, including names and NOT NULL of nested fields."""
        source = self.source
        if source is None or self.casts or len(source.children) != len(self.children):
            return False
        if source.nullable and not self.field.nullable:
            return False
        return all(
            child.untouched and child.source is below and child.field.name == below.name
            for child, below in zip(self.children, source.children, strict=True)
        )

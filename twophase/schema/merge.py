"""Reading a file that an older schema wrote: for each field of the query, what of the file it is read from.

The rules are those of Hudi's InternalSchemaMerger. The plan also says how each value becomes the query's type: one
cast, or the chain of casts that the table's history went through, so that a file reads as if every change of type had
rewritten it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

from twophase.schema.cast_arrow import cast_scalar
from twophase.schema.defaults import as_default
from twophase.schema.errors import FieldIdError, SchemaError, TypeChangeError
from twophase.schema.leaf import type_name
from twophase.schema.names import fold, format_path
from twophase.schema.promotion import CAST_FAILURES, Loss, classify
from twophase.schema.schema import Field, Kind, Schema


class Origin(Enum):
    """How a field of the query stands to the file."""

    #: The file has it under the same name.
    SAME = "same"
    #: The file has it under another name.
    RENAMED = "renamed"
    #: The file has another field of that name: this one was dropped and added again.
    READDED = "readded"
    #: The file has neither.
    ADDED = "added"
    #: Its value is one for the whole file (a partition value in the directory's name).
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class ReadField:
    """How one field of the query is read.

    Attributes
    ----------
    field : Field
        Of the query.
    source : Field, optional
        Of the file; None where the file has nothing to read.
    origin : Origin
    casts : tuple of pyarrow.DataType
        Types that the file's value becomes one after the other, the query's last; empty where it is that already.
    on_cast_failure : tuple of str
        For each cast what becomes of a value that its type cannot hold: ``error`` or ``null``.
    constant : pyarrow.Scalar, optional
        Where there is no source: the value of all rows; None is NULL.
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
        """Each cast with the type before it, the type after it, and what becomes of a value that does not fit."""
        if self.source is not None:
            yield from zip([self.source.leaf, *self.casts], self.casts, self.on_cast_failure, strict=False)

    @property
    def untouched(self) -> bool:
        """Whether the file's value is the query's as it is, names and NOT NULL below included."""
        source = self.source
        if source is None or self.casts or len(source.children) != len(self.children):
            return False
        if source.nullable and not self.field.nullable:
            return False
        return all(
            child.untouched and child.source is below and child.field.name == below.name
            for child, below in zip(self.children, source.children, strict=True)
        )


@dataclass(frozen=True)
class ReadPlan:
    """How rows of one file become rows of the query; made by :func:`plan_read`.

    Attributes
    ----------
    file, query : Schema
    fields : tuple of ReadField
        One for each field of the query, in its order.
    """

    file: Schema
    query: Schema
    fields: tuple[ReadField, ...]

    @property
    def file_columns(self) -> list[str]:
        """Names of the file's top-level columns that must be read."""
        return [read.source.name for read in self.fields if read.source is not None]

    def project(self, table: pa.Table) -> pa.Table:
        """Rows of the file, as a PyArrow table, as rows of the query.

        Parameters
        ----------
        table : pyarrow.Table
            With at least :attr:`file_columns`.

        Raises
        ------
        CastError
            A value has no counterpart in a type on its way, and ``on_cast_failure`` of that cast is ``error``.
        NullabilityError
            A NOT NULL field would hold NULL.
        """
        from twophase.schema.plan_arrow import project

        return project(self, table)

    def spark_expressions(self) -> list[str]:
        """The projection for ``DataFrame.selectExpr``, over the file read with its own schema."""
        from twophase.schema.plan_spark import expressions

        return expressions(self)

    def path_of(self, read: ReadField) -> str:
        """The query's path of a field of the plan, as text.

        Parameters
        ----------
        read : ReadField
            A field of this plan, at any level.
        """
        return self.query.name_of(read.field.id)

    def find(self, field_id: int) -> ReadField | None:
        """How the field of an id is read; None where the query has none of that id.

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


def plan_read(
    file: Schema,
    query: Schema,
    *,
    through: Sequence[Schema] = (),
    constants: Mapping[int, Any] | None = None,
    on_cast_failure: str | Sequence[str] = "error",
) -> ReadPlan:
    """Plan how a file is read under a later (or any other) version of its table's schema.

    Parameters
    ----------
    file : Schema
        What the file holds, with the ids of the version that it was written with.
    query : Schema
        What the reader wants.
    through : sequence of Schema
        Versions between the two, oldest first: their types are passed on the way. Without them the cast is direct.
    constants : mapping of int to object, optional
        Values of fields that are not in the file but known for it, by id (partition values in the directory's name).
    on_cast_failure : str or sequence of str
        ``error`` or ``null``, for all casts; or one for those into each version of ``through``, and one for those into
        the query. :meth:`SchemaHistory.read_plan` knows them.

    Raises
    ------
    SchemaError
        ``on_cast_failure`` is something else.
    TypeChangeError
        There is no cast from a field's type in the file to that in the query.
    FieldIdError
        One id is a struct here and a leaf there: the schemas are of different tables.
    """
    planner = _Planner(file, query, through, constants or {}, _modes(on_cast_failure, len(through) + 1))
    return ReadPlan(file, query, planner.siblings(query.fields, file.fields))


def _modes(on_cast_failure: str | Sequence[str], steps: int) -> list[str]:
    modes = [on_cast_failure] * steps if isinstance(on_cast_failure, str) else list(on_cast_failure)
    if len(modes) != steps or not set(modes) <= set(CAST_FAILURES):
        raise SchemaError(
            f"on_cast_failure cannot be {on_cast_failure!r} for {steps} steps.",
            allowed=(*CAST_FAILURES, f"a list of {steps} of them"),
        )
    return modes


class _Planner:
    def __init__(
        self, file: Schema, query: Schema, through: Sequence[Schema], constants: Mapping[int, Any], modes: Sequence[str]
    ) -> None:
        self.file = file
        self.query = query
        self.through = through
        self.constants = constants
        self.modes = modes

    def siblings(self, wanted: Sequence[Field], present: Sequence[Field]) -> tuple[ReadField, ...]:
        names = {fold(node.name) for node in present}
        return tuple(self.one(node, names) for node in wanted)

    def one(self, node: Field, names: set[str]) -> ReadField:
        if node.id in self.constants:
            return ReadField(node, None, Origin.CONSTANT, constant=self._constant(node))
        source = self.file.get(node.id)
        if source is None:
            origin = Origin.READDED if fold(node.name) in names else Origin.ADDED
            return ReadField(node, None, origin, constant=node.initial_default)
        origin = Origin.SAME if source.name == node.name else Origin.RENAMED
        if source.kind is not node.kind:
            raise self._kinds_differ(source, node)
        if node.leaf is not None:
            return ReadField(node, source, origin, *self._casts(source, node))
        return ReadField(node, source, origin, children=self.siblings(node.children, source.children))

    def _constant(self, node: Field) -> pa.Scalar | None:
        """A value that was written as the file's version has its type, as the query's."""
        written = self.file.get(node.id) or node
        path = self.query.name_of(node.id)
        value = as_default(self.constants[node.id], written.data_type, path)
        for new, mode in zip(*self._casts(written, node), strict=True):
            value = cast_scalar(value, new, mode, path)
        return value

    def _kinds_differ(self, source: Field, node: Field) -> FieldIdError:
        path = self.query.name_of(node.id)
        return FieldIdError(
            f"The id {node.id} is {path} ({node.type_name}) in the query and {self.file.name_of(source.id)} "
            f"({source.type_name}) in the file: they are not versions of one table.",
            field_path=path,
            old_type=source.type_name,
            new_type=node.type_name,
            allowed=("the version of this table that the file was written with",),
        )

    def _casts(self, source: Field, node: Field) -> tuple[tuple[pa.DataType, ...], tuple[str, ...]]:
        """The types on the way to the query's, and what becomes of a value that does not fit each."""
        if source.leaf == node.leaf and not self.through:
            return (), ()
        versions = [*(version.get(node.id) for version in self.through), node]
        chain = _chain(
            source.leaf,
            [(step.leaf, mode) for step, mode in zip(versions, self.modes, strict=True) if step is not None],
        )
        old = source.leaf
        for new, _ in chain:
            if classify(old, new) is Loss.IMPOSSIBLE:
                raise self._no_cast(node, old, new)
            old = new
        return tuple(new for new, _ in chain), tuple(mode for _, mode in chain)

    def _no_cast(self, node: Field, old: pa.DataType, new: pa.DataType) -> TypeChangeError:
        path = self.query.name_of(node.id)
        return TypeChangeError(
            f"The file holds {path} as {type_name(old)}, which cannot be read as {type_name(new)}.",
            field_path=path,
            old_type=type_name(old),
            new_type=type_name(new),
            allowed=("reading through the versions between (through=...)", "rewriting the file"),
        )


def _chain(first: pa.DataType, steps: Sequence[tuple[pa.DataType, str]]) -> list[tuple[pa.DataType, str]]:
    """The casts that lead along some types, steps that lose nothing taken together."""
    stops = [(first, "error")]
    for new, mode in steps:
        if new == stops[-1][0]:
            continue
        if len(stops) > 1 and _lossless(stops[-2][0], stops[-1][0], new):
            stops[-1] = (new, mode)
        else:
            stops.append((new, mode))
    return stops[1:]


def _lossless(*types: pa.DataType) -> bool:
    first, middle, final = types
    return max(classify(first, middle), classify(middle, final), classify(first, final)) <= Loss.WIDE


def merge_schemas(file: Schema, query: Schema, *, type_from_file: bool = True, name_from_file: bool = True) -> Schema:
    """The schema to open a file with, so that a reader that goes by names reads the right fields.

    It has the query's fields, order and ids (Hudi's InternalSchemaMerger, both of its flags).

    Parameters
    ----------
    file, query : Schema
    type_from_file : bool
        Whether fields have the file's types (to be cast afterwards) or the query's.
    name_from_file : bool
        Whether renamed fields have the file's names or the query's.

    Notes
    -----
    A field that was dropped and added again gets a name that neither the file nor the query has, so that nothing is
    read. Hudi appends a fixed suffix there, which a real column may have.

    Raises
    ------
    TypeChangeError, FieldIdError
        As :func:`plan_read`.
    """
    merger = _Merger(type_from_file, name_from_file)
    fields = merger.siblings(plan_read(file, query).fields, file.fields)
    return Schema(fields, query.schema_id, query.highest_field_id)


@dataclass(frozen=True)
class _Merger:
    type_from_file: bool
    name_from_file: bool

    def siblings(self, reads: Sequence[ReadField], present: Sequence[Field]) -> tuple[Field, ...]:
        taken = {fold(node.name) for node in present} | {fold(read.field.name) for read in reads}
        return tuple(self.one(read, taken) for read in reads)

    def one(self, read: ReadField, taken: set[str]) -> Field:
        node, source = read.field, read.source
        name, leaf, children = node.name, node.leaf, node.children
        if read.origin is Origin.READDED:
            name = _unreadable(node, taken)
        if source is not None:
            name = source.name if self.name_from_file else name
            leaf = source.leaf if self.type_from_file else leaf
            children = self.siblings(read.children, source.children)
        # A default belongs to the query's type; what the file lacks is filled after reading.
        return Field(node.id, name, node.kind, leaf, node.nullable, node.comment, children=children)


def _unreadable(node: Field, taken: set[str]) -> str:
    name = f"{node.name}__{node.id}"
    while fold(name) in taken:
        name += "_"
    taken.add(fold(name))
    return name


def describe(plan: ReadPlan) -> str:
    """A plan as text, one line a field: what a reader of a log wants to see.

    Parameters
    ----------
    plan : ReadPlan
        Of one file, from :func:`plan_read`.
    """
    lines: list[str] = []
    _describe(plan.fields, (), lines)
    return "\n".join(lines)


def _describe(reads: Iterable[ReadField], above: tuple[str, ...], lines: list[str]) -> None:
    for read in reads:
        path = (*above, read.field.name)
        lines.append(f"{format_path(path)} <- {_source_text(read)}")
        if read.source is not None and read.field.kind is not Kind.LEAF:
            _describe(read.children, path, lines)


def _source_text(read: ReadField) -> str:
    if read.source is None:
        value = "NULL" if read.constant is None else repr(read.constant.as_py())
        return f"{value} ({read.origin.value})"
    casts = "".join(f" -> {type_name(new)}" for new in read.casts)
    return f"{read.source.name} {read.source.type_name}{casts} ({read.origin.value})"

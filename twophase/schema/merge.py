"""Making read plans for files with an older schema: the source in the file for each field of the query.

The rules are those of Hudi's InternalSchemaMerger. The plan also contains the casts to the query's type: a single one,
or the chain of casts of the table's history, so that a file reads as if every change of type had rewritten it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from twophase.schema.cast_arrow import cast_scalar
from twophase.schema.convert_arrow import arrow_type
from twophase.schema.defaults import as_default
from twophase.schema.errors import FieldIdError, SchemaError, TypeChangeError
from twophase.schema.leaf import type_name
from twophase.schema.names import fold, format_path
from twophase.schema.promotion import CAST_FAILURES, Loss, classify
from twophase.schema.read_field import Origin, ReadField
from twophase.schema.read_plan import ReadPlan
from twophase.schema.schema import Field, Kind, Schema


def plan_read(
    file: Schema,
    query: Schema,
    *,
    through: Sequence[Schema] = (),
    constants: Mapping[int, Any] | None = None,
    on_cast_failure: str | Sequence[str] = "error",
) -> ReadPlan:
    """Plan how to read a file with a later (or any other) version of its table's schema.

    Parameters
    ----------
    file : Schema
        The file's schema, with the ids of the version with which it was written.
    query : Schema
        The schema to read.
    through : sequence of Schema
        Versions between the two, oldest first; values are cast through their types. Without them the cast is direct.
    constants : mapping of int to object, optional
        Values by id of fields that are not in the file but known for it (partition values in the directory's name).
    on_cast_failure : str or sequence of str
        ``error`` or ``null``, for all casts; or one per version of ``through`` for the casts to it, and one for the
        casts to the query. :meth:`SchemaHistory.read_plan` provides them.

    Raises
    ------
    SchemaError
        ``on_cast_failure`` has another value.
    TypeChangeError
        There is no cast from a field's type in the file to that in the query.
    FieldIdError
        An id is a struct in one schema and a leaf in the other: they belong to different tables.
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
        """Convert a constant from its type in the file's version to the query's type."""
        written = self.file.get(node.id) or node
        path = self.query.name_of(node.id)
        value = as_default(self.constants[node.id], arrow_type(written), path)
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
        """The successive types up to the query's, and for each the handling of a value that does not fit."""
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
    """The casts through a list of types; consecutive lossless ones are combined."""
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
    """The schema with which a reader that matches by name reads the right fields of a file.

    It has the query's fields, order and ids (Hudi's InternalSchemaMerger, with both of its flags).

    Parameters
    ----------
    file, query : Schema
    type_from_file : bool
        Whether to use the file's types (to be cast afterwards) or the query's.
    name_from_file : bool
        Whether to use the file's names of renamed fields or the query's.

    Notes
    -----
    A field that was dropped and added again gets a name that is in neither the file nor the query, so that nothing is
    read. Hudi appends a fixed suffix instead, which a real column may have.

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
        # Without defaults: they have the query's type, and missing fields are filled after reading.
        return Field(node.id, name, node.kind, leaf, node.nullable, node.comment, children=children)


def _unreadable(node: Field, taken: set[str]) -> str:
    name = f"{node.name}__{node.id}"
    while fold(name) in taken:
        name += "_"
    taken.add(fold(name))
    return name


def describe(plan: ReadPlan) -> str:
    """Describe a plan as text for logs, with one line per field.

    Parameters
    ----------
    plan : ReadPlan
        The plan of one file, from :func:`plan_read`.
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

"""Conflict resolution for concurrent schema changes of one table (Hudi RFC-82).

A strategy gets the table's schema at the start of the writer's transaction, the one at validation (under the commit
lock), and the writer's. It returns the schema to commit, or raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from twophase.schema.apply import Application
from twophase.schema.changes import AddField, Change, ChangeNullability, DropField, DropPartitionKey, MoveField
from twophase.schema.compare import canonical, change_key, equivalent, facts, keys_of
from twophase.schema.diff import diff, touched
from twophase.schema.errors import SchemaConflictError, SchemaError
from twophase.schema.names import fold
from twophase.schema.resolve import by_ids
from twophase.schema.schema import Field, Schema


@dataclass(frozen=True)
class Resolution:
    """The decision of a strategy.

    Attributes
    ----------
    schema : Schema
        The schema to commit; the table's or the writer's own object if one of them is used unchanged.
    writer_ids : mapping of int to int
        The writer's id of a new field -> the table's, if they differ. Files with the writer's ids must be read with
        :meth:`renumbered`, never by their own ids.
    recheck : tuple of str
        Fields that one writer made NOT NULL after checking rows, before others were committed: check again.
    """

    schema: Schema
    writer_ids: Mapping[int, int] = field(default_factory=dict)
    recheck: tuple[str, ...] = ()

    def renumbered(self, writer: Schema) -> Schema:
        """The writer's schema with the table's ids, for reading the writer's files.

        Parameters
        ----------
        writer : Schema
            The schema that the writer used.
        """
        if not self.writer_ids:
            return writer
        return _renumber(writer, self.writer_ids, max(writer.highest_field_id, self.schema.highest_field_id))


def _renumber(schema: Schema, ids: Mapping[int, int], highest_field_id: int) -> Schema:
    keys = [tuple(ids.get(key, key) for key in of_kind) for of_kind in keys_of(schema)]
    return Schema(_renumbered(schema.fields, ids), schema.schema_id, highest_field_id, *keys)


def _renumbered(fields: Sequence[Field], ids: Mapping[int, int]) -> tuple[Field, ...]:
    return tuple(
        replace(node, id=ids.get(node.id, node.id), children=_renumbered(node.children, ids)) for node in fields
    )


class SchemaConflictResolutionStrategy(ABC):
    """A strategy to choose the committed schema if the table's has changed during a write (Hudi RFC-82)."""

    @abstractmethod
    def resolve(
        self,
        at_start: Schema | None,
        at_validation: Schema | None,
        writer: Schema,
        *,
        table: str | None = None,
        table_changes: Sequence[Change] | None = None,
        writer_changes: Sequence[Change] | None = None,
    ) -> Resolution:
        """Decide on the schema to commit.

        Parameters
        ----------
        at_start : Schema or None
            The table's schema at the start of the transaction; None: the table did not exist.
        at_validation : Schema or None
            The current schema of the table; None: the table does not exist.
        writer : Schema
            The schema with which the writer wrote.
        table : str, optional
            Name of the table, for the error.
        table_changes, writer_changes : sequence of Change, optional
            The lists that led from ``at_start`` to the two others, if known.

        Raises
        ------
        SchemaConflictError
            The changes conflict; a :class:`twophase.errors.ConcurrentSchemaEvolutionError`.
        """


class SimpleSchemaConflictResolutionStrategy(SchemaConflictResolutionStrategy):
    """The eight cases in RFC-82's table.

    A change on one side wins, the same change on both sides counts once, and all others conflict.
    """

    def resolve(
        self,
        at_start: Schema | None,
        at_validation: Schema | None,
        writer: Schema,
        *,
        table: str | None = None,
        table_changes: Sequence[Change] | None = None,
        writer_changes: Sequence[Change] | None = None,
    ) -> Resolution:
        decided = _decide(at_start, at_validation, writer)
        if decided is not None:
            return decided
        raise _conflict(at_start, at_validation, writer, table, None)


def _decide(at_start: Schema | None, at_validation: Schema | None, writer: Schema) -> Resolution | None:
    """The resolution for the cases without a conflict; None for a conflict."""
    if at_validation is None:
        # Case 1; a table that was dropped meanwhile is not in RFC-82's table, and certainly a conflict.
        return Resolution(writer) if at_start is None else None
    known = frozenset() if at_start is None else at_start.field_ids
    if equivalent(at_validation, writer, known):
        # Cases 2, 4 and 7. The table's ids are used, as its files have them.
        return Resolution(at_validation, _writer_ids(at_start, at_validation, writer))
    if at_start is None:
        return None
    if equivalent(at_start, at_validation, known):
        return _above(at_validation, writer, known)
    if equivalent(at_start, writer, known):
        return Resolution(at_validation)
    return None


def _above(at_validation: Schema, writer: Schema, known: frozenset[int]) -> Resolution:
    """The writer's schema on a table whose schema is unchanged, or has been changed back (case 5).

    In between the table may have had fields with data in its files, so their ids must not be reused.
    """
    highest = max(at_validation.highest_field_id, writer.highest_field_id)
    taken = [node.id for node in writer.walk() if node.id not in known and node.id <= at_validation.highest_field_id]
    if not taken:
        same = highest == writer.highest_field_id
        return Resolution(writer if same else replace(writer, highest_field_id=highest))
    ids = dict(zip(taken, count(highest + 1), strict=False))
    return Resolution(_renumber(writer, ids, highest + len(ids)), ids)


def _writer_ids(base: Schema | None, merged: Schema, writer: Schema) -> dict[int, int]:
    """The writer's ids of its new fields -> those of the merged schema, if they differ."""
    known = frozenset() if base is None else base.field_ids
    return {own.id: final.id for own, final in _new_in_both(writer, merged, known) if own.id != final.id}


def _new_in_both(writer: Schema, other: Schema, known: frozenset[int]) -> Iterator[tuple[Field, Field]]:
    """Pairs of new fields with the same name in both schemas."""
    if any(node.id not in known for node in writer.walk()):
        yield from _paired(writer.fields, other, other.fields, known)


def _paired(
    siblings: Sequence[Field], other: Schema, present: Sequence[Field], known: frozenset[int]
) -> Iterator[tuple[Field, Field]]:
    named = {fold(node.name): node for node in present if node.id not in known}
    for node in siblings:
        match = other.get(node.id) if node.id in known else named.get(fold(node.name))
        if match is None:
            continue
        if node.id not in known:
            yield node, match
        yield from _paired(node.children, other, match.children, known)


class RebaseSchemaConflictResolutionStrategy(SchemaConflictResolutionStrategy):
    """An extension of RFC-82: independent change lists are combined.

    The writer's changes are replayed on the table's schema, with fields referenced by id. They are combined if both
    orders of the two transactions lead to the same schema (except for the order of new columns: the table's come
    first), so the result is that of the table's transaction followed by the writer's. The same change on both sides
    counts once, with the id of the first writer; changes to a column that the same list adds are part of that addition.
    Everything else is a conflict.

    Notes
    -----
    If the change lists are not given, they are derived from the schemas; then reorders by both writers may conflict
    although the actual lists would not.
    """

    def resolve(
        self,
        at_start: Schema | None,
        at_validation: Schema | None,
        writer: Schema,
        *,
        table: str | None = None,
        table_changes: Sequence[Change] | None = None,
        writer_changes: Sequence[Change] | None = None,
    ) -> Resolution:
        decided = _decide(at_start, at_validation, writer)
        if decided is not None:
            return decided
        if at_validation is None:
            raise _conflict(at_start, at_validation, writer, table, None)
        base = at_start if at_start is not None else Schema(())
        try:
            theirs = diff(base, at_validation) if table_changes is None else by_ids(base, table_changes)
            ours = diff(base, writer) if writer_changes is None else by_ids(base, writer_changes)
            merged = _combine(base, at_validation, writer, theirs, ours)
        except SchemaError as error:
            raise _conflict(at_start, at_validation, writer, table, error) from error
        if merged is None:
            raise _conflict(at_start, at_validation, writer, table, None)
        ids = _writer_ids(base, merged, writer)
        return Resolution(merged, ids, tuple(_recheck(merged, [*theirs, *ours])))


def _combine(
    base: Schema, table: Schema, writer: Schema, theirs: Sequence[Change], ours: Sequence[Change]
) -> Schema | None:
    """The schema after both lists, the table's first; None if the other order has another result."""
    # A new column that is NOT NULL on one side only is not the same addition: the other's rows may have NULL there.
    if any(facts(own) != facts(other) for own, other in _new_in_both(writer, table, base.field_ids)):
        return None
    # Ids in the writer's files must not be assigned to other fields.
    floor = max(table.highest_field_id, writer.highest_field_id)
    merged = _replay(table, ours, theirs, floor)
    other = _replay(writer, theirs, ours, floor)
    return merged if canonical(merged, base.field_ids) == canonical(other, base.field_ids) else None


def _replay(schema: Schema, changes: Sequence[Change], others: Sequence[Change], floor: int) -> Schema:
    """Apply a list to a schema that others have changed, without repeating changes that they have already made."""
    made = {change_key(change) for change in others}
    if all(change_key(change) in made for change in changes):
        return schema
    application = Application(schema, floor=floor, trusted=True)
    for change in changes:
        if change_key(change) not in made or not _is_done(application, change):
            application.apply(change)
    return application.result(schema.schema_id + 1)


def _is_done(application: Application, change: Change) -> bool:
    """Return True if a change by both sides would be refused when repeated; other changes can be repeated."""
    if isinstance(change, DropField) and isinstance(change.path, int):
        return application.tree.get(change.path) is None
    if isinstance(change, DropPartitionKey):
        return application.find(change.path).id not in application.partition
    return isinstance(change, AddField)


def _recheck(merged: Schema, changes: Iterable[Change]) -> Iterable[str]:
    for change in changes:
        if isinstance(change, ChangeNullability) and not change.nullable:
            yield merged.name_of(merged.find(change.path).id)


def _conflict(
    at_start: Schema | None, at_validation: Schema | None, writer: Schema, table: str | None, cause: SchemaError | None
) -> SchemaConflictError:
    path, theirs_too = _clash(at_start, at_validation, writer)
    if path is None and cause is not None:
        path, theirs_too = cause.field_path, cause.field_path is not None
    now = None if at_validation is None else at_validation.schema_id
    then = "none" if at_start is None else str(at_start.schema_id)
    where = f"the field {path}" if theirs_too else f"the schema (this one the field {path})" if path else "the schema"
    reason = f" {cause.message}" if cause is not None else ""
    return SchemaConflictError(
        f"Two writers changed {where} concurrently: the table went from version {then} to "
        f"{'none' if now is None else now}, the writer wants version {writer.schema_id}.{reason}",
        field_path=path,
        table_version=now,
        writer_version=writer.schema_id,
        path=table,
        hint="Run the transaction again: it will start from the table's new schema.",
    )


def _clash(at_start: Schema | None, at_validation: Schema | None, writer: Schema) -> tuple[str | None, bool]:
    """The first field that both sides changed, or else the first that the writer changed; and whether both did."""
    base = at_start if at_start is not None else Schema(())
    if at_validation is None:
        return None, False
    theirs = {_place(base, at_validation, i) for i in touched(base, at_validation)}
    ours = [(_place(base, writer, i), i) for i in touched(base, writer)]
    both = [i for place, i in ours if place in theirs]
    named = (writer.name_of(i) if i in writer else base.name_of(i) for i in both or [i for _, i in ours])
    return next(named, None) or next(_moved(base, writer), None), bool(both)


def _moved(base: Schema, writer: Schema) -> Iterator[str]:
    for change in diff(base, writer):
        if isinstance(change, MoveField) and isinstance(change.path, int):
            yield base.name_of(change.path)


def _place(base: Schema, schema: Schema, field_id: int) -> Any:
    if field_id in base or field_id not in schema:
        return field_id
    return tuple(fold(name) for name in schema.path_of(field_id))


#: The default strategy: exactly RFC-82.
DEFAULT_STRATEGY = SimpleSchemaConflictResolutionStrategy()

"""Two writers who change one table's schema at once (Hudi RFC-82).

A strategy gets the table's schema when the writer's transaction started, the one at validation (under the lock of the
commit), and the
writer's. It answers with the schema to commit, or raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from twophase.schema.apply import apply_changes
from twophase.schema.changes import AddField, Change, ChangeNullability, MoveField
from twophase.schema.diff import diff, touched
from twophase.schema.errors import SchemaConflictError, SchemaError
from twophase.schema.names import fold
from twophase.schema.promotion import promotion_policy
from twophase.schema.resolve import by_ids
from twophase.schema.schema import Field, Schema


@dataclass(frozen=True)
class Resolution:
    """What a strategy decided.

    Attributes
    ----------
    schema : Schema
        To be committed; the very object of the table or the writer where one of them won as it is.
    writer_ids : mapping of int to int
        The writer's id of a new field -> the table's, where they differ. Files that carry the writer's ids must be read
        through :meth:`renumbered`, never by their own ids.
    recheck : tuple of str
        Fields that one writer made NOT NULL after looking at rows that were not all there yet: look again.
    """

    schema: Schema
    writer_ids: Mapping[int, int] = field(default_factory=dict)
    recheck: tuple[str, ...] = ()

    def renumbered(self, writer: Schema) -> Schema:
        """The writer's schema under the table's ids: what the writer's files are to be read with."""
        if not self.writer_ids:
            return writer
        highest = max(writer.highest_field_id, self.schema.highest_field_id)
        keys = [tuple(self.writer_ids.get(key, key) for key in ids) for ids in _keys(writer)]
        return Schema(_renumbered(writer.fields, self.writer_ids), writer.schema_id, highest, *keys)


def _keys(schema: Schema) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return schema.primary_keys, schema.partition_keys


def _renumbered(fields: Sequence[Field], ids: Mapping[int, int]) -> tuple[Field, ...]:
    return tuple(
        replace(node, id=ids.get(node.id, node.id), children=_renumbered(node.children, ids)) for node in fields
    )


class SchemaConflictResolutionStrategy(ABC):
    """Decides which schema is committed when the table's changed under a writer (Hudi RFC-82)."""

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
        """The schema to commit.

        Parameters
        ----------
        at_start : Schema or None
            The table's schema when the transaction started; None: there was no table.
        at_validation : Schema or None
            The table's schema now; None: there is no table.
        writer : Schema
            What the writer wrote with.
        table : str, optional
            Its name, for the error.
        table_changes, writer_changes : sequence of Change, optional
            The lists that led from ``at_start`` to the two others, where they are known.

        Raises
        ------
        SchemaConflictError
            The two do not combine; a :class:`twophase.errors.ConcurrentSchemaEvolutionError`.
        """


class SimpleSchemaConflictResolutionStrategy(SchemaConflictResolutionStrategy):
    """The eight rows of RFC-82's table.

    A change on one side wins, the same change on both sides is one, and others are a conflict.
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
    """The rows of the table that are no conflict."""
    if at_validation is None:
        # Rows 1; a table that is gone meanwhile is none of RFC-82's rows, and surely a conflict.
        return Resolution(writer) if at_start is None else None
    known = frozenset() if at_start is None else at_start.field_ids
    if equivalent(at_validation, writer, known):
        # Rows 2, 4 and 7. The table's ids hold, because its files carry them.
        return Resolution(at_validation, _writer_ids(at_start, at_validation, writer))
    if at_start is None:
        return None
    if equivalent(at_start, at_validation, known):
        return Resolution(writer)
    if equivalent(at_start, writer, known):
        return Resolution(at_validation)
    return None


def equivalent(left: Schema, right: Schema, known: frozenset[int]) -> bool:
    """Whether two schemas describe the same table; ids count only for fields that both writers had before them."""
    if left is right or left.same_as(right):
        return True
    if len(left) != len(right) or len(left.field_ids) != len(right.field_ids):
        return False
    return _shape(left, known) == _shape(right, known)


def _shape(schema: Schema, known: frozenset[int]) -> tuple[Any, ...]:
    keys = [[schema.path_of(key) for key in ids] for ids in _keys(schema)]
    return tuple(_field_shape(node, known) for node in schema), keys


def _field_shape(node: Field, known: frozenset[int]) -> tuple[Any, ...]:
    children = tuple(_field_shape(child, known) for child in node.children)
    return (node.id if node.id in known else None, *_facts(node), children)


def _facts(node: Field) -> tuple[Any, ...]:
    defaults = (node.initial_default, node.write_default)
    return (node.name, node.kind, node.leaf, node.nullable, node.comment, *defaults, node.metadata)


def _writer_ids(base: Schema | None, merged: Schema, writer: Schema) -> dict[int, int]:
    """The writer's ids of its new fields -> those of the merged schema, where they differ."""
    known = frozenset() if base is None else base.field_ids
    if all(node.id in known for node in writer.walk()):
        return {}
    ids: dict[int, int] = {}
    _pair(writer.fields, merged, merged.fields, known, ids)
    return {own: final for own, final in ids.items() if own != final}


def _pair(
    siblings: Sequence[Field],
    merged: Schema,
    present: Sequence[Field],
    known: frozenset[int],
    ids: dict[int, int],
) -> None:
    named = {fold(node.name): node for node in present if node.id not in known}
    for node in siblings:
        match = merged.get(node.id) if node.id in known else named.get(fold(node.name))
        if match is None:
            continue
        ids[node.id] = match.id
        _pair(node.children, merged, match.children, known, ids)


class RebaseSchemaConflictResolutionStrategy(SchemaConflictResolutionStrategy):
    """Beyond RFC-82: change lists that do not touch each other are combined.

    The writer's changes are replayed on the table's schema, fields named by ids. They are combined where both orders
    of the two
    transactions lead to the same schema (new columns aside: the table's come first); so the result is what the table's
    transaction
    followed by the writer's gives. The same change twice is one, with the first writer's id. All else is a conflict.

    Notes
    -----
    Without the change lists they are derived from the schemas; a reorder by both writers may then be a conflict where
    the lists
    would have shown that it is none.
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
    """The schema after both lists, table first; None where the other order gives something else."""
    # Ids that the writer's files carry must not come to name other fields.
    floor = max(table.highest_field_id, writer.highest_field_id)
    merged = _replay(table, _without(ours, theirs), floor)
    other = _replay(writer, _without(theirs, ours), floor)
    return merged if _canonical(merged, base.field_ids) == _canonical(other, base.field_ids) else None


def _replay(schema: Schema, changes: Iterable[Change], floor: int) -> Schema:
    return apply_changes(schema, changes, promotion=promotion_policy("explicit"), highest_field_id=floor)


def _without(changes: Sequence[Change], others: Sequence[Change]) -> list[Change]:
    """The changes that the others did not make already; where a new column stands is no part of it."""
    made = {_placeless(change) for change in others}
    return [change for change in changes if _placeless(change) not in made]


def _placeless(change: Change) -> Change:
    return replace(change, position=None) if isinstance(change, AddField) else change


def _canonical(schema: Schema, known: frozenset[int]) -> Any:
    """A schema without the ids of new fields and without their order among themselves."""
    keys = [[_key_name(schema, key, known) for key in ids] for ids in _keys(schema)]
    return _canonical_fields(schema.fields, known), keys


def _key_name(schema: Schema, key: int, known: frozenset[int]) -> Any:
    return key if key in known else schema.path_of(key)


def _canonical_fields(fields: Sequence[Field], known: frozenset[int]) -> Any:
    old = [(node.id, _facts(node), _canonical_fields(node.children, known)) for node in fields if node.id in known]
    new = {
        node.name: (_facts(node), _canonical_fields(node.children, known)) for node in fields if node.id not in known
    }
    return old, new


def _recheck(merged: Schema, changes: Iterable[Change]) -> Iterable[str]:
    for change in changes:
        if isinstance(change, ChangeNullability) and not change.nullable:
            yield merged.name_of(merged.find(change.path).id)


def _conflict(
    at_start: Schema | None, at_validation: Schema | None, writer: Schema, table: str | None, cause: SchemaError | None
) -> SchemaConflictError:
    path = _clash(at_start, at_validation, writer) or (None if cause is None else cause.field_path)
    now = None if at_validation is None else at_validation.schema_id
    then = "none" if at_start is None else str(at_start.schema_id)
    where = f"the field {path}" if path else "the schema"
    reason = f" {cause.message}" if cause is not None else ""
    return SchemaConflictError(
        f"Two writers changed {where} at once: the table went from version {then} to "
        f"{'none' if now is None else now}, the writer wants version {writer.schema_id}.{reason}",
        field_path=path,
        table_version=now,
        writer_version=writer.schema_id,
        path=table,
        hint="Run the transaction again: it will start from the table's new schema.",
    )


def _clash(at_start: Schema | None, at_validation: Schema | None, writer: Schema) -> str | None:
    """The first field that both sides touched; else the first that the writer touched."""
    base = at_start if at_start is not None else Schema(())
    if at_validation is None:
        return None
    theirs = {_place(base, at_validation, i) for i in touched(base, at_validation)}
    ours = [(_place(base, writer, i), i) for i in touched(base, writer)]
    both = [i for place, i in ours if place in theirs] or [i for _, i in ours]
    named = (writer.name_of(i) if i in writer else base.name_of(i) for i in both)
    return next(named, None) or next(_moved(base, writer), None)


def _moved(base: Schema, writer: Schema) -> Iterator[str]:
    for change in diff(base, writer):
        if isinstance(change, MoveField) and isinstance(change.path, int):
            yield base.name_of(change.path)


def _place(base: Schema, schema: Schema, field_id: int) -> Any:
    if field_id in base or field_id not in schema:
        return field_id
    return tuple(fold(name) for name in schema.path_of(field_id))


#: The default: exactly RFC-82.
DEFAULT_STRATEGY = SimpleSchemaConflictResolutionStrategy()

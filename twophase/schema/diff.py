"""The changes between two versions of a schema, determined by field ids."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from twophase.schema.changes import (
    AddField,
    AddPartitionKey,
    Change,
    ChangeComment,
    ChangeDefault,
    ChangeNullability,
    ChangeType,
    DropField,
    DropPartitionKey,
    MoveField,
    Position,
    RenameField,
    SetPrimaryKey,
    after,
    first,
)
from twophase.schema.compare import facts, keys_of
from twophase.schema.convert_arrow import arrow_type
from twophase.schema.defaults import default_key
from twophase.schema.errors import SchemaError
from twophase.schema.schema import Field, Kind, Schema


def diff(base: Schema, target: Schema) -> list[Change]:
    """A list of changes that turns the base into the target, except for the ids of new fields.

    Fields are referenced by id, so that the list remains valid on a schema in which others have renamed them.

    Parameters
    ----------
    base, target : Schema
        Versions of one table's schema, ``target`` the later one.

    Raises
    ------
    SchemaError
        An id has another kind, or another parent struct: the schemas are not versions of one table.
    """
    if base.fields is target.fields and keys_of(base) == keys_of(target):
        return []
    changes: list[Change] = []
    late: list[Change] = []
    changes.extend(_keys_before(base, target))
    _siblings(base, target, base.fields, target.fields, None, changes, late)
    return [*changes, *late, *_keys_after(base, target)]


def _keys_before(base: Schema, target: Schema) -> Iterator[Change]:
    if base.primary_keys != target.primary_keys and base.primary_keys:
        yield SetPrimaryKey(())
    kept = _common_prefix(base.partition_keys, target.partition_keys)
    for key in base.partition_keys[kept:]:
        yield DropPartitionKey(key)


def _keys_after(base: Schema, target: Schema) -> Iterator[Change]:
    for key in target.partition_keys[_common_prefix(base.partition_keys, target.partition_keys) :]:
        yield AddPartitionKey(_reference(base, target, key))
    if base.primary_keys != target.primary_keys and target.primary_keys:
        yield SetPrimaryKey(tuple(_reference(base, target, key) for key in target.primary_keys))


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length


def _reference(base: Schema, target: Schema, field_id: int) -> int | tuple[str | int, ...]:
    """A reference to a field of the target: its id, or for a new one its nearest existing ancestor's id and names."""
    names: list[str | int] = []
    for node in (target.by_id(field_id), *target.ancestors(field_id)):
        if node.id in base:
            return (node.id, *reversed(names)) if names else node.id
        names.append(node.name)
    return tuple(reversed(names))


def _siblings(
    base: Schema,
    target: Schema,
    old: Sequence[Field],
    new: Sequence[Field],
    parent: int | None,
    changes: list[Change],
    late: list[Change],
) -> None:
    if old is new:
        return
    kept = {node.id for node in new}
    changes.extend(DropField(node.id) for node in old if node.id not in kept)
    before = {node.id: node for node in old}
    for node in new:
        if node.id in before:
            _field(base, target, before[node.id], node, changes, late)
        elif (moved := next((below for below in node.walk() if below.id in base), None)) is not None:
            raise _elsewhere(base, target, moved)
    changes.extend(_order(old, new, parent))
    for node in new:
        if node.id not in before:
            late.extend(_defaults_of_new(base, target, node))


def _elsewhere(base: Schema, target: Schema, node: Field) -> SchemaError:
    path = target.name_of(node.id)
    return SchemaError(
        f"The field {path} was {base.name_of(node.id)} before: it is in another struct.",
        field_path=path,
        old_type=base.by_id(node.id).type_name,
        new_type=node.type_name,
        allowed=("MoveField within its struct", "DropField there and AddField here"),
    )


def _field(base: Schema, target: Schema, old: Field, new: Field, changes: list[Change], late: list[Change]) -> None:
    if old is new:
        return
    if old.kind is not new.kind:
        path = target.name_of(new.id)
        raise SchemaError(
            f"The field {path} was a {old.type_name} and is a {new.type_name}.",
            field_path=path,
            old_type=old.type_name,
            new_type=new.type_name,
            allowed=("versions of one table", "DropField and AddField, which gives another id"),
        )
    if old.name != new.name:
        changes.append(RenameField(new.id, new.name))
    if old.nullable != new.nullable:
        changes.append(ChangeNullability(new.id, new.nullable, checked=not new.nullable))
    if old.leaf != new.leaf and new.leaf is not None:
        changes.append(ChangeType(new.id, new.leaf))
    if old.comment != new.comment:
        changes.append(ChangeComment(new.id, new.comment))
    if default_key(old.write_default) != default_key(new.write_default) and not _follows_type(old, new):
        late.append(ChangeDefault(new.id, new.write_default))
    _siblings(base, target, old.children, new.children, new.id, changes, late)


def _follows_type(old: Field, new: Field) -> bool:
    """Return True if the default changed only because its type did."""
    if old.leaf == new.leaf or old.write_default is None or new.write_default is None:
        return False
    value = old.write_default.as_py()
    return bool(value == new.write_default.as_py() or value != value)


def _order(old: Sequence[Field], new: Sequence[Field], parent: int | None) -> Iterator[Change]:
    """Additions of new fields at their positions, and the fewest moves of the others."""
    rank = {node.id: i for i, node in enumerate(old)}
    settled = _longest_rising([node.id for node in new if node.id in rank], rank)
    trailing = _trailing(new, rank)
    previous: str | int | None = None
    for i, node in enumerate(new):
        place = first() if previous is None else after(previous)
        if node.id not in rank:
            yield _add(node, None if i >= trailing else place, parent)
        elif node.id not in settled:
            yield MoveField(node.id, place)
        previous = node.id if node.id in rank else node.name


def _trailing(new: Sequence[Field], rank: dict[int, int]) -> int:
    """The index from which on all fields are new."""
    end = len(new)
    while end and new[end - 1].id not in rank:
        end -= 1
    return end


def _longest_rising(ids: Sequence[int], rank: dict[int, int]) -> set[int]:
    """The largest set of ids that are still in their old order."""
    tails: list[int] = []
    holders: list[int] = []
    behind: dict[int, int | None] = {}
    for field_id in ids:
        at = bisect_left(tails, rank[field_id])
        behind[field_id] = holders[at - 1] if at else None
        tails[at : at + 1] = [rank[field_id]]
        holders[at : at + 1] = [field_id]
    settled: set[int] = set()
    current = holders[-1] if holders else None
    while current is not None:
        settled.add(current)
        current = behind[current]
    return settled


def added(base: Schema, target: Schema, node: Field, place: Position | None) -> Iterator[Change]:
    """The changes that add a new field to an existing struct."""
    yield _add(node, place, target.parent_of(node.id))
    yield from _defaults_of_new(base, target, node)


def _add(node: Field, place: Position | None, parent: int | None) -> AddField:
    # A NOT NULL field without a default for existing rows is added as nullable, and made NOT NULL later in the list.
    nullable = node.nullable or node.initial_default is None
    return AddField(
        (node.name,),
        arrow_type(node),
        nullable=nullable,
        comment=node.comment,
        default=node.initial_default,
        position=place,
        parent=parent,
        write_default=node.write_default,
        metadata=node.metadata,
    )


def _defaults_of_new(base: Schema, target: Schema, node: Field) -> Iterable[Change]:
    path = _reference(base, target, node.id)
    if node.initial_default is not None and node.write_default is None:
        yield ChangeDefault(path, None)
    if not node.nullable and node.initial_default is None:
        yield ChangeNullability(path, False, checked=True)


def touched(base: Schema, target: Schema) -> dict[int, Field]:
    """New or changed fields of the target, and dropped fields of the base, by id."""
    found = {node.id: node for node in target.walk() if not _same_here(base.get(node.id), node)}
    found.update((node.id, node) for node in base.walk() if node.id not in target)
    return found


def _same_here(old: Field | None, new: Field) -> bool:
    if old is new:
        return True
    if old is None:
        return False
    if new.kind is not Kind.LEAF:
        ids = ([child.id for child in old.children], [child.id for child in new.children])
        if ids[0] != ids[1]:
            return False
    return facts(old) == facts(new)

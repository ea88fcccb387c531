"""What holds for every schema and every list of changes. The model of a table is a dictionary of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.schema.schema_data import comparable, rows_table
from tests.schema.schema_strategies import change_lists, changes, rows_of, schemas
from twophase.schema import (
    AddField,
    Change,
    DropField,
    DropPartitionKey,
    Field,
    Kind,
    RebaseSchemaConflictResolutionStrategy,
    Schema,
    apply_changes,
    diff,
    from_arrow,
    from_iceberg_document,
    from_json,
    from_spark,
    plan_read,
    to_arrow,
    to_iceberg_document,
    to_iceberg_partition_spec,
    to_json,
    to_spark,
)
from twophase.schema.cast_arrow import cast_array
from twophase.schema.compare import canonical, change_key, equivalent, keys_of
from twophase.schema.defaults import default_key
from twophase.schema.errors import CastError, NullabilityError, SchemaConflictError, SchemaError, UnsupportedTypeError
from twophase.schema.resolve import by_ids

SETTINGS = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


MORE = settings(SETTINGS, max_examples=150)


def model(value: Any, node: Field) -> Any:
    """A value with ids for names: what was written, whatever it is called."""
    if value is None or node.kind is Kind.LEAF:
        return value
    if node.kind is Kind.STRUCT:
        return {child.id: model(value[child.name], child) for child in node.children}
    if node.kind is Kind.LIST:
        return [model(item, node.children[0]) for item in value]
    return [(key, model(item, node.children[1])) for key, item in value]


def expected(value: Any, node: Field, chains: dict[int, list[pa.DataType]]) -> Any:
    """What the model says that a field of the query reads, from what was written under ids."""
    if value is None or node.kind is Kind.LEAF:
        return None if value is None else through(value, chains[node.id])
    if node.kind is Kind.STRUCT:
        return {c.name: field_expected(value, c, chains) for c in node.children}
    if node.kind is Kind.LIST:
        return [expected(item, node.children[0], chains) for item in value]
    return [(key, expected(item, node.children[1], chains)) for key, item in value]


def field_expected(struct: dict[int, Any], node: Field, chains: dict[int, list[pa.DataType]]) -> Any:
    if node.id in struct:
        return expected(struct[node.id], node, chains)
    return None if node.initial_default is None else node.initial_default.as_py()


def through(value: Any, chain: list[pa.DataType]) -> Any:
    values = pa.array([value], chain[0])
    for step in chain[1:]:
        values = cast_array(values, step, "error", "model")
    return values[0].as_py()


def type_chains(versions: list[Schema]) -> dict[int, list[pa.DataType]]:
    chains: dict[int, list[pa.DataType]] = {}
    for version in versions:
        for node in version.walk():
            if node.leaf is not None and chains.setdefault(node.id, [node.leaf])[-1] != node.leaf:
                chains[node.id].append(node.leaf)
    return chains


@SETTINGS
@given(st.data())
def test_a_value_of_an_id_is_read_under_the_ids_name_or_the_id_was_dropped(data: st.DataObject) -> None:
    versions = [data.draw(schemas())]
    for _ in range(data.draw(st.integers(1, 3))):
        versions.append(apply_changes(versions[-1], data.draw(change_lists(versions[-1])), promotion="explicit"))
    file, query = versions[0], versions[-1]
    rows = rows_of(file)
    written = [{node.id: model(row[node.name], node) for node in file} for row in rows]
    plan = plan_read(file, query, through=versions[1:-1])
    try:
        read = plan.project(rows_table(file, rows)).to_pylist()
    except (CastError, NullabilityError):
        # A value that the new type cannot hold must be just as impossible for the model.
        assume(False)
    chains = type_chains(versions)
    wanted = [{node.name: field_expected(row, node, chains) for node in query} for row in written]
    assert comparable(read) == comparable(wanted)


@SETTINGS
@given(st.data())
def test_ids_are_never_used_twice(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    ever = dict.fromkeys(schema.field_ids)
    for _ in range(4):
        changed = apply_changes(schema, data.draw(change_lists(schema)), promotion="explicit")
        fresh = changed.field_ids - schema.field_ids
        assert fresh.isdisjoint(ever)
        assert all(number > schema.highest_field_id for number in fresh)
        ever.update(dict.fromkeys(changed.field_ids))
        schema = changed


@SETTINGS
@given(st.data())
def test_apply_is_all_or_nothing_and_equals_its_steps(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    before = to_json(schema)
    single = data.draw(st.lists(changes(schema), max_size=4))
    try:
        changed = apply_changes(schema, single, promotion="explicit")
    except SchemaError:
        changed = None
    assert to_json(schema) == before
    if changed is not None and changed.same_as(schema):
        assert changed is schema


@SETTINGS
@given(schemas(), st.data())
def test_every_form_round_trips_exactly(schema: Schema, data: st.DataObject) -> None:
    changed = apply_changes(schema, data.draw(change_lists(schema)), promotion="explicit")
    assert from_json(to_json(changed)) == changed
    assert from_arrow(to_arrow(changed)) == changed
    assert from_spark(to_spark(changed)) == changed
    try:
        document = to_iceberg_document(changed)
    except UnsupportedTypeError:
        # Only facts of a list's element or a map's value, for which Iceberg has no place.
        unnamed = [node for node in changed.walk() if node.name in ("element", "value", "key")]
        defaults = [str(node.write_default) for node in changed.walk()]
        assert "nan" in defaults or any(n.comment or n.write_default or n.initial_default for n in unnamed)
    else:
        facts = {"highest_field_id": changed.highest_field_id, "partition_spec": to_iceberg_partition_spec(changed)}
        assert from_iceberg_document(document, **facts) == changed


@SETTINGS
@given(st.data())
def test_the_difference_of_two_versions_leads_from_one_to_the_other(data: st.DataObject) -> None:
    base = data.draw(schemas())
    target = apply_changes(base, data.draw(change_lists(base, 6)), promotion="explicit")
    again = apply_changes(base, diff(base, target), promotion="explicit")
    # Ids of new fields may differ, and nothing else; not even the places of new columns.
    assert canonical(again, base.field_ids) == canonical(target, base.field_ids)
    assert [node.name for node in again] == [node.name for node in target]


@SETTINGS
@given(st.data())
def test_a_list_named_by_ids_means_the_same_and_its_new_fields_are_whole(data: st.DataObject) -> None:
    base = data.draw(schemas())
    listed = data.draw(change_lists(base, 6))
    target = apply_changes(base, listed, promotion="explicit")
    resolved = by_ids(base, listed)
    assert equivalent(apply_changes(base, resolved, promotion="explicit"), target, base.field_ids)
    new = [node for node in target.walk() if node.id not in base]
    roots = [node for node in new if target.parent_of(node.id) is None or target.parent_of(node.id) in base]
    assert sum(isinstance(change, AddField) for change in resolved) == len(roots)


@MORE
@given(st.data())
def test_rebasing_gives_a_serial_order_or_a_conflict_and_commuting_lists_never_conflict(data: st.DataObject) -> None:
    base = data.draw(schemas())
    # Two writers often make a part of the same changes, and go on with the same new fields.
    shared = data.draw(st.one_of(st.just([]), change_lists(base, 2)))
    theirs, ours = (data.draw(change_lists(base, 3, first_changes=shared)) for _ in range(2))
    table = apply_changes(base, theirs, promotion="explicit")
    writer = apply_changes(base, ours, promotion="explicit")
    strategy = RebaseSchemaConflictResolutionStrategy()
    try:
        merged = strategy.resolve(base, table, writer, table_changes=theirs, writer_changes=ours).schema
    except SchemaConflictError:
        orders = [serial(table, base, ours, ()), serial(writer, base, theirs, ())]
        assert None in orders or orders[0] != orders[1]
        return
    orders = [serial(table, base, ours, shared) for shared in ((), theirs)]
    orders += [serial(writer, base, theirs, shared) for shared in ((), ours)]
    unchanged = [canonical(side, base.field_ids) for side in (table, writer) if side.same_as(merged)]
    assert canonical(merged, base.field_ids) in [*orders, *unchanged]
    assert contents(merged, base) in (outcome(table, writer, base), outcome(writer, table, base))
    assert {node.id for node in table.walk() if node.id not in base} <= merged.field_ids
    assert merged.highest_field_id >= max(table.highest_field_id, max(writer.field_ids & merged.field_ids, default=0))


def serial(schema: Schema, base: Schema, then: list[Change], shared: Sequence[Change]) -> Any:
    """The other transaction run after the first, fields named by ids; None where it is refused.

    The same change twice is one: additions and drops of the ``shared`` list are left out.
    """
    made = [] if not shared else [change_key(change) for change in by_ids(base, shared)]
    once = (AddField, DropField, DropPartitionKey)
    left = [c for c in by_ids(base, then) if not (isinstance(c, once) and change_key(c) in made)]
    try:
        after = apply_changes(schema, left, promotion="explicit")
    except SchemaError:
        return None
    return canonical(after, base.field_ids)


Contents = dict[Any, Any]


def contents(schema: Schema, base: Schema) -> Contents:
    """A schema as a dictionary: what it says of each id, new fields named by the id above them and their name."""

    def token(node: Field) -> Any:
        above = schema.ancestors(node.id)
        return node.id if node.id in base else (token(above[0]) if above else None, node.name)

    found: Contents = {}
    for node in schema.walk():
        above = schema.ancestors(node.id)
        defaults = (default_key(node.initial_default), default_key(node.write_default))
        old = base.get(node.id)
        found[token(node)] = {
            "above": token(above[0]) if above else None,
            "name": node.name,
            "type": node.type_name,
            "nullable": node.nullable,
            "comment": node.comment,
            # A default follows its field's type; the other tests tell how.
            "defaults": defaults if old is None or old.leaf == node.leaf else None,
        }
    primary, partition = ([token(schema.by_id(key)) for key in keys] for keys in keys_of(schema))
    found["primary"], found["partition"] = {"": primary}, {"": sorted(map(str, partition))}
    return found


def outcome(first: Schema, second: Schema, base: Schema) -> Contents | None:
    """What the dictionary says after both transactions; None where the second finds a field gone that it changed."""
    before, ours, result = contents(base, base), contents(second, base), contents(first, base)
    for token, said in ours.items():
        if token not in before:
            if result.get(token, said) != said:
                return None
            result[token] = said
        elif said != before[token]:
            if token not in result:
                return None
            changed = {fact: value for fact, value in said.items() if value != before[token][fact]}
            retyped = result[token].get("type") != before[token].get("type") or "type" in changed
            result[token] = {**result[token], **changed, **({"defaults": None} if retyped else {})}
    for token in before.keys() - ours.keys():
        result.pop(token, None)
    if ours["partition"] != before["partition"]:
        kept, mine, old = (set(keys["partition"][""]) for keys in (contents(first, base), ours, before))
        result["partition"] = {"": sorted((kept - (old - mine)) | (mine - old))}
    return result


@SETTINGS
@given(st.data())
def test_rebasing_without_the_lists_gives_a_serial_order_or_a_conflict(data: st.DataObject) -> None:
    base = data.draw(schemas())
    theirs, ours = data.draw(change_lists(base, 3)), data.draw(change_lists(base, 3))
    table = apply_changes(base, theirs, promotion="explicit")
    writer = apply_changes(base, ours, promotion="explicit")
    try:
        merged = RebaseSchemaConflictResolutionStrategy().resolve(base, table, writer).schema
    except SchemaConflictError:
        return
    assert contents(merged, base) in (outcome(table, writer, base), outcome(writer, table, base))
    for node in base.walk():
        dropped = node.id not in table or node.id not in writer
        assert (node.id not in merged) == dropped

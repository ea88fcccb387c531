"""Writers at once: appends all land, everything else conflicts rightly; nothing is lost, doubled or left behind."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from tests import strict_schemas
from tests.lakehouse.places import Lake, open_lakehouse, ordered
from tests.lakehouse.statements import ROWS, SCHEMA, offer, run, stage, table, transaction_id
from twophase import failpoints
from twophase.catalog import TableChange
from twophase.catalogs.lakehouse import LakehouseCatalog, rollback
from twophase.errors import (
    CatalogError,
    ConcurrentSchemaEvolutionError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TransactionAborted,
    WriteConflictError,
)
from twophase.model import Level, ObjectPath, OverwriteScope, Purpose, TableDefinition, Transform, WriteContext

INSERT, OVERWRITE, CREATE = Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE, Purpose.CREATE_TABLE_AS
FOLLOWS = {"write.spark.accept-any-schema": "true"}
WIDER = pa.schema([*SCHEMA, ("more", pa.int32())])
OTHER = pa.schema([*SCHEMA, ("other", pa.string())])


@pytest.fixture(autouse=True)
def nothing_is_left(lake: Lake, catalog: LakehouseCatalog) -> Iterator[None]:
    """Losers leave no file and no metadata."""
    yield
    failpoints.disarm()
    assert lake.orphans() == set()
    assert [leftover for leftover in catalog.leftovers() if leftover.kind == "staging"] == []


@pytest.fixture
def other(lake: Lake) -> Iterator[LakehouseCatalog]:
    """The catalog as another process has it."""
    made = lake.catalog()
    yield made
    made.close()


def lose(participant: Any, kind: type[Exception] = WriteConflictError) -> None:
    """Commit, lose, and clean up as the coordinator does."""
    with pytest.raises(kind):
        participant.commit()
    participant.abort()


def add_column(name: str, kind: pa.DataType) -> TableChange:
    return TableChange("add_column", (name,), {"field": pa.schema([(name, kind)])})


def not_null(*field: str) -> TableChange:
    return TableChange("update_column_nullability", field, {"nullable": False})


# -- databases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cascade", [False, True])
def test_a_database_is_not_dropped_with_a_table_that_is_published_meanwhile(
    catalog: LakehouseCatalog,
    lake: Lake,
    path: ObjectPath,
    other: LakehouseCatalog,
    cascade: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look, drop = catalog.store.paths, catalog.store.drop_namespace

    def look_and_publish(database: str | None = None) -> Any:
        found = look(database)
        run(other, path)
        return found

    def publish_and_drop(*arguments: Any) -> None:
        run(other, path)
        drop(*arguments)

    changed = ("drop_namespace", publish_and_drop) if cascade else ("paths", look_and_publish)
    monkeypatch.setattr(catalog.store, *changed)
    with pytest.raises(CatalogError, match=rf"{path.database} is not empty.*{path.name}"):
        catalog.drop_database(path.database, cascade=cascade)
    assert ordered(lake.rows(path)) == ordered(ROWS)
    assert path.database in catalog.list_databases()


def test_a_table_is_not_created_in_a_database_that_is_dropped_meanwhile(
    catalog: LakehouseCatalog, path: ObjectPath, other: LakehouseCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = catalog.store.swap

    def drop_first(*arguments: Any) -> bool:
        other.drop_database(path.database)
        return plain(*arguments)

    monkeypatch.setattr(catalog.store, "swap", drop_first)
    with pytest.raises(DatabaseNotExistError):
        catalog.create_table(path, TableDefinition(SCHEMA))
    assert path.database not in catalog.list_databases()


@pytest.mark.parametrize("lake", ["postgresql"], indirect=True)
def test_a_publish_of_several_tables_and_a_drop_of_their_database_wait_for_each_other_in_one_order(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    made = ObjectPath.of(path.database, "made")
    run(catalog, path)
    members = [stage(catalog, path, OVERWRITE, [(3, "three")]), stage(catalog, made, CREATE)]
    blocked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    engine = sa.create_engine(lake.uri, poolclass=sa.pool.NullPool)
    with ThreadPoolExecutor() as pool, engine.connect() as dropping:
        dropping.exec_driver_sql(f"DELETE FROM iceberg_namespace_properties WHERE namespace = '{path.database}'")
        published = pool.submit(catalog.publish_group, members)
        while not lake.execute(blocked):
            pass
        dropping.exec_driver_sql(f"DELETE FROM iceberg_tables WHERE table_namespace = '{path.database}'")
        dropping.rollback()
        published.result()
    for member in members:
        member.finish()
    assert (lake.rows(path), ordered(lake.rows(made))) == ([(3, "three")], ordered(ROWS))


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("iceberg-sql", "`INSERT INTO` is rebased on what others committed meanwhile: atomic")
def test_an_append_goes_on_what_others_committed_meanwhile(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    run(catalog, path)
    slow = stage(catalog, path, INSERT, [(7, "slow")])
    run(other, path, INSERT, [(8, "fast")])
    run(other, path, OVERWRITE, [(9, "new")])
    slow.commit()
    slow.finish()
    assert (ordered(lake.rows(path)), slow.level) == ([(7, "slow"), (9, "new")], Level.ATOMIC)


def test_an_append_that_loses_the_race_for_the_pointer_tries_again(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    run(catalog, path)
    other = other
    failpoints.arm("lakehouse.swap", lambda _: (failpoints.disarm(), run(other, path, INSERT, [(8, "fast")])))
    run(catalog, path, INSERT, [(7, "slow")])
    assert ordered(lake.rows(path)) == ordered([*ROWS, (7, "slow"), (8, "fast")])


def test_where_one_of_two_tables_loses_the_race_both_are_written_by_the_next_try(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    second = ObjectPath.of(path.database, f"{path.name}_too")
    for target in (path, second):
        run(catalog, target)
    members = [stage(catalog, target, INSERT, [(7, "slow")]) for target in (path, second)]
    failpoints.arm("lakehouse.swap", lambda _: (failpoints.disarm(), run(other, second, INSERT, [(8, "fast")])))
    catalog.publish_group(members)
    for member in members:
        member.finish()
    assert ordered(lake.rows(path)) == ordered([*ROWS, (7, "slow")])
    assert ordered(lake.rows(second)) == ordered([*ROWS, (7, "slow"), (8, "fast")])


@pytest.mark.promise("conflicts", "what replaces rows of an Iceberg table does not lose those that it never saw")
@pytest.mark.parametrize("purpose", [Purpose.REPLACE_TABLE_AS, Purpose.CREATE_OR_REPLACE_TABLE_AS, OVERWRITE])
def test_what_replaces_rows_does_not_lose_those_that_it_never_saw(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog, purpose: Purpose
) -> None:
    run(catalog, path)
    slow = stage(catalog, path, purpose, [(7, "slow")])
    run(other, path, INSERT, [(8, "fast")])
    lose(slow)
    assert ordered(lake.rows(path)) == ordered([*ROWS, (8, "fast")])


def partition(name: str) -> OverwriteScope:
    return OverwriteScope({"name": name})


DYNAMIC = OverwriteScope(dynamic=True)


@pytest.mark.parametrize(("one", "two"), [(partition("one"), partition("two")), (DYNAMIC, DYNAMIC)])
def test_overwrites_of_different_partitions_both_land(
    catalog: LakehouseCatalog,
    lake: Lake,
    path: ObjectPath,
    other: LakehouseCatalog,
    one: OverwriteScope,
    two: OverwriteScope,
) -> None:
    run(catalog, path, partitioning=(Transform.identity("name"),))
    first = stage(catalog, path, OVERWRITE, [(7, "one")], overwrite=one)
    second = stage(other, path, OVERWRITE, [(8, "two")], overwrite=two)
    assert not first.reservation_scope() & second.reservation_scope()  # type: ignore[operator]
    third = stage(other, path, INSERT, [(9, "three")])
    for participant in (third, second, first):  # In another order, and each on what the others have made of it.
        participant.commit()
        participant.finish()
    assert ordered(lake.rows(path)) == [(7, "one"), (8, "two"), (9, "three")]


@pytest.mark.promise("conflicts", "an overwrite of an Iceberg partition that another writer changed is a conflict")
@pytest.mark.parametrize("late", ["prepare", "publish"])
@pytest.mark.parametrize(
    ("purpose", "rows", "scope"),
    [
        (INSERT, [(9, "one")], None),
        (OVERWRITE, [(9, "one")], partition("one")),
        (OVERWRITE, [], partition("one")),
        (OVERWRITE, [(9, "one")], OverwriteScope()),
    ],
    ids=["rows came", "rows were replaced", "rows went", "all was replaced"],
)
def test_an_overwrite_of_a_partition_conflicts_with_what_others_did_to_it(
    catalog: LakehouseCatalog,
    lake: Lake,
    path: ObjectPath,
    other: LakehouseCatalog,
    purpose: Purpose,
    rows: Any,
    scope: OverwriteScope | None,
    late: str,
) -> None:
    run(catalog, path, partitioning=(Transform.identity("name"),))
    slow = offer(catalog, path, OVERWRITE, overwrite=partition("one"))
    slow.begin()
    slow.write(table([(7, "one")]))
    if late == "publish":
        slow.prepare()
    run(other, path, purpose, rows, **({"overwrite": scope} if scope else {}))
    after = ordered(lake.rows(path))
    with pytest.raises(WriteConflictError):
        slow.prepare()
    slow.abort()
    assert ordered(lake.rows(path)) == after


def test_an_append_does_not_land_in_a_table_that_was_replaced(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    run(catalog, path)
    slow = stage(catalog, path, INSERT, [(7, "slow")])
    run(other, path, Purpose.REPLACE_TABLE_AS, [(8, "fast")])
    lose(slow)
    assert lake.rows(path) == [(8, "fast")]


@pytest.mark.parametrize("again", [False, True])
def test_nothing_lands_in_a_table_that_was_dropped(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, again: bool
) -> None:
    run(catalog, path)
    slow = stage(catalog, path, INSERT, [(7, "slow")])
    catalog.drop_table(path, purge=True)
    if again:
        run(catalog, path)
    lose(slow)
    assert lake.table(path) is None or lake.rows(path) == ROWS


def test_what_is_aborted_in_the_middle_of_its_publish_is_not_published(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    run(catalog, path)
    zombie = stage(catalog, path, INSERT, [(7, "zombie")])
    failpoints.arm("lakehouse.swap", lambda _: rollback.remove_staged(other.lakehouse, zombie.name))
    lose(zombie, TransactionAborted)
    assert ordered(lake.rows(path)) == ROWS


def test_of_two_creators_one_wins(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    slow = stage(catalog, path)
    run(other, path, CREATE, [(8, "fast")])
    lose(slow, (TableAlreadyExistsError, WriteConflictError))  # type: ignore[arg-type]
    assert lake.rows(path) == [(8, "fast")]


def test_single_partitions_are_not_overwritten_where_files_have_an_earlier_partitioning(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path, partitioning=(Transform.identity("name"),))
    slow = stage(catalog, path, OVERWRITE, [(7, "one")], overwrite=OverwriteScope(dynamic=True))
    with lake.iceberg() as other, other.load_table(tuple(path.to_document())).update_spec() as update:
        update.add_identity("id")
    slow.commit()  # Its files go by the partitioning that it saw, as those that it replaces.
    assert ordered(lake.rows(path)) == [(2, "two"), (7, "one")]
    late = offer(catalog, path, OVERWRITE, overwrite=OverwriteScope(dynamic=True))
    late.begin()
    late.write(table([(8, "one")]))
    with pytest.raises(CatalogError, match="earlier partitioning"):
        late.prepare()
    late.abort()


def _append(options: dict[str, str], database: str, name: str, writer: int, rounds: int) -> None:
    catalog = open_lakehouse(**options)
    for number in range(rounds):
        run(catalog, ObjectPath.of(database, name), INSERT, [(writer * 1000 + number, f"w{writer}")])
    catalog.close()


def _replace(options: dict[str, str], database: str, name: str, writer: int, rounds: int) -> None:
    catalog, done = open_lakehouse(**options), 0
    while done < rounds:
        participant = offer(catalog, ObjectPath.of(database, name), OVERWRITE)
        try:
            participant.begin()
            participant.write(table([(writer, f"round {done}")]))
            participant.prepare()
            participant.commit()
            participant.finish()
            done += 1
        except TransactionAborted:
            participant.abort()
    catalog.close()


def in_processes(*jobs: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
    """Run functions side by side, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=function, args=facts) for function, facts in jobs]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * len(started)


@pytest.mark.promise("appends", "appends of several processes to one Iceberg table all land, once")
def test_appends_of_several_processes_all_land(catalog: LakehouseCatalog, lake: Lake, path: ObjectPath) -> None:
    run(catalog, path, CREATE, [])
    facts = (lake.options(commit_retries="1000"), path.database, path.name)
    in_processes(*[(_append, (*facts, writer, 8)) for writer in range(3)])
    assert ordered(lake.rows(path)) == ordered(
        [(writer * 1000 + number, f"w{writer}") for writer in range(3) for number in range(8)]
    )


def test_overwrites_beside_appends_lose_none_that_came_later(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path, CREATE, [])
    facts = (lake.options(commit_retries="1000"), path.database, path.name)
    in_processes((_append, (*facts, 1, 8)), (_replace, (*facts, 2, 4)))
    rows = lake.rows(path)
    overwritten = [row for row in rows if row[0] == 2]
    appended = sorted(row[0] for row in rows if row[0] != 2)
    assert overwritten in ([], [(2, "round 3")])
    assert appended == list(range(1008 - len(appended), 1008))  # What is left came after the last overwrite.


# -- RFC-82, by two writers --------------------------------------------------------------------------------------------


def columns(lake: Lake, path: ObjectPath) -> list[str]:
    return [field.name for field in lake.load(path).schema().fields]


def followed(catalog: LakehouseCatalog, path: ObjectPath) -> None:
    """A table whose columns follow its rows."""
    run(catalog, path, CREATE, [(1, "old")], properties=FOLLOWS)


def test_rfc_82_row_1_no_table_at_all_gets_the_writers_schema(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path, CREATE, [(1, "x", 1)], WIDER)
    assert columns(lake, path) == WIDER.names


def test_rfc_82_row_2_a_table_that_came_meanwhile_with_the_same_schema_keeps_it(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    slow = stage(catalog, path)
    run(other, path)
    lose(slow, TransactionAborted)  # Of two that create a table one wins, whatever their schemas are.
    assert columns(lake, path) == SCHEMA.names


def test_rfc_82_row_3_a_table_that_came_meanwhile_with_another_schema_is_a_conflict(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    slow = stage(catalog, path, CREATE, [(1, "x", 1)], WIDER)
    run(other, path, CREATE, [(1, "x", "y")], OTHER)
    lose(slow, TransactionAborted)
    assert columns(lake, path) == OTHER.names


def test_rfc_82_row_4_nobody_changes_the_schema(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    followed(catalog, path)
    slow = stage(catalog, path, INSERT, [(7, "slow")])
    run(other, path, INSERT, [(8, "fast")])
    slow.commit()
    assert columns(lake, path) == SCHEMA.names


def test_rfc_82_row_5_the_writer_alone_changes_the_schema(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    followed(catalog, path)
    slow = stage(catalog, path, INSERT, [(7, "slow", 70)], WIDER)
    run(other, path, INSERT, [(8, "fast")])
    slow.commit()
    assert ordered(lake.rows(path)) == [(1, "old", None), (7, "slow", 70), (8, "fast", None)]


def test_rfc_82_row_6_the_table_alone_changed_and_keeps_its_schema(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    followed(catalog, path)
    slow = stage(catalog, path, INSERT, [(7, "slow")])
    changes = [TableChange("rename_column", ("name",), {"name": "label"}), add_column("more", pa.int32())]
    other.alter_table(path, changes)
    slow.commit()
    assert columns(lake, path) == ["id", "label", "more"]
    assert ordered(lake.rows(path)) == [(1, "old", None), (7, "slow", None)]


def test_rfc_82_row_7_both_made_the_same_change(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    followed(catalog, path)
    slow = stage(catalog, path, INSERT, [(7, "slow", 70)], WIDER)
    run(other, path, INSERT, [(8, "fast", 80)], WIDER)
    slow.commit()
    assert columns(lake, path) == WIDER.names
    assert ordered(lake.rows(path)) == [(1, "old", None), (7, "slow", 70), (8, "fast", 80)]


@pytest.mark.promise("evolution", "two writers who change one schema differently: RFC-82's conflict")
def test_rfc_82_row_8_both_made_different_changes_is_a_conflict(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    followed(catalog, path)
    slow = stage(catalog, path, INSERT, [(7, "slow", 70)], WIDER)
    run(other, path, INSERT, [(8, "fast", "x")], OTHER)
    lose(slow, ConcurrentSchemaEvolutionError)
    assert columns(lake, path) == OTHER.names
    assert ordered(lake.rows(path)) == [(1, "old", None), (8, "fast", "x")]


def meanwhile(do: Callable[[], Any]) -> None:
    """Let another writer come between the look at a table and the move of its pointer."""
    failpoints.arm("lakehouse.alter", lambda _: (failpoints.disarm(), do()))


def test_two_alter_statements_that_say_the_same_are_one(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    run(catalog, path)
    meanwhile(lambda: other.alter_table(path, [add_column("more", pa.int32())]))
    catalog.alter_table(path, [add_column("more", pa.int32())])
    assert columns(lake, path) == [*SCHEMA.names, "more"]


def test_two_alter_statements_that_differ_conflict_or_are_combined(
    lake: Lake, path: ObjectPath, other: LakehouseCatalog
) -> None:
    strict, combining = lake.catalog(), lake.catalog(schema_conflicts="rebase")
    run(strict, path)
    meanwhile(lambda: other.alter_table(path, [add_column("more", pa.int32())]))
    with pytest.raises(ConcurrentSchemaEvolutionError):
        strict.alter_table(path, [add_column("other", pa.string())])
    assert columns(lake, path) == [*SCHEMA.names, "more"]
    meanwhile(lambda: other.alter_table(path, [add_column("third", pa.int32())]))
    combining.alter_table(path, [add_column("other", pa.string())])
    assert columns(lake, path) == [*SCHEMA.names, "more", "third", "other"]


def test_the_strategy_may_be_a_class_of_the_users(lake: Lake, path: ObjectPath, other: LakehouseCatalog) -> None:
    strict = lake.catalog(schema_conflicts=strict_schemas.NAME)
    run(strict, path)
    slow = stage(strict, path, INSERT, [(7, "slow")])
    other.alter_table(path, [add_column("more", pa.int32())])
    with pytest.raises(ConcurrentSchemaEvolutionError, match="says the user"):
        slow.commit()
    slow.abort()


@pytest.mark.parametrize("field", ["name", "s.x"])
def test_a_field_does_not_become_not_null_under_a_null(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, other: LakehouseCatalog, field: str
) -> None:
    schema = pa.schema([*SCHEMA, ("s", pa.struct([("x", pa.int32())]))])
    rows = [(1, "one", {"x": 1}), (7, None, {"x": None}), (8, None, {"x": None})]
    run(catalog, path, CREATE, rows[:1], schema)
    slow = stage(catalog, path, INSERT, rows[1:2], schema)
    meanwhile(lambda: run(other, path, INSERT, rows[2:], schema))
    with pytest.raises(WriteConflictError, match="NULL"):
        catalog.alter_table(path, [not_null(*field.split("."))])
    catalog.alter_table(path, [not_null("id")])
    slow.commit()
    assert sorted(row[0] for row in lake.rows(path)) == [1, 7, 8]


def test_a_null_does_not_come_into_a_column_that_became_not_null(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path)
    slow = stage(catalog, path, INSERT, [(7, None)])
    catalog.alter_table(path, [not_null("name")])
    lose(slow, ConcurrentSchemaEvolutionError)
    assert ordered(lake.rows(path)) == ROWS


@pytest.mark.promise("evolution", "rows that lack a value of an Iceberg field that has become NOT NULL are a conflict")
@pytest.mark.parametrize(
    ("field", "row"),
    [
        ("name", (7, None, {"x": 1}, [1])),
        ("s.x", (7, "seven", {"x": None}, [1])),
        ("tags", (7, "seven", {"x": 1}, None)),
    ],
)
@pytest.mark.parametrize("metrics", ["full", "none"])
@pytest.mark.parametrize("lake", ["sqlite"], indirect=True)
def test_a_null_does_not_come_into_a_field_at_any_level_that_became_not_null(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, field: str, row: tuple[Any, ...], metrics: str
) -> None:
    parts = {"s": pa.struct([("x", pa.int32())]), "tags": pa.list_(pa.int32())}
    schema = pa.schema([*SCHEMA, *parts.items()])
    run(catalog, path, CREATE, [], schema, properties={"write.metadata.metrics.default": metrics})
    slow = stage(catalog, path, INSERT, [row], schema)
    catalog.alter_table(path, [not_null(*field.split("."))])
    lose(slow, ConcurrentSchemaEvolutionError)
    assert lake.rows(path) == []


@pytest.mark.parametrize("lake", ["sqlite"], indirect=True)
def test_rows_have_a_value_of_a_column_that_came_meanwhile_unless_it_may_be_null(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path, CREATE, [])
    first, second = (stage(catalog, path, INSERT, [(7, "seven")]) for _ in range(2))
    part = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    catalog.alter_table(path, [add_column("s", part), not_null("id")])
    first.commit()
    run(catalog, path, OVERWRITE, [], pa.schema([*SCHEMA, ("s", part)]))
    catalog.alter_table(path, [add_column("more", pa.int32())])
    catalog.alter_table(path, [not_null("more")])
    lose(second, ConcurrentSchemaEvolutionError)
    assert lake.rows(path) == []


@pytest.mark.promise("evolution", "a value is never read under a column that another writer has added")
@pytest.mark.parametrize("strategy", ["rfc-82", "rebase"])
def test_what_a_block_has_added_written_and_dropped_is_not_read_under_a_column_of_another_writer(
    lake: Lake, path: ObjectPath, other: LakehouseCatalog, strategy: str
) -> None:
    catalog = lake.catalog(schema_conflicts=strategy)
    run(catalog, path)
    added = catalog.two_phase_alter_table(path, [add_column("secret", pa.int32())], context=in_block(0))
    added.begin()
    wider = pa.schema([*SCHEMA, ("secret", pa.int32())])
    context = in_block(1, added.document)
    rows = catalog.two_phase_create_table(path, TableDefinition(wider), purpose=INSERT, context=context)
    rows.begin()
    rows.write(table([(9, "mine", 4711)], wider))
    drop = TableChange("drop_column", ("secret",), {})
    dropped = catalog.two_phase_alter_table(path, [drop], context=in_block(2, rows.document))
    dropped.begin()
    other.alter_table(path, [add_column("price", pa.int32())])
    with pytest.raises(WriteConflictError, match="under the ids of columns"):
        dropped.prepare()
    for participant in (dropped, rows, added):
        participant.abort()
    assert ordered(lake.rows(path)) == [(*row, None) for row in ROWS]


def test_a_replace_keeps_the_properties_as_its_transaction_has_altered_them(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path, properties={"keep": "1", "gone": "1"})
    changes = [
        TableChange("remove_property", (), {"key": "gone"}),
        TableChange("set_property", (), {"key": "new", "value": "x"}),
    ]
    altered = catalog.two_phase_alter_table(path, changes, context=in_block(0))
    altered.begin()
    replaced = catalog.two_phase_create_table(
        path, TableDefinition(SCHEMA), purpose=Purpose.REPLACE_TABLE_AS, context=in_block(1, altered.document)
    )
    replaced.begin()
    replaced.write(table([(1, "r")], SCHEMA))
    replaced.prepare()
    replaced.commit()
    replaced.finish()
    altered.abort()
    found = lake.load(path).metadata.properties
    assert {key: found.get(key) for key in ("keep", "gone", "new")} == {"keep": "1", "gone": None, "new": "x"}


def in_block(ordinal: int, base: Any = None) -> WriteContext:
    return WriteContext("a-block", ordinal, base=base)


@pytest.mark.promise("ddl-in-blocks", "rows that others commit while a block renames their table are never lost")
def test_what_others_commit_between_the_two_names_of_a_rename_is_a_conflict(
    catalog: LakehouseCatalog, other: LakehouseCatalog, path: ObjectPath
) -> None:
    """The new name gets the table as the rename has seen it, and the former one must have that table until then."""
    run(other, path)
    context = WriteContext(transaction_id())
    arriving = catalog.two_phase_rename_table(path, ObjectPath.of(path.database, "weekly"), context=context)
    assert arriving is not None
    run(other, path, INSERT, [(3, "three")])
    leaving = catalog.two_phase_leave_table(path, arriving, context=replace(context, ordinal=1))
    for participant in (arriving, leaving):
        participant.begin()
    arriving.prepare()
    with pytest.raises(WriteConflictError, match="another writer committed to it"):
        leaving.prepare()
    for participant in (arriving, leaving):
        participant.abort()

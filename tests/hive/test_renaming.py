"""RENAME of a session table in a transaction: one metastore call, and no file moves."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hive.test_statements import hive_of
from tests.hive.world import World
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.catalogs.hive.tables import PLACEHOLDER
from twophase.errors import AtomicityNotSupportedError, CatalogError, TransactionAborted, WriteConflictError
from twophase.model import ObjectPath, Outcome, Purpose, WriteContext

OLD, NEW = ObjectPath.of("default", "t"), ObjectPath.of("default", "u")
_SPARKS = ObjectPath.of("default", "spark_renamed")


def renaming(world: World, transaction: str = "test-renames") -> list[Any]:
    """The participants of both names, up to the decision."""
    catalog = world.catalog
    arriving = catalog.two_phase_rename_table(OLD, NEW, context=WriteContext(transaction))
    assert isinstance(arriving, HiveParticipant)
    arriving.begin()
    leaving = catalog.two_phase_leave_table(OLD, arriving, context=WriteContext(transaction, 1))
    assert isinstance(leaving, HiveParticipant)
    leaving.begin()
    for participant in (arriving, leaving):
        participant.prepare()
    return [arriving, leaving]


def outcomes(world: World, pair: list[Any]) -> set[Outcome]:
    return {participant.outcome() for participant in (*pair, *map(world.reborn, pair))}


@pytest.mark.promise("ddl-in-blocks", "a session table that a block renames keeps its files where they are")
@pytest.mark.parametrize("by", [(), ("k",)], ids=["plain", "partitioned"])
def test_a_renamed_table_keeps_its_files(world: World, by: tuple[str, ...]) -> None:
    world.run("t", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=by, properties={"a": "b"})
    before, rows = world.catalog.existing(OLD), world.rows("t")
    pair = renaming(world)
    assert world.catalog.group_key(pair[0]) == world.catalog.group_key(pair[1]) is not None
    world.catalog.publish_group(pair)
    world.catalog.publish_group([world.reborn(participant) for participant in pair])
    assert outcomes(world, pair) == {Outcome.PUBLISHED}
    for participant in pair:
        participant.finish()
    now = world.catalog.existing(NEW)
    assert (now.location, now.kind, now.properties["a"]) == (before.location, before.kind, "b")
    assert world.rows("u") == rows and world.catalog.find(OLD) is None
    world.run("t", world.sql("SELECT 7L AS id, 0L AS k"))
    world.run("u", world.sql("SELECT 9L AS id, 1L AS k"), Purpose.INSERT_INTO, by=by)
    world.clean()
    world.sql("DROP TABLE u")
    assert world.rows("t") == [(7, 0)]


@pytest.mark.promise("ddl-in-blocks", "a rename that is taken back leaves the table as it was")
def test_a_published_rename_is_taken_back(world: World) -> None:
    world.run("t", world.sql("SELECT id FROM range(2)"))
    before, pair = world.catalog.existing(OLD), renaming(world)
    world.catalog.publish_group(pair)
    for _ in range(2):
        assert world.catalog.compensate_group(pair)
        assert outcomes(world, pair) == {Outcome.NOT_PUBLISHED}
        now = world.catalog.existing(OLD)
        assert (now.location, now.kind, now.stamp) == (before.location, before.kind, before.stamp)
        assert world.catalog.find(NEW) is None
    world.catalog.publish_group(pair)
    world.run("t", world.sql("SELECT 'theirs' AS name"))
    assert not world.catalog.compensate_group(pair)
    assert (world.rows("t"), world.rows("u")) == ([("theirs",)], [(0,), (1,)])
    for participant in pair:
        participant.finish()


def _replaced(world: World) -> None:
    world.run("t", world.sql("SELECT 7L AS id"), Purpose.REPLACE_TABLE_AS)


def _taken(world: World) -> None:
    world.run("u", world.sql("SELECT 'theirs' AS name"))


def _dropped(world: World) -> None:
    world.sql("DROP TABLE t")


def change_before_rename(world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[World], object]) -> None:
    """Let another writer change something between the last look of a publish and its rename."""
    metastore = world.catalog.metastore
    rename = metastore.rename_table

    def late(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(metastore, "rename_table", rename)
        change(world)
        rename(*arguments, **named)

    monkeypatch.setattr(metastore, "rename_table", late)


@pytest.mark.parametrize("change", [_replaced, _taken, _dropped])
def test_what_others_change_between_the_last_look_and_the_call_is_a_conflict(
    world: World, change: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run("t", world.sql("SELECT id FROM range(2)"))
    pair = renaming(world)
    change_before_rename(world, monkeypatch, change)
    with pytest.raises(WriteConflictError):
        world.catalog.publish_group(pair)
    assert outcomes(world, pair) == {Outcome.NOT_PUBLISHED}
    for participant in reversed(pair):
        participant.abort()
    assert world.catalog.table_exists(NEW) == (change is _taken)
    if change is not _dropped:
        assert world.rows("t") == ([(7,)] if change is _replaced else [(0,), (1,)])
        assert world.catalog.existing(OLD).kind == "MANAGED"


def test_a_table_without_a_stamp_is_not_renamed_once_another_writer_has_stamped_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.sql(f"CREATE TABLE t USING parquet LOCATION '{tmp_path / 'e'}' AS SELECT 1L AS id")
    pair = renaming(world)
    change_before_rename(
        world, monkeypatch, lambda w: w.catalog.metastore.alter_table(w.catalog.existing(OLD).with_stamp("theirs"))
    )
    with pytest.raises(WriteConflictError):
        world.catalog.publish_group(pair)
    assert outcomes(world, pair) == {Outcome.NOT_PUBLISHED}
    for participant in reversed(pair):
        participant.abort()
    assert (world.catalog.existing(OLD).stamp, world.catalog.table_exists(NEW)) == ("theirs", False)
    world.sql("DROP TABLE t")


def test_a_delayed_call_does_not_rename_what_recovery_has_rolled_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not world.is_hive:
        return
    world.run("t", world.sql("SELECT id FROM range(2)"))
    metastore, below = world.catalog.metastore, hive_of(world)
    monkeypatch.setattr(type(metastore), "ends_with_driver", False)
    pair, alter = renaming(world), below._alter

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(below, "_alter", alter)
        for participant in reversed(pair):
            world.reborn(participant).abort()
        return alter(*arguments, **named)

    monkeypatch.setattr(below, "_alter", late)
    with pytest.raises(TransactionAborted):
        world.catalog.publish_group(pair)
    assert world.rows("t") == [(0,), (1,)] and world.catalog.find(NEW) is None


def test_what_cannot_be_renamed_in_a_transaction_is_refused(world: World, tmp_path: Any) -> None:
    world.sql("CREATE TABLE t USING parquet AS SELECT 1 AS id")
    world.sql("CREATE OR REPLACE VIEW v AS SELECT 1 AS id")
    context = WriteContext("test-refused")
    with pytest.raises(AtomicityNotSupportedError, match="its files are in"):
        world.catalog.two_phase_rename_table(OLD, NEW, context=context)
    with pytest.raises(CatalogError, match="is a view"):
        world.catalog.two_phase_rename_table(ObjectPath.of("default", "v"), NEW, context=context)
    with pytest.raises(CatalogError, match="another database"):
        world.catalog.two_phase_rename_table(OLD, ObjectPath.of("other", "u"), context=context)
    world.sql("DROP VIEW v")
    world.sql("DROP TABLE t")
    world.sql(f"CREATE TABLE t USING parquet LOCATION '{tmp_path / 'own'}' AS SELECT 1 AS id")
    pair = renaming(world, "test-located")
    world.catalog.publish_group(pair)
    for participant in pair:
        participant.finish()
    assert world.rows("u") == [(1,)] and str(tmp_path) in str(world.catalog.existing(NEW).location)


def test_an_external_table_at_its_names_place_keeps_its_files_as_with_spark(world: World) -> None:
    where = str(world.warehouse / "t")
    world.sql(f"CREATE TABLE t USING parquet LOCATION '{where}' AS SELECT 1 AS id")
    world.sql("ALTER TABLE t RENAME TO spark_renamed")
    assert world.rows("spark_renamed") == [(1,)] and str(world.catalog.existing(_SPARKS).location).endswith("/t")
    world.sql("ALTER TABLE spark_renamed RENAME TO t")
    pair = renaming(world)
    world.catalog.publish_group(pair)
    for participant in pair:
        participant.finish()
    assert world.rows("u") == [(1,)] and str(world.catalog.existing(NEW).location).endswith("/t")
    with pytest.raises(CatalogError, match="not empty and not made by twophase"):
        world.run("t", world.sql("SELECT 7L AS id"))
    world.clean()
    assert world.rows("u") == [(1,)]
    world.drop("u")
    shutil.rmtree(where)


# -- the name of a table that the transaction drops --------------------------------------------------------------------


def dropping_first(world: World, transaction: str = "test-drops") -> tuple[Any, list[Any]]:
    """The participant that drops NEW, and those that then give its name to OLD, up to the decision."""
    drop = world.catalog.two_phase_drop_table(NEW, context=WriteContext(transaction))
    assert drop is not None
    drop.begin()
    arriving = world.catalog.two_phase_rename_table(OLD, NEW, context=WriteContext(transaction, 1, base=drop.document))
    assert arriving is not None
    leaving = world.catalog.two_phase_leave_table(OLD, arriving, context=WriteContext(transaction, 2))
    for participant in (arriving, leaving):
        participant.begin()
        participant.prepare()
    return drop, [arriving, leaving]


def two_tables(world: World, *, stamped: bool, by: tuple[str, ...] = ()) -> None:
    world.run("t", world.sql("SELECT 7L AS id, 'new' AS k"))
    if stamped:
        world.run("u", world.sql("SELECT 1L AS id, 'old' AS k"), by=by)
    else:
        partitioned = f"PARTITIONED BY ({', '.join(by)})" if by else ""
        world.sql(f"CREATE TABLE u USING parquet {partitioned} AS SELECT 1L AS id, 'old' AS k")


@pytest.mark.promise("ddl-in-blocks", "a session table that a block drops for another one comes back, or goes wholly")
@pytest.mark.parametrize(("stamped", "by"), [(True, ()), (False, ("k",))], ids=["stamped", "foreign partitioned"])
def test_a_table_that_is_dropped_for_another_one_comes_back_or_goes(
    world: World, stamped: bool, by: tuple[str, ...]
) -> None:
    two_tables(world, stamped=stamped, by=by)
    before = world.catalog.existing(NEW)
    drop, pair = dropping_first(world)
    world.catalog.publish_group(pair)
    assert world.rows("u") == [(7, "new")] and world.catalog.find(OLD) is None
    for _ in range(2):
        assert world.catalog.compensate_group([world.reborn(participant) for participant in pair])
        assert outcomes(world, pair) == {Outcome.NOT_PUBLISHED}
        now = world.catalog.existing(NEW)
        assert (now.location, now.kind, now.stamp) == (before.location, before.kind, before.stamp)
        assert (world.rows("u"), world.rows("t")) == ([(1, "old")], [(7, "new")])
    world.catalog.publish_group(pair)
    for _ in range(2):
        for participant in (*pair, *map(world.reborn, pair)):
            participant.finish()
    drop.abort()
    assert not world.catalog.compensate_group(pair) and world.rows("u") == [(7, "new")]
    assert world.sql("SHOW TABLES LIKE '__twophase*'").collect() == []
    world.run("t", world.sql("SELECT 3L AS id"))
    world.clean()
    assert (world.rows("u"), world.rows("t")) == ([(7, "new")], [(3,)])


def test_what_others_create_while_a_dropped_table_makes_way_is_theirs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_tables(world, stamped=False)
    drop, pair = dropping_first(world)
    metastore = world.catalog.metastore
    rename = metastore.rename_table

    def hidden_first(*arguments: Any, **named: Any) -> None:
        rename(*arguments, **named)
        monkeypatch.setattr(metastore, "rename_table", rename)
        world.sql("CREATE TABLE u USING parquet LOCATION '" + str(world.warehouse / "theirs") + "' AS SELECT 9L AS id")

    monkeypatch.setattr(metastore, "rename_table", hidden_first)
    with pytest.raises(WriteConflictError):
        world.catalog.publish_group(pair)
    assert outcomes(world, pair) == {Outcome.NOT_PUBLISHED}
    with pytest.raises(CatalogError, match="The former one is whole, under the name __twophase_aside_dropped_"):
        pair[0].abort()
    assert (world.rows("u"), world.rows("t")) == ([(9,)], [(7, "new")])
    world.sql("DROP TABLE u")
    for participant in (*reversed(pair), drop):
        world.reborn(participant).abort()
    assert (world.rows("u"), world.rows("t")) == ([(1, "old")], [(7, "new")])
    assert world.catalog.existing(NEW).kind == "MANAGED"


def test_a_delayed_call_does_not_hide_a_table_whose_drop_recovery_has_rolled_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not world.is_hive:
        return
    two_tables(world, stamped=False)
    metastore, below = world.catalog.metastore, hive_of(world)
    monkeypatch.setattr(type(metastore), "ends_with_driver", False)
    drop, pair = dropping_first(world)
    alter = below._alter

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(below, "_alter", alter)
        for participant in (*reversed(pair), drop):
            world.reborn(participant).abort()
        return alter(*arguments, **named)

    monkeypatch.setattr(below, "_alter", late)
    with pytest.raises(TransactionAborted):  # The hidden name is taken.
        world.catalog.publish_group(pair)
    assert (world.rows("u"), world.rows("t")) == ([(1, "old")], [(7, "new")])
    (fence,) = world.hidden_tables()
    assert PLACEHOLDER in world.catalog.existing(ObjectPath.of("default", fence)).properties
    metastore.forget_table("default", fence)
    # The first of the two calls has made it EXTERNAL: its DROP would leave its files.
    for participant in (*reversed(pair), drop):
        participant.abort()
    assert world.catalog.existing(NEW).kind == "MANAGED" and world.hidden_tables() == []


# -- a drop by the new name --------------------------------------------------------------------------------------------


def dropping_renamed(world: World, *, swaps: bool, transaction: str = "test-drops") -> tuple[list[Any], list[Any]]:
    """Participants that a later statement takes the place of, and the others up to the decision.

    OLD is renamed, and dropped by its new name; if it ``swaps``, NEW gets the name OLD in between.
    """
    catalog, aside = world.catalog, ObjectPath.of("default", "aside")
    made: list[Any] = []

    def begun(participant: Any) -> Any:
        participant.begin()
        made.append(participant)
        return participant

    def context(base: Any = None) -> WriteContext:
        return WriteContext(transaction, len(made), base=None if base is None else base.document)

    away = begun(catalog.two_phase_rename_table(OLD, aside, context=context()))
    left = begun(catalog.two_phase_leave_table(OLD, away, context=context()))
    if swaps:
        arriving = begun(catalog.two_phase_rename_table(NEW, OLD, context=context(left)))
        begun(catalog.two_phase_leave_table(NEW, arriving, context=context()))
    begun(catalog.two_phase_drop_table(aside, context=context(away)))
    superseded = [away, left] if swaps else [away]
    current = [participant for participant in made if participant not in superseded]
    for participant in current:
        participant.prepare()
    return superseded, current


def groups(world: World, participants: list[Any]) -> list[list[Any]]:
    """The participants of each table, in the order of their statements."""
    found: dict[str | None, list[Any]] = {}
    for participant in participants:
        found.setdefault(world.catalog.group_key(participant), []).append(participant)
    return list(found.values())


@pytest.mark.promise(
    "ddl-in-blocks", "a session table that a block renames and drops comes back, or goes wholly", detail=True
)
@pytest.mark.parametrize(
    ("swaps", "backwards"),
    [(False, False), (True, False), (True, True)],
    ids=["alone", "for another one", "before another one"],
)
def test_a_table_that_is_dropped_by_its_new_name_comes_back_or_goes(world: World, swaps: bool, backwards: bool) -> None:
    world.run("t", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=("k",))
    world.run("u", world.sql("SELECT 7L AS id, 'new' AS k"))
    old, rows = world.catalog.existing(OLD), world.rows("t")
    superseded, current = dropping_renamed(world, swaps=swaps)
    order = groups(world, current)[:: -1 if backwards else 1]
    for again in (True, False):
        for group in order:
            world.catalog.publish_group(group)
            assert world.catalog.group_outcome([world.reborn(p) for p in group]) is Outcome.PUBLISHED
        assert world.catalog.find(ObjectPath.of("default", "aside")) is None
        assert (world.rows("t") if swaps else world.catalog.find(OLD)) == ([(7, "new")] if swaps else None)
        for group in reversed(order) if again else []:
            assert world.catalog.compensate_group([world.reborn(p) for p in group])
            assert world.catalog.group_outcome(group) is Outcome.NOT_PUBLISHED
            assert world.catalog.compensate_group(group)
        if again:
            now = world.catalog.existing(OLD)
            assert (now.location, now.kind, now.stamp) == (old.location, old.kind, old.stamp)
            assert (world.rows("t"), world.rows("u"), world.hidden_tables()) == (rows, [(7, "new")], [])
    for participant in (*current, *map(world.reborn, current)):
        participant.finish()
    for participant in superseded:
        participant.abort()
    drop = order[0 if backwards else -1]
    assert not world.catalog.compensate_group(drop) and world.hidden_tables() == []
    world.clean()
    assert world.rows("t" if swaps else "u") == [(7, "new")]
    assert not list(Path(str(old.location).removeprefix("file:")).rglob("*.parquet"))


@pytest.mark.parametrize("change", [_replaced, _dropped])
def test_a_table_that_others_change_is_not_dropped_by_its_new_name(
    world: World, change: Callable[[World], None]
) -> None:
    world.run("t", world.sql("SELECT id FROM range(2)"))
    superseded, current = dropping_renamed(world, swaps=False)
    change(world)
    with pytest.raises(WriteConflictError):
        world.catalog.publish_group(current)
    for participant in (*reversed(current), *superseded):
        participant.abort()
    if change is _replaced:
        assert world.rows("t") == [(7,)]
    assert world.hidden_tables() == [] and world.staged() == []

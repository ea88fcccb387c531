"""A metastore server may end a call for a driver that has died, and that a recovery has rolled back meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.hive.test_housekeeping import clean
from tests.hive.test_statements import HIVE, hive_of
from tests.hive.world import World
from twophase import failpoints
from twophase.catalogs.files import join
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.catalogs.hive.publish.move import MoveFiles
from twophase.catalogs.hive.publish.partitions import SwitchPartitions
from twophase.catalogs.hive.staging import Staging
from twophase.catalogs.hive.stamps import StampChangedError
from twophase.catalogs.hive.state import INSERT
from twophase.errors import TransactionAborted, WriteConflictError
from twophase.failpoints import FailpointError
from twophase.model import Outcome, OverwriteScope, Purpose
from twophase.spark.jvm import hive as jvm_hive

pytestmark = [HIVE, pytest.mark.usefixtures("server")]

QUERY = "SELECT 7L AS id, 0L AS k"
OLD = [(0, 0), (1, 1)]
REPLACE = pytest.param([], Purpose.REPLACE_TABLE_AS, QUERY, [(7, 0)], id="replace")
WHOLE_TABLES = [REPLACE, pytest.param([], Purpose.INSERT_INTO, QUERY, [*OLD, (7, 0)], id="insert")]
PARTITIONS = [
    pytest.param(["k"], Purpose.INSERT_INTO, QUERY, [*OLD, (7, 0)], id="partition"),
    pytest.param(["k"], Purpose.INSERT_INTO, "SELECT 7L AS id, 5L AS k", [*OLD, (7, 5)], id="new partition"),
]


def filled(world: World, by: list[str], append: str = "links") -> None:
    """A table whose appends are published by a call of the metastore, unless another way is named."""
    world.run("t", world.sql("SELECT id, id AS k FROM range(2)"), by=by, properties={"twophase.append": append})


def publish_late(world: World, participant: HiveParticipant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything before the metastore's call, a recovery of it in another process, and then the call."""
    owner, name = call_of(world, participant)
    call = getattr(owner, name)

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, call)
        world.reborn(participant).abort()
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, late)
    participant.commit()


def call_of(world: World, participant: HiveParticipant) -> tuple[object, str]:
    """Where the metastore's call is made that publishes."""
    publisher = participant.publisher
    if not isinstance(publisher, SwitchPartitions):
        return hive_of(world), "_alter"
    return world.catalog.metastore, "add_partitions" if publisher.existing_plan.only_adds else "alter_partitions"


@pytest.mark.parametrize("recipe", ["pointer", "rename"])
@pytest.mark.parametrize(("by", "purpose", "query", "after"), WHOLE_TABLES)
def test_a_late_call_is_refused(
    world: World,
    recipe: str,
    by: list[str],
    purpose: Purpose,
    query: str,
    after: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = world.with_options(recipe=recipe)
    filled(it, by)
    participant = it.stage("t", world.sql(query), purpose, by=by)
    if recipe == "rename" and participant.table_write.state.effect == INSERT:
        assert isinstance(participant.publisher, MoveFiles)  # renames files itself: no call of the metastore publishes
        participant.abort()
        return
    with pytest.raises(TransactionAborted if recipe == "pointer" else WriteConflictError):
        publish_late(it, participant, monkeypatch)
    assert sorted(it.rows("t")) == OLD
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    clean(it)
    assert it.hidden_tables() == []
    # The fence is none for those who come after it.
    it.run("t", world.sql(query), purpose, by=by)
    assert sorted(it.rows("t")) == after


@pytest.mark.parametrize("append", ["links", "files"])
def test_a_late_call_finds_what_another_writer_published(
    world: World, append: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one with a timeline of its own, that no reservation keeps away."""
    filled(world, [], append)
    participant = world.stage("t", world.sql(QUERY), Purpose.REPLACE_TABLE_AS)
    owner, name = call_of(world, participant)
    call = getattr(owner, name)

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, call)
        world.run("t", world.sql("SELECT 8L AS id, 8L AS k"), Purpose.INSERT_INTO)
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, late)
    with pytest.raises(WriteConflictError):
        participant.commit()
    participant.abort()
    assert not world.catalog.files.exists(participant.version)
    assert sorted(world.rows("t")) == [*OLD, (8, 8)]


@pytest.mark.parametrize(("by", "purpose", "query", "after"), WHOLE_TABLES)
def test_a_late_call_is_refused_after_another_publish_was_taken_back(
    world: World, by: list[str], purpose: Purpose, query: str, after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world, by)
    participant = world.stage("t", world.sql(query), purpose, by=by)
    owner, name = call_of(world, participant)
    call = getattr(owner, name)

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, call)
        world.reborn(participant).abort()
        other = world.run("t", world.sql("SELECT 8L AS id, 8L AS k"), Purpose.INSERT_INTO)
        assert world.undone(other)
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, late)
    with pytest.raises(TransactionAborted):
        participant.commit()
    assert sorted(world.rows("t")) == OLD
    clean(world)


def test_a_writer_that_looked_before_the_fence_publishes(world: World) -> None:
    filled(world, [])
    dead = world.stage("t", world.sql(QUERY), Purpose.REPLACE_TABLE_AS)
    other = world.stage("t", world.sql(QUERY), Purpose.INSERT_INTO)
    stamp = world.catalog.find(other.path).stored_stamp
    world.reborn(dead).abort()
    assert world.catalog.find(other.path).stored_stamp != stamp
    other.commit()
    other.finish()
    assert sorted(world.rows("t")) == [*OLD, (7, 0)]


@pytest.mark.parametrize(
    ("by", "purpose", "query", "after"),
    [*PARTITIONS, pytest.param([], Purpose.INSERT_INTO, QUERY, [*OLD, (7, 0)], id="foreign table")],
)
def test_what_has_no_fence_is_wholly_new_after_a_late_call(
    world: World, by: list[str], purpose: Purpose, query: str, after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "t" if by else "f"
    if by:
        filled(world, by)
    else:
        world.sql(
            "CREATE TABLE f USING parquet TBLPROPERTIES ('twophase.append' = 'links') "
            "AS SELECT id, id AS k FROM range(2)"
        )
    participant = world.stage(table, world.sql(query), purpose, by=by)
    publish_late(world, participant, monkeypatch)
    assert sorted(world.rows(table)) == after
    clean(world)
    assert sorted(world.rows(table)) == after


@pytest.mark.parametrize(("by", "purpose", "query", "after"), [*WHOLE_TABLES, *PARTITIONS])
def test_what_was_rolled_back_stays_as_long_as_a_replaced_version_and_then_goes(
    world: World, by: list[str], purpose: Purpose, query: str, after: Any
) -> None:
    filled(world, by)
    participant = world.stage("t", world.sql(query), purpose, by=by)
    survivor = world.reborn(participant)
    survivor.abort()
    survivor.abort()
    assert world.catalog.files.exists(participant.version)
    assert clean(world, retention=3600.0) == []
    assert "staging" in clean(world)
    assert not world.catalog.files.exists(participant.version)
    assert sorted(world.rows("t")) == OLD


@pytest.mark.parametrize(("recipe", "step"), [("pointer", "quarantine"), ("pointer", "fence"), ("rename", "fence")])
@pytest.mark.parametrize("action", ["error", "error_after"])
def test_a_recovery_that_fails_at_the_fence_is_carried_through_by_the_next(
    world: World, recipe: str, step: str, action: Any
) -> None:
    it = world.with_options(recipe=recipe)
    filled(it, [])
    participant = it.stage("t", world.sql(QUERY), Purpose.REPLACE_TABLE_AS)
    failpoints.arm(f"hive.{recipe}.{step}", action)
    with pytest.raises(FailpointError):
        it.reborn(participant).abort()
    failpoints.disarm()
    it.reborn(participant).abort()
    clean(it)
    assert sorted(it.rows("t")) == OLD
    assert not it.catalog.files.exists(participant.version)


@pytest.mark.parametrize(("by", "purpose", "query", "after"), [*WHOLE_TABLES, *PARTITIONS])
def test_a_driver_that_wakes_up_does_not_publish_what_was_rolled_back(
    world: World, by: list[str], purpose: Purpose, query: str, after: Any
) -> None:
    filled(world, by)
    participant = world.stage("t", world.sql(query), purpose, by=by)
    world.reborn(participant).abort()
    assert world.catalog.files.exists(participant.version)
    with pytest.raises(TransactionAborted):
        participant.commit()
    assert sorted(world.rows("t")) == OLD
    clean(world)


def test_a_fence_for_another_statement_does_not_stop_a_publish(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where it comes between its last look and its call."""
    filled(world, [])
    dead = world.stage("t", world.sql(QUERY), Purpose.REPLACE_TABLE_AS)
    participant = world.stage("t", world.sql(QUERY), Purpose.INSERT_INTO)
    owner, name = call_of(world, participant)
    call = getattr(owner, name)

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, call)
        world.reborn(dead).abort()
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, late)
    participant.commit()
    participant.finish()
    assert sorted(world.rows("t")) == [*OLD, (7, 0)]
    clean(world)


@pytest.mark.parametrize("recipe", ["pointer", "rename"])
@pytest.mark.parametrize(("by", "purpose", "query", "after"), WHOLE_TABLES)
def test_what_is_published_while_it_is_rolled_back_is_carried_through(
    world: World,
    recipe: str,
    by: list[str],
    purpose: Purpose,
    query: str,
    after: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call came just before the fence: the table is new, and its old version is one that was replaced."""
    it = world.with_options(recipe=recipe)
    filled(it, by)
    participant = it.stage("t", world.sql(query), purpose, by=by)
    store = it.catalog.metastore
    fence = store.fence_table

    def late(*arguments: Any) -> None:
        participant.commit()
        fence(*arguments)

    if not participant.publisher.fences:
        assert isinstance(participant.publisher, MoveFiles)
        participant.abort()
        return
    if recipe == "pointer":
        monkeypatch.setattr(Staging, "is_owned", lambda _: True)  # It looked before the version was withdrawn.
    monkeypatch.setattr(store, "fence_table", late)
    it.reborn(participant).abort()
    assert sorted(it.rows("t")) == after
    assert clean(it, retention=3600.0) == []
    assert clean(it) == ["version"]
    assert sorted(it.rows("t")) == after
    assert it.hidden_tables() == []


def test_what_was_published_and_taken_back_leaves_nothing(world: World) -> None:
    """The metastore has answered: no call of it is under way."""
    filled(world, [])
    participant = world.stage("t", world.sql(QUERY), Purpose.INSERT_INTO)
    participant.commit()
    assert participant.compensate()
    participant.abort()
    assert not world.catalog.files.exists(participant.version)
    assert sorted(world.rows("t")) == OLD


def test_what_a_late_call_published_stays_until_its_last_part_was_replaced_long_ago(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world, ["k"])
    participant = world.stage("t", world.sql(QUERY), Purpose.INSERT_INTO)
    publish_late(world, participant, monkeypatch)
    withdrawn = join(participant.version, layout.QUARANTINED_FILE)
    world.catalog.files.write_json(withdrawn, {"transaction_id": participant.transaction_id, "since": 1.0})
    world.run("t", world.sql("SELECT 8L AS id, 0L AS k"), Purpose.INSERT_INTO)
    assert clean(world, retention=3600.0) == []
    clean(world)
    assert not world.catalog.files.exists(participant.version)
    assert sorted(world.rows("t")) == [(0, 0), (1, 1), (7, 0), (8, 0)]


@pytest.mark.parametrize(("by", "purpose", "query", "after"), WHOLE_TABLES)
def test_a_metastore_that_refuses_conditions_is_written_without(
    world: World, by: list[str], purpose: Purpose, query: str, after: Any
) -> None:
    """One that does not speak SQL to its database has none, and says so only when it is called."""
    filled(world, by)
    below = hive_of(world)
    setting = "hive.metastore.try.direct.sql.ddl"
    below._run(lambda store: store.setMetaConf(setting, "false"))
    try:
        world.run("t", world.sql(query), purpose, by=by)
        assert sorted(world.rows("t")) == after
        assert not below._conditions
        dead = world.stage("t", world.sql(query), purpose, by=by)
        before = world.catalog.find(dead.path).stored_stamp
        world.reborn(dead).abort()
        assert world.catalog.find(dead.path).stored_stamp == before
        with pytest.raises(TransactionAborted):
            dead.commit()
        clean(world)
    finally:
        below._conditions = True
        below._run(lambda store: store.setMetaConf(setting, "true"))


def test_a_metastore_that_refuses_conditions_still_refuses_what_another_writer_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world, [])
    below = hive_of(world)
    setting = "hive.metastore.try.direct.sql.ddl"
    participant = world.stage("t", world.sql(QUERY), Purpose.REPLACE_TABLE_AS)
    owner, name = call_of(world, participant)
    call = getattr(owner, name)

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, call)
        world.run("t", world.sql("SELECT 8L AS id, 8L AS k"), Purpose.INSERT_INTO)
        below._run(lambda store: store.setMetaConf(setting, "false"))
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, late)
    try:
        with pytest.raises(WriteConflictError):
            participant.commit()
    finally:
        below._run(lambda store: store.setMetaConf(setting, "true"))
    assert below._conditions
    participant.abort()
    assert sorted(world.rows("t")) == [*OLD, (8, 8)]


def test_a_statement_of_an_older_release_is_published(world: World) -> None:
    """Its document does not say how much it holds."""
    filled(world, [])
    participant = world.stage("t", world.sql(QUERY), Purpose.INSERT_INTO)
    del participant.document["own"]["holds"]
    other = world.reborn(participant)
    other.commit()
    other.finish()
    assert sorted(world.rows("t")) == [*OLD, (7, 0)]


def test_statistics_of_the_old_rows_go_with_the_publish(world: World) -> None:
    filled(world, [])
    world.sql("ANALYZE TABLE t COMPUTE STATISTICS FOR ALL COLUMNS")
    participant = world.stage("t", world.sql(QUERY), Purpose.INSERT_INTO)
    table = world.catalog.find(participant.path)
    assert table.extra["found"].table().stats().get().rowCount().isDefined()
    wanted = replace(table, location=participant.version).with_stamp(participant.transaction_id)
    world.catalog.metastore.point_table(wanted, *participant.document["own"]["holds"], instead_of=table.stored_stamp)
    noted = world.catalog.find(participant.path).extra["found"].table().stats().get()
    assert not noted.rowCount().isDefined()
    assert noted.colStats().isEmpty()
    participant.commit()
    participant.finish()
    assert sorted(world.rows("t")) == [*OLD, (7, 0)]


def test_a_recovery_that_is_refused_does_not_forget_the_driver_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world, [])
    participant = world.stage("t", world.sql(QUERY), Purpose.INSERT_INTO)
    owner, name = call_of(world, participant)
    call = getattr(owner, name)

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, call)
        world.catalog.files.write_json(join(participant.document["inherit"], "_stray"), {})
        survivor = world.reborn(participant)
        with pytest.raises(WriteConflictError):
            survivor.commit()
        survivor.abort()
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, late)
    with pytest.raises(TransactionAborted):
        participant.commit()
    assert sorted(world.rows("t")) == OLD
    clean(world)


def test_what_a_recovery_published_and_took_back_stays_for_the_driver_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world, ["k"])
    participant = world.stage("t", world.sql(QUERY), Purpose.INSERT_INTO)
    owner, name = call_of(world, participant)
    call = getattr(owner, name)

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, call)
        survivor = world.reborn(participant)
        survivor.commit()
        assert survivor.compensate()
        survivor.abort()
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, late)
    participant.commit()
    assert sorted(world.rows("t")) == [*OLD, (7, 0)]


def test_a_second_attempt_does_not_forget_the_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(world, [])
    participant = world.stage("t", world.sql(QUERY), Purpose.REPLACE_TABLE_AS)
    owner, name = call_of(world, participant)
    call, kept = getattr(owner, name), []

    def lost(*arguments: Any, **named: Any) -> Any:
        kept.append((arguments, named))
        raise OSError("The connection is lost, and the call under way.")

    monkeypatch.setattr(owner, name, lost)
    with pytest.raises(OSError):
        participant.commit()
    monkeypatch.setattr(owner, name, call)
    monkeypatch.setattr(participant.publisher.target, "check_inherited", lambda: lost())
    with pytest.raises(OSError):
        participant.commit()
    participant.abort()
    (_, *arguments), named = kept[0]
    with pytest.raises(StampChangedError):
        hive_of(world)._run(lambda store: call(store, *arguments, **named))
    assert sorted(world.rows("t")) == OLD
    clean(world)


@pytest.mark.parametrize("by", [[], ["k"]], ids=["switch", "swap"])
def test_what_came_late_before_the_abort_is_carried_through(world: World, by: list[str]) -> None:
    filled(world, by)
    participant = world.stage("t", world.sql(QUERY), Purpose.REPLACE_TABLE_AS, by=[] if by else by)
    before = participant.table_write.state.old
    participant.commit()
    world.reborn(participant).abort()
    world.reborn(participant).abort()
    assert world.hidden_tables() == []
    assert clean(world, retention=3600.0) == []
    assert world.catalog.files.exists(before.location)
    assert sorted(world.rows("t")) == [(7, 0)]


def test_a_fence_writes_nothing_where_there_are_no_conditions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(world, [])
    dead = world.stage("t", world.sql(QUERY), Purpose.REPLACE_TABLE_AS)
    below = hive_of(world)
    below._run(lambda store: store.setMetaConf("hive.metastore.try.direct.sql.ddl", "false"))
    now, calls = below._alter_now, []

    def counted(*arguments: Any, expected: str | None = None, **named: Any) -> None:
        calls.append(expected)
        now(*arguments, expected=expected, **named)

    monkeypatch.setattr(below, "_alter_now", counted)
    try:
        world.reborn(dead).abort()
    finally:
        below._run(lambda store: store.setMetaConf("hive.metastore.try.direct.sql.ddl", "true"))
    assert calls == [world.catalog.find(dead.path).stored_stamp]
    clean(world)


def test_a_metastore_that_refuses_a_condition_once_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its database may have had a deadlock, of which it says the same."""
    filled(world, [])
    below = hive_of(world)
    participant = world.stage("t", world.sql(QUERY), Purpose.INSERT_INTO)
    alter, seen = below._alter_if, []

    def once(*arguments: Any, **named: Any) -> None:
        seen.append(arguments)
        if len(seen) == 1:
            raise jvm_hive._NoConditionsError
        alter(*arguments, **named)

    monkeypatch.setattr(below, "_alter_if", once)
    participant.commit()
    participant.finish()
    assert len(seen) == 2
    assert below._conditions
    assert sorted(world.rows("t")) == [*OLD, (7, 0)]


def test_a_statement_that_never_called_the_metastore_leaves_nothing(world: World) -> None:
    filled(world, [])
    participant = world.stage("t", world.sql(QUERY), Purpose.INSERT_INTO)
    participant.abort()
    assert not world.catalog.files.exists(participant.version)


def test_an_undecided_statement_of_a_dead_driver_leaves_nothing(world: World) -> None:
    filled(world, [])
    rows = world.sql(QUERY)
    participant = world.offer("t", rows, Purpose.INSERT_INTO)
    participant.begin()
    participant.write(rows)
    survivor = world.reborn(participant)  # the document of before prepare()
    participant.prepare()
    survivor.abort()
    assert not world.catalog.files.exists(participant.version)


def test_an_overwrite_without_rows_is_published_though_its_driver_dies_before_it_says_so(world: World) -> None:
    world.run("t", world.sql("SELECT 1 AS a, 'x' AS d UNION ALL SELECT 2, 'y'"), by=["d"])
    scope, none = OverwriteScope(dynamic=False), world.sql("SELECT 3 AS a, 'x' AS d").where("false")
    first = world.stage("t", none, Purpose.INSERT_OVERWRITE, by=["d"], overwrite=scope)
    first.commit()
    late = world.reborn(first)
    assert late.outcome() is Outcome.PUBLISHED
    late.commit()
    late.finish()
    assert world.rows("t") == []

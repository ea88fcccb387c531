"""Every purpose on unpartitioned and partitioned tables: the rows are right, and only at the publish."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hive.world import World, files_of
from twophase import failpoints
from twophase.catalogs.hive.write import TableWrite
from twophase.errors import TableAlreadyExistsError, WriteConflictError
from twophase.model import Level, ObjectPath, Outcome, OverwriteScope, Purpose
from twophase.spark.jvm import hive as jvm_hive
from twophase.spark.jvm import values
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.metastore.session import SessionMetastore

spark40_first_cases = True

#: Tests of what only a Hive metastore has.
HIVE = pytest.mark.parametrize("shared_world", ["hive"], indirect=True)


@pytest.mark.promise("session-tables", "`CREATE TABLE AS SELECT`, `saveAsTable`, `writeTo(...).create()`: atomic")
def test_create_is_seen_at_the_publish_and_not_before(world: World) -> None:
    df = world.sql("SELECT id FROM range(3)")
    participant = world.stage("t", df)
    assert not world.catalog.table_exists(ObjectPath.of("default", "t"))
    participant.commit()
    assert world.rows("t") == [(0,), (1,), (2,)]
    assert participant.level is Level.ATOMIC
    assert world.sql("DESCRIBE EXTENDED t").where("col_name = 'Type'").first()[1] == "MANAGED"


def test_every_step_may_be_repeated_and_done_by_another_process(world: World) -> None:
    world.run("t", world.sql("SELECT id FROM range(3)"))
    world.run("t", world.sql("SELECT id + 10 AS id FROM range(2)"), Purpose.INSERT_INTO)
    assert world.rows("t") == [(0,), (1,), (10,), (11,), (2,)]


def test_a_query_may_read_the_table_that_it_overwrites(world: World) -> None:
    world.run("t", world.sql("SELECT id FROM range(5)"))
    world.run("t", world.sql("SELECT id * 2 AS id FROM t WHERE id > 2"), Purpose.INSERT_OVERWRITE)
    assert world.rows("t") == [(6,), (8,)]
    world.run("t", world.sql("SELECT id FROM t"), Purpose.INSERT_INTO)
    assert world.rows("t") == [(6,), (6,), (8,), (8,)]


@pytest.mark.promise(
    "session-tables",
    "`REPLACE` that changes types or drops columns: reversible, atomic for Spark (note a)",
)
def test_replace_may_change_all_columns_and_read_the_old_table(world: World) -> None:
    world.run("t", world.sql("SELECT id, cast(id AS string) AS s FROM range(2)"))
    participant = world.run(
        "t", world.sql("SELECT cast(id AS string) AS s, id AS n, 1.5 AS f FROM t"), Purpose.REPLACE_TABLE_AS
    )
    assert [tuple(map(str, row)) for row in world.rows("t")] == [("0", "0", "1.5"), ("1", "1", "1.5")]
    # A Hive metastore refuses columns of other types in one call.
    assert participant.level is (Level.REVERSIBLE if world.is_hive else Level.ATOMIC)


@pytest.mark.promise("session-tables", "`REPLACE`, `saveAsTable` in mode overwrite, columns kept or added: atomic")
def test_replace_with_more_columns_is_one_step(world: World) -> None:
    world.run("t", world.sql("SELECT id FROM range(2)"))
    participant = world.run(
        "t",
        world.sql("SELECT id, 'x' AS s FROM t"),
        Purpose.CREATE_OR_REPLACE_TABLE_AS,
        comment="c",
        properties={"a": "b"},
    )
    assert world.rows("t") == [(0, "x"), (1, "x")]
    assert participant.level is Level.ATOMIC
    definition = world.catalog.load_table(ObjectPath.of("default", "t"))
    assert (definition.comment, definition.properties.get("a")) == ("c", "b")


def test_create_or_replace_makes_a_table_that_was_not_there(world: World) -> None:
    world.run("t", world.sql("SELECT 1 AS a"), Purpose.CREATE_OR_REPLACE_TABLE_AS)
    assert world.rows("t") == [(1,)]


@pytest.mark.promise("session-tables", "`CREATE TABLE AS SELECT`, partitioned: never visible without its partitions")
def test_a_partitioned_table_becomes_visible_with_all_its_partitions(world: World) -> None:
    participant = world.stage("p", world.sql("SELECT id % 3 AS k, id FROM range(6)"), by=["k"])
    assert world.catalog.list_tables("default") == []
    participant.commit()
    participant.finish()
    assert world.partitions("p") == ["k=0", "k=1", "k=2"]
    assert world.rows("p") == [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1), (5, 2)]
    assert participant.level is Level.ATOMIC
    assert world.sql("DESCRIBE EXTENDED p").where("col_name = 'Type'").first()[1] == "MANAGED"


@pytest.mark.promise("session-tables", "`INSERT INTO` existing and new partitions of one table: atomic")
def test_inserts_into_partitions_switch_them_in_one_call(world: World) -> None:
    world.run("p", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=["k"])
    only_new = world.run("p", world.sql("SELECT 7L AS id, 7L AS k"), Purpose.INSERT_INTO)
    mixed = world.run("p", world.sql("SELECT id, id AS k FROM range(1, 3)"), Purpose.INSERT_INTO)
    assert world.rows("p") == [(0, 0), (1, 1), (1, 1), (2, 0), (2, 2), (3, 1), (7, 7)]
    assert (only_new.level, mixed.level) == (Level.ATOMIC, Level.ATOMIC)


@pytest.mark.promise(
    "session-tables",
    "`INSERT OVERWRITE` of the whole table, a static partition, or dynamic partitions: atomic",
)
@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (None, [(9, 1)]),
        (OverwriteScope({}, True), [(0, 0), (2, 0), (9, 1)]),
        (OverwriteScope({"k": "1"}), [(0, 0), (2, 0), (9, 1)]),
    ],
)
def test_overwrite_replaces_its_scope_and_nothing_else(
    world: World, scope: OverwriteScope | None, expected: list[tuple[int, int]]
) -> None:
    world.run("p", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=["k"])
    participant = world.run("p", world.sql("SELECT 9L AS id, 1L AS k"), Purpose.INSERT_OVERWRITE, overwrite=scope)
    assert world.rows("p") == expected
    assert world.partitions("p") == sorted({f"k={row[1]}" for row in expected})
    assert participant.level is Level.ATOMIC


def test_overwrite_of_a_partition_with_no_rows_empties_it(world: World) -> None:
    world.run("p", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=["k"])
    empty = world.sql("SELECT 9L AS id, 1L AS k WHERE false")
    world.run("p", empty, Purpose.INSERT_OVERWRITE, overwrite=OverwriteScope({"k": "1"}))
    assert world.rows("p") == [(0, 0), (2, 0)]


def test_an_insert_of_no_rows_changes_nothing_and_is_published(world: World) -> None:
    world.run("p", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=["k"])
    world.run("p", world.sql("SELECT 9L AS id, 1L AS k WHERE false"), Purpose.INSERT_INTO)
    assert len(world.rows("p")) == 4


def test_partition_values_with_special_characters_and_null(world: World) -> None:
    world.run("p", world.sql("SELECT 1 AS a, 'z/y: é%=#' AS k UNION ALL SELECT 2, NULL"), by=["k"])
    world.run("p", world.sql("SELECT 3 AS a, 'z/y: é%=#' AS k UNION ALL SELECT 4, NULL"), Purpose.INSERT_INTO)
    assert world.rows("p") == [(1, "z/y: é%=#"), (2, None), (3, "z/y: é%=#"), (4, None)]


@pytest.mark.promise(
    "session-tables",
    "`REPLACE` of a partitioned table: atomic; with other columns: reversible (notes b, c)",
)
def test_replace_of_a_partitioned_table(world: World) -> None:
    world.run("p", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=["k"])
    same = world.run("p", world.sql("SELECT id, id AS k FROM range(1, 3)"), Purpose.REPLACE_TABLE_AS, by=["k"])
    assert (world.rows("p"), same.level) == ([(1, 1), (2, 2)], Level.ATOMIC)
    columns = world.run("p", world.sql("SELECT 'x' AS s, id, k FROM p"), Purpose.REPLACE_TABLE_AS, by=["k"])
    assert (world.rows("p"), world.partitions("p")) == ([("x", 1, 1), ("x", 2, 2)], ["k=1", "k=2"])
    keys = world.run("p", world.sql("SELECT s, id, k FROM p"), Purpose.REPLACE_TABLE_AS, by=["s"])
    assert (world.rows("p"), world.partitions("p")) == ([(1, 1, "x"), (2, 2, "x")], ["s=x"])
    none = world.run("p", world.sql("SELECT id FROM p"), Purpose.REPLACE_TABLE_AS)
    assert world.rows("p") == [(1,), (2,)]
    # A Hive metastore takes the columns and the partitions in two calls.
    expected = Level.REVERSIBLE if world.is_hive else Level.ATOMIC
    assert {columns.level, keys.level, none.level} == {expected}


@pytest.mark.promise("session-tables", "several tables in one transaction: reversible")
def test_several_tables_are_reversible(world: World) -> None:
    assert world.together("a", "b") is Level.REVERSIBLE
    assert (world.rows("a"), world.rows("b")) == ([(1,)], [(1,)])


@HIVE
def test_the_metastores_connection_is_used_under_the_lock_of_sparks_client(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, hive = [], hive_of(world)
    plain = jvm_hive._Locked.apply

    def watched(call: jvm_hive._Locked) -> None:
        loader = jvm_hive._method(hive.client, "clientLoader", 0)
        held.append(
            world.spark._jvm.Thread.holdsLock(
                loader.invoke(hive.client, world.spark._sc._gateway.new_array(world.spark._jvm.Object, 0))
            )
        )
        plain(call)

    monkeypatch.setattr(jvm_hive._Locked, "apply", watched)
    world.run("t", world.sql("SELECT id, 1 AS x FROM range(2)"))
    world.run("t", world.sql("SELECT cast(id AS string) AS id, 'y' AS x FROM range(2)"), Purpose.REPLACE_TABLE_AS)
    assert world.rows("t") == [("0", "y"), ("1", "y")]
    assert set(held) == {True}


@pytest.mark.parametrize("by", [[], ["k"]], ids=["plain", "partitioned"])
@pytest.mark.parametrize("columns", ["id, id AS k", "'x' AS s, id, id AS k"], ids=["same columns", "others"])
def test_statistics_of_the_old_rows_go_with_them(world: World, columns: str, by: list[str]) -> None:
    world.run("t", world.sql("SELECT id, id AS k FROM range(2)"), by=by)
    world.sql("ANALYZE TABLE t COMPUTE STATISTICS FOR COLUMNS id")
    assert "2 rows" in statistics(world)
    world.run("t", world.sql(f"SELECT {columns} FROM range(9)"), Purpose.CREATE_OR_REPLACE_TABLE_AS, by=by)
    assert "2 rows" not in statistics(world)


def statistics(world: World) -> str:
    """What Spark tells of a table's, which its plans go by."""
    found = world.sql("DESCRIBE EXTENDED t").where("col_name = 'Statistics'").first()
    return "" if found is None else str(found[1])


@HIVE
def test_an_interrupt_under_the_lock_arrives_as_one(world: World) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jvm_hive._Locked(interrupted)._run(hive_of(world).client)


@HIVE
def test_a_table_belongs_to_who_replaced_it_last(world: World) -> None:
    def given_away(client: Any) -> None:
        table = client.getTable("default", "t")
        table.setOwner("somebody")
        client.alter_table("default", "t", table)

    world.run("t", world.sql("SELECT 1 AS a"))
    me = owner(world)
    hive_of(world)._run(given_away)
    assert owner(world) == "somebody"
    world.run("t", world.sql("SELECT 2 AS a"), Purpose.REPLACE_TABLE_AS)
    assert owner(world) == me


def owner(world: World) -> str:
    """Whose a table is."""
    world.sql("REFRESH TABLE t")
    return str(world.sql("DESCRIBE EXTENDED t").where("col_name = 'Owner'").first()[1])


@HIVE
@pytest.mark.parametrize(
    ("provider", "recipe"), [("parquet", "pointer"), ("csv", "pointer"), ("parquet", "rename"), ("csv", "rename")]
)
def test_a_hive_metastore_has_the_sizes_of_what_was_published(world: World, provider: str, recipe: str) -> None:
    it = world.with_options(recipe=recipe)
    for files, purpose in ((1, Purpose.CREATE_TABLE_AS), (2, Purpose.CREATE_OR_REPLACE_TABLE_AS)):
        it.run("t", it.sql(f"SELECT /*+ REPARTITION({files}) */ id FROM range(9)"), purpose, provider=provider)
        assert sizes(world, "t").get("numFiles") == str(files)


@pytest.mark.promise("cost", "the publish of a session table does not look at the files")
@HIVE
@pytest.mark.parametrize("purpose", [Purpose.CREATE_TABLE_AS, Purpose.CREATE_OR_REPLACE_TABLE_AS], ids=str)
def test_the_publish_does_not_look_at_the_files(world: World, purpose: Purpose) -> None:
    if purpose is not Purpose.CREATE_TABLE_AS:
        world.run("t", world.sql("SELECT id FROM range(9)"))
    participant = world.stage("t", world.sql("SELECT id FROM range(3)"), purpose)
    staged = sizes(world, participant.table_write.hidden.name("table"))
    (Path(participant.version.removeprefix("file:")) / "more.parquet").write_bytes(bytes(1000))
    participant.commit()
    participant.finish()
    assert sizes(world, "t") == staged
    assert set(staged) == {"numFiles", "totalSize"}


@HIVE
@pytest.mark.parametrize("made", ["ours", "stock", "serde"])
@pytest.mark.parametrize("purpose", [Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE], ids=str)
def test_the_publish_of_an_insert_does_not_look_at_the_files(
    world: World, purpose: Purpose, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if made == "ours":
        world.run("t", world.sql("SELECT id FROM range(9)"))
    else:
        how = "USING parquet" if made == "stock" else "STORED AS PARQUET"
        world.sql(f"CREATE TABLE t {how} AS SELECT id FROM range(9)")
    world.sql("ANALYZE TABLE t COMPUTE STATISTICS")
    assert noted(world, "t")["spark.sql.statistics.numRows"] == "9"
    linked = world.with_options(append="links")
    participant = linked.stage("t", world.sql("SELECT /*+ REPARTITION(1) */ 10 + id AS id FROM range(3)"), purpose)
    directory = Path(participant.version.removeprefix("file:"))
    there = [path for path in directory.iterdir() if path.name.endswith(".parquet")]
    more = directory / "more.parquet"
    more.write_bytes(bytes(1000))
    # Spark's own care for statistics comes behind the publish, as behind its own writes.
    monkeypatch.setattr(TableWrite, "announce", lambda write, **_: None)
    participant.commit()
    monkeypatch.undo()
    assert sizes(world, "t") == {
        "numFiles": str(len(there)),
        "totalSize": str(sum(path.stat().st_size for path in there)),
    }
    more.unlink()
    participant.finish()
    kept = [] if purpose is Purpose.INSERT_OVERWRITE else list(range(9))
    assert sorted(world.rows("t")) == [(n,) for n in [*kept, 10, 11, 12]]
    assert not {"spark.sql.statistics.numRows", "numRows", "COLUMN_STATS_ACCURATE"} & set(noted(world, "t"))
    world.drop("t")


def noted(world: World, table: str) -> dict[str, str]:
    """All parameters that the metastore has of a table."""
    found: list[dict[str, str]] = []
    hive_of(world)._run(lambda store: found.append(dict(store.getTable("default", table).getParameters())))
    return found[0]


def sizes(world: World, table: str) -> dict[str, str]:
    """What the metastore has noted of a table's files."""
    noted = values.entries(Jvm(world.spark), hive_of(world).client.getTable("default", table).ignoredProperties())
    return {key: value for key, value in noted.items() if key in ("numFiles", "totalSize")}


def test_a_client_without_the_call_that_says_more_is_told_without(world: World) -> None:
    """As one of Hive 2.0, which no wheel holds: any other object lacks the call, too."""
    client = world.spark._jsparkSession
    assert jvm_hive._kind_of_context(Jvm(world.spark), client) is None


def hive_of(world: World) -> jvm_hive.HiveTables:
    """What is below the session's catalog."""
    store = world.environment.session_metastore
    assert isinstance(store, SessionMetastore)
    assert store._hive is not None
    return store._hive


@pytest.mark.promise("session-tables", "`INSERT INTO`, also of tables that stock Spark created: atomic (note d)")
def test_foreign_managed_tables_are_written_at_level_3(world: World) -> None:
    world.sql("CREATE TABLE f USING parquet AS SELECT id FROM range(2)")
    participant = world.run("f", world.sql("SELECT 5L AS id"), Purpose.INSERT_INTO)
    assert (world.rows("f"), participant.level) == ([(0,), (1,), (5,)], Level.ATOMIC)
    world.sql("INSERT INTO f VALUES (6)")
    world.run("f", world.sql("SELECT id FROM f WHERE id > 4"), Purpose.INSERT_OVERWRITE)
    assert world.rows("f") == [(5,), (6,)]


def test_foreign_partitioned_tables_are_written_at_level_3(world: World) -> None:
    world.sql("CREATE TABLE f USING parquet PARTITIONED BY (k) AS SELECT id, id % 2 AS k FROM range(4)")
    participant = world.run("f", world.sql("SELECT 5L AS id, 1L AS k"), Purpose.INSERT_INTO)
    assert (world.rows("f"), participant.level) == ([(0, 0), (1, 1), (2, 0), (3, 1), (5, 1)], Level.ATOMIC)


def test_a_dropped_foreign_table_leaves_its_place_free(world: World) -> None:
    world.sql("CREATE TABLE f USING parquet AS SELECT id FROM range(2)")
    world.run("f", world.sql("SELECT 5L AS id"), Purpose.INSERT_INTO)
    world.drop("f")
    assert files_of(world.warehouse / "f") == set()
    world.sql("CREATE TABLE f USING parquet AS SELECT id FROM range(1)")
    assert world.rows("f") == [(0,)]


def test_the_loser_of_a_create_touches_nothing_of_the_winner(world: World) -> None:
    df = world.sql("SELECT id FROM range(3)")
    winner, loser = world.stage("t", df), world.stage("t", df)
    winner.commit()
    with pytest.raises(TableAlreadyExistsError):
        loser.commit()
    assert loser.outcome() is Outcome.NOT_PUBLISHED
    loser.abort()
    assert world.rows("t") == [(0,), (1,), (2,)]


@pytest.mark.parametrize("purpose", [Purpose.REPLACE_TABLE_AS, Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE])
@pytest.mark.parametrize("by", [[], ["k"]])
def test_the_loser_of_two_writes_of_one_table_is_refused(world: World, purpose: Purpose, by: list[str]) -> None:
    df = world.sql("SELECT id, id % 2 AS k FROM range(4)")
    world.run("t", df, by=by)
    facts = {"by": by} if purpose is Purpose.REPLACE_TABLE_AS else {}
    winner = world.stage("t", df.where("id > 1"), purpose, **facts)
    loser = world.stage("t", df.where("id < 1"), purpose, **facts)
    winner.commit()
    winner.finish()
    seen = world.rows("t")
    with pytest.raises(WriteConflictError):
        loser.commit()
    assert loser.outcome() is Outcome.NOT_PUBLISHED
    loser.abort()
    assert world.rows("t") == seen


@pytest.mark.parametrize("how", ["made anew", "made anew without a stamp", "published"])
@pytest.mark.parametrize("purpose", [Purpose.INSERT_OVERWRITE, Purpose.REPLACE_TABLE_AS])
def test_a_table_that_another_writer_has_changed_between_the_look_and_the_publish_is_not_replaced(
    world: World, purpose: Purpose, how: str
) -> None:
    """Made anew by a session that is not attached; or published for the first time by one with another timeline."""
    if how == "made anew":
        world.run("t", world.sql("SELECT 1 AS a"))
    else:
        world.sql("CREATE TABLE t USING parquet AS SELECT 1 AS a")
        created = int(time.time())
    late, first = (world.stage("t", world.sql(f"SELECT {n} AS a"), purpose) for n in (2, 3))

    def meanwhile(_: str) -> None:
        failpoints.disarm()
        if how == "published":
            first.commit()
            return
        while how != "made anew" and int(time.time()) == created:  # A metastore counts seconds.
            pass
        other = world.spark.newSession()
        other.sql("DROP TABLE t")
        other.sql("CREATE TABLE t USING parquet AS SELECT 3 AS a")

    failpoints.arm("hive.pointer.publish", meanwhile)
    with pytest.raises(WriteConflictError, match="meanwhile"):
        late.commit()
    late.abort()
    first.finish() if how == "published" else first.abort()
    assert world.rows("t") == [(3,)]


@pytest.mark.parametrize("by", [[], ["k"]], ids=["flat", "partitioned"])
def test_each_write_gives_a_table_another_version_and_nothing_else_does(world: World, by: list[str]) -> None:
    df = world.sql("SELECT id, 1 AS k FROM range(2)")
    participant = world.run("t", df, by=by)
    seen = [world.catalog.table_version(participant.path)]
    for purpose in (Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE):
        world.stage("t", df, purpose).abort()
        assert world.catalog.table_version(participant.path) == seen[-1]
        world.run("t", df, purpose)
        seen.append(world.catalog.table_version(participant.path))
        assert seen[-1] not in seen[:-1]


@pytest.mark.parametrize("purpose", [Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE], ids=str)
def test_a_file_that_is_rewritten_in_place_meanwhile_is_a_conflict(world: World, purpose: Purpose) -> None:
    world.sql("CREATE TABLE f USING parquet AS SELECT id FROM range(2)")
    participant = world.with_options(append="links").stage("f", world.sql("SELECT 5L AS id"), purpose)
    file = next(path for path in (world.warehouse / "f").iterdir() if path.suffix == ".parquet")
    with file.open("r+b") as stream:
        stream.write(b"PAR1")  # As before: only the file's time tells.
    with pytest.raises(WriteConflictError, match="past the metastore"):
        participant.commit()
    participant.abort()
    assert world.rows("f") == [(0,), (1,)]


@pytest.mark.promise("appends", "an append of a session without twophase lands beside those of twophase")
def test_an_append_of_another_writer_lands_beside_ours(world: World) -> None:
    world.sql("CREATE TABLE f USING parquet AS SELECT id FROM range(2)")
    participant = world.stage("f", world.sql("SELECT 5L AS id"), Purpose.INSERT_INTO)
    world.sql("INSERT INTO f VALUES (7)")
    participant.commit()
    participant.finish()
    assert world.rows("f") == [(0,), (1,), (5,), (7,)]


@pytest.mark.promise(
    "external-writers",
    "an append outside twophase to files that a statement links is a conflict, and not lost",
)
def test_an_append_of_another_writer_to_files_that_were_linked_is_a_conflict_and_not_lost(world: World) -> None:
    world.sql("CREATE TABLE f USING parquet AS SELECT id FROM range(2)")
    participant = world.with_options(append="links").stage("f", world.sql("SELECT 5L AS id"), Purpose.INSERT_INTO)
    world.sql("INSERT INTO f VALUES (7)")
    with pytest.raises(WriteConflictError):
        participant.commit()
    participant.abort()
    assert world.rows("f") == [(0,), (1,), (7,)]


@pytest.mark.parametrize("by", [[], ["k"]])
def test_abort_leaves_nothing(world: World, by: list[str]) -> None:
    df = world.sql("SELECT id, id % 2 AS k FROM range(4)")
    for _ in range(2):
        participant = world.stage("t", df, by=by)
        participant.abort()
        participant.abort()
        assert not (world.warehouse / ".twophase" / "t").exists()
    world.run("t", df, by=by)
    before = world.rows("t")
    for purpose in (Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE, Purpose.REPLACE_TABLE_AS):
        facts = {"by": by} if purpose is Purpose.REPLACE_TABLE_AS else {}
        world.reborn(world.stage("t", df.selectExpr("id", "id AS k"), purpose, **facts)).abort()
        assert world.rows("t") == before
        if by:
            assert world.partitions("t") == ["k=0", "k=1"]


@pytest.mark.promise("visibility", "a query planned before a replace never reads a part of the rows")
def test_a_query_planned_before_a_replace_never_reads_a_part_of_the_rows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "SELECT id, id % 3 + {0} AS k, '{0}' AS v FROM range(9)"
    world.run("t", world.sql(rows.format(0)), by=["k"])
    # Each lists the partitions when it runs, and only then.
    planned = [world.sql("SELECT v FROM t") for _ in range(60)]
    seen = []

    def look() -> None:
        seen.append([row.v for row in planned.pop().collect()])

    plain = TableWrite.step

    @contextmanager
    def watched(write: TableWrite, name: str) -> Iterator[None]:
        look()
        with plain(write, name):
            yield
        look()

    monkeypatch.setattr(TableWrite, "step", watched)
    world.run(
        "t",
        world.sql(rows.format(1) + " WHERE id > 0").selectExpr("id AS n", "v", "k"),
        by=["k"],
        purpose=Purpose.REPLACE_TABLE_AS,
    )
    assert all(versions in (["0"] * 9, ["1"] * 8) for versions in seen)
    assert (seen[0], seen[-1]) == (["0"] * 9, ["1"] * 8)
    assert world.partitions("t") == ["k=1", "k=2", "k=3"]


@pytest.mark.promise(
    "external-writers",
    "rows written outside twophase to a new partition are a conflict, and not lost",
)
def test_rows_that_another_writer_adds_to_a_new_partition_are_a_conflict_and_not_lost(world: World) -> None:
    world.sql("CREATE TABLE f (a INT, k INT) USING parquet PARTITIONED BY (k)")
    world.sql("INSERT INTO f VALUES (1, 1)")
    new = world.sql("SELECT * FROM VALUES (2, 1), (3, 2), (4, 3) AS r(a, k)")
    participant = world.stage("f", new, Purpose.INSERT_INTO)
    world.sql("INSERT INTO f VALUES (5, 2)")
    seen = [(1, 1), (5, 2)]
    assert world.rows("f") == seen  # and in no other new partition
    with pytest.raises(WriteConflictError, match="outside twophase"):
        participant.commit()
    participant.abort()
    world.reborn(participant).abort()
    assert world.rows("f") == seen
    assert world.partitions("f") == ["k=1", "k=2"]
    world.run("f", world.sql("SELECT * FROM VALUES (3, 2), (4, 3) AS r(a, k)"), Purpose.INSERT_INTO)
    assert world.rows("f") == [(1, 1), (3, 2), (4, 3), (5, 2)]


@pytest.mark.promise(
    "external-writers",
    "an append outside twophase to what a statement replaces is a conflict, and not lost",
)
@pytest.mark.parametrize("purpose", [Purpose.INSERT_OVERWRITE, Purpose.REPLACE_TABLE_AS], ids=str)
@pytest.mark.parametrize("by", [[], ["k"]])
@pytest.mark.parametrize("recipe", ["pointer", "rename"])
def test_an_append_of_another_writer_to_what_is_replaced_is_a_conflict_and_not_lost(
    world: World, purpose: Purpose, by: list[str], recipe: str
) -> None:
    world = world.with_options(recipe=recipe)
    world.sql("CREATE TABLE f USING parquet" + (" PARTITIONED BY (k)" if by else "") + " AS SELECT 1 AS a, 1 AS k")
    facts = {"by": by} if purpose is Purpose.REPLACE_TABLE_AS else {}
    # Its query reads the table, as one does that puts many small files together.
    rows = world.sql("SELECT /*+ REPARTITION(1) */ * FROM f")
    participant = world.offer("f", rows, purpose, **facts)
    participant.begin()
    participant.write(rows)
    world.sql("INSERT INTO f VALUES (2, 1)")
    with pytest.raises(WriteConflictError, match="past the metastore"):
        participant.prepare()
        participant.commit()
    participant.abort()
    assert world.rows("f") == [(1, 1), (2, 1)]
    world.run("f", world.sql("SELECT a + 1, k FROM f"), purpose, **facts)
    assert len(world.rows("f")) == 2

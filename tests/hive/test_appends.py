"""INSERT INTO: what it costs does not depend on what is there, and appends of several writers all land."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.hive.test_at_once import TEXT
from tests.hive.world import World, files_of
from tests.unmounted import unmounted
from twophase import failpoints
from twophase.catalogs.hive import flattening
from twophase.catalogs.hive.definitions import RECURSIVE
from twophase.catalogs.hive.publish import by_rows
from twophase.catalogs.hive.stamps import STAMP
from twophase.errors import CatalogError, ConfigurationError, WriteConflictError
from twophase.model import Level, Outcome, OverwriteScope, Purpose
from twophase.spark.jvm.hive import HiveTables

INTO, OVERWRITE = Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE
SEVERAL = "SELECT id AS a FROM range(10, 14, 1, 4)"


def location(world: World, table: str = "t") -> Path:
    found = world.catalog.metastore.get_table("default", table)
    assert found is not None
    assert found.location is not None
    return Path(found.location.removeprefix("file:"))


def entries(world: World) -> int:
    return sum(1 for _ in world.warehouse.rglob("*"))


@pytest.mark.promise("session-tables", "`INSERT INTO` of one file adds only that file, in one step: atomic")
def test_each_append_of_one_file_adds_just_that_file_and_is_one_step(world: World) -> None:
    world.run("t", world.sql("SELECT 0L AS a"))
    before = location(world)
    counts = []
    for number in range(1, 5):
        participant = world.run("t", world.sql(f"SELECT {number}L AS a"), INTO)
        assert participant.level is Level.ATOMIC
        counts.append(entries(world))
    assert world.rows("t") == [(n,) for n in range(5)]
    assert location(world) == before
    assert {b - a for a, b in pairwise(counts)} == {2}  # The file and its checksum.


@pytest.mark.promise("session-tables", "`append = directory`, `INSERT INTO` of any number of files: atomic")
def test_an_append_of_several_files_is_one_rename_of_a_directory_where_that_is_wanted(world: World) -> None:
    directory = world.with_options(append="directory")
    directory.run("t", world.sql("SELECT 0L AS a"))
    before = location(world)
    for _ in range(2):
        participant = directory.run("t", world.sql(SEVERAL), INTO)
        assert participant.level is Level.ATOMIC
    assert location(world) == before
    assert len([path for path in before.iterdir() if path.is_dir()]) == 2
    assert world.rows("t") == sorted([(0,), *[(n,) for n in range(10, 14)] * 2], key=repr)
    assert world.sql("SELECT count(*) FROM t WHERE a = 11").collect()[0][0] == 2
    directory.run("t", world.sql("SELECT 7L AS a"), OVERWRITE, overwrite=OverwriteScope())
    assert world.rows("t") == [(7,)]


def test_now_and_then_an_append_brings_all_files_into_one_directory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flattening, "DIRECTORIES", 2)
    directory = world.with_options(append="directory")
    directory.run("t", world.sql("SELECT 0L AS a"))
    for _ in range(2):
        directory.run("t", world.sql(SEVERAL), INTO)
    before = location(world)
    participant = directory.run("t", world.sql(SEVERAL), INTO)
    assert participant.level is Level.ATOMIC
    assert location(world) != before
    assert not [path for path in location(world).iterdir() if path.is_dir()]
    assert len(world.rows("t")) == 13
    directory.run("t", world.sql(SEVERAL), INTO)
    assert len([path for path in location(world).iterdir() if path.is_dir()]) == 1
    assert len(world.rows("t")) == 17


def test_a_table_that_is_read_with_its_subdirectories_gets_directories_by_itself(world: World) -> None:
    world.sql("CREATE TABLE t (a BIGINT) USING parquet OPTIONS (recursiveFileLookup 'true')")
    world.run("t", world.sql(SEVERAL), INTO)
    assert [path for path in location(world).iterdir() if path.is_dir()]
    assert len(world.rows("t")) == 4


def test_a_tables_own_property_says_how_and_a_wrong_one_is_refused(world: World) -> None:
    world.sql("CREATE TABLE t (a BIGINT) USING parquet TBLPROPERTIES ('twophase.append' = 'links')")
    world.run("t", world.sql("SELECT 1L AS a"), INTO)
    assert world.run("t", world.sql("SELECT 2L AS a"), INTO).document["publisher"] == "link files"
    world.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.append' = 'hardlinks')")
    with pytest.raises(ConfigurationError, match="directory or links or files"):
        world.offer("t", world.sql("SELECT 2L AS a"), INTO)
    with pytest.raises(ConfigurationError, match="append"):
        world.with_options(append="hardlinks")


@pytest.mark.promise(
    "session-tables",
    "`INSERT INTO` of several files into a table of more than 2,000: reversible (note d)",
)
def test_several_files_go_in_in_steps_where_many_are_there_and_the_level_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run("t", world.sql(SEVERAL))
    assert world.run("t", world.sql(SEVERAL), INTO).document["publisher"] == "link files"
    monkeypatch.setattr(by_rows, "LINKED_FILES", 7)
    participant = world.run("t", world.sql(SEVERAL), INTO)
    assert participant.level is Level.REVERSIBLE
    assert "one by one" in str(participant.level_reason)
    assert len(world.rows("t")) == 12


@pytest.mark.promise(
    "session-tables", "`INSERT INTO` of several files where no hard links can be made: reversible (note d)"
)
@pytest.mark.parametrize("answer", [errno.EMLINK, errno.EPERM, errno.EXDEV, errno.ENOTSUP])
@pytest.mark.parametrize("by", [[], ["p"]], ids=["flat", "partitioned"])
def test_where_no_more_links_can_be_made_the_files_go_in_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch, answer: int, by: list[str]
) -> None:
    rows = "SELECT id AS a, 1 AS p FROM range(0, 4, 1, 4)"
    world.run("t", world.sql(rows), by=by)
    links = iter(range(2))

    def link(*places: str) -> None:
        if next(links, None) is None:
            raise OSError(answer, os.strerror(answer))
        linked(*places)

    linked = os.link
    monkeypatch.setattr(os, "link", link)
    participant = world.run("t", world.sql(rows), INTO)
    assert participant.level is Level.REVERSIBLE
    assert len(world.rows("t")) == 8


@pytest.mark.parametrize("options", [{}, {"append": "links"}, {"append": "directory"}], ids=str)
@pytest.mark.parametrize("query", ["SELECT {n} AS a", "SELECT {n} + id AS a FROM range(0, 3, 1, 3)"])
def test_two_appends_at_once_both_land(world: World, options: dict[str, str], query: str) -> None:
    """As two blocks do: both are written and prepared before either is published, and prepared again then."""
    world = world.with_options(**options)
    world.run("t", world.sql("SELECT 0L AS a"))
    one, other = (world.sql(query.format(n=f"{n}L")) for n in (10, 20))
    staged = [world.stage("t", df, INTO) for df in (one, other)]
    for participant in staged:
        participant.prepare()
        participant.commit()
        participant.finish()
    assert world.rows("t") == sorted([(0,), *map(tuple, one.collect()), *map(tuple, other.collect())], key=repr)


def test_two_appends_to_one_partition_both_land(world: World) -> None:
    world.run("t", world.sql("SELECT 0 AS a, 1 AS p"), by=["p"])
    frames = [world.sql(f"SELECT {n} AS a, {p} AS p") for n, p in ((1, 1), (2, 1), (3, 9), (4, 9))]
    staged = [world.stage("t", df, INTO) for df in frames]
    for participant in staged:
        participant.prepare()
        participant.commit()
        participant.finish()
    assert world.rows("t") == [(0, 1), (1, 1), (2, 1), (3, 9), (4, 9)]


def test_an_append_goes_to_where_an_overwrite_has_put_the_table_meanwhile(world: World) -> None:
    world.run("t", world.sql("SELECT 0L AS a"))
    append = world.stage("t", world.sql("SELECT 1L AS a"), INTO)
    world.run("t", world.sql("SELECT 9L AS a"), OVERWRITE, overwrite=OverwriteScope())
    append.prepare()
    append.commit()
    append.finish()
    assert world.rows("t") == [(1,), (9,)]


@pytest.mark.parametrize("alone", [False, True])
def test_an_append_that_was_prepared_for_another_place_is_refused_and_leaves_nothing(world: World, alone: bool) -> None:
    world.run("t", world.sql("SELECT 0L AS a"))
    append = world.stage("t", world.sql("SELECT 1L AS a"), INTO, autocommit=alone)
    world.run("t", world.sql("SELECT 9L AS a"), OVERWRITE, overwrite=OverwriteScope())
    with pytest.raises(WriteConflictError):
        append.commit()
    assert append.outcome() is Outcome.NOT_PUBLISHED
    append.abort()
    assert world.rows("t") == [(9,)]
    assert not any(append.transaction_id in name for name in files_of(world.warehouse))


@pytest.mark.parametrize("change", ["DROP TABLE t", "ALTER TABLE t SET SERDEPROPERTIES ('mergeSchema' = 'true')"])
def test_an_append_to_a_table_that_was_dropped_or_altered_before_the_publish_leaves_nothing(
    world: World, change: str
) -> None:
    world.run("t", world.sql("SELECT 0L AS a"))
    before = location(world)
    append = world.stage("t", world.sql("SELECT 1L AS a"), INTO, autocommit=True)
    world.sql(change)
    with pytest.raises(WriteConflictError):
        append.commit()
    assert append.outcome() is Outcome.NOT_PUBLISHED
    append.abort()
    assert before.exists() == ("DROP" not in change)
    assert not any(append.transaction_id in name for name in files_of(world.warehouse))


class _Died(BaseException):
    """The driver's end."""


def _die(_: str) -> None:
    raise _Died


@pytest.mark.promise("killed-driver", "an append that landed in a table that others have changed is rolled back")
@pytest.mark.parametrize(
    ("made", "changed", "query"),
    [
        ("(a BIGINT)", ["DROP TABLE t", "CREATE TABLE t (a STRING, b INT) USING parquet"], "SELECT 1L AS a"),
        ("(a BIGINT)", ["ALTER TABLE t SET LOCATION '{other}'"], "SELECT 1L AS a"),
        (
            "(a BIGINT, p INT) {by}",
            ["DROP TABLE t", "CREATE TABLE t (a STRING, p INT) USING parquet {by}", "ALTER TABLE t ADD {p}"],
            "SELECT 1L AS a, 7 AS p",
        ),
        (
            "(a BIGINT, p INT) {by}",
            ["ALTER TABLE t PARTITION (p = 7) SET LOCATION '{other}'"],
            "SELECT 1L AS a, 7 AS p",
        ),
    ],
    ids=["created anew", "elsewhere", "partitioned anew", "partition elsewhere"],
)
def test_an_append_that_landed_in_a_changed_table_is_not_published(
    world: World, tmp_path: Path, made: str, changed: list[str], query: str
) -> None:
    by = {"by": "PARTITIONED BY (p)", "p": "PARTITION (p = 7)"}
    facts = {"other": tmp_path / "other", **by}
    columns, _, more = made.format(**facts).partition(")")
    world.sql(f"CREATE TABLE t {columns}) USING parquet {more}")
    if "BY" in more:
        world.sql("ALTER TABLE t ADD PARTITION (p = 7)")
    append, before = world.stage("t", world.sql(query), INTO, autocommit=True), location(world)
    failpoints.arm("hive.append.file_in", lambda _: [world.sql(text.format(**facts)) for text in changed] and None)
    failpoints.arm("hive.append.add_partitions", _die)
    with pytest.raises(_Died):
        append.commit()
    failpoints.disarm()
    found = world.reborn(append)
    assert found.outcome() is Outcome.NOT_PUBLISHED
    found.abort()
    assert world.rows("t") == []
    assert not any(append.transaction_id in name for name in files_of(world.warehouse))
    if "t SET LOCATION" in changed[0]:
        world.sql(f"ALTER TABLE t SET LOCATION '{before}'")


@pytest.mark.parametrize("by", ["", "PARTITIONED BY (p)"])
def test_an_append_whose_driver_dies_behind_its_last_step_is_published(world: World, by: str) -> None:
    world.sql(f"CREATE TABLE t (a BIGINT, p INT) USING parquet {by}")
    if by:
        world.sql("ALTER TABLE t ADD PARTITION (p = 7)")
    append = world.stage("t", world.sql("SELECT 1L AS a, 7 AS p"), INTO, autocommit=True)
    failpoints.arm("hive.append.mark", _die)
    with pytest.raises(_Died):
        append.commit()
    failpoints.disarm()
    found = world.reborn(append)
    assert found.outcome() is Outcome.PUBLISHED
    found.commit()
    found.finish()
    assert world.rows("t") == [(1, 7)]


@pytest.mark.parametrize("way", ["flat", "partitioned", "gathered"])
def test_an_append_whose_rows_another_writer_has_linked_before_its_recovery_is_published_and_not_undone(
    world: World, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer with another timeline: a retry of what looks rolled back would add the rows twice."""
    if way == "gathered":
        monkeypatch.setattr(flattening, "DIRECTORIES", 1)
        world = world.with_options(append="directory")
    world.run("t", world.sql("SELECT 0L AS a, 7 AS p"), by=["p"] if way == "partitioned" else [])
    rows = "SELECT id AS a, 7 AS p FROM range({0}, {0} + 3, 1, 3)"
    query = rows.format(1) if way == "gathered" else "SELECT 1L AS a, 7 AS p"
    append = world.stage("t", world.sql(query), INTO, autocommit=True)
    failpoints.arm("hive.append.mark", _die)
    with pytest.raises(_Died):
        append.commit()
    failpoints.disarm()
    world.run("t", world.sql(rows.format(10)), INTO)
    found, there = world.reborn(append), world.rows("t")
    assert (1, 7) in there
    assert found.outcome() is Outcome.PUBLISHED
    found.commit()
    assert not found.compensate()
    assert found.outcome() is Outcome.PUBLISHED
    found.finish()
    assert world.rows("t") == there


def test_an_overwrite_of_a_table_that_changed_before_its_publish_is_refused_and_leaves_nothing(world: World) -> None:
    world.run("t", world.sql("SELECT 0L AS a"))
    staged = [
        world.stage("t", world.sql(f"SELECT {n}L AS a"), OVERWRITE, overwrite=OverwriteScope(), autocommit=True)
        for n in (1, 2)
    ]
    staged[0].commit()
    staged[0].finish()
    with pytest.raises(WriteConflictError):
        staged[1].commit()
    assert staged[1].outcome() is Outcome.NOT_PUBLISHED
    staged[1].abort()
    assert world.rows("t") == [(1,)]


@pytest.mark.parametrize("change", ["ADD COLUMNS (b INT)", "SET TBLPROPERTIES ('x' = '1')"])
def test_an_overwrite_takes_back_no_alter_that_another_application_makes_during_its_publish(
    world: World, change: str
) -> None:
    world.run("t", world.sql("SELECT 0L AS a"))
    overwrite = world.stage("t", world.sql("SELECT 1L AS a"), OVERWRITE, overwrite=OverwriteScope(), autocommit=True)
    failpoints.arm("hive.pointer.publish", lambda _: world.sql(f"ALTER TABLE t {change}"))
    overwrite.commit()
    overwrite.finish()
    world.spark.catalog.refreshTable("t")
    table = world.catalog.metastore.get_table("default", "t")
    assert table is not None
    assert "b" in table.schema.names or "x" in table.properties


@pytest.mark.parametrize("shared_world", ["hive"], indirect=True)
def test_the_option_of_a_first_directory_takes_back_nothing_that_another_application_publishes_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run("t", world.sql("SELECT 0L AS a"))
    store, plain = world.catalog.metastore, HiveTables._alter_if

    def overtaken(tables: HiveTables, expected: str, client: Any, *facts: Any, **how: Any) -> None:
        monkeypatch.undo()
        other = client.getTable("default", "t")
        other.putToParameters(STAMP, "another")
        other.putToParameters("x", "1")
        client.alter_table("default", "t", other)
        plain(tables, expected, client, *facts, **how)

    monkeypatch.setattr(HiveTables, "_alter_if", overtaken)
    store.set_option("default", "t", RECURSIVE, "true")
    table = store.get_table("default", "t")
    assert table is not None
    assert (table.stamp, table.properties.get("x"), table.options[RECURSIVE]) == ("another", "1", "true")


@pytest.mark.parametrize("query", ["SELECT 1L AS a", SEVERAL])
@pytest.mark.parametrize("mode", ["directory", "links"])
def test_an_append_is_undone_wholly(world: World, query: str, mode: str) -> None:
    world = world.with_options(append=mode)
    world.run("t", world.sql("SELECT 0L AS a"))
    participant = world.stage("t", world.sql(query), INTO)
    participant.commit()
    assert len(world.rows("t")) > 1
    other = world.reborn(participant)
    assert other.compensate()
    assert other.outcome() is Outcome.NOT_PUBLISHED
    other.abort()
    assert world.rows("t") == [(0,)]


@pytest.mark.parametrize("query", ["SELECT {n}L AS a", "SELECT {n} + id AS a FROM range(0, 3, 1, 3)"])
@pytest.mark.parametrize("mode", ["directory", "links", "files"])
def test_two_appends_of_one_transaction_are_read_in_it_and_land_together(world: World, query: str, mode: str) -> None:
    world = world.with_options(append=mode)
    world.run("t", world.sql("SELECT 0L AS a"))
    first = world.stage("t", world.sql(query.format(n="10")), INTO)
    second = world.stage("t", world.sql(query.format(n=20)), INTO, base=first)
    source = second.read_source()
    assert source is not None
    read = {row.a for row in world.spark.read.format("parquet").load(source.location).collect()}
    world.run("t", world.sql("SELECT 99L AS a"), INTO)  # Another transaction's.
    second.prepare()
    second.commit()
    second.finish()
    first.abort()
    assert {row.a for row in world.spark.table("t").collect()} == read | {99}
    assert world.spark.table("t").count() == len(read) + 1


@pytest.mark.parametrize("shared_world", ["hive"], indirect=True)
@pytest.mark.parametrize("fails", [False, True])
def test_files_that_lie_in_the_directory_of_a_new_partition_are_replaced_as_hive_does(
    world: World, fails: bool
) -> None:
    """By the files of the append, where the table is not one of Spark's own formats."""
    world = world.with_options(append="files")
    facts: dict[str, Any] = {"provider": "hive", "serde": TEXT, "by": ["p"]}
    world.run("t", world.sql("SELECT 1 AS a, 1 AS p"), **facts)
    directory = location(world) / "p=7"
    directory.mkdir()
    (directory / "old").write_text("70\n")
    participant = world.stage("t", world.sql("SELECT 71 AS a, 7 AS p"), INTO, **facts)
    if fails:
        failpoints.arm("hive.append.back_up_file", "error_after", nth=1)
        with pytest.raises(failpoints.FailpointError):
            participant.commit()
        failpoints.disarm()
        participant.abort()
        assert world.rows("t") == [(1, 1)] and files_of(directory) == {"old"}
        return
    participant.commit()
    participant.finish()
    assert world.rows("t") == [(1, 1), (71, 7)]


@pytest.mark.promise("session-tables", "no row is added to a local table whose directory is not mounted", detail=True)
@pytest.mark.parametrize("rows", ["SELECT 1L AS a", SEVERAL])
def test_no_row_is_added_while_the_warehouse_is_not_mounted(world: World, rows: str) -> None:
    """They would be in another directory, which nobody sees once it is mounted; of a new version, the old ones, too."""
    world.run("t", world.sql("SELECT 0L AS a"))
    participant = world.offer("t", world.sql(rows), INTO)
    with unmounted(world.warehouse):
        participant.begin()
        with pytest.raises(CatalogError, match=r"default\.t was not written: its directory .* Is its file system"):
            participant.write(world.sql(rows))
            participant.prepare()
        participant.abort()
    assert world.rows("t") == [(0,)]
    world.run("t", world.sql("SELECT 1L AS a"), INTO)
    assert world.rows("t") == [(0,), (1,)]


@pytest.mark.promise("session-tables", "no write of a local table whose directory is not mounted begins", detail=True)
@pytest.mark.parametrize("purpose", [INTO, Purpose.INSERT_OVERWRITE, Purpose.REPLACE_TABLE_AS])
@pytest.mark.parametrize("partitions", [(), ("k",)])
def test_no_write_begins_while_the_warehouse_is_not_mounted(
    world: World, purpose: Purpose, partitions: tuple[str, ...]
) -> None:
    """What it would publish would be hidden once the warehouse is mounted."""
    rows = world.sql("SELECT 1L AS a, 2 AS k")
    world.run("t", rows, by=partitions)
    with unmounted(world.warehouse), pytest.raises(CatalogError, match=r"t was not written: .* is gone.*mkdir -p"):
        world.offer("t", rows, purpose, by=partitions)
    assert world.rows("t") == [(1, 2)]
    world.run("t", rows, INTO, by=partitions)
    assert world.rows("t") == [(1, 2), (1, 2)]

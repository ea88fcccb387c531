"""What is left of dead transactions and replaced versions goes in time, and nothing else does."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hive.world import World, files_of
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.metastore import Metastore
from twophase.errors import CatalogError
from twophase.model import ObjectPath, OverwriteScope, Purpose


def clean(world: World, *, retention: float = 0.0, live: frozenset[str] = frozenset()) -> list[str]:
    """Run ``twophase clean``; the kinds of what it removed."""
    return world.clean(retention=retention, live=live)


@pytest.mark.parametrize("by", [[], ["k"]])
def test_replaced_versions_stay_until_their_retention_ends(world: World, by: list[str]) -> None:
    world.run("t", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=by)
    world.run("t", world.sql("SELECT id, id % 2 AS k FROM range(2)"), Purpose.REPLACE_TABLE_AS, by=by)
    world.run("t", world.sql("SELECT 9L AS id, 0L AS k"), Purpose.INSERT_INTO)
    before = world.rows("t")
    assert clean(world, retention=3600.0) == []
    kinds = clean(world)
    assert set(kinds) == {"version"}
    assert world.rows("t") == before == [(0, 0), (1, 1), (9, 0)]
    assert clean(world) == []


def test_a_version_whose_partitions_are_all_replaced_is_marked_once_and_goes_as_a_whole(world: World) -> None:
    place = world.warehouse / ".twophase" / "w"
    world.run("w", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=["k"])
    world.run("w", world.sql("SELECT 7L AS id, 5L AS k"), Purpose.INSERT_INTO)
    published = world.run("w", world.sql("SELECT 9L AS id, 0L AS k"), Purpose.INSERT_OVERWRITE)
    assert len(list(place.glob(f"*/{layout.SUPERSEDED_FILE}"))) == len(list(place.rglob(layout.SUPERSEDED_FILE))) == 2
    assert world.undone(published)
    assert list(place.rglob(layout.SUPERSEDED_FILE)) == []
    assert len(world.rows("w")) == 5
    world.reborn(published).abort()
    world.run("w", world.sql("SELECT 9L AS id, 0L AS k"), Purpose.INSERT_OVERWRITE)
    assert clean(world) == ["version", "version"]
    assert world.rows("w") == [(9, 0)]
    world.drop("w")


def test_staging_of_dead_transactions_goes_and_of_live_ones_stays(world: World) -> None:
    dead = world.stage("p", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=["k"])
    assert clean(world, live=frozenset({dead.transaction_id})) == []
    assert set(clean(world)) == {"staging", "metadata"}
    assert world.hidden_tables() == []
    assert not (world.warehouse / ".twophase" / "p").exists()


def test_a_directory_whose_stamp_was_being_written_goes_without_files_of_others(tmp_path: Path, world: World) -> None:
    for name, stays in ((f".{'0a' * 16}.part", False), (".other.part", True)):
        (place := tmp_path / name).mkdir()
        (place / name).touch()
        world.catalog.store.remove_half_made(str(place))
        assert place.exists() is stays


def test_foreign_files_are_never_a_leftover(world: World) -> None:
    foreign = world.warehouse / ".twophase" / "t" / "mine"
    foreign.mkdir(parents=True)
    (foreign / "precious.txt").write_text("mine")
    world.run("t", world.sql("SELECT 1 AS a"))
    assert clean(world) == []
    assert files_of(foreign) == {"precious.txt"}
    (foreign / "precious.txt").unlink()
    foreign.rmdir()


def test_a_file_that_came_after_the_retirement_is_not_removed(world: World) -> None:
    world.sql("CREATE TABLE f USING parquet AS SELECT id FROM range(2)")
    world.run("f", world.sql("SELECT 5L AS id"), Purpose.INSERT_OVERWRITE)
    (world.warehouse / "f" / "late.txt").write_text("mine")
    clean(world)
    assert files_of(world.warehouse / "f") == {"late.txt"}
    (world.warehouse / "f" / "late.txt").unlink()


def test_a_directory_that_is_replaced_again_stays_for_its_retention_and_then_goes_with_all_its_files(
    world: World,
) -> None:
    overwrite = {"by": ["k"], "overwrite": OverwriteScope({"k": "1"})}
    world.sql("CREATE TABLE t (id INT, k INT) USING parquet PARTITIONED BY (k)")
    world.sql("INSERT INTO t VALUES (1, 1)")
    world.run("t", world.sql("SELECT 2 AS id, 1 AS k"), Purpose.INSERT_OVERWRITE, **overwrite)
    directory = world.warehouse / "t" / "k=1"
    mark = directory / layout.SUPERSEDED_FILE
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "since": 0.0}))
    world.sql(f"ALTER TABLE t PARTITION (k = 1) SET LOCATION '{directory}'")
    world.sql("INSERT INTO t VALUES (3, 1)")
    world.run("t", world.sql("SELECT 4 AS id, 1 AS k"), Purpose.INSERT_OVERWRITE, **overwrite)
    held = files_of(directory)
    clean(world, retention=3600.0)
    assert files_of(directory) == held
    clean(world)
    assert (world.rows("t"), directory.exists()) == ([(4, 1)], False)


def test_a_version_in_use_is_not_removed_even_when_asked(world: World) -> None:
    staged = world.stage("t", world.sql("SELECT 1 AS a"))
    mine = [r for r in world.catalog.leftovers() if r.transaction_id == staged.transaction_id]
    (leftover,) = [r for r in mine if r.kind == "staging"]
    staged.commit()
    with pytest.raises(CatalogError, match="in use"):
        world.catalog.remove_leftover(leftover)
    staged.finish()
    assert world.rows("t") == [(1,)]


def test_a_backup_of_a_table_is_not_a_leftover(world: World) -> None:
    if not world.is_hive:
        assert world.catalog.metastore.changes_partition_columns  # nothing is ever set aside there
        return
    world.run("t", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=["k"])
    swap = world.stage("t", world.sql("SELECT id, id % 2 AS k FROM range(2)"), Purpose.REPLACE_TABLE_AS)
    store = world.catalog.metastore
    backup = layout.hidden_name(layout.BACKUP, swap.transaction_id, swap.document["ordinal"])
    store.rename_table("default", "t", backup, kind="EXTERNAL")
    assert {r.kind for r in world.catalog.leftovers()} == {"staging", "metadata"}
    clean(world)
    swap.abort()
    assert len(world.rows("t")) == 4
    assert world.sql("DESCRIBE EXTENDED t").where("col_name = 'Type'").first()[1] == "MANAGED"


def test_a_renamed_table_keeps_its_rows(world: World) -> None:
    world.run("t", world.sql("SELECT 1 AS a"))
    world.catalog.rename_table(ObjectPath.of("default", "t"), ObjectPath.of("default", "u"))
    assert world.rows("u") == [(1,)]
    assert clean(world) == []
    assert world.rows("u") == [(1,)]


#: Calls whose cost grows with what a statement does not touch.
LISTING = {"list_tables", "located_tables", "list_partitions", "partition_locations"}


class Counting:
    """Counts the calls of a metastore."""

    def __init__(self, store: Metastore) -> None:
        self._store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        found = getattr(self._store, name)
        if callable(found) and name != "canonical":  # That asks nobody.
            self.calls.append(name)
        return found


@pytest.mark.parametrize("at_once", [1, 1000])
def test_a_look_at_many_tables_finds_what_a_look_at_each_does(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("twophase.spark.jvm.hive._AT_ONCE", at_once)
    world.sql(f"CREATE TABLE e (a INT, k STRING) USING parquet PARTITIONED BY (k) LOCATION '{tmp_path / 'a b%'}'")
    world.sql("INSERT INTO e VALUES (1, 'x y%'), (2, NULL)")
    world.sql("CREATE VIEW v AS SELECT 1 AS a")
    world.run("t", world.sql("SELECT 1 AS a, 'x' AS k"), by=["k"])
    world.run("u", world.sql("SELECT 1 AS a"))
    store = world.catalog.metastore
    found = store.located_tables("default")
    assert sorted(found, key=repr) == sorted(Metastore.located_tables(store, "default"), key=repr)
    assert {table.name: table.kind for table in found} == {"e": "EXTERNAL", "t": "MANAGED", "u": "MANAGED", "v": "VIEW"}
    for table in found:
        assert store.partition_locations(table) == Metastore.partition_locations(store, table)
    names = ["e", "missing", "t", "u", "v"]
    assert sorted(store.find_located("default", names), key=repr) == sorted(found, key=repr)
    assert store.find_located("missing", names) == []
    paths = [ObjectPath.of(database, name) for database in ("missing", "default") for name in names]
    assert world.catalog.table_versions(paths) == [world.catalog.table_version(path) for path in paths]
    world.sql("DROP VIEW v")


@pytest.mark.promise("cost", "a statement on a session table lists no tables, nor partitions that it does not write")
@pytest.mark.parametrize("purpose", [Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE, Purpose.CREATE_TABLE_AS])
def test_a_statement_lists_no_tables_and_no_partitions_that_it_does_not_write(
    world: World, purpose: Purpose, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run("other", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=["k"])
    world.run("t", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=["k"])
    counting = Counting(world.catalog.metastore)
    only = OverwriteScope(dynamic=True) if purpose is Purpose.INSERT_OVERWRITE else None
    with monkeypatch.context() as patched:
        patched.setattr(world.catalog.store, "_metastore", counting)
        name = "t" if purpose.inserts else "new"
        world.run(name, world.sql("SELECT 9L AS id, 1L AS k"), purpose, by=["k"], overwrite=only)
    assert not LISTING & set(counting.calls)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_dropped_table_is_looked_at_alone(world: World, replaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run("other", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=["k"])
    world.run("t", world.sql("SELECT 1 AS a"))
    world.run("t", world.sql("SELECT 1 AS a"), Purpose.INSERT_INTO)
    if replaced:
        world.run("t", world.sql("SELECT 1 AS a"), Purpose.REPLACE_TABLE_AS)
    counting = Counting(world.catalog.metastore)
    with monkeypatch.context() as patched:
        patched.setattr(world.catalog.store, "_metastore", counting)
        world.catalog.drop_table(ObjectPath.of("default", "t"))
    assert not LISTING & set(counting.calls)
    assert len(counting.calls) <= 6, counting.calls
    world.sql("CREATE TABLE t (a INT) USING parquet")
    assert world.rows("t") == []


def test_rows_that_a_dropped_table_leaves_stay_for_the_table_of_another_owner(world: World) -> None:
    world.sql("CREATE TABLE t USING parquet AS SELECT 1 AS a")
    world.run("t", world.sql("SELECT 2 AS a"), Purpose.INSERT_OVERWRITE)
    world.sql("CREATE DATABASE theirs")
    world.sql(f"CREATE TABLE theirs.kept (a INT) USING parquet LOCATION '{world.warehouse / 't'}'")
    world.sql("DROP TABLE t")
    world.catalog.table_dropped(ObjectPath.of("default", "t"))
    world.clean()
    assert world.rows("theirs.kept") == [(1,)]
    world.sql("DROP TABLE theirs.kept")
    world.sql("DROP DATABASE theirs")
    world.clean()
    assert not (world.warehouse / "t").exists()


@pytest.mark.parametrize("purpose", [Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE])
def test_the_publish_makes_as_many_metastore_calls_for_many_partitions_as_for_few(
    world: World, purpose: Purpose, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    for partitions in (2, 12):
        world.drop("t")
        df = world.sql(f"SELECT id, id % {partitions} AS k FROM range(12)")
        if purpose.inserts:
            world.run("t", df, by=["k"])
        participant = world.stage("t", df, purpose, **({} if purpose.inserts else {"by": ["k"]}))
        counting = Counting(world.catalog.metastore)
        with monkeypatch.context() as patched:
            patched.setattr(world.catalog.store, "_metastore", counting)
            participant.commit()
        participant.finish()
        counted.append(counting.calls)
    assert counted[0] == counted[1]


def test_a_path_with_spaces_and_letters_of_other_scripts(world: World, tmp_path: Path) -> None:
    place = tmp_path / "mit Leerzeichen é%20"
    world.run("e", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=["k"], location=str(place))
    world.run("e", world.sql("SELECT 5L AS id, 1L AS k"), Purpose.INSERT_INTO)
    assert len(world.rows("e")) == 5
    assert place.is_dir()


@pytest.mark.parametrize("options", [{}, {"recipe": "rename"}], ids=["pointer", "rename"])
def test_an_old_table_that_waits_aside_goes_even_when_another_writer_holds_the_name(
    world: World, options: dict[str, str]
) -> None:
    it = world.with_options(**options)
    it.run("t", it.sql("SELECT id, id % 2 AS k FROM range(4)"), by=["k"])
    first = it.stage("t", it.sql("SELECT id, 'a' AS part FROM range(2)"), Purpose.REPLACE_TABLE_AS, by=["part"])
    first.commit()
    second = it.stage("t", it.sql("SELECT id AS other, 'b' AS p FROM range(1)"), Purpose.REPLACE_TABLE_AS, by=["p"])
    second.commit()
    first.finish()
    second.finish()
    assert world.rows("t") == [(0, "b")]
    assert world.hidden_tables() == []


@pytest.mark.parametrize("moment", ["located_tables", "database_location"])
def test_a_database_that_is_dropped_while_clean_looks_stops_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    world.run("t", world.sql("SELECT 1 AS a"))
    world.run("t", world.sql("SELECT 2 AS a"), Purpose.REPLACE_TABLE_AS)
    world.sql("CREATE DATABASE doomed")
    asked: list[str] = []
    store = world.catalog.metastore
    plain = getattr(store, moment)

    def drop_first(database: str) -> Any:
        if database == "doomed" and not asked:
            asked.append(database)
            world.sql("DROP DATABASE doomed")
        return plain(database)

    monkeypatch.setattr(store, moment, drop_first)
    assert [leftover.kind for leftover in world.catalog.leftovers()] == []
    assert asked == ["doomed"]
    assert clean(world) == ["version"]
    assert world.rows("t") == [(2,)]


class Crossings(logging.Handler):
    """Counts what Python asks of the JVM: Py4J logs each command that it sends."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        told = record.getMessage()
        # But for what it lets go of, which it does whenever that is collected.
        self.count += told.startswith("Command to send: ") and not told.startswith("Command to send: m\n")


@contextmanager
def counted_crossings() -> Iterator[Crossings]:
    py4j = logging.getLogger("py4j.clientserver")
    before, found = (py4j.level, py4j.propagate), Crossings()
    py4j.addHandler(found)
    py4j.propagate = False
    py4j.setLevel(logging.DEBUG)
    try:
        yield found
    finally:
        py4j.setLevel(before[0])
        py4j.propagate = before[1]
        py4j.removeHandler(found)


@pytest.mark.promise("cost", "`clean` asks as often beside many partitions as beside few", detail=True)
def test_clean_asks_as_often_beside_many_partitions_as_beside_few(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    crossed = []
    world.sql("CREATE TABLE beside (a INT, k INT) USING parquet PARTITIONED BY (k)")
    clean(world)
    for first, last in ((0, 4), (4, 204)):
        parts = " ".join(f"PARTITION (k = {k})" for k in range(first, last))
        world.sql(f"ALTER TABLE beside ADD {parts}")
        world.run("t", world.sql("SELECT 1 AS a"))
        world.run("t", world.sql("SELECT 2 AS a"), Purpose.REPLACE_TABLE_AS)
        counting = Counting(world.catalog.metastore)
        with monkeypatch.context() as patched, counted_crossings() as crossings:
            patched.setattr(world.catalog.store, "_metastore", counting)
            assert clean(world) == ["version"]
        asked.append(counting.calls)
        crossed.append(crossings.count)
        world.drop("t")
    assert asked[0] == asked[1]
    assert "list_partitions" not in asked[0]
    assert 0 < crossed[1] <= crossed[0], crossed


@pytest.mark.promise("cost", "`clean` reads no partition where nothing could be removed", detail=True)
@pytest.mark.parametrize("left", ["nothing", "a live transaction", "within its retention"])
def test_clean_reads_no_partition_where_nothing_could_go(
    world: World, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    shutil.rmtree(world.warehouse / ".twophase", ignore_errors=True)  # of tables that Spark has dropped
    world.run("beside", world.sql("SELECT id, id % 2 AS k FROM range(4)"))
    world.sql("CREATE TABLE parts (a INT, k INT) USING parquet PARTITIONED BY (k)")
    world.run("t", world.sql("SELECT 1 AS a"))
    if left == "within its retention":
        world.run("t", world.sql("SELECT 2 AS a"), Purpose.REPLACE_TABLE_AS)
    staged = [world.stage("u", world.sql("SELECT 1 AS a"))] if left == "a live transaction" else []
    monkeypatch.setattr(world.environment, "retention", 3600.0)
    counting = Counting(world.catalog.metastore)
    with monkeypatch.context() as patched:
        patched.setattr(world.catalog.store, "_metastore", counting)
        assert world.catalog.leftovers(live_transactions=frozenset(one.transaction_id for one in staged)) == []
    assert "located_tables" in counting.calls
    assert "partition_locations" not in counting.calls
    for one in staged:
        one.abort()
    monkeypatch.undo()
    clean(world)


@pytest.mark.promise("clean", "a partition, wherever it is, protects the directory that contains it")
def test_a_partition_anywhere_keeps_what_it_lies_in(world: World, tmp_path: Path) -> None:
    world.run("t", world.sql("SELECT 1 AS a"))
    found = world.catalog.metastore.get_table("default", "t")
    assert found is not None
    world.run("t", world.sql("SELECT 2 AS a"), Purpose.REPLACE_TABLE_AS)
    world.sql(
        f"CREATE TABLE theirs (a INT, k STRING) USING parquet PARTITIONED BY (k) LOCATION '{tmp_path / 'theirs'}'"
    )
    world.sql(f"ALTER TABLE theirs ADD PARTITION (k = 'x') LOCATION '{found.location}'")
    assert clean(world) == []
    assert world.rows("theirs") == [(1, "x")]
    world.sql("ALTER TABLE theirs DROP PARTITION (k = 'x')")
    assert clean(world) == ["version"]


def test_a_fault_of_the_metastore_while_clean_looks_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(database: str) -> list[str]:
        raise CatalogError(f"no answer about {database}")

    monkeypatch.setattr(world.catalog.metastore, "located_tables", fault)
    with pytest.raises(CatalogError, match="no answer about default"):
        world.catalog.leftovers()

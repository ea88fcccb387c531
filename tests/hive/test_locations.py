"""Tables whose files stay at one location: LOCATION, EXTERNAL tables, and the recipe ``rename``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hive.test_housekeeping import clean
from tests.hive.world import World, files_of
from twophase.catalogs.files import Files, same
from twophase.catalogs.hive import layout
from twophase.errors import AtomicityNotSupportedError, CatalogError, WriteConflictError
from twophase.model import Level, ObjectPath, Outcome, OverwriteScope, Purpose
from twophase.spark.jvm.partitions import path_of, uri_of


def kind_of(world: World, table: str) -> str:
    return str(world.sql(f"DESCRIBE EXTENDED {table}").where("col_name = 'Type'").first()[1])


@pytest.mark.promise("external-tables", "`CREATE TABLE AS SELECT` with a `LOCATION`: atomic")
@pytest.mark.parametrize("by", [[], ["k"]])
def test_create_with_a_location_is_external_and_its_files_are_there(
    world: World, tmp_path: Path, by: list[str]
) -> None:
    df = world.sql("SELECT id, id % 2 AS k FROM range(4)")
    participant = world.run("e", df, by=by, location=str(tmp_path / "here"))
    assert (world.rows("e"), participant.level) == ([(0, 0), (1, 1), (2, 0), (3, 1)], Level.ATOMIC)
    assert kind_of(world, "e") == "EXTERNAL"
    # As in stock Spark, a metastore sizes a new table that has no partitions.
    sized = world.sql("DESCRIBE EXTENDED e").where("col_name = 'Statistics'").count()
    assert sized == (1 if world.is_hive and not by else 0)
    assert world.spark.read.parquet(str(tmp_path / "here")).count() == 4
    assert not (tmp_path / ".twophase").exists()
    # Whoever waits for Hadoop's mark finds it, and nothing that the job worked with.
    assert {entry.name for entry in (tmp_path / "here").iterdir() if entry.name.startswith("_S")} == {"_SUCCESS"}
    assert not (tmp_path / "here" / "_temporary").exists()


def test_nothing_of_the_job_is_left_in_a_place_that_nobody_knows_beforehand(world: World) -> None:
    participant = world.run("t", world.sql("SELECT id FROM range(4)"))
    left = {entry.name for entry in Path(participant.version.removeprefix("file:")).rglob("*")}
    assert {name for name in left if not name.lstrip(".").startswith("part-")} <= layout.DOCUMENTS


def test_a_place_that_cannot_be_made_ready_is_left_to_the_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    Files().make_ready(str(tmp_path / "file" / "version"), {})
    assert files_of(tmp_path) == {"file"}


def test_the_permissions_of_hadoops_directories_are_left_to_it_where_they_are_set(tmp_path: Path) -> None:
    Files().make_ready(str(tmp_path / "one"), {"spark.hadoop.fs.permissions.umask-mode": "000"})
    assert list(tmp_path.iterdir()) == []
    Files().make_ready(str(tmp_path / "one"), {})
    assert (tmp_path / "one" / "_temporary" / "0" / "_temporary").is_dir()


def test_a_foreign_directory_at_a_location_is_refused_and_untouched(world: World, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "precious.txt").write_text("mine")
    df = world.sql("SELECT 1 AS a")
    participant = world.offer("e", df, location=str(tmp_path / "here"))
    with pytest.raises(CatalogError, match="not empty"):
        participant.begin()
    participant.abort()
    assert files_of(tmp_path) == {"here/precious.txt"}


@pytest.mark.promise("conflicts", "a foreign directory at the target is refused and left untouched")
def test_a_foreign_directory_at_the_default_location_is_refused_and_untouched(world: World) -> None:
    home = world.warehouse / "d"
    home.mkdir(parents=True)
    (home / "precious.txt").write_text("mine")
    with pytest.raises(CatalogError, match="not empty"):
        world.stage("d", world.sql("SELECT 1 AS a"))
    assert files_of(home) == {"precious.txt"}
    (home / "precious.txt").unlink()


def test_a_path_that_cannot_be_written_is_reported_in_words(world: World, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where a directory should be")  # For root, no directory is unwritable.
    participant = world.offer("t", world.sql("SELECT 1 AS id"), location=str(blocked / "t"))
    with pytest.raises(
        CatalogError, match=r"default\.t was not written: its staging directory .* cannot be made"
    ) as told:
        participant.begin()
    assert told.value.transaction_id == participant.transaction_id
    assert "right to write" in str(told.value)
    participant.abort()
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_empty_directory_at_a_location_is_there_again_after_an_abort(world: World, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    participant = world.stage("e", world.sql("SELECT 1 AS a"), location=str(tmp_path / "here"))
    participant.abort()
    assert (tmp_path / "here").is_dir()
    world.run("e", world.sql("SELECT 1 AS a"), location=str(tmp_path / "here"))
    assert world.rows("e") == [(1,)]


@pytest.mark.promise("external-tables", "`INSERT OVERWRITE`: reversible (note d)")
@pytest.mark.parametrize("by", ["", "PARTITIONED BY (k)"])
def test_inserts_into_an_external_table_leave_it_where_it_is(world: World, tmp_path: Path, by: str) -> None:
    world.sql(f"CREATE TABLE e (id BIGINT, k BIGINT) USING parquet {by} LOCATION '{tmp_path / 'here'}'")
    world.sql("INSERT INTO e SELECT id, id % 2 AS k FROM range(4)")
    world.run("e", world.sql("SELECT id, id % 3 AS k FROM range(4)"), Purpose.INSERT_INTO)
    assert len(world.rows("e")) == 8
    assert kind_of(world, "e") == "EXTERNAL"
    over = world.run("e", world.sql("SELECT id, id AS k FROM e WHERE id = 1"), Purpose.INSERT_OVERWRITE)
    assert (world.rows("e"), over.level) == ([(1, 1), (1, 1)], Level.REVERSIBLE)
    assert world.spark.read.parquet(str(tmp_path / "here")).count() == 2
    if by:
        assert world.partitions("e") == ["k=1"]


@pytest.mark.promise("external-tables", "inserts of one file: atomic; of several: reversible (note d)")
def test_one_file_into_an_external_table_is_atomic_and_several_are_not(world: World, tmp_path: Path) -> None:
    world.sql(f"CREATE TABLE e (id BIGINT) USING parquet LOCATION '{tmp_path / 'here'}'")
    one = world.run("e", world.sql("SELECT id FROM range(4)").coalesce(1), Purpose.INSERT_INTO)
    two = world.run("e", world.sql("SELECT id FROM range(4)").repartition(2), Purpose.INSERT_INTO)
    assert (one.level, two.level) == (Level.ATOMIC, Level.REVERSIBLE)
    assert two.level_reason


@pytest.mark.promise("external-tables", "inserts into new partitions only: atomic")
def test_new_partitions_of_an_external_table_are_atomic(world: World, tmp_path: Path) -> None:
    world.sql(f"CREATE TABLE e (id BIGINT, k BIGINT) USING parquet PARTITIONED BY (k) LOCATION '{tmp_path / 'here'}'")
    participant = world.run("e", world.sql("SELECT id, id % 2 AS k FROM range(4)"), Purpose.INSERT_INTO)
    assert (world.rows("e"), participant.level) == ([(0, 0), (1, 1), (2, 0), (3, 1)], Level.ATOMIC)


@pytest.mark.parametrize("scope", [OverwriteScope({}, True), OverwriteScope({"k": "1"})])
def test_overwrite_of_one_partition_of_an_external_table(world: World, tmp_path: Path, scope: OverwriteScope) -> None:
    world.sql(f"CREATE TABLE e (id BIGINT, k BIGINT) USING parquet PARTITIONED BY (k) LOCATION '{tmp_path / 'here'}'")
    world.sql("INSERT INTO e SELECT id, id % 2 AS k FROM range(4)")
    over = world.run("e", world.sql("SELECT 9L AS id, 1L AS k"), Purpose.INSERT_OVERWRITE, overwrite=scope)
    assert (world.rows("e"), over.level) == ([(0, 0), (2, 0), (9, 1)], Level.REVERSIBLE)


def test_partitions_whose_values_join_to_one_text_and_two_in_one_place_are_overwritten(
    world: World, tmp_path: Path
) -> None:
    columns = "(id BIGINT, k STRING, l STRING) USING parquet PARTITIONED BY (k, l)"
    world.sql(f"CREATE TABLE e {columns} LOCATION '{tmp_path / 'here'}'")
    values = "VALUES (1L, 'a-b', 'c'), (2L, 'a', 'b-c'), (3L, 'x', 'y') AS t(id, k, l)"
    world.sql(f"INSERT INTO e SELECT /*+ REPARTITION(1) */ * FROM {values}")  # Files of one task have one name.
    world.sql(f"ALTER TABLE e ADD PARTITION (k = 'x', l = 'z') LOCATION '{tmp_path / 'here' / 'k=x' / 'l=y'}'")
    before = world.rows("e")
    new = world.sql("SELECT /*+ REPARTITION(1) */ id, 'x' AS k, l FROM VALUES (7L, 'y'), (8L, 'z') AS t(id, l)")
    over = world.stage("e", new, Purpose.INSERT_OVERWRITE, by=["k", "l"])
    over.commit()
    assert world.rows("e") == [(7, "x", "y"), (7, "x", "z"), (8, "x", "y"), (8, "x", "z")]
    files = [name for name in files_of(tmp_path / "here") if name.endswith((".parquet", ".crc"))]
    assert {f"k=x/l=y/.{Path(name).name}.crc" for name in files if name.endswith(".parquet")} < set(files)
    assert over.compensate()
    assert world.rows("e") == before
    over.abort()


@pytest.mark.parametrize("by", ["", "PARTITIONED BY (k)"])
@pytest.mark.parametrize("purpose", [Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE])
def test_an_insert_into_an_external_table_is_undone_to_the_last_file(
    world: World, tmp_path: Path, by: str, purpose: Purpose
) -> None:
    world.sql(f"CREATE TABLE e (id BIGINT, k BIGINT) USING parquet {by} LOCATION '{tmp_path / 'here'}'")
    world.sql("INSERT INTO e SELECT id, id % 2 AS k FROM range(4)")
    before, rows = files_of(tmp_path / "here"), world.rows("e")
    participant = world.stage("e", world.sql("SELECT id, id % 3 AS k FROM range(4)"), purpose)
    participant.commit()
    assert world.rows("e") != rows
    assert world.reborn(participant).compensate()
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    participant.abort()
    assert {name for name in files_of(tmp_path / "here") if "SUCCESS" not in name} == {
        name for name in before if "SUCCESS" not in name
    }
    assert world.rows("e") == rows


@pytest.mark.promise("recipe-rename", "create and inserts of one file: atomic; others: reversible (notes d, e)")
@pytest.mark.parametrize("by", [[], ["k"]])
def test_recipe_rename_keeps_the_files_at_the_default_location(world: World, by: list[str]) -> None:
    renaming = world.with_options(recipe="rename")
    df = world.sql("SELECT id, id % 2 AS k FROM range(4)")
    created = renaming.run("r", df, by=by)
    assert (renaming.rows("r"), created.level) == ([(0, 0), (1, 1), (2, 0), (3, 1)], Level.ATOMIC)
    assert kind_of(world, "r") == "MANAGED"
    assert any(name.endswith(".parquet") for name in files_of(world.warehouse / "r"))
    replaced = renaming.run("r", world.sql("SELECT id, k FROM r WHERE id > 1"), Purpose.REPLACE_TABLE_AS, by=by)
    assert (renaming.rows("r"), replaced.level) == ([(2, 0), (3, 1)], Level.REVERSIBLE)
    one = renaming.run("r", world.sql("SELECT 7L AS id, 0L AS k"), Purpose.INSERT_INTO)
    assert (renaming.rows("r"), one.level) == ([(2, 0), (3, 1), (7, 0)], Level.ATOMIC)
    two = renaming.run("r", world.sql("SELECT id, 0L AS k FROM range(4)").repartition(2), Purpose.INSERT_INTO)
    assert (len(renaming.rows("r")), two.level) == (7, Level.REVERSIBLE)
    over = renaming.run("r", world.sql("SELECT 8L AS id, 0L AS k"), Purpose.INSERT_OVERWRITE)
    assert (renaming.rows("r"), over.level) == ([(8, 0)], Level.REVERSIBLE)
    world.sql("DROP TABLE r")
    world.catalog.table_dropped(ObjectPath.of("default", "r"))
    world.sql("CREATE TABLE r USING parquet AS SELECT 1 AS a")


@pytest.mark.parametrize("by", [[], ["k"]])
def test_an_aborted_replace_of_recipe_rename_leaves_the_old_table(world: World, by: list[str]) -> None:
    renaming = world.with_options(recipe="rename")
    renaming.run("r", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=by)
    participant = renaming.stage("r", world.sql("SELECT id, k FROM r WHERE id > 1"), Purpose.REPLACE_TABLE_AS, by=by)
    participant.abort()
    assert len(renaming.rows("r")) == 4


def test_replace_of_an_external_table_by_a_managed_one_leaves_the_users_files(world: World, tmp_path: Path) -> None:
    world.sql(f"CREATE TABLE e USING parquet LOCATION '{tmp_path / 'here'}' AS SELECT 1 AS a")
    before = files_of(tmp_path / "here")
    world.run("e", world.sql("SELECT a, 2 AS b FROM e"), Purpose.REPLACE_TABLE_AS)
    assert (world.rows("e"), kind_of(world, "e")) == ([(1, 2)], "MANAGED")
    assert files_of(tmp_path / "here") == before


def test_replace_at_a_new_location(world: World, tmp_path: Path) -> None:
    world.run("t", world.sql("SELECT 1 AS a"))
    new = str(tmp_path / "new")
    first = world.run("t", world.sql("SELECT a, 2 AS b FROM t"), Purpose.REPLACE_TABLE_AS, location=new)
    assert (world.rows("t"), kind_of(world, "t"), first.level) == ([(1, 2)], "EXTERNAL", Level.ATOMIC)
    assert world.spark.read.parquet(new).count() == 1


@pytest.mark.promise("external-tables", "replace at the `LOCATION` that the table has: reversible (note e)")
def test_replace_at_the_same_location_is_level_2(world: World, tmp_path: Path) -> None:
    here = str(tmp_path / "here")
    world.run("t", world.sql("SELECT 1 AS a"), location=here)
    replaced = world.run("t", world.sql("SELECT a, 2 AS b FROM t"), Purpose.REPLACE_TABLE_AS, location=here)
    assert (world.rows("t"), kind_of(world, "t"), replaced.level) == ([(1, 2)], "EXTERNAL", Level.REVERSIBLE)


@pytest.mark.promise("external-tables", "several tables in one transaction: reversible")
def test_several_external_tables_are_reversible(world: World, tmp_path: Path) -> None:
    assert world.together("a", "b", locations=tmp_path) is Level.REVERSIBLE
    assert (world.rows("a"), kind_of(world, "b")) == ([(1,)], "EXTERNAL")


@pytest.mark.promise("recipe-rename", "several tables in one transaction: reversible")
def test_several_tables_of_recipe_rename_are_reversible(world: World) -> None:
    assert world.with_options(recipe="rename").together("a", "b") is Level.REVERSIBLE
    assert (world.rows("a"), world.rows("b")) == ([(1,)], [(1,)])


# -- partitions at a LOCATION of the user's ----------------------------------------------------------------------------


def landed(world: World, place: Path, table: str = "cl") -> None:
    """A managed table with a partition of its own and one that the user has put somewhere else."""
    world.sql(f"CREATE TABLE {table} (id BIGINT, d STRING) USING parquet PARTITIONED BY (d)")
    world.sql(f"INSERT INTO {table} VALUES (2, 'b')")
    world.sql(f"ALTER TABLE {table} ADD PARTITION (d = 'a') LOCATION '{place}'")
    world.sql(f"INSERT INTO {table} VALUES (1, 'a')")


def place_of(world: World, values: dict[str, str], table: str = "cl") -> str:
    found = world.catalog.find(ObjectPath.of("default", table))
    assert found is not None
    return next(p.location for p in world.catalog.metastore.list_partitions(found) if p.values == values)


def marks_in(place: Path) -> set[str]:
    return {name for name in files_of(place) if "twophase" in name}


@pytest.mark.promise("locations", "a partition at a LOCATION of the user's stays there, unmarked")
@pytest.mark.parametrize("place", ["inside", "outside"])
def test_a_partition_at_a_location_stays_there_through_inserts_and_clean(
    world: World, tmp_path: Path, place: str
) -> None:
    home = world.warehouse / "landing" / "a" if place == "inside" else tmp_path / "landing" / "a"
    landed(world, home)
    inserted = world.run("cl", world.sql("SELECT 9L AS id, 'a' AS d"), Purpose.INSERT_INTO)
    both = world.run("cl", world.sql("SELECT id, if(id = 3, 'a', 'b') AS d FROM range(3, 5)"), Purpose.INSERT_INTO)

    assert world.rows("cl") == [(1, "a"), (2, "b"), (3, "a"), (4, "b"), (9, "a")]
    assert same(place_of(world, {"d": "a"}), str(home))
    assert (inserted.level, both.level) == (Level.ATOMIC, Level.REVERSIBLE)
    assert len([name for name in files_of(home) if name.endswith(".parquet")]) == 3
    clean(world)
    assert marks_in(home) == set()
    assert len(world.rows("cl")) == 5


def test_an_overwrite_of_a_partition_at_a_location_leaves_it_there(world: World, tmp_path: Path) -> None:
    landed(world, tmp_path / "a")
    rows = world.sql("SELECT 9L AS id, 'a' AS d")
    participant = world.run("cl", rows, Purpose.INSERT_OVERWRITE, overwrite=OverwriteScope({"d": "a"}))
    assert (world.rows("cl"), participant.level) == ([(2, "b"), (9, "a")], Level.REVERSIBLE)
    assert same(place_of(world, {"d": "a"}), str(tmp_path / "a"))


def test_an_overwrite_beside_a_partition_at_a_location_is_one_step(world: World, tmp_path: Path) -> None:
    landed(world, tmp_path / "a")
    rows = world.sql("SELECT 9L AS id, 'b' AS d")
    participant = world.run("cl", rows, Purpose.INSERT_OVERWRITE, overwrite=OverwriteScope({"d": "b"}))
    assert (world.rows("cl"), participant.level) == ([(1, "a"), (9, "b")], Level.ATOMIC)


@pytest.mark.parametrize("rows", ["id, 'a' AS d", "'x' AS s, id, 'a' AS d", "id, 'a' AS e"])
def test_a_replace_leaves_a_partitions_directory_of_the_users_alone(world: World, tmp_path: Path, rows: str) -> None:
    landed(world, tmp_path / "a")
    held = files_of(tmp_path / "a")
    world.run("cl", world.sql(f"SELECT {rows} FROM range(1)"), Purpose.REPLACE_TABLE_AS, by=[rows[-1]])
    assert len(world.rows("cl")) == 1
    assert files_of(tmp_path / "a") == held


def test_rows_go_to_a_location_that_came_while_the_job_ran(world: World, tmp_path: Path) -> None:
    landed(world, tmp_path / "a")
    world.sql("ALTER TABLE cl DROP PARTITION (d = 'a')")
    before = world.rows("cl")
    rows = world.sql("SELECT 9L AS id, 'a' AS d")
    participant = world.offer("cl", rows, Purpose.INSERT_INTO)
    participant.begin()
    participant.write(rows)
    world.sql(f"ALTER TABLE cl ADD PARTITION (d = 'a') LOCATION '{tmp_path / 'a'}'")
    participant.prepare()
    participant.commit()
    participant.finish()
    assert world.rows("cl") == sorted([*before, (9, "a")], key=repr)
    assert marks_in(tmp_path / "a") == set()


def test_a_location_that_comes_between_prepare_and_publish_is_a_conflict(world: World, tmp_path: Path) -> None:
    world.run("t", world.sql("SELECT 1L AS id, 'a' AS d"), by=["d"])
    participant = world.stage("t", world.sql("SELECT 9L AS id, 'a' AS d"), Purpose.INSERT_INTO, autocommit=True)
    world.sql(f"ALTER TABLE t PARTITION (d = 'a') SET LOCATION '{tmp_path / 'a'}'")
    with pytest.raises(WriteConflictError):
        participant.commit()
    participant.abort()
    assert world.rows("t") == []


def test_a_second_insert_that_reaches_a_partition_at_a_location_is_refused(world: World, tmp_path: Path) -> None:
    landed(world, tmp_path / "a")
    rows = world.sql("SELECT 9L AS id, 'b' AS d")
    first = world.stage("cl", rows, Purpose.INSERT_OVERWRITE, overwrite=OverwriteScope({"d": "b"}))
    elsewhere = world.stage("cl", rows, Purpose.INSERT_INTO, base=first)
    elsewhere.abort()
    there = world.sql("SELECT 9L AS id, 'a' AS d")
    second = world.offer("cl", there, Purpose.INSERT_INTO, base=first)
    second.begin()
    second.write(there)
    with pytest.raises(AtomicityNotSupportedError, match="already written"):
        second.prepare()
    second.abort()
    first.abort()


@pytest.mark.promise("locations", "an overwrite leaves only its rows in a partition that it adds")
@pytest.mark.parametrize("scope", [OverwriteScope({"k": "1"}), OverwriteScope(dynamic=True)], ids=str)
def test_an_overwrite_leaves_nothing_but_its_rows_in_a_partition_that_it_adds(
    world: World, tmp_path: Path, scope: OverwriteScope
) -> None:
    world.run("e", world.sql("SELECT 1L AS id, 1 AS k"), by=["k"], location=str(tmp_path / "here"))
    world.sql("ALTER TABLE e DROP PARTITION (k = 1)")
    world.run("e", world.sql("SELECT 2L AS id, 1 AS k"), Purpose.INSERT_OVERWRITE, overwrite=scope)
    assert world.rows("e") == [(2, 1)]


def test_an_insert_leaves_what_lies_where_it_adds_a_partition_as_stock_spark_does(world: World, tmp_path: Path) -> None:
    """Stock Spark's writer of SerDe tables is Hive's, which replaces it; its own writer adds to it."""
    kinds = ["USING parquet PARTITIONED BY (k)"]
    kinds += ["PARTITIONED BY (k BIGINT) STORED AS textfile", "PARTITIONED BY (k BIGINT) STORED AS parquet"]
    for number, kind in enumerate(kinds if world.is_hive else kinds[:1]):
        columns = "(id BIGINT, k BIGINT)" if "USING" in kind else "(id BIGINT)"
        rows = {}
        for name in (f"stock_{number}", f"ours_{number}"):
            world.sql(f"CREATE TABLE {name} {columns} {kind} LOCATION '{tmp_path / name}'")
            world.sql(f"INSERT INTO {name} PARTITION (k = 1) VALUES (1)")
            world.sql(f"ALTER TABLE {name} DROP PARTITION (k = 1)")
        world.sql(f"INSERT INTO stock_{number} PARTITION (k = 1) VALUES (2)")
        world.run(f"ours_{number}", world.sql("SELECT 2L AS id, 1L AS k"), Purpose.INSERT_INTO)
        rows = {name: world.rows(f"{name}_{number}") for name in ("stock", "ours")}
        assert rows["ours"] == rows["stock"], kind
        world.sql(f"DROP TABLE stock_{number}")
        world.sql(f"DROP TABLE ours_{number}")


def test_a_managed_table_that_was_given_a_location_stays_there(world: World, tmp_path: Path) -> None:
    world.sql("CREATE TABLE m (id BIGINT) USING parquet")
    world.sql(f"ALTER TABLE m SET LOCATION '{tmp_path / 'there'}'")
    world.sql("INSERT INTO m VALUES (1)")
    participant = world.run("m", world.sql("SELECT 2L AS id"), Purpose.INSERT_INTO)
    assert (world.rows("m"), participant.level) == ([(1,), (2,)], Level.ATOMIC)
    assert len([name for name in files_of(tmp_path / "there") if name.endswith(".parquet")]) == 2
    world.run("m", world.sql("SELECT 3L AS id"), Purpose.REPLACE_TABLE_AS)
    assert world.rows("m") == [(3,)]
    assert marks_in(tmp_path / "there") == set()


@pytest.mark.parametrize(
    "path",
    [
        "file:/a/k=1",
        "/a b/100%/k=a%2Fb",
        "hdfs://host:8020/a/ü/漢字/\U0001f600",
        "s3a://bucket/a+b/c;d,e@f:g/$h&i",
        "file:/a/[b]{c}|d^e`f\"g<h>i#j?k~l!m'n(o)*p",
        "file:/a/\u00a0\u2028\u0085\x01/b",
    ],
)
def test_a_partitions_location_is_escaped_as_spark_does(world: World, path: str) -> None:
    java = world.spark._jvm.org.apache.hadoop.fs.Path(path)
    assert uri_of(path) == java.toUri().toString()
    assert path_of(java.toUri().toString()) == java.toString()

"""Tables on file systems that are not local, by the session's own Hadoop client: an object store, and one like HDFS.

The object store is a server with the API of S3. Both clients are the tests' own (``java/``): they have the semantics of
S3A and of HDFS as far as these matter to a publish, and they are not these systems.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from benchmarks.routing.counting import counted
from tests.hive.world import World
from tests.servers import Server
from tests.storage.dying import DyingFiles, Killed
from tests.storage.filesystems import IMPATIENT
from tests.storage.objects import Objects
from tests.storage.s3.session import BUCKET, KINDS, SCHEMES, place_of, tidy
from twophase.catalogs.files import Files
from twophase.catalogs.hive import replaced
from twophase.errors import AtomicityNotSupportedError, CatalogError
from twophase.model import Level, Outcome, Purpose
from twophase.spark.handle import Handle
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.hadoop_files import SessionHadoopFiles

# -- operations --------------------------------------------------------------------------------------------------------


#: The buckets by the clients of the session, and of Arrow, as where there is no session.
@pytest.fixture(params=[*SCHEMES, "file", "s3"])
def place(request: pytest.FixtureRequest, root: Path, tmp_path: Path) -> str:
    if request.param in SCHEMES:
        return f"{place_of(root, request.param)}/{tmp_path.name}"
    return f"file:{tmp_path}" if request.param == "file" else f"s3://{BUCKET}/{tmp_path.name}"


@pytest.fixture
def files(place: str, spark: SparkSession, s3: Server, monkeypatch: pytest.MonkeyPatch) -> Files:
    if not place.startswith("s3:"):
        return Files(hadoop=SessionHadoopFiles(Jvm(spark)), kinds=KINDS)
    for name, value in {"ENDPOINT_URL": s3.url, "ACCESS_KEY_ID": "tests", "SECRET_ACCESS_KEY": "tests"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return Files()


NAMES = ["plain", "a b", "50%", "x+y", "k=1", "ü漢", "a:b", "%20", "[x]{y}*?"]


def test_files_have_any_name_and_are_listed_read_and_removed_by_it(files: Files, place: str) -> None:
    names = [f"{directory}/{name}" for directory in ("d", "d/k=a%2Fb") for name in NAMES if ":" not in name]
    files.make_directory(f"{place}/d/k=a%2Fb")
    for number, name in enumerate(names):
        files.write_json(f"{place}/{name}", number)
    assert [entry.name for entry in files.list(place) if entry.is_file] == sorted(names)
    assert [entry.name for entry in files.list(place) if not entry.is_file] == ["d", "d/k=a%2Fb"]
    assert [files.read_json(f"{place}/{name}") for name in names] == list(range(len(names)))
    of = replaced.contents_below(files, place)
    for directory in (place, f"{place}/d", f"{place}/d/k=a%2Fb", f"{place}/none"):
        assert of(f"{directory}/") == replaced.content_of(files, directory, recursive=False)
    there = [f"{place}/{name}" for name in (*names, "d", "d/k=a%2Fb")]
    assert set(files.existing([*there, *(f"{path}/no" for path in there), *(f"{path}no" for path in there)])) == set(
        there
    )
    files.remove_files(place, [*names[1:], "../elsewhere", "none"])
    assert [entry.name for entry in files.list(place) if entry.is_file] == names[:1]


def test_what_does_not_exist_is_no_error_and_what_exists_is_not_replaced(files: Files, place: str) -> None:
    assert files.list(f"{place}/none") == []
    assert files.read_json(f"{place}/none") is None
    assert not files.exists(f"{place}/none")
    assert files.is_empty(f"{place}/none")
    files.remove_file(f"{place}/none")
    files.remove_tree(f"{place}/none")
    files.write_json(f"{place}/a", "old")
    files.write_json(f"{place}/b", "other")
    files.write_json(f"{place}/a", "new")
    with pytest.raises(CatalogError, match="already exists"):
        files.move(f"{place}/a", f"{place}/b")
    files.move(f"{place}/a", f"{place}/below/c")
    files.copy(f"{place}/below/c", f"{place}/d")
    assert [entry.name for entry in files.list(place) if entry.is_file] == ["b", "below/c", "d"]
    assert [files.read_json(f"{place}/{name}") for name in ("b", "below/c", "d")] == ["other", "new", "new"]
    store, paths = files.find(place)[0], {name: files.find(f"{place}/{name}")[1] for name in ("b", "below/c", "d")}
    assert store.equal(paths["d"], paths["below/c"])
    assert not store.equal(paths["b"], paths["d"])
    assert not files.remove_if_empty(f"{place}/below")
    files.remove_file(f"{place}/below/c")
    assert files.remove_if_empty(f"{place}/below")
    assert not files.can_link(f"{place}/b", f"{place}/e") or place.startswith("file:")


def test_a_file_is_copied_from_one_file_system_to_another(files: Files, place: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    (tmp_path / "here").write_bytes(content)
    files.copy(f"file:{tmp_path}/here", f"{place}/there")
    files.copy(f"{place}/there", f"file:{tmp_path}/back")
    assert (tmp_path / "back").read_bytes() == content


@pytest.mark.parametrize("scheme", SCHEMES)
def test_many_files_are_listed_and_removed_in_few_calls_of_the_jvm(
    spark: SparkSession, root: Path, tmp_path: Path, scheme: str
) -> None:
    files = Files(hadoop=SessionHadoopFiles(Jvm(spark)), kinds=KINDS)
    place = f"{place_of(root, scheme)}/{tmp_path.name}"
    for number in range(40):
        files.write_json(f"{place}/{number % 4}/{number}", number)
    names = [entry.name for entry in files.list(place) if entry.is_file]
    assert len(names) == 40
    spent = counted(spark, lambda: (files.list(place), files.remove_files(place, names), files.remove_tree(place)))
    assert spent.calls["send_command"] <= 4
    assert not files.exists(f"{place}/1/1")


# -- statements --------------------------------------------------------------------------------------------------------


ATOMIC = Level.ATOMIC


def test_a_location_on_a_file_system_with_atomic_renames_is_one_rename(spark: SparkSession, root: Path) -> None:
    handle = twophase.attach(spark)
    try:
        spark.sql(f"CREATE TABLE hdfslike.e USING parquet LOCATION 'hdfslike:{root}/e' AS SELECT 1 AS a")
        (last, *_) = handle.timeline.transactions()
    finally:
        handle.detach()
    assert (last.level, spark.table("hdfslike.e").count()) == (ATOMIC, 1)
    assert list((root / "e").glob("*.parquet"))
    spark.sql("DROP TABLE hdfslike.e")


def test_each_file_system_is_reported_with_the_levels_that_follow(world: World) -> None:
    found = {line.partition(" is ")[0]: line for line in world.catalog.storage()}
    assert sorted(found) == ["file:", "hdfslike:", f"s3a://{IMPATIENT}", f"s3a://{BUCKET}"]
    assert "several files atomic" in found["file:"]
    assert "LOCATION atomic; appends of one file atomic, of several files atomic by append=dir" in found["hdfslike:"]
    assert "LOCATION refused; appends of one file atomic, of several files reversible" in found[f"s3a://{BUCKET}"]
    assert ["storage.untested=allow" in line for line in found.values()].count(True) == 3


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_location_on_an_object_store_is_refused_before_any_work(spark: SparkSession, objects: Objects) -> None:
    twophase.attach(spark)
    spark.sql(f"CREATE TABLE s3a.there (a INT) USING parquet LOCATION 's3a://{BUCKET}/there'")
    spark.sql("INSERT INTO s3a.there VALUES (1)")
    before = objects.keys(BUCKET)
    try:
        for new, place in (("e", "e"), ("e", "there/"), ("there", "there/")):
            with pytest.raises(AtomicityNotSupportedError, match="object_store may move a directory file by") as caught:
                at = f"USING parquet LOCATION 's3a://{BUCKET}/{place}'"
                spark.sql(f"CREATE OR REPLACE TABLE s3a.{new} {at} AS SELECT 2 AS a")
            assert "Leave out the LOCATION" in str(caught.value)
        assert [row.a for row in spark.table("s3a.there").collect()] == [1]
    finally:
        twophase.attach(spark).detach()
    assert objects.keys(BUCKET) == before
    spark.sql("DROP TABLE s3a.there")


@pytest.mark.parametrize("place", ["{root}/full", "//{root}/full/"])
def test_a_location_with_files_of_others_is_refused_however_it_is_spelled(
    spark: SparkSession, root: Path, place: str
) -> None:
    (root / "full").mkdir(exist_ok=True)
    (root / "full" / "theirs").write_text("theirs")
    twophase.attach(spark)
    try:
        with pytest.raises(CatalogError, match="is not empty"):
            at = f"USING parquet LOCATION 'hdfslike:{place.format(root=root)}'"
            spark.sql(f"CREATE TABLE hdfslike.f {at} AS SELECT 1 AS a")
    finally:
        twophase.attach(spark).detach()
    assert [file.name for file in (root / "full").iterdir()] == ["theirs"]


# -- deaths ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dying(spark: SparkSession) -> DyingFiles:
    return DyingFiles(Jvm(spark))


@pytest.fixture(scope="module")
def world(spark: SparkSession, root: Path, dying: DyingFiles) -> World:
    found = World(spark, root / "warehouse")
    found.environment.allows_untested_storage = True
    found.catalog.store.files = Files(hadoop=dying, kinds=KINDS)
    return found


def publish(dying: DyingFiles, participant: Any, death: tuple[str, int]) -> bool:
    """Publish, up to a death; return whether it came."""

    def run() -> None:
        participant.commit()
        participant.finish()

    return dies(dying, death, run)


def dies(dying: DyingFiles, death: tuple[str, int], change: Callable[[], object]) -> bool:
    """Change files, up to a death; return whether it came."""
    dying.moment, dying.left = death
    try:
        change()
    except Killed:
        return True
    finally:
        dying.moment = None
    return False


@pytest.mark.promise(
    "killed-driver",
    "on an object store, or one like HDFS, a publish that dies at any change of a file is undone or completed",
    detail=True,
)
@pytest.mark.parametrize("moment", ["copied", "before", pytest.param("after", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("scheme", "purpose"),
    [
        pytest.param("s3a", Purpose.INSERT_INTO, id="s3a-append"),
        pytest.param("hdfslike", Purpose.INSERT_INTO, id="hdfslike-append", marks=pytest.mark.exhaustive),
        pytest.param("s3a", Purpose.REPLACE_TABLE_AS, id="s3a-replace", marks=pytest.mark.exhaustive),
        pytest.param("hdfslike", Purpose.REPLACE_TABLE_AS, id="hdfslike-replace", marks=pytest.mark.exhaustive),
    ],
)
def test_a_publish_that_dies_at_any_change_of_a_file_is_undone_or_completed(
    world: World, dying: DyingFiles, scheme: str, purpose: Purpose, moment: str
) -> None:
    world.run("d", world.sql("SELECT 0L AS id"), Purpose.CREATE_OR_REPLACE_TABLE_AS, database=scheme)
    rows = [(0,)]
    for number in count(1):
        participant = world.stage("d", world.spark.range(1, 3).repartition(2), purpose, database=scheme)
        has_died = publish(dying, participant, (moment, number))
        survivor = world.reborn(participant) if has_died else participant
        goes_back = has_died and number % 2 == 0 and survivor.outcome() is Outcome.NOT_PUBLISHED
        if goes_back:
            survivor.abort()
        else:
            survivor.commit()
            survivor.finish()
            rows = sorted([*(rows if purpose is Purpose.INSERT_INTO else []), (1,), (2,)])
        case = f"change {number}, {'back' if goes_back else 'forward'}"
        assert world.rows(f"{scheme}.d") == rows, case
        assert world.staged() == [], case
        if not has_died:
            break
    renames_by_copying = scheme == "s3a" and purpose is Purpose.INSERT_INTO
    assert number > 1 or (moment == "copied" and not renames_by_copying)


def test_a_removal_that_dies_leaves_the_mark_and_then_the_stamp_until_the_end(
    dying: DyingFiles, root: Path, tmp_path: Path
) -> None:
    files, place = Files(hadoop=dying, kinds=KINDS), f"{place_of(root, 's3a')}/{tmp_path.name}"
    for number in count(1):
        for name in ("below/rows", "manifest", "stamp", "mark"):
            files.write_json(f"{place}/{name}", name)
        has_died = dies(dying, ("before", number), lambda: files.remove_tree(place, ("mark", "stamp")))
        left = {entry.name for entry in files.list(place) if entry.is_file}
        if not has_died:
            break
        assert "stamp" in left
        assert "mark" in left or left == {"stamp"}
    assert (number, left) == (4, set())


# -- keys --------------------------------------------------------------------------------------------------------------

ODD = "a b/50%/x+y/k=1/%C3%BC/ü漢"


def test_keys_have_any_characters(spark: SparkSession, attached: Handle, objects: Objects) -> None:
    spark.sql(f"CREATE DATABASE odd LOCATION 's3a://{BUCKET}/{ODD}/'")
    spark.sql("CREATE TABLE odd.t USING parquet PARTITIONED BY (p) AS SELECT 1 AS a, 'x y+z%2F/ü' AS p")
    spark.sql("INSERT INTO odd.t SELECT /*+ REPARTITION(2) */ CAST(id AS INT), 'x y+z%2F/ü' FROM range(2)")
    spark.sql("INSERT OVERWRITE odd.t PARTITION (p = 'a=b') SELECT 7")
    tidy(attached)
    assert sorted(map(tuple, spark.table("odd.t").collect())) == [
        (0, "x y+z%2F/ü"),
        (1, "x y+z%2F/ü"),
        (1, "x y+z%2F/ü"),
        (7, "a=b"),
    ]
    rows = [key for key in objects.keys(f"{BUCKET}/{ODD}") if key.endswith(".parquet")]
    assert len(rows) == len(spark.table("odd.t").inputFiles())
    spark.sql("DROP TABLE odd.t")
    spark.sql("DROP DATABASE odd")
    tidy(attached)
    assert objects.keys(f"{BUCKET}/{ODD}") == []


def test_what_another_spelling_of_a_place_refers_to_is_not_cleaned(
    spark: SparkSession, attached: Handle, objects: Objects
) -> None:
    spark.sql("CREATE TABLE s3a.two USING parquet AS SELECT 1 AS a")
    (location,) = spark.sql("DESCRIBE EXTENDED s3a.two").where("col_name = 'Location'").select("data_type").first()
    spark.sql("CREATE OR REPLACE TABLE s3a.two USING parquet AS SELECT 2 AS a")
    spark.sql(f"CREATE TABLE s3a.kept (a INT) USING parquet LOCATION '{location.replace('s3a:', 's3:')}/'")
    tidy(attached)
    assert objects.rows(spark.table("s3a.kept").inputFiles()) == [(1,)]
    spark.sql("DROP TABLE s3a.kept")
    tidy(attached)
    assert not objects.keys(location.removeprefix("s3a://"))
    spark.sql("DROP TABLE s3a.two")

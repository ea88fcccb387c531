"""Tables on file systems that are not local, by the session's own Hadoop client: an object store, and one like HDFS.

Both are the tests' own (``java/``). They have the semantics of S3A and of HDFS as far as these matter to a publish, and
they are not these systems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from benchmarks.routing.counting import counted
from tests.hive.conftest import start_session
from tests.hive.world import World
from tests.storage import filesystems
from twophase.catalogs.files import Files
from twophase.errors import AtomicityNotSupportedError, CatalogError
from twophase.model import Level, Outcome, Purpose
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.hadoop_files import SessionHadoopFiles

KINDS = {"hdfslike": "hdfs", "objs": "object_store"}
SCHEMES = ("objs", "hdfslike")


class Killed(BaseException):
    """The process ends here: no handler of a catalog's own goes on."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def spark(root: Path) -> Iterator[SparkSession]:
    filesystems.install(root / "classes")
    conf = {
        **filesystems.conf_of(root / "objects"),
        "spark.twophase.storage": ",".join(f"{scheme}={kind}" for scheme, kind in KINDS.items()),
        "spark.twophase.storage.untested": "allow",
        "spark.twophase.timeline.local": "allow",
    }
    session = start_session(root, hive=True, conf=conf)
    for scheme in SCHEMES:
        session.sql(f"CREATE DATABASE {scheme} LOCATION '{place_of(root, scheme)}'")
    yield session
    session.stop()


def place_of(root: Path, scheme: str) -> str:
    return "objs://bucket/warehouse" if scheme == "objs" else f"hdfslike:{root}/like"


# -- operations --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[*SCHEMES, "file"])
def place(request: pytest.FixtureRequest, root: Path, tmp_path: Path) -> str:
    return f"file:{tmp_path}" if request.param == "file" else f"{place_of(root, request.param)}/{tmp_path.name}"


@pytest.fixture
def files(spark: SparkSession) -> Files:
    return Files(hadoop=SessionHadoopFiles(Jvm(spark)), kinds=KINDS)


NAMES = ["plain", "a b", "50%", "x+y", "k=1", "ü漢", "a:b", "%20", "[x]{y}*?"]


def test_files_have_any_name_and_are_listed_read_and_removed_by_it(files: Files, place: str) -> None:
    names = [f"{directory}/{name}" for directory in ("d", "d/k=a%2Fb") for name in NAMES if ":" not in name]
    files.make_directory(f"{place}/d/k=a%2Fb")
    for number, name in enumerate(names):
        files.write_json(f"{place}/{name}", number)
    assert [entry.name for entry in files.list(place) if entry.is_file] == sorted(names)
    assert [entry.name for entry in files.list(place) if not entry.is_file] == ["d", "d/k=a%2Fb"]
    assert [files.read_json(f"{place}/{name}") for name in names] == list(range(len(names)))
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
    assert files.equal(f"{place}/d", f"{place}/below/c")
    assert not files.equal(f"{place}/b", f"{place}/d")
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
    spark: SparkSession, files: Files, root: Path, tmp_path: Path, scheme: str
) -> None:
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
    assert sorted(found) == ["file:", "hdfslike:", "objs://bucket"]
    assert "several files atomic" in found["file:"]
    assert "LOCATION atomic; appends of one file atomic, of several files atomic by append=dir" in found["hdfslike:"]
    assert "LOCATION refused; appends of one file atomic, of several files reversible" in found["objs://bucket"]
    assert ["storage.untested=allow" in line for line in found.values()].count(True) == 2


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_location_on_an_object_store_is_refused_before_any_work(spark: SparkSession, root: Path) -> None:
    twophase.attach(spark)
    spark.sql("CREATE TABLE objs.there (a INT) USING parquet LOCATION 'objs://bucket/there'")
    spark.sql("INSERT INTO objs.there VALUES (1)")
    before = sorted((root / "objects").rglob("*"))
    try:
        for new, place in (("e", "e"), ("e", "there/"), ("there", "there/")):
            with pytest.raises(AtomicityNotSupportedError, match="object_store may move a directory file by") as caught:
                at = f"USING parquet LOCATION 'objs://bucket/{place}'"
                spark.sql(f"CREATE OR REPLACE TABLE objs.{new} {at} AS SELECT 2 AS a")
            assert "Leave out the LOCATION" in str(caught.value)
        assert [row.a for row in spark.table("objs.there").collect()] == [1]
    finally:
        twophase.attach(spark).detach()
    assert sorted((root / "objects").rglob("*")) == before
    spark.sql("DROP TABLE objs.there")


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


class DyingFiles(SessionHadoopFiles):
    """The session's files until the process dies: before a change or after it, or in the middle of a rename."""

    def __init__(self, jvm: Jvm) -> None:
        super().__init__(jvm)
        self.moment: str | None = None
        self.left = 0

    def _dies(self, moment: str) -> bool:
        if self.moment is None or moment != self.moment:
            return False
        self.left -= 1
        return self.left == 0

    def _change(self, change: Callable[[], Any]) -> Any:
        if self._dies("before"):
            raise Killed
        found = change()
        if self._dies("after"):
            raise Killed
        return found

    def write(self, location: str, data: bytes, part: str | None) -> None:
        self._change(lambda: super(DyingFiles, self).write(location, data, part))

    def make_directory(self, location: str) -> None:
        self._change(lambda: super(DyingFiles, self).make_directory(location))

    def remove_one(self, location: str) -> bool:
        return bool(self._change(lambda: super(DyingFiles, self).remove_one(location)))

    def remove_files(self, location: str, names: Sequence[str]) -> None:
        self._change(lambda: super(DyingFiles, self).remove_files(location, names))

    def remove_tree(self, location: str) -> None:
        self._change(lambda: super(DyingFiles, self).remove_tree(location))

    def rename(self, location: str, target: str) -> None:
        self._change(lambda: super(DyingFiles, self).rename(location, target))

    def place(self, location: str, target: str, *, copies: bool) -> None:
        if copies and self._dies("copied"):
            self.copy(location, target)
            raise Killed
        self._change(lambda: super(DyingFiles, self).place(location, target, copies=copies))


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
    dying.moment, dying.left = death
    try:
        participant.commit()
        participant.finish()
    except Killed:
        return True
    finally:
        dying.moment = None
    return False


@pytest.mark.promise(
    "killed-driver",
    "on an object store, or one like HDFS, a publish that dies at any change of a file is undone or completed",
)
@pytest.mark.parametrize(
    ("scheme", "purpose"),
    [
        pytest.param("objs", Purpose.INSERT_INTO, id="objs-append"),
        pytest.param("hdfslike", Purpose.INSERT_INTO, id="hdfslike-append", marks=pytest.mark.exhaustive),
        pytest.param("objs", Purpose.REPLACE_TABLE_AS, id="objs-replace", marks=pytest.mark.exhaustive),
        pytest.param("hdfslike", Purpose.REPLACE_TABLE_AS, id="hdfslike-replace", marks=pytest.mark.exhaustive),
    ],
)
def test_a_publish_that_dies_at_any_change_of_a_file_is_undone_or_completed(
    world: World, dying: DyingFiles, scheme: str, purpose: Purpose
) -> None:
    world.run("d", world.sql("SELECT 0L AS id"), Purpose.CREATE_OR_REPLACE_TABLE_AS, database=scheme)
    rows = [(0,)]
    for moment in ("before", "copied", "after"):
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
            case = f"{moment} change {number}, {'back' if goes_back else 'forward'}"
            assert world.rows(f"{scheme}.d") == rows, case
            assert world.staged() == [], case
            if not has_died:
                break
        renames_by_copying = scheme == "objs" and purpose is Purpose.INSERT_INTO
        assert number > 1 or (moment == "copied" and not renames_by_copying)

"""A publish that is undone leaves the table as it was, and what was staged as ``prepare()`` left it.

It can be published again, by a recovery that cannot undo the others, or aborted.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.hive.world import World, files_of
from twophase import failpoints
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.errors import CatalogError
from twophase.model import ObjectPath, Outcome, OverwriteScope, Purpose

CREATE, REPLACE = Purpose.CREATE_TABLE_AS, Purpose.REPLACE_TABLE_AS
INSERT, OVERWRITE = Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE
DYNAMIC = OverwriteScope({}, True)

OLD = "SELECT id, id % 2 AS k FROM range(4)"
#: Rows for partitions that are there and for one that is not.
NEW = "SELECT id + 1 AS id, id % 3 AS k FROM range(4)"
#: Rows for new partitions only.
APART = "SELECT id, id + 5 AS k FROM range(2)"
OTHER_COLUMNS = "SELECT CAST(id AS STRING) AS id, 'x' AS more, id % 2 AS k FROM range(3)"


class Write(NamedTuple):
    """A statement; ``located``: its table has a LOCATION of the user's."""

    purpose: Purpose
    query: str = NEW
    recipe: str = "pointer"
    located: bool = False
    overwrite: OverwriteScope | None = None


WRITES = {
    "create": Write(CREATE),
    "create by rename": Write(CREATE, recipe="rename"),
    "create at a location": Write(CREATE, located=True),
    "replace": Write(REPLACE),
    "replace with other columns": Write(REPLACE, OTHER_COLUMNS),
    "replace by rename": Write(REPLACE, recipe="rename"),
    "replace by rename with other columns": Write(REPLACE, OTHER_COLUMNS, recipe="rename"),
    "replace at a location": Write(REPLACE, located=True),
    "insert": Write(INSERT),
    "insert new partitions": Write(INSERT, APART),
    "insert by rename": Write(INSERT, recipe="rename"),
    "insert at a location": Write(INSERT, located=True),
    "overwrite": Write(OVERWRITE),
    "overwrite with fewer partitions": Write(OVERWRITE, "SELECT 9L AS id, 1L AS k"),
    "overwrite partitions": Write(OVERWRITE, overwrite=DYNAMIC),
    "overwrite partitions at a location": Write(OVERWRITE, located=True, overwrite=DYNAMIC),
}

EXHAUSTIVE = pytest.mark.exhaustive

each_layout = pytest.mark.parametrize("by", [[], ["k"]], ids=["plain", "partitioned"])


class Undone:
    """A write that was published; what was there before it and after it."""

    def __init__(self, world: World, name: str, by: list[str], directory: Path) -> None:
        write = WRITES[name]
        self.world = world.with_options(recipe=write.recipe)
        self.directory = directory / "here"
        makes = {"by": by, **({"location": str(self.directory)} if write.located else {})}
        if write.purpose is not CREATE:
            self.world.run("t", world.sql(OLD), **makes)
        facts = {"overwrite": write.overwrite} if write.purpose.inserts else makes
        self.before = self.seen()
        self.participant = self.world.stage("t", world.sql(write.query), write.purpose, **facts)
        self.participant.commit()
        self.after = self.seen()
        assert self.after != self.before

    def seen(self) -> object:
        """The files at the user's own location, and the rows and columns of the table, where it is there."""
        files = {name for name in files_of(self.directory) if name.endswith(".parquet")}
        if not self.world.catalog.table_exists(ObjectPath.of("default", "t")):
            return files
        return files, self.world.rows("t"), self.world.sql("DESCRIBE t").collect()

    def undo(self, participant: HiveParticipant) -> bool:
        """Undo what it published; False where that cannot be, and it stays."""
        undone = participant.compensate()
        assert undone == self.participant.can_undo
        assert self.seen() == (self.before if undone else self.after)
        assert participant.outcome() is (Outcome.NOT_PUBLISHED if undone else Outcome.PUBLISHED)
        return undone

    def publish_again(self, participant: HiveParticipant) -> None:
        """Publish what was undone."""
        participant.commit()
        assert participant.outcome() is Outcome.PUBLISHED
        assert self.seen() == self.after


@pytest.mark.parametrize(
    ("shared_world", "by"),
    [
        pytest.param("memory", [], id="memory-plain"),
        pytest.param("memory", ["k"], id="memory-partitioned"),
        pytest.param("hive", ["k"], id="hive-partitioned"),
        # The metastore takes the same calls there, and fewer.
        pytest.param("hive", [], id="hive-plain", marks=pytest.mark.exhaustive),
    ],
    indirect=["shared_world"],
    scope="module",  # Else each test would have a session of its own.
)
@pytest.mark.parametrize("write", WRITES)
def test_what_a_recovery_undoes_another_publishes_or_aborts(
    world: World, write: str, by: list[str], tmp_path: Path
) -> None:
    undone = Undone(world, write, by, tmp_path)
    again = undone.world.reborn(undone.participant)
    if not undone.undo(again):
        again.finish()
        assert undone.seen() == undone.after
        return
    another = undone.world.reborn(undone.participant)
    undone.publish_again(another)
    assert undone.undo(another)
    undone.world.reborn(undone.participant).abort()
    assert undone.seen() == undone.before


@each_layout
@pytest.mark.parametrize("shared_world", ["memory"], indirect=True, scope="module")
@pytest.mark.parametrize("write", WRITES)
def test_what_was_published_is_not_denied_while_the_warehouse_is_not_mounted(
    world: World, write: str, by: list[str], tmp_path: Path
) -> None:
    undone = Undone(world, write, by, tmp_path)
    mounted = [directory for directory in (world.warehouse, undone.directory) if directory.exists()]
    for directory in mounted:
        directory.rename(f"{directory}.away")
    found = undone.world.reborn(undone.participant).outcome()
    for directory in mounted:
        Path(f"{directory}.away").rename(directory)
    assert found is not Outcome.NOT_PUBLISHED
    again = undone.world.reborn(undone.participant)
    assert again.outcome() is Outcome.PUBLISHED
    again.finish()
    assert undone.seen() == undone.after


@each_layout
@pytest.mark.parametrize("write", ["create", "replace", "replace by rename with other columns", "insert"])
def test_a_driver_publishes_what_it_undid_itself(world: World, write: str, by: list[str], tmp_path: Path) -> None:
    undone = Undone(world, write, by, tmp_path)
    if undone.undo(undone.participant):
        undone.publish_again(undone.participant)
    undone.participant.finish()
    assert undone.seen() == undone.after


@each_layout
@pytest.mark.parametrize(
    "write",
    [
        name if name in ("overwrite", "overwrite with fewer partitions") else pytest.param(name, marks=EXHAUSTIVE)
        for name in WRITES
    ],
)
def test_rows_that_others_have_added_since_are_never_undone(
    world: World, write: str, by: list[str], tmp_path: Path
) -> None:
    undone = Undone(world, write, by, tmp_path)
    world.sql("INSERT INTO t (id, k) SELECT 77 AS id, * FROM VALUES (0L), (1L), (5L)")
    again, there = undone.world.reborn(undone.participant), undone.seen()
    try:
        is_undone = again.compensate()
    except CatalogError as error:
        is_undone = False
        assert "default.t" in str(error) and "part-" in str(error)
    if is_undone:
        again.abort()
    else:
        assert again.outcome() is Outcome.PUBLISHED
        assert undone.seen() == there
        again.finish()
    assert world.sql("SELECT * FROM t WHERE CAST(id AS INT) = 77").count() == 3


def test_rows_that_others_add_just_before_an_undo_are_kept_with_what_was_staged(world: World, tmp_path: Path) -> None:
    """Their files come after the last look at them: they are named, and not removed."""
    undone = Undone(world, "overwrite", [], tmp_path)
    failpoints.arm("hive.pointer.restore", lambda _: world.sql("INSERT INTO t VALUES (77, 0)"))
    assert undone.participant.compensate()
    failpoints.disarm()
    with pytest.raises(CatalogError, match="part-"):
        undone.participant.abort()
    assert world.spark.read.parquet(undone.participant.version).where("id = 77").count() == 1
    assert world.clean(retention=3600.0) == []
    world.clean()

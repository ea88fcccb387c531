"""A publish that is undone leaves the table as it was, and what was staged as ``prepare()`` left it.

It can be published again, by a recovery that cannot undo the others, or aborted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hive.world import World, files_of
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.model import ObjectPath, Outcome, OverwriteScope, Purpose

pytestmark = pytest.mark.slow

CREATE, REPLACE = Purpose.CREATE_TABLE_AS, Purpose.REPLACE_TABLE_AS
INSERT, OVERWRITE = Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE
DYNAMIC = OverwriteScope({}, True)

OLD = "SELECT id, id % 2 AS k FROM range(4)"
#: Rows for partitions that are there and for one that is not.
NEW = "SELECT id + 1 AS id, id % 3 AS k FROM range(4)"
#: Rows for new partitions only.
APART = "SELECT id, id + 5 AS k FROM range(2)"
OTHER_COLUMNS = "SELECT CAST(id AS STRING) AS id, 'x' AS more, id % 2 AS k FROM range(3)"

#: What is written, how, by which recipe, and whether the table has a LOCATION of the user's.
WRITES = {
    "create": (CREATE, NEW, "pointer", False),
    "create by rename": (CREATE, NEW, "rename", False),
    "create at a location": (CREATE, NEW, "pointer", True),
    "replace": (REPLACE, NEW, "pointer", False),
    "replace with other columns": (REPLACE, OTHER_COLUMNS, "pointer", False),
    "replace by rename": (REPLACE, NEW, "rename", False),
    "replace by rename with other columns": (REPLACE, OTHER_COLUMNS, "rename", False),
    "replace at a location": (REPLACE, NEW, "pointer", True),
    "insert": (INSERT, NEW, "pointer", False),
    "insert new partitions": (INSERT, APART, "pointer", False),
    "insert by rename": (INSERT, NEW, "rename", False),
    "insert at a location": (INSERT, NEW, "pointer", True),
    "overwrite": (OVERWRITE, NEW, "pointer", False),
    "overwrite with fewer partitions": (OVERWRITE, "SELECT 9L AS id, 1L AS k", "pointer", False),
    "overwrite partitions": (DYNAMIC, NEW, "pointer", False),
    "overwrite partitions at a location": (DYNAMIC, NEW, "pointer", True),
}

each_write = pytest.mark.parametrize("write", WRITES)
each_layout = pytest.mark.parametrize("by", [[], ["k"]], ids=["plain", "partitioned"])


class Undone:
    """A write that was published; what was there before it and after it."""

    def __init__(self, world: World, write: str, by: list[str], directory: Path) -> None:
        purpose, query, recipe, external = WRITES[write]
        self.world = world.with_options(recipe=recipe)
        self.directory = directory / "here"
        facts = {"location": str(self.directory)} if external else {}
        if purpose is not CREATE:
            self.world.run("t", world.sql(OLD), by=by, **facts)
        scope = purpose if isinstance(purpose, OverwriteScope) else None
        kind = OVERWRITE if isinstance(purpose, OverwriteScope) else purpose
        defines = {"by": by, **facts} if kind in (CREATE, REPLACE) else {}
        self.before = self.seen()
        self.participant = self.world.stage("t", world.sql(query), kind, overwrite=scope, **defines)
        self.participant.commit()
        self.after = self.seen()
        assert self.after != self.before

    def seen(self) -> object:
        """The rows, the columns, and the files at the user's own location; None without the table."""
        if not self.world.catalog.table_exists(ObjectPath.of("default", "t")):
            return None
        files = {name for name in files_of(self.directory) if name.endswith(".parquet")}
        return self.world.rows("t"), self.world.sql("DESCRIBE t").collect(), files

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


@pytest.mark.parametrize("by", [[], ["k"]], ids=["plain", "partitioned"])
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


@pytest.mark.parametrize("by", [[], ["k"]], ids=["plain", "partitioned"])
@pytest.mark.parametrize("write", ["create", "replace", "replace by rename with other columns", "insert"])
def test_a_driver_publishes_what_it_undid_itself(world: World, write: str, by: list[str], tmp_path: Path) -> None:
    undone = Undone(world, write, by, tmp_path)
    if undone.undo(undone.participant):
        undone.publish_again(undone.participant)
    undone.participant.finish()
    assert undone.seen() == undone.after

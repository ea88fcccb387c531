"""The power is cut inside statements: each table is wholly old or wholly new, and those of a block are together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.crash import loop_device
from tests.crash.forks import ROOT
from tests.servers import FORGETFUL_METASTORE

pytestmark = pytest.mark.timeout(600)

#: The rows of each table before and after; None where it is not there.
States = dict[str, tuple[list[dict[str, Any]] | None, list[dict[str, Any]] | None]]


def ids(*several: range) -> list[dict[str, Any]]:
    return [{"id": number} for numbers in several for number in numbers]


OLD, APPENDED = ids(range(2)), ids(range(2), range(10, 40))
MORE = "SELECT /*+ REPARTITION(3) */ id FROM range(10, 40)"
TABLE = "CREATE TABLE {d}.t USING parquet AS SELECT id FROM range(2)"
EXTERNAL = (
    "CREATE TABLE {d}.e USING parquet LOCATION '{disk}/external' AS SELECT /*+ REPARTITION(2) */ id FROM range(2)"
)
LAKE = ("CREATE DATABASE lake_{d}.s", "CREATE TABLE lake_{d}.s.i AS SELECT id FROM range(2)")
SQLITE = ("CREATE TABLE db_{d}.main.q AS SELECT id FROM range(2)",)


@dataclass(frozen=True)
class Shape:
    """What runs in one transaction, on ``{d}``, a database of its own, and beside it a lake and a SQLite file."""

    before: tuple[str, ...]
    statements: tuple[str, ...]
    tables: States
    #: Moments of this shape alone, between the decision and the end.
    within: tuple[tuple[str, int], ...] = ()


SHAPES = {
    "replace": Shape(
        (TABLE,),
        ("CREATE OR REPLACE TABLE {d}.t USING parquet AS SELECT 'x' AS name",),
        {"{d}.t": (OLD, [{"name": "x"}])},
    ),
    "links": Shape((TABLE,), ("INSERT INTO {d}.t " + MORE,), {"{d}.t": (OLD, APPENDED)}),
    "directory": Shape(
        (TABLE, "ALTER TABLE {d}.t SET TBLPROPERTIES ('twophase.append' = 'directory')"),
        ("INSERT INTO {d}.t " + MORE,),
        {"{d}.t": (OLD, APPENDED)},
        (("hive.append.mark", 1),),
    ),
    "files": Shape(
        (TABLE, "ALTER TABLE {d}.t SET TBLPROPERTIES ('twophase.append' = 'files')"),
        ("INSERT INTO {d}.t " + MORE,),
        {"{d}.t": (OLD, APPENDED)},
        (("hive.append.file_in", 2),),
    ),
    "in_place": Shape(
        (EXTERNAL,),
        ("INSERT OVERWRITE {d}.e " + MORE,),
        {"{d}.e": (OLD, ids(range(10, 40)))},
        (("hive.rename.back_up_file", 2), ("hive.rename.file_in", 2)),
    ),
    "rename": Shape(
        ("CREATE TABLE renaming.{d}.t USING parquet AS SELECT id FROM range(2)",),
        ("CREATE OR REPLACE TABLE renaming.{d}.t USING parquet AS SELECT 'x' AS name",),
        {"{d}.t": (OLD, [{"name": "x"}])},
    ),
    "drop": Shape(
        (TABLE, EXTERNAL),
        ("DROP TABLE {d}.t", "INSERT INTO {d}.e " + MORE),
        {"{d}.t": (OLD, None), "{d}.e": (OLD, APPENDED)},
        (("core.publish", 2),),
    ),
    "drop_at_once": Shape((TABLE,), ("DROP TABLE {d}.t",), {"{d}.t": (OLD, None)}),
    "alter": Shape(
        (TABLE,),
        ("ALTER TABLE {d}.t ADD COLUMNS (more STRING)", "INSERT INTO {d}.t SELECT 10, 'x'"),
        {"{d}.t": (OLD, [*({"id": i, "more": None} for i in range(2)), {"id": 10, "more": "x"}])},
    ),
    "exchange": Shape(
        (TABLE,),
        ("ALTER TABLE {d}.t RENAME TO {d}.u", "CREATE TABLE {d}.t USING parquet AS SELECT id FROM range(10, 12)"),
        {"{d}.t": (OLD, ids(range(10, 12))), "{d}.u": (None, OLD)},
        (("core.publish", 2),),
    ),
    "two": Shape(
        (TABLE, EXTERNAL),
        ("INSERT OVERWRITE {d}.t SELECT id FROM range(10, 12)", "INSERT INTO {d}.e " + MORE),
        {"{d}.t": (OLD, ids(range(10, 12))), "{d}.e": (OLD, APPENDED)},
        (("core.publish", 2),),
    ),
    "lake": Shape(
        LAKE,
        ("INSERT OVERWRITE lake_{d}.s.i SELECT id FROM range(10, 12)",),
        {"lake_{d}.s.i": (OLD, ids(range(10, 12)))},
        (("lakehouse.swap", 1),),
    ),
    "sqlite": Shape(
        SQLITE,
        ("INSERT INTO db_{d}.main.q SELECT id FROM range(10, 40)",),
        {"db_{d}.main.q": (OLD, APPENDED)},
    ),
    "stores": Shape(
        (TABLE, *LAKE, *SQLITE),
        (
            "INSERT INTO {d}.t " + MORE,
            "INSERT INTO lake_{d}.s.i SELECT id FROM range(10, 40)",
            "INSERT INTO db_{d}.main.q SELECT id FROM range(10, 40)",
        ),
        dict.fromkeys(("{d}.t", "lake_{d}.s.i", "db_{d}.main.q"), (OLD, APPENDED)),
        (("core.publish", 2), ("core.publish", 3)),
    ),
}


@dataclass(frozen=True)
class Cut:
    """A shape, and a moment of it: the database and the disk have this name."""

    shape: Shape
    point: str
    nth: int = 1


class Disks:
    """A disk for each cut, and one for the metastore and the timeline, below a directory."""

    def __init__(self, directory: Path, cuts: dict[str, Cut]) -> None:
        self._at, self._cuts = directory, cuts
        self._make("root", loop_device.LARGE)
        for name in cuts:
            self._make(name, loop_device.SMALL)

    def _make(self, name: str, size: int) -> None:
        loop_device.make(self._image(name), size)

    def _image(self, name: str) -> Path:
        return self._at / f"{name}.img"

    def _disk(self, name: str) -> Path:
        return self._at / name

    @contextmanager
    def mounted(self, ending: str) -> Iterator[None]:
        with ExitStack() as mounts:
            for name in ("root", *self._cuts):
                mounts.enter_context(loop_device.mounted(self._image(name).with_suffix(ending), self._disk(name)))
            yield

    def facts(self, *, recovers: bool, fsync: bool) -> dict[str, Any]:
        conf = {
            "spark.twophase.fsync": str(fsync).lower(),
            "spark.sql.catalog.renaming": "twophase.hive",
            "spark.sql.catalog.renaming.recipe": "rename",
        }
        told = {}
        for name, cut in self._cuts.items():
            place = {"d": name, "disk": str(self._disk(name))}
            make = "CREATE DATABASE {d} LOCATION '{disk}/database'"
            told[name] = {
                "image": str(self._image(name)),
                "before": [text.format(**place) for text in (make, *cut.shape.before)],
                "statements": [text.format(**place) for text in cut.shape.statements],
                "tables": [table.format(**place) for table in cut.shape.tables],
                "point": cut.point,
                "nth": cut.nth,
            }
            if any("lake_" in text for text in cut.shape.before):
                conf[f"spark.sql.catalog.lake_{name}"] = "twophase.lakehouse"
                conf[f"spark.sql.catalog.lake_{name}.warehouse"] = f"{self._disk(name)}/lake"
            if any("db_" in text for text in cut.shape.before):
                conf[f"spark.sql.catalog.db_{name}"] = "twophase.jdbc"
                conf[f"spark.sql.catalog.db_{name}.url"] = f"sqlite:///{self._disk(name)}/shop.db"
        root = {"root": str(self._disk("root")), "image": str(self._image("root"))}
        return {**root, "conf": conf, "cuts": told, "recovers": recovers}


@contextmanager
def driver(directory: Path, facts: dict[str, Any]) -> Iterator[Any]:
    """What a driver in a process of its own tells; it is killed with its JVM afterwards."""
    (directory / "facts.json").write_text(json.dumps(facts))
    java = os.environ.get("SPARK_SUBMIT_OPTS", "").replace(FORGETFUL_METASTORE, "")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.cut_driver", str(directory / "facts.json")],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": java},
        text=True,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        told = (json.loads(line[5:]) for line in process.stdout if line.startswith("TOLD "))
        yield next(told)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def after_the_cuts(directory: Path, cuts: dict[str, Cut], *, fsync: bool = True) -> Any:
    """What a new driver finds after the power was cut inside each statement, each on its disk."""
    disks = Disks(directory, cuts)
    with disks.mounted(".img"), driver(directory, disks.facts(recovers=False, fsync=fsync)) as told:
        assert told == "cut"
    with disks.mounted(".cut"), driver(directory, disks.facts(recovers=True, fsync=fsync)) as told:
        return told


def left(cut: Cut, name: str, found: dict[str, Any]) -> str:
    """Whether the tables of a cut are all ``old`` or all ``new``; else each of them."""
    sides = [_side(states, found[table.format(d=name)]) for table, states in cut.shape.tables.items()]
    return sides[0] if len(set(sides)) == 1 else ", ".join(sides)


def _side(states: tuple[Any, Any], found: list[str] | None) -> str:
    rows = [None if rows is None else sorted(map(json.dumps, rows)) for rows in states]
    return ("old", "new")[rows.index(found)] if found in rows else f"neither: {found}"


def at(point: str, *names: str) -> dict[str, Cut]:
    """The shapes, cut before a step that each of them reaches."""
    return {f"{name}_{point.split('.')[1]}": Cut(SHAPES[name], point) for name in names}


def within(*names: str) -> dict[str, Cut]:
    """The shapes, cut at the moments that only they have."""
    return {f"{name}_{i}": Cut(SHAPES[name], *moment) for name in names for i, moment in enumerate(SHAPES[name].within)}


#: All but those that are one call, without a decision.
DECIDED = [name for name in SHAPES if name != "drop_at_once"]
FIRST = within("two") | at("core.publish", "rename") | at("core.finish", "sqlite")
OTHERS = {
    **within(*(name for name in DECIDED if name != "two")),
    **at("core.publish", "replace", "links", "alter", "sqlite"),
    **at("core.finish", "stores"),
    # The last one: Spark lets no other statement pass while it drops a table.
    "drop_at_once": Cut(SHAPES["drop_at_once"], "core.record_immediate_end"),
}

if loop_device.can_mount():

    @pytest.mark.promise(
        "power-cut", "a power cut inside a statement or a block leaves all its tables old, or all of them new"
    )
    @pytest.mark.parametrize(
        "cuts",
        [
            pytest.param(FIRST, id="first"),
            pytest.param(OTHERS, id="others"),
            pytest.param(at("core.publish", *DECIDED), id="decided", marks=pytest.mark.exhaustive),
            pytest.param(at("core.record_completed", *DECIDED), id="published", marks=pytest.mark.exhaustive),
            pytest.param(at("core.finish", *DECIDED), id="recorded", marks=pytest.mark.exhaustive),
        ],
    )
    def test_a_power_cut_inside_a_statement_leaves_all_old_or_all_new(tmp_path: Path, cuts: dict[str, Cut]) -> None:
        found = after_the_cuts(tmp_path, cuts)
        recovered, cleaned = (
            {name: left(cut, name, found[when][name]) for name, cut in cuts.items()} for when in ("rows", "cleaned")
        )
        whole = {name: ("new",) if cut.point == "core.finish" else ("old", "new") for name, cut in cuts.items()}
        assert {name: side for name, side in recovered.items() if side not in whole[name]} == {}
        assert cleaned == recovered
        assert found["open"] == []
        # What has no decision has no record of what becomes of its files: they are told, and kept.
        assert [place for place in found["kept"] if "/drop_at_once/" not in place] == []

    @pytest.mark.exhaustive
    def test_without_a_wait_for_the_disk_a_power_cut_loses_rows(tmp_path: Path) -> None:
        """If it lost none, the disk would keep all by itself, and the test above would prove nothing."""
        cuts = at("core.finish", "replace", "links", "rename")
        found = after_the_cuts(tmp_path, cuts, fsync=False)
        assert all(left(cut, name, found["rows"][name]).startswith("neither") for name, cut in cuts.items())

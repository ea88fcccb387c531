"""Documents that an earlier version of twophase has recorded on a timeline are recovered by this one.

``recorded/*.json`` holds, for each way to publish, the document as it was when the statement was planned and when it
was prepared. What differs from run to run in it (directories, numbers of files) is a placeholder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.crash.frames import ArrowFrame
from tests.hive.place import PATH, Place
from twophase.catalogs.hive import HiveCatalog
from twophase.catalogs.hive import state as states
from twophase.catalogs.hive.planning import Case, Change, publishers
from twophase.catalogs.hive.state import WriteState
from twophase.errors import CatalogError
from twophase.model import Outcome, OverwriteScope, Purpose, TableDefinition, Transform, WriteContext

RECORDED = Path(__file__).parent / "recorded"
OLD = pa.table({"id": [1, 2], "part": ["a", "b"]})
NEW = pa.table({"id": [3, 4], "part": ["b", "c"]})
ONE = pa.table({"id": [3], "part": ["b"]})
OTHER = pa.table({"name": ["x", "y"], "part": ["b", "c"]})
CREATE, REPLACE = Purpose.CREATE_TABLE_AS, Purpose.REPLACE_TABLE_AS
INTO, OVERWRITE = Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE


@dataclass(frozen=True)
class Situation:
    """A statement, and the table that it finds."""

    purpose: Purpose
    rows: pa.Table = field(default_factory=lambda: NEW)
    by: str | None = None
    old_by: str | None = None
    overwrite: OverwriteScope | None = None
    append: str | None = None
    external: bool = False
    scattered: bool = False
    autocommit: bool = False
    recipe: str = "pointer"

    def columns(self, by: str | None) -> tuple[Transform, ...]:
        return () if by is None else (Transform.identity(by),)

    def after(self) -> set[Any]:
        """What the first column of the table holds after it."""
        first = next(name for name in self.rows.column_names if name != self.by)
        new = set(self.rows.column(first).to_pylist())
        if self.purpose is INTO:
            return {1, 2} | new
        return new | ({1} if self.overwrite is not None and self.overwrite.dynamic else set())


SITUATIONS = {
    "create": Situation(CREATE, autocommit=True),
    "create-partitioned": Situation(CREATE, by="part"),
    "create-in-place": Situation(CREATE, by="part", recipe="rename"),
    "replace": Situation(REPLACE),
    "replace-partitioned": Situation(REPLACE, by="part", old_by="part"),
    "replace-columns-of-partitioned": Situation(REPLACE, rows=OTHER, by="part", old_by="part"),
    "replace-partition-columns": Situation(REPLACE, by="id", old_by="part"),
    "replace-in-place": Situation(REPLACE, recipe="rename"),
    "replace-in-place-partitioned": Situation(REPLACE, by="part", old_by="part", recipe="rename"),
    "insert": Situation(INTO, rows=ONE),
    "insert-links": Situation(INTO, append="links", scattered=True),
    "insert-directory": Situation(INTO, append="directory", scattered=True),
    "insert-partitioned": Situation(INTO, by="part", old_by="part"),
    "insert-external": Situation(INTO, external=True),
    "overwrite": Situation(OVERWRITE, overwrite=OverwriteScope()),
    "overwrite-dynamic": Situation(OVERWRITE, by="part", old_by="part", overwrite=OverwriteScope(dynamic=True)),
    "overwrite-external": Situation(
        OVERWRITE, by="part", old_by="part", overwrite=OverwriteScope(dynamic=True), external=True
    ),
}


@dataclass
class Scene:
    """The situation in a warehouse of its own, where the statement was planned, and then prepared."""

    directory: Path
    name: str
    planned: Any = field(init=False)
    prepared: Any = field(init=False)

    def __post_init__(self) -> None:
        self.situation = SITUATIONS[self.name]
        self.place = Place(self.directory)
        self.place.metastore().create_database("default", {}, ignore_if_exists=True)
        if self.situation.purpose is not CREATE:
            self._make_table()
        participant = self._stage(self.situation.purpose, self.situation.rows, self.situation.by, "second-1")
        self.planned = json.loads(json.dumps(participant.document))
        participant.prepare()
        self.prepared = json.loads(json.dumps(participant.document))

    def catalog(self) -> HiveCatalog:
        environment = self.place.catalog().environment
        return HiveCatalog("hive", {"recipe": self.situation.recipe}, environment)

    def _make_table(self) -> None:
        participant = self._stage(CREATE, OLD, self.situation.old_by, "first-1")
        participant.prepare()
        participant.commit()
        participant.finish()

    def _stage(self, purpose: Purpose, rows: pa.Table, by: str | None, transaction: str) -> Any:
        append = {} if self.situation.append is None else {"twophase.append": self.situation.append}
        elsewhere = self.situation.external and purpose is CREATE
        definition = TableDefinition(
            rows.schema,
            provider="parquet",
            partitioning=self.situation.columns(by),
            properties=append,
            location=f"file:{self.directory}/elsewhere" if elsewhere else None,
            external=elsewhere,
        )
        context = WriteContext(
            transaction, 0, self.situation.overwrite if purpose is OVERWRITE else None, None, self.situation.autocommit
        )
        found: Any = self.catalog().two_phase_create_table(PATH, definition, purpose=purpose, context=context)
        found.begin()
        found.write(ArrowFrame(rows, scattered=self.situation.scattered))
        return found

    def rows(self) -> set[Any] | None:
        rows = self.place.rows()
        return None if rows is None else {row[0] for row in rows}

    def before(self) -> set[Any] | None:
        return None if self.situation.purpose is CREATE else {1, 2}

    def recorded(self, moment: str) -> Any:
        """The participant of an earlier version's document."""
        text = (RECORDED / f"{self.name}.json").read_text(encoding="utf-8")
        document = json.loads(text.replace("@DIRECTORY@", str(self.directory)))[moment]
        return self.catalog().restore(self._filled(document))

    def _filled(self, document: dict[str, Any]) -> dict[str, Any]:
        if document["before"] is not None:
            location = document["before"]["location"]
            document["before"]["number"] = self.catalog().files.number(location)
        if document.get("inherit_mark") is not None:
            document["inherit_mark"] = self.catalog().files.fingerprint(document["inherit"])
        if document.get("lands") is not None:
            manifest = next(self.directory.rglob("second-1-0/_twophase_manifest.json"))
            document["lands"] = json.loads(manifest.read_text(encoding="utf-8"))["into"][-1][1]
        return document


@pytest.mark.promise("upgrades", "what the last version prepared for Hive is published by a recovery of this one")
@pytest.mark.parametrize("name", SITUATIONS)
def test_what_an_earlier_version_prepared_is_published_by_a_recovery(tmp_path: Path, name: str) -> None:
    scene = Scene(tmp_path, name)
    participant = scene.recorded("prepared")
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    participant.commit()
    assert participant.outcome() is Outcome.PUBLISHED
    participant.finish()
    assert scene.rows() == scene.situation.after()


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_an_earlier_version_recorded_is_what_this_one_records(tmp_path: Path, name: str) -> None:
    scene = Scene(tmp_path, name)
    for moment, present in (("planned", scene.planned), ("prepared", scene.prepared)):
        state = scene.recorded(moment).table_write.state
        expected = WriteState.from_document(present)
        assert json.loads(json.dumps(state.to_document())) == present
        assert state == replace(expected, own=state.own)
        assert type(state.own) is type(expected.own)


@pytest.mark.promise("upgrades", "what the last version staged in Hive is rolled back by a recovery of this one")
@pytest.mark.parametrize("moment", ["planned", "prepared"])
@pytest.mark.parametrize("name", SITUATIONS)
def test_what_an_earlier_version_staged_is_rolled_back_by_a_recovery(tmp_path: Path, name: str, moment: str) -> None:
    scene = Scene(tmp_path, name)
    participant = scene.recorded(moment)
    participant.abort()
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    assert scene.rows() == scene.before()
    assert not participant.left_behind()
    hidden = [table for table in scene.place.metastore().list_tables("default") if table.startswith("__")]
    assert not hidden


def test_a_document_of_a_newer_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "create")
    for newer in ({"format": states.FORMAT + 1}, {"publisher": "by pigeon"}):
        with pytest.raises(CatalogError, match="does not know") as caught:
            scene.catalog().restore({**scene.prepared, **newer})
        assert "newer version" in str(caught.value.hint)


def test_one_publisher_serves_each_case() -> None:
    cases = product((states.CREATE, states.REPLACE, states.INSERT), (False, True), (False, True), (False, True), Change)
    assert [len(publishers(Case(*case))) for case in cases] == [1] * 72

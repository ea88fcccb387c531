"""Reads of the state that a table had before the changes of some transactions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from tests.hive.place import PATH, Place
from tests.hive.test_formats import PARQUET, TEXT
from tests.hive.world import Rows, World, jvm_of
from twophase.catalog import Change, ReadSource
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.errors import SnapshotTooOldError, TableNotExistError
from twophase.model import Isolation, OverwriteScope, Purpose
from twophase.spark.attached import SessionCatalogs
from twophase.spark.connector.table import FilesTable
from twophase.spark.jvm.parquet import table_frame
from twophase.transactions.coordinator import Coordinator

CREATE, INTO = Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO
OVERWRITE, REPLACE = Purpose.INSERT_OVERWRITE, Purpose.REPLACE_TABLE_AS
SEVERAL = "SELECT id + {n} AS a FROM range(0, 3, 1, 3)"
ONE = "SELECT {n}L AS a"


@dataclass
class History:
    """The publishes of one table, and what it was before each of them."""

    world: World
    changes: list[Change] = field(default_factory=list)
    states: list[tuple[Rows, list[tuple[str, str]], Any] | None] = field(default_factory=list)

    def stage(self, sql: str, purpose: Purpose, **facts: Any) -> HiveParticipant:
        return self.world.stage("t", self.world.sql(sql), purpose, **facts)

    def decide(self, participant: HiveParticipant, *, number: int | None = None) -> Change:
        """What the timeline records with the decision: plain JSON."""
        participant.prepare()
        before = json.loads(json.dumps(participant.replaced_state()))
        return Change(participant.transaction_id, number, before=before)

    def publish(self, participant: HiveParticipant) -> None:
        """Decide, and publish."""
        self.states.append(self.now())
        self.changes.append(self.decide(participant, number=len(self.changes) + 1))
        participant.commit()
        participant.finish()
        self.world._committed.add(participant.transaction_id)

    def run(self, sql: str, purpose: Purpose, **facts: Any) -> HiveParticipant:
        participant = self.stage(sql, purpose, **facts)
        self.publish(participant)
        return participant

    def now(self) -> tuple[Rows, list[tuple[str, str]], Any] | None:
        if not self.world.catalog.table_exists(PATH):
            return None
        return self.world.rows("t"), self.world.spark.table("t").dtypes, self.version()

    def version(self) -> Any:
        return self.world.catalog.table_version(PATH)

    def read(self, changes: list[Change], version: Any = None) -> Rows:
        found = frame(self.world, self.world.catalog.read_source_before(PATH, changes, version))
        return sorted(map(tuple, found.collect()), key=repr)

    def check(self) -> None:
        """Every state can still be read, and is the version that it was."""
        self.states.append(self.now())
        for number, state in enumerate(self.states[:-1]):
            changes = self.changes[number:]
            if state is None:
                with pytest.raises(TableNotExistError, match="did not exist"):
                    self.read(changes)
                continue
            rows, columns, version = state
            source = self.world.catalog.read_source_before(PATH, changes, version)
            assert self.world.catalog.read_source_before(PATH, changes) == source
            found = frame(self.world, source)
            assert (sorted(map(tuple, found.collect()), key=repr), found.dtypes) == (rows, columns), number


def frame(world: World, source: ReadSource) -> DataFrame:
    """The DataFrame of a read, as Spark makes it of a table of ours."""
    jvm = jvm_of(world.spark)
    jvm.start_callbacks()
    assert source.kind == "files" and source.location and source.definition
    session: Any = SimpleNamespace(jvm=jvm, catalogs=SessionCatalogs(None))
    facts = (source.definition, source.provider, source.location, source.listed)
    found: DataFrame = table_frame(jvm, FilesTable(session, world.catalog, PATH, *facts))
    return found


@pytest.fixture
def history(world: World) -> History:
    return History(world)


@pytest.mark.parametrize("provider", ["parquet", "orc", "csv", "json", "text"])
def test_every_state_of_a_table_is_read_in_its_format(history: History, provider: str) -> None:
    facts: dict[str, Any] = {
        "provider": provider,
        "options": {"header": "true", "sep": ";"} if provider == "csv" else {},
    }
    history.run("SELECT 'a;1' AS a", CREATE, **facts)
    history.run("SELECT 'b' AS a", INTO)
    history.run("SELECT concat('c', id) AS a FROM range(0, 3, 1, 3)", INTO)
    history.run("SELECT 'd' AS a", OVERWRITE, overwrite=OverwriteScope())
    history.run("SELECT 'e' AS a", INTO)
    history.run("SELECT 'f' AS a", REPLACE, **facts)
    history.check()


@pytest.mark.parametrize("mode", ["directory", "links", "files"])
def test_every_state_between_appends_is_read(world: World, mode: str) -> None:
    history = History(world.with_options(append=mode))
    history.run(ONE.format(n=0), CREATE)
    for n in range(10, 60, 10):
        history.run((SEVERAL if n % 20 else ONE).format(n=n), INTO)
    history.run(SEVERAL.format(n=90), OVERWRITE, overwrite=OverwriteScope())
    history.run(SEVERAL.format(n=100), INTO)
    history.check()


def test_every_state_of_a_partitioned_table_is_read(history: History) -> None:
    by = ["p", "q"]
    history.run("SELECT id AS a, id % 2 AS p, 'x=/ y' AS q FROM range(4)", CREATE, by=by)
    history.run("SELECT 10L AS a, 1L AS p, 'x=/ y' AS q", INTO, autocommit=True)  # One file is renamed into it.
    history.run("SELECT id AS a, id % 3 AS p, 'x=/ y' AS q FROM range(20, 26)", INTO)
    history.run("SELECT 30L AS a, CAST(NULL AS BIGINT) AS p, '' AS q", INTO)
    history.run("SELECT 40L AS a, 1L AS p, 'x=/ y' AS q", OVERWRITE, overwrite=OverwriteScope(dynamic=True))
    history.run("SELECT 50L AS a, 1L AS p, 'x=/ y' AS q", INTO, autocommit=True)
    history.run("SELECT 60L AS a, 7L AS p, 'z' AS q", OVERWRITE, overwrite=OverwriteScope())
    history.run("SELECT 70L AS a, 7L AS p, 'z' AS q", REPLACE, by=by)
    history.run("SELECT 80L AS a, 7L AS p, 'z' AS q", INTO, autocommit=True)
    history.run("SELECT 'x' AS b, 90L AS a, 7L AS p, 'z' AS q", REPLACE, by=by)
    history.run("SELECT 100L AS a, 'r' AS r", REPLACE, by=["r"])
    history.run("SELECT 110L AS a, 's' AS r", INTO)
    history.run("SELECT 120L AS a", REPLACE)
    history.run("SELECT 130L AS a", INTO)
    history.check()


def test_columns_are_shown_as_a_read_of_the_table_shows_them(history: History) -> None:
    """Columns that older files lack, the order of columns, fixed lengths, and partition values of other types."""
    history.world.sql(
        "CREATE TABLE t (a INT, Name STRING, c CHAR(4), d DATE, m TIMESTAMP, D2 DECIMAL(5, 2)) USING parquet "
        "PARTITIONED BY (d, m, D2)"
    )
    query = "SELECT {n} AS a, 'x' AS Name, 'y' AS c{more}, DATE '2020-01-02' AS d, TIMESTAMP '{m}' AS m, 1.50BD AS D2"
    history.run(query.format(n=1, more="", m="2020-01-02 03:04:05.678"), INTO)
    history.world.sql("ALTER TABLE t ADD COLUMNS (later MAP<STRING, INT>)")
    history.run(query.format(n=2, more=", map('k', 1)", m="2020-01-02 03:04:05.678"), INTO)
    rows = [row[:4] for row in history.world.rows("t")]
    history.run(query.format(n=3, more=", map('k', 1)", m="2020-02-02 00:00:00"), OVERWRITE, overwrite=OverwriteScope())
    found = frame(history.world, history.world.catalog.read_source_before(PATH, history.changes[2:]))
    assert found.dtypes == history.world.spark.table("t").dtypes
    assert sorted((row[:4] for row in map(tuple, found.collect())), key=repr) == sorted(rows, key=repr)
    assert found.where("d = DATE '2020-01-02' AND m > TIMESTAMP '2020-01-01 00:00:00' AND D2 < 2").count() == 2
    assert found.where("d > DATE '2020-01-02'").count() == 0
    assert frame(history.world, history.world.catalog.read_source_before(PATH, history.changes[1:])).count() == 1


@pytest.mark.parametrize(
    ("sql", "purpose"),
    [
        ("SELECT 9L AS a, 1L AS p", INTO),
        ("SELECT id + 9 AS a, id AS p FROM range(0, 3, 1, 3)", INTO),
        ("SELECT 9L AS a, 2L AS p", OVERWRITE),
        ("SELECT 9L AS b, 1L AS p", REPLACE),
    ],
    ids=["one file", "several files", "overwrite", "replace"],
)
@pytest.mark.parametrize("by", [[], ["p"]], ids=["flat", "partitioned"])
def test_a_change_that_is_decided_is_left_out_whether_it_is_published_or_not(
    history: History, by: list[str], sql: str, purpose: Purpose
) -> None:
    world = history.world
    history.run("SELECT id AS a, id % 2 AS p FROM range(4)", CREATE, by=by)
    rows, version = world.rows("t"), history.version()
    layout = {"by": by} if purpose is REPLACE else {}
    scope = {"overwrite": OverwriteScope()} if purpose is OVERWRITE else {}
    participant = history.stage(sql, purpose, **layout, **scope)
    pending = [history.decide(participant)]
    assert history.read(pending, version) == rows
    participant.commit()
    assert world.rows("t") != rows
    assert history.read(pending, version) == rows
    if participant.compensate():
        assert world.rows("t") == rows
        assert history.read(pending, version) == rows
        participant.abort()
    else:
        participant.finish()
        world._committed.add(participant.transaction_id)
    assert history.read(pending, version) == rows


def test_files_that_are_added_in_place_are_left_out_and_those_that_are_replaced_in_place_are_missed(
    history: History, tmp_path: Path
) -> None:
    world = history.world
    world.sql(f"CREATE TABLE t (a BIGINT) USING parquet LOCATION '{tmp_path / 'place'}'")
    for n in (1, 2):
        history.run(SEVERAL.format(n=n), INTO)
    history.check()
    overwrite = history.run(ONE.format(n=9), OVERWRITE, overwrite=OverwriteScope())
    with pytest.raises(SnapshotTooOldError, match=f"{overwrite.transaction_id} has changed its files in place"):
        history.read(history.changes[1:])


@pytest.mark.parametrize("both", [True, False], ids=["both add it", "one adds it"])
def test_rows_of_others_in_a_partition_that_an_append_has_added_are_kept(
    history: History, tmp_path: Path, both: bool
) -> None:
    world = history.world
    world.sql(f"CREATE TABLE t (a BIGINT, p BIGINT) USING parquet PARTITIONED BY (p) LOCATION '{tmp_path / 'place'}'")
    one, two = (history.stage(f"SELECT {n}L AS a, 7L AS p", INTO) for n in (1, 2))
    changes = {two: history.decide(two)}
    if both:
        changes[one] = history.decide(one)
    two.commit()
    changes.setdefault(one, history.decide(one))
    one.commit()
    assert world.rows("t") == [(1, 7), (2, 7)]
    assert history.read([changes[two]]) == [(1, 7)]
    assert history.read([changes[one]]) == [(2, 7)]
    neither = world.catalog.read_source_before(PATH, list(changes.values()))
    assert neither.listed and not neither.listed.files and not neither.listed.partitions


def test_files_that_a_new_partition_has_found_in_its_directory_are_not_taken_for_earlier_rows(
    history: History, tmp_path: Path
) -> None:
    world, place = history.world, tmp_path / "place"
    world.sql("SELECT 9L AS a").coalesce(1).write.parquet(str(place / "p=7"))
    world.sql(f"CREATE TABLE t (a BIGINT, p BIGINT) USING parquet PARTITIONED BY (p) LOCATION '{place}'")
    assert world.rows("t") == []
    history.run("SELECT 1L AS a, 7L AS p", INTO)
    assert world.rows("t") == [(1, 7), (9, 7)]
    with pytest.raises(SnapshotTooOldError, match="directory of a new partition"):
        history.read(history.changes)


def test_a_version_that_clean_has_removed_is_missed(history: History) -> None:
    for by in ([], ["p"]):
        history.changes.clear()
        history.run("SELECT 1L AS a, 1L AS p", Purpose.CREATE_OR_REPLACE_TABLE_AS, by=by)
        history.run("SELECT 2L AS a, 1L AS p", OVERWRITE, overwrite=OverwriteScope())
        assert history.read(history.changes[1:]) == [(1, 1)]
        assert "version" in history.world.clean()
        with pytest.raises(SnapshotTooOldError, match="files have been removed"):
            history.read(history.changes[1:])


def test_a_state_that_a_writer_outside_twophase_has_changed_is_refused_only_where_it_is_not_to_be_told(
    history: History,
) -> None:
    world = history.world
    history.run(ONE.format(n=1), CREATE)
    seen = history.version()
    assert history.read([], seen) == [(1,)]
    world.sql("INSERT INTO t VALUES (5)")
    with pytest.raises(SnapshotTooOldError, match="outside twophase"):
        history.read([], seen)
    history.run(ONE.format(n=2), INTO)
    with pytest.raises(SnapshotTooOldError, match="outside twophase"):
        history.read(history.changes[1:], seen)
    assert history.read(history.changes[1:]) == [(1,), (5,)]


def test_a_partition_that_a_writer_outside_twophase_has_changed_is_refused(history: History) -> None:
    world = history.world
    history.run("SELECT id AS a, id % 2 AS p FROM range(4)", CREATE, by=["p"])
    seen = history.version()
    history.run("SELECT 7L AS a, 1L AS p", INTO)
    assert len(history.read(history.changes[1:], seen)) == 4
    world.sql("INSERT INTO t VALUES (5, 0)")
    with pytest.raises(SnapshotTooOldError, match="outside twophase"):
        history.read(history.changes[1:], seen)


def test_a_definition_whose_secrets_are_not_recorded_is_not_read_without_them(history: History) -> None:
    facts: dict[str, Any] = {"provider": "csv", "options": {"my.password": "hunter2-hunter2"}}
    history.run(ONE.format(n=1), CREATE, **facts)
    history.run(ONE.format(n=2), INTO)
    assert history.read(history.changes[1:]) == [(1,)]
    history.run(ONE.format(n=3), REPLACE, **facts)
    assert "hunter2" not in str(history.changes)
    with pytest.raises(SnapshotTooOldError, match="secrets"):
        history.read(history.changes[1:])


def test_serde_tables_are_read_where_spark_reads_their_files_itself(history: History) -> None:
    if not history.world.is_hive:
        assert not history.world.environment.session_metastore.is_hive  # SerDe tables need Hive support.
        return
    history.run("SELECT 1 AS A, 1 AS p", CREATE, provider="hive", serde=PARQUET, by=["p"])
    history.run("SELECT 2 AS A, 1 AS p", INTO)
    history.run("SELECT 3 AS A, 1 AS p", OVERWRITE, overwrite=OverwriteScope())
    history.check()
    history.run("SELECT 4 AS A", REPLACE, provider="hive", serde=TEXT)
    history.run("SELECT 5 AS A", INTO)
    with pytest.raises(SnapshotTooOldError, match="through the metastore"):
        history.read(history.changes[4:])


# -- with a timeline ---------------------------------------------------------------------------------------------------


def names(source: ReadSource) -> set[str]:
    assert source.listed
    return {Path(place).name for place, *_ in source.listed.files}


@pytest.mark.promise("clean", "what the snapshot of an open transaction may need is kept, whatever the retention")
@pytest.mark.parametrize("by", [[], ["p"]], ids=["flat", "partitioned"])
def test_clean_keeps_what_an_open_snapshot_needs(tmp_path: Path, by: list[str]) -> None:
    place, table = Place(tmp_path), pa.table({"id": [1, 2], "p": [1, 2]})
    place.write(by=by, rows=table).commit()
    catalog = place.catalog()
    block = place.coordinator().begin(Isolation.SNAPSHOT)
    block.note_read(catalog, PATH, catalog.table_version(PATH))
    rows = {path.name for path in place.database.rglob("*.parquet")}
    place.write(by=by, rows=table, purpose=REPLACE).commit()
    kept = [one.reason for one in place.clean() if one.leftover.kind == "version"]
    assert kept and all("open transaction" in str(reason) for reason in kept)
    assert names(block.read_source(catalog, PATH)[0]) == rows
    block.commit()
    assert any(one.removed for one in place.clean())
    assert not rows & {path.name for path in place.database.rglob("*.parquet")}


def test_the_changes_that_an_open_snapshot_must_know_are_not_pruned(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write().commit()
    catalog = place.catalog()
    block = place.coordinator().begin(Isolation.SNAPSHOT)
    block.note_read(catalog, PATH, catalog.table_version(PATH))
    place.write(purpose=REPLACE).commit()
    coordinator = Coordinator(place.timeline, {"hive": catalog}.__getitem__, name="job", retention_seconds=0.0)
    coordinator.prune()
    assert len(place.timeline.changes_since("hive", PATH, int(block.snapshot or 0), block.id)) == 1
    block.commit()
    assert coordinator.prune() > 0


def test_what_is_published_while_a_former_state_is_listed_is_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    place.write().commit()
    catalog = place.catalog()
    block = place.coordinator().begin(Isolation.SNAPSHOT)
    rows = {path.name for path in place.database.rglob("*.parquet")}
    place.write(purpose=INTO).commit()
    more = iter([INTO])

    def read_source_before(*arguments: Any) -> ReadSource:
        for purpose in more:
            place.write(purpose=purpose).commit()
        return found(*arguments)

    found = catalog.read_source_before
    monkeypatch.setattr(catalog, "read_source_before", read_source_before)
    assert names(block.read_source(catalog, PATH)[0]) == rows
    block.commit()


def test_a_former_state_is_listed_again_only_after_another_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    place.write().commit()
    catalog = place.catalog()
    block = place.coordinator().begin(Isolation.SNAPSHOT)
    block.read_source(catalog, PATH)[1]()
    listed, found = [], catalog.read_source_before

    def read_source_before(*arguments: Any) -> ReadSource:
        listed.append(arguments)
        return found(*arguments)

    monkeypatch.setattr(catalog, "read_source_before", read_source_before)
    sources = []
    for purpose in (REPLACE, INTO):
        place.write(purpose=purpose).commit()
        for _ in range(2):
            source, note = block.read_source(catalog, PATH)
            sources.append(names(source))
            note()
    assert len(listed) == 2
    assert sources[1:] == sources[:-1]
    block.commit()


def test_a_table_that_is_dropped_after_a_block_has_read_it_is_missed(history: History) -> None:
    history.run(ONE.format(n=1), CREATE)
    seen = history.version()
    history.world.sql("DROP TABLE t")
    with pytest.raises(SnapshotTooOldError, match="it has been dropped"):
        history.read([], seen)

"""Which transactions can be undone: only those whose tables are still as they have left them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.hive.place import PATH, Place
from twophase.catalog import TableChange
from twophase.errors import ConfigurationError
from twophase.model import ObjectPath, Purpose
from twophase.transactions.undoing import Undo, plan_undo

CREATE, REPLACE = Purpose.CREATE_TABLE_AS, Purpose.CREATE_OR_REPLACE_TABLE_AS
INTO, OVERWRITE = Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE
NEW = pa.table({"id": [9], "day": ["c"]})
OLD = pa.table({"id": [1, 2], "day": ["a", "b"]})
REFUSED = "no longer as it has left it"


class Bench:
    """One place, and undoes in it."""

    def __init__(self, directory: Path, by: tuple[str, ...] = ()) -> None:
        self.place, self._by = Place(directory, retention=3600.0), by
        self.catalog = self.place.catalog()

    def write(self, rows: pa.Table = NEW, purpose: Purpose = REPLACE) -> str:
        tx = self.place.write(rows=rows, purpose=purpose, by=self._by)
        tx.commit()
        return tx.id

    def plan(self, transaction_id: str) -> Undo:
        return plan_undo(self.place.timeline, lambda _: self.catalog, transaction_id, lambda *_: None)

    def files(self) -> set[Path]:
        return {file for file in self.place.database.rglob("*.parquet") if not file.name.startswith(".")}

    def alter(self, kind: str, **arguments: Any) -> None:
        self.catalog.alter_table(PATH, [_change(kind, **arguments)])

    def alter_staged(self, kind: str, **arguments: Any) -> str:
        tx = self.place.coordinator().begin()
        participant = tx.stage_alter(self.catalog, PATH, [_change(kind, **arguments)])
        assert participant is not None
        tx.begin_participant(participant)
        tx.write_nothing(participant)
        tx.commit()
        return tx.id


def _change(kind: str, **arguments: Any) -> TableChange:
    names = tuple(arguments["field"].names) if "field" in arguments else ()
    return TableChange(kind, names, arguments)


@pytest.fixture(params=[(), ("day",)], ids=["plain", "partitioned"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(tmp_path, request.param)


@pytest.mark.promise("restore", "an undo is refused where another program has rewritten the files of an INSERT INTO")
def test_rows_that_another_program_has_moved_to_other_files_are_noticed(bench: Bench) -> None:
    bench.write(OLD, CREATE)
    bench.alter("set_property", key="twophase.append", value="files")
    before = bench.files()
    added = bench.write(NEW, INTO)
    bench.plan(added)
    (own,) = bench.files() - before
    # A program compacts the files that are beside it, too.
    files = {file for file in bench.files() if file.parent == own.parent}
    rows = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
    pq.write_table(rows, own.parent / "another.parquet")
    bench.plan(added)  # What others add stays, and is no reason.
    for file in files:
        file.unlink()
    with pytest.raises(ConfigurationError, match=REFUSED):
        bench.plan(added)


@pytest.mark.promise("restore", "an undo is refused where a table was renamed or dropped since")
@pytest.mark.parametrize("purpose", [CREATE, REPLACE, INTO, OVERWRITE])
def test_a_table_that_is_no_longer_there_is_noticed(bench: Bench, purpose: Purpose) -> None:
    if purpose is not CREATE:
        bench.write(OLD, CREATE)
    changed = bench.write(NEW, purpose)
    bench.plan(changed)
    bench.catalog.rename_table(PATH, ObjectPath.of("default", "r"))
    with pytest.raises(ConfigurationError, match=REFUSED):
        bench.plan(changed)


@pytest.mark.promise("restore", "an undo is refused where a table's definition was changed since, which it would lose")
@pytest.mark.parametrize("purpose", [CREATE, REPLACE])
@pytest.mark.parametrize(
    "alter",
    [
        lambda bench: bench.alter("set_property", key="important", value="yes"),
        lambda bench: bench.alter("set_comment", comment="important"),
        lambda bench: bench.alter("add_column", field=pa.schema([("more", pa.int32())])),
    ],
    ids=["property", "comment", "column"],
)
def test_a_changed_definition_is_noticed(bench: Bench, purpose: Purpose, alter: Callable[[Bench], None]) -> None:
    if purpose is not CREATE:
        bench.write(OLD, CREATE)
    changed = bench.write(NEW, purpose)
    bench.plan(changed)
    alter(bench)
    with pytest.raises(ConfigurationError, match=REFUSED):
        bench.plan(changed)


def test_what_was_built_upon_cannot_be_undone_and_the_error_gives_the_way_that_is_left(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(OLD, CREATE)
    changed, later = bench.write(), bench.write()
    with pytest.raises(ConfigurationError, match=f"transaction {later} has changed table .* Undo that first"):
        bench.plan(changed)
    bench.plan(later)


@pytest.mark.promise("restore", "an ALTER TABLE of a block is undone, unless the table was altered again")
def test_an_alter_of_a_block_is_undone_by_the_former_columns(bench: Bench) -> None:
    bench.write(OLD, CREATE)
    altered = bench.alter_staged("add_column", field=pa.schema([("more", pa.int32())]))
    names = bench.catalog.load_table(PATH).schema.names
    assert set(names) == {"id", "more", "day"}
    ((_, _, former),) = bench.plan(altered).former
    assert former.definition is not None and former.listed is not None
    assert set(former.definition.schema.names) == {"id", "day"}
    assert {place.rpartition("/")[2] for place, *_ in former.listed.files} == {file.name for file in bench.files()}
    bench.alter("set_property", key="important", value="yes")
    with pytest.raises(ConfigurationError, match=REFUSED):
        bench.plan(altered)

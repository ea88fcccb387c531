"""ALTER of Hive tables and databases: one metastore call, or a refusal that leaves all as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.hive.test_statements import hive_of
from tests.hive.world import World
from twophase.catalog import TableChange
from twophase.catalogs.hive.definitions import FIELD_IDS
from twophase.catalogs.hive.stamps import STAMP
from twophase.errors import CatalogError, DatabaseNotExistError, TableNotExistError, WriteConflictError
from twophase.model import ObjectPath, Purpose
from twophase.spark.jvm.hive import HiveTables
from twophase.spark.metastore.session import SessionMetastore

PATH = ObjectPath.of("default", "t")


def added(name: str, kind: pa.DataType | None = None, **facts: object) -> TableChange:
    field = pa.field(name, kind or pa.string(), nullable=bool(facts.pop("nullable", True)))
    return TableChange("add_column", (name,), {"field": pa.schema([field]), **facts})


@pytest.mark.parametrize("by", [(), ("k",)])
def test_a_table_takes_a_column_a_comment_and_properties(world: World, by: tuple[str, ...]) -> None:
    world.run("t", world.sql("SELECT 1 AS id, 'a' AS k"), by=by)

    world.catalog.alter_table(PATH, [added("note")])
    world.catalog.alter_table(PATH, [TableChange("update_column_comment", ("note",), {"comment": "new"})])
    world.catalog.alter_table(
        PATH,
        [
            TableChange("set_comment", (), {"comment": "people"}),
            TableChange("set_property", (), {"key": "x", "value": "1"}),
        ],
    )
    world.catalog.alter_table(PATH, [TableChange("remove_property", (), {"key": "x"})])

    assert world.sql("SELECT id, k, note FROM t").collect() == [(1, "a", None)]
    if world.is_hive:  # Hive and Trino see the column, too.
        assert [str(c.getName()) for c in hive_of(world).stored("default", "t").getSd().getCols()][-1] == "note"
    assert ("note", "string", "new") in [tuple(row) for row in world.sql("DESCRIBE t").collect()]
    definition = world.catalog.load_table(PATH)
    assert (definition.comment, "x" in definition.properties) == ("people", False)
    assert definition.partition_columns == by


@pytest.mark.parametrize(
    "changes",
    [
        [TableChange("rename_column", ("id",), {"name": "key"})],
        [TableChange("drop_column", ("id",))],
        [added("ID")],
        [added("n", nullable=False)],
        [TableChange("update_column_nullability", ("id",), {"nullable": False})],
        [added("n"), TableChange("drop_column", ("id",)), TableChange("drop_column", ("n",))],
        [TableChange("update_column_comment", ("gone",), {"comment": "c"})],
        [TableChange("set_property", (), {"key": STAMP, "value": "mine"})],
        [TableChange("remove_property", (), {"key": STAMP})],
        [TableChange("set_property", (), {"key": "x", "value": "1"}), added("n")],
        [TableChange("set_property", (), {"key": "x", "value": "1"}), TableChange("drop_column", ("id",))],
    ],
    ids=lambda changes: "+".join(change.kind for change in changes),
)
def test_what_is_no_single_call_is_refused_and_leaves_the_table(world: World, changes: list[TableChange]) -> None:
    world.run("t", world.sql("SELECT 1 AS id"))
    before = world.catalog.load_table(PATH), world.catalog.existing(PATH).stamp

    with pytest.raises(CatalogError, match=r"default\.t was not altered"):
        world.catalog.alter_table(PATH, changes)

    assert (world.catalog.load_table(PATH), world.catalog.existing(PATH).stamp) == before


# -- other writers -----------------------------------------------------------------------------------------------------

ALTERS = {
    "add": added("more"),
    "drop": TableChange("drop_column", ("b",)),
    "rename": TableChange("rename_column", ("b",), {"name": "c"}),
    "property": TableChange("set_property", (), {"key": "x", "value": "1"}),
}


@pytest.fixture
def by_ids(world: World) -> Iterator[None]:
    """The session reads by field ids, as an attached one does."""
    world.spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    yield
    world.spark.conf.unset("spark.sql.parquet.fieldId.read.enabled")


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, other: Callable[[], object], times: int = 1) -> None:
    """Another writer, just before a call that the ALTER makes."""
    call, left = getattr(owner, name), [None] * times

    def overtaken(*arguments: Any, **named: Any) -> Any:
        if left:
            left.pop()
            other()
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, overtaken)


def ids_of(world: World) -> list[int]:
    return [field.metadata["parquet.field.id"] for field in world.spark.table("t").schema.fields]


def changed_by_another(world: World, purpose: Purpose, **facts: Any) -> Callable[[], object]:
    return lambda: world.run("t", world.sql("SELECT 7 AS id, 8 AS b"), purpose, **facts)


#: The gap between the load and the call; and the one within the call, after its last look.
GAPS = [(SessionMetastore, "alter_definition"), (HiveTables, "_alter_now")]


@pytest.mark.usefixtures("by_ids")
@pytest.mark.promise(
    "evolution", "an `ALTER TABLE` of a session table undoes nothing that another writer has published meanwhile"
)
@pytest.mark.parametrize("gap", GAPS, ids=["load", "call"])
@pytest.mark.parametrize("change", ALTERS.values(), ids=ALTERS)
def test_an_alter_undoes_nothing_that_another_writer_published_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, change: TableChange, gap: tuple[Any, str]
) -> None:
    if not world.is_hive and gap != GAPS[0]:
        return
    ids = {"properties": {FIELD_IDS: "true"}}
    for number, purpose in enumerate((Purpose.INSERT_OVERWRITE, Purpose.REPLACE_TABLE_AS)):
        world.run(
            "t",
            world.sql("SELECT 1 AS id, 2 AS b"),
            Purpose.REPLACE_TABLE_AS if number else Purpose.CREATE_TABLE_AS,
            **ids,
        )
        with monkeypatch.context() as patch:
            before(patch, *gap, changed_by_another(world, purpose, **(ids if number else {})))
            world.catalog.alter_table(PATH, [change])
        assert [row.id for row in world.spark.table("t").collect()] == [7]
        assert ("b" in world.spark.table("t").columns) == (change.kind not in ("drop_column", "rename_column"))
    # The next writers, and the housekeeping, know the table as it is.
    world.run("t", world.spark.table("t"), Purpose.INSERT_INTO)
    assert len(world.rows("t")) == 2
    assert world.staged() == []


@pytest.mark.promise(
    "evolution", "of two `ALTER TABLE` of a session table at once none is lost, and no field id is used twice"
)
@pytest.mark.parametrize("gap", GAPS, ids=["load", "call"])
@pytest.mark.parametrize("stamped", [True, False])
def test_of_two_alters_at_once_none_is_lost_and_no_id_is_used_twice(
    world: World, monkeypatch: pytest.MonkeyPatch, gap: tuple[Any, str], stamped: bool
) -> None:
    if gap != GAPS[0] and not (world.is_hive and stamped):
        return  # A table without a stamp is compared just before the call.
    world.run("t", world.sql("SELECT 1 AS id, 2 AS b"), properties={FIELD_IDS: "true"})
    if not stamped:
        world.sql(f"ALTER TABLE t UNSET TBLPROPERTIES ('{STAMP}')")
    before(monkeypatch, *gap, lambda: world.catalog.alter_table(PATH, [added("other", pa.int32())]))
    world.catalog.alter_table(PATH, [added("more")])
    assert world.spark.table("t").columns == ["id", "b", "other", "more"]
    assert ids_of(world) == [1, 2, 3, 4]
    assert world.rows("t") == [(1, 2, None, None)]


def test_an_alter_that_others_overtake_twice_is_a_conflict(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run("t", world.sql("SELECT 1 AS id, 2 AS b"))
    before(monkeypatch, *GAPS[0], changed_by_another(world, Purpose.INSERT_OVERWRITE), times=2)
    with pytest.raises(WriteConflictError, match=r"default\.t was not altered"):
        world.catalog.alter_table(PATH, [added("more")])
    assert world.rows("t") == [(7, 8)]


def test_what_is_staged_before_an_alter_and_what_comes_after_it_land(world: World) -> None:
    world.run("t", world.sql("SELECT 1 AS id, 2 AS b"))
    early = world.stage("t", world.sql("SELECT 3 AS id, 4 AS b"), Purpose.INSERT_OVERWRITE)
    version = json.loads(world.catalog.table_version(PATH))
    world.catalog.alter_table(
        PATH,
        [
            TableChange("set_property", (), {"key": "x", "value": "1"}),
        ],
    )
    assert json.loads(world.catalog.table_version(PATH)) == version
    world.catalog.alter_table(PATH, [added("more")])
    early.commit()
    early.finish()
    assert world.rows("t") == [(3, 4, None)]
    participant = world.run("t", world.sql("SELECT 5 AS id, 6 AS b, 'x' AS more"), Purpose.INSERT_OVERWRITE)
    world.catalog.alter_table(PATH, [added("last")])
    assert world.reborn(participant).outcome().name == "PUBLISHED"
    assert world.clean(retention=3600.0) == []
    assert world.rows("t") == [(5, 6, "x", None)]


def test_what_is_not_there_cannot_be_altered(world: World) -> None:
    with pytest.raises(TableNotExistError):
        world.catalog.alter_table(PATH, [added("n")])
    with pytest.raises(DatabaseNotExistError):
        world.catalog.alter_database("gone", {"k": "v"})


def test_a_database_takes_properties(world: World) -> None:
    world.catalog.create_database("other", properties={"k": "v", "keep": "me", "comment": "people"})
    location = world.catalog.load_database("other")["location"]
    assert location.endswith(f"{world.warehouse}/other.db")

    world.catalog.alter_database("OTHER", {"k": "w"})
    world.catalog.alter_database("other", {"k": None})

    facts = world.catalog.load_database("other")
    assert {**facts, "owner": ""} == {"keep": "me", "comment": "people", "location": location, "owner": ""}
    world.catalog.drop_database("other")


def test_a_comment_is_changed_or_refused_and_never_lost_in_silence(world: World) -> None:
    world.catalog.create_database("other", properties={"comment": "people"})
    if world.is_hive:
        with pytest.raises(CatalogError, match="keeps the comment"):
            world.catalog.alter_database("other", {"k": "v", "comment": "trees"})
        assert "k" not in world.catalog.load_database("other")
    else:
        world.catalog.alter_database("other", {"comment": "trees"})
        assert world.catalog.load_database("other")["comment"] == "trees"
    world.catalog.drop_database("other")

"""ALTER of Hive tables and databases: one metastore call, or a refusal that leaves all as it was."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.hive.world import World
from twophase.catalog import TableChange
from twophase.catalogs.hive.metastore import STAMP
from twophase.errors import CatalogError, DatabaseNotExistError, TableNotExistError
from twophase.model import ObjectPath

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
        [added("n", position="first")],
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

    with pytest.raises(CatalogError, match=r"ALTER TABLE spark_catalog\.default\.t"):
        world.catalog.alter_table(PATH, changes)

    assert (world.catalog.load_table(PATH), world.catalog.existing(PATH).stamp) == before


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

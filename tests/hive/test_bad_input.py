"""Bad input is told in words before anything is staged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hive.world import World
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    ConfigurationError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.model import BucketSpec, ObjectPath, Purpose, TableDefinition, Transform, WriteContext
from twophase.spark import types

spark40_first_cases = True


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("with.dot", "no valid name"),
        ("with space", "no valid name"),
        ("quote'd", "no valid name"),
        ("back`tick", "no valid name"),
        ("größe", "no valid name"),
        ("x" * 300, "300 characters"),
        ("__twophase_mine", "staging tables"),
    ],
)
def test_names_that_the_session_catalog_cannot_hold(world: World, name: str, words: str) -> None:
    with pytest.raises(CatalogError, match=words):
        world.offer(name, world.sql("SELECT 1 AS a"))


def test_reserved_words_and_capitals_are_names_like_others(world: World) -> None:
    world.run("Select", world.sql("SELECT 1 AS `from`"))
    assert world.rows("`select`") == [(1,)]


@pytest.mark.parametrize(
    ("query", "facts", "words"),
    [
        ("SELECT 1 AS a, 2 AS A", {}, "more than once"),
        ("SELECT 1 AS a, 2 AS ` `", {}, "empty name"),
        ("SELECT 1 AS a", {"by": ["b"]}, "not among the columns"),
        ("SELECT 1 AS a, 2 AS b", {"by": ["b", "B"]}, "more than once"),
        ("SELECT 1 AS a, 2 AS b", {"by": ["b", "a"]}, "All columns"),
        ("SELECT 1 AS a, map(1, 2) AS b", {"by": ["b"], "provider": "hive"}, "no directory"),
        ("SELECT 1 AS a, array(1) AS b", {"by": ["b"], "provider": "hive"}, "no directory"),
        ("SELECT 1 AS a, NULL AS b", {"by": ["b"], "provider": "hive"}, "no directory"),
        ("SELECT 1 AS a", {"bucketing": BucketSpec(2, ("b",))}, "no data column"),
    ],
)
def test_columns_that_no_table_can_have(world: World, query: str, facts: dict[str, Any], words: str) -> None:
    with pytest.raises(CatalogError, match=words):
        world.offer("t", world.sql(query), **facts)


@pytest.mark.promise("same-answers", "no row is lost in a directory that is no partition to readers", detail=True)
def test_partition_columns_whose_directories_are_not_told_apart_are_refused_before_any_job(world: World) -> None:
    with pytest.raises(AtomicityNotSupportedError, match=r"`\.p`"):
        world.offer("t", world.sql("SELECT 1 AS a, 2 AS `.p`"), by=[".p"])
    world.run("t", world.sql("SELECT 1 AS a, 2 AS `_p`"), by=["_p"])
    world.run("t", world.sql("SELECT 1 AS a, 3 AS `_p`"), Purpose.INSERT_INTO, by=["_p"])
    assert world.rows("t") == [(1, 2), (1, 3)]
    world.spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        sensitive = World(world.spark, world.warehouse)
        with pytest.raises(AtomicityNotSupportedError, match="`p`, `P`"):
            sensitive.offer("u", world.sql("SELECT 1 AS a, 2 AS p, 3 AS P"), by=["p", "P"])
    finally:
        world.spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.parametrize("purpose", [Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE])
def test_staged_rows_outside_of_all_partitions_are_not_acknowledged(world: World, purpose: Purpose) -> None:
    world.run("t", world.sql("SELECT 1 AS a, 2 AS p"), by=["p"])
    rows = world.sql("SELECT 2 AS a, id AS p FROM range(2)")
    participant = world.offer("t", rows, purpose, by=["p"])
    participant.begin()
    participant.write(rows)
    (staged,) = Path(world.warehouse).rglob("p=1")
    staged.rename(staged.with_name(".p=1"))
    with pytest.raises(CatalogError, match=r"\.p=1"):
        participant.prepare()
    participant.abort()
    assert world.rows("t") == [(1, 2)]


def test_partition_transforms_are_refused_in_words(world: World) -> None:
    df = world.sql("SELECT current_date() AS d, 1 AS a")
    definition = TableDefinition(types.to_arrow(df.schema.json()), partitioning=(Transform("days", ("d",)),))
    with pytest.raises(CatalogError, match="is a transform"):
        world.catalog.two_phase_create_table(
            ObjectPath.of("default", "t"), definition, purpose=Purpose.CREATE_TABLE_AS, context=WriteContext("x-1")
        )


def test_unknown_database_table_and_a_view_of_that_name(world: World) -> None:
    df = world.sql("SELECT 1 AS a")
    with pytest.raises(DatabaseNotExistError):
        world.offer("t", df, database="nowhere")
    for purpose in (Purpose.REPLACE_TABLE_AS, Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE):
        with pytest.raises(TableNotExistError):
            world.offer("t", df, purpose)
    world.sql("CREATE VIEW v AS SELECT 1 AS a")
    try:
        with pytest.raises(TableAlreadyExistsError, match="a view"):
            world.offer("v", df)
        for purpose in (Purpose.REPLACE_TABLE_AS, Purpose.CREATE_OR_REPLACE_TABLE_AS, Purpose.INSERT_INTO):
            with pytest.raises(CatalogError, match="a view"):
                world.offer("v", df, purpose)
    finally:
        world.sql("DROP VIEW v")


def test_a_table_that_exists_and_rows_of_another_width(world: World) -> None:
    df = world.sql("SELECT 1 AS a")
    world.run("t", df)
    with pytest.raises(TableAlreadyExistsError):
        world.offer("T", df)
    with pytest.raises(CatalogError, match="2 columns"):
        world.offer("t", world.sql("SELECT 1 AS a, 2 AS b"), Purpose.INSERT_INTO)


@pytest.mark.promise("streams", "formats that are not files, and unbounded queries, are not accepted")
def test_formats_that_are_not_files_and_unbounded_queries_get_no_participant(world: World) -> None:
    schema = types.to_arrow(world.sql("SELECT 1 AS a").schema.json())
    path = ObjectPath.of("default", "t")
    for facts in ({"provider": "jdbc"}, {"provider": "delta"}):
        definition = TableDefinition(schema, **facts)
        assert world.catalog.two_phase_create_table(path, definition, purpose=Purpose.CREATE_TABLE_AS) is None
    streaming = world.catalog.two_phase_create_table(
        path, TableDefinition(schema), purpose=Purpose.CREATE_TABLE_AS, is_streaming_mode=True
    )
    assert streaming is None


def test_wrong_options_are_refused_by_name(world: World) -> None:
    with pytest.raises(ConfigurationError, match="recipe"):
        world.with_options(recipe="magic")
    with pytest.raises(ConfigurationError, match="metastore"):
        world.with_options(metastore="glue")
    with pytest.raises(ConfigurationError, match="host"):
        world.with_options(metastore="hiveserver2").catalog.list_databases()

"""Several statements on one table in one transaction: the later one builds on what the earlier one staged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from tests.hive.world import Rows, World
from twophase.catalog.reading import ReadSource
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.errors import AtomicityNotSupportedError
from twophase.model import ObjectPath, Outcome, OverwriteScope, Purpose
from twophase.spark import types


def staged_rows(world: World, participant: HiveParticipant) -> Rows:
    """What a later statement of the transaction reads."""
    source = participant.read_source()
    assert isinstance(source, ReadSource)
    if source.kind == "session_table":
        assert source.name is not None
        df = world.spark.table(f"{source.name.database}.{source.name.name}")
    else:
        assert source.definition is not None and source.provider is not None
        schema = StructType.fromJson(json.loads(types.from_arrow(source.definition.schema)))
        df = world.spark.read.format(source.provider).schema(schema).load(source.location)
    return sorted((tuple(row) for row in df.collect()), key=repr)


@pytest.mark.parametrize("by", [[], ["k"]])
def test_insert_after_create(world: World, by: list[str]) -> None:
    df = world.sql("SELECT id, id % 2 AS k FROM range(2)")
    first = world.stage("t", df, by=by)
    assert staged_rows(world, first) == [(0, 0), (1, 1)]
    second = world.stage("t", world.sql("SELECT 5L AS id, 7L AS k"), Purpose.INSERT_INTO, base=first)
    assert staged_rows(world, second) == [(0, 0), (1, 1), (5, 7)]
    second.commit()
    assert world.rows("t") == [(0, 0), (1, 1), (5, 7)]
    assert first.outcome() is Outcome.NOT_PUBLISHED
    first.abort()
    second.finish()
    assert world.rows("t") == [(0, 0), (1, 1), (5, 7)]
    if by:
        assert world.partitions("t") == ["k=0", "k=1", "k=7"]


@pytest.mark.parametrize("by", [[], ["k"]])
@pytest.mark.parametrize("first_purpose", [Purpose.REPLACE_TABLE_AS, Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE])
@pytest.mark.parametrize("second_purpose", [Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE])
def test_a_second_insert(world: World, by: list[str], first_purpose: Purpose, second_purpose: Purpose) -> None:
    world.run("t", world.sql("SELECT id, id % 2 AS k FROM range(2)"), by=by)
    facts = {"by": by} if first_purpose is Purpose.REPLACE_TABLE_AS else {}
    first = world.stage("t", world.sql("SELECT 5L AS id, 1L AS k"), first_purpose, **facts)
    second = world.stage("t", world.sql("SELECT 6L AS id, 2L AS k"), second_purpose, base=first)
    expected = [(6, 2)]
    if second_purpose is Purpose.INSERT_INTO:
        old = [(0, 0), (1, 1)] if first_purpose is Purpose.INSERT_INTO else []
        expected = [*old, (5, 1), (6, 2)]
    assert staged_rows(world, second) == expected
    assert world.rows("t") == [(0, 0), (1, 1)]
    second.commit()
    first.abort()
    second.finish()
    assert world.rows("t") == expected


def test_an_overwrite_of_one_partition_after_an_insert(world: World) -> None:
    world.run("t", world.sql("SELECT id, id % 2 AS k FROM range(2)"), by=["k"])
    first = world.stage("t", world.sql("SELECT id, id AS k FROM range(5, 7)"), Purpose.INSERT_INTO)
    scope = OverwriteScope({"k": "5"})
    second = world.stage(
        "t", world.sql("SELECT 9L AS id, 5L AS k"), Purpose.INSERT_OVERWRITE, base=first, overwrite=scope
    )
    second.commit()
    first.abort()
    second.finish()
    assert world.rows("t") == [(0, 0), (1, 1), (6, 6), (9, 5)]


def test_replace_after_create_and_after_insert(world: World) -> None:
    first = world.stage("t", world.sql("SELECT 1 AS a"))
    second = world.stage("t", world.sql("SELECT 'x' AS s"), Purpose.CREATE_OR_REPLACE_TABLE_AS, base=first)
    second.commit()
    first.abort()
    second.finish()
    assert world.rows("t") == [("x",)]
    third = world.stage("t", world.sql("SELECT 'y' AS s"), Purpose.INSERT_INTO)
    fourth = world.stage("t", world.sql("SELECT 2 AS b"), Purpose.REPLACE_TABLE_AS, base=third)
    fourth.commit()
    third.abort()
    fourth.finish()
    assert world.rows("t") == [(2,)]


@pytest.mark.parametrize("by", [[], ["k"]])
def test_a_discarded_second_statement_leaves_the_first(world: World, by: list[str]) -> None:
    first = world.stage("t", world.sql("SELECT id, id % 2 AS k FROM range(2)"), by=by)
    second = world.stage("t", world.sql("SELECT 5L AS id, 7L AS k"), Purpose.INSERT_INTO, base=first)
    second.abort()
    first.commit()
    first.finish()
    assert world.rows("t") == [(0, 0), (1, 1)]


def test_a_second_insert_into_an_external_table_is_refused_in_words(world: World, tmp_path: Path) -> None:
    world.sql(f"CREATE TABLE e (id BIGINT) USING parquet LOCATION '{tmp_path / 'here'}'")
    first = world.stage("e", world.sql("SELECT 1L AS id"), Purpose.INSERT_INTO)
    with pytest.raises(AtomicityNotSupportedError, match="already written"):
        world.offer("e", world.sql("SELECT 2L AS id"), Purpose.INSERT_INTO, base=first)
    first.abort()
    assert not world.catalog.table_exists(ObjectPath.of("default", "nothing"))

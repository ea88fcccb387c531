"""One new table, alone in its transaction: the publish makes it in one call, and it is kept as stock Spark keeps it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from tests.hive.test_statements import HIVE, hive_of
from tests.hive.world import World, files_of
from twophase.catalogs.hive.publish import create
from twophase.errors import CatalogError, TableAlreadyExistsError
from twophase.model import Outcome
from twophase.spark.metastore.base import spark_errors
from twophase.spark.metastore.session import SessionMetastore

spark40_first_cases = True
pytestmark = HIVE

TEXT = {
    "serde": "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
    "input_format": "org.apache.hadoop.mapred.TextInputFormat",
    "output_format": "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
}
ROW = "SELECT 1 AS a, 'x' AS s, cast(2 AS decimal(10, 2)) AS d, current_timestamp() AS ts, true AS b, X'00' AS bi"


def kept(world: World, table: str) -> str:
    """A table as the metastore has it, without what differs from table to table: name, time, place, stamp and size."""
    found: list[str] = []
    hive_of(world)._run(lambda store: found.append(str(store.getTable("default", table).toString())))
    text = re.sub(r"\[[^\]]*warehouse[^\]]*\]", "", found[0])
    for fact in ("tableName", "createTime", "location"):
        text = re.sub(rf"\b{fact}:[^,]*,", "", text, count=1)
    for fact in ("path", "twophase.transaction", "transient_lastDdlTime", "totalSize", "numFiles"):
        text = re.sub(rf"{re.escape(fact)}=[^,}}]*(, )?", "", text)
    return text.replace(", }", "}")


@pytest.mark.parametrize("provider", ["parquet", "orc"])
def test_a_table_made_at_once_is_kept_as_stock_spark_keeps_it(world: World, provider: str) -> None:
    facts: dict[str, Any] = {
        "provider": provider,
        "comment": "it's",
        "properties": {"p": "1"},
        "options": {"compression": "zlib" if provider == "orc" else "gzip"},
    }
    world.sql(
        f"CREATE TABLE stock USING {provider} OPTIONS (compression '{facts['options']['compression']}') "
        f"COMMENT 'it\\'s' TBLPROPERTIES ('p' = '1') AS {ROW}"
    )
    participant = world.run("t", world.sql(ROW), autocommit=True, **facts)
    assert participant.document["own"]["at_once"]
    assert kept(world, "t") == kept(world, "stock")
    assert "MANAGED_TABLE" in kept(world, "t")
    assert world.rows("t")[0][:3] == world.rows("stock")[0][:3]


def test_hive_itself_knows_where_a_table_made_at_once_is(world: World) -> None:
    participant = world.run("t", world.sql("SELECT 1 AS a"), autocommit=True)
    found = hive_of(world).client.getTable("default", "t")
    assert str(found.location()).rstrip("/") == participant.version.rstrip("/")
    world.sql("DROP TABLE t")
    assert not any(path.endswith(".parquet") for path in files_of(world.warehouse))


def test_a_wide_schema_is_kept_in_parts_as_spark_does(world: World) -> None:
    columns = ", ".join(f"{n} AS a_rather_long_column_name_{n}" for n in range(80))
    world.sql(f"CREATE TABLE stock USING parquet AS SELECT {columns}")
    assert world.run("t", world.sql(f"SELECT {columns}"), autocommit=True).document["own"]["at_once"]
    assert kept(world, "t") == kept(world, "stock")


@pytest.mark.parametrize(
    ("query", "facts"),
    [
        ("SELECT 1 AS a", {"provider": "csv"}),
        ("SELECT array(1) AS a", {}),
        ("SELECT timestamp_ntz'2026-01-01' AS a", {}),
        ("SELECT 1 AS a, 2 AS k", {"by": ["k"]}),
        ("SELECT 1 AS a", {"autocommit": False}),
    ],
    ids=["format", "nested", "type", "partitioned", "in a transaction"],
)
def test_what_spark_keeps_in_its_own_way_or_is_not_alone_gets_a_hidden_table_first(
    world: World, query: str, facts: dict[str, Any]
) -> None:
    participant = world.run("t", world.sql(query), **{"autocommit": True, **facts})
    assert not participant.document["own"]["at_once"]
    assert len(world.rows("t")) == 1


@pytest.mark.parametrize(
    "properties",
    [{"EXTERNAL": "TRUE"}, {"spark.sql.statistics.numRows": "7"}, {"spark.sql.foo": "1"}],
    ids=lambda properties: next(iter(properties)),
)
def test_properties_that_are_sparks_own_are_refused_as_by_stock_spark(world: World, properties: dict[str, str]) -> None:
    ((key, value),) = properties.items()
    with pytest.raises(AnalysisException) as stock:
        world.sql(f"CREATE TABLE stock USING parquet TBLPROPERTIES ('{key}' '{value}') AS SELECT 1 AS a")
    shutil.rmtree(world.warehouse / "stock")  # Which Spark leaves.
    participant = world.offer("t", world.sql("SELECT 1 AS a"), autocommit=True, properties=properties)
    participant.begin()
    participant.write(world.sql("SELECT 1 AS a"))
    with pytest.raises(spark_errors()) as ours:
        participant.prepare()
    participant.abort()
    assert str(stock.value).split(":")[-1].strip().rstrip(".") in str(ours.value)
    assert world.catalog.find(participant.path) is None


def test_a_table_that_hive_shall_not_read_is_kept_as_stock_spark_keeps_it(world: World) -> None:
    facts: dict[str, Any] = {"provider": "parquet", "options": {"skipHiveMetadata": "true"}}
    world.sql("CREATE TABLE stock USING parquet OPTIONS (skipHiveMetadata 'true') AS SELECT 1 AS a")
    assert not world.run("t", world.sql("SELECT 1 AS a"), autocommit=True, **facts).document["own"]["at_once"]
    assert "LazySimpleSerDe" in kept(world, "stock")
    assert "LazySimpleSerDe" in kept(world, "t")


@pytest.mark.parametrize("taken", ["name", "place"])
def test_what_came_while_the_job_ran_is_found_before_the_decision(world: World, taken: str) -> None:
    df = world.sql("SELECT 1 AS a")
    participant = world.offer("t", df, autocommit=True)
    participant.begin()
    participant.write(df)
    if taken == "name":
        world.sql("CREATE TABLE t (theirs INT) USING parquet")
    else:
        (world.warehouse / "t").mkdir()
        (world.warehouse / "t" / "theirs").touch()
    with pytest.raises(CatalogError, match="already exists" if taken == "name" else "not empty"):
        participant.prepare()
    participant.abort()
    if taken == "place":
        shutil.rmtree(world.warehouse / "t")


@pytest.mark.parametrize(
    "stored", [{"provider": "parquet"}, {"provider": "hive", "serde": TEXT}], ids=["files", "serde"]
)
def test_a_dead_drivers_call_that_a_server_carries_out_late_makes_no_table(
    world: World, stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table whose files a recovery has removed would be an empty one."""
    monkeypatch.setattr(SessionMetastore, "ends_with_driver", False)
    participant = world.stage("t", world.sql("SELECT 1 AS a"), autocommit=True, **stored)
    seen = participant.publisher.check_staged

    def recovered_meanwhile() -> None:
        seen()
        world.reborn(participant).abort()

    monkeypatch.setattr(participant.publisher, "check_staged", recovered_meanwhile)
    with pytest.raises(CatalogError):
        participant.commit()
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    assert world.catalog.find(participant.path) is None


def test_on_a_server_a_table_at_its_own_place_gets_a_hidden_table_first(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts: dict[str, Any] = {"location": f"file:{tmp_path}/place", "external": True, "autocommit": True}
    assert not world.run("own", world.sql("SELECT 1 AS a"), **facts).document["own"]["hidden"]
    world.drop("own")
    shutil.rmtree(tmp_path / "place")
    monkeypatch.setattr(SessionMetastore, "ends_with_driver", False)
    assert world.run("t", world.sql("SELECT 1 AS a"), **facts).document["own"]["hidden"]
    assert world.rows("t") == [(1,)]
    assert world.hidden_tables() == []


def test_what_a_server_published_while_it_was_undone_keeps_its_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SessionMetastore, "ends_with_driver", False)
    participant = world.stage("t", world.sql("SELECT 1 AS a"), autocommit=True)
    late, survivor = participant.commit, world.reborn(participant)
    undo = survivor.publisher.undo

    def just_before() -> None:
        late()
        undo()

    monkeypatch.setattr(survivor.publisher, "undo", just_before)
    survivor.abort()
    assert world.rows("t") == [(1,)]


def test_many_files_are_looked_at_before_the_publish(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create, "FEW_FILES", 1)
    participant = world.run("t", world.sql("SELECT id FROM range(4)").repartition(2), autocommit=True)
    assert not participant.document["own"]["at_once"]
    assert world.rows("t") == [(0,), (1,), (2,), (3,)]


def test_what_hive_does_not_take_is_kept_in_sparks_own_way_as_in_stock_spark(world: World) -> None:
    world.sql(f"CREATE TABLE wide (a INT COMMENT '{'c' * 5000}') USING parquet")
    df = world.spark.table("wide")
    participant = world.run("t", df, autocommit=True)
    assert participant.document["own"]["at_once"]
    assert world.rows("t") == []
    assert world.spark.table("t").schema == df.schema


def test_what_the_metastore_refuses_at_the_publish_is_rolled_back(world: World) -> None:
    before = files_of(world.warehouse)
    participant = world.stage("t", world.sql("SELECT 1 AS a"), autocommit=True, properties={"k" * 300: "v"})
    with pytest.raises(spark_errors()):
        participant.commit()
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    participant.abort()
    assert files_of(world.warehouse) == before
    world.run("t", world.sql("SELECT 1 AS a"), autocommit=True)
    assert world.rows("t") == [(1,)]


def test_of_two_that_make_one_table_at_once_the_second_is_refused_and_takes_nothing(world: World) -> None:
    first, second = (world.stage("t", world.sql(f"SELECT {n} AS a"), autocommit=True) for n in (1, 2))
    first.commit()
    with pytest.raises(TableAlreadyExistsError):
        second.commit()
    second.abort()
    first.finish()
    assert world.rows("t") == [(1,)]

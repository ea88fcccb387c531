"""Formats, bucketing, comments, properties, options and their secrets."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import twophase
from tests.hive.world import World
from twophase.errors import CatalogError
from twophase.model import BucketSpec, Level, ObjectPath, OverwriteScope, Purpose
from twophase.spark.jvm import values
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.metastore import case_classes

TEXT = {
    "serde": "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
    "input_format": "org.apache.hadoop.mapred.TextInputFormat",
    "output_format": "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
}
PARQUET = {
    "serde": "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
    "input_format": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
    "output_format": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
}


@pytest.mark.parametrize("provider", ["parquet", "orc", "csv", "json", "text"])
def test_every_file_format_is_created_inserted_into_and_dropped_with_its_files(world: World, provider: str) -> None:
    df = world.sql("SELECT 'a' AS s")
    facts: dict[str, Any] = {"options": {"header": "true"}} if provider == "csv" else {}
    world.run("f", df, provider=provider, **facts)
    world.run("f", world.sql("SELECT 'b' AS s"), Purpose.INSERT_INTO)
    assert world.rows("f") == [("a",), ("b",)]
    definition = world.catalog.load_table(ObjectPath.of("default", "f"))
    assert definition.provider == provider
    assert {k: v for k, v in definition.options.items() if k == "header"} == facts.get("options", {})
    world.drop("f")
    assert not (world.warehouse / ".twophase" / "f").exists()


def test_bucketed_tables_are_written_by_sparks_own_insert(world: World) -> None:
    spec = BucketSpec(2, ("id",), ("id",))
    created = world.run("b", world.sql("SELECT id, id % 2 AS k FROM range(6)"), by=["k"], bucketing=spec)
    assert (len(world.rows("b")), created.level) == (6, Level.ATOMIC)
    assert world.catalog.load_table(ObjectPath.of("default", "b")).bucketing == spec
    world.run("b", world.sql("SELECT 9L AS id, 1L AS k"), Purpose.INSERT_INTO)
    assert len(world.rows("b")) == 7
    versions = list((world.warehouse / ".twophase" / "b").rglob("*.parquet"))
    assert versions and all("_0000" in path.name for path in versions)


@pytest.mark.promise("same-answers", "the options of an INSERT are those of its files, beside the table's own")
@pytest.mark.parametrize("layout", ["", "PARTITIONED BY (k)", "CLUSTERED BY (id) INTO 1 BUCKETS"])
def test_options_of_an_insert_are_those_of_its_files(world: World, layout: str) -> None:
    spark = world.spark
    handle = twophase.attach(spark)
    try:
        spark.sql(f"CREATE TABLE o (id INT, k INT) USING csv OPTIONS (sep '|') {layout}")
        rows = spark.sql("SELECT 1 AS id, CAST(NULL AS INT) AS k UNION ALL SELECT CAST(NULL AS INT), 2").coalesce(1)
        rows.createOrReplaceTempView("rows_of_o")
        spark.sql("INSERT INTO o WITH (nullValue = '-', compression = 'gzip') SELECT * FROM rows_of_o")
        rows.writeTo("o").option("nullValue", "-").option("compression", "gzip").append()
        rows.write.option("nullvalue", "-").option("compression", "gzip").insertInto("hive.default.o")
        spark.sql("INSERT INTO o SELECT 3, 4")
        files = [Path(name.removeprefix("file:")) for name in spark.table("o").inputFiles()]
        texts = [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else b"" for path in files]
    finally:
        handle.detach()
    zipped = sorted(line for text in texts for line in text.decode().split())
    assert zipped == sorted(["1", "-"] * 3 if "PARTITIONED" in layout else ["1|-", "-|2"] * 3)
    assert texts.count(b"") == 1


@pytest.mark.parametrize("serde", [TEXT, PARQUET], ids=["text", "parquet"])
@pytest.mark.parametrize("by", [[], ["k"]])
def test_serde_tables(world: World, serde: dict[str, str], by: list[str]) -> None:
    if not world.is_hive:
        assert not world.environment.session_metastore.is_hive  # SerDe tables need Hive support, in stock Spark too
        return
    facts: dict[str, Any] = {"provider": "hive", "serde": serde}
    created = world.run("s", world.sql("SELECT id, id % 2 AS k FROM range(4)"), by=by, **facts)
    assert (world.rows("s"), created.level) == ([(0, 0), (1, 1), (2, 0), (3, 1)], Level.ATOMIC)
    world.run("s", world.sql("SELECT 5L AS id, 1L AS k"), Purpose.INSERT_INTO)
    world.run("s", world.sql("SELECT id, k FROM s WHERE id > 1"), Purpose.INSERT_OVERWRITE)
    assert world.rows("s") == [(2, 0), (3, 1), (5, 1)]
    world.run("s", world.sql("SELECT 'x' AS c, id, k FROM s"), Purpose.REPLACE_TABLE_AS, by=by, **facts)
    assert world.rows("s") == [("x", 2, 0), ("x", 3, 1), ("x", 5, 1)]


def test_comment_properties_and_column_comments_are_kept(world: World) -> None:
    df = world.sql("SELECT 1 AS a").withMetadata("a", {"comment": "first"})
    world.run("t", df, comment="all of it", properties={"team": "sales"})
    definition = world.catalog.load_table(ObjectPath.of("default", "t"))
    assert (definition.comment, definition.properties["team"]) == ("all of it", "sales")
    assert definition.schema.field("a").metadata[b"comment"] == b"first"
    assert "twophase.transaction" not in definition.properties


def test_secrets_in_options_are_never_written_down_and_recovery_can_publish(world: World) -> None:
    secret = "hunter2-hunter2"
    facts: dict[str, Any] = {"provider": "csv", "options": {"my.password": secret, "sep": ";"}}
    participant = world.stage("t", world.sql("SELECT 1 AS a, 2 AS b"), **facts)
    text = json.dumps(participant.document) + repr(participant) + str(participant.__getstate__())
    assert secret not in text
    version = world.warehouse / ".twophase" / "t" / f"{participant.transaction_id}-0"
    assert all(secret not in path.read_text(errors="ignore") for path in version.iterdir())
    world.reborn(participant).commit()
    world.reborn(participant).finish()
    assert world.rows("t") == [(1, 2)]
    assert world.catalog.load_table(ObjectPath.of("default", "t")).options["my.password"] == secret


def test_a_replace_with_secrets_is_carried_on_by_recovery(world: World) -> None:
    """The secrets are in the hidden table then, which the metastore keeps as it keeps any table's options."""
    secret = "hunter2-hunter2"
    world.run("t", world.sql("SELECT 1 AS a"), provider="csv", options={"my.passphrase": "old"})
    facts: dict[str, Any] = {"provider": "csv", "options": {"my.passphrase": secret, "apiKeyId": secret, "sep": ";"}}
    participant = world.stage("t", world.sql("SELECT 2 AS a, 3 AS b"), Purpose.REPLACE_TABLE_AS, **facts)
    assert secret not in json.dumps(participant.document)
    world.reborn(participant).commit()
    world.reborn(participant).finish()
    assert world.rows("t") == [(2, 3)]
    found = world.catalog.load_table(ObjectPath.of("default", "t")).options
    assert (found["my.passphrase"], found["apiKeyId"]) == (secret, secret)


def test_a_partitioned_replace_with_secrets_is_carried_on_by_recovery(world: World) -> None:
    secret = "hunter2-hunter2"
    old = world.sql("SELECT 1 AS a, 'x' AS d")
    world.run("t", old, by=["d"], properties={"payload.key": "old"})
    facts: dict[str, Any] = {"by": ["d"], "properties": {"payload.key": secret, "note": "new"}}
    participant = world.stage("t", world.sql("SELECT 2 AS a, 'y' AS d"), Purpose.REPLACE_TABLE_AS, **facts)
    assert secret not in json.dumps(participant.document)
    world.reborn(participant).commit()
    world.reborn(participant).finish()
    assert world.rows("t") == [(2, "y")]
    found = world.catalog.load_table(ObjectPath.of("default", "t")).properties
    assert (found["payload.key"], found["note"]) == (secret, "new")


def test_types_survive(world: World) -> None:
    query = (
        "SELECT named_struct('a', 1, 'b', array('x')) AS s, map('k', 1.50BD) AS m, date'2024-01-02' AS d, "
        "timestamp'2024-01-02 03:04:05' AS t, cast('x' AS binary) AS bin, 1Y AS y"
    )
    df = world.sql(query)
    world.run("n", df)
    assert world.spark.table("n").dtypes == df.dtypes
    assert world.rows("n") == [tuple(df.first())]


def piped(world: World) -> None:
    """A text table with a partition whose rows are read in another way than the table's."""
    world.run("s", world.sql("SELECT '1|2' AS a, '0' AS b, 'x' AS d"), by=["d"], provider="hive", serde=TEXT)
    world.sql("ALTER TABLE s PARTITION (d = 'x') SET SERDEPROPERTIES ('field.delim' = '|')")


def delimiter(world: World) -> str | None:
    found = world.sql("DESCRIBE EXTENDED s PARTITION (d = 'x')").where("col_name = 'Storage Properties'").first()[1]
    return str(found) if "field.delim" in str(found) else None


def test_rows_are_not_added_where_the_old_ones_are_read_in_another_way(world: World) -> None:
    if not world.is_hive:
        return  # SerDe tables need Hive support
    piped(world)
    before, rows = world.rows("s"), world.sql("SELECT '3' AS a, '4' AS b, 'x' AS d")
    participant = world.offer("s", rows, Purpose.INSERT_INTO)
    participant.begin()
    participant.write(rows)
    with pytest.raises(CatalogError, match="SERDEPROPERTIES"):
        participant.prepare()
    participant.abort()
    assert world.rows("s") == before == [("1", "2\x010", "x")]

    world.run("s", world.sql("SELECT '3' AS a, '4' AS b, 'y' AS d"), Purpose.INSERT_INTO)
    assert world.rows("s") == [*before, ("3", "4", "y")]
    assert delimiter(world)
    world.run("s", rows, Purpose.INSERT_OVERWRITE, overwrite=OverwriteScope({"d": "x"}))
    assert world.rows("s") == [("3", "4", "x"), ("3", "4", "y")]


def test_a_partition_keeps_settings_that_its_files_do_not_depend_on(world: World) -> None:
    if not world.is_hive:
        return  # SerDe tables need Hive support
    world.run("s", world.sql("SELECT 1 AS a, 'x' AS d"), by=["d"], provider="hive", serde=PARQUET)
    world.sql("ALTER TABLE s PARTITION (d = 'x') SET SERDEPROPERTIES ('field.delim' = '|')")
    parameters(world, owner="me", numRows="7")
    world.run("s", world.sql("SELECT 2 AS a, 'x' AS d"), Purpose.INSERT_INTO)
    assert world.rows("s") == [(1, "x"), (2, "x")]
    assert delimiter(world)
    assert (parameters(world).get("owner"), parameters(world).get("numRows")) == ("me", None)


def parameters(world: World, **more: str) -> dict[str, str]:
    """Parameters of the partition, as another engine sees them; or adds to them."""
    jvm = Jvm(world.spark)
    catalog = world.spark._jsparkSession.sessionState().catalog().externalCatalog()
    partition = catalog.listPartitions("default", "s", values.option(jvm, None)).apply(0)
    known = {**values.entries(jvm, partition.parameters()), **more}
    if more:
        changed = case_classes(jvm).copy(partition, parameters=values.scala_map(jvm, known))
        catalog.alterPartitions("default", "s", values.seq(jvm, [changed]))
    return known

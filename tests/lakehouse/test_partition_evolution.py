"""``ALTER TABLE ... PARTITION FIELD``: new files by the new partitioning, old ones read and left out by their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import ParseException

import twophase
from tests.lakehouse.shop import Shop
from twophase.errors import AtomicityNotSupportedError, CatalogError

#: What holds the Iceberg catalog of the session.
KIND = "sqlite"


def _fields(shop: Shop) -> list[tuple[int, str, str]]:
    """The partition fields that PyIceberg reads."""
    return [(field.field_id, field.name, str(field.transform)) for field in shop.iceberg("t").spec().fields]


def _files(shop: Shop, where: str) -> set[str]:
    """The files that Spark reads for a condition."""
    return {row[0] for row in shop.sql(f"SELECT DISTINCT input_file_name() FROM @t WHERE {where}").collect()}


@pytest.mark.promise(
    "evolution", "a table whose partitioning changes: old files are read, and left out, by their own", detail=True
)
def test_a_table_whose_partitioning_changes_reads_all_of_its_files_right(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t (id BIGINT, day DATE, name STRING) PARTITIONED BY (day)")
    shop.sql("INSERT INTO @t VALUES (1, DATE'2026-01-01', 'a'), (2, DATE'2026-01-02', 'b')")
    shop.sql("ALTER TABLE @t ADD PARTITION FIELD bucket(16, id)")
    assert _fields(shop) == [(1000, "day", "identity"), (1001, "id_bucket_16", "bucket[16]")]
    shop.sql("INSERT INTO @t VALUES (3, DATE'2026-01-02', 'c')")
    shop.sql("ALTER TABLE @t REPLACE PARTITION FIELD id_bucket_16 WITH truncate(1, name) AS letter")
    shop.sql("INSERT INTO @t VALUES (4, DATE'2026-01-02', 'd')")
    shop.sql("ALTER TABLE @t DROP PARTITION FIELD day")
    shop.sql("INSERT INTO @t VALUES (5, DATE'2026-01-01', 'e')")
    assert _fields(shop) == [(1002, "letter", "truncate[1]")]
    assert [row[0] for row in shop.rows("t")] == [1, 2, 3, 4, 5]
    assert shop.read("SELECT id FROM @t WHERE day = DATE'2026-01-01' ORDER BY id") == [(1,), (5,)]
    assert shop.read("SELECT id FROM @t WHERE id = 3 AND name = 'c'") == [(3,)]
    specs = "SELECT spec_id, partition.day IS NULL FROM @t.files ORDER BY 1, 2"
    assert shop.read(specs) == [(0, False), (0, False), (1, False), (2, False), (3, True)]
    assert len(_files(shop, "day = DATE'2026-01-02'")) == 3


def test_a_field_that_comes_back_has_its_number_again(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t (id BIGINT, at TIMESTAMP) PARTITIONED BY (days(at))")
    before = _fields(shop)
    shop.sql("ALTER TABLE @t DROP PARTITION FIELD days(at)")
    assert _fields(shop) == []
    shop.sql("ALTER TABLE @t ADD PARTITION FIELD day(at) AS at_day")
    assert _fields(shop) == before
    shop.sql("ALTER TABLE @t REPLACE PARTITION FIELD days(at) WITH hours(at)")
    assert _fields(shop) == [(1001, "at_hour", "hour")]
    shop.sql("ALTER TABLE @t REPLACE PARTITION FIELD at_hour WITH bucket(4, id) AS shard")
    shop.sql("ALTER TABLE @t DROP PARTITION FIELD shard")
    shop.sql("ALTER TABLE @t ADD PARTITION FIELD bucket(4, id)")
    assert _fields(shop) == [(1002, "shard", "bucket[4]")]
    shop.sql("ALTER TABLE @t REPLACE PARTITION FIELD shard WITH bucket(4, id) AS other")
    assert _fields(shop) == [(1003, "other", "bucket[4]")]


def test_an_overwrite_of_partitions_obeys_the_new_partitioning(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t (id BIGINT, p STRING, q STRING) PARTITIONED BY (p)")
    shop.sql("INSERT INTO @t VALUES (1, 'a', 'x'), (2, 'b', 'x')")
    shop.sql("ALTER TABLE @t ADD PARTITION FIELD q")
    shop.sql("INSERT INTO @t VALUES (3, 'b', 'y')")
    # The file of a says that it is not of b, and the one of b that all of it is.
    shop.sql("INSERT OVERWRITE @t PARTITION (p = 'b') VALUES (4, 'y')")
    assert shop.rows("t") == [(1, "a", "x"), (4, "b", "y")]
    shop.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        shop.sql("INSERT OVERWRITE @t VALUES (5, 'b', 'y'), (6, 'c', 'y')")
        assert shop.rows("t") == [(1, "a", "x"), (5, "b", "y"), (6, "c", "y")]
        with pytest.raises(CatalogError, match="earlier partitioning"):
            shop.sql("INSERT OVERWRITE @t VALUES (7, 'a', 'y')")  # Is 1 one of q = 'y'?
    finally:
        shop.spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert shop.rows("t") == [(1, "a", "x"), (5, "b", "y"), (6, "c", "y")]


def test_what_is_no_change_of_a_partition_field_is_refused_with_the_reason(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t (id BIGINT, p STRING) PARTITIONED BY (p)")
    for change, problem in (
        ("ADD PARTITION FIELD p", "partitioned by p already"),
        ("ADD PARTITION FIELD nope", "no such column"),
        ("ADD PARTITION FIELD hours(p)", "no hours of p"),
        ("ADD PARTITION FIELD hash(p)", r"partitioned by hash\(p\)"),
        ("ADD PARTITION FIELD bucket(0, id)", "whole number above 0"),
        ("ADD PARTITION FIELD bucket(2, id) AS p", "partitioned twice"),
        ("DROP PARTITION FIELD id", "no partition field id.*partitioned by p"),
        ("REPLACE PARTITION FIELD bucket(2, id) WITH id", r"no partition field bucket\(2, id\)"),
    ):
        with pytest.raises(CatalogError, match=problem):
            shop.sql(f"ALTER TABLE @t {change}")
    problem = r"partitioning of .* cannot be changed in a transaction"
    with pytest.raises(AtomicityNotSupportedError, match=problem), twophase.transaction(shop.spark):
        shop.sql("ALTER TABLE @t ADD PARTITION FIELD bucket(2, id)")
    with pytest.raises(ParseException):
        shop.spark.sql("ALTER TABLE elsewhere.db.t ADD PARTITION FIELD id")
    assert _fields(shop) == [(1000, "p", "identity")]


def test_a_table_that_lost_rows_before_its_partitioning_changed_is_written_on(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t (id BIGINT) TBLPROPERTIES ('commit.manifest.min-count-to-merge' = '3')")
    for number in (1, 2):
        shop.sql(f"INSERT INTO @t VALUES ({number})")
    shop.sql("DELETE FROM @t WHERE id = 1")
    shop.sql("DELETE FROM @t WHERE id = 2")
    shop.sql("ALTER TABLE @t ADD PARTITION FIELD id")
    for number in (3, 4, 5):
        shop.sql(f"INSERT INTO @t VALUES ({number})")
    assert shop.rows("t") == [(3,), (4,), (5,)]
    assert shop.read("SELECT * FROM @t.manifests WHERE added_data_files_count + existing_data_files_count = 0") == []


@pytest.mark.promise("evolution", "rows go from a table that was partitioned by a column that it has lost", detail=True)
def test_rows_of_files_that_are_partitioned_by_a_dropped_column_are_replaced(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE @t (id BIGINT, p STRING, d DATE) PARTITIONED BY (p, days(d)) "
        "TBLPROPERTIES ('commit.manifest.min-count-to-merge' = '2')"
    )
    shop.sql("INSERT INTO @t SELECT id, CAST(id % 2 AS STRING), DATE'2026-01-01' FROM range(4)")
    shop.sql("INSERT INTO @t VALUES (4, 'x', DATE'2026-01-02')")
    for change in ("DROP PARTITION FIELD p", "DROP PARTITION FIELD days(d)", "DROP COLUMNS (p, d)"):
        shop.sql(f"ALTER TABLE @t {change}")
    shop.sql("DELETE FROM @t WHERE id = 3")
    shop.sql("INSERT INTO @t VALUES (5)")
    assert shop.rows("t", but={"iceberg-rust"}) == [(0,), (1,), (2,), (4,), (5,)]  # It knows no lost columns.
    # The manifests that remain say in which partitions their files were.
    assert shop.read("SELECT partition.p FROM @t.files WHERE spec_id = 0 ORDER BY 1") == [("0",), ("x",)]
    shop.sql("INSERT OVERWRITE @t VALUES (6)")
    assert shop.rows("t") == [(6,)]
    shop.sql("TRUNCATE TABLE @t")
    assert shop.rows("t") == []


@pytest.mark.not_read_by("iceberg-rust", "it looks for the column of each partition field in the present schema")
@pytest.mark.parametrize("rest", ["q", "bucket(2, q)"])
def test_a_table_with_a_void_partition_field_of_a_dropped_column_is_written(shop: Shop, rest: str) -> None:
    """As of a table of format version 1, which has kept each field, and was upgraded."""
    shop.sql(f"CREATE TABLE @t (id BIGINT, p STRING, q STRING) PARTITIONED BY (p, {rest})")
    shop.sql("INSERT INTO @t VALUES (1, 'a', 'x'), (2, 'b', 'y')")
    shop.sql("ALTER TABLE @t DROP PARTITION FIELD p")
    shop.sql("ALTER TABLE @t DROP COLUMN p")
    location = shop.lake.metadata_location(shop.path("t"))
    metadata = json.loads(Path(location.removeprefix("file://")).read_text())
    specs = {spec["spec-id"]: spec["fields"] for spec in metadata["partition-specs"]}
    specs[1].insert(0, {**specs[0][0], "transform": "void"})
    metadata["metadata-log"].append({"metadata-file": location, "timestamp-ms": metadata["last-updated-ms"]})
    upgraded = location.replace(".metadata.json", "-2.metadata.json")
    Path(upgraded.removeprefix("file://")).write_text(json.dumps(metadata))
    shop.lake.execute(f"UPDATE iceberg_tables SET metadata_location = '{upgraded}' WHERE table_name = 't'")
    shop.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        shop.sql("INSERT INTO @t VALUES (3, 'x'), (4, 'y')")
        shop.sql("INSERT INTO @t VALUES (5, 'x')")
        shop.sql("DELETE FROM @t WHERE id < 3")
        shop.sql("INSERT OVERWRITE @t VALUES (6, 'x')")
    finally:
        shop.spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert shop.rows("t", but={"iceberg-rust"}) == [(4, "y"), (6, "x")]
    assert shop.read("SELECT DISTINCT spec_id, partition.p FROM @t.files") == [(1, None)]

"""Reads: time travel, the options of Iceberg's own reads, and metadata as tables."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import twophase
from tests.lakehouse.foreign import delete_positions
from tests.lakehouse.shop import DATABASE, Shop
from twophase.catalogs.lakehouse import manifests
from twophase.catalogs.lakehouse.inspecting import INSPECTIONS
from twophase.errors import CatalogError
from twophase.lru import LruCache

spark40_first_cases = True
KIND = "sqlite"


def test_time_travel_by_snapshot_tag_and_time(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id")
    with shop.lake.iceberg() as other:
        table = other.load_table((DATABASE, "t"))
        first = table.metadata.current_snapshot_id
        table.manage_snapshots().create_tag(first, "before").commit()
    shop.sql("ALTER TABLE @t RENAME COLUMN id TO number")
    shop.sql("INSERT INTO @t SELECT 2L")
    at = shop.iceberg("t").metadata.snapshots[0].timestamp_ms / 1000
    shop.spark.table(shop.name("t")).cache()
    assert shop.sql(f"SELECT * FROM @t VERSION AS OF {first}").columns == ["id"]
    assert shop.read("SELECT id FROM @t VERSION AS OF 'before'") == [(1,)]
    assert shop.read("SELECT number FROM @t VERSION AS OF 'main'") == [(1,), (2,)]
    assert shop.read(f"SELECT id FROM @t TIMESTAMP AS OF timestamp_seconds({at})") == [(1,)]
    for clause in ("VERSION AS OF 'nowhere'", "VERSION AS OF 7", "TIMESTAMP AS OF '2000-01-01'"):
        with pytest.raises(CatalogError, match="no s"):
            shop.read(f"SELECT * FROM @t {clause}")


def test_the_options_of_icebergs_own_reads_are_followed_or_refused(shop: Shop) -> None:
    def read(**options: Any) -> list[Any]:
        renamed = {name.replace("_", "-"): str(value) for name, value in options.items()}
        return sorted(tuple(row) for row in shop.spark.read.options(**renamed).table(shop.name("t")).collect())

    shop.sql("CREATE TABLE @t AS SELECT 1L AS id")
    for number in (2, 3):
        shop.sql(f"INSERT INTO @t VALUES ({number})")
    shop.sql("ALTER TABLE @t ADD COLUMN name STRING")
    shop.sql("INSERT OVERWRITE @t VALUES (9, 'x')")
    with shop.lake.iceberg() as other:
        table = other.load_table((DATABASE, "t"))
        one, two, three, four = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
        table.manage_snapshots().create_tag(two, "before").create_branch(one, "side").commit()
    shop.sql("REFRESH TABLE @t")
    shop.spark.table(shop.name("t")).cache()
    at = shop.iceberg("t").metadata.snapshots[1].timestamp_ms
    assert read() == read(split_size=1, versionAsOf=four) == [(9, "x")]
    assert read(snapshot_id=two) == read(tag="before") == read(as_of_timestamp=at) == [(1, None), (2, None)]
    assert read(branch="side") == [(1, None)]
    assert read(branch="main") == [(9, "x")]
    assert read(start_snapshot_id=one) == read(start_snapshot_id=one, end_snapshot_id=three) == [(2, None), (3, None)]
    assert read(start_snapshot_id=two, end_snapshot_id=three) == [(3, None)]
    assert shop.read(f"SELECT id FROM @t WITH ('snapshot-id' = '{one}')") == [(1,)]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"branch": "nope"}, "no branch 'nope'"),
        ({"branch": "before"}, "no branch 'before'"),
        ({"tag": "side"}, "no tag 'side'"),
        ({"as_of_timestamp": 1}, "no state of that time"),
        ({"snapshot_id": 7}, "no snapshot 7"),
        ({"snapshot_id": "x"}, "a number"),
        ({"end_snapshot_id": two}, "a start and an end"),
        ({"snapshot_id": one, "tag": "before"}, "one state"),
        ({"start_snapshot_id": three, "end_snapshot_id": one}, "no ancestor"),
        ({"snapshot_idd": one}, "Did you mean snapshot-id"),
        ({"versionAsOf": one, "snapshot_id": two}, "already"),
    ]
    for options, words in wrong:
        with pytest.raises(CatalogError, match=words):
            read(**options)
    with pytest.raises(CatalogError, match="no option snapshot-id"):
        shop.spark.read.option("snapshot-id", one).table(f"{shop.name('t')}.files").collect()
    with twophase.transaction(shop.spark):
        shop.sql("INSERT INTO @t VALUES (10, 'y')")
        with pytest.raises(CatalogError, match="its transaction has written it"):
            read(snapshot_id=one)


@pytest.mark.not_read_by("iceberg-rust", "it looks for the column of each partitioning in the present schema")
def test_a_condition_on_an_earlier_state_with_deleted_rows_is_one_on_its_columns_of_then(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t PARTITIONED BY (p) AS SELECT id, 5 AS v, 500 AS v2, 1 AS p FROM range(3)")
    with shop.lake.iceberg() as other:
        delete_positions(other.load_table((DATABASE, "t")), [0])
        then = other.load_table((DATABASE, "t")).current_snapshot().snapshot_id
        other.load_table((DATABASE, "t")).update_spec().remove_field("p").commit()
    shop.sql("REFRESH TABLE @t")
    shop.sql("ALTER TABLE @t DROP COLUMN v")
    shop.sql("ALTER TABLE @t DROP COLUMN p")
    shop.sql("ALTER TABLE @t RENAME COLUMN v2 TO v")
    for condition in ("v = 5", "v = 5 AND v2 = 500", "p = 1 AND v IS NOT NULL"):
        assert shop.read(f"SELECT id FROM @t VERSION AS OF {then} WHERE {condition}") == [(1,), (2,)]
    assert shop.read("SELECT id FROM @t WHERE v = 500") == [(1,), (2,)]


@pytest.mark.promise("caches", "a cached query of one version of a table is not that of another one", detail=True)
def test_two_versions_of_a_table_with_deleted_rows_are_two_queries(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT id FROM range(9)")
    for positions in ([0], [1, 2]):
        with shop.lake.iceberg() as other:
            delete_positions(other.load_table((DATABASE, "t")), positions)
    _, one, two = (snapshot.snapshot_id for snapshot in shop.iceberg("t").metadata.snapshots)
    shop.sql("REFRESH TABLE @t")
    older, newer = (f"SELECT * FROM @t VERSION AS OF {version}" for version in (one, two))
    assert shop.read(f"{older} EXCEPT {newer} WHERE id > 5") == [(1,), (2,), (3,), (4,), (5,)]
    cached = shop.sql(older).cache()
    assert (cached.count(), shop.sql(newer).count(), shop.sql(older).count()) == (8, 6, 8)
    cached.unpersist()


@pytest.mark.promise("iceberg-sql", "NULL in branches and older snapshots is found after `SET NOT NULL`", detail=True)
def test_null_in_other_states_is_found_after_its_column_has_become_not_null(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id, CAST(NULL AS INT) AS v, named_struct('x', CAST(NULL AS INT)) AS s")
    with shop.lake.iceberg() as other:
        table = other.load_table((DATABASE, "t"))
        old = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_branch(old, "side").commit()
    shop.sql("INSERT OVERWRITE @t VALUES (2, 5, named_struct('x', 6))")
    shop.sql("ALTER TABLE @t ALTER COLUMN v SET NOT NULL")
    shop.sql("ALTER TABLE @t ALTER COLUMN s.x SET NOT NULL")
    with shop.lake.iceberg() as other:
        other.load_table((DATABASE, "t")).append(shop.iceberg("t").scan().to_arrow(), branch="side")
    shop.sql("REFRESH TABLE @t")
    for condition in ("v IS NULL", "s.x IS NULL", "coalesce(v, 0) = 0"):
        assert shop.read(f"SELECT id FROM @t VERSION AS OF 'side' WHERE {condition}") == [(1,)]
        assert shop.read(f"SELECT id FROM @t VERSION AS OF {old} WHERE {condition}") == [(1,)]
    assert not shop.spark.table(shop.name("t")).schema["v"].nullable
    for options in ({"snapshot-id": old}, {"branch": "side"}):
        with pytest.raises(CatalogError, match="may hold NULL in v"):
            shop.spark.read.options(**options).table(shop.name("t")).collect()


def test_an_incremental_read_has_each_row_once_where_manifests_were_merged(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t TBLPROPERTIES ('commit.manifest.min-count-to-merge' = '2') AS SELECT 1L AS id")
    for number in (2, 3, 4):
        shop.sql(f"INSERT INTO @t VALUES ({number})")
    first = shop.iceberg("t").metadata.snapshots[0].snapshot_id
    found = shop.spark.read.option("start-snapshot-id", first).table(shop.name("t"))
    assert sorted(row.id for row in found.collect()) == [2, 3, 4]


def test_metadata_is_read_as_tables(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id")
    shop.sql("INSERT INTO @t SELECT 2L")
    assert shop.read("SELECT operation FROM @t.snapshots") == [("append",), ("append",)]
    assert shop.read("SELECT sum(record_count) FROM @t.files") == [(2,)]
    assert len(shop.read("SELECT made_current_at FROM @t.history")) == 2
    assert len(shop.read("SELECT path FROM @t.manifests")) == 2
    assert shop.read("SELECT name, type FROM @t.refs") == [("main", "BRANCH")]


def test_metadata_is_read_of_tables_without_rows_and_of_tables_that_lost_what_they_were_partitioned_by(
    shop: Shop,
) -> None:
    def counts() -> list[int]:
        return [len(shop.read(f"SELECT * FROM @t.{name}")) for name in INSPECTIONS]

    shop.sql("CREATE TABLE @t (a INT, p STRING, at TIMESTAMP) PARTITIONED BY (p, days(at))")
    assert counts() == [0, 0, 0, 0, 0, 0, 1]
    assert shop.read("SELECT partition.p, spec_id, record_count FROM @t.partitions") == []
    shop.sql("INSERT INTO @t SELECT 1, 'x', TIMESTAMP'2020-01-02 03:00:00'")
    assert counts() == [1, 1, 1, 1, 1, 1, 2]
    assert shop.read("SELECT file_format, partition FROM @t.files") == [("PARQUET", ("x", datetime.date(2020, 1, 2)))]
    # Both its columns are other ones now, of which one has the name of an old one.
    shop.sql("CREATE OR REPLACE TABLE @t PARTITIONED BY (p) AS SELECT 7 AS p, 2L AS z")
    assert counts() == [2, 2, 1, 1, 1, 1, 3]
    assert shop.read("SELECT partition.p, record_count FROM @t.files") == [(7, 1)]
    assert shop.read("SELECT partition, record_count FROM @t.partitions") == [((7,), 1)]
    shop.sql("CREATE OR REPLACE TABLE @t AS SELECT 'only' AS z")
    assert counts() == [3, 3, 1, 1, 1, 1, 4]
    shop.sql("CREATE OR REPLACE TABLE @t PARTITIONED BY (z) AS SELECT 1 AS z WHERE false")
    assert counts() == [4, 4, 0, 0, 0, 1, 5]
    assert shop.read("SELECT partition.z, spec_id FROM @t.partitions UNION SELECT partition.z, 1 FROM @t.files") == []
    for name in INSPECTIONS:
        (count,) = shop.read(f"SELECT count(*) FROM @t.{name}")
        assert count == (len(shop.read(f"SELECT * FROM @t.{name}")),)


@pytest.mark.not_read_by("iceberg-rust", "it looks for the column of each partitioning in the present schema")
def test_metadata_tells_files_of_an_older_partitioning_whose_column_is_gone(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t (a INT, p STRING, q INT) PARTITIONED BY (p, q)")
    shop.sql("INSERT INTO @t VALUES (1, 'x', 5)")
    with shop.lake.iceberg() as other:  # As ALTER TABLE ... DROP PARTITION FIELD and DROP COLUMN of another engine.
        table = other.load_table((DATABASE, "t"))
        table.update_spec().remove_field("p").commit()
        table.update_schema().delete_column("p").commit()
    shop.sql("REFRESH TABLE @t")
    shop.sql("INSERT INTO @t VALUES (2, 6)")
    assert shop.read("SELECT partition FROM @t.files WHERE partition.q = 5") == [(("x", 5),)]
    assert shop.read("SELECT partition FROM @t.files WHERE partition.q = 6") == [((None, 6),)]
    assert len(shop.read("SELECT * FROM @t.partitions")) == 2
    bounds = shop.read("SELECT partition_spec_id, partition_summaries.lower_bound FROM @t.manifests")
    assert bounds == [(0, ("x", "5")), (1, ("6",))]


@contextmanager
def truncated(location: str, size: int) -> Iterator[str]:
    """A file without its end; afterwards it is as before."""
    file = Path(location.removeprefix("file://"))
    whole = file.read_bytes()
    file.write_bytes(whole[:size])
    try:
        yield file.name
    finally:
        file.write_bytes(whole)


#: The second is a condition that Spark does not hand to tables.
READS = ("SELECT sum(id) FROM @t", "DELETE FROM @t WHERE id = 2", "DELETE FROM @t WHERE abs(id) = 2")


@pytest.mark.promise("iceberg-sql", "a data file that has lost its bytes is an error, also for `DELETE`", detail=True)
def test_rows_of_an_emptied_data_file_are_not_left_out(shop: Shop) -> None:
    """Spark's own readers skip a file without bytes; a DELETE would then remove it with all its rows."""
    shop.sql("CREATE TABLE @t AS SELECT id FROM range(0, 6, 1, 1)")
    (file,) = shop.data_files("t")
    shop.sql("INSERT INTO @t VALUES (7)")
    with truncated(file, 0) as name:
        for statement in READS:
            with pytest.raises(CatalogError, match=rf"statements\.t cannot be read: its file .*{name} is empty"):
                shop.read(statement)
    assert shop.rows("t") == [(n,) for n in (*range(6), 7)]


def sizes_of(file: str) -> tuple[int, int]:
    """The bytes of an Avro file's header, and of the file without the last of its end."""
    content = Path(file.removeprefix("file://")).read_bytes()
    return content.index(content[-16:]) + 16, len(content) - 20


@pytest.mark.promise("iceberg-sql", "a manifest, or a list of them, that has lost its end is an error", detail=True)
@pytest.mark.parametrize("deletes", [False, True])
def test_files_that_a_damaged_manifest_or_list_has_lost_are_not_left_out(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, *, deletes: bool
) -> None:
    """Avro ends where no block begins, so what is cut behind the header reads as empty."""
    monkeypatch.setattr(manifests, "_lists", LruCache(0))  # A list that was read before is known.
    shop.sql("CREATE TABLE @t AS SELECT id FROM range(3)")
    if deletes:
        with shop.lake.iceberg() as other:
            delete_positions(other.load_table((DATABASE, "t")), [1])
    before = shop.rows("t")
    reads = READS[:1] if deletes else READS  # A DELETE of such a table is refused anyhow.
    snapshot = shop.iceberg("t").metadata.current_snapshot()
    listed = [path for (path,) in shop.read("SELECT path FROM @t.manifests")]
    for file in (snapshot.manifest_list, *listed):
        for size in (100, *sizes_of(file)):
            with truncated(file, size) as name:
                for statement in reads:
                    with pytest.raises(CatalogError, match=rf"{name}.*Table: statements\.t"):
                        shop.read(statement)
    assert shop.rows("t") == before


@pytest.mark.promise("caches", "a cached query of an Iceberg table stays cached, and made anew it shows the new rows")
def test_a_cached_query_stays_cached_when_its_table_is_written(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id")
    before = shop.spark.table(shop.name("t")).groupBy("id").count().cache()
    assert before.count() == 1
    shop.sql("INSERT INTO @t VALUES (2L)")
    again = shop.spark.table(shop.name("t")).groupBy("id").count()
    assert (before.count(), again.count()) == (1, 2)
    # Spark gives it the new rows, or leaves it as it is, by its version.
    assert again.storageLevel.useMemory or before.storageLevel.useMemory
    shop.spark.catalog.clearCache()

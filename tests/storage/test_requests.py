"""How many requests each kind of write makes to an object store, beside stock Spark and its committer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import storage
from tests.storage import counting
from twophase.catalogs.files import data_files

FEW, MANY = 2, 12
#: By kind: the most requests beyond stock Spark's, and how many more for each file.
MORE = {
    "INSERT INTO": (40, -1),  # Each file is renamed once; by Hadoop's committer it is renamed twice.
    "INSERT INTO partitions": (10, -1),
    "INSERT OVERWRITE PARTITION": (10, 0),
    "clean, beside DROP": (45, 0),
    "CREATE TABLE AS SELECT": (10, 0),
    "saveAsTable, overwrite": (0, 0),
    "INSERT OVERWRITE": (15, 0),
    "CREATE TABLE AS SELECT, partitioned": (0, 0),
    "CREATE TABLE AS SELECT, many partitions": (5, -2),  # A metastore lists no files of a partition.
    "INSERT OVERWRITE, many partitions": (20, -2),
    "INSERT OVERWRITE, dynamic": (45, -1),
    "INSERT INTO new partitions": (15, 0),
    "publish by pointer": (2, 0),
    "recovery, forward": (10, 0),
    "recovery, back, beside DROP": (6, 0),  # Three of them look for files that others have added.
}
FOUR = "SELECT id, CAST(id AS INT) AS k FROM range(4)"
#: The others repeat these, by another statement.
FIRST = 4


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with storage.sessions(tmp_path_factory.mktemp("requests")) as found:
        yield found


@pytest.mark.promise("cost", "on an object store a write makes no more requests than stock Spark's, and a few")
@pytest.mark.parametrize(
    "kind",
    [kind if number < FIRST else pytest.param(kind, marks=pytest.mark.exhaustive) for number, kind in enumerate(MORE)],
)
def test_a_write_makes_no_more_requests_to_an_object_store_than_stock_spark_and_a_few(sessions: Any, kind: str) -> None:
    few, many = (storage.counted(*sessions, kind, files) for files in (FEW, MANY))
    constant, by_file = MORE[kind]
    assert (many.more - few.more) / (MANY - FEW) <= by_file, (few, many)
    assert few.more <= constant + FEW * by_file, (few, many)


OVERWRITES = [
    "INSERT OVERWRITE counts.t SELECT id, CAST(id % 2 AS INT) FROM range(7)",
    "INSERT OVERWRITE counts.t PARTITION (k = 1) SELECT 5L",
    "INSERT OVERWRITE counts.t PARTITION (k = 0) SELECT 5L WHERE false",
    "INSERT INTO counts.t SELECT id, CAST(id AS INT) FROM range(8, 10)",
]


@pytest.mark.promise(
    "cost", "the statistics of partitions are those of their files, which no metastore has to list", detail=True
)
def test_partitions_have_the_statistics_of_their_files_as_where_stock_spark_creates_them(sessions: Any) -> None:
    *both, world = sessions
    metastore, files = world.catalog.metastore, world.catalog.store.files
    for database, spark in zip(("counts", "stock_counts"), both, strict=True):
        spark.sql(f"CREATE DATABASE {database} LOCATION 'counted://bucket/{database}'")
        spark.sql(f"CREATE TABLE {database}.t USING parquet PARTITIONED BY (k) AS {FOUR}")
    ours, stock = (metastore.get_table(database, "t") for database in ("counts", "stock_counts"))
    found, expected = (sorted(map(str, map(statistics, metastore.list_partitions(one)))) for one in (ours, stock))
    assert found == expected
    for statement in OVERWRITES:
        both[0].sql(statement)
        for partition in metastore.list_partitions(ours):
            there = [entry.size for entry in data_files(files.list(partition.location))]
            assert statistics(partition) == {"numFiles": str(len(there)), "totalSize": str(sum(there))}, statement
    for database in ("counts", "stock_counts"):
        both[1].sql(f"DROP DATABASE {database} CASCADE")


def statistics(partition: Any) -> dict[str, str]:
    """The parameters of a partition by which a metastore and Spark count its files and rows."""
    noted = partition.extra["parameters"]
    return {key: value for key, value in noted.items() if key != "transient_lastDdlTime"}


def test_few_files_of_a_large_directory_are_looked_up_without_a_listing_of_all(sessions: Any, tmp_path: Path) -> None:
    _, stock, world = sessions
    files, place = world.catalog.store.files, f"counted://bucket/{tmp_path.name}"
    directory = Path(stock.conf.get("spark.hadoop.fs.counted.root"), "bucket", f"{tmp_path.name}%d")
    directory.mkdir(parents=True)
    for number in range(5000):
        (directory / f"{number:04}%o").touch()
    counting.requests()
    few = [f"{place}/{number:04}" for number in (0, 4999, 5000)]
    assert sorted(files.existing(few)) == few[:2]
    assert counting.requests().total() <= 2 * len(few)
    many = [f"{place}/{number:04}" for number in range(4500, 5500)]
    assert sorted(files.existing(many)) == many[:500]
    assert counting.requests().total() <= 7

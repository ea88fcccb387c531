"""The level of each statement on each kind of storage, as documented."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.project import source
from twophase.model import Level
from twophase.spark.handle import Handle


@dataclass(frozen=True)
class Step:
    """A statement of a table: its row in the documentation, its level in each column there, the rows of the table."""

    name: str
    text: str
    levels: tuple[Level, Level, Level]
    rows: list[Any]


ATOMIC, REVERSIBLE = Level.ATOMIC, Level.REVERSIBLE
COLUMNS = ("file", "hdfslike", "counted")
EVERYWHERE = (ATOMIC, ATOMIC, ATOMIC)
SEVERAL = "INSERT INTO {t} SELECT /*+ REPARTITION(2) */ CAST(id AS INT), 3 FROM range(2)"
STEPS = [
    Step("`CREATE TABLE`", "CREATE TABLE {t} USING parquet AS SELECT 1 AS a, 0 AS k", EVERYWHERE, [(1, 0)]),
    Step("`INSERT INTO`, one file", "INSERT INTO {t} SELECT 2, 0", EVERYWHERE, [(1, 0), (2, 0)]),
    Step(
        "`INSERT INTO`, several files",
        SEVERAL,
        (ATOMIC, REVERSIBLE, REVERSIBLE),
        [(0, 3), (1, 0), (1, 3), (2, 0)],
    ),
    Step("`INSERT OVERWRITE`", "INSERT OVERWRITE {t} SELECT 5, 6", EVERYWHERE, [(5, 6)]),
    Step(
        "`CREATE OR REPLACE`",
        "CREATE OR REPLACE TABLE {t} USING parquet TBLPROPERTIES ('twophase.append' = 'directory') "
        "AS SELECT 7 AS a, 8 AS k",
        EVERYWHERE,
        [(7, 8)],
    ),
    Step(
        "`INSERT INTO`, several files, `append = directory`",
        SEVERAL,
        (ATOMIC, ATOMIC, REVERSIBLE),
        [(0, 3), (1, 3), (7, 8)],
    ),
    Step(
        "`CREATE OR REPLACE` with other partition columns",
        "CREATE OR REPLACE TABLE {t} USING parquet PARTITIONED BY (k) AS SELECT 1 AS a, 1 AS k",
        (REVERSIBLE, REVERSIBLE, REVERSIBLE),
        [(1, 1)],
    ),
    Step(
        "`INSERT OVERWRITE` of partitions",
        "INSERT OVERWRITE {t} PARTITION (k = 2) SELECT 2",
        EVERYWHERE,
        [(1, 1), (2, 2)],
    ),
    Step(
        "`INSERT INTO` a partition, one file",
        "INSERT INTO {t} PARTITION (k = 2) SELECT 3",
        EVERYWHERE,
        [(1, 1), (2, 2), (3, 2)],
    ),
]
#: Of a table that is created without rows at a LOCATION of the user's.
STEPS_AT_A_LOCATION = [
    Step("`INSERT INTO` at a `LOCATION`, one file", "INSERT INTO {t} SELECT 1", EVERYWHERE, [(1,)]),
    Step(
        "`INSERT INTO` at a `LOCATION`, several files",
        "INSERT INTO {t} SELECT /*+ REPARTITION(2) */ CAST(id AS INT) FROM range(2, 4)",
        (REVERSIBLE, REVERSIBLE, REVERSIBLE),
        [(1,), (2,), (3,)],
    ),
    Step(
        "`INSERT OVERWRITE` at a `LOCATION`",
        "INSERT OVERWRITE {t} SELECT 5",
        (REVERSIBLE, REVERSIBLE, REVERSIBLE),
        [(5,)],
    ),
]


def run(spark: SparkSession, handle: Handle, step: Step, table: str, scheme: str) -> None:
    """Run a statement, and compare its level and the table's rows with what is stated."""
    spark.sql(step.text.format(t=table))
    found = sorted(map(tuple, spark.table(table).collect()))
    (last, *_) = handle.timeline.transactions()
    assert (found, last.level) == (step.rows, step.levels[COLUMNS.index(scheme)]), step.text


@pytest.mark.promise("session-tables", "on each kind of storage a statement has the level that is documented for it")
@pytest.mark.parametrize("scheme", ["counted", "hdfslike", "file"])
def test_statements_have_the_level_that_the_file_system_allows(spark: SparkSession, scheme: str) -> None:
    handle, database = twophase.attach(spark), "default" if scheme == "file" else scheme
    try:
        for step in STEPS:
            run(spark, handle, step, f"{database}.t", scheme)
        files = spark.table(f"{database}.t").inputFiles()
        spark.sql(f"DROP TABLE {database}.t")
        kept = {leftover.kind for leftover in handle.catalog("hive").leftovers()}
    finally:
        handle.detach()
    assert files
    assert all(file.startswith(f"{scheme}:") for file in files)
    assert kept <= {"version"}
    assert not spark.catalog.tableExists(f"{database}.t")


@pytest.mark.promise(
    "external-tables", "on each kind of storage a table stays at its LOCATION, and a drop leaves its files"
)
@pytest.mark.parametrize("scheme", ["counted", *(pytest.param(o, marks=pytest.mark.exhaustive) for o in COLUMNS[:2])])
def test_a_table_at_a_location_is_written_there_and_its_files_outlive_it(
    spark: SparkSession, root: Path, scheme: str
) -> None:
    name = f"the {scheme} place"
    place = f"counted://{root.name}/{name}" if scheme == "counted" else f"{scheme}:{root}/{name}"
    handle = twophase.attach(spark)
    try:
        spark.sql(f"CREATE TABLE default.e (a INT) USING parquet LOCATION '{place}/'")
        for step in STEPS_AT_A_LOCATION:
            run(spark, handle, step, "default.e", scheme)
        assert all(f"/{name.replace(' ', '%20')}/part-" in file for file in spark.table("default.e").inputFiles())
        with twophase.transaction(spark):
            spark.sql("DROP TABLE default.e")
        left = [leftover.location for leftover in handle.catalog("hive").leftovers() if name in leftover.location]
        spark.sql(f"CREATE TABLE default.e (a INT) USING parquet LOCATION '{place}'")
        found = [tuple(row) for row in spark.table("default.e").collect()]
        spark.sql("DROP TABLE default.e")
    finally:
        handle.detach()
    assert (left, found) == ([], [(5,)])
    assert [tuple(row) for row in spark.read.parquet(place).collect()] == [(5,)]


def test_the_levels_are_those_of_the_documentation() -> None:
    documented, first = (_rows_of(page) for page in ("docs/compatibility.md", "README.md"))
    steps = [*STEPS, *STEPS_AT_A_LOCATION]
    tested = {step.name: tuple(str(level.name).lower() for level in step.levels) for step in steps}
    assert {name: documented.get(name) for name in tested} == tested
    assert len(first.items() & tested.items()) == len(first) >= 5


def _rows_of(page: str) -> dict[str, tuple[str, ...]]:
    """The rows of the tables with a column for each kind of storage."""
    lines = (source.ROOT / page).read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {name: tuple(levels) for name, *levels in rows if len(levels) == 3}

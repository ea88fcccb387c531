"""The level of each statement on each kind of storage, as documented."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.project import source
from twophase.model import Level


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
    Step("`INSERT INTO`, one file", "INSERT INTO {t} SELECT 2, 0", (ATOMIC, ATOMIC, REVERSIBLE), [(1, 0), (2, 0)]),
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
        (ATOMIC, ATOMIC, REVERSIBLE),
        [(1, 1), (2, 2), (3, 2)],
    ),
]


@pytest.mark.promise("session-tables", "on each kind of storage a statement has the level that is documented for it")
@pytest.mark.parametrize("scheme", ["counted", "hdfslike", "file"])
def test_statements_have_the_level_that_the_file_system_allows(spark: SparkSession, scheme: str) -> None:
    handle, database = twophase.attach(spark), "default" if scheme == "file" else scheme
    try:
        for step in STEPS:
            spark.sql(step.text.format(t=f"{database}.t"))
            found = sorted(map(tuple, spark.table(f"{database}.t").collect()))
            (last, *_) = handle.timeline.transactions()
            level = step.levels[COLUMNS.index(scheme)]
            assert (found, last.level) == (step.rows, level), step.text
        files = spark.table(f"{database}.t").inputFiles()
        spark.sql(f"DROP TABLE {database}.t")
        kept = {leftover.kind for leftover in handle.catalog("hive").leftovers()}
    finally:
        handle.detach()
    assert files
    assert all(file.startswith(f"{scheme}:") for file in files)
    assert kept <= {"version"}
    assert not spark.catalog.tableExists(f"{database}.t")


def test_the_levels_are_those_of_the_documentation() -> None:
    page = (source.ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    documented = {
        cells[0]: tuple(cells[1:])
        for line in page.splitlines()
        if (cells := [cell.strip() for cell in line.strip("|").split("|")]) and len(cells) == 4
    }
    tested = {step.name: tuple(str(level.name).lower() for level in step.levels) for step in STEPS}
    assert {name: documented.get(name) for name in tested} == tested

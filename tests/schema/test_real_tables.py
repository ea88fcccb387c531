"""Changes of real tables by plain SQL: those of docs/schema.md, and random ones against a dictionary of ids."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import start_session
from tests.schema import documented, documented_sessions, hudi_matrices
from tests.schema.real_table import changed, changed_in_a_block, name_in
from tests.schema.table_model import BLOCK_STEPS, STEPS, STEPS_OF_TWO, Step, as_text, nested_columns
from tests.servers import Server

#: By store, what makes a table of it that gives a dropped name to another column; Spark reads ORC by names only.
REWRITE = "TBLPROPERTIES ('twophase.alter' = 'rewrite')"
MADE = {
    "names": f"USING parquet {REWRITE}",
    "orc": f"USING orc {REWRITE}",
    **dict.fromkeys(("lake", "lite", "pg", "maria"), ""),
}
#: Hudi's matrices are tried on each; what they say of one is most of what they say.
HUDIS = ["pg", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("lite", "maria", "lake", "ids"))]
EXAMPLES = [s if s in ("names", "lite") else pytest.param(s, marks=pytest.mark.exhaustive) for s in MADE]
STORES = ["ids", "names", "orc", "lake", "lite", "pg", "maria"]
NESTING = ["ids", "names", "orc", "lake"]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, postgresql: Server, mariadb: Server) -> Iterator[SparkSession]:
    """A session with a catalog of each kind."""
    root = tmp_path_factory.mktemp("changes")
    conf = {
        "spark.sql.catalog.lake": "twophase.lakehouse",
        "spark.sql.catalog.lake.uri": f"sqlite:///{root / 'lake.db'}",
    }
    conf["spark.sql.catalog.lake.warehouse"] = str(root / "lake")
    for name, url in (("lite", f"sqlite:///{root / 'lite.db'}"), ("pg", postgresql.url), ("maria", mariadb.url)):
        conf |= {f"spark.sql.catalog.{name}": "twophase.jdbc", f"spark.sql.catalog.{name}.url": url}
        wide = f"spark.sql.catalog.{name}_wide"
        conf |= {wide: "twophase.jdbc", f"{wide}.url": url, f"{wide}.promotion": "wide"}
    session = start_session(root, hive=True, conf=conf)
    handle = twophase.attach(session)
    handle.catalog("lake").create_database("changes")
    yield session
    handle.detach()
    session.stop()


def test_every_documented_change_is_tried_in_every_store() -> None:
    assert documented.documented().keys() == documented.CHANGES.keys()


@pytest.mark.promise("evolution", "each change of the table in `schema.md` is made in each store as its cell says")
@pytest.mark.parametrize("store", documented.STORES)
def test_a_store_makes_each_change_as_documented(spark: SparkSession, postgresql: Server, store: str) -> None:
    is_sessions = store == "session tables"
    ids = "TBLPROPERTIES ('twophase.field_ids' = 'true')" if is_sessions else ""
    table = documented.StoredTable(spark, store, postgresql, ids)
    said = documented.documented()
    for row in documented.CHANGES:
        documented.check(table, row, said[row][store].partition(", else ")[0].removeprefix("Parquet with field ids "))
    assert as_text(spark.sql(f"SELECT id, label, k_exact FROM {table.name}").collect()) == [("1", "x", "2")]
    if is_sessions:
        plain = documented.StoredTable(spark, store, postgresql)
        documented.check(plain, "`RENAME COLUMN`", said["`RENAME COLUMN`"][store].partition(", else ")[2])
    spark.sql(f"DROP TABLE {table.name}")


def test_every_documented_change_of_a_session_table_is_tried() -> None:
    assert documented_sessions.documented().keys() == documented_sessions.CHANGES.keys()


@pytest.mark.promise(
    "evolution", "each change of the table in `schema.md` is made in a session table as its cell says", detail=True
)
@pytest.mark.parametrize(
    "kind",
    [
        k if k == "Parquet without ids" else pytest.param(k, marks=pytest.mark.exhaustive)
        for k in documented_sessions.MADE
    ],
)
def test_a_session_table_makes_each_change_as_documented(spark: SparkSession, kind: str) -> None:
    table = documented_sessions.SessionTable(spark, kind)
    said = documented_sessions.documented()
    for row in documented_sessions.CHANGES:
        documented_sessions.check(table, row, said[row][kind])
    spark.sql(f"DROP TABLE {table.name}")


@pytest.mark.promise("evolution", "FLIP-226's example: a column that was dropped and added again is NULL in older rows")
@pytest.mark.parametrize("store", EXAMPLES)
def test_the_example_of_flip_226(spark: SparkSession, store: str) -> None:
    name = name_in(store)
    spark.sql(f"CREATE TABLE {name} (a STRING, b STRING, c STRING) {MADE[store]}")
    spark.sql(f"INSERT INTO {name} VALUES ('a1', 'b1', 'c1')")
    spark.sql(f"ALTER TABLE {name} DROP COLUMN c")
    assert as_text(spark.table(name).collect()) == [("a1", "b1")]
    spark.sql(f"ALTER TABLE {name} ADD COLUMN c STRING")
    spark.sql(f"INSERT INTO {name} VALUES ('a2', 'b2', 'c2')")
    assert as_text(spark.table(name).collect()) == [("a1", "b1", None), ("a2", "b2", "c2")]
    assert as_text(spark.sql(f"SELECT a FROM {name} WHERE c IS NULL").collect()) == [("a1",)]
    spark.sql(f"DROP TABLE {name}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("store", MADE)
def test_the_example_of_hudis_merger(spark: SparkSession, store: str) -> None:
    name = name_in(store)
    spark.sql(f"CREATE TABLE {name} (f1 STRING, x1 STRING, f3 INT) {MADE[store]}")
    spark.sql(f"INSERT INTO {name} VALUES ('v', 'w', 7)")
    for change in (
        *("RENAME COLUMN f1 TO f1v1", "DROP COLUMN x1", "ALTER COLUMN f3 TYPE BIGINT"),
        *("ADD COLUMN n1 STRING", "ADD COLUMN f1 STRING"),
    ):
        spark.sql(f"ALTER TABLE {name} {change}")
    spark.sql(f"INSERT INTO {name} VALUES ('v2', 6000000000, 'n', 'f')")
    assert spark.table(name).columns == ["f1v1", "f3", "n1", "f1"]
    assert as_text(spark.table(name).collect()) == [("v", "7", None, None), ("v2", "6000000000", "n", "f")]
    assert as_text(spark.sql(f"SELECT f1v1 FROM {name} WHERE f1 IS NULL AND f3 = 7").collect()) == [("v",)]
    spark.sql(f"DROP TABLE {name}")


@pytest.mark.promise(
    "evolution", "each change of type in Hudi's matrix is made or refused, and no other value changes", detail=True
)
@pytest.mark.parametrize("store", HUDIS)
def test_hudis_matrix_of_types(spark: SparkSession, store: str) -> None:
    hudi_matrices.check_types(spark, store, name_in(store))


@pytest.mark.promise(
    "evolution", "each kind of change that Hudi knows is made, or refused and the table as it was", detail=True
)
@pytest.mark.parametrize("store", HUDIS)
def test_hudis_kinds_of_change(spark: SparkSession, store: str) -> None:
    hudi_matrices.check_kinds(spark, store, name_in(store))


#: Statements of real sessions take their time: no smaller example is looked for than one that fails.
SETTINGS = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate])


FEW = settings(SETTINGS, max_examples=3)


@pytest.mark.parametrize("store", ["ids", "pg"])
@FEW
@given(steps=STEPS)
def test_some_random_changes_leave_each_value_in_its_column(spark: SparkSession, store: str, steps: list[Step]) -> None:
    changed(spark, store, steps)


@pytest.mark.parametrize("store", ["ids", *(pytest.param(s, marks=pytest.mark.exhaustive) for s in NESTING[1:])])
@FEW
@given(steps=STEPS)
def test_some_random_changes_leave_each_value_in_its_nested_field(
    spark: SparkSession, store: str, steps: list[Step]
) -> None:
    changed(spark, store, steps, nested_columns())


@pytest.mark.promise(
    "evolution", "random changes of a block, some taken back, leave each value in its column", detail=True
)
@pytest.mark.parametrize(("store", "creates"), [("lake", False), ("ids", True)])
@FEW
@given(steps=BLOCK_STEPS)
def test_some_random_changes_of_a_block_leave_each_value_in_its_column(
    spark: SparkSession, store: str, creates: bool, steps: list[Step]
) -> None:
    changed_in_a_block(spark, store, steps, creates=creates)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", STORES)
@settings(SETTINGS, max_examples=25)
@given(steps=STEPS_OF_TWO)
def test_random_changes_leave_each_value_in_its_column(spark: SparkSession, store: str, steps: list[Step]) -> None:
    changed(spark, store, steps)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", NESTING)
@settings(SETTINGS, max_examples=25)
@given(steps=STEPS)
def test_random_changes_leave_each_value_in_its_nested_field(
    spark: SparkSession, store: str, steps: list[Step]
) -> None:
    changed(spark, store, steps, nested_columns())


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("creates", [False, True])
@pytest.mark.parametrize("store", STORES)
@settings(SETTINGS, max_examples=15)
@given(steps=BLOCK_STEPS)
def test_random_changes_of_a_block_leave_each_value_in_its_column(
    spark: SparkSession, store: str, creates: bool, steps: list[Step]
) -> None:
    changed_in_a_block(spark, store, steps, creates=creates)

"""Changes of real tables by plain SQL: those of docs/schema.md, and random ones against a dictionary of ids."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, event, given, settings
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import start_session
from tests.schema import documented
from tests.schema.table_model import STEPS, Step, TableModel, as_text, literal
from tests.servers import Server
from twophase.errors import TwoPhaseError
from twophase.schema.promotion import HUDI_MATRIX

#: By store, what makes a table of it that gives a dropped name to another column; Spark reads ORC by names only.
REWRITE = "TBLPROPERTIES ('twophase.alter' = 'rewrite')"
MADE = {
    "names": f"USING parquet {REWRITE}",
    "orc": f"USING orc {REWRITE}",
    **dict.fromkeys(("lake", "lite", "pg", "maria"), ""),
}
STORES = ["ids", "names", "lake", "lite", "pg", "maria"]


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


@pytest.mark.promise("evolution", "FLIP-226's example: a column that was dropped and added again is NULL in older rows")
@pytest.mark.parametrize(
    "store", [s if s in ("names", "lite") else pytest.param(s, marks=pytest.mark.exhaustive) for s in MADE]
)
def test_the_example_of_flip_226(spark: SparkSession, store: str) -> None:
    name = Real.name_in(store)
    spark.sql(f"CREATE TABLE {name} (a STRING, b STRING, c STRING) {MADE[store]}")
    spark.sql(f"INSERT INTO {name} VALUES ('a1', 'b1', 'c1')")
    spark.sql(f"ALTER TABLE {name} DROP COLUMN c")
    assert as_text(spark.table(name).collect()) == [("a1", "b1")]
    spark.sql(f"ALTER TABLE {name} ADD COLUMN c STRING")
    spark.sql(f"INSERT INTO {name} VALUES ('a2', 'b2', 'c2')")
    assert as_text(spark.table(name).collect()) == [("a1", "b1", None), ("a2", "b2", "c2")]
    assert as_text(spark.sql(f"SELECT a FROM {name} WHERE c IS NULL").collect()) == [("a1",)]
    spark.sql(f"DROP TABLE {name}")


#: A type of each family of Hudi's matrix, with a value.
FAMILIES = {
    "int": ("INT", "7"),
    "long": ("BIGINT", "7L"),
    "float": ("FLOAT", "1.5F"),
    "double": ("DOUBLE", "1.5D"),
    "string": ("STRING", "'x'"),
    "decimal": ("DECIMAL(24,2)", "CAST(1.5 AS DECIMAL(24,2))"),
    "date": ("DATE", "DATE'2024-01-01'"),
}
#: What the analysis of Spark takes for no up-cast, and refuses for every table.
BY_SPARK = {("float", "decimal"), ("double", "decimal"), ("string", "decimal"), ("string", "date")}


@pytest.mark.exhaustive
def test_hudis_matrix_of_a_session_table(spark: SparkSession) -> None:
    name, pairs = Real.name_in("names"), [(old, new) for old in FAMILIES for new in FAMILIES if old != new]
    columns = ", ".join(f"{FAMILIES[old][1]} AS {old}_{new}" for old, new in pairs)
    spark.sql(f"CREATE TABLE {name} USING parquet AS SELECT {columns}")
    for key, value in (("alter", "rewrite"), ("promotion", "hudi")):
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('twophase.{key}' = '{value}')")
    taken = set()
    for old, new in pairs:
        try:
            spark.sql(f"ALTER TABLE {name} ALTER COLUMN {old}_{new} TYPE {FAMILIES[new][0]}")
        except (TwoPhaseError, PySparkException):
            continue
        taken.add((old, new))
        found = spark.sql(f"SELECT {old}_{new} = CAST({FAMILIES[old][1]} AS {FAMILIES[new][0]}) FROM {name}")
        assert found.collect() == [(True,)], (old, new)
    assert taken == {(old, new) for old, new in pairs if new in HUDI_MATRIX.get(old, ())} - BY_SPARK
    spark.sql(f"DROP TABLE {name}")


class Real:
    """A table of a store, and what its model says of it."""

    def __init__(self, spark: SparkSession, store: str) -> None:
        self.spark, self.name = spark, self.name_in(store)
        self.model, self.taken, self.tried = TableModel(), 0, 0
        ids = "USING parquet TBLPROPERTIES ('twophase.field_ids' = 'true') AS SELECT 1 AS a, '' AS b WHERE false"
        more = {"ids": ids, "names": "(a INT, b STRING) USING parquet"}
        spark.sql(f"CREATE TABLE {self.name} {more.get(store, '(a INT, b STRING)')}")

    @staticmethod
    def name_in(store: str) -> str:
        """A new name in a store."""
        database = {"lake": "lake.changes.", "lite": "lite.main.", "pg": "pg.public.", "maria": "maria.twophase."}
        return f"{database.get(store, '')}t_{uuid.uuid4().hex[:8]}"

    def take(self, step: Step) -> None:
        """Take a step in both; one that the store refuses has changed nothing."""
        found = self.model.step(self.name, step)
        if found is None:
            return
        statement, after = found
        self.tried += 1
        try:
            self.spark.sql(statement)
        except (TwoPhaseError, PySparkException) as refused:
            assert not statement.startswith("INSERT"), refused
        else:
            self.model, self.taken = after, self.taken + 1
        self.check(step[1])

    def check(self, which: int) -> None:
        model = self.model
        frame = self.spark.table(self.name)
        assert frame.columns == [column.name for column in model.columns]
        assert self.read("") == model.seen()
        column = model.columns[which % len(model.columns)]
        at = model.columns.index(column)
        assert self.read(f"WHERE {column.quoted} IS NULL") == [row for row in model.seen() if row[at] is None]
        for value in {row[at] for row in model.seen()} - {None}:
            number = next(n for n in range(model.highest_value + 1) if literal(column.kind, n)[1] == value)
            found = self.read(f"WHERE {column.quoted} = {literal(column.kind, number)[0]}")
            assert found == [row for row in model.seen() if row[at] == value]
            break

    def read(self, where: str) -> list[tuple[Any, ...]]:
        return as_text(self.spark.sql(f"SELECT * FROM {self.name} {where}").collect())


def changed(spark: SparkSession, store: str, steps: list[Step]) -> None:
    """Take all steps in a new table of a store, and read it by a second reader, too."""
    real = Real(spark, store)
    for step in steps:
        real.take(step)
    if store in OTHER_READERS:
        assert as_text(OTHER_READERS[store](spark, real.name)) == real.model.seen()
    spark.sql(f"DROP TABLE {real.name}")
    event(f"{real.taken} of {real.tried} changes of {store}")


def _by_pyiceberg(spark: SparkSession, name: str) -> list[tuple[Any, ...]]:
    uri = spark.conf.get("spark.sql.catalog.lake.uri")
    catalog = SqlCatalog("lake", uri=str(uri))
    table = catalog.load_table(("changes", name.rpartition(".")[2])).scan().to_arrow()
    catalog.close()
    return list(zip(*[column.to_pylist() for column in table.columns], strict=True))


def _by_field_ids(spark: SparkSession, name: str) -> list[tuple[Any, ...]]:
    """The rows as PyArrow finds them by the ids alone: names in files are those of their time."""
    wanted = [field.metadata["parquet.field.id"] for field in spark.table(name).schema]
    rows: list[tuple[Any, ...]] = []
    for (file,) in spark.sql(f"SELECT DISTINCT input_file_name() FROM {name}").collect():
        table = pq.ParquetFile(urlsplit(file).path).read()
        found = {int(f.metadata[b"PARQUET:field_id"]): table.column(i).to_pylist() for i, f in enumerate(table.schema)}
        rows += zip(*[found.get(number, [None] * len(table)) for number in wanted], strict=True)
    return rows


def _by_its_database(spark: SparkSession, name: str) -> list[tuple[Any, ...]]:
    """The rows as the database gives them to another program."""
    store, _, table = name.split(".")
    engine = sa.create_engine(str(spark.conf.get(f"spark.sql.catalog.{store}.url")))
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(sa.text(f"SELECT * FROM {table}"))]
    engine.dispose()
    return rows


#: Statements of real sessions take their time.
SETTINGS = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
OTHER_READERS = {"lake": _by_pyiceberg, "ids": _by_field_ids} | dict.fromkeys(("lite", "pg", "maria"), _by_its_database)


@pytest.mark.parametrize("store", ["ids", "pg"])
@settings(
    max_examples=3, phases=[Phase.generate], deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(steps=STEPS)
def test_some_random_changes_leave_each_value_in_its_column(spark: SparkSession, store: str, steps: list[Step]) -> None:
    changed(spark, store, steps)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", STORES)
@settings(SETTINGS, max_examples=25)
@given(steps=STEPS)
def test_random_changes_leave_each_value_in_its_column(spark: SparkSession, store: str, steps: list[Step]) -> None:
    changed(spark, store, steps)

"""Statements through a real session: one session, three catalogs, plain Spark."""

from __future__ import annotations

import sys
import uuid
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from sqlalchemy.engine import make_url

import twophase
from tests.jdbc.conftest import IN_ANY_DATABASE, KINDS, make_place
from tests.jdbc.places import Place, ordered
from tests.levels import Levels
from tests.servers import postgresql_driver
from twophase import failpoints
from twophase.errors import AtomicityNotSupportedError, CatalogError, TransactionAborted, WriteConflictError
from twophase.failpoints import FailpointError
from twophase.model import Level, ObjectPath, Purpose
from twophase.schema.errors import SchemaError

spark40_first_cases = True

#: The database that tests write to; SQLite's own is `main`.
DATABASE = "statements"


@dataclass
class Shop:
    """A session with a catalog over one database, and that database past it."""

    spark: SparkSession
    catalog: str
    place: Place

    def sql(self, text: str) -> Any:
        return self.spark.sql(text.replace("@", f"{self.catalog}.{DATABASE}."))

    def name(self, table: str) -> str:
        return f"{self.catalog}.{DATABASE}.{table}"

    def rows(self, table: str) -> list[Any]:
        """What the database holds."""
        return ordered(self.place.rows(ObjectPath.of(DATABASE, table)))

    def read(self, text: str) -> list[Any]:
        """What Spark reads."""
        return ordered([tuple(row) for row in self.sql(text).collect()])


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[SparkSession, dict[str, Place]]]:
    root = tmp_path_factory.mktemp("jdbc")
    places = {kind: make_place(kind, request, root) for kind in KINDS}
    patch = pytest.MonkeyPatch()
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.master("local[2]").appName("jdbc")
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "OFF",
        "spark.sql.warehouse.dir": str(root / "warehouse"),
    }
    for kind, place in places.items():
        conf[f"spark.sql.catalog.{kind}"] = "twophase.jdbc"
        options = place.options(read_partition_rows="100", batch_rows="50")
        conf |= {f"spark.sql.catalog.{kind}.{key}": value for key, value in options.items()}
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    handle = twophase.attach(spark)
    for kind in KINDS:
        handle.catalog(kind).create_database(DATABASE, ignore_if_exists=True)
    yield spark, places
    for kind in KINDS:
        handle.catalog(kind).drop_database(DATABASE, cascade=True)
    spark.stop()
    patch.undo()


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, session: tuple[SparkSession, dict[str, Place]]) -> Iterator[Shop]:
    spark, places = session
    made = Shop(spark, request.param, places[request.param])
    yield made
    failpoints.disarm()
    left = made.place.hidden(DATABASE)
    for row in made.sql(f"SHOW TABLES IN {request.param}.{DATABASE}").collect():
        made.sql(f"DROP TABLE @{row.tableName}")
    assert left == []


@pytest.mark.promise("databases", "`CREATE TABLE AS SELECT`, `saveAsTable`, `writeTo(...).create()`: atomic")
def test_create_is_seen_at_the_publish_and_not_before(shop: Shop) -> None:
    seen: list[Any] = []
    levels = Levels(shop.spark)
    failpoints.arm("core.publish", lambda _: seen.append(shop.spark.catalog.tableExists(shop.name("daily"))))
    shop.sql("CREATE TABLE @daily COMMENT 'by day' AS SELECT id, CAST(id AS STRING) AS name FROM range(3)")
    assert (seen, levels()) == ([False], {Level.ATOMIC})
    assert shop.rows("daily") == [(0, "0"), (1, "1"), (2, "2")]
    assert [row.tableName for row in shop.sql(f"SHOW TABLES IN {shop.catalog}.{DATABASE}").collect()] == ["daily"]
    described = {row.col_name: row.data_type for row in shop.sql("DESCRIBE TABLE EXTENDED @daily").collect()}
    assert (described["id"], described["name"], described["Comment"]) == ("bigint", "string", "by day")


@pytest.mark.promise("blocks", "a table that the block makes in a database is read as the published one", detail=True)
def test_a_block_reads_what_it_has_made_in_the_types_that_the_database_has_for_it(shop: Shop) -> None:
    """A TINYINT is a smallint in PostgreSQL, and column_types chooses any other."""
    made = "SELECT CAST(1 AS TINYINT) AS tiny, 2L AS number, TIMESTAMP '2024-02-29 12:00:00.5' AS seen"
    options = "OPTIONS (column_types 'number NUMERIC(20, 2)')"
    with twophase.transaction(shop.spark):
        shop.sql(f"CREATE TABLE @daily {options} AS {made}")
        shop.sql(f"INSERT INTO @daily {made}")
        inside = shop.sql("SELECT * FROM @daily WHERE tiny < 100")
        seen, schema = ordered(map(tuple, inside.collect())), inside.schema
        shop.sql("CREATE TABLE @copy AS SELECT * FROM @daily")
    after = shop.sql("SELECT * FROM @daily")
    assert seen == ordered(map(tuple, after.collect())) == shop.read("SELECT * FROM @copy")
    assert (len(seen), schema) == (2, after.schema)


@pytest.mark.promise("databases", "`REPLACE`, `saveAsTable` in mode overwrite, with any columns: atomic")
@pytest.mark.parametrize(
    ("shop", "api"),
    [
        pytest.param(kind, api, marks=() if api == "sql" or kind == KINDS[0] else pytest.mark.exhaustive)
        for api in ("sql", "saveAsTable", "writeTo", "create_table_as")
        for kind in KINDS
    ],
    indirect=["shop"],
)
def test_replace_is_one_step_and_may_read_the_old_table(shop: Shop, api: str) -> None:
    shop.sql("CREATE TABLE @daily AS SELECT id FROM range(3)")
    new = shop.spark.table(shop.name("daily")).selectExpr("id * 10 AS id", "id / 2 AS half")
    levels = Levels(shop.spark)
    failpoints.arm("jdbc.publish", "error", nth=1)
    for expected in (FailpointError, None):
        try:
            if api == "sql":
                shop.sql("CREATE OR REPLACE TABLE @daily AS SELECT id * 10 AS id, id / 2 AS half FROM @daily")
            elif api == "saveAsTable":
                new.write.mode("overwrite").saveAsTable(shop.name("daily"))
            elif api == "writeTo":
                new.writeTo(shop.name("daily")).createOrReplace()
            else:
                twophase.create_table_as(new, shop.catalog, f"{DATABASE}.daily", purpose=Purpose.REPLACE_TABLE_AS)
        except TransactionAborted:
            assert expected is FailpointError
            assert shop.rows("daily") == [(0,), (1,), (2,)]
        else:
            assert expected is None
    assert shop.rows("daily") == ordered([(0, 0.0), (10, 0.5), (20, 1.0)])
    assert levels() == {Level.ATOMIC}


@pytest.mark.promise("databases", "`INSERT INTO`, `INSERT OVERWRITE`: atomic")
def test_inserts_add_and_overwrite_all_or_nothing(shop: Shop) -> None:
    levels = Levels(shop.spark)
    shop.sql("CREATE TABLE @daily (id BIGINT, name STRING)")
    shop.sql("INSERT INTO @daily VALUES (1, 'it\\'s'), (2, NULL), (3, '')")
    assert shop.rows("daily") == ordered([(1, "it's"), (2, None), (3, "")])
    shop.sql("INSERT INTO @daily (name, id) SELECT 'back\\\\slash', 4")
    with pytest.raises(Exception, match="wrong"):
        shop.sql("INSERT OVERWRITE @daily SELECT id, CAST(raise_error('wrong') AS STRING) FROM range(5)")
    assert (4, "back\\slash") in shop.rows("daily")
    shop.sql("INSERT OVERWRITE @daily SELECT 9, 'nine'")
    shop.spark.createDataFrame([(10, "ten")], "id BIGINT, name STRING").writeTo(shop.name("daily")).append()
    assert shop.rows("daily") == ordered([(9, "nine"), (10, "ten")])
    assert levels() == {Level.ATOMIC}


@IN_ANY_DATABASE
def test_a_text_with_a_collation_is_refused_as_it_would_be_read_back_without(shop: Shop) -> None:
    """A condition would compare it by other rules than before."""
    for rest in ("(name STRING COLLATE UNICODE_CI)", "AS SELECT 'a' COLLATE UNICODE_CI AS name"):
        with pytest.raises(CatalogError, match="string collate UNICODE_CI"):
            shop.sql(f"CREATE TABLE @daily {rest}")
    shop.sql("CREATE TABLE @daily (name STRING)")
    shop.sql("INSERT INTO @daily SELECT 'a' COLLATE UNICODE_CI")
    rows = shop.spark.sql("SELECT 'b' COLLATE UNICODE_CI AS name")
    twophase.create_table_as(rows, shop.catalog, (DATABASE, "daily"), purpose=Purpose.INSERT_INTO)
    assert shop.rows("daily") == [("a",), ("b",)]


def test_rows_that_another_program_adds_after_they_were_read_are_not_overwritten(shop: Shop) -> None:
    shop.sql("CREATE TABLE @daily AS SELECT id FROM range(2)")
    name = shop.place.name(ObjectPath.of(DATABASE, "daily"))
    failpoints.arm("core.publish", lambda _: shop.place.execute(f"INSERT INTO {name} VALUES (9)", DATABASE))
    with pytest.raises(TransactionAborted, match="another program"):
        shop.sql("INSERT OVERWRITE @daily SELECT id + 10 FROM @daily")
    assert shop.rows("daily") == [(0,), (1,), (9,)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_sparks_own_source_of_databases_is_another_program(shop: Shop) -> None:
    shop.sql(f"ADD JAR '{postgresql_driver()}'")
    shop.sql("CREATE TABLE @daily AS SELECT id FROM range(1)")
    url = make_url(shop.place.url)
    facts = {
        "url": f"jdbc:postgresql://{url.host}:{url.port}/{url.database}",
        "user": str(url.username),
        "driver": "org.postgresql.Driver",
        "dbtable": f"{DATABASE}.daily",
    }

    def add(number: int, mode: str = "append") -> None:
        shop.spark.range(number, number + 1).write.format("jdbc").options(**facts).mode(mode).save()

    with pytest.raises(ZeroDivisionError), twophase.transaction(shop.spark):
        shop.sql("INSERT INTO @daily VALUES (10)")
        add(1)
        assert sorted(shop.spark.read.format("jdbc").options(**facts).load().collect()) == [(0,), (1,)]
        raise ZeroDivisionError
    assert shop.rows("daily") == [(0,), (1,)]
    for text in ("INSERT OVERWRITE @daily VALUES (11)", "CREATE OR REPLACE TABLE @daily AS SELECT 'a' AS word"):
        for mode in ("append", "overwrite"):
            with pytest.raises(WriteConflictError, match=rf"{DATABASE}\.daily"), twophase.transaction(shop.spark):
                shop.sql(text)
                add(2, mode)
    assert shop.rows("daily") == [(2,)]
    new = shop.spark.range(3, 4).write.format("jdbc")  # By the name of a table it is twophase that writes.
    levels = Levels(shop.spark)
    new.mode("append").saveAsTable(shop.name("daily"))
    new.insertInto(shop.name("daily"))
    shop.spark.range(4, 5).writeTo(shop.name("more")).using("jdbc").create()
    assert (shop.rows("daily"), shop.rows("more"), levels()) == ([(2,), (3,), (3,)], [(4,)], {Level.ATOMIC})


#: A number that the database counts, a moment, a constant that must be there, and a text that it makes up.
WITH_DEFAULTS = {
    "sqlite": "id INTEGER PRIMARY KEY, at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, n INT DEFAULT 7, "
    "ok BOOLEAN NOT NULL DEFAULT 1, word TEXT DEFAULT (lower('X')), name TEXT",
    "postgresql": "id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), "
    "n int DEFAULT 7, ok boolean NOT NULL DEFAULT true, word text DEFAULT lower('X'), name text",
    "mariadb": "id int AUTO_INCREMENT PRIMARY KEY, at datetime NOT NULL DEFAULT now(), n int DEFAULT 7, "
    "ok boolean NOT NULL DEFAULT true, word varchar(40) DEFAULT (lower('X')), name longtext",
}


def test_the_word_default_is_the_value_that_the_database_has(shop: Shop) -> None:
    path = ObjectPath.of(DATABASE, "daily")
    shop.place.execute(f"CREATE TABLE {shop.place.name(path)} ({WITH_DEFAULTS[shop.catalog]})", DATABASE)
    first, second = "(1, DEFAULT, DEFAULT, DEFAULT, DEFAULT, 'a')", "(2, DEFAULT, 8, false, 'w', 'b')"
    shop.sql(f"INSERT INTO @daily VALUES {first}, {second}")
    found = [(row[0], row[2], bool(row[3]), row[4], row[5]) for row in shop.rows("daily")]
    assert sorted(found) == [(1, 7, True, "x", "a"), (2, 8, False, "w", "b")]


@pytest.mark.promise("defaults", "columns that are left out get the values that the database has for them")
def test_columns_that_are_left_out_get_the_values_that_the_database_has_for_them(shop: Shop) -> None:
    path = ObjectPath.of(DATABASE, "daily")
    shop.place.execute(f"CREATE TABLE {shop.place.name(path)} ({WITH_DEFAULTS[shop.catalog]})", DATABASE)
    if pyspark.__version__.startswith("4.0."):  # It leaves no column of another catalog's table out.
        with pytest.raises(AnalysisException, match="CANNOT_FIND_DATA"):
            shop.sql("INSERT INTO @daily (name) VALUES ('a')")
        assert shop.rows("daily") == []
        return
    given = shop.spark.createDataFrame([("b",)], "name STRING")
    shop.sql("INSERT INTO @daily (name) VALUES ('a')")
    given.write.mode("append").saveAsTable(shop.name("daily"))
    given.writeTo(shop.name("daily")).append()
    shop.sql("INSERT INTO @daily (name, n, word) VALUES ('c', DEFAULT, DEFAULT), ('d', 8, 'w'), ('e', NULL, NULL)")
    rows = shop.sql(
        "SELECT id, n, ok, word, name, at > TIMESTAMP'2020-01-01' AS now FROM @daily ORDER BY name"
    ).collect()
    assert [(row.n, bool(row.ok), row.word, row.name) for row in rows] == [
        (7, True, "x", "a"),
        (7, True, "x", "b"),
        (7, True, "x", "b"),
        (7, True, "x", "c"),
        (8, True, "w", "d"),
        (None, True, None, "e"),
    ]
    assert len({row.id for row in rows}) == 6 and all(0 < row.id < 10 for row in rows)
    assert all(row.now for row in rows)
    with twophase.transaction(shop.spark):
        shop.sql("INSERT INTO @daily (name) VALUES ('f')")
        shop.sql("INSERT INTO @daily (name) VALUES ('g')")
        with pytest.raises(Exception, match="cannot be read yet"):
            shop.sql("SELECT * FROM @daily").collect()
    shop.sql("INSERT OVERWRITE @daily (name) SELECT name FROM @daily WHERE name > 'e'")
    assert sorted((row[2], bool(row[3]), row[4], row[5]) for row in shop.rows("daily")) == [
        (7, True, "x", "f"),
        (7, True, "x", "g"),
    ]


#: A key, columns that the database computes, of types with few values too, and one that it does not.
COMPUTED = {
    "sqlite": "id INTEGER PRIMARY KEY, ok BOOLEAN NOT NULL DEFAULT (abs(-1)), "
    "d DECIMAL(3, 1) DEFAULT (abs(-1)), name TEXT",
    "postgresql": "id SERIAL PRIMARY KEY, ok boolean NOT NULL DEFAULT (1 = 1), "
    "d numeric(3, 1) DEFAULT abs(-1), name text",
    "mariadb": "id int AUTO_INCREMENT PRIMARY KEY, ok boolean NOT NULL DEFAULT (abs(-1)), "
    "d decimal(3, 1) DEFAULT (abs(-1)), name longtext",
}


def computed(shop: Shop) -> set[tuple[Any, ...]]:
    """The rows of the table of :data:`COMPUTED`, and no more of them."""
    found = {(row.id, row.ok, row.d, row.name) for row in shop.sql("SELECT * FROM @daily").collect()}
    shop.place.execute(f"DELETE FROM {shop.place.name(ObjectPath.of(DATABASE, 'daily'))}", DATABASE)
    return found


@pytest.fixture
def daily(shop: Shop) -> Shop:
    path = ObjectPath.of(DATABASE, "daily")
    shop.place.execute(f"CREATE TABLE {shop.place.name(path)} ({COMPUTED[shop.catalog]})", DATABASE)
    return shop


ZERO, ONE = Decimal("0.0"), Decimal("1.0")


@pytest.mark.promise("defaults", "no value of a row is taken for a default", detail=True)
def test_no_value_of_a_row_is_taken_for_a_default(daily: Shop) -> None:
    values = (
        "(0, false, 0, 'a'), (-5, DEFAULT, 0.0, 'DEFAULT'), (-6, true, Default, NULL), (-7, false, NULL, 'default')"
    )
    expected = {(0, False, ZERO, "a"), (-5, True, ZERO, "DEFAULT"), (-6, True, ONE, None), (-7, False, None, "default")}
    daily.sql(f"INSERT INTO @daily VALUES {values}")
    assert computed(daily) == expected
    daily.sql(f"INSERT INTO @daily SELECT * FROM VALUES {values} AS v(id, ok, d, name)")
    assert computed(daily) == expected
    daily.sql("INSERT INTO @daily VALUES (-1, DEFAULT, 0, CAST(current_date() IS NULL AS STRING)), (-2, false, 0, 'b')")
    assert computed(daily) == {(-1, True, ZERO, "false"), (-2, False, ZERO, "b")}
    daily.sql("INSERT INTO @daily SELECT id, DEFAULT, 0, 'x' AS name FROM range(2)")
    assert computed(daily) == {(0, True, ZERO, "x"), (1, True, ZERO, "x")}
    daily.sql("INSERT OVERWRITE @daily SELECT *, DEFAULT, 'x' FROM (SELECT -3, false) ORDER BY 1 LIMIT 1")
    assert computed(daily) == {(-3, False, ONE, "x")}
    daily.sql("INSERT INTO @daily SELECT -3, false AS `DEFAULT`, 0, 'x'")
    assert computed(daily) == {(-3, False, ZERO, "x")}
    daily.sql("EXECUTE IMMEDIATE \"INSERT INTO @daily VALUES (-1, DEFAULT, 0, ?), (-2, false, 0, 'b')\" USING 'a'")
    assert computed(daily) == {(-1, True, ZERO, "a"), (-2, False, ZERO, "b")}
    daily.spark.createDataFrame([(-4, False)], "id INT, ok BOOLEAN").selectExpr(
        "id", "ok", "0BD AS d", "'default' AS name"
    ).writeTo(daily.name("daily")).append()
    assert computed(daily) == {(-4, False, ZERO, "default")}


@pytest.mark.promise("defaults", "an ambiguous word `DEFAULT` is refused before anything begins")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT -3, DEFAULT, 0.0, 'x' AS `default`",
        "SELECT -3, true, a, 'x' FROM VALUES (DEFAULT) AS v(a)",
        "SELECT max(a), true, 0, 'x' FROM VALUES (DEFAULT) AS v(a)",
    ],
)
@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_a_default_that_may_be_anothers_is_refused_before_anything_begins(daily: Shop, query: str) -> None:
    with pytest.raises(CatalogError, match="the word DEFAULT"):
        daily.sql(f"INSERT INTO @daily {query}")
    assert daily.place.hidden(DATABASE) == []
    assert computed(daily) == set()


@pytest.mark.promise("defaults", "columns of any type may be left out", detail=True)
def test_columns_of_any_type_may_be_left_out(daily: Shop) -> None:
    if pyspark.__version__.startswith("4.0."):
        return  # It leaves no column of another catalog's table out.
    daily.sql("INSERT INTO @daily (name, ok) VALUES ('a', false), ('b', DEFAULT)")
    assert {row[1:] for row in computed(daily)} == {(False, ONE, "a"), (True, ONE, "b")}
    daily.sql("INSERT INTO @daily BY NAME SELECT 'x' AS name, CAST(0 AS DECIMAL(3, 1)) AS d")
    assert {row[1:] for row in computed(daily)} == {(True, ZERO, "x")}
    daily.spark.range(1).selectExpr("'x' AS name", "false AS ok").write.mode("append").saveAsTable(daily.name("daily"))
    assert {row[1:] for row in computed(daily)} == {(False, ONE, "x")}
    daily.sql("BEGIN INSERT INTO @daily (name) VALUES ('x'); INSERT INTO @daily (ok, name) VALUES (DEFAULT, 'y'); END")
    assert {row[1:] for row in computed(daily)} == {(True, ONE, "x"), (True, ONE, "y")}
    with twophase.transaction(daily.spark):
        daily.sql("INSERT INTO @daily (name) VALUES ('x')")
        daily.sql("INSERT INTO @daily (ok, name) VALUES (false, 'y')")
        daily.sql("INSERT OVERWRITE @daily (name) VALUES ('z')")
        daily.sql("INSERT INTO @daily (ok, name) VALUES (false, 'z'), (DEFAULT, 'z')")
    assert sorted(row[1:] for row in computed(daily)) == [(False, ONE, "z"), (True, ONE, "z"), (True, ONE, "z")]


@pytest.mark.promise("databases", "several tables of one database, published in one step: atomic (note h)")
def test_tables_of_one_database_are_published_in_one_step(shop: Shop) -> None:
    shop.sql("CREATE TABLE @old AS SELECT 1 AS id")
    with twophase.transaction(shop.spark) as tx:
        shop.sql("CREATE TABLE @one AS SELECT 1 AS id")
        shop.sql("CREATE OR REPLACE TABLE @old AS SELECT id + 1 AS id FROM @one")
        assert shop.rows("old") == [(1,)]
    assert tx.level is Level.ATOMIC
    assert (shop.rows("one"), shop.rows("old")) == ([(1,)], [(2,)])


@pytest.mark.promise("databases", "a block that creates and inserts: best effort on MariaDB, else atomic (note h)")
@pytest.mark.parametrize("shop", ["mariadb", "postgresql", "sqlite"], indirect=True)
def test_a_block_that_creates_and_inserts_takes_two_steps_where_ddl_commits(shop: Shop) -> None:
    shop.sql("CREATE TABLE @old AS SELECT 1 AS id")
    with twophase.transaction(shop.spark) as tx:
        shop.sql("CREATE TABLE @one AS SELECT 1 AS id")
        shop.sql("INSERT INTO @old SELECT 2")
    assert tx.level is (Level.BEST_EFFORT if shop.catalog == "mariadb" else Level.ATOMIC)
    assert (shop.rows("one"), shop.rows("old")) == ([(1,)], [(1,), (2,)])


def test_a_statement_reads_what_earlier_ones_staged(shop: Shop) -> None:
    shop.sql("CREATE TABLE @daily AS SELECT 1 AS id")
    with twophase.transaction(shop.spark):
        shop.sql("INSERT INTO @daily SELECT 2")
        shop.sql("INSERT INTO @daily SELECT max(id) + 1 FROM @daily")
        assert shop.rows("daily") == [(1,)]
    assert shop.rows("daily") == [(1,), (2,), (3,)]


def test_a_read_is_cut_into_parts_and_pushes_columns_and_conditions_down(shop: Shop) -> None:
    if shop.catalog == "mariadb":
        shop.place.execute(f"CREATE TABLE {DATABASE}.many (id BIGINT PRIMARY KEY, name LONGTEXT, x DOUBLE)")
        shop.sql("INSERT INTO @many SELECT id, CAST(id AS STRING), id / 4 FROM range(1000)")
        shop.place.execute(f"ANALYZE TABLE {DATABASE}.many")
    else:
        shop.sql("CREATE TABLE @many AS SELECT id, CAST(id AS STRING) AS name, id / 4 AS x FROM range(1000)")
    everything = shop.spark.table(shop.name("many"))
    assert everything.rdd.getNumPartitions() > 1
    assert ordered([tuple(row) for row in everything.collect()]) == ordered([(i, str(i), i / 4) for i in range(1000)])
    assert everything.count() == 1000
    some = everything.where("id >= 990 AND (name = '995' OR x > 249)").select("name")
    plan = some._jdf.queryExecution().executedPlan().toString()
    assert "id >= 990" in plan and "name = 995" in plan, plan
    assert sorted(row.name for row in some.collect()) == ["995", "997", "998", "999"]


@pytest.mark.promise("visibility", "the parts of one read from a database are of one version of the table", detail=True)
def test_a_part_of_a_read_never_sees_another_version_than_the_plan(shop: Shop) -> None:
    if shop.catalog == "mariadb":
        return  # Without a primary key it reads in one part, which is one snapshot.
    shop.sql("CREATE TABLE @many AS SELECT id FROM range(1000)")
    planned = shop.spark.table(shop.name("many"))
    planned._jdf.queryExecution().executedPlan().execute().getNumPartitions()
    shop.sql("INSERT INTO @many SELECT id FROM range(1000)")
    with pytest.raises(Exception, match="published anew while it was read"):
        planned.collect()
    assert shop.spark.table(shop.name("many")).count() == 2000


@pytest.mark.promise(
    "visibility", "a block reads the tables of a database in one state; where that is gone, it is refused"
)
def test_a_block_reads_the_tables_as_they_were_when_it_began(shop: Shop) -> None:
    for name in ("a", "b"):
        shop.sql(f"CREATE TABLE @{name} AS SELECT id FROM range(250)")
    other = shop.spark.newSession()
    handle = twophase.attach(other)
    both = "SELECT count(*), sum(a.id) FROM @a JOIN @b ON a.id = b.id"

    def overwrite() -> None:
        with twophase.transaction(other):
            for name in ("a", "b"):
                other.sql(f"INSERT OVERWRITE {shop.name(name)} SELECT -id FROM range(250)")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(handle.recover).result()  # Before the block: a thread inherits the one of its maker.
        with twophase.transaction(shop.spark):
            before, planned = shop.read(both), shop.sql(both)
            assert before == [(250, sum(range(250)))]
            pool.submit(overwrite).result()
            for read in (lambda: shop.read(both), lambda: [tuple(row) for row in planned.collect()]):
                if shop.catalog == "postgresql":
                    assert read() == before
                else:
                    with pytest.raises(Exception, match="as it was when the transaction began"):
                        read()
    assert shop.read(both) == [(250, -before[0][1])]
    handle.detach()


def test_ddl_goes_through_sparks_own_statements(shop: Shop) -> None:
    shop.sql("CREATE TABLE @daily (id BIGINT COMMENT 'key', name STRING) TBLPROPERTIES ('team' = 'sales')")
    shop.sql("INSERT INTO @daily VALUES (1, 'a')")
    shop.sql("ALTER TABLE @daily ADD COLUMN more DECIMAL(30, 5)")
    shop.sql("ALTER TABLE @daily RENAME COLUMN name TO title")
    shop.sql("ALTER TABLE @daily ALTER COLUMN more TYPE DECIMAL(32, 5)")
    shop.sql("ALTER TABLE @daily ALTER COLUMN title COMMENT 'of the day'")
    shop.sql("ALTER TABLE @daily ADD COLUMN size INT")
    shop.sql("ALTER TABLE @daily CHANGE COLUMN size size BIGINT COMMENT 'in bytes'")
    with pytest.raises(SchemaError, match="from long to string") as caught:
        shop.sql("ALTER TABLE @daily ALTER COLUMN id TYPE STRING")
    assert "explicit" not in str(caught.value)  # No option of the catalog has that policy.
    with pytest.raises(SchemaError, match="more has NULL in rows"):
        shop.sql("ALTER TABLE @daily ALTER COLUMN more SET NOT NULL")
    shop.sql("EXECUTE IMMEDIATE 'ALTER TABLE @daily ALTER COLUMN title SET NOT NULL'")
    with pytest.raises(Exception, match=r"(?i)null"):
        shop.sql("INSERT INTO @daily VALUES (2, NULL, 1, 1)")
    shop.sql("ALTER TABLE @daily ALTER COLUMN title DROP NOT NULL")
    described = {row.col_name: (row.data_type, row.comment) for row in shop.sql("DESCRIBE @daily").collect()}
    assert described["more"] == ("decimal(32,5)", None)
    assert (described["title"], described["size"]) == (("string", "of the day"), ("bigint", "in bytes"))
    shop.sql("ALTER TABLE @daily DROP COLUMN size")
    shop.sql("ALTER TABLE @daily SET TBLPROPERTIES ('team' = 'it\\'s \\\\ ours')")
    shop.sql("ALTER TABLE @daily DROP COLUMN id")
    shop.sql("ALTER TABLE @daily RENAME TO @weekly")
    assert shop.read("SELECT * FROM @weekly") == [("a", None)]
    properties = {row.key: row.value for row in shop.sql("SHOW TBLPROPERTIES @weekly").collect()}
    assert properties["team"] == "it's \\ ours"
    shop.sql("DROP TABLE @weekly")
    assert not shop.spark.catalog.tableExists(shop.name("weekly"))


def test_a_new_column_takes_a_default_that_each_database_has(shop: Shop) -> None:
    shop.sql("CREATE TABLE @daily AS SELECT 1L AS id")
    for column in ("a DATE DEFAULT DATE'2026-01-01'", "b STRING DEFAULT 'it is'", "c DOUBLE DEFAULT 1e3"):
        shop.sql(f"ALTER TABLE @daily ADD COLUMN {column}")
    shop.sql("ALTER TABLE @daily ADD COLUMN d INT DEFAULT NULL")
    shop.sql("INSERT INTO @daily VALUES (2, DEFAULT, DEFAULT, DEFAULT, DEFAULT)")
    given = (date(2026, 1, 1), "it is", 1000.0, None)
    assert shop.read("SELECT * FROM @daily") == [(1, *given), (2, *given)]
    with pytest.raises(CatalogError, match=r"its DEFAULT current_date\(\) is no literal that"):
        shop.sql("ALTER TABLE @daily ADD COLUMN e DATE DEFAULT current_date()")


def test_one_write_brings_its_columns_where_it_says_so(shop: Shop) -> None:
    shop.sql("CREATE TABLE @daily AS SELECT 1L AS id, 'a' AS name")
    rows = shop.spark.sql("SELECT 'b' AS name, 1 AS more, 2 AS id")
    if shop.catalog == "mariadb":
        with pytest.raises(Exception, match="cannot get columns in one step with their rows"):
            rows.write.mode("append").option("mergeSchema", "true").saveAsTable(shop.name("daily"))
        assert shop.rows("daily") == [(1, "a")]
        return
    rows.write.mode("append").option("mergeSchema", "true").saveAsTable(shop.name("daily"))
    shop.spark.sql("SELECT 3 AS id, 'x' AS last").writeTo(shop.name("daily")).option("mergeSchema", "true").append()
    with pytest.raises(AnalysisException):
        shop.spark.sql("SELECT 4 AS id, 'c' AS name, 1 AS m, 'x' AS l, 1 AS n").writeTo(shop.name("daily")).append()
    assert shop.read("SELECT id, name, more, last FROM @daily") == [
        (1, "a", None, None),
        (2, "b", 1, None),
        (3, None, None, "x"),
    ]
    shop.sql("ALTER TABLE @daily SET TBLPROPERTIES ('twophase.merge_schema' = 'true')")
    shop.sql("INSERT INTO @daily SELECT 'd' AS always, 4 AS id")
    assert shop.read("SELECT id, name, always FROM @daily WHERE id > 2") == [(3, None, None), (4, None, "d")]
    shop.sql("ALTER TABLE @daily UNSET TBLPROPERTIES ('twophase.merge_schema')")
    if shop.spark.version.startswith("4.3"):
        shop.sql("BEGIN INSERT WITH SCHEMA EVOLUTION INTO @daily BY NAME SELECT 1 AS by_sql, 5 AS id; END")
        assert shop.read("SELECT id, name, by_sql FROM @daily WHERE id = 5") == [(5, None, 1)]
    before = shop.rows("daily")
    with pytest.raises(Exception, match="brought columns to it"), twophase.transaction(shop.spark):
        rows.withColumnRenamed("more", "other").write.option("mergeSchema", "true").insertInto(shop.name("daily"))
        shop.read("SELECT * FROM @daily")
    assert shop.rows("daily") == before


@IN_ANY_DATABASE
def test_an_option_of_an_insert_that_nothing_here_has_is_refused(shop: Shop) -> None:
    shop.sql("CREATE TABLE @daily AS SELECT 1L AS id")
    shop.sql("INSERT INTO @daily WITH (batchSize = 10, isolationLevel = 'NONE', numPartitions = 2) VALUES (2L)")
    shop.sql("INSERT OVERWRITE @daily WITH (partitionOverwriteMode = 'static', truncate = true) VALUES (3L)")
    for write in (
        lambda: shop.sql("INSERT INTO @daily WITH (column_type = 'id INT') VALUES (4L)"),
        lambda: shop.spark.range(1).writeTo(shop.name("daily")).option("sessionInitStatement", "SET x = 1").append(),
    ):
        with pytest.raises(
            CatalogError, match=r"no option \w+ for a write to .*daily.*Known: .*batchsize, column_types"
        ):
            write()
    assert shop.rows("daily") == [(3,)]


@IN_ANY_DATABASE
def test_explain_begins_nothing(shop: Shop) -> None:
    shop.sql("EXPLAIN CREATE TABLE @daily AS SELECT 1 AS id").collect()
    assert shop.place.hidden(DATABASE) == []
    assert not shop.spark.catalog.tableExists(shop.name("daily"))


def test_every_type_comes_back_as_it_was(shop: Shop) -> None:
    text = """
        SELECT true AS b, CAST(7 AS SMALLINT) AS s, 8 AS i, CAST(-9223372036854775808 AS BIGINT) AS l,
               CAST(0.1 AS FLOAT) AS f, CAST('-1.7976931348623157E308' AS DOUBLE) AS d,
               CAST('99999999999999999999999999999999999999' AS DECIMAL(38, 0)) AS n,
               CAST('-0.00000000000000000001' AS DECIMAL(38, 20)) AS m, CAST(12.50 AS DECIMAL(10, 2)) AS p,
               'tab\\t quote" it''s \\\\ 表 😀' AS t, X'00FF27' AS x, DATE'1066-10-14' AS old, DATE'9999-12-31' AS new,
               TIMESTAMP'2024-02-29 12:34:56.789012' AS z, TIMESTAMP_NTZ'1581-01-01 00:00:00.000001' AS w
        UNION ALL SELECT null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
    """
    expected = shop.spark.sql(text).collect()
    shop.sql(f"CREATE TABLE @kinds AS {text}")
    found = shop.spark.table(shop.name("kinds"))
    assert [f.dataType for f in found.schema] == [f.dataType for f in shop.spark.sql(text).schema]
    assert ordered([tuple(row) for row in found.collect()]) == ordered([tuple(row) for row in expected])
    # Of a value that no database is asked about, Spark alone judges.
    for condition in (
        "new < DATE'10000-01-01'",
        "z > TIMESTAMP'-0001-01-01 00:00:00'",
        "d < CAST('NaN' AS DOUBLE) AND d < CAST('Infinity' AS DOUBLE)",
        "t = 'a\\u0000b' OR i = 8",
    ):
        assert shop.read(f"SELECT i FROM @kinds WHERE {condition}") == [(8,)], condition
    reader = shop.spark.read.option("fetchSize", 7)
    assert reader.table(shop.name("kinds")).count() == 2
    with pytest.raises(CatalogError, match="no option query"):
        reader.option("query", "SELECT 1").table(shop.name("kinds")).count()


def test_values_that_are_no_numbers_are_kept_or_refused_by_column(shop: Shop) -> None:
    query = "SELECT CAST(v AS DOUBLE) AS v FROM VALUES ('NaN'), ('Infinity'), ('-Infinity') AS t(v)"
    if shop.catalog == "postgresql":
        shop.sql(f"CREATE TABLE @odd AS {query}")
        assert [str(row[0]) for row in shop.read("SELECT * FROM @odd")] == ["-inf", "inf", "nan"]
        return
    with pytest.raises(Exception, match="Column 'v' holds NaN"):
        shop.sql(f"CREATE TABLE @odd AS {query}")
    assert not shop.spark.catalog.tableExists(shop.name("odd"))


@IN_ANY_DATABASE
@pytest.mark.parametrize("value", ["map('a', 1)", "named_struct('a', 1)", "INTERVAL '1' DAY"])
def test_a_type_without_a_column_is_refused_before_any_job(shop: Shop, value: str) -> None:
    with pytest.raises(CatalogError, match=r"Column 'odd'.*has the type"):
        shop.sql(f"CREATE TABLE @kinds AS SELECT 1 AS id, {value} AS odd")
    assert shop.place.hidden(DATABASE) == []


def test_arrays_are_arrays_in_postgresql(shop: Shop) -> None:
    text = "SELECT array(1, NULL, 3) AS i, array('a\"b', 'c,d', NULL, '', 'e\\\\f') AS t"
    if shop.catalog != "postgresql":
        with pytest.raises(CatalogError, match="Column 'i'"):
            shop.sql(f"CREATE TABLE @lists AS {text}")
        return
    shop.sql(f"CREATE TABLE @lists AS {text}")
    assert shop.spark.table(shop.name("lists")).collect() == [Row(i=[1, None, 3], t=['a"b', "c,d", None, "", "e\\f"])]


#: What PostgreSQL holds and Python or Arrow does not, and what Spark reads, as a text.
ODD_VALUES = {
    "time": ("'13:45:00.25'", "13:45:00.25"),
    "time[]": ("'{13:45:00,NULL}'", "[13:45:00, null]"),
    "timestamp": ("'infinity'", "9999-12-31 23:59:59.999999"),
    "timestamptz": ("'-infinity'", "0001-01-01 00:00:00"),
    "timestamp[]": (
        "'{infinity,2020-01-02 03:04:05.000006,NULL}'",
        "[9999-12-31 23:59:59.999999, 2020-01-02 03:04:05.000006, null]",
    ),
    "date": ("'infinity'", "9999-12-31"),
    "date[]": ("'{-infinity,2020-02-29}'", "[0001-01-01, 2020-02-29]"),
    "timestamp(6)": ("'10000-01-01 00:00:00.000001'", "+10000-01-01 00:00:00.000001"),
    "timestamp(5)": ("'1969-12-31 23:59:59.99999'", "1969-12-31 23:59:59.99999"),
    "timestamp(4)": ("'0044-03-15 12:00:00 BC'", "-0043-03-15 12:00:00"),
    "numeric": ("'1e-30'", "0.000000000000000000"),
    "numeric[]": ("'{1e-30,2.5,NULL}'", "[0.000000000000000000, 2.500000000000000000, null]"),
    "uuid[]": ("'{00000000-0000-0000-0000-00000000000a}'", "[00000000-0000-0000-0000-00000000000a]"),
    "inet": ("'10.0.0.1'", "10.0.0.1"),
    "inet[]": ("'{10.0.0.1,NULL}'", "[10.0.0.1, null]"),
    "jsonb[]": ("""ARRAY['{"a": 1}'::jsonb, null]""", '[{"a": 1}, null]'),
    "odd_mood[]": ("'{sad,ok}'", "[sad, ok]"),
    "interval[]": ("'{1 day 02:00:00}'", "[1 day 02:00:00]"),
}


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_a_condition_that_a_database_takes_no_part_of_is_sparks_own_or_refused(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id, DATE'2024-02-29' AS d, TIMESTAMP'2024-02-29 01:02:03' AS at")
    for condition in ("d < DATE'10000-01-01'", "at > TIMESTAMP'-0001-01-01 00:00:00'", "d != DATE'10000-01-01'"):
        assert shop.sql(f"SELECT id FROM @t WHERE {condition}").count() == 1, condition
    new = shop.sql("SELECT 2L AS id, DATE'2024-03-01' AS d, TIMESTAMP'2024-03-01 00:00:00' AS at")
    with pytest.raises(AtomicityNotSupportedError, match="condition"):
        new.writeTo(shop.name("t")).overwrite(F.col("id") == 1)
    with pytest.raises(AtomicityNotSupportedError, match="condition"):
        shop.sql("INSERT INTO @t REPLACE WHERE id = 1 SELECT 2L, DATE'2024-03-01', TIMESTAMP'2024-03-01 00:00:00'")
    assert [row[0] for row in shop.rows("t")] == [1]


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_values_that_python_has_none_for_are_read_as_by_sparks_own_reader(shop: Shop) -> None:
    name = shop.place.name(ObjectPath.of(DATABASE, "odd"))
    shop.place.execute("DROP TYPE IF EXISTS odd_mood CASCADE")
    shop.place.execute("CREATE TYPE odd_mood AS ENUM ('sad', 'ok')")
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(ODD_VALUES))
    shop.place.execute(f"CREATE TABLE {name} ({columns})")
    values = ", ".join(value for value, _ in ODD_VALUES.values())
    shop.place.execute(f"INSERT INTO {name} VALUES ({values})")
    shop.place.execute(f"INSERT INTO {name} (c0) VALUES (NULL)")
    shop.spark.conf.set("spark.sql.session.timeZone", "UTC")
    texts = ", ".join(f"CAST(c{number} AS STRING)" for number in range(len(ODD_VALUES)))
    found, empty = shop.sql(f"SELECT {texts} FROM @odd ORDER BY c0 NULLS LAST").collect()
    expected = [text for _, text in ODD_VALUES.values()]
    assert list(found) == expected
    assert set(empty) == {None}
    assert shop.sql("SELECT c4 FROM @odd WHERE c3 = TIMESTAMP'0001-01-01' OR c7 > TIMESTAMP_NTZ'2020-01-01'").count()
    for condition in (
        *(
            "c2 = TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'",
            "c3 = TIMESTAMP'0001-01-01'",
            "c3 >= TIMESTAMP'0001-01-01'",
        ),
        *("c5 = DATE'9999-12-31'", "c5 <= DATE'9999-12-31'", "c5 IN (DATE'9999-12-31')", "c5 > DATE'2020-01-01'"),
        *("c10 = 0", "c10 <= 0", "c10 IN (0, 1)"),
    ):
        assert shop.sql(f"SELECT c0 FROM @odd WHERE {condition}").count() == 1, condition
    shop.spark.conf.unset("spark.sql.session.timeZone")
    shop.sql("DROP TABLE @odd")
    shop.place.execute("DROP TYPE odd_mood")


def test_column_types_are_the_users_where_they_say_so(shop: Shop, tmp_path: Path) -> None:
    table = f"kinds_{uuid.uuid4().hex[:6]}"
    shop.sql(f"CREATE TABLE @{table} OPTIONS (column_types = 'name VARCHAR(3)') AS SELECT 'abc' AS name")
    found = shop.place.catalog()
    with found.store.begin(DATABASE) as connection:
        (column,) = found.store.database.columns(connection, ObjectPath.of(DATABASE, table))
    found.close()
    assert column.type.lower() in ("varchar(3)", "character varying(3)")
    with pytest.raises(CatalogError, match="Did you mean column_types"):
        shop.sql("CREATE TABLE @other OPTIONS (columns_types = 'name VARCHAR(3)') AS SELECT 'abc' AS name")


@IN_ANY_DATABASE
def test_the_doctor_reports_executors_whose_python_lacks_what_tasks_need(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = twophase.attach(shop.spark).catalog(shop.catalog)
    if shop.catalog == "mariadb":
        shop.place.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    assert catalog.check() == []
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(shop.spark.sparkContext, "pythonExec", str(tmp_path / "bare" / "bin" / "python"))
    (told,) = catalog.check()
    assert "Python lacks " in told and "pyarrow" in told
    assert "PYSPARK_PYTHON" in told
    monkeypatch.setattr(shop.spark.sparkContext, "pythonExec", "/no/such/python")
    (told,) = catalog.check()
    assert "/no/such/python" in told


def test_a_block_writes_what_it_made_in_the_types_that_the_database_has_for_it(shop: Shop) -> None:
    """A TINYINT is a smallint in PostgreSQL; a CHAR(3) is padded by the database, or is not."""
    columns = "(tiny TINYINT, code CHAR(3), name VARCHAR(4))"
    row = "(7, 'x', 'long')"
    shop.sql(f"CREATE TABLE @later {columns}")
    shop.sql(f"INSERT INTO @later VALUES {row}")
    with twophase.transaction(shop.spark):
        shop.sql(f"CREATE TABLE @made {columns}")
        shop.sql(f"INSERT INTO @made VALUES {row}")
        staged = shop.read("SELECT * FROM @made")
    assert staged == shop.read("SELECT * FROM @made") == shop.read("SELECT * FROM @later")


@pytest.mark.promise("databases", "`TRUNCATE TABLE` is an overwrite without rows: atomic", detail=True)
def test_truncate_empties_a_table_all_or_nothing(shop: Shop) -> None:
    shop.sql("CREATE TABLE @daily AS SELECT id FROM range(3)")
    failpoints.arm("jdbc.publish", "error", nth=1)
    with pytest.raises(TransactionAborted):
        shop.sql("TRUNCATE TABLE @daily")
    assert len(shop.read("SELECT * FROM @daily")) == 3
    levels = Levels(shop.spark)
    shop.sql("TRUNCATE TABLE @daily")
    assert (shop.read("SELECT * FROM @daily"), levels()) == ([], {Level.ATOMIC})
    shop.sql("INSERT INTO @daily VALUES (7)")
    assert shop.read("SELECT * FROM @daily") == [(7,)]
    with pytest.raises(AnalysisException, match="NOT_FOUND"):
        shop.sql("TRUNCATE TABLE @missing")

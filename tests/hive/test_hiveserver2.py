"""The metastore through HiveServer2: the same promises, levels stated lower where SQL needs several statements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import functions

from tests.hive.conftest import start_session
from tests.hive.world import World
from tests.servers import Server, free_port
from twophase.catalog import TableChange
from twophase.catalogs.hive.identity import STORE
from twophase.catalogs.hive.metastore import Metastore
from twophase.catalogs.hive.tables import HivePartition, HiveTable
from twophase.errors import CatalogError, ConfigurationError, TableAlreadyExistsError, WriteConflictError
from twophase.model import Level, ObjectPath, Outcome, OverwriteScope, Purpose

pytestmark = pytest.mark.timeout(900)

SECRET = "correct-horse"


@pytest.fixture(scope="module")
def over_hs2(hive_server2: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("hs2")
    spark = start_session(root, hive=False)
    options = {"metastore": "hiveserver2", "host": hive_server2.host, "port": str(hive_server2.port)}
    found = World(spark, root / "warehouse", options)
    found.catalog.create_database("shop", properties={"location": f"file:{root / 'shop'}"})
    yield found
    found.catalog.drop_database("shop", cascade=True)
    found.catalog.close()
    spark.stop()


@pytest.fixture
def world(over_hs2: World) -> Iterator[World]:
    yield over_hs2
    for name in over_hs2.catalog.list_tables("shop"):
        over_hs2.catalog.drop_table(ObjectPath.of("shop", name))
    assert over_hs2.hidden_tables() == []


def rows(world: World, table: str) -> list[tuple[object, ...]]:
    """What the server itself reads."""
    store = world.catalog.metastore
    return sorted((tuple(row) for row in store._run(f"SELECT * FROM shop.{table}")), key=repr)  # type: ignore[attr-defined]


@pytest.mark.promise("hiveserver2", "replace, overwrite and inserts of several files: reversible (note g)")
def test_create_insert_overwrite_and_replace(world: World) -> None:
    created = world.run("t", world.sql("SELECT id, cast(id AS string) AS s FROM range(3)"), database="shop")
    assert (rows(world, "t"), created.level) == ([(0, "0"), (1, "1"), (2, "2")], Level.ATOMIC)
    inserted = world.run("t", world.sql("SELECT 7L AS id, 'x' AS s"), Purpose.INSERT_INTO, database="shop")
    # Tables with a LOCATION are external in SQL: their files stay where they are.
    assert (len(rows(world, "t")), inserted.level) == (4, Level.ATOMIC)
    two_files = world.sql("SELECT id, 'x' AS s FROM range(4)").repartition(2)
    several = world.run("t", two_files, Purpose.INSERT_INTO, database="shop")
    assert (len(rows(world, "t")), several.level) == (8, Level.REVERSIBLE)
    over = world.run("t", world.sql("SELECT 8L AS id, 'y' AS s"), Purpose.INSERT_OVERWRITE, database="shop")
    assert (rows(world, "t"), over.level) == ([(8, "y")], Level.REVERSIBLE)
    replaced = world.run("t", world.sql("SELECT 'z' AS s, 1.5D AS f"), Purpose.REPLACE_TABLE_AS, database="shop")
    assert (rows(world, "t"), replaced.level) == ([("z", 1.5)], Level.REVERSIBLE)
    assert replaced.level_reason


def test_an_alter_undoes_nothing_that_another_writer_published_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run("t", world.sql("SELECT 1L AS id"), database="shop")
    store = world.catalog.metastore
    alter = store.alter_definition

    def overtaken(table: HiveTable) -> None:
        monkeypatch.undo()
        world.run("t", world.sql("SELECT 7L AS id"), Purpose.INSERT_OVERWRITE, database="shop")
        alter(table)

    monkeypatch.setattr(store, "alter_definition", overtaken)
    path = ObjectPath.of("shop", "t")
    world.catalog.alter_table(path, [TableChange("set_property", (), {"key": "x", "value": "1"})])
    assert (rows(world, "t"), world.catalog.load_table(path).properties["x"]) == ([(7,)], "1")


@pytest.mark.promise("hiveserver2", "create, inserts of one file or into new partitions only: atomic")
def test_partitioned_tables(world: World) -> None:
    df = world.sql("SELECT id, id % 2 AS k FROM range(4)")
    created = world.run("p", df, by=["k"], database="shop")
    assert (rows(world, "p"), created.level) == ([(0, 0), (1, 1), (2, 0), (3, 1)], Level.ATOMIC)
    new = world.run("p", world.sql("SELECT 5L AS id, 5L AS k"), Purpose.INSERT_INTO, database="shop")
    assert new.level is Level.ATOMIC
    scope = OverwriteScope({}, True)
    nine = world.sql("SELECT 9L AS id, 1L AS k")
    over = world.run("p", nine, Purpose.INSERT_OVERWRITE, overwrite=scope, database="shop")
    assert (rows(world, "p"), over.level) == ([(0, 0), (2, 0), (5, 5), (9, 1)], Level.REVERSIBLE)


@pytest.mark.promise("hiveserver2", "several tables in one transaction: reversible")
def test_several_tables_are_reversible(world: World) -> None:
    assert world.together("a", "b", database="shop") is Level.REVERSIBLE
    assert (rows(world, "a"), rows(world, "b")) == ([(1,)], [(1,)])


def test_losers_and_aborts(world: World) -> None:
    df = world.sql("SELECT id FROM range(2)")
    winner, loser = (world.stage("t", df, database="shop") for _ in range(2))
    winner.commit()
    with pytest.raises(TableAlreadyExistsError):
        loser.commit()
    assert loser.outcome() is Outcome.NOT_PUBLISHED
    loser.abort()
    winner.finish()
    assert rows(world, "t") == [(0,), (1,)]
    first = world.stage("t", df, Purpose.REPLACE_TABLE_AS, database="shop")
    second = world.stage("t", df, Purpose.REPLACE_TABLE_AS, database="shop")
    first.commit()
    first.finish()
    with pytest.raises(WriteConflictError):
        second.commit()
    second.abort()


@pytest.mark.promise(
    "same-answers",
    "a value goes through HiveServer2 as it is written, and names no variable of the server",
    detail=True,
)
def test_a_value_is_what_the_user_wrote_and_no_variable_of_the_server(world: World) -> None:
    told = "${env:PATH} ${spark:spark.app.name} $${x} \\${y}"
    path, facts = ObjectPath.of("shop", "told"), {"comment": told, "properties": {"note": told, told: "key"}}
    df = world.sql("SELECT 1 AS id").withColumn("k", functions.lit("${env:PATH}"))
    world.run("told", df, by=["k"], database="shop", **facts)
    made = world.catalog.load_table(path)
    assert (made.comment, made.properties["note"], made.properties[told]) == (told, told, "key")
    assert rows(world, "told") == [(1, "${env:PATH}")]
    world.catalog.create_database("told", properties={"comment": told})
    assert world.catalog.load_database("told")["comment"] == told
    world.catalog.drop_database("told")
    df = world.sql("SELECT 1 AS id").withColumnRenamed("id", "x${env:PATH}")
    with pytest.raises(CatalogError, match="a name in the statement"):
        world.run("named", df, database="shop")


@pytest.mark.promise("same-answers", "a location goes through HiveServer2 as it is written", detail=True)
def test_a_location_is_what_the_user_wrote_and_no_variable_of_the_server(world: World, tmp_path: Path) -> None:
    odd = [f"{tmp_path}/{name}" for name in ("${env:PATH}", "x ${spark:spark.app.name}", "$${x}", "p${env:HOME}q")]
    df = world.sql("SELECT 1 AS id, 2 AS k")
    world.run("placed", df, by=["k"], database="shop", location=odd[0])
    assert rows(world, "placed") == [(1, 2)]
    store = world.catalog.metastore
    table = store.get_table("shop", "placed")
    assert table is not None
    assert table.location == f"file:{odd[0]}"

    store.add_partitions(table, [HivePartition({"k": "3"}, odd[1]), HivePartition({"k": "4"}, odd[2])])
    store.alter_partitions(table, [HivePartition({"k": "4"}, odd[3])])
    found = {part.values["k"]: part.location for part in store.list_partitions(table)}
    assert found == {"2": f"file:{odd[0]}/k=2", "3": f"file:{odd[1]}", "4": f"file:{odd[3]}"}


@pytest.mark.promise(
    "same-answers", "a partition value through HiveServer2 may hold what its directory escapes", detail=True
)
def test_a_partition_whose_directory_is_escaped_is_read_and_overwritten_where_it_is(world: World) -> None:
    world.run(
        "p", world.sql("SELECT 1L AS id, v AS k FROM VALUES ('a:b'), ('100%25') AS t(v)"), by=["k"], database="shop"
    )
    world.run("p", world.sql("SELECT 2L AS id, 'a:b' AS k"), Purpose.INSERT_INTO, database="shop")
    assert rows(world, "p") == [(1, "100%25"), (1, "a:b"), (2, "a:b")]
    nine = world.sql("SELECT 9L AS id, '100%25' AS k")
    world.run("p", nine, Purpose.INSERT_OVERWRITE, overwrite=OverwriteScope({}, True), database="shop")
    assert rows(world, "p") == [(1, "a:b"), (2, "a:b"), (9, "100%25")]


def test_a_location_with_a_percent_sign_is_the_one_that_the_server_names(world: World, tmp_path: Path) -> None:
    place = f"{tmp_path}/x%20y"
    for name in ("placed", "other"):
        world.run(name, world.sql("SELECT 1L AS id"), database="shop", location=f"{place}/{name}")
    world.run("placed", world.sql("SELECT 2L AS id"), Purpose.INSERT_INTO, database="shop")
    assert rows(world, "placed") == [(1,), (2,)]
    located = {table.name: table.location for table in world.catalog.metastore.located_tables("shop")}
    assert located == {name: f"file:{place}/{name}" for name in ("placed", "other")}
    world.catalog.create_database("odd", properties={"location": f"file:{place}"})
    assert world.catalog.load_database("odd")["location"] == f"file:{place}"
    world.catalog.drop_database("odd")


def test_one_statement_returns_the_locations_of_all_tables(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    df = world.sql("SELECT id, id % 2 AS k FROM range(2)")
    for name, facts in {"plain": {}, "parted": {"by": ["k"]}, "odd": {"comment": "x\nLocation: /y\nType: z"}}.items():
        world.run(name, df, database="shop", **facts)
    store = world.catalog.metastore
    asked, run = [], store._run  # type: ignore[attr-defined]
    expected = Metastore.located_tables(store, "shop")
    monkeypatch.setattr(store, "_run", lambda sql: asked.append(sql) or run(sql))
    assert sorted(store.located_tables("shop"), key=repr) == sorted(expected, key=repr)
    assert len(asked) == 3, asked  # One for all, and one for each of which that leaves something unsure.


def test_nested_types_survive(world: World) -> None:
    query = "SELECT named_struct('a', 1, 'b', array('x')) AS s, map('k', 1.50BD) AS m, date'2024-01-02' AS d"
    world.run("n", world.sql(query), database="shop")
    schema = world.catalog.load_table(ObjectPath.of("shop", "n")).schema
    assert [str(field.type) for field in schema][2] == "date32[day]"
    assert world.catalog.read_source(ObjectPath.of("shop", "n")).kind == "files"


def test_a_server_that_is_not_there_is_reported_without_the_password(world: World) -> None:
    facts = {"host": "127.0.0.1", "port": str(free_port()), "auth": "CUSTOM", "username": "ann", "password": SECRET}
    other = world.with_options(metastore="hiveserver2", **facts)
    with pytest.raises(CatalogError, match="cannot be reached") as caught:
        other.catalog.list_databases()
    assert SECRET not in str(caught.value) + repr(caught.value) + repr(other.catalog.store.__dict__["_metastore"])
    (problem,) = other.catalog.check()
    assert "does not answer" in problem and SECRET not in problem


def test_an_unreachable_metastore_makes_the_outcome_unknown_and_nothing_is_removed(world: World) -> None:
    participant = world.stage("t", world.sql("SELECT 1 AS a"), database="shop")
    away = world.with_options(metastore="hiveserver2", host="127.0.0.1", port="1")
    # The same one, at an address that does not answer.
    lost = away.catalog.restore({**participant.document, STORE: away.catalog.metastore.identity})
    assert lost.outcome() is Outcome.UNKNOWN
    with pytest.raises(CatalogError, match="nothing was removed"):
        lost.abort()
    participant.abort()


def test_options_that_do_not_go_together(world: World) -> None:
    for facts in (
        *({"auth": "LDAP"}, {"password": "x"}, {"auth": "MAGIC"}, {"port": "many"}, {"auth": "KERBEROS"}),
        *(
            {"tls": "yes"},
            {"tls": "1"},
            {"tls_ca": "ca.pem"},
            {"tls_verify": "false"},
            {"tls": "true", "tls_verify": "no"},
        ),
    ):
        with pytest.raises(ConfigurationError):
            world.with_options(metastore="hiveserver2", host="h", **facts)

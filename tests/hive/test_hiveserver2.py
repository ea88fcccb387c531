"""The metastore through HiveServer2: the same promises, levels stated lower where SQL needs several statements."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.hive.conftest import start_session
from tests.hive.world import World
from tests.servers import Server
from twophase.catalogs.hive.identity import STORE
from twophase.errors import CatalogError, ConfigurationError, TableAlreadyExistsError, WriteConflictError
from twophase.model import Level, ObjectPath, Outcome, OverwriteScope, Purpose

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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


def test_create_insert_overwrite_and_replace(world: World) -> None:
    created = world.run("t", world.sql("SELECT id, cast(id AS string) AS s FROM range(3)"), database="shop")
    assert (rows(world, "t"), created.level) == ([(0, "0"), (1, "1"), (2, "2")], Level.ATOMIC)
    inserted = world.run("t", world.sql("SELECT 7L AS id, 'x' AS s"), Purpose.INSERT_INTO, database="shop")
    # Tables with a LOCATION are external in SQL: their files stay where they are.
    assert (len(rows(world, "t")), inserted.level) == (4, Level.ATOMIC)
    world.run("t", world.sql("SELECT 8L AS id, 'y' AS s"), Purpose.INSERT_OVERWRITE, database="shop")
    assert rows(world, "t") == [(8, "y")]
    replaced = world.run("t", world.sql("SELECT 'z' AS s, 1.5D AS f"), Purpose.REPLACE_TABLE_AS, database="shop")
    assert (rows(world, "t"), replaced.level) == ([("z", 1.5)], Level.UNDONE)
    assert replaced.level_reason


def test_partitioned_tables(world: World) -> None:
    df = world.sql("SELECT id, id % 2 AS k FROM range(4)")
    created = world.run("p", df, by=["k"], database="shop")
    assert (rows(world, "p"), created.level) == ([(0, 0), (1, 1), (2, 0), (3, 1)], Level.ATOMIC)
    new = world.run("p", world.sql("SELECT 5L AS id, 5L AS k"), Purpose.INSERT_INTO, database="shop")
    assert new.level is Level.ATOMIC
    scope = OverwriteScope({}, True)
    world.run("p", world.sql("SELECT 9L AS id, 1L AS k"), Purpose.INSERT_OVERWRITE, overwrite=scope, database="shop")
    assert rows(world, "p") == [(0, 0), (2, 0), (5, 5), (9, 1)]


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


def test_nested_types_survive(world: World) -> None:
    query = "SELECT named_struct('a', 1, 'b', array('x')) AS s, map('k', 1.50BD) AS m, date'2024-01-02' AS d"
    world.run("n", world.sql(query), database="shop")
    schema = world.catalog.load_table(ObjectPath.of("shop", "n")).schema
    assert [str(field.type) for field in schema][2] == "date32[day]"
    assert world.catalog.read_source(ObjectPath.of("shop", "n")).kind == "files"


def test_a_server_that_is_not_there_is_told_without_the_password(world: World) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    facts = {"host": "127.0.0.1", "port": str(port), "auth": "CUSTOM", "username": "ann", "password": SECRET}
    other = world.with_options(metastore="hiveserver2", **facts)
    with pytest.raises(CatalogError, match="cannot be reached") as caught:
        other.catalog.list_databases()
    assert SECRET not in str(caught.value) + repr(caught.value) + repr(other.catalog.__dict__["_metastore"])
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

"""The session's metastore as a server of its own, and another engine's session that reads what was published."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hive.conftest import start_session
from tests.hive.world import World
from tests.servers import Server
from twophase.model import Level, ObjectPath, Purpose

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def remote(hive_metastore: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("remote")
    spark = start_session(root, hive=True, conf={"spark.hadoop.hive.metastore.uris": hive_metastore.url})
    found = World(spark, root / "warehouse")
    found.catalog.create_database("depot", properties={"location": f"file:{root / 'depot'}"})
    yield found
    found.catalog.drop_database("depot", cascade=True)
    spark.stop()


def test_every_publish_works_over_thrift_and_other_engines_read_it(remote: World, hive_server2: Server) -> None:
    facts = {"metastore": "hiveserver2", "host": hive_server2.host, "port": str(hive_server2.port)}
    reader = remote.with_options(**facts).catalog.metastore

    def seen(table: str) -> list[tuple[object, ...]]:
        reader.changed("depot", table)
        return sorted(tuple(row) for row in reader._run(f"SELECT * FROM depot.{table}"))  # type: ignore[attr-defined]

    remote.run("t", remote.sql("SELECT id, cast(id AS string) AS s FROM range(2)"), database="depot")
    assert seen("t") == [(0, "0"), (1, "1")]
    changed = remote.run(
        "t", remote.sql("SELECT cast(id AS string) AS s, id FROM range(3)"), Purpose.REPLACE_TABLE_AS, database="depot"
    )
    assert (seen("t"), changed.level) == ([("0", 0), ("1", 1), ("2", 2)], Level.UNDONE)
    by_k = remote.sql("SELECT id, id % 2 AS k FROM range(4)")
    remote.run("p", by_k, by=["k"], database="depot")
    remote.run("p", remote.sql("SELECT 9L AS id, 1L AS k"), Purpose.INSERT_INTO, database="depot")
    assert seen("p") == [(0, 0), (1, 1), (2, 0), (3, 1), (9, 1)]
    remote.run("p", remote.sql("SELECT 'x' AS s, 1L AS k"), Purpose.REPLACE_TABLE_AS, by=["k"], database="depot")
    assert seen("p") == [("x", 1)]
    remote.run("p", remote.sql("SELECT 'x' AS s, 1L AS n"), Purpose.REPLACE_TABLE_AS, by=["s"], database="depot")
    assert seen("p") == [(1, "x")]
    remote.sql("DROP TABLE depot.t")
    remote.catalog.table_dropped(ObjectPath.of("depot", "t"))
    assert remote.catalog.list_tables("depot") == ["p"]
    reader.close()

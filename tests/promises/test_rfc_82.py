"""RFC-82's rows by two drivers, each a process of its own: a session table, databases and the lakehouse.

One has written and not committed when the other one changes the table: nothing depends on who is faster.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.servers import Server

Statement: TypeAlias = "str | dict[str, str]"
CREATE = "CREATE TABLE {t} {ids} AS SELECT {row}"
S1 = "1 AS id, 'a' AS name"
WIDER = "1 AS id, 'a' AS name, 5 AS more"
INSERT = "INSERT INTO {t} SELECT {n} AS id, 'n' AS name"
STORES = {
    "session": "{name}",
    "sqlite": "db.main.{name}",
    "lakehouse": "ice.rfc.{name}",
    "postgresql": "pg.rfc_82.{name}",
    "mariadb": "maria.twophase.rfc_82_{name}",
}
#: How a Parquet table of a session gets field ids.
IDS = "USING parquet TBLPROPERTIES ('twophase.field_ids' = 'true')"


def brings(n: int, name: str) -> dict[str, str]:
    """An insert of rows that bring a column."""
    return {"query": f"SELECT {n} AS id, 'n' AS name, {n}0 AS {name}", "into": "{t}"}


@dataclass(frozen=True)
class Case:
    """What one writer has staged, what another one does meanwhile, how the first one ends, and what is there then.

    Attributes
    ----------
    before : str or None
        How the table is made before.
    staged, meanwhile : str or dict
    end : str
        Of the first one, or where the stores differ, of each.
    columns : list of str
    rows : list of tuple
        Where it is refused: without its rows.
    """

    before: str | None
    staged: Statement
    meanwhile: Statement | None
    end: str | dict[str, str]
    columns: list[str]
    rows: list[tuple[Any, ...]]

    def end_in(self, store: str) -> str:
        return self.end if isinstance(self.end, str) else self.end[store]


MADE = CREATE.replace("{row}", S1)
ADD = "ALTER TABLE {t} ADD COLUMN more INT"
MADE_BY_ONE = dict.fromkeys(STORES, "conflict") | {"session": "exists"}
CASES = {
    "1 no table": Case(None, MADE, None, "done", ["id", "name"], [(1, "a")]),
    "2 both made it alike": Case(None, MADE.replace("1 AS", "2 AS"), MADE, MADE_BY_ONE, ["id", "name"], [(1, "a")]),
    "3 another one made it differently": Case(
        None, MADE, CREATE.replace("{row}", WIDER), MADE_BY_ONE, ["id", "name", "more"], [(1, "a", 5)]
    ),
    "4 nobody changes it": Case(
        MADE,
        INSERT.replace("{n}", "2"),
        INSERT.replace("{n}", "3"),
        "done",
        ["id", "name"],
        [(1, "a"), (2, "n"), (3, "n")],
    ),
    "5 the writer alone": Case(
        MADE, brings(2, "more"), None, "done", ["id", "name", "more"], [(1, "a", None), (2, "n", 20)]
    ),
    "6 the table alone": Case(
        MADE, INSERT.replace("{n}", "2"), ADD, "done", ["id", "name", "more"], [(1, "a", None), (2, "n", None)]
    ),
    "7 both alike": Case(
        MADE,
        brings(2, "more"),
        brings(3, "more"),
        "done",
        ["id", "name", "more"],
        [(1, "a", None), (2, "n", 20), (3, "n", 30)],
    ),
    "8 both differently": Case(
        MADE, brings(2, "more"), brings(3, "other"), "conflict", ["id", "name", "other"], [(1, "a", None), (3, "n", 30)]
    ),
}


#: By store; in databases and the lakehouse the other rows are tried by two writers in one process, too.
FIRST = {"session": "12345678", "sqlite": "68", "lakehouse": "68", "postgresql": "68", "mariadb": ""}
EACH = [
    pytest.param(store, name, marks=[] if name[0] in FIRST[store] else pytest.mark.exhaustive)
    for store in STORES
    for name in CASES
    if store != "mariadb" or name[0] not in "578"  # No write brings columns there, which commits each DDL at once.
]
#: Their catalogs in a session; a server is started only if a test needs it.
SERVERS = {"postgresql": "pg", "mariadb": "maria"}


class Driver:
    """A process with an attached session, which runs what it is told."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "tests.promises.writer", *arguments]
        root = Path(__file__).parents[2]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)

    def answer(self) -> Any:
        assert self._child.stdout is not None
        return json.loads(self._child.stdout.readline())

    def run(self, statement: Statement) -> Any:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(statement) + "\n")
        self._child.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self._child.communicate(timeout=60)


@pytest.fixture(scope="module")
def drivers(
    request: pytest.FixtureRequest, hive_metastore: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Driver, Driver]]:
    root = tmp_path_factory.mktemp("rfc_82")
    tests = [item.nodeid for item in request.session.items if item.path == request.path]
    needed = [store for store in SERVERS if any(f"[{store}-" in test for test in tests)]
    conf = {
        "spark.sql.catalog.db": "twophase.jdbc",
        "spark.sql.catalog.db.url": f"sqlite:///{root / 'rfc.db'}",
        "spark.sql.catalog.ice": "twophase.lakehouse",
        "spark.sql.catalog.ice.uri": f"sqlite:///{root / 'ice.db'}",
        "spark.sql.catalog.ice.warehouse": str(root / "ice"),
    }
    for store in needed:
        name = f"spark.sql.catalog.{SERVERS[store]}"
        conf |= {name: "twophase.jdbc", f"{name}.url": request.getfixturevalue(store).url}
    timeline = f"sqlite:///{root / 'timeline.db'}"
    arguments = [hive_metastore.url, str(root / "warehouse"), "default", timeline, json.dumps(conf)]
    both = Driver(arguments), Driver(arguments)
    assert [driver.answer() for driver in both] == ["READY", "READY"]
    slow, fast = both
    assert fast.run(f"CREATE DATABASE rfc_82 LOCATION '{root / 'rfc_82'}'") == "done"
    assert [driver.run("USE rfc_82") for driver in both] == ["done", "done"]
    assert fast.run("CREATE DATABASE ice.rfc") == "done"
    if "postgresql" in needed:
        assert fast.run("CREATE DATABASE pg.rfc_82") == "done"
    yield slow, fast
    for driver in both:
        driver.close()


def filled(statement: Statement, store: str, table: str) -> Statement:
    """A statement for the table of a store."""
    text = json.dumps(statement).replace("{t}", table).replace("{ids}", IDS if store == "session" else "")
    filled: Statement = json.loads(text)
    return filled


@pytest.mark.promise(
    "evolution", "RFC-82's rows hold between two drivers, for session tables, databases and the lakehouse", detail=True
)
@pytest.mark.parametrize(("store", "name"), EACH)
def test_rfc_82_by_two_drivers(drivers: tuple[Driver, Driver], store: str, name: str) -> None:
    slow, fast = drivers
    case, table = CASES[name], STORES[store].format(name=f"row_{name[0]}")

    def run(driver: Driver, statement: Statement) -> Any:
        return driver.run(filled(statement, store, table))

    if case.before is not None:
        assert run(fast, case.before) == "done"
    assert slow.run("BEGIN TRANSACTION ISOLATION LEVEL READ COMMITTED") == "done"
    assert run(slow, case.staged) == "done"
    if case.meanwhile is not None:
        assert run(fast, case.meanwhile) == "done"
    ended, wanted = slow.run("COMMIT"), case.end_in(store)
    assert ended == wanted or (wanted == "exists" and "already exists" in ended), ended
    rows = case.rows
    if wanted != "done" and case.end != wanted and isinstance(case.end, dict):
        rows = [row for row in rows if row[0] != 2]
    if store == "session":
        assert fast.run(f"REFRESH TABLE {table}") == "done"  # As after any write of another driver.
    found = fast.run({"rows": f"SELECT * FROM {table}"})
    assert found == [case.columns, [list(row) for row in rows]], found

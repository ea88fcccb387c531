"""Real Spark drivers are killed with their JVM (kill -9), over a Hive Metastore that outlives them.

Each driver recovers what the one before it left, tells what it finds, and dies in a statement of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.crash.drivers import Driver, wait_for
from tests.servers import Server

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Death:
    """Where a driver dies, and whether its statement has happened then.

    Parameters
    ----------
    moment : str
        A failpoint, or ``job``: while Spark's tasks write.
    done : bool
    """

    moment: str
    done: bool


DEATHS = {
    "pointer": [Death("hive.pointer.publish", False)],
    "rename": [
        Death("job", False),
        Death("hive.rename.back_up", False),
        Death("hive.rename.publish", False),
        Death("core.finish", True),
    ],
}

#: Of a table that Spark writes through a hidden one, and whose new definition takes over its name in two calls.
DEATHS_IN_A_SWAP = [
    Death("hive.pointer.hidden_table", False),
    Death("core.record_committing", False),
    Death("hive.pointer.back_up_name", False),
    Death("hive.pointer.publish", False),  # The name is free.
    Death("core.record_completed", True),
]
PARQUET, SERDE = "USING parquet", "USING hive OPTIONS (fileFormat 'parquet')"


@pytest.mark.promise(
    "killed-driver", "real drivers, killed together with their JVM, leave the table wholly old or wholly new"
)
@pytest.mark.parametrize(
    ("recipe", "kind", "deaths"),
    [
        pytest.param("pointer", PARQUET, DEATHS["pointer"], id="pointer"),
        pytest.param("rename", PARQUET, DEATHS["rename"], id="rename"),
        pytest.param("pointer", SERDE, DEATHS_IN_A_SWAP, id="swap"),
    ],
)
def test_a_killed_driver_leaves_the_table_wholly_old_or_new(
    recipe: str, kind: str, deaths: list[Death], hive_metastore: Server, tmp_path: Path
) -> None:
    drivers = Drivers(recipe, kind, hive_metastore, tmp_path)
    expected = drivers.rows(0)
    for generation, death in enumerate(deaths, start=1):
        found = drivers.kill(generation, death)
        assert found == {"rows": expected, "open": [], "leftovers": []}, f"before {death}"
        expected = drivers.rows(generation) if death.done else expected
    assert drivers.look() == {"rows": expected, "open": [], "leftovers": []}


class Drivers:
    """One driver after the other on one table."""

    def __init__(self, recipe: str, kind: str, metastore: Server, directory: Path) -> None:
        self._directory = directory
        self._kind = kind
        self._database = f"deaths_{recipe}_{kind.split()[1]}"
        self._table = f"{self._database}.t"
        self._first = True
        (directory / "failpoints").mkdir()
        self._conf = {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.log.level": "OFF",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.hive.metastore.uris": metastore.url,
            "spark.sql.warehouse.dir": f"file:{directory / 'warehouse'}",
            "spark.twophase.timeline": f"sqlite:///{directory / 'timeline.db'}",
            "spark.sql.catalog.hive": "twophase.hive",
            "spark.sql.catalog.hive.recipe": recipe,
        }

    def rows(self, generation: int) -> list[list[Any]]:
        """The rows of one generation of the table."""
        return [[generation * 10 + i, f"p{i % 3}"] for i in range(6)]

    def kill(self, generation: int, death: Death) -> Any:
        """Start a driver, let it die, and tell what it had found."""
        arm = f"{death.moment}=pause" if death.moment != "job" else ""
        facts = {"statement": self._replace(generation, slow=death.moment == "job"), "arm": arm}
        with self._driver(facts) as (driver, told):
            wait_for(told.exists, driver)  # What came before is done.
            if death.moment == "job":
                wait_for(lambda: list((self._directory / "warehouse").rglob("_temporary/0/**/*.parquet")), driver)
            else:
                reached = self._directory / "failpoints" / f"{death.moment}.reached"
                wait_for(reached.exists, driver)
                reached.unlink()
            return json.loads(told.read_text())

    def look(self) -> Any:
        """Start a driver that only looks."""
        with self._driver({}) as (driver, told):
            wait_for(told.exists, driver)
            return json.loads(told.read_text())

    def _replace(self, generation: int, *, slow: bool = False) -> str:
        # One task sleeps before its first row; the other has its files by then.
        nap = "+ if(id < 3, 0, length(java_method('java.lang.Thread', 'sleep', 600000L)))" if slow else ""
        rows = f"SELECT {generation} * 10 + id {nap} AS id, concat('p', id % 3) AS p FROM range(0, 6, 1, 2)"
        return f"CREATE OR REPLACE TABLE {self._table} {self._kind} PARTITIONED BY (p) AS {rows}"

    def _driver(self, facts: dict[str, Any]) -> Driver:
        if self._first:
            facts["before"] = [f"CREATE DATABASE {self._database}", self._replace(0)]
            self._first = False
        return Driver({"conf": self._conf, "table": self._table, **facts}, self._directory)

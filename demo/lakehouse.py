"""The lakehouse part of the demo: a failing write to an Iceberg table, evolution and time travel. No Iceberg jar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from demo.scenes import attempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS, JANUARY = 336_776, 27_004


@dataclass(frozen=True)
class Step:
    """The result of one step.

    Attributes
    ----------
    ran : str
        The statement, shortened.
    seen : str
        The state afterwards.
    expected : bool
        Whether that matches the README.
    """

    ran: str
    seen: str
    expected: bool


#: The session's settings: the Iceberg catalog is a SQLite file in the warehouse.
SETTINGS = {"spark.sql.catalog.lake": "twophase.lakehouse"}


def tell(spark: SparkSession) -> Iterator[Step]:
    """Run the lakehouse part in an attached session, step by step."""
    import twophase

    def rows(sql: str) -> list[Any]:
        return [tuple(row) for row in spark.sql(sql).collect()]

    def count() -> int:
        return int(rows("SELECT count(*) FROM lake.nyc.flights")[0][0])

    def step(ran: str, do: Callable[[], Any], look: Callable[[], str], expected: str) -> Step:
        error = attempt(do)
        seen = look()
        return Step(ran, f"{error}: {seen}" if error else seen, seen == expected)

    spark.sql("CREATE DATABASE lake.nyc")
    yield step(
        "CREATE TABLE lake.nyc.flights PARTITIONED BY (months(time_hour)) AS SELECT ... WHERE month = 1",
        lambda: spark.sql(
            "CREATE TABLE lake.nyc.flights PARTITIONED BY (months(time_hour)) AS"
            " SELECT carrier, flight, origin, dest, dep_delay, time_hour FROM flights WHERE month = 1"
        ),
        lambda: f"{count():,} rows",
        f"{JANUARY:,} rows",
    )
    (first,) = (row[0] for row in rows("SELECT snapshot_id FROM lake.nyc.flights.snapshots"))
    rest = "SELECT carrier, flight, origin, dest, {} AS dep_delay, time_hour FROM flights WHERE month > 1"
    yield step(
        "INSERT INTO lake.nyc.flights SELECT ... WHERE month > 1, and a task fails",
        lambda: spark.sql(
            "INSERT INTO lake.nyc.flights " + rest.format("IF(month = 12, raise_error('a broken row'), dep_delay)")
        ),
        lambda: f"{count():,} rows",
        f"{JANUARY:,} rows",
    )

    def both() -> None:
        with twophase.transaction(spark):
            spark.sql("INSERT INTO lake.nyc.flights " + rest.format("dep_delay"))
            spark.sql(
                "CREATE TABLE lake.nyc.delays AS"
                " SELECT carrier, avg(dep_delay) AS delay FROM lake.nyc.flights GROUP BY carrier"
            )

    yield step(
        "the same without the fault, and CREATE TABLE lake.nyc.delays AS ...: one transaction",
        both,
        lambda: f"{count():,} rows; {rows('SELECT count(*) FROM lake.nyc.delays')[0][0]} carriers",
        f"{FLIGHTS:,} rows; 16 carriers",
    )

    def evolve() -> None:
        spark.sql("ALTER TABLE lake.nyc.flights RENAME COLUMN dep_delay TO delay")
        spark.sql("ALTER TABLE lake.nyc.flights ALTER COLUMN delay TYPE BIGINT")
        spark.sql("ALTER TABLE lake.nyc.flights ADD COLUMN dep_delay STRING COMMENT 'in words'")
        row = "'ZZ', 1, 'JFK', 'SFO', 3000000000, TIMESTAMP'2014-01-01 09:00:00', 'late'"
        spark.sql(f"INSERT INTO lake.nyc.flights VALUES ({row})")

    look = "SELECT max(delay), count(dep_delay), max(dep_delay) FROM lake.nyc.flights"
    yield step(
        "RENAME dep_delay TO delay; delay TYPE BIGINT; ADD COLUMN dep_delay STRING; INSERT INTO ...",
        evolve,
        lambda: "max(delay) = {}, {} dep_delay: {}".format(*rows(look)[0]),
        "max(delay) = 3000000000, 1 dep_delay: late",
    )
    yield step(
        "SELECT max(dep_delay) FROM lake.nyc.flights VERSION AS OF the first snapshot",
        lambda: None,
        lambda: "{:,} rows, max(dep_delay) = {}".format(
            *rows(f"SELECT count(*), max(dep_delay) FROM lake.nyc.flights VERSION AS OF {first}")[0]
        ),
        f"{JANUARY:,} rows, max(dep_delay) = 1301",
    )

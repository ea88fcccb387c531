"""The scenes: the job to run, and the fault that hits it. Both sides run exactly this code."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Fault = Literal["none", "fails", "killed"]

#: The environment variable with the SQLAlchemy URL of a server to which the demo also publishes.
SERVER_URL = "TWOPHASE_DEMO_URL"

#: Rows of the last evening of the year are broken: the job fails after other tasks have already written their files.
_BROKEN = "IF(month = 12 AND day = 31 AND hour = 20, raise_error('a broken row'), distance)"


@dataclass(frozen=True)
class Job:
    """One run of a scene's job.

    Attributes
    ----------
    spark : SparkSession
    faulty : bool
        Whether the fault occurs; False for the retry.
    transaction : callable
        ``with job.transaction():`` is ``twophase.transaction(spark)`` with twophase; stock Spark has no equivalent.
    """

    spark: SparkSession
    faulty: bool
    transaction: Callable[[], AbstractContextManager[object]]

    @property
    def distance(self) -> str:
        """The expression that fails in a faulty run."""
        return _BROKEN if self.faulty else "distance"

    def say(self, statement: str) -> None:
        """Run a statement that stock Spark does not have; there it is left out."""
        if self.transaction is not nullcontext:
            self.spark.sql(statement)


@dataclass(frozen=True)
class Scene:
    """One scene: a job, with or without a fault.

    Attributes
    ----------
    title : str
        The user's statements, in one or two lines.
    job : callable
    complete : mapping of str to int
        The tables that it writes, and the number of rows of each after a complete run.
    before : tuple of str
        Statements that create the initial state of the tables.
    fault : {"none", "fails", "killed"}
    stock : str
        Why stock Spark cannot run it; empty if it can.
    """

    title: str
    job: Callable[[Job], None]
    complete: Mapping[str, int]
    before: tuple[str, ...] = ()
    fault: Fault = "none"
    stock: str = ""


def create_by_carrier(job: Job) -> None:
    job.spark.sql("""
        CREATE TABLE by_carrier USING parquet PARTITIONED BY (carrier) COMMENT 'all flights of 2013' AS
        SELECT month, day, origin, dest, tailnum, dep_delay, arr_delay, distance, carrier FROM flights""")


def replace_delays(job: Job) -> None:
    job.spark.sql("""
        CREATE OR REPLACE TABLE delays USING parquet AS
        SELECT origin, month, avg(dep_delay) AS delay, avg(visib) AS visibility
        FROM flights JOIN weather USING (origin, year, month, day, hour) GROUP BY origin, month""")


def overwrite_makers(job: Job) -> None:
    rows = job.spark.sql(f"SELECT manufacturer, {job.distance} AS distance FROM flights JOIN planes USING (tailnum)")
    rows.repartition(8).write.mode("overwrite").saveAsTable("makers")


def overwrite_january(job: Job) -> None:
    job.spark.sql(f"INSERT OVERWRITE TABLE january SELECT month, day, {job.distance} FROM flights")


def insert_both(job: Job) -> None:
    with job.transaction():
        job.spark.sql("INSERT INTO departures SELECT origin, distance FROM flights")
        job.spark.sql(f"INSERT INTO arrivals SELECT dest, {job.distance} FROM flights")


def change_fleet(job: Job) -> None:
    job.say("CREATE SAVEPOINT before_the_load FOR TABLE fleet")
    job.say("BEGIN TRANSACTION")
    job.spark.sql("CREATE TABLE miles USING parquet AS SELECT tailnum, sum(distance) AS miles FROM flights GROUP BY 1")
    job.spark.sql("ALTER TABLE miles ADD COLUMN note STRING")
    job.say("SAVEPOINT loaded")
    if job.faulty:
        job.spark.sql("DROP TABLE fleet")
    job.say("ROLLBACK TO loaded")
    job.say("COMMIT")
    if job.faulty:
        job.spark.sql("INSERT OVERWRITE fleet SELECT tailnum, manufacturer FROM planes WHERE year > 2013")
    job.say("RESTORE TABLE fleet TO SAVEPOINT before_the_load")


def change_columns(job: Job) -> None:
    job.spark.sql("ALTER TABLE aircraft RENAME COLUMN seats TO places")
    job.spark.sql("ALTER TABLE aircraft DROP COLUMN engine")
    job.spark.sql("ALTER TABLE aircraft ADD COLUMN engine STRING")
    job.spark.sql("""
        CREATE TABLE jumbos USING parquet AS
        SELECT tailnum, places FROM aircraft WHERE places > 300 AND engine IS NULL""")


def replace_routes(table: str) -> Callable[[Job], None]:
    def replace(job: Job) -> None:
        job.spark.sql(f"""
            CREATE OR REPLACE TABLE {table} AS
            SELECT origin, dest, count(*) AS flights, sum({job.distance}) AS miles
            FROM flights GROUP BY origin, dest""")

    return replace


def overwrite_history(job: Job) -> None:
    rows: DataFrame = job.spark.table("flights").select("month", "day", "carrier", "flight", "origin", "dest")
    if job.faulty:
        # The same rows many times, in several tasks, so that there is time to kill the driver in the middle.
        job.spark.conf.set("spark.sql.files.maxPartitionBytes", "4m")
        rows = rows.crossJoin(job.spark.range(20)).drop("id")
    rows.write.mode("overwrite").saveAsTable("history")


def _table(name: str, query: str) -> str:
    return f"CREATE TABLE {name} USING parquet AS SELECT {query}"


def _into_database(table: str, where: str, stock: str = "") -> Scene:
    """A report that is written to a table of a SQL database."""
    january = "SELECT origin, dest, count(*) AS flights FROM flights WHERE month = 1 GROUP BY origin, dest"
    return Scene(
        f"CREATE OR REPLACE TABLE {table} AS SELECT ... into {where}, and a task fails",
        replace_routes(table),
        {table: 224},
        (
            f"CREATE NAMESPACE IF NOT EXISTS {table.rpartition('.')[0]}",
            f"DROP TABLE IF EXISTS {table}",
            f"CREATE TABLE {table} AS {january}",
        ),
        fault="fails",
        stock=stock,
    )


def _into_server() -> tuple[Scene, ...]:
    """The same on the user's own server, if one is configured."""
    url = os.environ.get(SERVER_URL)
    if not url:
        return ()
    from sqlalchemy.engine import make_url

    found = make_url(url.removeprefix("jdbc:"))
    schemas = {"postgresql": "public", "sqlite": "main"}
    schema = schemas.get(found.get_backend_name(), found.database)
    title = f"{found.get_backend_name()} on {found.host}"
    return (_into_database(f"server.{schema}.twophase_demo", title, "needs a JDBC driver jar of that database"),)


SCENES = (
    Scene("CREATE TABLE by_carrier PARTITIONED BY (carrier) AS SELECT ...", create_by_carrier, {"by_carrier": 336_776}),
    Scene(
        "CREATE OR REPLACE TABLE delays AS SELECT ...",
        replace_delays,
        {"delays": 36},
        (_table("delays", "origin, avg(dep_delay) AS delay FROM flights GROUP BY origin"),),
    ),
    Scene(
        'df.write.mode("overwrite")\n  .saveAsTable("makers"), and a task fails',
        overwrite_makers,
        {"makers": 284_170},
        (_table("makers", "manufacturer, seats AS distance FROM planes"),),
        fault="fails",
    ),
    Scene(
        "INSERT OVERWRITE TABLE january SELECT ..., and a task fails",
        overwrite_january,
        {"january": 336_776},
        (_table("january", "month, day, distance FROM flights WHERE month = 1"),),
        fault="fails",
    ),
    Scene(
        "INSERT INTO departures, then INSERT INTO arrivals, which belong together; the second fails",
        insert_both,
        {"departures": 363_780, "arrivals": 363_780},
        (
            _table("departures", "origin, distance FROM flights WHERE month = 1"),
            _table("arrivals", "dest, distance FROM flights WHERE month = 1"),
        ),
        fault="fails",
    ),
    Scene(
        "BEGIN; CREATE TABLE miles AS SELECT ...; ALTER TABLE miles ADD ...; SAVEPOINT; DROP TABLE fleet, by mistake;"
        " ROLLBACK TO; COMMIT; fleet is overwritten, by mistake; RESTORE TABLE fleet",
        change_fleet,
        {"fleet": 3_322, "miles": 4_044},
        (_table("fleet", "tailnum, manufacturer FROM planes"),),
        fault="fails",
    ),
    Scene(
        "ALTER TABLE aircraft RENAME seats TO places; DROP engine; ADD engine: plain Parquet files; then a query with "
        "WHERE places > 300 AND engine IS NULL",
        change_columns,
        {"aircraft": 3_322, "jumbos": 197},
        (
            "CREATE TABLE aircraft USING parquet TBLPROPERTIES ('twophase.alter' = 'rewrite') AS "
            "SELECT tailnum, engine, seats FROM planes",
        ),
    ),
    _into_database("shop.main.routes", "a SQL database"),
    *_into_server(),
    # Last: the session does not survive it.
    Scene(
        'df.write.mode("overwrite")\n  .saveAsTable("history"), and the driver is killed (kill -9)',
        overwrite_history,
        {"history": 336_776},
        (_table("history", "month, day, carrier, flight, origin, dest FROM flights WHERE month = 1"),),
        fault="killed",
    ),
)


def attempt(action: Callable[[], None]) -> str | None:
    """Run an action; return the condition of its error if Spark names one, else the name of the error's class."""
    try:
        action()
    except Exception as error:
        condition = getattr(error, "getCondition", lambda: None)() or getattr(error, "getErrorClass", lambda: None)()
        return str(condition or type(error).__name__)
    return None

"""Helpers of the tests in which a session's own tables are written through every door."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from twophase.spark.attach import handle_of

MODE = "spark.sql.sources.partitionOverwriteMode"


def drop_all(spark: SparkSession) -> None:
    """Leave the default database, and the mode of overwrites, as a test finds them."""
    spark.conf.unset(MODE)
    for row in spark.sql("SHOW TABLES IN default").collect():
        kind = "VIEW" if row.isTemporary or _is_view(spark, row.tableName) else "TABLE"
        spark.sql(f"DROP {kind} {row.tableName}")


def _is_view(spark: SparkSession, name: str) -> bool:
    return bool(spark.catalog.getTable(f"default.{name}").tableType == "VIEW")


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.sql(query).collect())


def await_events(spark: SparkSession) -> None:
    """Wait for what Spark reports of jobs that have run: it arrives later."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(30_000)


def has_stamp(spark: SparkSession, name: str) -> bool:
    """Whether a transaction of ours made the table, replaced it, or gave it a new version."""
    return "twophase.transaction" in {row.key for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}


def is_ours(spark: SparkSession, name: str) -> bool:
    """Whether a transaction of ours published the table last: it carries the owner stamp, or the last one says so.

    An INSERT INTO of one file is renamed into a table, and leaves no stamp.
    """
    if has_stamp(spark, name):
        return True
    handle = handle_of(spark)
    last = handle.timeline.transactions(limit=1) if handle else []
    if any(record.level is None for record in last):  # Spark's own statement, which has only its place in the order.
        return False
    return any(p.path.name == name and record.state.name == "COMPLETED" for record in last for p in record.participants)


def begun(spark: SparkSession) -> int:
    """The number of transactions that have begun; what Spark wrote itself is none."""
    handle = handle_of(spark)
    assert handle is not None
    return sum(not record.is_immediate for record in handle.timeline.transactions())


def partitioned(spark: SparkSession) -> DataFrame:
    return spark.range(4).select("id", (F.col("id") % 2).alias("p"))


def stock_session(spark: SparkSession) -> SparkSession:
    """A session of the same application that is not attached."""
    session = spark.newSession()
    if handle := handle_of(session):
        handle.detach()
    assert handle_of(session) is None
    return session


def by_stock_spark(spark: SparkSession, text: str) -> None:
    """Run a statement in a session that is not attached, in the overwrite mode of this one: twophase begins nothing."""
    before, session = begun(spark), stock_session(spark)
    session.conf.set(MODE, spark.conf.get(MODE))
    try:
        session.sql(text)
    finally:
        assert begun(spark) == before

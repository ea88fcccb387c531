"""Settings of the session that writers need for a while: what the user has said of them comes back."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Start
from twophase.spark.execution import parquet
from twophase.spark.routing import table_writer

HELD = {"hive.exec.dynamic.partition.mode": table_writer.HELD, "spark.sql.parquet.fieldId.write.enabled": parquet.HELD}


@pytest.fixture(scope="module")
def spark(start: Start) -> SparkSession:
    return start()


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("said", [None, "false"])
def test_settings_that_writers_hold_are_given_back_by_the_last_one(
    spark: SparkSession, name: str, said: str | None
) -> None:
    if said is not None:
        spark.conf.set(name, said)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(HELD[name].held(spark))
        second.enter_context(HELD[name].held(spark))
        held = spark.conf.get(name)
        first.close()
        assert spark.conf.get(name) == held != said
    assert spark.conf.get(name, None) == said
    spark.conf.unset(name)


@pytest.mark.parametrize("name", HELD)
def test_what_the_user_sets_while_a_writer_holds_it_stays(spark: SparkSession, name: str) -> None:
    with HELD[name].held(spark):
        held = spark.conf.get(name)
        spark.conf.set(name, "false")
        with HELD[name].held(spark):
            assert spark.conf.get(name) == held
    assert spark.conf.get(name) == "false"
    spark.conf.unset(name)

"""Names that change hands in a transaction: tables exchange them, or leave theirs to another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.spark.blocks import elsewhere, rolled_back_then_published, rows
from tests.spark.ddl.stores import BESIDE_OTHERS, CREATING, EXCHANGING, OF_DATABASES, RENAMING, level_of_several
from twophase import failpoints
from twophase.errors import SnapshotTooOldError, TransactionInDoubt, TwoPhaseError, WriteConflictError

#: Rows of the table that lives by a name, and of the one that was built beside it.
LIVE, BUILT = [(1,)], [(2, "new")]
State = Mapping[str, Any]
BEFORE: State = {"live": LIVE, "built": BUILT}


@dataclass(frozen=True)
class Hands:
    """Statements around a savepoint, and the tables that the block finds there and at its end."""

    first: Sequence[str]
    then: Sequence[str]
    between: State
    after: State

    @property
    def aside(self) -> bool:
        """Whether a third name plays a part."""
        return any("{aside}" in text for text in (*self.first, *self.then))


_LIVE_ASIDE, _BUILT_LIVE = "ALTER TABLE {live} RENAME TO {aside}", "ALTER TABLE {built} RENAME TO {live}"
HANDS = {
    "exchange": Hands(
        [_LIVE_ASIDE],
        [_BUILT_LIVE, "ALTER TABLE {aside} RENAME TO {built}"],
        {"aside": LIVE, "built": BUILT},
        {"live": BUILT, "built": LIVE},
    ),
    "drop first": Hands(["DROP TABLE {live}"], [_BUILT_LIVE], {"built": BUILT}, {"live": BUILT}),
    "drop last": Hands(
        [_LIVE_ASIDE, _BUILT_LIVE], ["DROP TABLE {aside}"], {"live": BUILT, "aside": LIVE}, {"live": BUILT}
    ),
}


class Names:
    """The names of a test, and looks at their tables."""

    def __init__(self, spark: SparkSession, table: Callable[[str], str]) -> None:
        self.spark = spark
        self.known = {name: table(name) for name in ("live", "built", "aside")}
        spark.sql(f"CREATE TABLE {self.known['live']} AS SELECT 1 AS id")
        spark.sql(f"CREATE TABLE {self.known['built']} AS SELECT 2 AS id, 'new' AS name")

    def run(self, statements: Sequence[str]) -> None:
        for text in statements:
            self.spark.sql(text.format(**self.known))

    def are(self, state: State, session: SparkSession) -> bool:
        there = {name: table for name, table in self.known.items() if session.catalog.tableExists(table)}
        return {name: rows(session, f"SELECT * FROM {table}") for name, table in there.items()} == state


@pytest.mark.promise("ddl-in-blocks", "a table leaves its name to another one, or drops out, in one block")
@pytest.mark.parametrize("table", EXCHANGING, indirect=True)
@pytest.mark.parametrize("hands", HANDS.values(), ids=HANDS)
def test_a_name_that_changes_hands_is_seen_by_the_block_and_published_or_undone_with_it(
    spark: SparkSession, table: Callable[[str], str], hands: Hands
) -> None:
    names, other = Names(spark, table), spark.newSession()

    def run(tx: Any) -> None:
        names.run(hands.first)
        tx.savepoint("first")
        names.run(hands.then)
        assert names.are(hands.after, spark)
        tx.rollback_to("first")
        assert names.are(hands.between, spark)
        names.run(hands.then)
        assert names.are(hands.after, spark) and names.are(BEFORE, other)

    tx = rolled_back_then_published(spark, run, lambda: names.are(BEFORE, other))
    assert str(tx.level) == level_of_several(names.known["live"]) and names.are(hands.after, other)
    with pytest.raises(TwoPhaseError):
        twophase.undo(spark, tx.id)
    assert names.are(hands.after, spark)


@pytest.mark.promise("ddl-in-blocks", "what others write to tables whose names change hands in a block is not lost")
@pytest.mark.parametrize("table", BESIDE_OTHERS, indirect=True)
@pytest.mark.parametrize("hands", HANDS.values(), ids=HANDS)
def test_names_that_change_hands_conflict_with_the_changes_of_others(
    spark: SparkSession, table: Callable[[str], str], hands: Hands
) -> None:
    names, other = Names(spark, table), spark.newSession()
    twophase.attach(other)
    theirs = ["INSERT INTO {live} VALUES (7)", "INSERT INTO {built} VALUES (7, 'theirs')"]
    theirs += ["CREATE TABLE {aside} AS SELECT 7 AS id"] if hands.aside else []
    for text in theirs:
        with pytest.raises(WriteConflictError), twophase.transaction(spark):
            names.run((*hands.first, *hands.then))
            elsewhere(lambda text=text: other.sql(text.format(**names.known)))  # type: ignore[misc]
    written = {"live": [*LIVE, (7,)], "built": [*BUILT, (7, "theirs")]}
    assert names.are(written | ({"aside": [(7,)]} if hands.aside else {}), spark)


@pytest.mark.promise("ddl-in-blocks", "a table that has got a name in one block leaves it in another one", detail=True)
@pytest.mark.parametrize("table", EXCHANGING, indirect=True)
def test_a_table_is_renamed_again_and_its_names_are_given_on(spark: SparkSession, table: Callable[[str], str]) -> None:
    names, third, other = Names(spark, table), table("third"), spark.newSession()
    live, built, aside = names.known.values()
    with twophase.transaction(spark) as tx:
        names.run((*HANDS["exchange"].first, *HANDS["exchange"].then))
    if of_lakehouse := live.startswith(RENAMING["lakehouse"]):
        assert rows(spark, f"SELECT * FROM {built} VERSION AS OF '{tx.id}'") == LIVE
    spark.sql(f"INSERT INTO {built} VALUES (3)")
    with twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {built} RENAME TO {aside}")
        spark.sql(f"ALTER TABLE {aside} RENAME TO {third}")
        spark.sql(f"ALTER TABLE {live} RENAME TO {built}")
    assert names.are({"built": BUILT}, other) and rows(other, f"SELECT * FROM {third}") == [(1,), (3,)]
    if of_lakehouse:
        with pytest.raises(Exception, match="can no longer be read as of"):
            spark.sql(f"SELECT * FROM {built} VERSION AS OF '{tx.id}'")
    with twophase.transaction(spark):
        spark.sql(f"DROP TABLE {built}")
        spark.sql(f"ALTER TABLE {third} RENAME TO {built}")
        spark.sql(f"ALTER TABLE {built} RENAME TO {aside}")
    assert names.are({"aside": [(1,), (3,)]}, other) and not other.catalog.tableExists(third)


@pytest.mark.promise("isolation", "a block that began before an exchange of names reads no table by the other's name")
@pytest.mark.parametrize("table", BESIDE_OTHERS, indirect=True)
def test_a_block_that_began_before_an_exchange_reads_no_table_by_the_name_of_the_other(
    spark: SparkSession, table: Callable[[str], str]
) -> None:
    blue, green, aside, beside, other = *map(table, ("blue", "green", "aside", "beside")), spark.newSession()
    handle = twophase.attach(other)
    for name in (blue, green, beside):
        spark.sql(f"CREATE TABLE {name} AS SELECT '{name}' AS name")

    def exchange() -> None:
        with suppress(TransactionInDoubt), twophase.transaction(spark):
            spark.sql(f"ALTER TABLE {blue} RENAME TO {aside}")
            spark.sql(f"ALTER TABLE {green} RENAME TO {blue}")
            spark.sql(f"ALTER TABLE {aside} RENAME TO {green}")

    for point in ("", "core.record_completed"):  # The second one is published, but has no commit number yet.
        before = rows(spark, f"SELECT * FROM {blue}")
        with twophase.transaction(other, isolation="snapshot"):
            rows(other, f"SELECT * FROM {beside}")
            if point:
                failpoints.arm(point, "error")
            try:
                elsewhere(exchange)
                with suppress(SnapshotTooOldError):
                    assert rows(other, f"SELECT * FROM {blue}") == before
            finally:
                failpoints.disarm()
        handle.recover()
        assert rows(spark, f"SELECT * FROM {blue}") != before


@pytest.mark.promise("ddl-in-blocks", "rows of a block that began before an exchange are added to no other table")
@pytest.mark.parametrize("table", BESIDE_OTHERS, indirect=True)
def test_rows_of_a_block_that_began_before_an_exchange_are_a_conflict(
    spark: SparkSession, table: Callable[[str], str]
) -> None:
    one, two, aside, other = table("one"), table("two"), table("aside"), spark.newSession()
    twophase.attach(other)
    for name in (one, two, aside):
        spark.sql(f"CREATE TABLE {name} AS SELECT 1 AS id")

    def exchange() -> None:
        with twophase.transaction(spark):
            spark.sql(f"ALTER TABLE {one} RENAME TO {table('three')}")
            spark.sql(f"ALTER TABLE {two} RENAME TO {one}")
            spark.sql(f"ALTER TABLE {table('three')} RENAME TO {two}")

    with pytest.raises(WriteConflictError), twophase.transaction(other, isolation="snapshot"):
        rows(other, f"SELECT * FROM {aside}")
        elsewhere(exchange)
        other.sql(f"INSERT INTO {one} VALUES (3)")
    assert rows(spark, f"SELECT * FROM {one}") == rows(spark, f"SELECT * FROM {two}") == [(1,)]
    if not one.startswith(CREATING):
        return
    with pytest.raises(WriteConflictError), twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {one} RENAME TO {table('three')}")
        spark.sql(f"CREATE TABLE {one} AS SELECT 3 AS id")
        elsewhere(lambda: other.sql(f"INSERT INTO {one} VALUES (4)"))
    assert rows(spark, f"SELECT * FROM {one}") == [(1,), (4,)]


@pytest.mark.promise("ddl-in-blocks", "a name that a table leaves is given again in the block", detail=True)
@pytest.mark.parametrize("table", ["session", *OF_DATABASES], indirect=True)
def test_a_name_that_is_left_is_given_again(spark: SparkSession, table: Callable[[str], str]) -> None:
    live, built, former, other = table("live"), table("built"), table("former"), spark.newSession()
    spark.sql(f"CREATE TABLE {live} AS SELECT 1 AS id")
    with twophase.transaction(spark) as tx:
        spark.sql(f"CREATE TABLE {built} AS SELECT 2 AS id, 'new' AS name")
        spark.sql(f"ALTER TABLE {live} RENAME TO {former}")
        tx.savepoint("left")
        spark.sql(f"CREATE TABLE {live} AS SELECT 9 AS mistaken")
        spark.sql(f"DROP TABLE {live}")
        assert not spark.catalog.tableExists(live)
        tx.rollback_to("left")
        spark.sql(f"ALTER TABLE {built} RENAME TO {live}")
        spark.sql(f"INSERT INTO {live} VALUES (3, 'more')")
        spark.sql(f"CREATE OR REPLACE TABLE {live} AS SELECT id FROM {live}")
        assert rows(spark, f"SELECT * FROM {live}") == [(2,), (3,)] and rows(spark, f"SELECT * FROM {former}") == [(1,)]
    assert str(tx.level) == level_of_several(live) and not other.catalog.tableExists(built)
    assert rows(other, f"SELECT * FROM {live}") == [(2,), (3,)] and rows(other, f"SELECT * FROM {former}") == [(1,)]

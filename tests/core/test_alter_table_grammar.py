"""The grammar of the changes of ``ALTER TABLE`` that Spark does not know, without Spark."""

from __future__ import annotations

import pytest

from twophase.catalog import TableChange
from twophase.errors import CatalogError
from twophase.model import Transform
from twophase.spark.routing.alter_table_grammar import AlterTable, alter_table


def _change(kind: str, **facts: object) -> TableChange:
    return TableChange(f"{kind}_partition_field", (), facts)


@pytest.mark.parametrize(
    ("text", "table", "change"),
    [
        (
            "ALTER TABLE lake.db.t ADD PARTITION FIELD bucket(16, id)",
            "lake.db.t",
            _change("add", new=Transform("bucket", ("id",), (16,)), name=None),
        ),
        (
            "alter table t add /* */ partition field Truncate(`a b`, 4) as `short`;",
            "t",
            _change("add", new=Transform("truncate", ("a b",), (4,)), name="short"),
        ),
        ("ALTER TABLE `a.b`.t DROP PARTITION FIELD day", "`a.b`.t", _change("drop", old=Transform.identity("day"))),
        (
            "ALTER TABLE t DROP PARTITION FIELD hours(at)",
            "t",
            _change("drop", old=Transform("hours", ("at",))),
        ),
        (
            "ALTER TABLE t REPLACE PARTITION FIELD at_day WITH hours(at) AS hour",
            "t",
            _change("replace", old=Transform.identity("at_day"), new=Transform("hours", ("at",)), name="hour"),
        ),
    ],
)
def test_a_change_that_spark_does_not_know_is_understood(text: str, table: str, change: TableChange) -> None:
    assert alter_table(text) == AlterTable(table, change)


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t ADD PARTITION (p = 1)",
        "ALTER TABLE t DROP PARTITION (field = 1)",
        "ALTER TABLE t ADD COLUMN partition INT",
        "ALTER TABLE partition.field DROP COLUMN c",
        "ALTER TABLE t SET TBLPROPERTIES ('a' = 'ADD PARTITION FIELD b')",
        "ALTER TABLE t -- ADD PARTITION FIELD b",
        "ALTER TABLE t ALTER COLUMN c DROP NOT NULL",
        "ALTER TABLE t ALTER COLUMN c SET NOT NULL",
        "ALTER TABLE t ALTER COLUMN c",
        "ALTER TABLE",
    ],
)
def test_every_other_alter_table_is_left_to_spark(text: str) -> None:
    assert alter_table(text) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ALTER TABLE t ADD PARTITION FIELD", "name of a column"),
        ("ALTER TABLE t ADD PARTITION FIELD bucket(16 id)", r"id where \) is expected"),
        ("ALTER TABLE t ADD PARTITION FIELD a AS", "name of a partition field"),
        ("ALTER TABLE t ADD PARTITION FIELD a, b", "AS or the end"),
        ("ALTER TABLE t DROP PARTITION FIELD a AS b", "end of the statement"),
        ("ALTER TABLE t REPLACE PARTITION FIELD a BY b", "WITH is expected"),
        ("ALTER TABLE t ADD PARTITION FIELD bucket(?, a)", "no parameters"),
    ],
)
def test_a_misspelled_one_is_refused_with_the_place_and_the_syntax(text: str, problem: str) -> None:
    with pytest.raises(CatalogError, match=problem) as caught:
        alter_table(text)
    assert "PARTITION FIELD" in str(caught.value.hint)

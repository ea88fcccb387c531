"""The table of ``docs/schema.md`` on the changes of a session's tables, and the statements for each of its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.project import readme
from twophase.errors import CatalogError, TwoPhaseError

#: By the heading of its column, how a table is made.
MADE = {
    "Parquet with ids": "USING parquet {more} TBLPROPERTIES ('twophase.field_ids' = 'true')",
    "Parquet without ids": "USING parquet {more}",
    "ORC": "USING orc {more}",
}
_QUERY = """SELECT 1 AS id, 'x' AS name, 'y' AS text, 3 AS moved, 4 AS gone, 5 AS dropped, 6 AS other, 7 AS kept,
CAST(1 AS TINYINT) AS tiny, CAST(2 AS TINYINT) AS small, 3 AS whole, 4 AS half, 5 AS exact, CAST(6.5 AS FLOAT) AS real,
CAST(7.25 AS DECIMAL(5, 2)) AS money, DATE'2024-01-01' AS day,
INTERVAL '1' DAY AS span, named_struct('f', 1, 'g', 'y') AS s, array(named_struct('u', 1, 'v', 2)) AS l,
map('k', named_struct('w', 1, 'x', 2)) AS m, 8 AS b, 9 AS p"""
_LAYOUT = "PARTITIONED BY (p) CLUSTERED BY (b) INTO 2 BUCKETS"
_LAID_OUT = "a partition or bucket column"
_BRINGS = "a write that brings columns or wider types (`mergeSchema`)"
#: By the first cell of its row, what comes before the changes, and the changes.
CHANGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # Spark itself changes a collation only while no column was moved, renamed or dropped: it comes first.
    "`ALTER COLUMN ... TYPE STRING COLLATE ...` of a text": ((), ("ALTER COLUMN text TYPE STRING COLLATE UTF8_LCASE",)),
    "`ADD COLUMN`, `FIRST`, `AFTER`, with a `DEFAULT`": (
        (),
        (
            "ADD COLUMN n INT",
            "ADD COLUMN o INT FIRST",
            "ADD COLUMN q INT AFTER id",
            "ADD COLUMN r DATE DEFAULT current_date()",
        ),
    ),
    "... a `DEFAULT` that does not come last; what comes before or passes a column that has one": (
        (),
        ("ADD COLUMN early INT DEFAULT 8 FIRST",),
    ),
    "`ADD COLUMN` by a name that files have for a dropped or renamed column": (
        ("DROP COLUMN gone",),
        ("ADD COLUMN gone STRING",),
    ),
    "`DROP COLUMN`": ((), ("DROP COLUMN dropped", "DROP COLUMN s.g")),
    "`RENAME COLUMN`, also of a field of a struct": ((), ("RENAME COLUMN name TO label", "RENAME COLUMN s.f TO h")),
    "`RENAME COLUMN` of what holds a struct, or below a list or map": (
        (),
        ("RENAME COLUMN s TO t", "RENAME COLUMN l.element.u TO t", "RENAME COLUMN m.value.w TO t"),
    ),
    "the other changes below a list or in a map's values": (
        (),
        (
            *("ADD COLUMN l.element.n INT", "DROP COLUMN l.element.v", "ALTER COLUMN l.element.u TYPE BIGINT"),
            *("ALTER COLUMN m.value.x FIRST", "ALTER COLUMN m.value.x COMMENT 'said'"),
        ),
    ),
    "`ALTER COLUMN ... FIRST, AFTER, COMMENT, DROP NOT NULL`": (
        (),
        tuple(f"ALTER COLUMN moved {how}" for how in ("FIRST", "AFTER id", "COMMENT 'said'", "DROP NOT NULL")),
    ),
    "`ALTER COLUMN ... TYPE`: integers upwards, int to double, float to double, wider decimals, integers to wide "
    "decimals, and a longer `VARCHAR`": (
        (),
        (
            *("ALTER COLUMN tiny TYPE INT", "ALTER COLUMN whole TYPE BIGINT", "ALTER COLUMN half TYPE DOUBLE"),
            *("ALTER COLUMN real TYPE DOUBLE", "ALTER COLUMN money TYPE DECIMAL(30, 4)"),
            *("ALTER COLUMN exact TYPE DECIMAL(12, 2)", "ADD COLUMN short VARCHAR(3)"),
            "ALTER COLUMN short TYPE VARCHAR(9)",
        ),
    ),
    "... date to timestamp without zone": ((), ("ALTER COLUMN day TYPE TIMESTAMP_NTZ",)),
    "any other type": (
        ("SET TBLPROPERTIES ('twophase.promotion' = 'hudi')",),
        ("ALTER COLUMN other TYPE STRING",),
    ),
    "a `CHAR` or `VARCHAR` to text": (
        (),
        (
            *("ADD COLUMN padded CHAR(4)", "ADD COLUMN varying VARCHAR(3)"),
            *("ALTER COLUMN padded TYPE STRING", "ALTER COLUMN varying TYPE STRING"),
        ),
    ),
    "to `VARCHAR` from another type, to or from a type that only Spark has (intervals, variants)": (
        (),
        ("ALTER COLUMN kept TYPE VARCHAR(9)", "ALTER COLUMN span TYPE STRING", "ALTER COLUMN kept TYPE VARIANT"),
    ),
    "`ALTER COLUMN ... SET DEFAULT`, `DROP DEFAULT`": (
        (),
        ("ALTER COLUMN kept SET DEFAULT 8", "ALTER COLUMN kept DROP DEFAULT"),
    ),
    "a `DEFAULT` of a part of a column": (
        (),
        ("ADD COLUMN s.more INT DEFAULT 5", "ALTER COLUMN m.value.x SET DEFAULT 5"),
    ),
    "`SET NOT NULL`": ((), ("ALTER COLUMN kept SET NOT NULL",)),
    _LAID_OUT: (
        (),
        (
            "RENAME COLUMN p TO t",
            "DROP COLUMN p",
            "RENAME COLUMN b TO t",
            "DROP COLUMN b",
            "ALTER COLUMN b TYPE BIGINT",
        ),
    ),
    _BRINGS: ((), ("SELECT 2L AS id, 'new' AS brought",)),
}


def documented() -> dict[str, dict[str, str]]:
    """By the first cell of each row, what it says of each kind of table; what is the same is said again."""
    table = readme.section("### Tables of a Spark session").partition("\n\n#### ")[0]
    found: dict[str, dict[str, str]] = {}
    for name, *cells in readme.rows(table):
        for number, cell in enumerate(cells):
            if cell == "the same":
                cells[number] = cells[number - 1]
        found[name] = dict(zip(MADE, cells, strict=True))
    return found


class SessionTable:
    """A table of a session with a row, made anew where a change has given it other files.

    Parameters
    ----------
    spark : SparkSession
    kind : str
        The heading of its column.
    """

    name = "documented_session"

    def __init__(self, spark: SparkSession, kind: str) -> None:
        self.spark, self._kind = spark, kind
        self.make()

    def make(self, more: str = "") -> None:
        self.spark.sql(f"CREATE OR REPLACE TABLE {self.name} {MADE[self._kind].format(more=more)} AS {_QUERY}")

    def take(self, change: str) -> None:
        """Change it; rows that a query makes bring their columns."""
        if change.startswith("SELECT"):
            self.spark.sql(change).write.option("mergeSchema", "true").insertInto(self.name)
        else:
            self.spark.sql(f"ALTER TABLE {self.name} {change}")

    def files(self) -> set[str]:
        return set(self.spark.table(self.name).inputFiles())

    def values(self) -> dict[tuple[str, str], Any]:
        """Those of its first row, by name and type."""
        (row,) = self.spark.table(self.name).where("id = 1").collect()
        return {(field.name, field.dataType.json()): row[field.name] for field in self.spark.table(self.name).schema}

    def is_refused(self, change: str, match: str = ".") -> None:
        """See that a change is refused also where the table may be rewritten, and that it changes nothing."""
        schema, files = self.spark.table(self.name).schema, self.files()
        self.take("SET TBLPROPERTIES ('twophase.alter' = 'rewrite')")
        with pytest.raises((TwoPhaseError, PySparkException), match=match):
            self.take(change)
        self.take("UNSET TBLPROPERTIES ('twophase.alter')")
        assert (self.spark.table(self.name).schema, self.files()) == (schema, files)

    def is_rewritten(self, change: str) -> None:
        """See that a change is made anew from its rows, if that is chosen."""
        files = self.files()
        with pytest.raises(CatalogError, match=r"'twophase\.alter' = 'rewrite'"):
            self.take(change)
        self.take("SET TBLPROPERTIES ('twophase.alter' = 'rewrite')")
        self.take(change)
        assert self.files().isdisjoint(files)

    def is_native(self, change: str) -> None:
        """See that a change leaves each file, and each value of the columns that it leaves."""
        files, before = self.files(), self.values()
        self.take(change)
        after = self.values()
        if change.startswith("SELECT"):  # The files before are linked into a new version.
            assert len(self.files()) == len(files) + 1
        else:
            assert self.files() == files
        assert all(after[column] == before[column] for column in before.keys() & after.keys())


def _without_files(table: SessionTable) -> None:
    table.spark.sql(f"DROP TABLE {table.name}")
    table.spark.sql(f"CREATE TABLE {table.name} (name STRING) USING parquet")
    table.take("RENAME COLUMN name TO label")
    table.make()


def _wider_decimals(table: SessionTable) -> None:
    for column, digits, why in (("small", "5, 0", "ten digits"), ("money", "38, 4", "one decimal for another")):
        with pytest.raises(CatalogError, match=rf"{why}.*'twophase\.alter' = 'rewrite'"):
            table.take(f"ALTER COLUMN {column} TYPE DECIMAL({digits})")


def _as_far_as_the_policy(table: SessionTable) -> None:
    table.is_refused("ALTER COLUMN other TYPE STRING", "policy 'wide'")


def _by_a_default(table: SessionTable) -> None:
    table.take("ADD COLUMN given CHAR(3) DEFAULT 'x'")
    table.is_refused("ALTER COLUMN given TYPE STRING", "to which only a CHAR adds spaces")
    table.make()


def _until_dropped(table: SessionTable) -> None:
    table.take("DROP COLUMN dropped")
    table.is_refused("ALTER COLUMN name TYPE STRING COLLATE UTF8_LCASE")
    table.make()


def _unreadable(table: SessionTable) -> None:
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        table.values()
    table.make()


def _comment_of_bucket(table: SessionTable) -> None:
    table.is_native("ALTER COLUMN b COMMENT 'said'")


def _what_alter_does(table: SessionTable) -> None:
    table.take("DROP COLUMN gone")
    table.is_refused("SELECT 3L AS id, 'new' AS gone", "another column gone")
    table.is_refused("SELECT 3L AS id, X'00' AS kept", "was not written")


#: What a cell says beside its first words, by these words.
BESIDE: dict[str, Callable[[SessionTable], None]] = {
    "natively while it has no files": _without_files,
    "a decimal from integers needs ten digits before the point, and one of the same scale that gets more than 9, more "
    "than 18, or more bytes beyond 18 digits is a rewrite": _wider_decimals,
    "as far as `promotion` goes": _as_far_as_the_policy,
    "a `CHAR` with a `DEFAULT` that old rows read is refused": _by_a_default,
    "until a column was renamed or dropped, in most tables also moved": _until_dropped,
    "whose ORC reader then fails, in any session": _unreadable,
    "natively the comment of a bucket column": _comment_of_bucket,
    "what `ALTER TABLE` does natively": _what_alter_does,
    "Spark fills in none": lambda table: table.is_refused("ADD COLUMN s.more INT DEFAULT 5", "only a whole column"),
    "Spark checks none": lambda table: table.is_refused("ALTER COLUMN kept SET NOT NULL", "checks no NOT NULL"),
}


def check(table: SessionTable, row: str, said: str) -> None:
    """Make the changes of a row, and see that they are made as its cell says.

    Parameters
    ----------
    table : SessionTable
    row : str
        Its first cell.
    said : str
        The cell of the table.
    """
    how = next(how for how in ("natively", "rewrite", "refused", "by Spark itself") if said.startswith(how))
    beside = said.removeprefix(how).lstrip(";,: ")
    before, changes = CHANGES[row]
    if row == _LAID_OUT:
        table.make(_LAYOUT)
    if beside and how == "rewrite":  # After which the table has other files, of which more can be altered.
        BESIDE[beside](table)
    for change in changes:
        for step in before:
            table.take(step)
        if how == "rewrite":
            table.is_rewritten(change)
            table.make()
        elif how == "refused":
            table.is_refused(change)
        elif beside.startswith("whose"):
            table.take(change)
        else:
            table.is_native(change)
    if beside and how != "rewrite":
        BESIDE[beside](table)
    if row == _LAID_OUT:
        table.make()

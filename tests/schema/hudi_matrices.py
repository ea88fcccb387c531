"""Hudi's matrices of what a table can take, its types and its kinds of change, by plain SQL in each store."""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from twophase.errors import TwoPhaseError
from twophase.schema.promotion import HUDI_MATRIX

#: A type of each family of the matrix, with a value.
FAMILIES = {
    "int": ("INT", "7"),
    "long": ("BIGINT", "7L"),
    "float": ("FLOAT", "1.5F"),
    "double": ("DOUBLE", "1.5D"),
    "string": ("STRING", "'x'"),
    "decimal": ("DECIMAL(24,2)", "CAST(1.5 AS DECIMAL(24,2))"),
    "date": ("DATE", "DATE'2024-01-01'"),
}
PAIRS = [(old, new) for old in FAMILIES for new in FAMILIES if old != new]
#: What the analysis of Spark takes for no up-cast, and refuses for every table.
BY_SPARK = {("float", "decimal"), ("double", "decimal"), ("string", "decimal"), ("string", "date")}
HUDI = {(old, new) for old, new in PAIRS if new in HUDI_MATRIX[old]} - BY_SPARK
EXACT = {("int", "long"), ("float", "double")}
WIDE = EXACT | {("int", "double"), ("int", "decimal"), ("long", "decimal")}
#: By store, the catalogs through which each cell is tried, with the cells that are done after that.
TYPES = {
    "ids": {"": HUDI},
    "lake": {"": EXACT},
    **{database: {"": EXACT, "_wide": WIDE} for database in ("lite", "pg", "maria")},
}


def check_types(spark: SparkSession, store: str, name: str) -> None:
    """Try each cell of the matrix of types on a column of its own: it is done, or refused by the name of the column.

    Parameters
    ----------
    spark : SparkSession
    store : str
    name : str
        Of a table that is made and dropped.
    """
    columns = ", ".join(f"{FAMILIES[old][1]} AS {old}_{new}" for old, new in PAIRS)
    more = "USING parquet TBLPROPERTIES ('twophase.alter' = 'rewrite', 'twophase.promotion' = 'hudi')"
    spark.sql(f"CREATE TABLE {name} {more if store == 'ids' else ''} AS SELECT {columns}")
    done: set[tuple[str, str]] = set()
    for suffix, wanted in TYPES[store].items():
        other = name.replace(f"{store}.", f"{store}{suffix}.", 1)
        for old, new in set(PAIRS) - done:
            change = f"ALTER TABLE {other} ALTER COLUMN {old}_{new} TYPE {FAMILIES[new][0]}"
            if _taken(spark, change, f"{old}_{new}"):
                done.add((old, new))
        assert done == wanted
        types = {f"{old}_{new}": FAMILIES[new if (old, new) in done else old][0].lower() for old, new in PAIRS}
        assert dict(spark.table(name).dtypes) == types
        kept = ", ".join(f"{old}_{new} = CAST({FAMILIES[old][1]} AS {types[f'{old}_{new}']})" for old, new in PAIRS)
        assert [set(row) for row in spark.sql(f"SELECT {kept} FROM {name}").collect()] == [{True}]
    spark.sql(f"DROP TABLE {name}")


def _taken(spark: SparkSession, change: str, named: str) -> bool:
    try:
        spark.sql(change)
    except (TwoPhaseError, PySparkException) as refused:
        assert named in str(refused), refused
        return False
    return True


#: The row of a table that takes the changes, and where columns can have fields, what it has besides.
ROW = "1 AS id, 'x' AS name, 2 AS n, 3 AS k, 4 AS gone, 5 AS needed, 6L AS big"
FIELDS = "named_struct('x', 7, 'y', 8, 'z', 9) AS s, array(10) AS l, map('k', 11) AS m"
NESTED = ("ids", "lake")
#: Kinds of change: the statement, what the row then has, and the stores that do it; all others refuse it.
ALL = ("ids", "lite", "pg", "maria", "lake")
KINDS: list[tuple[str, str, tuple[str, ...]]] = [
    ("ADD COLUMN more INT", "more IS NULL", ALL),
    ("ADD COLUMN s.more INT", "s.more IS NULL AND s.x = 7", NESTED),
    ("ADD COLUMN words ARRAY<STRING>", "words IS NULL", (*NESTED, "pg")),
    ("ADD COLUMN pairs MAP<STRING, INT>", "pairs IS NULL", NESTED),
    ("ADD COLUMN between INT AFTER id", "between IS NULL AND id = 1", ("ids", "lite", "maria", "lake")),
    ("ADD COLUMN must INT NOT NULL", "", ()),
    ("ADD COLUMN s.must INT NOT NULL", "", ()),
    ("ALTER COLUMN n TYPE BIGINT", "n = 2", ALL),
    ("ALTER COLUMN s.x TYPE BIGINT", "s.x = 7", NESTED),
    ("ALTER COLUMN l.element TYPE BIGINT", "l[0] = 10", NESTED),
    ("ALTER COLUMN m.value TYPE BIGINT", "m['k'] = 11", NESTED),
    ("ALTER COLUMN m.key TYPE BINARY", "", ()),
    ("ALTER COLUMN big TYPE INT", "", ()),
    ("ALTER COLUMN s.y TYPE SMALLINT", "", ()),
    ("ALTER COLUMN k FIRST", "k = 3", ("ids", "lite", "maria", "lake")),
    ("ALTER COLUMN s.y FIRST", "s.y = 8 AND s.x = 7", NESTED),
    ("ALTER COLUMN needed SET NOT NULL", "needed = 5", ("lite", "pg", "maria", "lake")),
    ("ALTER COLUMN needed DROP NOT NULL", "needed = 5", ALL),
    ("ALTER COLUMN k COMMENT 'said'", "k = 3", ALL),
    ("DROP COLUMN gone", "id = 1", ALL),
    ("DROP COLUMN s.z", "s.x = 7", NESTED),
    ("RENAME COLUMN name TO label", "label = 'x'", ALL),
    ("RENAME COLUMN s.x TO w", "s.w = 7 AND s.y = 8", NESTED),
]


def check_kinds(spark: SparkSession, store: str, name: str) -> None:
    """Try each kind of change: it is done, and the row has its values, or it is refused and the table as it was.

    Parameters
    ----------
    spark : SparkSession
    store : str
    name : str
        Of a table that is made and dropped.
    """
    more = "USING parquet TBLPROPERTIES ('twophase.field_ids' = 'true')" if store == "ids" else ""
    fields = f", {FIELDS}" if store in NESTED else ""
    spark.sql(f"CREATE TABLE {name} {more} AS SELECT {ROW}{fields}")
    for change, check, stores in KINDS:
        before = _described(spark, name)
        done = _taken(spark, f"ALTER TABLE {name} {change}", "")
        assert (change, done) == (change, store in stores)
        if done:
            assert (change, spark.sql(f"SELECT {check} FROM {name}").collect()) == (change, [(True,)])
        else:
            assert (change, _described(spark, name)) == (change, before)
    assert [row[0] for row in spark.sql(f"SELECT id FROM {name}").collect()] == [1]
    spark.sql(f"DROP TABLE {name}")


def _described(spark: SparkSession, name: str) -> Any:
    frame = spark.table(name)
    return frame.schema, frame.collect()

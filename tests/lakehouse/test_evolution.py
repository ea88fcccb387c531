"""Tables whose schema changes, and tables that others made: read by ids, never by what names happen to say."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import load_file_io
from pyiceberg.manifest import FileFormat
from pyiceberg.table import TableProperties
from pyiceberg.typedef import Record
from pyspark.errors import PySparkException

import twophase
from tests.lakehouse import foreign
from tests.lakehouse.shop import DATABASE, Shop
from twophase.catalogs.lakehouse.footers import Registrar
from twophase.errors import CatalogError
from twophase.schema.errors import SchemaError

#: What holds the Iceberg catalog of the session.
KIND = "postgresql"


def test_the_worked_example_of_flip_226(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t (a STRING, b STRING, c STRING)")
    shop.sql("INSERT INTO @t VALUES ('a1', 'b1', 'c1')")
    shop.sql("ALTER TABLE @t DROP COLUMN c")
    shop.sql("ALTER TABLE @t ADD COLUMN c STRING")
    shop.sql("INSERT INTO @t VALUES ('a2', 'b2', 'c2')")
    assert shop.rows("t") == [("a1", "b1", None), ("a2", "b2", "c2")]


def test_a_table_that_changed_in_every_way_reads_right(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1 AS id, 'x' AS name, CAST(1.5 AS FLOAT) AS f, CAST(1 AS DECIMAL(5,2)) AS d")
    shop.sql("ALTER TABLE @t RENAME COLUMN name TO label")
    shop.sql("ALTER TABLE @t ALTER COLUMN id TYPE BIGINT")
    shop.sql("ALTER TABLE @t ALTER COLUMN f TYPE DOUBLE")
    shop.sql("ALTER TABLE @t ALTER COLUMN d TYPE DECIMAL(9,2)")
    shop.sql("ALTER TABLE @t ADD COLUMN name INT COMMENT 'another' FIRST")
    shop.sql("ALTER TABLE @t ALTER COLUMN d AFTER name")
    shop.sql("INSERT INTO @t VALUES (7, 1234567.89, 3000000000, 'y', 2.5)")
    assert shop.sql("SELECT * FROM @t").columns == ["name", "d", "id", "label", "f"]
    assert [row[0] for row in shop.rows("t")] == [7, None]
    assert shop.read("SELECT id, label FROM @t WHERE name IS NULL") == [(1, "x")]


def test_a_column_that_is_renamed_and_widened_reads_right(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1 AS id, CAST(1.5 AS FLOAT) AS f, CAST(1 AS DECIMAL(5,2)) AS d, 7 AS other")
    for old, new, kind in (("id", "key", "BIGINT"), ("f", "g", "DOUBLE"), ("d", "e", "DECIMAL(20,2)")):
        shop.sql(f"ALTER TABLE @t RENAME COLUMN {old} TO {new}")
        shop.sql(f"ALTER TABLE @t ALTER COLUMN {new} TYPE {kind}")
    assert shop.rows("t") == [(1, 1.5, Decimal("1.00"), 7)]
    shop.sql("ALTER TABLE @t DROP COLUMN other")
    shop.sql("ALTER TABLE @t ADD COLUMN id STRING")  # From here on a name is used twice.
    shop.sql("ALTER TABLE @t ADD COLUMN f BIGINT")
    shop.sql("INSERT INTO @t VALUES (3000000000, 2.5, 2, 'new', 5)")
    assert shop.rows("t") == [(1, 1.5, Decimal("1.00"), None, None), (3_000_000_000, 2.5, Decimal("2.00"), "new", 5)]
    assert shop.read("SELECT f, key FROM @t WHERE key > 5 AND id IS NOT NULL") == [(5, 3_000_000_000)]


@pytest.mark.promise("evolution", "columns are read by their ids, whatever names were used twice", detail=True)
def test_conditions_go_by_ids_where_names_were_used_twice(shop: Shop) -> None:
    """Spark's Parquet reader looks for the columns of conditions by name: it would leave the wrong row groups out."""
    shop.sql("CREATE TABLE @t AS SELECT id AS a, id * 100 AS b FROM range(10)")
    shop.sql("ALTER TABLE @t RENAME COLUMN a TO c")
    shop.sql("ALTER TABLE @t RENAME COLUMN b TO a")
    shop.sql("ALTER TABLE @t RENAME COLUMN c TO b")
    shop.sql("INSERT INTO @t SELECT 5000, 77")
    assert shop.read("SELECT b FROM @t WHERE a = 500") == [(5,)]
    assert shop.read("SELECT a FROM @t WHERE b = 5") == [(500,)]
    assert shop.read("SELECT count(*) FROM @t WHERE a > 8") == [(10,)]
    shop.sql("ALTER TABLE @t DROP COLUMN b")
    shop.sql("ALTER TABLE @t ADD COLUMN b BIGINT")
    assert shop.read("SELECT count(*) FROM @t WHERE b IS NULL AND a = 300") == [(1,)]


@pytest.mark.not_read_by("iceberg-rust", "it cannot read fields that were added inside lists and structs")
def test_fields_inside_structs_lists_and_maps_evolve(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE @t AS SELECT 1 AS id, named_struct('x', 1, 'y', 'a') AS s,"
        " array(named_struct('e', 1)) AS l, map('k', named_struct('v', 1)) AS m"
    )
    for change in (
        "RENAME COLUMN s.x TO z",
        "ADD COLUMN s.x STRING",
        "ADD COLUMN l.element.n INT FIRST",
        "ALTER COLUMN m.value.v TYPE BIGINT",
        "DROP COLUMN s.y",
    ):
        shop.sql(f"ALTER TABLE @t {change}")
    shop.sql(
        "INSERT INTO @t SELECT 2, named_struct('z', 2, 'x', 'new'), array(named_struct('n', 5, 'e', 2)),"
        " map('k', named_struct('v', 3000000000))"
    )
    assert shop.rows("t", but={"iceberg-rust"}) == [
        (1, (1, None), ((None, 1),), (("k", (1,)),)),
        (2, (2, "new"), ((5, 2),), (("k", (3_000_000_000,)),)),
    ]
    assert shop.read("SELECT l.n, s.z, m['k'].v FROM @t WHERE s.z = 1") == [((None,), 1, 1)]


@pytest.mark.not_read_by("any", "Spark before 4.3 refuses it with words; iceberg-rust cannot read it")
def test_a_struct_of_which_a_file_has_no_field_is_still_there(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1 AS n, IF(id = 1, NULL, named_struct('a', 1)) AS s FROM range(2)")
    shop.sql("ALTER TABLE @t ADD COLUMN s.b INT")
    shop.sql("ALTER TABLE @t DROP COLUMN s.a")
    if not shop.spark.version.startswith("4.3"):
        with pytest.raises(CatalogError, match="struct"):
            shop.read("SELECT * FROM @t")
        return
    assert shop.read("SELECT s IS NULL FROM @t") == [(False,), (True,)]
    assert shop.rows("t", but={"iceberg-rust"}) == [(1, (None,)), (1, None)]


@pytest.mark.promise("iceberg-sql", "`ALTER TABLE`: all changes of a statement in one step")
@pytest.mark.parametrize(
    "change",
    [
        "ALTER COLUMN name TYPE INT",
        "ALTER COLUMN id TYPE INT",
        "DROP COLUMN part",
        "RENAME COLUMN part TO other",
        "ADD COLUMN ID INT",
        "ADD COLUMN more INT NOT NULL",
        "ADD COLUMN more INTERVAL DAY",
        "ADD COLUMN more INT DEFAULT 3",
        "ALTER COLUMN nullable SET DEFAULT 3",
        "ALTER COLUMN nullable DROP DEFAULT",
        "ADD COLUMN `a.b` INT",
        "ALTER COLUMN nullable SET NOT NULL",
        "DROP COLUMNS (name, nowhere)",
        "SET TBLPROPERTIES ('format-version' = '3')",
        "SET LOCATION '/elsewhere'",
        "DEFAULT COLLATION UNICODE_CI",
        "SET TBLPROPERTIES ('twophase.promotion' = 'wide')",
        "SET TBLPROPERTIES ('twophase.on_cast_failure' = 'null')",
    ],
)
def test_a_change_that_is_refused_changes_nothing(shop: Shop, change: str) -> None:
    shop.sql(
        "CREATE TABLE @t PARTITIONED BY (part) AS SELECT 1L AS id, 'x' AS name, 'p' AS part,"
        " CAST(NULL AS INT) AS nullable"
    )
    before = shop.lake.metadata_location(shop.path("t"))
    with pytest.raises((PySparkException, CatalogError, SchemaError)):
        shop.sql(f"ALTER TABLE @t {change}")
    assert shop.lake.metadata_location(shop.path("t")) == before


@pytest.mark.parametrize(("key", "value"), [("twophase.promotion", "wide"), ("twophase.on_cast_failure", "null")])
def test_a_policy_that_other_readers_could_not_follow_is_refused_for_a_new_table(
    shop: Shop, key: str, value: str
) -> None:
    properties = f"TBLPROPERTIES ('{key}' = '{value}')"
    for rest in (f"(id BIGINT) {properties}", f"{properties} AS SELECT 1L AS id"):
        with pytest.raises(CatalogError, match=f"was not made: {key} is"):
            shop.sql(f"CREATE TABLE @t {rest}")
    shop.sql("CREATE TABLE @t TBLPROPERTIES ('twophase.promotion' = 'EXACT') AS SELECT 1L AS id")
    with pytest.raises(CatalogError, match=f"was not made: {key} is"):
        shop.sql(f"CREATE OR REPLACE TABLE @t {properties} AS SELECT 2L AS id")
    assert shop.rows("t") == [(1,)]


@pytest.mark.parametrize(
    "text", ["{}", "BEGIN {}; END", "EXECUTE IMMEDIATE '{}'"], ids=["alone", "a script", "EXECUTE IMMEDIATE"]
)
def test_a_column_without_nulls_can_become_not_null(shop: Shop, text: str) -> None:
    shop.spark.conf.set("spark.sql.scripting.enabled", "true")
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id")
    # The statistics of its files show no NULL.
    shop.sql(text.format("ALTER TABLE @t ALTER COLUMN id SET NOT NULL"))
    assert shop.iceberg("t").schema().find_field("id").required
    with pytest.raises(PySparkException):
        shop.sql("INSERT INTO @t SELECT CAST(NULL AS BIGINT)")
    shop.sql("ALTER TABLE @t ALTER COLUMN id DROP NOT NULL")
    shop.sql("INSERT INTO @t SELECT CAST(NULL AS BIGINT)")
    assert shop.rows("t") == [(1,), (None,)]


def test_columns_become_not_null_beside_other_changes_and_for_a_program_in_the_jvm(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id, 'x' AS name, named_struct('u', 1) AS s")
    explained = shop.sql("EXPLAIN ALTER TABLE @t ALTER COLUMN id SET NOT NULL").collect()[0][0]
    assert "AlterTable" in explained
    assert not shop.iceberg("t").schema().find_field("id").required
    shop.sql("ALTER TABLE @t ALTER COLUMN id SET NOT NULL, name COMMENT 'of it'")
    shop.spark._jsparkSession.sql(f"ALTER TABLE {shop.name('t')} ALTER COLUMN name SET NOT NULL")
    columns = shop.iceberg("t").schema()
    assert [columns.find_field(name).required for name in ("id", "name", "s")] == [True, True, False]
    assert columns.find_field("name").doc == "of it"


@pytest.mark.promise("iceberg-sql", "rows and the columns that they need: one commit")
@pytest.mark.not_read_by("PyIceberg", "it reads a NULL list of structs as an empty one (apache/iceberg-python#3833)")
def test_rows_bring_their_columns_along_where_the_table_allows_it(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t TBLPROPERTIES ('write.spark.accept-any-schema' = 'true') AS SELECT 1 AS id, 'x' AS name")
    shop.sql("SELECT 'y' AS name, 5L AS id, true AS more").writeTo(shop.name("t")).append()
    shop.sql("INSERT INTO @t SELECT 9 AS id, array(named_struct('e', 1)) AS l")
    assert shop.sql("SELECT * FROM @t").columns == ["id", "l", "more", "name"]
    assert shop.rows("t") == [(1, None, None, "x"), (5, None, True, "y"), (9, ((1,),), None, None)]
    schemas = shop.iceberg("t").metadata.snapshots
    assert len({snapshot.schema_id for snapshot in schemas}) == 3  # Each change came with the rows that needed it.
    shop.sql("ALTER TABLE @t UNSET TBLPROPERTIES ('write.spark.accept-any-schema')")
    shop.sql("ALTER TABLE @t SET TBLPROPERTIES ('twophase.merge_schema' = 'true')")  # The same, in every catalog.
    with pytest.raises(SchemaError, match="id"):
        shop.sql("SELECT 'no number' AS id").writeTo(shop.name("t")).append()
    with twophase.transaction(shop.spark):
        shop.sql("SELECT 10 AS id, 'b' AS brand").writeTo(shop.name("t")).append()
        shop.sql("SELECT 11 AS id, 'c' AS brand, 1 AS last").writeTo(shop.name("t")).append()
    assert shop.read("SELECT id, brand, last FROM @t WHERE id > 9") == [(10, "b", None), (11, "c", 1)]


@pytest.mark.promise(
    "evolution", "a single write brings its columns: `mergeSchema`, `INSERT WITH SCHEMA EVOLUTION`", detail=True
)
def test_one_write_brings_its_columns_where_it_says_so_and_no_other_does(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1 AS id, 'x' AS name")
    name, merged = shop.name("t"), {"mergeSchema": "true"}
    shop.sql("SELECT 'a' AS name, 2 AS id, 1 AS by_save").write.mode("append").options(**merged).saveAsTable(name)
    shop.sql("SELECT 3L AS id, 'b' AS name, 1 AS by_insert").write.option("mergeSchema", True).insertInto(name)
    shop.sql("SELECT 4 AS id, 1 AS by_write_to").writeTo(name).options(**merged).append()
    if shop.spark.version.startswith("4.3"):
        shop.sql("BEGIN INSERT WITH SCHEMA EVOLUTION INTO @t BY NAME SELECT 1 AS by_sql, 5 AS id; END")
    else:
        shop.sql("SELECT 5 AS id, 1 AS by_sql").writeTo(name).option("mergeSchema", "true").append()
    added = ["by_save", "by_insert", "by_write_to", "by_sql"]
    assert sorted(shop.sql("SELECT * FROM @t").columns) == sorted(["id", "name", *added])
    assert shop.read(f"SELECT id, name, {', '.join(added)} FROM @t") == [
        (1, "x", None, None, None, None),
        (2, "a", 1, None, None, None),
        (3, "b", None, 1, None, None),
        (4, None, None, None, 1, None),
        (5, None, None, None, None, 1),
    ]
    assert len({snapshot.schema_id for snapshot in shop.iceberg("t").metadata.snapshots}) == 5
    rows = shop.sql("SELECT 6L AS id, 'c' AS name, 1 AS other")
    for refused in (
        lambda: rows.writeTo(name).append(),
        lambda: rows.write.mode("append").option("mergeSchema", "false").saveAsTable(name),
        lambda: shop.sql("INSERT INTO @t SELECT 1, 2, 3, 4, 5, 6, 7"),
        lambda: shop.sql("SELECT 'no number' AS id").writeTo(name).option("mergeSchema", "true").append(),
        lambda: shop.sql("SELECT 6 AS id, 1 AS `a.dot`").writeTo(name).option("mergeSchema", "true").append(),
    ):
        with pytest.raises((PySparkException, CatalogError, SchemaError)):
            refused()
    assert shop.read("SELECT max(id) FROM @t") == [(5,)]
    rows.write.option("mergeSchema", "true").insertInto(name, overwrite=True)
    assert shop.read("SELECT id, name, other, by_sql FROM @t") == [(6, "c", 1, None)]


def test_old_states_are_read_in_their_own_schema(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1 AS id, 'x' AS name")
    first = shop.iceberg("t").metadata.current_snapshot_id
    shop.sql("ALTER TABLE @t DROP COLUMN name")
    shop.sql("ALTER TABLE @t ALTER COLUMN id TYPE BIGINT")
    shop.sql("INSERT INTO @t VALUES (2)")
    assert shop.rows("t") == [(1,), (2,)]
    assert shop.read(f"SELECT * FROM @t VERSION AS OF {first}") == [(1, "x")]


# -- what other engines made -------------------------------------------------------------------------------------------


@pytest.mark.promise("types", "rows that another engine deleted are not read, or the read is refused")
def test_rows_that_another_engine_deleted_are_not_read(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT id, CAST(id AS STRING) AS name FROM range(0, 6, 1, 1)")
    with shop.lake.iceberg() as other:
        foreign.delete_positions(other.load_table((DATABASE, "t")), [1, 4])
    assert [row[0] for row in shop.rows("t")] == [0, 2, 3, 5]
    assert shop.read("SELECT name FROM @t WHERE id > 3") == [("5",)]
    shop.sql("INSERT INTO @t VALUES (9, 'nine')")
    assert [row[0] for row in shop.rows("t")] == [0, 2, 3, 5, 9]
    with pytest.raises(CatalogError, match="another engine"):
        shop.sql("DELETE FROM @t WHERE id = 9")
    shop.sql("INSERT OVERWRITE @t VALUES (7, 'seven')")
    assert shop.rows("t") == [(7, "seven")]


@pytest.mark.promise("types", "NULL stays NULL in a table of which another engine deleted rows")
@pytest.mark.not_read_by("PyIceberg", "it reads a NULL list of structs as an empty one (apache/iceberg-python#3833)")
def test_null_stays_null_in_a_table_of_which_another_engine_deleted_rows(shop: Shop) -> None:
    nothing = "CAST(NULL AS ARRAY<STRUCT<e: INT>>)", "CAST(NULL AS MAP<STRING, STRUCT<e: INT>>)"
    empty = nothing[0].replace("NULL", "array()"), nothing[1].replace("NULL", "map()")
    full = "array(named_struct('e', 1), NULL)", "map('k', named_struct('e', 1))"
    rows = " UNION ALL ".join(
        f"SELECT {number} AS id, {array} AS l, {map_} AS m, named_struct('l', {array}, 'm', {map_}) AS s, "
        f"array({array}, NULL) AS ll, named_struct('e', NULLIF({number}, 1)) AS e"
        for number, (array, map_) in enumerate((nothing, empty, full, nothing, full))
    )
    shop.sql(f"CREATE TABLE @t AS SELECT /*+ COALESCE(1) */ * FROM ({rows})")
    before = shop.rows("t", but={"PyIceberg"})
    with shop.lake.iceberg() as other:
        foreign.delete_positions(other.load_table((DATABASE, "t")), [2])
    shop.sql("REFRESH TABLE @t")
    left = [row for row in before if row[0] != 2]
    assert len(left) == 4
    assert shop.rows("t", but={"PyIceberg"}) == left
    assert shop.sql("SELECT count(*) FROM @t").first()[0] == 4
    assert shop.read("SELECT s.l, ll[0] FROM @t WHERE id = 3") == [(None, None)]


@pytest.mark.not_read_by("PyIceberg", "it takes structs in a list in a list by their names")
@pytest.mark.not_read_by("iceberg-rust", "it shows structs in lists in the schema of the file")
def test_nested_fields_go_by_their_ids_in_a_table_of_which_another_engine_deleted_rows(shop: Shop) -> None:
    pair = "named_struct('p', id, 'q', -id)"
    shop.sql(
        f"CREATE TABLE @t AS SELECT id, array(array({pair})) AS ll, map('k', array({pair})) AS ml, array({pair}) AS l, "
        f"map('k', {pair}) AS m FROM range(0, 4, 1, 1)"
    )
    for inside in ("ll.element.element", "ml.value.element", "l.element", "m.value"):
        for old, new in (("p", "kept"), ("q", "p"), ("kept", "q")):
            shop.sql(f"ALTER TABLE @t RENAME COLUMN {inside}.{old} TO {new}")
    with shop.lake.iceberg() as other:
        foreign.delete_positions(other.load_table((DATABASE, "t")), [0, 2])
    shop.sql("REFRESH TABLE @t")
    rows = shop.sql("SELECT id, ll[0][0].q, ml['k'][0].q, l[0].q, m['k'].q, ll[0][0].p FROM @t ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [(1, 1, 1, 1, 1, -1), (3, 3, 3, 3, 3, -3)]


def test_deleted_positions_go_by_the_whole_file_and_its_partitions_value_is_read(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t (id BIGINT, day DATE) USING iceberg PARTITIONED BY (day)")
    rows = pa.table({"id": range(200_000)}, schema=pa.schema([ids(1, None).field("id")]))
    with shop.lake.iceberg() as other:
        day = (date(2026, 5, 2) - date(1970, 1, 1)).days
        foreign.append_file(other.load_table((DATABASE, "t")), rows, Record(day), row_group_size=90_000)
        foreign.delete_positions(other.load_table((DATABASE, "t")), [0, 89_999, 90_000, 199_999])
    shop.sql("REFRESH TABLE @t")
    assert shop.read("SELECT day, count(*), min(id), max(id), sum(id) FROM @t GROUP BY day") == [
        (date(2026, 5, 2), 199_996, 1, 199_998, sum(range(200_000)) - 89_999 - 90_000 - 199_999)
    ]


@pytest.mark.not_read_by("iceberg-rust", "it reads Parquet only")
@pytest.mark.not_read_by("PyIceberg", "it reads a NULL list of structs as an empty one (apache/iceberg-python#3833)")
def test_a_file_in_orc_is_read_by_its_names_without_its_deleted_rows(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t (id BIGINT, name STRING, l ARRAY<STRUCT<e: BIGINT>>) USING iceberg")
    names = ["a", None, "c", "d"]
    rows = pa.table({"name": names, "l": [[{"e": 1}], None, [], [None]], "id": pa.array(range(4), pa.int64())})
    append_by_names(shop, rows, FileFormat.ORC)
    read = [(0, "a", ((1,),)), (1, None, None), (2, "c", ()), (3, "d", (None,))]
    assert shop.rows("t", but={"iceberg-rust", "PyIceberg"}) == read
    with shop.lake.iceberg() as other:
        foreign.delete_positions(other.load_table((DATABASE, "t")), [0, 2])
    shop.sql("REFRESH TABLE @t")
    assert shop.sql("SELECT id, name, l FROM @t ORDER BY id").collect() == [(1, None, None), (3, "d", [None])]


@pytest.mark.not_read_by("iceberg-rust", "it finds nothing in the lists of a file without ids")
def test_lists_that_another_engine_wrote_with_a_fixed_size_are_read(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t (id BIGINT, l ARRAY<BIGINT>) USING iceberg")
    pairs = pa.array([[0, 1], None, [4, 5], [6, None], [8, 9]], pa.list_(pa.int64(), 2))
    append_by_names(shop, pa.table({"id": pa.array(range(5), pa.int64()), "l": pairs}), FileFormat.PARQUET)
    with shop.lake.iceberg() as other:
        foreign.delete_positions(other.load_table((DATABASE, "t")), [0, 2])
    shop.sql("REFRESH TABLE @t")
    assert shop.rows("t", but={"iceberg-rust"}) == [(1, None), (3, (6, None)), (4, (8, 9))]


def append_by_names(shop: Shop, rows: pa.Table, file_format: FileFormat) -> None:
    """Append a file without ids, as an engine does that goes by a table's names."""
    with shop.lake.iceberg() as other:
        table = other.load_table((DATABASE, "t"))
        mapping = table.schema().name_mapping.model_dump_json()
        with table.transaction() as change:
            change.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        foreign.append_file(table, rows, file_format=file_format)
    shop.sql("REFRESH TABLE @t")


@pytest.mark.not_read_by("any", "it has a file in a format that is refused with words")
@pytest.mark.parametrize(
    ("file_format", "deletes", "problem"),
    [
        (FileFormat.ORC, False, "files in ORC"),
        (FileFormat.ORC, True, "no field ids"),
        (FileFormat.AVRO, False, "files in AVRO"),
        (FileFormat.AVRO, True, "files in AVRO"),
    ],
)
def test_files_in_a_format_that_cannot_be_read_are_refused_with_words(
    shop: Shop, file_format: FileFormat, deletes: bool, problem: str
) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id")
    with shop.lake.iceberg() as other:
        table = other.load_table((DATABASE, "t"))
        foreign.append_file(table, pa.table({"id": [2, 3]}), file_format=file_format)
        if deletes:
            foreign.delete_positions(other.load_table((DATABASE, "t")), [0])
    shop.sql("REFRESH TABLE @t")
    # What only an executor finds out, it tells in Spark's own error.
    with pytest.raises((CatalogError, PySparkException), match=problem):
        shop.read("SELECT * FROM @t")


@pytest.mark.not_read_by("any", "rows were deleted by their values, which PyIceberg and Spark refuse with words")
def test_rows_deleted_by_their_values_are_refused_with_words(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT id FROM range(0, 6, 1, 1)")
    with shop.lake.iceberg() as other:
        foreign.delete_equal(other.load_table((DATABASE, "t")), "id", [3])
    with pytest.raises(CatalogError, match="equality"):
        shop.read("SELECT * FROM @t")


def test_a_file_without_ids_is_read_by_its_names_as_pyiceberg_does(shop: Shop, tmp_path: Any) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id, 'x' AS name")
    file = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"name": ["z"], "id": [26]}), file)
    with shop.lake.iceberg() as other:
        other.load_table((DATABASE, "t")).add_files([f"file://{file}"])
    shop.sql("ALTER TABLE @t RENAME COLUMN name TO label")
    assert shop.rows("t") == [(1, "x"), (26, "z")]


def ids(*numbers: int | None) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, kind, True, None if number is None else {"PARQUET:field_id": str(number)})
            for (name, kind), number in zip((("id", pa.int64()), ("name", pa.string())), numbers, strict=True)
        ]
    )


@pytest.mark.promise("evolution", "a file without ids, or with wrong ones, is never registered")
@pytest.mark.parametrize(
    ("schema", "problem"),
    [(ids(None, None), "no id"), (ids(2, 1), "has the id"), (ids(1, None), "no id"), (ids(1, 9), "no field")],
    ids=["no ids", "wrong ids", "partial ids", "unknown ids"],
)
def test_a_file_whose_ids_are_not_the_tables_is_not_registered(
    shop: Shop, tmp_path: Any, schema: pa.Schema, problem: str
) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id, 'x' AS name")
    file = tmp_path / "wrong.parquet"
    pq.write_table(pa.table({"id": [1], "name": ["x"]}, schema=schema), file)
    table = shop.iceberg("t")
    with pytest.raises(CatalogError, match=problem):
        Registrar(load_file_io(), "t", table.schema(), table.spec()).register(f"file://{file}")


def test_a_table_of_another_format_version_is_refused_before_any_job(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1L AS id")
    location = shop.lake.metadata_location(shop.path("t")).removeprefix("file://")
    with open(location, encoding="utf-8") as file:
        metadata = json.load(file)
    others = [Path(f"{location}.v{version}.metadata.json") for version in (1, 3)]
    first = {"schema": metadata["schemas"][0], "partition-spec": []}
    point = "UPDATE iceberg_tables SET metadata_location = 'file://{}' WHERE table_name = 't'"
    for other, version, word in zip(others, (1, 3), ("can be written", "version 3"), strict=True):
        other.write_text(json.dumps({**metadata, **first, "next-row-id": 0, "format-version": version}))
        shop.lake.execute(point.format(other))
        with pytest.raises(CatalogError, match=word):
            shop.sql("INSERT INTO @t SELECT CAST(raise_error('a job ran') AS BIGINT)")
    with pytest.raises(CatalogError, match="version 3"):
        shop.read("SELECT * FROM @t")
    shop.lake.execute(point.format(location))
    for other in others:
        other.unlink()

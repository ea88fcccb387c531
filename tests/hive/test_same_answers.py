"""With Hive support: its kinds of tables are the same with and without ``twophase.attach``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import start_session
from tests.spark.answers import Call, assert_same_answers
from twophase.errors import AtomicityNotSupportedError

spark40_first_cases = True

STATEMENTS = [
    "SET hive.exec.dynamic.partition.mode = nonstrict",
    "CREATE TABLE delimited ROW FORMAT DELIMITED FIELDS TERMINATED BY '|' AS SELECT 1 AS a, 'x' AS b",
    "SHOW CREATE TABLE delimited",
    "CREATE TABLE by_default ROW FORMAT DELIMITED COMMENT 'c' AS SELECT 1 AS a",
    "SHOW CREATE TABLE by_default",
    "SET hive.default.fileformat = orc",
    "CREATE TABLE hive_by_default USING hive AS SELECT 1 AS a",
    "SHOW CREATE TABLE hive_by_default",
    "CREATE TABLE hive_orc USING hive OPTIONS (fileFormat 'parquet') AS SELECT 1 AS a",
    "SHOW CREATE TABLE hive_orc",
    "CREATE TABLE wrong_format USING hive OPTIONS (fileFormat 'nonsense') AS SELECT 1 AS a",
    "SET hive.default.fileformat = textfile",
    "CREATE TABLE bucketed USING hive CLUSTERED BY (a) INTO 2 BUCKETS AS SELECT 1 AS a",
    "CREATE TABLE stored STORED AS orc PARTITIONED BY (p) TBLPROPERTIES (k = 'v') AS SELECT 1 AS a, 'x' AS p",
    "SHOW CREATE TABLE stored",
    "INSERT INTO stored PARTITION (p = 'y') VALUES (2)",
    "INSERT OVERWRITE stored PARTITION (p) SELECT 3, 'x'",
    "SELECT * FROM stored ORDER BY a",
    "SHOW PARTITIONS stored",
    "CREATE TABLE with_serde ROW FORMAT SERDE 'org.apache.hadoop.hive.ql.io.orc.OrcSerde' STORED AS INPUTFORMAT "
    "'org.apache.hadoop.hive.ql.io.orc.OrcInputFormat' OUTPUTFORMAT "
    "'org.apache.hadoop.hive.ql.io.orc.OrcOutputFormat' AS SELECT 1 AS a",
    "SHOW CREATE TABLE with_serde",
    "CREATE TABLE with_its_serde ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.OpenCSVSerde' AS SELECT 'x' AS a",
    "SHOW CREATE TABLE with_its_serde",
    "CREATE TABLE nonsense STORED AS nonsense AS SELECT 1 AS a",
    "CREATE TABLE only_partitions PARTITIONED BY (a, b) AS SELECT 1 AS a, 2 AS b",
    "CREATE TABLE columns (a INT) ROW FORMAT DELIMITED AS SELECT 1 AS a",
    "CREATE TABLE intervals STORED AS textfile AS SELECT INTERVAL 1 DAY AS a",
    "CREATE TABLE nulls STORED AS parquet AS SELECT NULL AS a, 1 AS b",
    "CREATE TABLE voids USING json AS SELECT map() AS a, array() AS b",
    "INSERT INTO voids SELECT map(), array()",
    "INSERT OVERWRITE voids SELECT map(), array()",
    "SELECT * FROM voids",
    "DESCRIBE voids",
    "CREATE TABLE upper USING PARQUET AS SELECT 1 AS a",
    "INSERT INTO stored PARTITION (p = '') VALUES (4)",
    "INSERT OVERWRITE stored PARTITION (p = '') VALUES (4)",
    "INSERT INTO IDENTIFIER(:t) VALUES (1, 2)",
    "SELECT * FROM delimited",
    "SELECT * FROM with_its_serde",
    "CREATE TABLE pipes USING hive OPTIONS (fileFormat 'textfile', fieldDelim '|') AS SELECT 1 AS a, 'x' AS b",
    "SHOW CREATE TABLE pipes AS SERDE",
    "CREATE TABLE two_ways USING hive OPTIONS (fileFormat 'orc', inputFormat 'a', outputFormat 'b') AS SELECT 1 AS a",
    "CREATE TABLE clustered STORED AS orc CLUSTER BY (a, b.x) AS SELECT 1 AS a, named_struct('x', 2) AS b",
    "SHOW CREATE TABLE clustered",
    "ALTER TABLE clustered CLUSTER BY (b)",
    "INSERT OVERWRITE clustered VALUES (3, named_struct('x', 4))",
    "SELECT * FROM clustered",
    "SHOW CREATE TABLE clustered",
    "ALTER TABLE clustered CLUSTER BY NONE",
    "INSERT INTO clustered VALUES (5, named_struct('x', 6))",
    "SHOW CREATE TABLE clustered",
    "CREATE TABLE clustered_twice USING parquet CLUSTER BY (a, a) AS SELECT 1 AS a",
    "CREATE TABLE clustered_by_nothing USING parquet CLUSTER BY (z) AS SELECT 1 AS a",
    "CREATE TABLE clustered_both USING parquet CLUSTER BY (a) PARTITIONED BY (b) AS SELECT 1 AS a, 2 AS b",
    "SHOW CREATE TABLE delimited AS SERDE",
    "SHOW CREATE TABLE with_its_serde AS SERDE",
    "SHOW CREATE TABLE hive_orc AS SERDE",
    # Spark hands the values of a static partition to Hive's writer beside the rows.
    "CREATE TABLE lines (a INT) PARTITIONED BY (p STRING, q INT) STORED AS textfile",
    "INSERT INTO lines PARTITION (q = '1', P = 'x') VALUES (1)",
    "INSERT INTO lines PARTITION (p = 'x', q) VALUES (2, 2), (3, 3)",
    "INSERT OVERWRITE lines PARTITION (p = 'x', q = 2) VALUES (4)",
    "INSERT OVERWRITE lines PARTITION (p = 'y', q = 2) (a) SELECT 5",
    "INSERT INTO lines PARTITION (p = NULL, q = 1) VALUES (6)",
    "INSERT INTO lines PARTITION (p = 'x', q = 'no number') VALUES (7)",
    "INSERT INTO lines PARTITION (p, q = 1) VALUES (8, 'x')",
    "INSERT INTO lines PARTITION (p = 'x', q = 1) VALUES (9, 9)",
    "SET hive.exec.dynamic.partition.mode = strict",
    "INSERT INTO lines VALUES (10, 'x', 1)",
    "SELECT * FROM lines ORDER BY a",
    "SHOW PARTITIONS lines",
]


def _partition_values(table: str, kind: str, *values: str) -> list[str]:
    """Each partition is written first, and then overwritten by the name that the value gives it."""
    steps = [f"CREATE TABLE {table} (a INT, p {kind}) USING parquet PARTITIONED BY (p)"]
    for value in values:
        steps.append(f"INSERT INTO {table} SELECT 1, CAST({value} AS {kind})")
        steps.append(f"INSERT OVERWRITE {table} PARTITION (p = {value}) VALUES (2)")
    return [*steps, f"SELECT a, CAST(p AS STRING) AS p FROM {table} ORDER BY p", f"SHOW PARTITIONS {table}"]


VALUES_OF_PARTITIONS: dict[str, list[str]] = {
    "values": [
        *_partition_values("doubles", "DOUBLE", "1e10", "'1e-5'"),
        *_partition_values("booleans", "BOOLEAN", "true", "false"),
        "CREATE TABLE several (a INT, p BOOLEAN, q INT) USING parquet PARTITIONED BY (p, q)",
        "INSERT INTO several VALUES (1, true, 1), (2, true, 2), (3, false, 1), (4, NULL, 1)",
        "INSERT OVERWRITE several PARTITION (p = true, q = 1) VALUES (5)",
        "INSERT OVERWRITE several PARTITION (p = false, q) VALUES (6, 3)",
        "INSERT OVERWRITE several PARTITION (p = NULL, q) VALUES (7, 3)",
        "SELECT * FROM several ORDER BY a",
        "SHOW PARTITIONS several",
    ],
    "types": [
        *_partition_values("floats", "FLOAT", "'1e10'", "'1e-5'", "'Infinity'", "'NaN'"),
        *_partition_values("decimals", "DECIMAL(38,18)", "0.000000000000000001"),
        *_partition_values("dates", "DATE", "'10000-01-01'", "'-0001-01-01'"),
        *_partition_values(
            "timestamps", "TIMESTAMP", "'0099-01-01 00:00:00'", "'2020-01-01'", "'2020-01-01 00:00:00.1'"
        ),
        *_partition_values("local_timestamps", "TIMESTAMP_NTZ", "'0099-01-01 00:00:00'"),
        *_partition_values("bytes", "BINARY", "'ab'"),
        *_partition_values("intervals", "INTERVAL YEAR TO MONTH", "INTERVAL '1-2' YEAR TO MONTH"),
    ],
    "zones": [
        "SET spark.sql.session.timeZone = +02:00",
        *_partition_values("offset", "TIMESTAMP", "'2020-01-01 00:00:00'"),
        "SET spark.sql.session.timeZone = PST",
        *_partition_values("short_zone", "TIMESTAMP", "'2020-01-01 00:00:00'"),
        "SET spark.sql.session.timeZone = UTC+03:30",
        *_partition_values("prefixed_zone", "TIMESTAMP", "'2020-01-01 00:00:00'"),
    ],
    "dynamic": [
        "SET spark.sql.sources.partitionOverwriteMode = dynamic",
        *_partition_values("dynamic_doubles", "DOUBLE", "'1e10'"),
        *_partition_values("dynamic_timestamps", "TIMESTAMP", "'2020-01-01'"),
        *_partition_values("dynamic_numbers", "INT", "'01'"),
        *_partition_values("dynamic_chars", "CHAR(3)", "'a'"),
        *_partition_values("dynamic_booleans", "BOOLEAN", "'true'"),
    ],
}


def _columns_named(name: str) -> list[str | Call]:
    def save(mode: str, table: str) -> Call:
        def run(session: SparkSession) -> None:
            session.sql(f"SELECT 1 AS a, 2 AS `{name}`").write.partitionBy(name).mode(mode).saveAsTable(table)

        return Call(f"saveAsTable {table}, {mode}", run)

    parts, buckets, saved = "parts", "buckets", "saved"
    return [
        f"CREATE TABLE {parts} (a INT, `{name}` INT) USING parquet PARTITIONED BY (`{name}`)",
        f"INSERT INTO {parts} VALUES (1, 1), (2, 2)",
        f"INSERT INTO {parts} PARTITION (`{name}` = 5) VALUES (3)",
        f"INSERT OVERWRITE {parts} PARTITION (`{name}` = 5) VALUES (4)",
        f"SELECT * FROM {parts} ORDER BY a",
        f"SHOW PARTITIONS {parts}",
        f"CREATE TABLE {buckets} (a INT, `{name}` INT) USING parquet CLUSTERED BY (`{name}`) INTO 2 BUCKETS",
        f"INSERT INTO {buckets} VALUES (3, 4)",
        f"SELECT * FROM {buckets}",
        save("errorifexists", saved),
        save("overwrite", saved),
        save("append", saved),
        f"SELECT * FROM {saved}",
        f"SHOW CREATE TABLE {saved}",
    ]


def _format_named(name: str) -> list[str | Call]:
    def save(mode: str) -> Call:
        def run(session: SparkSession) -> None:
            session.sql("SELECT 1 AS a").write.format(name).mode(mode).saveAsTable("saved")

        return Call(f"saveAsTable as {name}, {mode}", run)

    return [
        f"CREATE TABLE made USING {name} AS SELECT 1 AS a",
        "INSERT INTO made VALUES (2)",
        "SELECT * FROM made ORDER BY a",
        "INSERT OVERWRITE made VALUES (3)",
        "SELECT * FROM made",
        "SHOW CREATE TABLE made",
        f"CREATE TABLE parts USING {name} PARTITIONED BY (p) AS SELECT 1 AS a, 2 AS p",
        "INSERT OVERWRITE parts PARTITION (p = 2) VALUES (3)",
        "SELECT * FROM parts",
        save("errorifexists"),
        save("overwrite"),
        save("append"),
        "SELECT * FROM saved",
        "SHOW CREATE TABLE saved",
    ]


FORMATS_AS_WRITTEN = (
    "ORC",
    "com.databricks.spark.csv",
    pytest.param("Parquet", marks=pytest.mark.exhaustive),
    pytest.param("org.apache.spark.sql.parquet", marks=pytest.mark.exhaustive),
    pytest.param("org.apache.spark.sql.execution.datasources.orc.OrcFileFormat", marks=pytest.mark.exhaustive),
)


def _with_property(table: str, key: str, value: str) -> list[str | Call]:
    def run(session: SparkSession) -> None:
        session.range(1).writeTo(table).tableProperty(key, value).create()

    return [Call(f"writeTo with the property {key}", run), *_described(table)]


def _described(table: str) -> list[str | Call]:
    return [f"SHOW CREATE TABLE {table}", f"SELECT * FROM {table}"]


OPTIONS_AND_PROPERTIES = [
    Call("an option comment", lambda s: s.range(1).write.option("comment", "c").saveAsTable("by_option")),
    *_described("by_option"),
    *_with_property("at_a_place", "location", "/nowhere/at/all"),
    *_with_property("of_a_format", "provider", "json"),
    *_with_property("of_an_owner", "owner", "somebody"),
    "CREATE TABLE prefixed USING parquet TBLPROPERTIES ('option.x' = 'TRUE') AS SELECT 1 AS a",
    *_described("prefixed"),
    "CREATE TABLE both USING parquet OPTIONS (x 'TRUE', comment 'o') COMMENT 'c' AS SELECT 1 AS a",
    *_described("both"),
    "CREATE TABLE only_option USING parquet OPTIONS (comment 'o') AS SELECT 1 AS a",
    *_described("only_option"),
]

CASES = [
    "SET spark.sql.caseSensitive = true",
    "CREATE TABLE cases PARTITIONED BY (P) AS SELECT 1 AS a, 2 AS p, 3 AS P",
    "SHOW CREATE TABLE cases",
    "SELECT * FROM cases",
]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    started = start_session(tmp_path_factory.mktemp("same"), hive=True)
    yield started
    started.stop()


@pytest.mark.timeout(1200)
def test_the_answers_are_the_same(session: SparkSession) -> None:
    assert_same_answers(session, STATEMENTS)


@pytest.mark.promise("same-answers", "a static overwrite replaces the partition that stock Spark's would", detail=True)
@pytest.mark.parametrize("values", VALUES_OF_PARTITIONS)
def test_a_static_overwrite_replaces_the_partition_that_spark_itself_would(session: SparkSession, values: str) -> None:
    assert_same_answers(session, VALUES_OF_PARTITIONS[values])


@pytest.mark.promise("same-answers", "columns of any name make partitions and buckets", detail=True)
@pytest.mark.parametrize(
    "name", ["größe", "c.d", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("c d", "c-d"))]
)
def test_a_column_of_any_name_makes_partitions_and_buckets(session: SparkSession, name: str) -> None:
    assert_same_answers(session, _columns_named(name))


@pytest.mark.promise("same-answers", "a format may be given in capitals or by its class", detail=True)
@pytest.mark.parametrize("name", FORMATS_AS_WRITTEN)
def test_a_format_may_be_given_in_capitals_and_by_its_class(session: SparkSession, name: str) -> None:
    assert_same_answers(session, _format_named(name))


@pytest.mark.promise("same-answers", "options and properties mean what they mean to Spark", detail=True)
def test_options_and_properties_mean_what_they_mean_to_spark(session: SparkSession) -> None:
    assert_same_answers(session, OPTIONS_AND_PROPERTIES)


def test_where_case_counts_a_partition_column_is_distinguished_from_another(session: SparkSession) -> None:
    assert_same_answers(session, CASES)


def test_a_row_format_that_does_not_fit_the_default_format_is_refused(session: SparkSession) -> None:
    """Stock Spark makes an ORC table of it; there is no statement that tells another catalog so."""
    attached = session.newSession()
    twophase.attach(attached)
    attached.conf.set("hive.default.fileformat", "orc")
    with pytest.raises(AtomicityNotSupportedError, match="STORED AS TEXTFILE"):
        attached.sql("CREATE TABLE refused ROW FORMAT DELIMITED AS SELECT 1 AS a")
    assert not attached.catalog.tableExists("refused")


def test_an_external_table_without_a_location_is_refused_as_in_stock_spark(session: SparkSession) -> None:
    attached = session.newSession()
    twophase.attach(attached)
    with pytest.raises(AnalysisException, match="LOCATION"):
        attached.sql("CREATE EXTERNAL TABLE nowhere STORED AS parquet AS SELECT 1 AS a")
    assert not attached.catalog.tableExists("nowhere")

"""With Hive support: its kinds of tables are the same with and without ``twophase.attach``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import start_session
from tests.spark.answers import assert_same_answers
from twophase.errors import AtomicityNotSupportedError, CatalogError

pytestmark = [pytest.mark.slow, pytest.mark.spark40]

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
]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    started = start_session(tmp_path_factory.mktemp("same"), hive=True)
    yield started
    started.stop()


@pytest.mark.timeout(1200)
def test_the_answers_are_the_same(session: SparkSession) -> None:
    assert_same_answers(session, STATEMENTS)


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
    with pytest.raises(CatalogError, match="LOCATION"):
        attached.sql("CREATE EXTERNAL TABLE nowhere STORED AS parquet AS SELECT 1 AS a")
    assert not attached.catalog.tableExists("nowhere")

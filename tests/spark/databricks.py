"""What Databricks documents of its transactions, and the same statements here: a table of docs/sql.md, run as tests.

Theirs is what docs.databricks.com said in November 2026 (SQL language manual: BEGIN TRANSACTION, COMMIT, ROLLBACK,
ATOMIC compound statement; Transactions; error condition TRANSACTION_NOT_SUPPORTED).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.spark.routed import rows
from twophase.errors import (
    AtomicityNotSupportedError,
    TransactionAborted,
    TransactionStatementError,
    WriteConflictError,
)


@dataclass(frozen=True)
class Row:
    """A statement, or a situation.

    Attributes
    ----------
    name : str
        For the test.
    statement, theirs, ours : str
        The cells, in Markdown.
    check : callable
        Shows that ours is true: in a session with a table ``a`` of one row, ``id`` 1.
    """

    name: str
    statement: str
    theirs: str
    ours: str
    check: Callable[[SparkSession, Path], None]


def ids(spark: SparkSession, name: str = "a") -> list[int]:
    return [row[0] for row in rows(spark, f"SELECT id FROM {name}")]


def run(spark: SparkSession, *statements: str) -> None:
    for statement in statements:
        spark.sql(statement)


def refused(spark: SparkSession, statement: str, kind: type[Exception] = TransactionStatementError) -> None:
    with pytest.raises(kind):
        spark.sql(statement)


def _begin(spark: SparkSession, _: Path) -> None:
    for number, words in enumerate(("BEGIN TRANSACTION", "BEGIN WORK", "START TRANSACTION"), 2):
        run(spark, words, f"INSERT INTO a VALUES ({number})")
        assert number not in ids(spark.newSession())
        run(spark, "COMMIT")
    assert ids(spark) == [1, 2, 3, 4]


def _nested(spark: SparkSession, _: Path) -> None:
    run(spark, "BEGIN TRANSACTION", "INSERT INTO a VALUES (2)")
    refused(spark, "BEGIN TRANSACTION", TransactionAborted)
    run(spark, "COMMIT")
    assert ids(spark) == [1, 2]


def _ends(spark: SparkSession, _: Path) -> None:
    for number, words in enumerate(("COMMIT", "COMMIT WORK", "COMMIT TRANSACTION"), 2):
        run(spark, "BEGIN TRANSACTION", f"INSERT INTO a VALUES ({number})", words)
    for words in ("ROLLBACK", "ROLLBACK WORK", "ROLLBACK TRANSACTION"):
        run(spark, "BEGIN TRANSACTION", "INSERT INTO a VALUES (9)", words)
    assert ids(spark) == [1, 2, 3, 4]


def _without(spark: SparkSession, _: Path) -> None:
    refused(spark, "ROLLBACK")
    refused(spark, "COMMIT")


def _failed_statement(spark: SparkSession, _: Path) -> None:
    run(spark, "BEGIN TRANSACTION", "INSERT INTO a VALUES (2)")
    with pytest.raises(Exception, match="no"):
        spark.sql("INSERT INTO a SELECT CAST(raise_error('no') AS INT)")
    run(spark, "INSERT INTO a VALUES (3)", "COMMIT")
    assert ids(spark) == [1, 2, 3]


def _failed_commit(spark: SparkSession, _: Path) -> None:
    other = spark.newSession()
    run(spark, "BEGIN TRANSACTION", "INSERT OVERWRITE a SELECT id + 1 FROM a")
    run_elsewhere(other, "INSERT OVERWRITE a SELECT 7")
    refused(spark, "COMMIT", WriteConflictError)
    run(spark, "INSERT INTO a VALUES (8)")
    assert ids(other) == [7, 8]


def run_elsewhere(spark: SparkSession, statement: str) -> None:
    """Run a statement on a thread of its own, outside of the transaction that is open here."""
    import threading

    thread = threading.Thread(target=spark.sql, args=(statement,))
    thread.start()
    thread.join()


def _commit_in_a_script(spark: SparkSession, _: Path) -> None:
    run(spark, "BEGIN TRANSACTION", "INSERT INTO a VALUES (2)")
    refused(spark, "BEGIN IF (SELECT count(*) FROM a) > 1 THEN ROLLBACK; END IF; END")
    assert ids(spark) == [1, 2]
    run(spark, "ROLLBACK")


def _atomic(spark: SparkSession, _: Path) -> None:
    script = "BEGIN ATOMIC INSERT INTO a VALUES (2); INSERT INTO a SELECT max(id) + 1 FROM a; {} END"
    with pytest.raises(Exception, match="no"):
        spark.sql(script.format("SELECT raise_error('no');"))
    assert ids(spark) == [1]
    run(spark, script.format(""))
    assert ids(spark) == [1, 2, 3]


def _nested_atomic(spark: SparkSession, _: Path) -> None:
    refused(spark, "BEGIN ATOMIC INSERT INTO a VALUES (2); BEGIN ATOMIC SELECT 1; END; END")
    with pytest.raises(Exception, match="no"):
        spark.sql("BEGIN ATOMIC BEGIN INSERT INTO a VALUES (2); END; SELECT raise_error('no'); END")
    assert ids(spark) == [1]
    run(spark, "BEGIN ATOMIC BEGIN INSERT INTO a VALUES (2); END; END")
    assert ids(spark) == [1, 2]


def _in_a_batch(spark: SparkSession, directory: Path) -> None:
    def write(batch: object, _: int) -> None:
        session = batch.sparkSession  # type: ignore[attr-defined]
        session.sql("BEGIN ATOMIC INSERT INTO a VALUES (2); INSERT INTO a VALUES (3); END")

    spark.range(1).write.mode("overwrite").parquet(str(directory / "source"))
    stream = spark.readStream.schema("id LONG").parquet(str(directory / "source"))
    query = stream.writeStream.option("checkpointLocation", str(directory / "checkpoint"))
    query.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
    assert ids(spark) == [1, 2, 3]


def _own_writes(spark: SparkSession, _: Path) -> None:
    run(spark, "BEGIN TRANSACTION", "INSERT INTO a VALUES (2)")
    assert (ids(spark), ids(spark.newSession())) == ([1, 2], [1])
    run(spark, "INSERT OVERWRITE a SELECT 3")
    assert ids(spark) == [3]
    run(spark, "COMMIT")
    assert ids(spark.newSession()) == [3]


def _changes_of_rows(spark: SparkSession, _: Path) -> None:
    run(spark, "BEGIN TRANSACTION", "INSERT INTO a VALUES (2)")
    for statement in ("UPDATE a SET id = 5", "MERGE INTO a USING a AS b ON a.id = b.id WHEN MATCHED THEN DELETE"):
        refused(spark, statement, Exception)
    run(spark, "COMMIT")
    assert ids(spark) == [1, 2]


def _tables(spark: SparkSession, _: Path) -> None:
    statements = ("CREATE TABLE b AS SELECT 1 AS id", "CREATE OR REPLACE TABLE a AS SELECT max(id) + 1 AS id FROM b")
    run(spark, "BEGIN TRANSACTION", *statements, "ROLLBACK")
    assert ids(spark) == [1]
    assert not spark.catalog.tableExists("b")
    run(spark, "BEGIN TRANSACTION", *statements, "COMMIT")
    assert (ids(spark), ids(spark, "b")) == ([2], [1])


def _ddl(spark: SparkSession, _: Path) -> None:
    statements = ("TRUNCATE TABLE a", "CREATE TABLE b (id INT)", "INSERT INTO b VALUES (5)")
    run(spark, "BEGIN TRANSACTION", *statements, "ROLLBACK")
    assert ids(spark) == [1]
    run(spark, "BEGIN TRANSACTION", *statements, "COMMIT")
    assert (ids(spark), ids(spark, "b")) == ([], [5])


def _alter(spark: SparkSession, _: Path) -> None:
    run(spark, "BEGIN TRANSACTION", "CREATE TABLE b AS SELECT 1 AS id", "ALTER TABLE b ADD COLUMN c INT")
    run(spark, "ALTER TABLE b RENAME TO d", "INSERT INTO d VALUES (2, 3)", "ROLLBACK")
    assert not spark.catalog.tableExists("b") and not spark.catalog.tableExists("d")
    run(spark, "BEGIN TRANSACTION", "CREATE TABLE b AS SELECT 1 AS id", "ALTER TABLE b ADD COLUMN c INT")
    run(spark, "ALTER TABLE b RENAME TO d", "INSERT INTO d VALUES (2, 3)", "COMMIT")
    assert ids(spark, "d") == [1, 2]


def _immediate(spark: SparkSession, _: Path) -> None:
    run(spark, "BEGIN TRANSACTION", "INSERT INTO a VALUES (2)")
    refused(spark, "ALTER TABLE a RENAME TO b", AtomicityNotSupportedError)
    run(spark, "COMMIT")
    assert ids(spark) == [1, 2]
    run(spark, "CREATE TABLE lite.main.a AS SELECT 1 AS id")
    for old, new in (("a", "b"), ("lite.main.a", "lite.main.b")):
        run(spark, "BEGIN TRANSACTION", f"ALTER TABLE {old} RENAME TO {new}", "ROLLBACK")
        assert not spark.catalog.tableExists(new)
        run(spark, "BEGIN TRANSACTION", f"ALTER TABLE {old} RENAME TO {new}", "COMMIT")
        assert ids(spark, new) and not spark.catalog.tableExists(old)


def _evolve(spark: SparkSession, _: Path) -> None:
    for end, columns in (("ROLLBACK", ["id"]), ("COMMIT", ["id", "c"])):
        run(spark, "BEGIN TRANSACTION", "ALTER TABLE a ADD COLUMN c INT", "INSERT INTO a VALUES (2, 3)", end)
        assert spark.table("a").columns == columns
    assert ids(spark) == [1, 2]


def _drop(spark: SparkSession, _: Path) -> None:
    run(spark, "BEGIN TRANSACTION", "DROP TABLE a")
    assert not spark.catalog.tableExists("a")
    run(spark, "ROLLBACK")
    assert ids(spark) == [1]
    run(spark, "BEGIN TRANSACTION", "DROP TABLE a", "CREATE TABLE a USING parquet AS SELECT 7 AS id", "COMMIT")
    assert ids(spark) == [7]


def _databases(spark: SparkSession, _: Path) -> None:
    run(spark, "BEGIN TRANSACTION", "CREATE DATABASE made", "CREATE TABLE made.t AS SELECT 1 AS id", "ROLLBACK")
    assert not spark.catalog.databaseExists("made")
    run(spark, "BEGIN TRANSACTION", "CREATE DATABASE made", "CREATE TABLE made.t AS SELECT 1 AS id", "COMMIT")
    assert ids(spark, "made.t") == [1]
    run(spark, "BEGIN TRANSACTION", "DROP DATABASE made CASCADE", "COMMIT")
    assert not spark.catalog.databaseExists("made")


def _frames(spark: SparkSession, _: Path) -> None:
    run(spark, "BEGIN TRANSACTION")
    spark.range(2, 3).write.insertInto("a")
    spark.range(3).write.saveAsTable("b")
    run(spark, "ROLLBACK")
    assert ids(spark) == [1]
    assert not spark.catalog.tableExists("b")


def _terms(spark: SparkSession, _: Path) -> None:
    run(spark, "BEGIN TRANSACTION READ ONLY ISOLATION LEVEL SERIALIZABLE ON CONFLICT WOUND WAIT WAIT 5 SECONDS")
    run(spark, "SET TRANSACTION READ WRITE", "INSERT INTO a VALUES (2)", "COMMIT")
    assert ids(spark) == [1, 2]


def _locks(spark: SparkSession, _: Path) -> None:
    run(spark, "BEGIN TRANSACTION", "LOCK TABLE a IN APPEND MODE NOWAIT")
    (lock,) = spark.sql("SHOW LOCKS").collect()
    assert (lock.table, lock.mode) == ("hive.default.a", "append")
    assert lock.transaction_id in {row.transaction_id for row in spark.sql("SHOW TRANSACTIONS").collect()}
    run(spark, "ROLLBACK")


def _stores(spark: SparkSession, _: Path) -> None:
    catalog = twophase.attach(spark).catalog("lake")
    if "db" not in catalog.list_databases():
        catalog.create_database("db")
    statements = ("INSERT INTO a VALUES (2)", "CREATE OR REPLACE TABLE lake.db.t AS SELECT id FROM a")
    run(spark, "BEGIN TRANSACTION", *statements, "COMMIT")
    assert (ids(spark), ids(spark, "lake.db.t")) == ([1, 2], [1, 2])


ROWS = [
    Row("begin", "`BEGIN {TRANSACTION \\| WORK}`", "yes, in SQL warehouses", "yes; `START TRANSACTION` too", _begin),
    Row("nested", "`BEGIN` in a transaction", "error", "error; the transaction goes on", _nested),
    Row("ends", "`COMMIT`, `ROLLBACK`, with `TRANSACTION` or `WORK`", "yes", "yes", _ends),
    Row("without", "`ROLLBACK` without a transaction", "no error", "error, as `COMMIT`", _without),
    Row(
        "failed-statement",
        "a statement fails",
        "the transaction is aborted: only `ROLLBACK` is possible",
        "only the statement is lost; the transaction goes on",
        _failed_statement,
    ),
    Row(
        "failed-commit",
        "`COMMIT` fails",
        "`ROLLBACK` must follow",
        "everything is rolled back, and the transaction has ended",
        _failed_commit,
    ),
    Row(
        "commit-in-a-script",
        "`COMMIT`, `ROLLBACK` inside `BEGIN ... END`",
        "yes",
        "refused; in Python, `tx.commit()` and `tx.rollback()`",
        _commit_in_a_script,
    ),
    Row("atomic", "`BEGIN ATOMIC ... END`", "yes", "yes", _atomic),
    Row(
        "nested-atomic",
        "blocks in `BEGIN ATOMIC ... END`",
        "one of the two kinds is flattened, the other one refused (the editions of the manual differ)",
        "`BEGIN ... END` is a part of it, `BEGIN ATOMIC` is refused",
        _nested_atomic,
    ),
    Row("foreach-batch", "`BEGIN ATOMIC ... END` in `foreachBatch`", "yes", "yes", _in_a_batch),
    Row("own-writes", "`SELECT`, `INSERT`; its own writes are seen", "yes", "yes", _own_writes),
    Row(
        "update-merge",
        "`UPDATE`, `MERGE`",
        "yes",
        "no: the tables have none, in a transaction or not; `DELETE` of Iceberg tables",
        _changes_of_rows,
    ),
    Row("ctas", "`CREATE TABLE AS SELECT`, `CREATE OR REPLACE TABLE`", "refused", "yes", _tables),
    Row("ddl", "`CREATE TABLE` without rows, `TRUNCATE TABLE`", "refused", "yes", _ddl),
    Row("drop", "`DROP TABLE`, also before a `CREATE TABLE` of the name", "refused", "yes", _drop),
    Row("alter", "`ALTER TABLE`, `RENAME` of a table that the transaction has created", "refused", "yes", _alter),
    Row(
        "evolve",
        "`ALTER TABLE` of a table that was there before",
        "refused",
        "yes, of session tables, Iceberg, PostgreSQL, SQLite, MariaDB and MySQL; elsewhere it is refused",
        _evolve,
    ),
    Row(
        "immediate",
        "`RENAME` of a table that was there before",
        "refused",
        "yes, of session tables, PostgreSQL, SQLite, MariaDB, MySQL and Iceberg over a SQL catalog; elsewhere it is "
        "refused",
        _immediate,
    ),
    Row(
        "databases",
        "`CREATE DATABASE`, `DROP DATABASE`",
        "refused",
        "yes, of session tables, Iceberg, PostgreSQL and MariaDB; elsewhere it is refused",
        _databases,
    ),
    Row("frames", "DataFrame writers", "`spark.sql` is documented", "yes", _frames),
    Row("terms", "isolation level, conflict policy, `READ ONLY`", "none in SQL", "yes", _terms),
    Row("locks", "`LOCK TABLE`, `SHOW LOCKS`, `SHOW TRANSACTIONS`", "none", "yes", _locks),
    Row(
        "stores",
        "tables that one transaction writes",
        "managed by Unity Catalog, Delta or Iceberg, with catalog commits",
        "session tables, databases and Iceberg tables, several at once",
        _stores,
    ),
]

"""Faults of a server with the API of S3, by Hadoop's client of the tests: refused, denied, lost and slow requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import twophase
from tests.hive.world import World
from tests.storage.filesystems import IMPATIENT
from tests.storage.objects import Objects
from tests.storage.s3.session import BUCKET, KINDS, tidy
from tests.storage.s3_server import Fault
from twophase.catalogs.files import Files
from twophase.errors import CatalogError, TransactionInDoubt, TwoPhaseError
from twophase.spark import named_savepoints
from twophase.spark.handle import Handle
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.hadoop_files import SessionHadoopFiles
from twophase.transactions.clean import clean


@pytest.fixture(scope="module")
def world(spark: SparkSession, root: Path) -> World:
    found = World(spark, root / "warehouse")
    found.environment.allows_untested_storage = True
    found.catalog.store.files = Files(hadoop=SessionHadoopFiles(Jvm(spark)), kinds=KINDS)
    return found


# -- a fault at any request --------------------------------------------------------------------------------------------

Act = Callable[[Handle], object]
Tables = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """What is done to tables of the database ``impatient``, and the rows of each before and afterwards.

    Parameters
    ----------
    before : tuple of str
        Statements that make the tables.
    act : callable
    old, new : dict
        None where there is no table.
    """

    before: tuple[str, ...]
    act: Act
    old: Tables
    new: Tables


def sql(*statements: str) -> Act:
    """Run statements."""
    return lambda handle: [handle.spark.sql(statement) for statement in statements]


def block(*statements: str) -> Act:
    """Run statements in one transaction."""

    def act(handle: Handle) -> None:
        with twophase.transaction(handle.spark):
            sql(*statements)(handle)

    return act


def undo_last(handle: Handle) -> None:
    """Undo the transaction that was committed last."""
    named_savepoints.undo(handle.spark, next(t.id for t in handle.timeline.transactions() if t.number is not None))


def save(handle: Handle) -> None:
    """Replace the partitions that the rows are in."""
    rows = handle.spark.sql(NEW_ROWS).write.option("partitionOverwriteMode", "dynamic")
    rows.insertInto("impatient.t", overwrite=True)


OLD_ROWS = "SELECT CAST(id AS INT) AS a, CAST(id % 3 AS INT) AS k FROM range(0, 3, 1, 1)"
NEW_ROWS = "SELECT CAST(id AS INT) AS a, CAST(id % 2 AS INT) AS k FROM range(7, 9, 1, 1)"
OLD, NEW = [(0, 0), (1, 1), (2, 2)], [(7, 1), (8, 0)]
PLAIN = f"CREATE TABLE impatient.t USING parquet AS {OLD_ROWS}"
PARTS = f"CREATE TABLE impatient.t USING parquet PARTITIONED BY (k) AS {OLD_ROWS}"
REPLACE = "CREATE OR REPLACE TABLE impatient.t USING parquet"
OTHER = "CREATE TABLE impatient.u USING parquet AS SELECT 5 AS a, 5 AS k"
SAVED = "CREATE SAVEPOINT before FOR TABLE impatient.t WITH COPIES"
APPENDS = "INSERT INTO impatient.t SELECT /*+ REPARTITION(2) */ CAST(id AS INT), 1 FROM range(7, 9)"
OVERWRITES = f"INSERT OVERWRITE impatient.t {NEW_ROWS}"
AT = f"CREATE TABLE impatient.t (a INT, k INT) USING parquet {{by}}LOCATION 's3a://{IMPATIENT}/place'"
INSERTS = f"INSERT INTO impatient.t {OLD_ROWS}"
FLAT, BY_K = (AT.format(by=by) for by in ("", "PARTITIONED BY (k) "))


def of_t(before: tuple[str, ...], act: Act, new: Any, *, old: Any = OLD) -> Case:
    return Case(before, act, {"t": old}, {"t": new})


CASES = {
    "append": of_t((PLAIN,), sql(APPENDS), [*OLD, (7, 1), (8, 1)]),
    "block": Case(
        (PARTS, OTHER),
        block(
            OVERWRITES,
            "SAVEPOINT s",
            "INSERT INTO impatient.u SELECT 6, 6",
            "ROLLBACK TO SAVEPOINT s",
            "INSERT OVERWRITE impatient.u SELECT 9, 9",
        ),
        {"t": OLD, "u": [(5, 5)]},
        {"t": NEW, "u": [(9, 9)]},
    ),
    "replace": of_t((PARTS,), sql(f"{REPLACE} AS {NEW_ROWS}"), NEW),
    "replace, partitioned": of_t((PARTS,), sql(f"{REPLACE} PARTITIONED BY (k) AS {NEW_ROWS}"), NEW),
    "overwrite": of_t((PARTS,), sql(OVERWRITES), NEW),
    "overwrite of partitions": of_t((PARTS,), save, [(2, 2), *NEW]),
    "truncate": of_t((PARTS,), block("TRUNCATE TABLE impatient.t"), []),
    "restore": of_t((PARTS, SAVED, OVERWRITES), sql("RESTORE TO SAVEPOINT before"), OLD, old=NEW),
    "undo": of_t((PARTS, OVERWRITES), undo_last, OLD, old=NEW),
    "external append": of_t((BY_K, INSERTS), sql(APPENDS), [*OLD, (7, 1), (8, 1)]),
    "external overwrite": of_t((FLAT, INSERTS), sql(OVERWRITES), NEW),
    "external overwrite of partitions": of_t((BY_K, INSERTS), save, [(2, 2), *NEW]),
    "external drop": of_t((BY_K, INSERTS), block("DROP TABLE impatient.t"), None),
}
FAULTS = [("deny", 1), ("lose", 1), ("refuse", 0), ("refuse", 1)]


class Tried:
    """A case whose requests fail one after the other.

    Parameters
    ----------
    handle : Handle
    objects : Objects
    case : Case
    """

    def __init__(self, handle: Handle, objects: Objects, case: Case) -> None:
        self._handle, self._objects, self._case = handle, objects, case
        self._spark = handle.spark

    def make(self) -> None:
        """Make the tables of the case, in place of all others."""
        self.clear()
        sql(*self._case.before)(self._handle)

    def clear(self) -> None:
        """Remove all tables, and what savepoints keep."""
        for savepoint in twophase.savepoints(self._spark):
            self._spark.sql(f"DROP SAVEPOINT {savepoint.name}")
        for row in self._spark.sql("SHOW TABLES IN impatient").collect():
            self._spark.sql(f"DROP TABLE impatient.{row.tableName}")
        for file in self._objects.keys(f"{IMPATIENT}/place"):
            self._objects.files.delete_file(file)

    def run(self, fault: Fault) -> tuple[Exception | None, bool]:
        """Run it; return its error, and whether a request has failed."""
        self._objects.set(fault)
        error: Exception | None = None
        try:
            self._case.act(self._handle)
        except (TwoPhaseError, Py4JError, PySparkException) as caught:
            error = caught
        return error, bool(self._objects.set())

    def rows(self) -> Tables:
        return {table: self._rows(f"impatient.{table}") for table in self._case.old}

    def _files(self, table: str) -> list[str]:
        self._spark.catalog.refreshTable(table)
        return self._spark.table(table).inputFiles()

    def _rows(self, table: str) -> list[Any] | None:
        return self._objects.rows(self._files(table)) if self._spark.catalog.tableExists(table) else None

    def check_stored(self, rows: Tables) -> None:
        """The tables have the partitions of their rows, and nothing is stored but what they hold, or have held."""
        there = [f"impatient.{table}" for table in rows if rows[table] is not None]
        for table in there:
            if any(column.isPartition for column in self._spark.catalog.listColumns(table)):
                listed = {row.partition for row in self._spark.sql(f"SHOW PARTITIONS {table}").collect()}
                assert listed == {f"k={k}" for *_, k in rows[table.partition(".")[2]]}
        stored = {key for key in self._objects.keys(IMPATIENT) if key.endswith(".parquet")}
        held = {file.partition("://")[2] for table in there for file in self._files(table)}
        assert held <= stored
        assert not [key for key in stored - held if "/.savepoints/" not in key and "/place/" not in key]


@pytest.mark.promise(
    "killed-driver",
    "a request of a statement or a block that an S3 server refuses, or whose reply is lost, leaves tables as reported",
)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "every"),
    [("append", 29), ("block", 83), *(pytest.param(name, 7, marks=pytest.mark.exhaustive) for name in CASES)],
)
def test_a_fault_at_any_request_leaves_tables_wholly_old_or_new(
    attached: Handle, objects: Objects, name: str, every: int
) -> None:
    case = CASES[name]
    tried = Tried(attached, objects, case)
    for nth, (kind, times) in zip(count(every, every), cycle(FAULTS)):
        tried.make()
        error, has_failed = tried.run(Fault(kind, nth=nth, times=times))
        attached.recover()
        found, at = tried.rows(), f"{kind} {times} at request {nth}: {error}"
        assert found in ([case.new] if error is None else [case.old, case.new]), at
        if isinstance(error, TwoPhaseError):
            assert "impatient." in str(error), at
            assert found == case.old or isinstance(error, TransactionInDoubt), at
        assert attached.timeline.transactions(open_only=True) == [], at
        tidy(attached)
        tried.check_stored(found)
        if not has_failed:
            break
    assert nth > 2 * every
    tried.clear()
    tidy(attached)
    assert objects.keys(IMPATIENT) == []


# -- faults of single requests -----------------------------------------------------------------------------------------

STATEMENTS: list[tuple[str, list[Any]]] = [
    ("CREATE TABLE {t} USING parquet PARTITIONED BY (k) AS SELECT 1 AS a, 1 AS k", [(1, 1)]),
    ("INSERT INTO {t} SELECT /*+ REPARTITION(2) */ CAST(id AS INT), 1 FROM range(2)", [(0, 1), (1, 1), (1, 1)]),
    ("INSERT OVERWRITE {t} PARTITION (k = 1) SELECT 5", [(5, 1)]),
    ("CREATE OR REPLACE TABLE {t} USING parquet AS SELECT 6 AS a", [(6,)]),
]


@pytest.mark.parametrize("kind", ["lose", *(pytest.param(k, marks=pytest.mark.exhaustive) for k in ("refuse", "slow"))])
def test_faults_that_the_client_hides_change_nothing(
    spark: SparkSession, attached: Handle, objects: Objects, kind: str
) -> None:
    spark.sql(f"CREATE DATABASE {kind} LOCATION 's3a://{BUCKET}/{kind}'")
    objects.set(Fault(kind, on=f"/{BUCKET}", first=True))
    for statement, rows in STATEMENTS:
        spark.sql(statement.format(t=f"{kind}.t"))
        assert objects.rows(spark.table(f"{kind}.t").inputFiles()) == rows, statement
    spark.sql(f"DROP TABLE {kind}.t")
    spark.sql(f"DROP DATABASE {kind}")
    tidy(attached)
    assert objects.keys(f"{BUCKET}/{kind}") == []


#: Requests of an append to a table: of its plan, of its staging, of the end of the job, and of its preparation.
DENIED = ["^GET .*_twophase.json", "^PUT .*_twophase.json", "^PUT .*_twophase_written.json", "^PUT .*_manifest.json"]


@pytest.mark.promise("failed-statement", "a request that an S3 server denies ends a write with an error of the table")
def test_a_denied_request_ends_a_write_with_an_error_that_names_the_table_and_nothing_is_left(
    spark: SparkSession, attached: Handle, objects: Objects
) -> None:
    spark.sql("CREATE TABLE s3a.denied USING parquet AS SELECT 0L AS id")
    before = objects.keys(BUCKET)
    for request in DENIED:
        objects.set(Fault("deny", request))
        with pytest.raises(CatalogError, match=r"s3a\.denied.*AccessDeniedException: ") as caught:
            spark.sql("INSERT INTO s3a.denied SELECT /*+ REPARTITION(2) */ id FROM range(1, 3)")
        assert objects.set(), request
        assert (str(caught.value.path), objects.keys(BUCKET)) == ("s3a.denied", before), request
        assert attached.timeline.transactions(open_only=True) == []
    spark.sql("INSERT INTO s3a.denied SELECT /*+ REPARTITION(2) */ id FROM range(1, 3)")
    assert objects.rows(spark.table("s3a.denied").inputFiles()) == [(0,), (1,), (2,)]
    spark.sql("DROP TABLE s3a.denied")


def test_what_the_decision_of_an_overwrite_records_may_be_denied_with_an_error_that_names_the_table(
    spark: SparkSession, attached: Handle, objects: Objects
) -> None:
    spark.sql("CREATE TABLE s3a.replaced USING parquet PARTITIONED BY (k) AS SELECT 0L AS id, 0 AS k")
    (file,) = spark.table("s3a.replaced").inputFiles()
    before = objects.keys(BUCKET)
    objects.set(Fault("deny", f"^LIST {file.removeprefix('s3a:/').rpartition('/')[0]}/$"))
    with pytest.raises(CatalogError, match=r"s3a\.replaced.*AccessDeniedException: "):
        spark.sql("INSERT OVERWRITE s3a.replaced PARTITION (k = 0) SELECT 7L")
    assert objects.set()
    assert (objects.keys(BUCKET), attached.timeline.transactions(open_only=True)) == (before, [])
    spark.sql("INSERT OVERWRITE s3a.replaced PARTITION (k = 0) SELECT 7L")
    assert objects.rows(spark.table("s3a.replaced").inputFiles()) == [(7, 0)]
    spark.sql("DROP TABLE s3a.replaced")


#: Requests of a savepoint: of the copy that it keeps, of the plan of a restore, and of the removal of the copy.
OF_SAVEPOINTS = {
    "CREATE SAVEPOINT saved FOR TABLE s3a.saved WITH COPIES": "^PUT .*/.savepoints/",
    "RESTORE TO SAVEPOINT saved": "^LIST .*/.savepoints/",
    "DROP SAVEPOINT saved": "^REMOVE",
}


@pytest.mark.promise(
    "failed-statement",
    "a request that an S3 server denies ends a savepoint, a restore or an undo with an error of the table",
    detail=True,
)
def test_a_denied_request_ends_a_savepoint_a_restore_and_an_undo_with_an_error_that_names_the_table(
    spark: SparkSession, attached: Handle, objects: Objects
) -> None:
    spark.sql("CREATE TABLE s3a.saved USING parquet AS SELECT 0L AS id")
    for statement, request in OF_SAVEPOINTS.items():
        objects.set(Fault("deny", request))
        with pytest.raises(CatalogError, match=r"s3a\.saved.*Access ?Denied"):
            spark.sql(statement)
        assert objects.set(), request
        assert objects.rows(spark.table("s3a.saved").inputFiles()) == [(0,)]
        spark.sql(statement)
    spark.sql("INSERT OVERWRITE s3a.saved SELECT 7L")
    objects.set(Fault("deny", "^LIST .*/saved/"))
    with pytest.raises(CatalogError, match=r"s3a\.saved.*AccessDeniedException: "):
        undo_last(attached)
    assert objects.set()
    undo_last(attached)
    assert objects.rows(spark.table("s3a.saved").inputFiles()) == [(0,)]
    spark.sql("DROP TABLE s3a.saved")
    assert not [key for key in objects.keys(BUCKET) if "/.savepoints/" in key]


@pytest.mark.promise("clean", "a directory that an S3 server denies to read is kept and named; the others go")
def test_a_denied_directory_is_kept_and_named_by_clean_and_the_others_are_removed(
    spark: SparkSession, attached: Handle, objects: Objects
) -> None:
    for name in ("open", "shut"):
        spark.sql(f"CREATE TABLE s3a.{name} USING parquet AS SELECT 1 AS a")
        spark.sql(f"INSERT OVERWRITE s3a.{name} SELECT 2")
    attached.environment.retention = 0.0
    objects.set(Fault("deny", "^GET .*/shut/.*_twophase_retired.json"))
    done = clean(attached.coordinator, [attached.catalog("hive")])
    assert objects.set()
    found = {name: [one for one in done if f"/{name}/" in one.leftover.location] for name in ("open", "shut")}
    assert [(one.removed, "AccessDenied" in str(one.reason)) for one in found["shut"]] == [(False, True)]
    assert [one.removed for one in found["open"]] == [True]
    tidy(attached)
    for name in ("open", "shut"):
        assert objects.rows(spark.table(f"s3a.{name}").inputFiles()) == [(2,)]
        spark.sql(f"DROP TABLE s3a.{name}")


@pytest.mark.promise(
    "killed-driver", "staged files whose removal an S3 server has interrupted are removed by the next", detail=True
)
def test_an_interrupted_removal_is_completed(world: World, objects: Objects) -> None:
    for nth in count(1):
        participant = world.stage("gone", world.spark.range(5).repartition(5), database="impatient")
        staged = len(objects.keys(IMPATIENT))
        objects.set(Fault("refuse", "^REMOVE", nth=nth))
        with suppress(OSError):
            participant.abort()
        has_failed = bool(objects.set())
        world.reborn(participant).abort()
        assert objects.keys(IMPATIENT) == [], f"request {nth}"
        if not has_failed:
            break
    assert nth > staged / 3

"""Attaching and detaching: harmless to repeat, without a Spark job, and wholly undone."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import py4j.protocol
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming import DataStreamReader
from pyspark.sql.utils import ForeachBatchFunction

import twophase
from tests.spark.conftest import Start, warehouse_of
from tests.spark.routed import await_events, stock_session
from twophase import failpoints
from twophase.errors import AtomicityNotSupportedError, CatalogError, ConfigurationError
from twophase.model import Level, ObjectPath, Purpose, TableDefinition
from twophase.protocol.states import TransactionState
from twophase.spark.attach import Handle, handle_of
from twophase.spark.jvm import private, session_state
from twophase.spark.jvm.gateway import Jvm, private_name
from twophase.spark.jvm.statements import NameReader
from twophase.spark.options import default_timeline
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator

spark40_first_cases = True


@pytest.fixture(scope="module")
def started(start: Start) -> SparkSession:
    return start({"spark.sql.scripting.enabled": "true"})


@pytest.fixture
def spark(started: SparkSession) -> Iterator[SparkSession]:
    """The module's session, not attached before and after a test."""
    yield started
    for session in (started, *extra):
        if handle := handle_of(session):
            handle.detach()
    extra.clear()


extra: list[SparkSession] = []


def patched() -> list[object]:
    return [
        SparkSession.sql,
        SparkSession.table,
        SparkSession.newSession,
        ForeachBatchFunction.call,
        DataStreamReader.table,
        DataFrameWriter.saveAsTable,
        DataFrameWriter.insertInto,
        DataFrame.writeTo,
        py4j.protocol.get_return_value,
        signal.getsignal(signal.SIGTERM),
    ]


def jobs(spark: SparkSession) -> list[int]:
    return list(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def test_attaching_twice_gives_the_same_handle(spark: SparkSession) -> None:
    handle = twophase.attach(spark)

    assert twophase.attach(spark) is handle
    assert twophase.attach() is handle
    assert sorted(handle.catalogs) == ["hive", "lake"]
    assert handle.session_catalog == "hive"


def test_a_thread_without_a_session_of_its_own_attaches_the_applications(spark: SparkSession) -> None:
    handle = twophase.attach(spark)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(twophase.attach()))
    thread.start()
    thread.join()
    assert found == [handle]


@pytest.mark.promise("session", "attaching runs no Spark job and writes nothing")
def test_attaching_runs_no_job_and_writes_nothing(spark: SparkSession) -> None:
    before = jobs(spark)

    twophase.attach(spark)

    await_events(spark)
    assert jobs(spark) == before
    assert not (warehouse_of(spark) / ".twophase").exists()


def test_the_timeline_is_made_with_the_first_statement(spark: SparkSession) -> None:
    twophase.attach(spark)
    spark.sql("SELECT 1").collect()
    assert not (warehouse_of(spark) / ".twophase" / "timeline.db").exists()

    spark.sql("CREATE TABLE lake.default.t AS SELECT 1 AS id")

    assert (warehouse_of(spark) / ".twophase" / "timeline.db").exists()


@pytest.mark.promise("session", "detaching restores the session")
def test_detaching_puts_everything_back(spark: SparkSession) -> None:
    twophase.attach(spark).detach()  # Sessions of earlier tests that were stopped while attached are forgotten.
    before = patched()
    handle = twophase.attach(spark)
    assert patched() != before
    spark.sql("USE lake.default")

    handle.detach()
    handle.detach()

    assert patched() == before
    assert handle_of(spark) is None
    assert not session_state.catalogs(Jvm(spark)).contains("lake")
    assert NameReader(Jvm(spark)).current_catalog() == "spark_catalog"
    spark.sql("CREATE TABLE stock AS SELECT 1 AS id")
    assert spark.table("stock").count() == 1
    spark.sql("DROP TABLE stock")


@pytest.mark.promise("session", "detaching is refused in a block whose rest would run unprotected")
def test_detaching_is_refused_in_a_block_whose_rest_would_run_unprotected(spark: SparkSession) -> None:
    handle = twophase.attach(spark)

    with twophase.transaction(spark) as tx:
        with pytest.raises(AtomicityNotSupportedError, match=tx.id):
            handle.detach()
        assert handle_of(spark) is handle
        spark.sql("CREATE OR REPLACE TABLE lake.default.going AS SELECT 1 AS id")

    assert spark.table("lake.default.going").count() == 1
    handle.detach()
    assert handle_of(spark) is None


@pytest.mark.promise("session", "detaching is refused while a block is published")
def test_detaching_is_refused_while_a_block_is_published(spark: SparkSession) -> None:
    handle = twophase.attach(spark)
    refused: list[str] = []

    def detach(*_: object) -> None:
        try:
            handle.detach()
        except AtomicityNotSupportedError as error:
            refused.append(str(error.transaction_id))

    def on_another_thread(*_: object) -> None:
        thread = threading.Thread(target=detach)
        thread.start()
        thread.join(20)  # One that is let through waits for the publish, which waits here.

    failpoints.arm("core.publish", on_another_thread)
    try:
        with twophase.transaction(spark) as tx:
            spark.sql("CREATE OR REPLACE TABLE lake.default.published AS SELECT 1 AS id")
    finally:
        failpoints.disarm()

    assert refused == [tx.id]
    assert handle_of(spark) is handle
    assert spark.table("lake.default.published").count() == 1
    handle.detach()
    assert handle_of(spark) is None


def test_a_session_whose_default_catalog_cannot_be_loaded_can_be_detached(spark: SparkSession) -> None:
    other = spark.newSession()  # its current catalog was never set
    extra.append(other)
    handle = twophase.attach(other)
    asked = SparkSession.active()  # whose settings Spark looks at, whatever the session
    for one in (asked, other):
        one.conf.set("spark.sql.catalog.gone", "no.such.Catalog")
        one.conf.set("spark.sql.defaultCatalog", "gone")
    try:
        assert NameReader(Jvm(other)).current_catalog() == ""
        other.sql("CREATE TABLE spark_catalog.default.reachable USING parquet AS SELECT 1 AS a")  # as stock Spark can
        other.sql("DROP TABLE spark_catalog.default.reachable")
        handle.detach()
    finally:
        asked.conf.unset("spark.sql.defaultCatalog")
        asked.conf.unset("spark.sql.catalog.gone")

    assert handle_of(other) is None
    assert not session_state.catalogs(Jvm(other)).contains("lake")


def test_a_worker_thread_that_attaches_is_told_once_that_it_cannot_see_a_sigterm(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    for _ in range(2):
        thread = threading.Thread(target=twophase.attach, args=(spark,))
        thread.start()
        thread.join()

    assert signal.getsignal(signal.SIGTERM) is before
    assert [record.getMessage().count("SIGTERM") for record in caplog.records] == [1]

    twophase.attach(spark)  # in the main thread: as the message says

    assert signal.getsignal(signal.SIGTERM) is not before


def test_a_detached_session_can_be_attached_again(spark: SparkSession) -> None:
    twophase.attach(spark).detach()
    twophase.attach(spark)

    spark.sql("CREATE OR REPLACE TABLE lake.default.again AS SELECT 1 AS id")
    spark.sql("CREATE OR REPLACE TABLE again AS SELECT 1 AS id")

    assert (spark.table("lake.default.again").count(), spark.table("again").count()) == (1, 1)


def test_another_session_is_not_touched_and_can_be_attached_for_itself(spark: SparkSession) -> None:
    handle = twophase.attach(spark)
    other = stock_session(spark)
    extra.append(other)
    assert handle_of(other) is None
    other.sql("CREATE TABLE IF NOT EXISTS from_stock AS SELECT 1 AS id")
    assert handle.spark.table("from_stock").count() == 1

    second = twophase.attach(other)
    assert second is not handle
    other.sql("CREATE OR REPLACE TABLE shared AS SELECT 1 AS id")
    assert spark.table("shared").collect()[0].id == 1
    other.sql("CREATE OR REPLACE TABLE shared AS SELECT 2 AS id")
    assert spark.table("shared").collect()[0].id == 2

    handle.detach()
    other.sql("CREATE OR REPLACE TABLE shared AS SELECT 3 AS id")
    assert other.table("shared").collect()[0].id == 3


def test_a_session_table_is_read_under_the_catalogs_name_as_under_its_own(spark: SparkSession) -> None:
    twophase.attach(spark)
    spark.sql("CREATE TABLE parts USING parquet PARTITIONED BY (p) AS SELECT id, id % 3 AS p FROM range(9)")
    spark.sql("INSERT OVERWRITE parts PARTITION (p = 1) SELECT 100L")  # this partition's files are elsewhere now

    named = spark.table("hive.default.parts")

    assert sorted(named.collect()) == sorted(spark.table("parts").collect())
    assert [row.id for row in named.where("p = 1").collect()] == [100]
    assert named.schema == spark.table("parts").schema
    spark.sql("DROP TABLE parts")


def test_the_users_python_error_is_the_one_that_stock_spark_gives(spark: SparkSession, tmp_path: Path) -> None:
    broken = spark.range(3).select(udf(lambda number: 1 // (number - number), "bigint")("id").alias("id"))
    with pytest.raises(PythonException) as stock:
        broken.write.parquet(str(tmp_path / "stock"))
    twophase.attach(spark)

    with pytest.raises(PythonException) as ours:
        broken.write.saveAsTable("broken")

    assert "ZeroDivisionError" in str(ours.value)
    assert ours.value.getCondition() == stock.value.getCondition()
    assert not spark.catalog.tableExists("broken")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.catalog.wrong", "twophase.hvie"),
        ("spark.sql.catalog.lake.sed", "1"),
        ("spark.twophase.retention", "for ever"),
        ("spark.twophase.timeline", "no url"),
    ],
)
def test_a_wrong_option_leaves_the_session_as_it_was(spark: SparkSession, key: str, value: str) -> None:
    before = patched()
    spark.conf.set(key, value)
    try:
        with pytest.raises(twophase.errors.TwoPhaseError):
            twophase.attach(spark)
    finally:
        spark.conf.unset(key)

    assert patched() == before
    assert handle_of(spark) is None
    assert not session_state.catalogs(Jvm(spark)).contains("lake")


def test_a_name_that_is_taken_is_refused(spark: SparkSession) -> None:
    jvm = Jvm(spark)
    session_state.catalogs(jvm).put("lake", spark._jsparkSession.sessionState().catalogManager().v2SessionCatalog())
    try:
        with pytest.raises(ConfigurationError, match="Two catalogs have one name"):
            twophase.attach(spark)
    finally:
        session_state.catalogs(jvm).remove("lake")


def test_a_connect_session_is_told_what_to_do(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="create_table_as"):
        twophase.attach(object())


def test_a_private_name_that_is_missing_is_named(spark: SparkSession) -> None:
    with (
        pytest.raises(ConfigurationError, match=rf"Spark {spark.version} has no usable SparkSession\.gone"),
        private_name("SparkSession.gone", spark),
    ):
        spark._jsparkSession.gone()


def test_every_private_name_is_there(spark: SparkSession) -> None:
    private.check(spark, private.NAMES)

    assert spark.version in private.COMPARED


def test_another_spark_without_them_is_refused_with_every_name(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = session_state.catalogs(Jvm(spark)).keySet().toString()
    gone = {"org.apache.spark.sql.Gone": (), "org.apache.spark.sql.internal.SessionState": ("catalog", "lost")}
    monkeypatch.setattr(private, "COMPARED", ())
    monkeypatch.setattr(private, "NAMES", gone)

    with pytest.raises(ConfigurationError, match=r"sql\.Gone, org\.apache\.spark\.sql\.internal\.SessionState\.lost\."):
        twophase.attach(spark)

    assert session_state.catalogs(Jvm(spark)).keySet().toString() == before
    assert handle_of(spark) is None


@pytest.fixture
def database(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """Makes databases of the session catalog that are gone after the test."""
    made: list[str] = []

    def make(name: str) -> None:
        spark.sql(f"CREATE DATABASE spark_catalog.{name}")
        made.append(name)

    yield make
    if handle := handle_of(spark):
        handle.detach()
    spark.sql("USE spark_catalog.default")
    for name in made:
        spark.sql(f"DROP DATABASE spark_catalog.{name} CASCADE")


@pytest.mark.promise(
    "same-answers",
    "a database with the name of the default catalog keeps its tables and gets its rows",
)
def test_a_database_of_the_default_catalogs_name_keeps_its_tables_and_gets_its_rows(
    spark: SparkSession, database: Callable[[str], None]
) -> None:
    database("hive")
    spark.sql("CREATE TABLE hive.there USING parquet AS SELECT 1 AS a")

    handle = twophase.attach(spark)

    assert handle.session_catalog == "twophase_hive"
    spark.sql("INSERT INTO hive.there VALUES (2)")
    spark.range(1).write.saveAsTable("hive.saved")
    spark.sql("USE hive")
    spark.sql("CREATE TABLE made AS SELECT 3 AS a")
    spark.sql("INSERT INTO made VALUES (4)")
    assert sorted(r.a for r in spark.table("hive.there").collect()) == [1, 2]
    assert sorted(r.a for r in spark.table("twophase_hive.hive.made").collect()) == [3, 4]
    assert not spark.catalog.tableExists("spark_catalog.default.made")
    assert len(handle.timeline.transactions()) >= 4
    with twophase.transaction(spark) as tx:
        spark.sql("INSERT INTO hive.there SELECT a FROM made")
        assert spark.sql("SELECT * FROM hive.there").count() == 4
    assert tx.level is Level.ATOMIC


def test_savepoints_and_undo_find_the_default_catalog_whatever_it_is_called(
    spark: SparkSession, database: Callable[[str], None]
) -> None:
    database("hive")
    twophase.attach(spark)
    spark.sql("CREATE TABLE hive.kept AS SELECT 1 AS a")
    twophase.create_savepoint(spark, "before", tables=["hive.kept"])
    with twophase.transaction(spark) as tx:
        spark.sql("INSERT INTO hive.kept VALUES (2)")

    twophase.undo(spark, tx.id)
    assert [r.a for r in spark.table("hive.kept").collect()] == [1]
    spark.sql("INSERT INTO hive.kept VALUES (3)")
    twophase.restore(spark, "before")
    assert [r.a for r in spark.table("hive.kept").collect()] == [1]
    twophase.drop_savepoint(spark, "before")
    assert twophase.savepoints(spark) == []


def test_a_dead_statement_is_recovered_whatever_the_default_catalog_is_called_since(
    spark: SparkSession, database: Callable[[str], None]
) -> None:
    handle = twophase.attach(spark)
    assert handle.session_catalog == "hive"
    spark.sql("CREATE TABLE lake.default.before AS SELECT 1 AS a")
    ours = died(handle, spark.sparkContext.appName, "of_hive", "hive")
    handle.detach()
    database("hive")

    handle = twophase.attach(spark)

    assert handle.session_catalog == "twophase_hive"
    states = {record.id: record.state for record in handle.timeline.transactions()}
    assert states[ours] is TransactionState.ROLLED_BACK
    assert [r for r in handle.catalog("twophase_hive").leftovers() if r.transaction_id == ours] == []


@pytest.mark.promise("same-answers", "a catalog that would hide a database is refused")
@pytest.mark.parametrize("names", [("lake",), ("hive", "twophase_hive")])
def test_a_catalog_that_would_hide_a_database_is_refused(
    spark: SparkSession, database: Callable[[str], None], names: tuple[str, ...]
) -> None:
    for name in names:
        database(name)

    with pytest.raises(ConfigurationError, match=f"There is a database {names[0]}, and a catalog of that name"):
        twophase.attach(spark)

    assert handle_of(spark) is None


def test_a_database_that_would_be_hidden_is_refused_and_met_with_words(spark: SparkSession) -> None:
    handle = twophase.attach(spark)
    told = "hive is a twophase catalog of this session"
    for text in (
        "CREATE DATABASE hive",
        "CREATE SCHEMA IF NOT EXISTS `hive`",
        "CREATE DATABASE spark_catalog.hive",
        "EXECUTE IMMEDIATE 'CREATE DATABASE spark_catalog.hive'",
        "BEGIN CREATE DATABASE hive; END",
    ):
        with pytest.raises(CatalogError, match=told):
            spark.sql(text)
    assert not session_state.is_database(handle.jvm, "hive")
    stranger = stock_session(spark)
    stranger.sql("CREATE DATABASE hive")
    try:
        with pytest.raises(CatalogError, match=told):
            spark.sql("USE hive;")
        spark.sql("USE DATABASE hive")
        spark.sql("CREATE TABLE made AS SELECT 1 AS a")
        assert stranger.table("hive.made").count() == 1
    finally:
        spark.sql("USE spark_catalog.default")
        stranger.sql("DROP DATABASE hive CASCADE")


def died(handle: Handle, application: str, table: str, catalog: str = "lake") -> str:
    """A transaction of a driver that died while it wrote: nobody holds it any more."""
    url = f"sqlite:///{default_timeline(handle.environment.warehouse)}"
    coordinator = Coordinator(Timeline(url), handle.catalog, name=application)
    tx = coordinator.begin()
    definition = TableDefinition(pa.schema([("a", pa.int64())]))
    path = ObjectPath.of("default", table)
    participant = tx.stage(handle.catalog(catalog), path, definition, purpose=Purpose.CREATE_TABLE_AS)
    assert participant is not None
    tx.begin_participant(participant)
    transaction_id = tx.id
    del tx, participant
    coordinator.timeline.close()
    return transaction_id


def test_attaching_recovers_the_dead_of_this_application_and_no_others(spark: SparkSession) -> None:
    handle = twophase.attach(spark)
    spark.sql("CREATE TABLE lake.default.first AS SELECT 1 AS a")  # the default timeline is made with a first statement
    ours = died(handle, spark.sparkContext.appName, "ours")
    theirs = died(handle, "another job", "theirs")
    handle.detach()

    timeline = twophase.attach(spark).coordinator.timeline

    states = {record.id: record.state for record in timeline.transactions()}
    assert states[ours] is TransactionState.ROLLED_BACK
    assert states[theirs] is TransactionState.INFLIGHT


def test_an_unknown_catalog_is_named_with_the_nearest(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean lake"):
        twophase.attach(spark).catalog("lkae")


def test_importing_twophase_imports_no_pyspark() -> None:
    code = "import sys, twophase, twophase.errors; twophase.Catalog; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


def test_the_public_names_are_there() -> None:
    assert callable(twophase.transaction)
    for name in twophase.__all__:
        assert getattr(twophase, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        twophase.nothing  # noqa: B018

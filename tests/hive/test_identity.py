"""Nobody judges the tables of one metastore by looking into another: not recovery, not clean."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.hive.place import Named, Place
from twophase.catalogs.hive import identity
from twophase.protocol.states import TransactionState
from twophase.transactions.clean import clean


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.promise("identity", "`clean` over another metastore removes nothing and says whose it is")
def test_clean_over_another_metastore_removes_nothing_and_says_whose_it_is(place: Place) -> None:
    place.write("job").commit()

    (found,) = clean(place.coordinator("other"), [place.catalog("other")])

    assert not found.removed
    assert found.reason == "it belongs to the Hive metastore in /job"
    assert place.rows("job") == [(1,), (2,)]
    assert (
        "belongs to the Hive metastore in /job; this session uses the Hive metastore in /other"
        in place.catalog("other").check()[0]
    )
    assert place.catalog("job").check() == []


def test_recovery_over_another_metastore_leaves_all_as_it_is(place: Place) -> None:
    tx = place.write("job")
    tx_id = tx.id
    del tx

    (answer,) = place.coordinator("other").recover()
    assert "belongs to the Hive metastore in /job" in str(answer.note)
    assert answer.state.is_undecided
    (again,) = place.coordinator("job").recover()

    assert (again.transaction_id, again.state) == (tx_id, TransactionState.ROLLED_BACK)


def test_what_was_staged_in_a_memory_that_is_gone_may_be_removed_by_anybody(place: Place) -> None:
    code = "from twophase.catalogs.hive import identity; print(identity.of_memory())"
    gone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    tx = place.write("job")
    (record,) = place.timeline.transactions()
    document = {**record.participants[0].document, identity.STORE: gone}  # type: ignore[dict-item]

    place.catalog("other").restore(document).abort()

    assert place.catalog("job").restore(document).outcome().name == "NOT_PUBLISHED"
    tx.abort()


def test_what_was_committed_stays_even_where_no_table_is_seen_to_refer_to_it(tmp_path: Path) -> None:
    place = Place(tmp_path, retention=3600.0)
    place.write("job").commit()
    Named(tmp_path, "job").forget_table("default", "t")

    for retention in (3600.0, 0.0):
        place.retention = retention
        (found,) = place.clean()
        assert not found.removed
        assert "no mark says that it was replaced" in str(found.reason)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("jdbc:derby:;databaseName=metastore_db;create=true", "derby:/home/metastore_db"),
        ("jdbc:derby:;databaseName=/abs/db;create=true;user=me;password=secret", "derby:/abs/db"),
        ("jdbc:derby:store;create=true", "derby:/home/store"),
        ("jdbc:derby:directory:store", "derby:/home/store"),
        pytest.param("jdbc:derby:memory:x;create=true", identity.of_memory(), id="memory"),
        ("jdbc:derby://host:1527/db;user=u;password=secret", "database:jdbc:derby://host:1527/db"),
        ("jdbc:mysql://u:secret@host:3306/hms?user=u&password=secret", "database:jdbc:mysql://host:3306/hms"),
        ("jdbc:postgresql://host/hms", "database:jdbc:postgresql://host/hms"),
        ("jdbc:postgresql://host/hms?ssl&user=me@site&password=a@secret", "database:jdbc:postgresql://host/hms"),
        ("jdbc:oracle:thin:@//host:1521/hms", "database:jdbc:oracle:thin:@//host:1521/hms"),
        ("jdbc:oracle:thin:u/s//secret@//host:1521/hms", "database:jdbc:oracle:thin:@//host:1521/hms"),
        ("jdbc:mysql://u:secret/secret@host/hms", "database:jdbc:mysql://host/hms"),
        ("jdbc:mysql://u:secret@secret?secret@host/hms?x=1", "database:jdbc:mysql://host/hms"),
        ("jdbc:mysql://u:secret@one,u:secret@two/hms", "database:jdbc:mysql://two/hms"),
        (
            "jdbc:mysql://address=(host=db)(user=u)(password=s@secret)/hms",
            "database:jdbc:mysql://address=(host=db)/hms",
        ),
        ("jdbc:mysql://(user=u,host=db,password=secret)/hms", "database:jdbc:mysql://(,host=db)/hms"),
        ("jdbc:other:u/secret@host", "database:" + hashlib.sha256(b"jdbc:other:u/secret@host").hexdigest()),
    ],
)
def test_a_database_is_named_without_options_and_secrets(url: str, expected: str) -> None:
    assert identity.of_database(url, "/home") == expected
    # A database that is a server may carry a dead driver's call out.
    assert identity.is_embedded(expected) is not expected.startswith("database:")
    assert "secret" not in identity.in_words(expected)


def test_a_login_that_was_recorded_is_neither_told_nor_makes_another_metastore() -> None:
    recorded, ours = "database:jdbc:mysql://secret@host/hms", identity.of_database("jdbc:mysql://host/hms", "/home")
    assert not identity.is_other(recorded, ours)
    assert "secret" not in str(identity.refusal("It", recorded, "derby:/x"))


def test_services_and_memories_are_distinguished() -> None:
    assert identity.of_services("thrift://b:1, thrift://a:1") == identity.of_services("thrift://a:1,thrift://b:1")
    assert not identity.is_embedded(identity.of_services("thrift://b:1"))
    mine = identity.of_memory()
    assert "memory of process" in identity.in_words(mine)
    assert identity.is_other(mine, "derby:/x")  # this process lives
    assert not identity.is_other(mine, mine)
    assert not identity.is_other("", mine)


def test_the_command_line_beside_a_job_sees_its_metastore_or_touches_nothing(tmp_path: Path) -> None:
    job = """
        import twophase
        from pyspark.sql import SparkSession
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        spark = builder.enableHiveSupport().getOrCreate()
        twophase.attach(spark)
        {}
        spark.stop()
    """

    def run(text: str) -> str:
        code = textwrap.dedent(job).format(text)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, env=environment
        )
        return done.stdout.strip()

    def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("twophase")), *arguments, "--conf", "spark.twophase.retention=0s"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)

    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    run('spark.sql("CREATE TABLE sales AS SELECT id FROM range(100)")')

    memory = ("--conf", "spark.sql.catalogImplementation=in-memory")
    blind = cli("clean", *memory)
    assert "belongs to the Hive metastore in" in " ".join(blind.stdout.split())
    assert "belongs to the Hive metastore in" in " ".join(cli("doctor", *memory).stdout.split())
    seeing = cli("clean")
    assert seeing.returncode == 0, seeing.stderr
    assert run('print(spark.table("sales").count())') == "100"

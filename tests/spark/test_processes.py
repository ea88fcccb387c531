"""Whole processes that attach: how they end and fork, what their callbacks answer, which Python their tasks run."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

spark40_first_cases = True

#: A job that ends as many do, without stopping Spark.
UNSTOPPED = """
import sys
from pyspark.sql import SparkSession
import twophase
spark = (
    SparkSession.builder.master("local[1]").config("spark.sql.warehouse.dir", sys.argv[1])
    .config("spark.ui.enabled", "false").getOrCreate()
)
twophase.attach(spark)
spark.sql("CREATE TABLE t USING parquet AS SELECT 1 AS a")
"""


def test_a_job_that_does_not_stop_spark_ends_without_errors(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNSTOPPED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)

    assert "WARN" in done.stderr  # Spark's own: its log is there to be read
    for word in ("ERROR AsyncEventQueue", "py4j", "twophase"):
        assert word not in done.stderr, done.stderr


FORKING = """
import os, sys
import twophase
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = spark.config("spark.sql.warehouse.dir", sys.argv[1] + "/warehouse").getOrCreate()
twophase.attach(spark)
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0) == (child, 0)
print(spark._jsc.sc().listenerBus().activeQueues().contains("twophase"))
spark.stop()
"""


def test_a_forked_child_that_ends_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)

    assert done.stdout.strip() == "True"


#: Spark ends in the middle of a statement of a block, and then the job fails by itself.
ENDING = """
import os, signal, sys
from pyspark.sql import SparkSession
import twophase
from twophase import failpoints
from twophase.spark.write_hints import carrying_hints
spark = (
    SparkSession.builder.master("local[1]").config("spark.sql.warehouse.dir", sys.argv[1])
    .config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()
)
handle = twophase.attach(spark)
context = spark.sparkContext
jvm = context._gateway.proc

def end(_):
    if sys.argv[2] == "stop":
        spark.stop()
    else:
        jvm.kill()
        jvm.wait()
    raise ValueError("the user's own")

failpoints.arm("core.write", end)
context.setLocalProperty("twophase.hints", "{}")
try:
    with twophase.transaction(spark), carrying_hints(context, {}):
        twophase.create_table_as(spark.range(3), "hive", "default.t")
except ValueError as error:
    print(error)
handle.detach()
print(handle.jvm.is_alive())
"""


@pytest.mark.promise("failed-statement", "the job's own error is raised, even where Spark has ended meanwhile")
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_the_users_own_error_comes_out_though_spark_has_ended_meanwhile(tmp_path: Path, how: str) -> None:
    """Each of these puts something back afterwards: the block, the statement's tag, what a write intends."""
    command = [sys.executable, "-c", ENDING, str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.stdout == "the user's own\nFalse\n", done.stderr


#: What a local user gets who speaks Py4J's protocol, and what the user's own callbacks do beside ours.
CALLING = """
import socket, sys
from pathlib import Path
from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession
import twophase
spark = (
    SparkSession.builder.master("local[1]").config("spark.sql.warehouse.dir", sys.argv[1])
    .config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()
)
spark.range(3).write.parquet(sys.argv[1] + "/rows")
gateway = spark.sparkContext._gateway

def stream(name):
    counts = []
    rows = spark.readStream.schema("id BIGINT").parquet(sys.argv[1] + "/rows").writeStream
    query = rows.foreachBatch(lambda df, _: counts.append(df.count())).trigger(availableNow=True)
    query.option("checkpointLocation", sys.argv[1] + "/" + name).start().awaitTermination()
    print(name, counts)

def call(name, token=None, *arguments):
    with socket.create_connection(("127.0.0.1", gateway._callback_server.get_listening_port()), 10) as raw:
        stream = raw.makefile("rwb")
        try:
            if token is not None:
                stream.write(f"A\\n{token}\\ne\\n".encode())
                stream.flush()
                stream.readline()
            lines = ["c", target, name, *arguments, "e", ""]
            stream.write("\\n".join(lines).encode())
            stream.flush()
            return stream.readline().decode().strip()[:40]
        except OSError:
            return ""

before = gateway.python_parameters.propagate_java_exceptions
if sys.argv[2] == "before":
    stream("before")
handle = twophase.attach(spark)
found = [key for key, value in gateway.gateway_property.pool.dict.items() if hasattr(value, "stageCreate")]
(target,) = found
token = gateway.python_parameters.auth_token
print([call("name"), call("name", "a guess"), call("name", token)])
print([call(name, token)[:2] for name in ("_session", "__class__", "__dict__")])
print(call("__setattr__", token, "s_catalog", "sbroken")[:2])
spark.sql("CREATE TABLE t AS SELECT 1 AS id")
stream("after")
handle.detach()
print(gateway.python_parameters.propagate_java_exceptions == before)
stream("detached")
java = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
java.resetCallbackClient(java.getCallbackClient().getAddress(), gateway._callback_server.get_listening_port())
twophase.attach(spark)
stream("with a new client")
"""


@pytest.mark.promise("secrets", "the callback port answers this JVM alone, and only what Java may call")
@pytest.mark.parametrize("first", ["before", "attach"])
def test_the_port_for_callbacks_answers_the_jvm_alone_and_only_what_java_may_call(tmp_path: Path, first: str) -> None:
    command = [sys.executable, "-c", CALLING, str(tmp_path), first]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.stdout.splitlines() == [
        *(["before [3]"] if first == "before" else []),
        str(["", "", "!yshive"]),
        str(["!x"] * 3),
        "!x",
        "after [3]",
        "True",
        "detached [3]",
        "with a new client [3]",
    ], done.stderr


#: A job of a newcomer, whose environment is not activated: the first ``python3`` of the PATH lacks everything.
NEW = """
import sys
from pyspark.sql import SparkSession
import twophase
spark = (
    SparkSession.builder.master("local[1]").config("spark.sql.warehouse.dir", sys.argv[1])
    .config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .config("spark.sql.catalog.lite", "twophase.jdbc")
    .config("spark.sql.catalog.lite.url", f"sqlite:///{sys.argv[1]}/shop.db").getOrCreate()
)
handle = twophase.attach(spark)
try:
    spark.sql("CREATE TABLE lite.main.t AS SELECT 1 AS id")
    print(spark.table("lite.main.t").count(), spark.sparkContext.pythonExec)
except twophase.errors.ConfigurationError as error:
    print("No row was written" in str(error), "PYSPARK_PYTHON" in str(error))
    print(handle.catalog("lite").list_tables("main"))
"""


@pytest.mark.promise("session", "tasks run in the driver's Python where none is named", detail=True)
@pytest.mark.parametrize("is_named", [False, True])
def test_tasks_run_in_the_drivers_python_where_none_is_named(tmp_path: Path, is_named: bool) -> None:
    venv.create(tmp_path / "bare")
    python = tmp_path / "bare" / "bin" / "python3"
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYSPARK_PYTHON", None)
    if is_named:
        environment["PYSPARK_PYTHON"] = str(python)
    command = [sys.executable, "-c", NEW, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)

    # What the user's own functions run in stays what Spark chose.
    assert done.stdout.strip() == ("True True\n[]" if is_named else "1 python3"), done.stderr

"""The demo and the benchmark run, and show what they claim."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.project import source
from tests.servers import Server

#: The demo has enough rows for Spark to compile its queries, which the other tests tell it not to do.
COMPILING = {
    "SPARK_SUBMIT_OPTS": " ".join(o for o in os.environ.get("SPARK_SUBMIT_OPTS", "").split() if "codegen" not in o)
}


@pytest.mark.timeout(400)
def test_the_demo_shows_every_scene_whole_with_twophase_and_the_damage_without(
    tmp_path: Path, postgresql: Server
) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "demo", "--keep", str(tmp_path / "demo")],
        cwd=source.ROOT,
        env={**os.environ, **COMPILING, "TWOPHASE_DEMO_URL": postgresql.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "gone, with its" in run.stdout
    assert "into postgresql on" in " ".join(run.stdout.split())
    assert "shop.main.routes: gone" in run.stdout and "shop.main.routes: as before" in run.stdout
    address = f"host={postgresql.host} port={postgresql.port} user=twophase dbname=twophase"
    with psycopg.connect(address, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM public.twophase_demo").fetchone() == (224,)
        connection.execute("DROP TABLE public.twophase_demo")
    assert "fleet: gone" in run.stdout and "fleet: 3,322 rows" in run.stdout and "miles: 4,044 rows" in run.stdout
    assert "aircraft: 3,322 rows" in run.stdout and "jumbos: 197 rows" in run.stdout
    assert "LOCATION_ALREADY_EXISTS" in run.stdout
    assert "max(dep_delay) = 1301" in run.stdout


def test_a_driver_of_the_demo_ends_when_the_demo_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo.worker", "twophase", str(tmp_path)]
    with subprocess.Popen(
        command,
        cwd=source.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as driver:
        assert driver.stdin is not None
        driver.stdin.close()  # as the kernel does it for a killed demo
        assert driver.wait(timeout=60) == -signal.SIGKILL


def measured(directory: Path, benchmark: str, *options: str) -> Any:
    """The numbers that a benchmark writes."""
    out = directory / "numbers.json"
    run = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", *options, "--json", str(out)],
        cwd=source.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(out.read_text())


@pytest.mark.timeout(400)
def test_the_benchmark_of_hive_ctas_measures_both_sides_and_the_publish_step(tmp_path: Path) -> None:
    document = measured(
        tmp_path, "hive_ctas", "--rows", "1,1000", "--partitions", "0,3", "--pairs", "1", "--files", "1,20"
    )
    assert [(row["rows"], row["partitions"]) for row in document["ctas"]] == [(1, 0), (1, 3), (1000, 0), (1000, 3)]
    assert all(row["ratio"] > 0 for row in document["ctas"])
    assert [row["files"] for row in document["publish"]] == [1, 20]


#: How often one statement may ask the metastore: a call takes milliseconds, and was made three times as often before.
MOST_CALLS = {"insert": 6, "overwrite": 8, "partition": 15, "ctas": 6}
#: An INSERT into a session table asks Python for its decision, and gives it the rows.
MOST_CROSSINGS = {"to the JVM": 48, "to Python": 2}
#: What stock sessions tell an attached one beside them: a new table of theirs is in the order of commits.
CHANGES_TOLD = {"ctas": 2}


@pytest.mark.timeout(400)
def test_the_benchmark_of_routing_measures_and_counts_and_no_write_asks_the_metastore_more_often(
    tmp_path: Path,
) -> None:
    select, *writes = measured(tmp_path, "routing", "--rounds", "1", "--only", ",".join(("select", *MOST_CALLS)))
    assert all(kind["row"]["ratio"] > 0 for kind in (select, *writes))
    assert select["counts"]["ours"]["commits"] == select["counts"]["ours"]["to Python"] == 0
    for kind, counts in zip(MOST_CALLS, (kind["counts"] for kind in writes), strict=True):
        assert counts["ours"]["metastore"] <= MOST_CALLS[kind], kind
        told = CHANGES_TOLD.get(kind, 0)
        assert counts["ours"]["commits"] > counts["stock"]["commits"] == told
        assert counts["ours"]["to Python"] > counts["stock"]["to Python"] == told
        assert min(side["metastore"] for side in counts.values()) > 0
    inserted = writes[0]["counts"]["ours"]
    assert all(inserted[way] <= most for way, most in MOST_CROSSINGS.items()), inserted


@pytest.mark.timeout(400)
def test_the_benchmark_of_routing_measures_the_wait_for_the_disk(tmp_path: Path) -> None:
    for kind in measured(tmp_path, "routing", "--fsync", "--rounds", "1", "--only", "insert,files"):
        with_wait, without = (kind["counts"][side] for side in ("ours", "stock"))
        assert with_wait["fsync, ms"] > without["fsync, ms"] == 0
        assert with_wait["to Python"] == without["to Python"]


@pytest.mark.timeout(400)
def test_the_benchmark_of_scale_measures_each_size(tmp_path: Path) -> None:
    rows = measured(tmp_path, "scale", "--small", "--rounds", "1", "--only", "timeline,statements")
    assert {row["beside"] for row in rows if row["ratio"] is None} == {"0 transactions", "20,000 transactions"}
    assert len([row for row in rows if row["ratio"] is not None]) == 4


@pytest.mark.timeout(400)
def test_the_benchmark_of_scale_measures_each_kind(tmp_path: Path) -> None:
    kinds = ("appends", "tables", "files", "partitions", "clean", "snapshots", "postgresql")
    rows = measured(tmp_path, "scale", "--smallest", "--rounds", "1", "--only", ",".join(kinds))
    with_stock = Counter(row["beside"].split(";")[0] for row in rows if row["ratio"] is not None)
    alone = Counter(row["beside"] for row in rows if row["ratio"] is None)
    assert with_stock == {"append 1": 1, "10 tables": 5, "10 files": 1, "10 partitions": 3}
    assert alone == {"10 replaced versions": 1, "Iceberg, 10 snapshots": 3, "PostgreSQL, 10 tables": 2}

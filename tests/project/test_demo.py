"""The demo and the benchmark run, and show what they claim."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.timeout(400)
def test_the_benchmark_of_hive_ctas_measures_both_sides_and_the_publish_step(tmp_path: Path) -> None:
    out = tmp_path / "numbers.json"
    options = ["--rows", "1,1000", "--partitions", "0,3", "--pairs", "1", "--files", "1,20", "--json", str(out)]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.hive_ctas", *options],
        cwd=source.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    document = json.loads(out.read_text())
    assert [(row["rows"], row["partitions"]) for row in document["ctas"]] == [(1, 0), (1, 3), (1000, 0), (1000, 3)]
    assert all(row["ratio"] > 0 for row in document["ctas"])
    assert [row["files"] for row in document["publish"]] == [1, 20]


#: How often one statement may ask the metastore: a call takes milliseconds, and was made three times as often before.
MOST_CALLS = {"insert": 6, "overwrite": 8, "partition": 15, "ctas": 6}
#: An INSERT into a session table asks Python for its decision, and gives it the rows.
MOST_CROSSINGS = {"to the JVM": 48, "to Python": 2}


@pytest.mark.timeout(400)
def test_the_benchmark_of_routing_measures_and_counts_and_no_write_asks_the_metastore_more_often(
    tmp_path: Path,
) -> None:
    out = tmp_path / "numbers.json"
    options = ["--rounds", "1", "--only", ",".join(("select", *MOST_CALLS)), "--json", str(out)]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.routing", *options],
        cwd=source.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    select, *writes = json.loads(out.read_text())
    assert all(kind["row"]["ratio"] > 0 for kind in (select, *writes))
    assert select["counts"]["ours"]["commits"] == select["counts"]["ours"]["to Python"] == 0
    for kind, counts in zip(MOST_CALLS, (kind["counts"] for kind in writes), strict=True):
        assert counts["ours"]["metastore"] <= MOST_CALLS[kind], kind
        assert counts["ours"]["commits"] > counts["stock"]["commits"] == 0
        assert counts["ours"]["to Python"] > counts["stock"]["to Python"] == 0
        assert min(side["metastore"] for side in counts.values()) > 0
    inserted = writes[0]["counts"]["ours"]
    assert all(inserted[way] <= most for way, most in MOST_CROSSINGS.items()), inserted


@pytest.mark.timeout(400)
def test_the_benchmark_of_scale_measures_each_size(tmp_path: Path) -> None:
    out = tmp_path / "numbers.json"
    options = ["--small", "--rounds", "1", "--only", "timeline,statements", "--json", str(out)]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale", *options],
        cwd=source.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    rows = json.loads(out.read_text())
    assert {row["beside"] for row in rows if row["ratio"] is None} == {"0 transactions", "20,000 transactions"}
    assert len([row for row in rows if row["ratio"] is not None]) == 4

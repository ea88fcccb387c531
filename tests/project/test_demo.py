"""The demo and the benchmark run, and show what they claim."""

from __future__ import annotations

import json
import os
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


@pytest.mark.slow
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
    assert "LOCATION_ALREADY_EXISTS" in run.stdout
    assert "max(dep_delay) = 1301" in run.stdout


@pytest.mark.slow
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


@pytest.mark.slow
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

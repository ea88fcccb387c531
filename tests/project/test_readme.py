"""What the README and the pages of ``docs/`` say is run, and what they name exists."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import twophase.errors
from tests.project import readme, source
from twophase import catalog, hooks, testing
from twophase.catalog import Catalog
from twophase.catalogs.hive import HiveCatalog
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.spark import options
from twophase.timeline import listings

#: The session that the blocks have.
_SESSION = """
import warnings
warnings.simplefilter("error")
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", {warehouse!r}).config("spark.sql.shuffle.partitions", "2")
    .config("spark.driver.memory", "1g").getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
"""
_CHECKS = """
assert spark.table("daily").count() == 1001
assert spark.sql("SELECT sum(flights) FROM weekly").first()[0] == 1001
assert spark.table("numbers").count() == 5
assert spark.table("three").count() == 3
assert tx.state.name == "COMPLETED", tx.state
print("all blocks ran")
spark.stop()
"""


@pytest.mark.spark40
def test_the_python_blocks_run_in_order(tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text(
        "\n".join([_SESSION.format(warehouse=str(tmp_path / "warehouse")), *readme.blocks("python"), _CHECKS])
    )
    run = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    assert "all blocks ran" in run.stdout


@pytest.mark.timeout(400)
def test_the_commands_run(tmp_path: Path) -> None:
    def run(command: str) -> str:
        program = str(Path(sys.executable).with_name("twophase"))
        words = [program, *shlex.split(command)[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, command + done.stdout + done.stderr[-3000:]
        return done.stdout

    run('twophase sql -e "CREATE TABLE t AS SELECT 1 AS a"')
    (record,) = json.loads(run("twophase timeline --output json"))["transactions"]
    commands = list(dict.fromkeys(line for line in readme.commands() if line.startswith("twophase ")))
    shown = {"timeline", "show", "locks", "recover", "clean", "doctor", "savepoints", "sql"}
    assert {line.split()[1] for line in commands} == shown
    for line in commands:
        run(line.replace("ID", record["id"]))


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (source.ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", readme.text(), re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named <= targets


def test_every_error_that_is_named_exists() -> None:
    named = {name for row in readme.rows(readme.page("errors")) for name in re.findall(r"`(\w+)`", row[0])}
    assert named
    assert all(hasattr(twophase.errors, name) for name in named)
    public = {name for name, value in vars(twophase.errors).items() if isinstance(value, type) and name[0] != "_"}
    assert public - {"Any", "Iterable", "TwoPhaseError", "CatalogError"} <= named


def test_every_option_is_described_and_every_described_option_exists() -> None:
    first = [row[0] for row in readme.rows(readme.page("configuration"))]
    named = re.findall(r"`spark\.twophase\.([a-z._]*[a-z])`", " ".join(first))
    assert named == list(options.KNOWN)
    for name in re.findall(r"spark\.twophase\.([a-z._]*[a-z])", readme.text()):
        assert name in options.KNOWN, name


def test_every_column_of_a_show_statement_is_described() -> None:
    """In its order."""
    described = {row[0]: re.findall(r"`(\w+)`", row[1]) for row in readme.rows(readme.page("sql")) if len(row) == 2}
    for what, name in (("TRANSACTIONS", "`SHOW TRANSACTIONS`"), ("LOCKS", "`SHOW LOCKS`")):
        columns = [column.split()[0] for column in getattr(listings, what).split(", ")]
        assert described[name] == columns
    savepoints = [column.split()[0] for column in listings.SAVEPOINTS.split(", ")]
    assert described["`SHOW SAVEPOINTS`, `CREATE SAVEPOINT`"] == savepoints


@pytest.mark.parametrize("catalog", [HiveCatalog, JdbcCatalog, LakehouseCatalog])
def test_every_option_of_a_catalog_is_described_and_every_described_option_exists(catalog: type[Catalog]) -> None:
    page = readme.page(catalog.__name__.removesuffix("Catalog").lower())
    (table,) = re.findall(r"^\| option \|.*\n(?:\|.*\n)+", page, re.MULTILINE)
    described = {name for row in readme.rows(table) for name in re.findall(r"`([\w.-]+)`", row[0])}
    assert described == set(catalog.known_options)


def test_every_page_is_on_the_site_and_every_link_leads_somewhere() -> None:
    """``make docs`` checks the links between pages, with their anchors; those of the README are checked here."""
    menu = re.findall(r": ([\w-]+\.md)$", (source.ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert {page.name for page in readme.pages()[1:]} == set(menu)
    for page in readme.pages():
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).is_file(), f"{page.name}: {link}"


def test_the_pages_of_the_stores_have_the_same_headings() -> None:
    """Who knows one of them finds everything on the others."""
    hive, *others = (re.findall(r"^## .*", readme.page(name), re.MULTILINE) for name in ("hive", "jdbc", "lakehouse"))
    assert len(hive) >= 6
    assert others == [hive, hive]


def test_every_folder_of_the_layout_exists() -> None:
    found = re.findall(r"^([\w./]+(?:, [\w./]+)*)  +", readme.section("## Where things are"), re.MULTILINE)
    assert len(found) > 10
    for name in found:
        assert all((source.ROOT / part).exists() for part in name.split(", ")), name


def test_every_file_that_a_page_names_exists() -> None:
    """Of the index of promises, the tests are named by the markers themselves."""
    roots = ("twophase", "catalogs", "hooks", "tests", "examples", "demo", "benchmarks", "scripts", "docs")
    found = re.findall(rf"`((?:{'|'.join(roots)})/[\w./]+)`", readme.page("development") + readme.page("extending"))
    assert len(found) > 20
    for name in found:
        assert (source.ROOT / name).exists(), name


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    documented = set(re.findall(r"^::: (\S+)$", readme.page("api"), re.MULTILINE))
    public = {f"{module.__name__}.{name}" for module in (twophase, hooks, testing) for name in module.__all__}
    public |= {f"twophase.catalog.{name}" for name in catalog.__all__ if name not in twophase.__all__}
    assert documented == public | {"twophase.errors", "twophase.schema"}

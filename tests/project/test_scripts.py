"""The set-up scripts, on machines that lack something: they name it, together with the command to run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.project import source

pytestmark = pytest.mark.quick


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH of its own, where the user is not root; programs are added to it."""
    for tool in ("bash", "env", "sed", "head", "dirname", "ls"):
        found = shutil.which(tool)
        assert found
        (tmp_path / tool).symlink_to(found)
    program(tmp_path, "id", "echo 1000")
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(f"#!/usr/bin/env bash\n{text}\n")
    file.chmod(0o755)


def run(script: str, path: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [str(path / "bash"), str(source.ROOT / "scripts" / script), *arguments]
    return subprocess.run(command, env={"PATH": str(path), **more}, capture_output=True, text=True, check=False)


def test_a_missing_java_is_named_with_the_command_that_installs_it(machine: Path) -> None:
    result = run("check-java", machine)
    assert result.returncode == 1
    assert "sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless" in result.stderr


@pytest.mark.parametrize(
    ("version", "good"), [("1.8.0_392", False), ("11.0.21", False), ("17.0.15", True), ("21", True)]
)
def test_java_17_or_newer_is_enough_and_older_is_not(machine: Path, version: str, good: bool) -> None:
    program(machine, "java", f"echo 'openjdk version \"{version}\" 2026-01-01' >&2")
    assert (run("check-java", machine).returncode == 0) is good


def test_a_java_home_that_leads_nowhere_is_named(machine: Path) -> None:
    program(machine, "java", "echo 'openjdk version \"17.0.15\"' >&2")
    result = run("check-java", machine, JAVA_HOME="/nowhere")
    assert result.returncode == 1
    assert "unset JAVA_HOME" in result.stderr


def test_a_missing_or_old_python_is_named(machine: Path) -> None:
    program(machine, "python3", "exit 1")
    result = run("venv", machine, str(machine / "environment"))
    assert result.returncode == 1
    assert "Python 3.11 or newer is missing" in result.stderr


def test_missing_database_servers_are_named_with_the_command_that_installs_them(machine: Path) -> None:
    program(machine, "initdb", "exit 0")
    result = run("check-servers", machine)
    assert result.returncode == 1
    assert "sudo apt-get install -y mariadb-server" in result.stderr


MARIADB, MYSQL = (f"echo 'mysqld  Ver {version} for Linux on x86_64'" for version in ("10.11.6-MariaDB", "8.4.3"))


def test_a_mysql_of_this_machine_is_taken_and_no_mariadb_for_it(machine: Path) -> None:
    program(machine, "mysqld", MYSQL)
    assert run("mysqld", machine, ".nothing").stdout == f"{machine / 'mysqld'}\n"
    program(machine, "other", MARIADB)
    refused = run("mysqld", machine, ".nothing", MYSQLD=str(machine / "other"))
    assert refused.returncode == 1
    assert f"{machine / 'other'} is no MySQL server" in refused.stderr


def test_where_no_mysql_can_be_had_it_says_how_to_name_one(machine: Path) -> None:
    program(machine, "mysqld", MARIADB)
    result = run("mysqld", machine, ".nothing")
    assert result.returncode == 1
    assert "make test-mysql MYSQLD=/path/to/mysqld" in result.stderr


def test_root_on_debian_gets_what_is_missing(machine: Path) -> None:
    program(machine, "id", "echo 0")
    program(machine, "apt-cache", "exit 0")
    program(machine, "apt-get", 'echo "$@" >>"${0%/*}/asked"')
    for script, package, *arguments in (
        ("venv", "python3-venv", str(machine / "environment")),
        ("check-java", "openjdk-17-jre-headless"),
        ("check-servers", "mariadb-server"),
    ):
        run(script, machine, *arguments)
        assert f"install -y -qq --no-install-recommends {package}" in (machine / "asked").read_text()

"""What the commands of the Makefile run of the tests."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys

from scripts import generate_docs
from tests.crash import loop_device
from tests.project import source


def collected(expression: str) -> set[str]:
    """The tests of which a case is run by ``pytest -m EXPRESSION``."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", expression]
    run = subprocess.run(command, cwd=source.ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:]
    return {line.partition("[")[0] for line in run.stdout.splitlines() if "::" in line}


def test_make_test_proves_each_promise() -> None:
    tests = {re.sub("^tests/|::.*(?=::)", "", test) for test in collected("promise and quick")}
    promises = [promise for promise in generate_docs.promises() if not promise.is_detail]
    if not loop_device.can_mount():  # As root only; other tests of the topic look for what was synced.
        promises = [promise for promise in promises if not promise.test.startswith("crash/test_cuts_inside.py")]
    proven = {(promise.topic, promise.sentence) for promise in promises if promise.test in tests}
    assert {(promise.topic, promise.sentence) for promise in promises} == proven


def test_each_marker_that_chooses_tests_is_used_by_a_command_and_explained_in_one_line() -> None:
    config = configparser.ConfigParser()
    config.read(source.ROOT / "setup.cfg")
    markers = {
        line.partition(":")[0].partition("(")[0] for line in config["tool:pytest"]["markers"].split("\n") if line
    }
    commands = (source.ROOT / "Makefile").read_text()
    chosen = set(re.findall(r"-m \"?(?:not )?(\w+)", commands.replace("python -m", "python")))
    explained = (source.ROOT / "tests" / "README.md").read_text()
    assert chosen <= markers
    assert [name for name in sorted(chosen) if f"| `{name}` |" not in explained] == []

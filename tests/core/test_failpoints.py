"""A failpoint that is mistyped, declared twice or never declared is an error, not a step that is never tried."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.project import source
from twophase import failpoints
from twophase.catalogs.hive import steps
from twophase.failpoints import Failpoint, FailpointError, step

POINT = Failpoint("test.point")


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.mark.parametrize("typo", ["test.point", "test.pont"])
def test_a_step_without_a_declared_failpoint_is_refused_though_nothing_is_armed(typo: Any) -> None:
    with pytest.raises(TypeError, match=typo), step(typo):
        pass


def test_an_undeclared_name_is_neither_armed_nor_found() -> None:
    for use in (failpoints.named, lambda name: failpoints.arm(name, "error"), failpoints.arm_from_environment):
        with pytest.raises(ValueError, match=r"No failpoint 'test\.pont'.*test\.point"):
            use("test.pont")


def test_a_name_is_declared_once() -> None:
    with pytest.raises(ValueError, match=r"'test\.point' is declared already"):
        Failpoint("test.point")


def test_an_armed_step_fails_as_it_is_told_and_counts() -> None:
    failpoints.arm("test.point", "error", nth=2)
    with step(POINT):
        pass
    with pytest.raises(FailpointError, match=r"test\.point"), step(POINT):
        pass
    assert failpoints.reached() == {"test.point": 2}


def test_a_child_is_armed_by_its_environment_before_it_has_imported_the_step() -> None:
    code = "from twophase.failpoints import Failpoint, step\nwith step(Failpoint('late')): pass"
    environment = {**os.environ, "TWOPHASE_FAILPOINTS": "late=exit"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == failpoints.EXIT_CODE


def test_every_failpoint_is_declared_where_it_fires() -> None:
    """In the module that declares it there is a step that takes it: it did not stay behind when that step moved."""
    texts = {module: file.read_text(encoding="utf-8") for module, file in source.modules().items()}
    wrong = [
        f"{module}: {name}"
        for module, text in texts.items()
        for name in re.findall(r"^(\w+) = Failpoint\(", text, re.MULTILINE)
        if len(re.findall(rf"\b{name}\b", text)) == 1
    ]
    assert not wrong, "\n".join(wrong)


def test_the_table_of_hives_steps_has_each_that_its_code_takes_and_no_other() -> None:
    texts = [file.read_text(encoding="utf-8") for name, file in source.modules().items() if ".hive." in name]
    taken = {name for text in texts for name in re.findall(r"\.step\(\"(\w+)\"\)", text)}
    assert taken == {name for points in steps.POINTS.values() for name in points}

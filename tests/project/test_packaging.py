"""The wheel: it holds the packages under their import names, claims no others, and works where it is installed."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.project import source


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of what git knows, so that nothing lying about gets in."""
    copy = tmp_path_factory.mktemp("source")
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=source.ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    for name in filter(None, files):
        if (source.ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((source.ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(copy)]
    result = subprocess.run(build, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return next(out.glob("*.whl"))


def test_the_wheel_holds_every_module_under_its_import_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {
        module.replace(".", "/") + ("/__init__.py" if file.name == "__init__.py" else ".py")
        for module, file in source.modules().items()
    }
    assert expected <= names
    assert "twophase/py.typed" in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"twophase"}


def test_the_installed_wheel_imports_and_finds_its_catalogs(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    script = (
        f"import sys; sys.path.insert(0, {str(target)!r})\n"
        # The editable install of this very project must not answer instead.
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f).lower()]\n"
        "import importlib, twophase\n"
        f"assert twophase.__file__.startswith({str(target)!r}), twophase.__file__\n"
        f"for name in {sorted(source.modules())!r}: importlib.import_module(name)\n"
        "from importlib.util import find_spec\n"
        "assert find_spec('catalogs') is None and find_spec('hooks') is None\n"
    )
    # -P and the other directory: the folders of the source tree must not be importable either.
    run = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]


def test_every_entry_point_can_be_loaded() -> None:
    ours = list(distribution("twophase").entry_points)
    assert {point.group for point in ours} == {"console_scripts", "twophase.catalogs"}
    for point in ours:
        assert callable(point.load())


def test_the_constraints_pin_exactly_one_version_of_each_requirement() -> None:
    lines = (source.ROOT / "constraints.txt").read_text().split()
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.]+", line) for line in lines)
    pinned = {_normal(line.split("==")[0]) for line in lines}
    assert len(pinned) == len(lines)
    required = re.findall(r"^ {4}([a-z0-9-]+)(?:\[\w+\])? *(?:[<>=]|$)", _requirement_lines(), re.MULTILINE)
    assert {_normal(name) for name in required} <= pinned


def _requirement_lines() -> str:
    text = (source.ROOT / "setup.cfg").read_text()
    base = text.split("install_requires =", 1)[1].split("[options.package_data]", 1)[0]
    extras = text.split("[options.extras_require]", 1)[1].split("[tool:pytest]", 1)[0]
    return base + extras


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

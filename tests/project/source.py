"""The project's source files under the names by which they are imported, and what each imports."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Folder -> import name, as ``package_dir`` in setup.cfg says.
PACKAGES = {"twophase": "twophase", "catalogs": "twophase.catalogs", "hooks": "twophase.hooks"}


def modules() -> dict[str, Path]:
    """Import name -> file, of every module that is shipped."""
    found = {}
    for folder, package in PACKAGES.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = file
    return found


def python_files() -> list[Path]:
    """Every Python file of the project."""
    folders = ("twophase", "catalogs", "hooks", "tests", "demo", "benchmarks", "examples")
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


@functools.cache
def imports(file: Path, module: str = "", *, types_too: bool = False) -> tuple[tuple[int, str], ...]:
    """Line and absolute name of each import, those inside functions included.

    Imports below ``if TYPE_CHECKING`` are left out unless ``types_too``: they bind nothing when the program runs.
    """
    return tuple(_imports(ast.parse(file.read_text(encoding="utf-8")), file, module, types_too))


def _imports(tree: ast.AST, file: Path, module: str, types_too: bool) -> Iterator[tuple[int, str]]:
    only_types = set() if types_too else {id(node) for node in _type_checking_nodes(tree)}
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if id(node) in only_types:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            # `from package import name`: the name may be a module of its own, so it is the one to judge.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    base = parents[: len(parents) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _type_checking_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.body:
                yield from ast.walk(statement)

"""The layers of the project: imports point downwards only, and only the Spark layer knows Spark."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest

from tests.project import source

pytestmark = pytest.mark.quick

#: Prefix of an import name -> its layer; a module may import its own layer and lower ones.
LAYERS = {
    "twophase.cli": 20,
    "twophase.testing": 20,
    "twophase.ui": 19,
    # Spark, from what a user calls down to Spark's questions to a catalog.
    "twophase.spark.attach": 18,
    "twophase.spark.create_table_as": 18,
    "twophase.spark.environment": 18,
    "twophase.spark.handle": 18,
    "twophase.spark.named_savepoints": 18,
    "twophase.spark.run": 18,
    "twophase.spark.schema_history": 18,
    "twophase.spark.shared": 18,
    "twophase.spark.routing": 16,
    "twophase.spark.connector": 15,
    "twophase.spark.metastore": 14,
    "twophase.spark": 13,
    "twophase.spark.jvm": 12,
    "twophase.monitoring": 11,
    "twophase.hooks": 10,
    "twophase.catalogs": 9,
    "twophase.transactions": 7,
    "twophase.timeline": 6,
    "twophase.protocol": 5,
    "twophase.catalog": 4,
    "twophase.config": 3,
    "twophase.model": 2,
    "twophase.schema": 1,
    # Leaves: they import nothing of ours, and every layer speaks of errors and has steps that may fail.
    "twophase.errors": 0,
    "twophase.failpoints": 0,
    "twophase.lru": 0,
    "twophase.redaction": 0,
    # The curated front of the package: it hands out names of all layers.
    "twophase": 20,
}
#: The catalogs, each in a folder of its own.
STORES = ("hive", "jdbc", "lakehouse")
#: Where the layers that may know Spark begin.
SPARK_LAYER = 12
#: The curated front of the package: it hands out names of all layers.
FACADE = "twophase"
#: What only the Spark layer (and those above it) may touch.
SPARK = ("pyspark", "py4j")
#: PySpark's type classes are plain values without a session or a JVM; the schemas' converter makes them.
TYPES_ONLY = ("twophase.schema.convert_spark", "pyspark.sql.types")


def layer(name: str) -> int | None:
    """The layer of a module of ours, by its longest prefix; None for anybody else's."""
    fitting = [prefix for prefix in LAYERS if name == prefix or name.startswith(prefix + ".")]
    return LAYERS[max(fitting, key=len)] if fitting else None


def upward_imports(module: str, file: Path) -> list[str]:
    own = layer(module)
    assert own is not None
    return [
        f"{file.relative_to(source.ROOT)}:{line} imports {name}"
        for line, name in source.imports(file, module, types_too=True)
        if (layer(name) or 0) > own
    ]


def test_imports_point_downwards_only() -> None:
    wrong = [
        row for module, file in source.modules().items() if module != FACADE for row in upward_imports(module, file)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_catalog_is_the_top_of_its_folder_and_knows_no_other_catalog() -> None:
    wrong = []
    for module, file in source.modules().items():
        own = module.split(".")[2] if module.startswith("twophase.catalogs.") else None
        for line, name in source.imports(file, module, types_too=True):
            of, _, part = name.removeprefix("twophase.catalogs.").partition(".") if own in STORES else ("", "", "")
            is_others = of in STORES and of != own
            is_above = of == own and part.startswith("catalog.") and file.name != "__init__.py"
            if is_others or is_above:
                wrong.append(f"{file.relative_to(source.ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def circles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """The sets of modules of which each imports, directly or by others, each (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    complete: list[frozenset[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in path:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            start = path.index(module)
            complete.append(frozenset(path[start:]))
            del path[start:]

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return [modules for modules in complete if len(modules) > 1]


def import_graph() -> dict[str, set[str]]:
    """What each module imports of ours, for its types too, and the packages of that, which are run before it."""
    modules = source.modules()
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        names = [name for _, name in source.imports(file, module, types_too=True)]
        imported = {name if name in modules else name.rpartition(".")[0] for name in names} & modules.keys()
        run_before = {package for name in imported for package in packages(name) if not is_inside(module, package)}
        graph[module] = imported | (run_before & modules.keys())
    return graph


def packages(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def is_inside(module: str, package: str) -> bool:
    """Whether the package runs already when the module is imported."""
    return module == package or module.startswith(package + ".")


def test_no_modules_import_each_other_in_a_circle_not_even_for_their_types() -> None:
    found = circles(import_graph())
    assert not found, "\n".join(" <-> ".join(sorted(modules)) for modules in found)


def test_the_check_itself_finds_a_circle() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert circles(graph) == [frozenset("bc")]


def test_functions_and_files_stay_short() -> None:
    files, functions = [], []
    for file in source.modules().values():
        text = file.read_text(encoding="utf-8")
        files.append(text.count("\n"))
        nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
        functions += [(node.end_lineno or 0) - node.lineno + 1 for node in nodes]
    file_length, function_length = (sorted(lengths)[len(lengths) * 99 // 100] for lengths in (files, functions))
    assert (file_length <= 608, function_length <= 32) == (True, True), (file_length, function_length)


def test_only_the_spark_layer_imports_spark() -> None:
    wrong = [
        f"{file.relative_to(source.ROOT)}:{line} imports {name}"
        for module, file in source.modules().items()
        if (layer(module) or 0) < SPARK_LAYER
        for line, name in source.imports(file, module)
        if name.split(".")[0] in SPARK and (module, name.rpartition(".types")[0] + ".types") != TYPES_ONLY
    ]
    assert not wrong, "\n".join(wrong)


def test_nobody_imports_catalogs_or_hooks_by_their_folder_names() -> None:
    wrong = [
        f"{file.relative_to(source.ROOT)}:{line} imports {name}"
        for file in source.python_files()
        for line, name in source.imports(file, types_too=True)
        if name.split(".")[0] in ("catalogs", "hooks")
    ]
    assert not wrong, "\n".join(wrong)


def test_every_package_is_listed_in_setup_cfg() -> None:
    config = configparser.ConfigParser()
    config.read(source.ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    packages = {module for module, file in source.modules().items() if file.name == "__init__.py"}
    assert packages == listed


def test_every_file_that_is_no_module_is_listed_in_setup_cfg() -> None:
    config = configparser.ConfigParser()
    config.read(source.ROOT / "setup.cfg")
    folders = {module: file.parent for module, file in source.modules().items() if file.name == "__init__.py"}
    listed = {
        file
        for package, patterns in config["options.package_data"].items()
        for pattern in patterns.split()
        for file in folders[package].glob(pattern)
    }
    there = {
        file
        for folder in folders.values()
        for file in folder.rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc")
    }
    assert there == listed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import twophase.spark.attach", ["twophase.spark.attach"]),
        ("def f():\n    from twophase.spark import jvm", ["twophase.spark.jvm"]),
        ("from . import timeline", ["twophase.timeline"]),
        ("from ..hooks import status", ["twophase.hooks.status"]),
        ("if TYPE_CHECKING:\n    import pyspark", []),
        ("try:\n    import pyspark\nexcept ImportError:\n    pass", ["pyspark"]),
    ],
)
def test_the_check_itself_finds_every_kind_of_import(tmp_path: Path, text: str, expected: list[str]) -> None:
    file = tmp_path / "module.py"
    file.write_text(text)
    module = "twophase.catalogs.module" if ".." in text else "twophase.module"
    assert [name for _, name in source.imports(file, module)] == expected


def test_every_logger_of_ours_takes_secrets_out() -> None:
    wrong = [
        module
        for module, file in source.modules().items()
        if module != "twophase.redaction"
        and re.search(r'getLogger\(("twophase|__name__|\))', file.read_text(encoding="utf-8"))
    ]
    assert not wrong, "use twophase.redaction.logger in: " + ", ".join(wrong)

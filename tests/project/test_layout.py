"""The layers of the project: imports point downwards only, and only the Spark layer knows Spark."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from tests.project import source

#: Prefix of an import name -> its layer, the longest prefix first; a module may import its own layer and lower ones.
LAYERS = {
    "twophase.cli": 6,
    "twophase.testing": 6,
    # The Spark layer has floors of its own: what a user calls, then statements, then Spark's questions to a catalog.
    "twophase.spark.session": 5.5,
    "twophase.spark.frames": 5.5,
    "twophase.spark.environment": 5.5,
    "twophase.spark.shared": 5.5,
    "twophase.spark.routing": 5.4,
    "twophase.spark.native": 5.3,
    "twophase.spark.metastore": 5.2,
    "twophase.spark.jvm": 5,
    "twophase.spark": 5.1,
    "twophase.hooks": 4,
    "twophase.catalogs": 3,
    "twophase.schema": 1,
    # Leaves: they import nothing of ours, and every layer speaks of errors and has steps that may fail.
    "twophase.errors": 0,
    "twophase.failpoints": 0,
    "twophase": 2,
}
#: Where the layers that may know Spark begin.
SPARK_LAYER = 5
#: The curated front of the package: it hands out names of all layers.
FACADE = "twophase"
#: What only the Spark layer (and those above it) may touch.
SPARK = ("pyspark", "py4j")
#: PySpark's type classes are plain values without a session or a JVM; the schemas' converter makes them.
TYPES_ONLY = ("twophase.schema.convert_spark", "pyspark.sql.types")


def layer(name: str) -> float | None:
    """The layer of a module of ours; None for anybody else's."""
    for prefix, number in LAYERS.items():
        if (
            name == prefix
            or name.startswith(prefix + ".")
            or (prefix == "twophase.cli" and name.startswith("twophase.cli"))
        ):
            return number
    return None


def upward_imports(module: str, file: Path) -> list[str]:
    own = layer(module)
    assert own is not None
    return [
        f"{file.relative_to(source.ROOT)}:{line} imports {name}"
        for line, name in source.imports(file, module)
        if (layer(name) or 0) > own
    ]


def test_imports_point_downwards_only() -> None:
    wrong = [
        row for module, file in source.modules().items() if module != FACADE for row in upward_imports(module, file)
    ]
    assert not wrong, "\n".join(wrong)


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import twophase.spark.session", ["twophase.spark.session"]),
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

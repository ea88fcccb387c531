"""Promises: what Spark does not promise to keep is used in one family of modules, and listed in one of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project import source
from twophase.spark.jvm import private

pytestmark = pytest.mark.quick

SPARK = source.ROOT / "twophase" / "spark"
#: Interfaces that Spark documents for catalogs, sources and listeners.
PUBLIC = re.compile(
    r"org\.apache\.spark\.(sql\.(connector\.(catalog\.(Identifier|CatalogPlugin|TableCapability|Column|constraints|Table$|Supports"
    r"|StagedTable|TruncatableTable|StagingTableCatalog|TableCatalog)|expressions|write|read|metric)"
    r"|types\.|SaveMode|Dataset$|sources\.InsertableRelation)|scheduler\.SparkListenerInterface)"
)
LISTED = {*private.NAMES, *private.FORMERLY.values(), *private.SINCE}
#: Beside the list itself, only these folders and files speak to what Spark keeps to itself.
USERS = ("jvm/", "metastore/", "listener.py")


def sources() -> list[Path]:
    return [file for file in sorted(SPARK.rglob("*.py")) if file.name != "private.py"]


def shown(file: Path) -> str:
    return file.relative_to(SPARK).as_posix()


def classes(file: Path) -> Iterator[tuple[int, str]]:
    """Each class of Spark's that a file names, as a text or as a chain of attributes."""
    constants: dict[str, str] = {"CATALOG": "org.apache.spark.sql.connector.catalog."}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            constants |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
        text = None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.Attribute):
            text = ".".join(ast.unparse(node).split(".")[-12:])
            text = text[text.index("org.apache") :] if "org.apache" in text else None
        elif isinstance(node, ast.BinOp) and isinstance(node.left, ast.Name) and isinstance(node.right, ast.Constant):
            text = f"{constants.get(node.left.id, '')}{node.right.value}"
        if text and (found := re.fullmatch(r"(org\.apache\.spark\.[a-z0-9_.]*\.[A-Z]\w*)\$?(\.[A-Z_]+)?", text)):
            yield node.lineno, found[1]


def test_every_private_class_is_on_the_list() -> None:
    found = [(file, line, name) for file in sources() for line, name in classes(file) if not PUBLIC.match(name)]
    wrong = [f"{shown(file)}:{line} uses {name}" for file, line, name in found if name not in LISTED]

    assert not wrong, "\n".join(wrong)
    assert [shown(file) for file, _, _ in found if not shown(file).startswith(USERS)] == []
    assert len(found) > 20


def test_every_private_class_that_java_of_ours_imports_is_on_the_list() -> None:
    files = sorted(SPARK.rglob("*.java"))
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    found = set(re.findall(r"org\.apache\.spark\.[a-z0-9_.]*\.[A-Z]\w*", text))

    assert files
    assert {name for name in found if not PUBLIC.match(name)} <= LISTED


def test_every_name_that_an_error_could_tell_is_on_the_list() -> None:
    members = {(name.rpartition(".")[2], member.lstrip(".")) for name, all_ in private.NAMES.items() for member in all_}
    labels = [
        (shown(file), label)
        for file in sources()
        for label in re.findall(r'private_name\("(\w+\.\w+)"', file.read_text(encoding="utf-8"))
    ]
    members.add(("CatalogManager", "catalogs"))  # as it was called in Spark 4.0
    wrong = [(file, label) for file, label in labels if tuple(label.split(".")) not in members]

    assert len(labels) > 15
    assert not wrong


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('X = "org.apache.spark.sql.catalyst.Thing"', ["org.apache.spark.sql.catalyst.Thing"]),
        ("def f(jvm):\n    return jvm.org.apache.spark.sql.catalyst.Thing(1)", ["org.apache.spark.sql.catalyst.Thing"]),
        ('P = "org.apache.spark.sql."\nX = P + "Thing"', ["org.apache.spark.sql.Thing"]),
        ('X = "org.apache.hadoop.fs.Path"', []),
    ],
)
def test_the_check_itself_finds_every_way_to_name_a_class(tmp_path: Path, text: str, expected: list[str]) -> None:
    file = tmp_path / "module.py"
    file.write_text(text)
    assert [name for _, name in classes(file)] == expected

"""The public names explain themselves: a numpydoc docstring that names every parameter."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import twophase
import twophase.catalog
import twophase.hooks
import twophase.schema
import twophase.testing
from tests.project import source

pytestmark = pytest.mark.quick

_SECTION = re.compile(r"^Parameters\n-{3,}\n(.*?)(?=^\w+\n-{3,}|\Z)", re.MULTILINE | re.DOTALL)


def described(doc: str) -> set[str]:
    """The parameters that a docstring's ``Parameters`` section names."""
    section = _SECTION.search(inspect.cleandoc(doc))
    heads = [line for line in section[1].splitlines() if line and not line[0].isspace()] if section else []
    return {name.strip().lstrip("*") for head in heads for name in head.partition(":")[0].split(",")}


def undescribed(name: str, function: Any, doc: str | None) -> str | None:
    if not doc:
        return f"{name} has no docstring"
    wanted = [p for p in inspect.signature(function).parameters if p not in ("self", "cls") and p[0] != "_"]
    missing = [p for p in wanted if p not in described(doc)]
    return f"{name} does not describe {', '.join(missing)}" if missing else None


def public() -> Iterator[tuple[str, Any]]:
    for module in (twophase, twophase.catalog, twophase.hooks, twophase.schema, twophase.testing):
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)


def methods(owner: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        # The conformance suite's tests are read in pytest's report; their docstrings are sentences.
        if inspect.isfunction(plain) and not name.startswith(("_", "test_")):
            yield name, getattr(owner, name)


def complaints(name: str, thing: Any) -> Iterator[str | None]:
    if inspect.isfunction(thing):
        yield undescribed(name, thing, thing.__doc__)
    elif inspect.isclass(thing):
        yield None if thing.__doc__ else f"{name} has no docstring"
        if issubclass(thing, BaseException | Enum):
            return
        if "__init__" in vars(thing) and not dataclasses.is_dataclass(thing):
            yield undescribed(name, thing, thing.__doc__)
        for method, function in methods(thing):
            # What overrides a documented method need not say it again.
            yield undescribed(f"{name}.{method}", function, inspect.getdoc(function))


def test_each_public_name_describes_its_parameters() -> None:
    found = [text for name, thing in public() for text in complaints(name, thing) if text]
    assert not found, "\n".join(found)


def first_words(file: Path) -> Iterator[tuple[int, str]]:
    """The first line of each docstring of a module, of its classes and functions."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (doc := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), doc.splitlines()[0]


def test_each_docstring_begins_with_the_thing_and_not_with_a_question() -> None:
    found = [
        f"{file.relative_to(source.ROOT)}:{line}: {text}"
        for file in source.modules().values()
        for line, text in first_words(file)
        if text.split(" ", 1)[0] in ("How", "What", "Where", "Which", "Who", "Whose")
    ]
    assert not found, "\n".join(found)

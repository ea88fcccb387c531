"""The documentation and the example do what they say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from twophase.schema import POLICY_NAMES, Change

ROOT = Path(__file__).resolve().parents[2]


def documented() -> str:
    """The page on schemas."""
    return (ROOT / "docs" / "schema.md").read_text()


def test_the_documented_example_gives_what_its_comment_says() -> None:
    text = documented()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    exec(
        re.sub(r"^plan\.project\((.*)\)\s+#.*$", r"rows = plan.project(\1).to_pylist()", code, flags=re.MULTILINE),
        names,
    )
    assert names["rows"] == [{"a": "a1", "b": 1, "c": None}]


def test_what_may_change_is_one_table_with_every_change_and_every_policy() -> None:
    text = documented()
    (table,) = (
        found for found in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE) if found.startswith("| what may change |")
    )
    assert all(f"policy `{name}`" in table for name in POLICY_NAMES)
    assert all(f"{change.__name__}(" in table for change in Change.__subclasses__())


def test_the_example_tells_the_story_of_flip_226(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "schema_evolution.py"), run_name="__main__")
    told = capsys.readouterr().out
    assert "data-0.parquet: a='a1', b='b1', c=None" in told
    assert "data-2.parquet: a='a2', b='b2', c='c2'" in told
    assert "TypeChangeError" in told and "policy 'explicit'" in told

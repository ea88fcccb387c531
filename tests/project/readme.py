"""The README and the pages of ``docs/`` as data: their code blocks and tables."""

from __future__ import annotations

import re
from pathlib import Path

from tests.project import source


def pages() -> list[Path]:
    """The README first."""
    return [source.ROOT / "README.md", *sorted((source.ROOT / "docs").glob("*.md"))]


def text() -> str:
    """All of it."""
    return "\n".join(page.read_text(encoding="utf-8") for page in pages())


def page(name: str) -> str:
    """The text of one page of ``docs/``."""
    return (source.ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Fenced code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text(), re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Lines of the bash blocks, comments left out."""
    lines = [line.split("  #")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def section(title: str) -> str:
    """The text below a heading, up to the next one of the same or a higher level."""
    level, _, _ = title.partition(" ")
    _, _, after = text().partition(f"\n{title}\n")
    assert after, f"There is no heading {title!r}."
    return re.split(rf"^#{{1,{len(level)}}} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """Cells of the rows of all tables, header rows left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    rules = [number for number, row in enumerate(cells) if all(set(cell) <= set(":-") for cell in row)]
    return [row for number, row in enumerate(cells) if number not in rules and number + 1 not in rules]

"""Docstrings as the site shows them: Sphinx's roles and literal blocks, written as Markdown.

An extension of griffe, which reads the docstrings for mkdocstrings (mkdocs.yml).
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class MarkdownDocstrings(griffe.Extension):
    """Write ``:class:`~package.Name``` as ``Name``, and leave out the ``::`` before a literal block."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object, before anything reads it."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring without Sphinx's markup."""
    text = re.sub(r":\w+:`~[\w.]*?(\w+)`", r"`\1`", text)
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", text)
    return re.sub(r"(?m)::$", ":", re.sub(r"(?m)^ *::$", "", text))

"""Spark's ``spark-defaults.conf``, for commands that start no session: it holds what a session would start with."""

from __future__ import annotations

import os
import re
from pathlib import Path

#: An entry of a Java properties file: the key, and a value that may go on in the next line behind a backslash.
_ENTRY = re.compile(
    r"^[ \t\f]*(?![#!])(?P<key>(?:\\.|[^\\\s:=])+)[ \t\f]*[:=]?[ \t\f]*(?P<value>(?:\\(?:.|\n)|[^\\\n])*)", re.MULTILINE
)
_ESCAPE = re.compile(r"\\(?:\n[ \t\f]*|u(?P<code>[0-9a-fA-F]{4})|(?P<char>.))")
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def spark_defaults() -> dict[str, str]:
    """Read the entries of the ``spark-defaults.conf`` with which Spark would start here; empty if there is none."""
    from pyspark.find_spark_home import _find_spark_home

    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    file = Path(folder) / "spark-defaults.conf"
    return parsed(file.read_text("utf-8")) if file.is_file() else {}


def parsed(text: str) -> dict[str, str]:
    """Parse a properties file as Spark does, which ignores the names of others."""
    entries = {_plain(entry["key"]): _plain(entry["value"]).strip() for entry in _ENTRY.finditer(text)}
    return {key: value for key, value in entries.items() if key.startswith("spark.")}


def _plain(text: str) -> str:
    def meaning(escape: re.Match[str]) -> str:
        char = escape["char"] or ""
        return chr(int(escape["code"], 16)) if escape["code"] else _CONTROL.get(char, char)

    return _ESCAPE.sub(meaning, text)

"""Names of documents that are being written, beside the path that they will be renamed to."""

from __future__ import annotations

import posixpath
import re
import uuid

_PART = re.compile(r"\.[0-9a-f]{32}\.part")


def part_of(path: str) -> str:
    """A new path beside another one, for writing it."""
    return f"{posixpath.dirname(path)}/.{uuid.uuid4().hex}.part"


def is_part(name: str) -> bool:
    """Whether a file's name is one of :func:`part_of`."""
    return _PART.fullmatch(name) is not None

"""A directory as it is while its file system is not mounted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unmounted(directory: Path) -> Iterator[None]:
    """A directory is empty meanwhile; what is made in it is hidden afterwards."""
    away = directory.with_suffix(".away")
    directory.rename(away)
    directory.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(directory)
        away.rename(directory)

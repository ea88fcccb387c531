"""Clean-up calls to Spark after a block; their failures never replace the block's own error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from twophase.redaction import logger

log = logger("twophase.spark")


@contextmanager
def afterwards(restore: Callable[[], object]) -> Iterator[None]:
    """Restore some state when a block ends. If the block failed, its own error is raised in any case.

    Spark may be stopped by then, or its JVM gone: a common cause of the block's error, with nothing left to restore.

    Parameters
    ----------
    restore : callable
        Calls the JVM.
    """
    try:
        yield
    except BaseException:
        try:
            restore()
        except Exception:
            log.debug("Something could not be restored in Spark; it has probably ended", exc_info=True)
        raise
    restore()

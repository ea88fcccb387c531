"""What is put back in Spark after a block, and never takes the place of the block's own error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from twophase.redaction import logger

log = logger("twophase.spark")


@contextmanager
def afterwards(put_back: Callable[[], object]) -> Iterator[None]:
    """Put something back when the block ends. Where the block failed, it fails with its own error all the same.

    Spark may be stopped by then, or its JVM gone: a common cause of the block's error, and nothing is to be put back.

    Parameters
    ----------
    put_back : callable
        Calls the JVM.
    """
    try:
        yield
    except BaseException:
        try:
            put_back()
        except Exception:
            log.debug("Something could not be put back in Spark; it has probably ended", exc_info=True)
        raise
    put_back()

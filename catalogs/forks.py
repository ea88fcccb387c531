"""Connections to databases in a forked child: they are its parent's, which it must neither use nor close."""

from __future__ import annotations

import os
import weakref

import sqlalchemy as sa

_engines: weakref.WeakSet[sa.Engine] = weakref.WeakSet()


def keep_from_children(engine: sa.Engine) -> sa.Engine:
    """Have a forked child make connections of its own, and close only those, also when it ends.

    Returns
    -------
    sqlalchemy.Engine
        The same.
    """
    _engines.add(engine)
    return engine


def _leave_connections() -> None:
    for engine in list(_engines):
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_connections)

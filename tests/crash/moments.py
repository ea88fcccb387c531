"""When a process may die, and which of these deaths leave the same behind."""

from __future__ import annotations

import hashlib
import threading
from itertools import count
from pathlib import Path

from tests.crash.server_sides import LockedError, ServerSide
from tests.crash.worlds import World
from twophase import failpoints

#: A step, its how-many-th time, ``exit`` for its beginning or ``exit_after`` for its end, and what a death leaves.
Moment = tuple[str, int, str, str]


def watch(world: World) -> list[Moment]:
    """Record each beginning and each end of a step in this process from now on, in their order."""
    moments: list[Moment] = []
    running: dict[tuple[int, str], int] = {}
    server = type(world).server_side(world.directory)
    numbers = count(1)
    lock = threading.Lock()

    def left() -> str:
        try:
            return contents(world.directory, server)
        except LockedError:
            return f"unknown {next(numbers)}"

    def begins(step: str, _: failpoints.Action) -> None:
        with lock:
            nth = running[threading.get_ident(), step] = failpoints.reached()[step]
            moments.append((step, nth, "exit", left()))

    def ends(step: str, _: failpoints.Action) -> None:
        with lock:
            moments.append((step, running[threading.get_ident(), step], "exit_after", left()))

    failpoints._armed.update(dict.fromkeys(failpoints.declared(), ("watch", None)))
    failpoints._before, failpoints._after = begins, ends
    return moments


def contents(directory: Path, server: ServerSide | None = None) -> str:
    """A hash of all files, and of all on the server; what SQLite shares between its processes (``-shm``) is made anew
    by the next one.
    """
    told = hashlib.sha256(repr(server.state()).encode() if server else b"")
    for path in sorted(directory.rglob("*")):
        if not path.name.endswith("-shm"):
            told.update(f"{path}\n".encode() + (path.read_bytes() if path.is_file() else b""))
    return told.hexdigest()

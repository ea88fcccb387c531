"""Moments inside a publish: a callback can be run before each executed line of the catalog's own code.

The catalog need not support this. Its own code is everything in the folders of its classes' modules.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

#: A file and a line in it.
Moment = tuple[str, int]


def folders_of(*things: Any) -> frozenset[str]:
    """Return the folders of the modules of the objects' classes, including base classes."""
    owners = {owner for thing in things for owner in type(thing).__mro__ if owner.__module__ not in ("builtins", "abc")}
    return frozenset(os.path.dirname(file) for owner in owners if (file := inspect.getsourcefile(owner)))


def passed(folders: frozenset[str], run: Callable[[], Any]) -> list[Moment]:
    """Return the moments of one run, in order and without duplicates."""
    seen: dict[Moment, None] = {}
    _traced(folders, run, lambda moment: seen.setdefault(moment, None))
    return list(seen)


def interrupt(folders: frozenset[str], moment: Moment, run: Callable[[], Any], then: Callable[[], None]) -> None:
    """Call ``run``, and call ``then`` when it reaches a moment for the first time."""
    waiting = [moment]

    def look(reached: Moment) -> None:
        if waiting and reached == waiting[0]:
            waiting.clear()
            then()

    _traced(folders, run, look)


def some_of(moments: Sequence[Moment], most: int) -> list[Moment]:
    """Choose a limited number of moments evenly, including the first and the last."""
    if len(moments) <= most:
        return list(moments)
    return [moments[round(number * (len(moments) - 1) / max(1, most - 1))] for number in range(most)]


def _traced(folders: frozenset[str], run: Callable[[], Any], look: Callable[[Moment], Any]) -> None:
    own: dict[str, bool] = {}

    def is_own(file: str) -> bool:
        if file not in own:
            own[file] = os.path.dirname(file) in folders
        return own[file]

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            look((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, _event: str, _: Any) -> Any:
        return line if is_own(frame.f_code.co_filename) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        run()
    finally:
        sys.settrace(before)

"""Named places where a test can make a step of the protocol fail.

Each step with an effect outside the process runs inside ``with step("layer.step"):``. In production this costs one
dictionary look-up. A test arms a step in its own process (:func:`arm`) or in a child process through the environment
variable ``TWOPHASE_FAILPOINTS`` (``name=action[@n],name=action``), where ``n`` means the n-th time only (default: each
time).

=============== ==================================================================================
action          what happens
=============== ==================================================================================
``error``       :class:`FailpointError` before the effect
``error_after`` the effect, then :class:`FailpointError`
``lost_reply``  the effect, then a :class:`ConnectionError`, as when the answer never arrived
``exit``        the process ends at once, before the effect (as kill -9)
``exit_after``  the effect, then the process ends at once
``pause``       the file ``$TWOPHASE_FAILPOINT_DIR/<name>.reached`` is made; waits until ``<name>.go`` exists
=============== ==================================================================================

A callable may be armed instead of a word: it is called before the effect, with the step's name.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ACTIONS = ("error", "error_after", "lost_reply", "exit", "exit_after", "pause")
EXIT_CODE = 86

Action = str | Callable[[str], None]

_declared: set[str] = set()
_armed: dict[str, tuple[Action, int | None]] = {}
_reached: Counter[str] = Counter()
_lock = threading.Lock()


class FailpointError(RuntimeError):
    """Raised by an armed step; never in production."""


def declare(*names: str) -> None:
    """Make step names known, at import, so that a test can assert that each was tried."""
    _declared.update(names)


def declared() -> frozenset[str]:
    """All step names that the imported modules know."""
    return frozenset(_declared)


def reached() -> Counter[str]:
    """How often each step was reached while anything was armed."""
    return Counter(_reached)


def arm(name: str, action: Action, *, nth: int | None = None) -> None:
    """Arm a declared step in this process.

    Raises
    ------
    ValueError
        An unknown step or action.
    """
    if name not in _declared:
        raise ValueError(f"No failpoint {name!r}; known: {', '.join(sorted(_declared))}")
    if not callable(action) and action not in ACTIONS:
        raise ValueError(f"No action {action!r}; known: {', '.join(ACTIONS)}")
    _armed[name] = (action, nth)


def disarm() -> None:
    """Disarm all steps and forget the counts."""
    _armed.clear()
    _reached.clear()


@contextmanager
def step(name: str) -> Iterator[None]:
    """Run one step of the protocol, failing as armed."""
    if not _armed:
        yield
        return
    with _lock:
        _reached[name] += 1
        count = _reached[name]
    _record(name)
    action, nth = _armed.get(name, (None, None))
    if action is None or (nth is not None and nth != count):
        yield
        return
    _before(name, action)
    yield
    _after(name, action)


def _before(name: str, action: Action) -> None:
    if callable(action):
        action(name)
    elif action == "error":
        raise FailpointError(f"failpoint {name}")
    elif action == "exit":
        os._exit(EXIT_CODE)
    elif action == "pause":
        _pause(name)


def _after(name: str, action: Action) -> None:
    if action == "error_after":
        raise FailpointError(f"failpoint {name}, after its effect")
    if action == "lost_reply":
        raise ConnectionError(f"failpoint {name}: the reply was lost")
    if action == "exit_after":
        os._exit(EXIT_CODE)


def _pause(name: str) -> None:
    directory = Path(os.environ["TWOPHASE_FAILPOINT_DIR"])
    (directory / f"{name}.reached").touch()
    gate = threading.Event()
    while not (directory / f"{name}.go").exists():
        gate.wait(0.02)


def _record(name: str) -> None:
    """Tell a parent process which steps a child reached (the crash matrix asserts that none was left out)."""
    if log := os.environ.get("TWOPHASE_FAILPOINT_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(name + "\n")


def arm_from_environment(text: str | None = None) -> None:
    """Arm what ``TWOPHASE_FAILPOINTS`` says. Names are not checked: their modules may not be imported yet."""
    text = os.environ.get("TWOPHASE_FAILPOINTS", "") if text is None else text
    for item in filter(None, text.split(",")):
        name, _, action = item.partition("=")
        action, _, nth = action.partition("@")
        if action and action not in ACTIONS:
            raise ValueError(f"No action {action!r} in TWOPHASE_FAILPOINTS; known: {', '.join(ACTIONS)}")
        # An empty action only counts and logs.
        _armed[name] = (action or (lambda _: None), int(nth) if nth else None)


arm_from_environment()

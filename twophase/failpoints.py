"""Named points at which a test can make a step of the protocol fail.

Each step with an effect outside the process has a :class:`Failpoint`, declared in the module where it is used, and runs
inside ``with step(POINT):``. In production this costs one lookup in an empty dictionary. A test arms a step by name,
in its own process (:func:`arm`) or in a child process through the environment variable ``TWOPHASE_FAILPOINTS``
(``name=action[@n],name=action``), where ``n`` means the n-th time only (default: every time).

=============== ==================================================================================
action          what happens
=============== ==================================================================================
``error``       :class:`FailpointError` before the effect
``error_after`` the effect, then :class:`FailpointError`
``lost_reply``  the effect, then a :class:`ConnectionError`, as if the reply had been lost
``exit``        the process ends immediately, before the effect (as with kill -9)
``exit_after``  the effect, then the process ends immediately
``pause``       the file ``$TWOPHASE_FAILPOINT_DIR/<name>.reached`` is created; waits until ``<name>.go`` exists
=============== ==================================================================================

A callable may be armed instead of an action: it is called before the effect, with the step's name.
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

_declared: dict[str, Failpoint] = {}
_armed: dict[str, tuple[Action, int | None]] = {}
_reached: Counter[str] = Counter()
_lock = threading.Lock()


class FailpointError(RuntimeError):
    """Raised by an armed step; never in production."""


class Failpoint:
    """A step that a test can make fail: ``PUBLISH = Failpoint("core.publish")``, declared next to its use.

    Parameters
    ----------
    name : str
        ``layer.step``; tests arm it by this name, and assert that each name was tried.

    Raises
    ------
    ValueError
        Another failpoint has this name.
    """

    def __init__(self, name: str) -> None:
        if name in _declared:
            raise ValueError(f"A failpoint {name!r} is declared already; import that one")
        self.name = name
        _declared[name] = self


def declared() -> frozenset[str]:
    """The names of all failpoints of the imported modules."""
    return frozenset(_declared)


def named(name: str) -> Failpoint:
    """Look up a failpoint by name.

    Raises
    ------
    ValueError
        No imported module declares it.
    """
    if name not in _declared:
        raise ValueError(f"No failpoint {name!r}; known: {', '.join(sorted(_declared))}")
    return _declared[name]


def reached() -> Counter[str]:
    """Count how often each step was reached while anything was armed."""
    return Counter(_reached)


def arm(name: str, action: Action, *, nth: int | None = None) -> None:
    """Arm a declared step in this process.

    Raises
    ------
    ValueError
        An unknown step or action.
    """
    named(name)
    if not callable(action) and action not in ACTIONS:
        raise ValueError(f"No action {action!r}; known: {', '.join(ACTIONS)}")
    _armed[name] = (action, nth)


def disarm() -> None:
    """Disarm all steps and reset the counts."""
    _armed.clear()
    _reached.clear()


@contextmanager
def step(point: Failpoint) -> Iterator[None]:
    """Run one step of the protocol, failing as armed.

    Raises
    ------
    TypeError
        A name was passed instead of a failpoint: a typo would go unnoticed.
    """
    if not isinstance(point, Failpoint):
        raise TypeError(f"step() takes a declared Failpoint, not {point!r}")
    if not _armed:
        yield
        return
    name = point.name
    with _lock:
        _reached[name] += 1
        count = _reached[name]
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


def arm_from_environment(text: str | None = None) -> None:
    """Arm the steps in ``TWOPHASE_FAILPOINTS``, or in a text of the same format.

    Names in the environment are not checked: their modules may not be imported yet.

    Raises
    ------
    ValueError
        An unknown step (in a text) or action.
    """
    for name, action, nth in parse(os.environ.get("TWOPHASE_FAILPOINTS", "") if text is None else text):
        if text is not None:
            named(name)
        # An empty action only counts.
        _armed[name] = (action or (lambda _: None), nth)


def parse(text: str) -> Iterator[tuple[str, str, int | None]]:
    """Yield name, action and count of each step in a text like ``TWOPHASE_FAILPOINTS``.

    Raises
    ------
    ValueError
        An unknown action.
    """
    for item in filter(None, text.split(",")):
        name, _, action = item.partition("=")
        action, _, nth = action.partition("@")
        if action and action not in ACTIONS:
            raise ValueError(f"No action {action!r} in TWOPHASE_FAILPOINTS; known: {', '.join(ACTIONS)}")
        yield name, action, int(nth) if nth else None


arm_from_environment()

"""Faults on demand: scripted, or random with a seed.

============== ==============================================================================
action         what happens
============== ==============================================================================
``error``      :class:`ChaosError` before the effect
``error_after``  the effect, then :class:`ChaosError`
``lost_reply`` the effect, then a :class:`ConnectionError`, as if the reply had been lost
============== ==============================================================================
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from twophase.errors import CatalogError, ConfigurationError

ACTIONS = ("error", "error_after", "lost_reply")


class ChaosError(CatalogError):
    """A fault that a test requested."""


class Faults:
    """The faults of a chaos catalog: which steps fail, and how.

    Parameters
    ----------
    script : str
        ``step=action[@n]``, separated by commas: ``"publish=lost_reply@1, abort=error"``. With ``@n`` only the n-th
        time, otherwise every time.
    seed : int, optional
        If given, each step fails at random, with probability ``rate``. Whether the n-th call of a step fails depends
        only on the seed, the step and n: a seed can be replayed, whatever runs concurrently.
    rate : float
        Between 0 and 1.

    Attributes
    ----------
    happened : list of tuple
        ``(step, n, action)`` of each fault so far.
    """

    def __init__(self, script: str = "", *, seed: int | None = None, rate: float = 0.1) -> None:
        self._script: dict[str, list[tuple[str, int | None]]] = {}
        self._seed = seed
        self._rate = rate
        self._counts: Counter[str] = Counter()
        self.happened: list[tuple[str, int, str]] = []
        for item in filter(None, (part.strip() for part in script.split(","))):
            self.add(*_parse(item))

    def add(self, step: str, action: str, nth: int | None = None) -> None:
        """Make a step fail; several faults of one step are tried in the order in which they were added.

        Parameters
        ----------
        step : str
            The step's name; see :class:`ChaosCatalog`.
        action : str
            ``error``, ``error_after`` or ``lost_reply``.
        nth : int, optional
            Only the n-th time, counted from 1; otherwise every time.

        Raises
        ------
        ConfigurationError
            An unknown action.
        """
        if action not in ACTIONS:
            raise ConfigurationError(f"No fault {action!r}; known: {', '.join(ACTIONS)}.")
        self._script.setdefault(step, []).append((action, nth))

    def clear(self) -> None:
        """Remove all faults, and reset the counts."""
        self._script.clear()
        self._counts.clear()
        self._seed = None

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Run one step, failing as configured.

        Parameters
        ----------
        name : str
            Counted whether or not it fails.

        Raises
        ------
        ChaosError
            ``error``, before the effect, or ``error_after``.
        ConnectionError
            ``lost_reply``, after the effect.
        """
        self._counts[name] += 1
        count = self._counts[name]
        action = self._action(name, count)
        if action:
            self.happened.append((name, count, action))
        if action == "error":
            raise ChaosError(f"Chaos: {name} failed (call {count}).")
        yield
        if action == "error_after":
            raise ChaosError(f"Chaos: {name} failed after its effect (call {count}).")
        if action == "lost_reply":
            raise ConnectionError(f"chaos: the reply to {name} was lost (call {count})")

    def _action(self, name: str, count: int) -> str | None:
        for action, nth in self._script.get(name, ()):
            if nth is None or nth == count:
                return action
        if self._seed is not None:
            dice = random.Random(f"{self._seed}/{name}/{count}")
            if dice.random() < self._rate:
                return dice.choice(ACTIONS)
        return None


def _parse(item: str) -> tuple[str, str, int | None]:
    step, equals, action = item.partition("=")
    action, _, nth = action.partition("@")
    if not equals or (nth and not nth.strip().isdigit()):
        raise ConfigurationError(f"Not a fault: {item!r}.", hint="Write step=action or step=action@n.")
    return step.strip(), action.strip(), int(nth) if nth else None

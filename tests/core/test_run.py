"""Functions that are run in a block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

import twophase
from twophase.errors import ConfigurationError


async def coroutine(tx: Any) -> None:
    """Its statements would run when it is awaited."""


async def asynchronous_generator(tx: Any) -> AsyncIterator[int]:
    yield 1


def generator(tx: Any) -> Iterator[int]:
    yield 1


class Callable:
    async def __call__(self, tx: Any) -> None:
        """Same as :func:`coroutine`."""


@pytest.mark.parametrize("function", [coroutine, asynchronous_generator, generator, partial(coroutine, 1), Callable()])
def test_a_function_that_returns_before_its_statements_run_is_refused(function: Any) -> None:
    with pytest.raises(ConfigurationError, match="after the transaction has ended"):
        twophase.run(None, function)
    with pytest.raises(ConfigurationError, match="after the transaction has ended"):
        twophase.run(None)(function)

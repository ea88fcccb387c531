"""A callback reads each local property of its statement once, and never a former value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.conftest import Start
from twophase.spark.jvm import local_properties
from twophase.spark.jvm.callbacks import JavaCallable
from twophase.spark.jvm.gateway import Jvm

spark40_first_cases = True

NAME = "twophase.test"


class Callback(JavaCallable):
    """A function that the JVM calls."""

    def __init__(self, apply: Callable[[Any], Any]) -> None:
        self.apply = apply

    class Java:
        implements = ["java.util.function.Function"]


class Context:
    """Spark's context, with a count of what is fetched of it."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.fetched = 0

    def getLocalProperty(self, name: str) -> Any:  # noqa: N802
        self.fetched += 1
        return self._context.getLocalProperty(name)

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802
        self._context.setLocalProperty(name, value)


@pytest.fixture(scope="module")
def jvm(start: Start) -> Jvm:
    found = Jvm(start())
    found.start_callbacks()
    return found


@pytest.fixture
def context(jvm: Jvm) -> Context:
    jvm.spark.sparkContext.setLocalProperty(NAME, "of the call")
    return Context(jvm.spark.sparkContext)


def call(jvm: Jvm, function: Callable[[], Any]) -> None:
    jvm.jvm.java.util.Optional.of("x").map(Callback(lambda _: function()))


def test_a_callback_fetches_a_property_once(jvm: Jvm, context: Context) -> None:
    found: list[str | None] = []

    def read() -> None:
        found.extend(local_properties.get(context, NAME) for _ in range(3))

    call(jvm, read)
    assert (found, context.fetched) == (["of the call"] * 3, 1)
    context.setLocalProperty(NAME, None)
    call(jvm, read)
    assert (found[3:], context.fetched) == ([None] * 3, 2)


def test_a_callback_reads_what_it_has_set(jvm: Jvm, context: Context) -> None:
    found: list[str | None] = []

    def read() -> None:
        found.append(local_properties.get(context, NAME))
        local_properties.put(context, NAME, "of the callback")
        found.append(local_properties.get(context, NAME))

    call(jvm, read)
    assert found == ["of the call", "of the callback"]
    assert local_properties.get(context, NAME) == "of the callback"


def test_a_callback_inside_another_one_reads_what_spark_has_set(jvm: Jvm, context: Context) -> None:
    found: list[str | None] = []

    def inner() -> None:
        found.append(local_properties.get(context, NAME))
        local_properties.put(context, NAME, "of the inner one")

    def outer() -> None:
        found.append(local_properties.get(context, NAME))
        context.setLocalProperty(NAME, "of Spark")
        call(jvm, inner)
        found.append(local_properties.get(context, NAME))

    call(jvm, outer)
    assert found == ["of the call", "of Spark", "of the inner one"]


def test_outside_of_callbacks_each_look_fetches_it(context: Context) -> None:
    assert [local_properties.get(context, NAME) for _ in range(2)] == ["of the call"] * 2
    assert context.fetched == 2

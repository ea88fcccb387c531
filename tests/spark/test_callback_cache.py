"""What Spark asks of a Python object many times over is answered in the JVM, and never wrongly."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

import twophase.spark
from tests.spark.conftest import Start
from twophase.spark.jvm import values
from twophase.spark.jvm.callback_cache import ALWAYS, cached_callbacks
from twophase.spark.jvm.callbacks import JavaCallable
from twophase.spark.jvm.gateway import Jvm

spark40_first_cases = True

_AN_HOUR = 3_600_000
#: Methods of Spark's interfaces that its first versions do not have.
LATER = {
    *("listTableSummaries", "createTableLike", "id", "version", "constraints"),
    *("supportedCustomMetrics", "reportDriverMetrics", "supportsIterativePushdown", "estimateSizeInBytes"),
    *("reflectsFullyPushedDownFilters", "changelogStateOptionKeys", "tableStateOptionKeys"),
}


class Asked:
    """Answers each question with how many there were."""

    def __init__(self) -> None:
        self.questions: list[Any] = []

    def get(self) -> Any:
        self.questions.append("get")
        return Asked()

    def apply(self, value: Any) -> str:
        self.questions.append(value if isinstance(value, str) else list(value))
        if value == "fail":
            raise ValueError("refused")
        return f"answer {len(self.questions)}"

    def run(self) -> None:
        self.questions.append("run")

    def equals(self, other: Any) -> bool:
        self.questions.append("equals")
        return False

    def hashCode(self) -> int:  # noqa: N802
        return 7

    def toString(self) -> str:  # noqa: N802
        self.questions.append("toString")
        return "asked"

    class Java:
        implements = ["java.util.function.Supplier", "java.util.function.Function", "java.lang.Runnable"]


@pytest.fixture(scope="module")
def jvm(start: Start) -> Jvm:
    found = Jvm(start())
    found.start_callbacks()
    return found


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_what_never_changes_is_asked_once_for_each_argument(jvm: Jvm, asked: Asked) -> None:
    java = cached_callbacks(jvm, asked, {"apply": ALWAYS, "toString": ALWAYS})

    assert [java.apply(value) for value in ("a", "b", "a", "b")] == ["answer 1", "answer 2", "answer 1", "answer 2"]
    java.run()
    assert java.apply("a") == "answer 1"
    assert [str(java.toString()), str(java.toString())] == ["asked", "asked"]
    assert asked.questions == ["a", "b", "run", "toString"]


def test_arrays_are_the_same_question_where_they_hold_the_same(jvm: Jvm, asked: Asked) -> None:
    java = cached_callbacks(jvm, asked, {"apply": _AN_HOUR})
    questions = [["a", "b"], ["a", "b"], ["a, b"], ["a"], [], ["a", "b"]]

    assert [java.apply(values.strings(jvm, question)) for question in questions] == [
        *("answer 1", "answer 1", "answer 2", "answer 3", "answer 4", "answer 1"),
    ]
    assert asked.questions == [["a", "b"], ["a, b"], ["a"], []]


def test_an_answer_that_lasts_a_while_is_forgotten_when_anything_else_is_asked(jvm: Jvm, asked: Asked) -> None:
    java = cached_callbacks(jvm, asked, {"apply": _AN_HOUR, "toString": ALWAYS})

    assert java.apply("a") == java.apply("a") == "answer 1"
    java.toString()
    assert java.apply("a") == "answer 1"
    java.run()
    assert java.apply("a") == "answer 4"


def test_an_answer_that_lasts_a_while_is_forgotten_after_it(jvm: Jvm, asked: Asked) -> None:
    java = cached_callbacks(jvm, asked, {"apply": 1})
    deadline = time.monotonic() + 30

    while len(asked.questions) < 2 and time.monotonic() < deadline:
        java.apply("a")

    assert asked.questions == ["a", "a"]


def test_an_error_is_no_answer(jvm: Jvm, asked: Asked) -> None:
    java = cached_callbacks(jvm, asked, {"apply": ALWAYS})

    for _ in range(2):
        with pytest.raises(Py4JJavaError, match="refused"):
            java.apply("fail")
    assert asked.questions == ["fail", "fail"]


def test_it_equals_itself_and_asks_of_others(jvm: Jvm, asked: Asked) -> None:
    java = cached_callbacks(jvm, asked, {})

    assert java.equals(java)
    assert asked.questions == []
    assert not java.equals(values.strings(jvm, []))
    assert asked.questions == ["equals"]


def test_the_objects_that_it_answers_with_remember_too(jvm: Jvm, asked: Asked) -> None:
    java = cached_callbacks(jvm, asked, {"get": ALWAYS}, {"apply": ALWAYS})

    answer = java.get()
    assert [answer.apply("a"), answer.apply("a"), java.get().apply("a")] == ["answer 1"] * 3
    assert [answer.get().apply("a"), answer.get().apply("a")] == ["answer 1"] * 2  # two objects, asked once each
    assert asked.questions == ["get"]


def _kinds(kind: type) -> Iterator[type]:
    for below in kind.__subclasses__():
        yield below
        yield from _kinds(below)


def test_what_java_may_call_of_our_objects_are_methods_of_its_interfaces(jvm: Jvm) -> None:
    of_name = jvm.static("java.lang.Class", "forName")
    for module in pkgutil.walk_packages(twophase.spark.__path__, "twophase.spark."):
        importlib.import_module(module.name)
    kinds = [kind for kind in _kinds(JavaCallable) if hasattr(kind, "Java")]
    assert len(kinds) > 10
    for kind in kinds:
        names = {name for name in dir(kind) if not name.startswith("_") and name != "Java"}
        callable_names = {name for name in names if callable(getattr(kind, name))}
        known = {"equals", "hashCode", "toString"}
        for interface in kind.Java.implements:  # type: ignore[attr-defined]
            known |= {str(method.getName()) for method in of_name(interface).getMethods()}
        assert callable_names - known <= LATER, kind

"""Checks of the Python environment on the executors, which may differ from the driver's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from twophase.errors import ConfigurationError
from twophase.spark.jvm.interpreter import is_local, is_own, own_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CURE = (
    "Spark takes the first python3 of the PATH there unless PYSPARK_PYTHON (or spark.pyspark.python) names another: "
    "let it name a Python that has twophase, on every machine of the cluster."
)


#: Contexts that :func:`require_python` has checked.
_able: WeakSet[Any] = WeakSet()


def require_python(spark: Any) -> None:
    """Refuse to write by Python tasks if they cannot run; checked once for each application, by a job of one task.

    Raises
    ------
    ConfigurationError
    """
    context = getattr(spark, "_sc", None)
    if context is None or is_own(context) or context in _able:
        return
    if is_local(context) and context.pythonExec == sys.executable:
        return
    if problems := executor_problems(spark, [__name__.partition(".")[0]]):
        raise ConfigurationError(f"{problems[0].partition('. ')[0]}. No row was written.", hint=_CURE)
    _able.add(context)


def executor_problems(spark: SparkSession, modules: Sequence[str]) -> list[str]:
    """Find modules that a task cannot import, by a job of one task.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    modules : sequence of str
        Full names.

    Returns
    -------
    list of str
        At most one sentence, with a hint.
    """
    try:
        asked = spark.sparkContext.parallelize([list(modules)], 1).map(_importer())
        with own_python(spark):
            asked._jrdd  # noqa: B018 (created and cached by this access)
        missing = asked.collect()[0]
    except Exception as error:  # any failure is reported by the doctor
        return [f"The executors cannot run Python: {_reason(error)}. {_CURE}"]
    return [f"The executors' Python lacks {', '.join(missing)}. {_CURE}"] if missing else []


def _importer() -> Callable[[list[str]], list[str]]:
    """A local function, which is pickled by value: a module's function would itself need twophase on the executors."""

    def lacking(names: list[str]) -> list[str]:
        from importlib import import_module

        lost = []
        for name in names:
            try:
                import_module(name)
            except ImportError as error:
                lost.append(error.name or name)
        return sorted(set(lost))

    return lacking


def _reason(error: Exception) -> str:
    """The informative line of a Java or Python traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for sign in ("Cannot run program", "PYTHON_VERSION_MISMATCH", "Error: ", "Exception: "):
        if telling := [line for line in lines if sign in line]:
            return telling[-1].rstrip(".")
    return lines[-1] if lines else type(error).__name__

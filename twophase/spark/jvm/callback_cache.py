"""A cache, in the JVM, of the results of Python objects that Spark calls many times.

Each call from Spark to a Python object crosses Py4J and back, which takes a tenth of a millisecond, and the analyser
asks a catalog for its name or a table for its capabilities dozens of times in one statement. Results that never
change, or not within a quarter of a second, are therefore returned by a few lines of Java in front of the Python
object, those of ``java/CallbackCache.java``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twophase.spark.jvm import values
from twophase.spark.jvm.java_sources import java_object

if TYPE_CHECKING:
    from twophase.spark.jvm.gateway import Jvm

#: Lifetime of a result that never changes.
ALWAYS = 0

#: Lifetime of a result in milliseconds, by method of an object; methods that are not listed always call Python.
CachePolicy = Mapping[str, int]


def cached_callbacks(jvm: Jvm, proxy: Any, policy: CachePolicy, answers_policy: CachePolicy | None = None) -> Any:
    """Create a Java object that calls a Python one, and caches some of its results.

    Parameters
    ----------
    jvm : Jvm
    proxy : object
        A Python object with Java interfaces.
    policy : mapping of str to int
        By method, the lifetime of its result in milliseconds, or :data:`ALWAYS`. A result with a
        limited lifetime is also dropped when any other method is called, which may change it.
    answers_policy : mapping of str to int, optional
        The same for the Python objects that it returns.

    Raises
    ------
    ConfigurationError
        Spark has no Janino.
    """
    maker = java_object(jvm, "CallbackCache$Maker")
    return maker.make(proxy, _known(jvm, policy), None if answers_policy is None else _known(jvm, answers_policy))


def _known(jvm: Jvm, policy: CachePolicy) -> Any:
    return values.from_json(jvm, "java.util.HashMap", dict(policy))

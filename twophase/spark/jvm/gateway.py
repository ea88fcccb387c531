"""The gateway to the JVM of a Spark session: classes, static methods, callbacks, and a check that it is alive.

Spark's subsystems have modules of their own beside this one: values, the session's state, tables, caches, statements,
the Hive client. Only they and this one use names that Spark does not promise to keep
(:mod:`twophase.spark.jvm.private` lists them). If such a name is missing, a
:class:`twophase.errors.ConfigurationError` with the name and the version of Spark is raised before anything happens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JNetworkError

from twophase.errors import ConfigurationError
from twophase.lru import LruCache
from twophase.redaction import logger
from twophase.spark.jvm import callbacks

CATALOG = "org.apache.spark.sql.connector.catalog."
WRITE = "org.apache.spark.sql.connector.write."

#: Py4J's: at level DEBUG they show all that passes the gateway, settings included, and are redacted as our own.
_LOGGERS = ("py4j.clientserver", "py4j.java_gateway")


@contextmanager
def private_name(name: str, spark: Any) -> Iterator[None]:
    """Turn the failure to find a private name of Spark into a :class:`ConfigurationError`."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

    try:
        yield
    except (Py4JJavaError, Py4JNetworkError):
        raise  # the name exists: Spark itself refused, or its JVM is gone
    except (Py4JError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"Spark {spark.version} has no usable {name}, which twophase needs.",
            hint="Use PySpark 4.0 to 4.3 with a local (not a Connect) session.",
        ) from error


class Jvm:
    """The gateway to the JVM of one Spark session.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A classic session.

    Raises
    ------
    ConfigurationError
        A Spark Connect session, or a Spark version without the required private names.
    """

    def __init__(self, spark: Any) -> None:
        if not hasattr(spark, "_jsparkSession"):
            raise ConfigurationError(
                "twophase.attach needs a classic Spark session; this one is a Spark Connect client.",
                hint="Over Spark Connect use twophase.create_table_as(df, catalog, path).",
            )
        self.spark = spark
        self.session = spark._jsparkSession
        self.gateway = spark.sparkContext._gateway
        self.jvm = spark.sparkContext._jvm
        for name in _LOGGERS:
            logger(name)
        self._kept: dict[tuple[str, ...], Any] = {}
        #: Values that the current statement may need again.
        self.remembered: LruCache[tuple[str, ...], Any] = LruCache(32)

    def once(self, key: tuple[str, ...], make: Callable[[], Any]) -> Any:
        """A value that never changes, fetched once: each call over Py4J matters for a statement of a few rows."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def recent(self, key: tuple[str, ...], make: Callable[[], Any]) -> Any:
        """A value that never changes, out of an unlimited number: the last few are remembered."""
        found = self.remembered.get(key)
        return self.remembered.put(key, make()) if found is None else found

    def kind(self, class_name: str) -> Any:
        """A class by its full name (each dot of the name would cost a call at each use)."""
        return self.once((class_name,), lambda: functools.reduce(getattr, class_name.split("."), self.jvm))

    def static(self, class_name: str, member: str) -> Any:
        """A static method (each lookup on its class costs a call)."""
        return self.once((class_name, member), lambda: getattr(self.kind(class_name), member))

    # -- callbacks -----------------------------------------------------------------------------------------------

    def start_callbacks(self) -> None:
        """Let the JVM call Python objects, and let Java exceptions that these raise reach Spark unchanged."""
        with private_name("Py4J callback server", self.spark):
            callbacks.start(self.gateway)
            callbacks.propagate_exceptions(self.gateway)

    # -- the session ---------------------------------------------------------------------------------------------

    def is_alive(self) -> bool:
        """Return whether the application is still running."""
        context = self.spark.sparkContext
        try:
            return context._jsc is not None and not context._jsc.sc().isStopped()
        except (Py4JNetworkError, OSError):  # the JVM has died
            return False

    def session_id(self) -> str:
        """The identity of this JVM session."""
        with private_name("SparkSession.sessionUUID", self.spark):
            return str(self.session.sessionUUID())
